//! A mapping of a file of a VMM: shared, guarded against SIGBUS, and unmapped in a separate thread.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, LazyLock, OnceLock};
use std::{ptr, thread};

use rustix::fs::{fcntl_get_seals, fstat, fstatfs};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::guard::{self, Watch};
use crate::limits::is_memory_for_clients;
use crate::shared_limit::{Permit, Quota, SharedLimit};

/// File system number reported by `statfs`.
const HUGETLBFS_MAGIC: u64 = 0x9584_58f6;

/// Alignment of a mapping's start, in bytes, for atomic accesses. Descriptor tables of rings have the largest
/// alignment.
pub const ALIGNMENT: u64 = 16;

/// Mappings reserved for each socket. A VMM of QEMU with 20 memory slots needs fewer, even while it changes them.
const MAPPINGS_PER_SOCKET: u32 = 64;

/// Maximum number of areas that wait for the unmapping thread. If it is reached, dropping a mapping unmaps it directly.
const AREAS_MAX: usize = 1024;

/// Why a file cannot be mapped.
#[derive(Debug, thiserror::Error)]
pub enum MappingError {
    /// The offset is not aligned.
    #[error("Offset {0:#x} is not a multiple of {ALIGNMENT}")]
    Offset(u64),
    /// The file is too short.
    #[error("The file has {file} bytes, but offset and size need {required}")]
    Short {
        /// Length of the file in bytes.
        file: u64,
        /// Required length in bytes.
        required: u64,
    },
    /// The file is not in memory, so an access may wait for its file system.
    #[error("The file is not in memory; share memory by memfd, tmpfs or hugetlbfs")]
    NotMemory,
    /// The address space or the memory is exhausted.
    #[error("Too little memory is left for the mapping; raise LimitAS or give the VM less memory")]
    NoMemory,
    /// The limit of mappings is reached, or the rest is reserved for other sockets.
    #[error("All VMs together have too many mapped memory regions; give this VM fewer")]
    Quota,
    /// A system call failed.
    #[error("Cannot map the file")]
    Io(#[from] io::Error),
}

impl From<rustix::io::Errno> for MappingError {
    fn from(errno: rustix::io::Errno) -> Self {
        MappingError::Io(errno.into())
    }
}

/// A part of a file, mapped for reading and writing until this is dropped.
#[derive(Debug)]
pub struct Mapping {
    /// Start of the whole mapping: the part, extended to whole pages of the file.
    start: *mut u8,
    len: usize,
    /// Start of the part.
    part: *mut u8,
    part_len: usize,
    watch: Option<Watch>,
    _permit: Option<Permit>,
}

/// The owner of a mapping.
#[derive(Debug, Clone, Default)]
pub struct MappingOwner {
    /// A non-blocking eventfd, signalled when a missing page is accessed.
    pub fault_event: Option<Arc<OwnedFd>>,
    /// The mappings that the VMMs of its socket may have.
    pub quota: Option<Arc<Quota>>,
}

/// Creates the quota of mappings for one more socket. Of all mappings that can be guarded, 64 are reserved for each socket, but
/// at most half of them in total.
#[must_use]
pub fn quota() -> Quota {
    static MAPPINGS: LazyLock<Arc<SharedLimit>> =
        LazyLock::new(|| Arc::new(SharedLimit::new(guard::MAPPINGS_MAX as u32, MAPPINGS_PER_SOCKET)));
    MAPPINGS.quota()
}

// SAFETY: a mapping is an address and a length; its users read and write by volatile or atomic accesses.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes from `offset`, which is a multiple of [`ALIGNMENT`].
    ///
    /// # Errors
    /// [`MappingError`].
    pub fn new(file: impl AsFd, offset: u64, len: u64, owner: &MappingOwner) -> Result<Self, MappingError> {
        if !offset.is_multiple_of(ALIGNMENT) {
            return Err(MappingError::Offset(offset));
        }
        let page_len = page_len(&file)?;
        let file_len = fstat(&file)?.st_size as u64;
        let end = offset.checked_add(len).filter(|&end| len > 0 && end <= file_len);
        let Some(end) = end else {
            return Err(MappingError::Short { file: file_len, required: offset.saturating_add(len) });
        };
        let from = offset & !(page_len - 1);
        let whole = (end - from).next_multiple_of(page_len) as usize;
        let permit = owner.quota.as_ref().map(|quota| quota.take()).transpose();
        let permit = permit.map_err(|_| MappingError::Quota)?;
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping at an address that the kernel chooses.
        let start = unsafe { mmap(ptr::null_mut(), whole, protection, flags, &file, from)? }.cast::<u8>();
        let mut mapping = Mapping {
            start,
            len: whole,
            part: start.wrapping_add((offset - from) as usize),
            part_len: len as usize,
            watch: None,
            _permit: permit,
        };
        if !is_memory_for_clients(0) {
            return Err(MappingError::NoMemory);
        }
        mapping.watch = Some(guard::watch(start, whole, page_len as usize, owner.fault_event.clone())?);
        // SAFETY: the area is ours. It excludes guests' data from core dumps; a failure does no harm.
        let _ = unsafe { rustix::mm::madvise(start.cast(), whole, rustix::mm::Advice::LinuxDontDump) };
        Ok(mapping)
    }

    /// Returns the start of the part. Valid while this exists.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.part
    }

    /// Returns its length in bytes.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        self.part_len
    }

    /// Returns the number of missing pages that were accessed, because the VMM has truncated the file.
    #[must_use]
    pub fn faults(&self) -> u32 {
        self.watch.as_ref().map_or(0, Watch::faults)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        self.watch = None;
        // A device thread may be the last user, and unmapping a large guest takes milliseconds.
        let area = Area { start: self.start as usize, len: self.len };
        match unmapper() {
            Some(unmapper) => match unmapper.try_send(area) {
                Ok(()) => {}
                Err(TrySendError::Full(area) | TrySendError::Disconnected(area)) => area.unmap(),
            },
            None => area.unmap(),
        }
    }
}

/// A mapping without users.
struct Area {
    start: usize,
    len: usize,
}

impl Area {
    fn unmap(self) {
        // SAFETY: the area was mapped by a `Mapping` that has been dropped.
        let _ = unsafe { munmap(self.start as *mut _, self.len) };
    }
}

/// Returns the channel to the unmapping thread; `None` if it could not be started.
fn unmapper() -> Option<&'static SyncSender<Area>> {
    static UNMAPPER: OnceLock<Option<SyncSender<Area>>> = OnceLock::new();
    let start = || {
        let (sender, receiver) = sync_channel::<Area>(AREAS_MAX);
        let work = move || receiver.into_iter().for_each(Area::unmap);
        thread::Builder::new().name("unmap".to_owned()).spawn(work).ok().map(|_| sender)
    };
    UNMAPPER.get_or_init(start).as_ref()
}

/// Returns the page size of a file in memory (memfd, tmpfs or hugetlbfs). Only these support seals, which is checked
/// first because the kernel answers it by itself. Any other call may go to a server that the VMM controls, which may
/// never respond.
fn page_len(file: impl AsFd) -> Result<u64, MappingError> {
    fcntl_get_seals(&file).map_err(|_| MappingError::NotMemory)?;
    let of = fstatfs(file)?;
    Ok(page_len_on(of.f_type as u64, of.f_bsize as u64))
}

fn page_len_on(file_system: u64, block_len: u64) -> u64 {
    match file_system {
        HUGETLBFS_MAGIC => block_len,
        _ => rustix::param::page_size() as u64,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

    use rustix::event::{EventfdFlags, eventfd};
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::*;

    fn memfd(len: u64) -> OwnedFd {
        let file = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, len).unwrap();
        file
    }

    fn byte(mapping: &Mapping, at: usize) -> &AtomicU8 {
        assert!(at < mapping.len_bytes());
        // SAFETY: within the mapping, which outlives the reference.
        unsafe { &*mapping.as_ptr().add(at).cast() }
    }

    #[test]
    fn huge_pages_are_as_large_as_their_file_system_says() {
        assert_eq!(page_len_on(HUGETLBFS_MAGIC, 2 << 20), 2 << 20);
        assert_eq!(page_len_on(HUGETLBFS_MAGIC, 1 << 30), 1 << 30);
        assert_eq!(page_len(memfd(4096)).unwrap(), rustix::param::page_size() as u64);
    }

    #[test]
    fn two_mappings_of_a_file_share_their_bytes() {
        let file = memfd(3 * 4096);
        let whole = Mapping::new(&file, 0, 3 * 4096, &MappingOwner::default()).unwrap();
        let second_page = Mapping::new(&file, 4096, 100, &MappingOwner::default()).unwrap();
        byte(&whole, 4096 + 99).store(7, Ordering::Relaxed);
        assert_eq!(byte(&second_page, 99).load(Ordering::Relaxed), 7);
        assert_eq!(second_page.len_bytes(), 100);
    }

    #[test]
    fn files_that_cannot_be_mapped_are_rejected() {
        let file = memfd(8192);
        assert!(matches!(Mapping::new(&file, 520, 512, &MappingOwner::default()), Err(MappingError::Offset(520))));
        assert!(matches!(
            Mapping::new(&file, 4096, 4097, &MappingOwner::default()),
            Err(MappingError::Short { file: 8192, required: 8193 })
        ));
        assert_eq!(
            Mapping::new(&file, 512, 512, &MappingOwner::default()).unwrap().len_bytes(),
            512,
            "pages are our own business"
        );
        assert!(matches!(Mapping::new(&file, 0, 0, &MappingOwner::default()), Err(MappingError::Short { .. })));
        assert!(matches!(Mapping::new(&file, !4095, 8192, &MappingOwner::default()), Err(MappingError::Short { .. })));
        let elsewhere = std::fs::File::open("/proc/self/exe").unwrap();
        assert!(matches!(Mapping::new(&elsewhere, 0, 4096, &MappingOwner::default()), Err(MappingError::NotMemory)));
        let (pipe, _) = std::io::pipe().unwrap();
        assert!(matches!(Mapping::new(&pipe, 0, 4096, &MappingOwner::default()), Err(MappingError::NotMemory)));
    }

    #[test]
    fn a_file_on_tmpfs_is_memory() {
        let file = tempfile::tempfile_in("/dev/shm").expect("glibc needs it for shared memory, so it is there");
        file.set_len(8192).unwrap();
        assert_eq!(Mapping::new(&file, 4096, 4096, &MappingOwner::default()).unwrap().len_bytes(), 4096);
    }

    #[test]
    fn missing_pages_of_a_truncated_file_read_as_zeroes_and_signal_the_owner() {
        let file = memfd(64 * 4096);
        let fault_event = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap());
        let mapping = Mapping::new(
            &file,
            0,
            64 * 4096,
            &MappingOwner { fault_event: Some(Arc::clone(&fault_event)), quota: None },
        )
        .unwrap();
        byte(&mapping, 5 * 4096).store(1, Ordering::Relaxed);
        byte(&mapping, 0).store(3, Ordering::Relaxed);
        ftruncate(&file, 4096).unwrap();
        assert_eq!(byte(&mapping, 5 * 4096).load(Ordering::Relaxed), 0, "the page is missing");
        byte(&mapping, 5 * 4096).store(2, Ordering::Relaxed);
        assert_eq!(byte(&mapping, 5 * 4096).load(Ordering::Relaxed), 2, "its replacement can be written");
        assert_eq!((mapping.faults(), byte(&mapping, 0).load(Ordering::Relaxed)), (1, 3), "other pages are unchanged");
        let mut rung = [0; 8];
        rustix::io::read(&fault_event, &mut rung).unwrap();
        assert_eq!(u64::from_ne_bytes(rung), 1);
        for page in 6..64 {
            byte(&mapping, page * 4096).store(1, Ordering::Relaxed);
        }
        assert_eq!(mapping.faults(), 17, "the seventeenth fault replaces the whole mapping");
    }

    #[test]
    fn threads_with_concurrent_faults_all_continue() {
        let file = memfd(1024 * 4096);
        let mapping = Mapping::new(&file, 0, 1024 * 4096, &MappingOwner::default()).unwrap();
        ftruncate(&file, 0).unwrap();
        let sum = AtomicU64::new(0);
        thread::scope(|scope| {
            for part in 0..4 {
                let (mapping, sum) = (&mapping, &sum);
                scope.spawn(move || {
                    for page in (part..1024).step_by(4) {
                        sum.fetch_add(u64::from(byte(mapping, page * 4096).load(Ordering::Relaxed)), Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(sum.into_inner(), 0);
        assert!(mapping.faults() >= 1);
    }

    #[test]
    fn a_fault_elsewhere_still_ends_the_process() {
        let file = memfd(4096);
        let _installs_the_handler = Mapping::new(&file, 0, 4096, &MappingOwner::default()).unwrap();
        // SAFETY: a new mapping without a guard.
        let other = unsafe {
            mmap(ptr::null_mut(), 4096, ProtFlags::READ, MapFlags::SHARED, &file, 0).unwrap().cast::<AtomicU8>()
        };
        ftruncate(&file, 0).unwrap();
        // SAFETY: the child only touches memory and exits; it takes no lock.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: disables the core dump of an intended crash; then the access that crashes.
            unsafe {
                let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
                libc::setrlimit(libc::RLIMIT_CORE, &raw const none);
                (*other).load(Ordering::Relaxed);
                libc::_exit(0);
            }
        }
        let mut status = 0;
        // SAFETY: waits for that child.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGBUS, "status {status:#x}");
    }

    #[test]
    fn vmms_with_many_memory_regions_left_no_mapping_for_others() {
        let limit = Arc::new(SharedLimit::new(1000, MAPPINGS_PER_SOCKET));
        let [greedy, modest] = [(); 2].map(|()| Some(Arc::new(limit.quota())));
        let map = |quota: &Option<Arc<Quota>>| {
            let file = memfd(4096);
            Mapping::new(&file, 0, 4096, &MappingOwner { fault_event: None, quota: quota.clone() })
        };
        let all: Vec<_> = std::iter::from_fn(|| map(&greedy).ok()).collect();
        assert_eq!(all.len(), 1000 - MAPPINGS_PER_SOCKET as usize);
        assert!(matches!(map(&greedy), Err(MappingError::Quota)));
        let modest: Vec<_> = (0..MAPPINGS_PER_SOCKET).map(|_| map(&modest).unwrap()).collect();
        drop((all, modest));
        assert!(map(&greedy).is_ok());
    }
}
