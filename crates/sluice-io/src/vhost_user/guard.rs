//! The SIGBUS guard: a VMM that shortens its memory file must not end the daemon.
//!
//! Guest memory is a file that a VMM has open too. Should it shorten the file, the pages behind its new end are still mapped
//! here, but whoever touches them gets SIGBUS, and the daemon would end for all VMs. (The kernel's own accesses, for a read
//! from disk into such a page, fail with EFAULT and do no harm.)
//!
//! So every mapping of a VMM's file is entered into a table that the signal's handler can read without a lock. On a fault
//! inside an entry the handler puts a page of zeroes there, counts it, and rings: who owns the mapping then sends the VMM
//! away. On any other fault it does what would have happened without it.
//!
//! A VMM could still make us keep many single pages, each of them an area of its own to the kernel, of which a process may
//! have 65,530. So after [`PAGES_MAX`] pages of one mapping all of it becomes memory of zeroes.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Mappings that can be watched at once, those of all VMs together.
pub(super) const MAPPINGS_MAX: usize = 16384;

/// Pages of one mapping that are replaced one by one.
const PAGES_MAX: u32 = 16;

/// No descriptor.
const NONE: RawFd = -1;

/// One mapping. It is in use when `end` is not 0.
struct Slot {
    start: AtomicUsize,
    end: AtomicUsize,
    page_len: AtomicUsize,
    faults: AtomicU32,
    bell: AtomicI32,
}

impl Slot {
    const fn free() -> Self {
        Slot {
            start: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
            page_len: AtomicUsize::new(0),
            faults: AtomicU32::new(0),
            bell: AtomicI32::new(NONE),
        }
    }
}

static SLOTS: [Slot; MAPPINGS_MAX] = [const { Slot::free() }; MAPPINGS_MAX];

/// Slots below this one may be in use.
static HIGH: AtomicUsize = AtomicUsize::new(0);

/// What was there before us.
static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();

/// A watched mapping; ends when it is dropped, which must be before it is unmapped.
#[derive(Debug)]
pub(super) struct Watch {
    slot: usize,
    /// Kept open for the handler.
    _bell: Option<Arc<OwnedFd>>,
}

/// Watches `len` bytes from `start`, which is a mapping made of pages of `page_len` bytes. `bell` is an eventfd that does
/// not block, rung at each fault.
pub(super) fn watch(start: *mut u8, len: usize, page_len: usize, bell: Option<Arc<OwnedFd>>) -> io::Result<Watch> {
    install()?;
    let start = start as usize;
    for (index, slot) in SLOTS.iter().enumerate() {
        // A slot is taken by its start; the handler looks at its end, which comes last.
        if slot.start.compare_exchange(0, start, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            continue;
        }
        slot.page_len.store(page_len, Ordering::Relaxed);
        slot.faults.store(0, Ordering::Relaxed);
        slot.bell.store(bell.as_ref().map_or(NONE, |bell| bell.as_raw_fd()), Ordering::Relaxed);
        HIGH.fetch_max(index + 1, Ordering::AcqRel);
        slot.end.store(start + len, Ordering::Release);
        return Ok(Watch { slot: index, _bell: bell });
    }
    Err(io::Error::other("Too many mappings of VMs' memory"))
}

impl Watch {
    /// Pages that were gone when they were touched.
    pub(super) fn faults(&self) -> u32 {
        SLOTS[self.slot].faults.load(Ordering::Relaxed)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let slot = &SLOTS[self.slot];
        slot.end.store(0, Ordering::Release);
        slot.bell.store(NONE, Ordering::Release);
        slot.start.store(0, Ordering::Release);
    }
}

/// Makes the handler known to the kernel, once.
fn install() -> io::Result<()> {
    if PREVIOUS.get().is_some() {
        return Ok(());
    }
    static INSTALLING: Mutex<()> = Mutex::new(());
    let _one = INSTALLING.lock().unwrap_or_else(PoisonError::into_inner);
    if PREVIOUS.get().is_some() {
        return Ok(());
    }
    // SAFETY: an all-zero sigaction is a valid value.
    let (mut ours, mut previous) = unsafe { (std::mem::zeroed::<libc::sigaction>(), std::mem::zeroed()) };
    ours.sa_sigaction = handle as *const () as usize;
    ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
    // SAFETY: the pointer is valid, and null for what is set asks for what is there.
    if unsafe { libc::sigaction(libc::SIGBUS, std::ptr::null(), &raw mut previous) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let _ = PREVIOUS.set(previous);
    // SAFETY: the handler does only what a signal handler may: atomics, mmap, write, sigaction.
    if unsafe { libc::sigaction(libc::SIGBUS, &raw const ours, std::ptr::null_mut()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

extern "C" fn handle(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel gives a valid siginfo to a handler with SA_SIGINFO; the address is that of a fault if the code
    // says so. The errno of the interrupted code is put back.
    let (code, address, errno) = unsafe { ((*info).si_code, (*info).si_addr() as usize, *libc::__errno_location()) };
    let mended = code == libc::BUS_ADRERR && mend(address);
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
    if !mended {
        pass_on(signal, info, context);
    }
}

/// Puts memory where a watched page is gone; whether the access may be tried again.
fn mend(address: usize) -> bool {
    for slot in &SLOTS[..HIGH.load(Ordering::Acquire)] {
        let end = slot.end.load(Ordering::Acquire);
        let start = slot.start.load(Ordering::Relaxed);
        // Looked at twice: the slot may be given to another mapping meanwhile.
        if !(start..end).contains(&address) || slot.end.load(Ordering::Acquire) != end {
            continue;
        }
        let page_len = slot.page_len.load(Ordering::Relaxed);
        let faults = slot.faults.fetch_add(1, Ordering::Relaxed);
        let (from, len) = match faults {
            ..PAGES_MAX => (address & !(page_len - 1), page_len),
            _ => (start, end - start),
        };
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
        // SAFETY: the area is part of a mapping of a VMM's file that nobody but its users knows, who count on nothing in
        // it; it is made of whole pages of the size that the mapping has.
        let mapped = unsafe { libc::mmap(from as *mut _, len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        let bell = slot.bell.load(Ordering::Relaxed);
        if bell != NONE {
            let one = 1u64;
            // SAFETY: eight bytes are read from a valid place. The descriptor is open while the slot is in use.
            unsafe { libc::write(bell, (&raw const one).cast(), 8) };
        }
        return mapped != libc::MAP_FAILED;
    }
    false
}

/// What would have happened without us: the handler that was there, or the default.
fn pass_on(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let previous = PREVIOUS.get().filter(|previous| previous.sa_sigaction != libc::SIG_IGN);
    let handler = previous.map_or(libc::SIG_DFL, |previous| previous.sa_sigaction);
    if handler == libc::SIG_DFL {
        // The access is tried again and then ends the process, as it does by default.
        // SAFETY: a zeroed sigaction asks for the default.
        unsafe {
            let default = std::mem::zeroed::<libc::sigaction>();
            libc::sigaction(signal, &raw const default, std::ptr::null_mut());
        }
        return;
    }
    let takes_info = previous.is_some_and(|previous| previous.sa_flags & libc::SA_SIGINFO != 0);
    // SAFETY: the address was registered as a handler of this kind.
    unsafe {
        if takes_info {
            let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
                std::mem::transmute(handler);
            handler(signal, info, context);
        } else {
            let handler: extern "C" fn(libc::c_int) = std::mem::transmute(handler);
            handler(signal);
        }
    }
}
