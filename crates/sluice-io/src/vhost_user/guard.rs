//! The SIGBUS guard: a VMM that truncates its memory file must not end the daemon.
//!
//! Guest memory is a file that the VMM has open too. If the VMM truncates it, the pages past its new end are still
//! mapped here, but an access to them causes SIGBUS, which would end the daemon for all VMs. (Accesses of the kernel,
//! such as a read from disk into such a page, fail with EFAULT and do no harm.)
//!
//! So every mapping of a VMM's file is entered into a table that the signal handler can read without a lock. On a fault
//! within an entry the handler maps a page of zeroes there, counts the fault, and signals an eventfd. The session that
//! owns the mapping then disconnects the VMM. On any other fault the handler does what would have happened without it.
//!
//! A VMM could make the daemon map many single pages. Each is an area of its own for the kernel, which allows 65,530
//! per process. So after [`PAGES_MAX`] pages the whole mapping is replaced by zeroes.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Maximum number of guarded mappings of all VMs.
pub(super) const MAPPINGS_MAX: usize = 16384;

/// Number of pages of one mapping that are replaced individually.
const PAGES_MAX: u32 = 16;

/// No descriptor.
const NONE: RawFd = -1;

/// A guarded mapping. It is in use when `end` is not 0.
struct Slot {
    start: AtomicUsize,
    end: AtomicUsize,
    page_len: AtomicUsize,
    faults: AtomicU32,
    fault_event: AtomicI32,
}

impl Slot {
    const fn free() -> Self {
        Slot {
            start: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
            page_len: AtomicUsize::new(0),
            faults: AtomicU32::new(0),
            fault_event: AtomicI32::new(NONE),
        }
    }
}

static SLOTS: [Slot; MAPPINGS_MAX] = [const { Slot::free() }; MAPPINGS_MAX];

/// All slots in use have a smaller index.
static HIGH: AtomicUsize = AtomicUsize::new(0);

/// The handler that was installed before.
static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();

/// A guarded mapping. It must be dropped before the memory is unmapped.
#[derive(Debug)]
pub(super) struct Watch {
    slot: usize,
    /// Kept open for the handler.
    _fault_event: Option<Arc<OwnedFd>>,
}

/// Guards `len` bytes from `start`, which is a mapping with pages of `page_len` bytes. `fault_event` is a non-blocking
/// eventfd that each fault signals.
pub(super) fn watch(
    start: *mut u8,
    len: usize,
    page_len: usize,
    fault_event: Option<Arc<OwnedFd>>,
) -> io::Result<Watch> {
    install()?;
    let start = start as usize;
    for (index, slot) in SLOTS.iter().enumerate() {
        // Setting the start reserves a slot. The handler checks the end, which is set last.
        if slot.start.compare_exchange(0, start, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            continue;
        }
        slot.page_len.store(page_len, Ordering::Relaxed);
        slot.faults.store(0, Ordering::Relaxed);
        slot.fault_event
            .store(fault_event.as_ref().map_or(NONE, |fault_event| fault_event.as_raw_fd()), Ordering::Relaxed);
        HIGH.fetch_max(index + 1, Ordering::AcqRel);
        slot.end.store(start + len, Ordering::Release);
        return Ok(Watch { slot: index, _fault_event: fault_event });
    }
    Err(io::Error::other("Too many mapped memory regions of all VMs together"))
}

impl Watch {
    /// Returns the number of missing pages that were accessed.
    pub(super) fn faults(&self) -> u32 {
        SLOTS[self.slot].faults.load(Ordering::Relaxed)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let slot = &SLOTS[self.slot];
        slot.end.store(0, Ordering::Release);
        slot.fault_event.store(NONE, Ordering::Release);
        slot.start.store(0, Ordering::Release);
    }
}

/// Installs the handler, once.
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
    // SAFETY: the pointer is valid, and a null action reads the current one.
    if unsafe { libc::sigaction(libc::SIGBUS, std::ptr::null(), &raw mut previous) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let _ = PREVIOUS.set(previous);
    // SAFETY: the handler only does what a signal handler may: atomics, mmap, write, sigaction.
    if unsafe { libc::sigaction(libc::SIGBUS, &raw const ours, std::ptr::null_mut()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

extern "C" fn handle(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel gives a valid siginfo to a handler with SA_SIGINFO; the address is that of a fault if the code
    // says so. The errno of the interrupted code is restored.
    let (code, address, errno) = unsafe { ((*info).si_code, (*info).si_addr() as usize, *libc::__errno_location()) };
    let mended = code == libc::BUS_ADRERR && replace_missing_page(address);
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
    if !mended {
        pass_on(signal, info, context);
    }
}

/// Maps memory where a guarded page is missing. Returns whether the access may be repeated.
fn replace_missing_page(address: usize) -> bool {
    for slot in &SLOTS[..HIGH.load(Ordering::Acquire)] {
        let end = slot.end.load(Ordering::Acquire);
        let start = slot.start.load(Ordering::Relaxed);
        // Checked twice, because the slot may have been given to another mapping in the meantime.
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
        // SAFETY: the area is part of a mapping of a VMM's file, whose users do not rely on its contents; it consists
        // of whole pages of the mapping's page size.
        let mapped = unsafe { libc::mmap(from as *mut _, len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        let fault_event = slot.fault_event.load(Ordering::Relaxed);
        if fault_event != NONE {
            let one = 1u64;
            // SAFETY: eight bytes are read from a valid address. The descriptor is open while the slot is in use.
            unsafe { libc::write(fault_event, (&raw const one).cast(), 8) };
        }
        return mapped != libc::MAP_FAILED;
    }
    false
}

/// Does what would have happened without our handler: calls the previous handler, or applies the default.
fn pass_on(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let previous = PREVIOUS.get().filter(|previous| previous.sa_sigaction != libc::SIG_IGN);
    let handler = previous.map_or(libc::SIG_DFL, |previous| previous.sa_sigaction);
    if handler == libc::SIG_DFL {
        // The access is repeated and then ends the process, which is the default.
        // SAFETY: a zeroed sigaction selects the default.
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
