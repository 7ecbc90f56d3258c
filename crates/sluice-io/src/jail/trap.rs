//! What becomes of a system call that is not on the list: it fails with ENOSYS, as in a kernel that does not have it, and is counted.

use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

/// Calls with higher numbers are counted together, with the last one.
const NUMBERS: usize = 512;

/// The kernel sends the signal because of a filter.
const SYS_SECCOMP: i32 = 1;

/// Refused calls, by number.
static REFUSED: [AtomicU64; NUMBERS] = [const { AtomicU64::new(0) }; NUMBERS];

/// How often a system call was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// Its name, or its number if it has none here.
    pub call: String,
    pub times: u64,
}

/// The calls that were refused so far.
#[must_use]
pub fn refused() -> Vec<Refused> {
    let counts = REFUSED.iter().enumerate().map(|(number, count)| (number, count.load(Ordering::Relaxed)));
    let counts = counts.filter(|(_, times)| *times > 0);
    counts.map(|(number, times)| Refused { call: super::calls::name(number as i64), times }).collect()
}

/// Handles the signal by which the kernel reports such a call.
pub(super) fn install() {
    // SAFETY: an all-zero action is a valid value; the handler has the type that the flag says, and does only what a handler may do. The
    // call fails only for wrong arguments.
    unsafe {
        let mut action = std::mem::zeroed::<libc::sigaction>();
        action.sa_sigaction = on_refused as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER | libc::SA_ONSTACK | libc::SA_RESTART;
        libc::sigaction(libc::SIGSYS, &raw const action, ptr::null_mut());
    }
}

extern "C" fn on_refused(_signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid pointer. Anyone may send the signal, at any place of the code.
    if unsafe { (*info).si_code } != SYS_SECCOMP {
        return;
    }
    // SAFETY: the kernel passes the registers of the thread, which it restores when the handler returns; nothing else refers to them.
    let result = unsafe { result_of(&mut *context.cast::<libc::ucontext_t>()) };
    // A debugger that takes a call out makes its number negative.
    if let Ok(number) = usize::try_from(*result) {
        REFUSED[number.min(NUMBERS - 1)].fetch_add(1, Ordering::Relaxed);
    }
    *result = -i64::from(libc::ENOSYS);
}

/// The register that has the number of the call, and then its result.
#[cfg(target_arch = "x86_64")]
fn result_of(context: &mut libc::ucontext_t) -> &mut i64 {
    &mut context.uc_mcontext.gregs[libc::REG_RAX as usize]
}

/// The register for the result; the number of the call is in another one.
#[cfg(target_arch = "aarch64")]
fn result_of(context: &mut libc::ucontext_t) -> &mut i64 {
    let registers = &mut context.uc_mcontext.regs;
    registers[0] = registers[8];
    let first: *mut u64 = &raw mut registers[0];
    // SAFETY: it has the same size and alignment.
    unsafe { &mut *first.cast::<i64>() }
}
