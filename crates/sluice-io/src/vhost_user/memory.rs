//! Guest memory that a VMM shares.
//!
//! The VMM sends a table of regions, each with a descriptor: its address in the guest, its address in the VMM (which
//! the addresses of rings refer to), and its offset in the file. A table is never changed. A message creates a new one,
//! which shares the mappings of regions that stay. So a request in flight keeps the table with which it arrived.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use vhost::vhost_user::message::VhostUserMemoryRegion;
use vm_memory::bitmap::BS;
use vm_memory::{
    GuestAddress, GuestMemoryError, GuestMemoryRegion, GuestMemoryRegionBytes, GuestRegionCollection, GuestUsize,
    MemoryRegionAddress, VolatileSlice, guest_memory,
};

use super::mapping::{Mapping, MappingError, MappingOwner};

/// Maximum number of regions of one VMM. QEMU has at most as many memory slots.
pub const REGIONS_MAX: usize = 256;

/// Maximum number of bytes of all regions of one VMM, so that none uses up the address space of the process.
pub const BYTES_MAX: u64 = 4 << 40;

/// A VMM may have this multiple of both mapped. Requests in flight keep their tables, so a VMM that changes its table
/// with every request would otherwise have as many tables as requests.
const TABLES_MAX: usize = 4;

/// A mapped memory table of a VMM. A request in flight holds the table with which it arrived, so its memory is not
/// unmapped.
pub type Memory = GuestRegionCollection<GuestRegion>;

/// A region for `vm-memory`: a mapping and its guest address. It may start anywhere in a page, because the guest does
/// not know the host's page size.
#[derive(Debug)]
pub struct GuestRegion {
    start: GuestAddress,
    mapping: Arc<Mapping>,
    _share: Option<Share>,
}

impl GuestMemoryRegion for GuestRegion {
    type B = ();

    fn len(&self) -> GuestUsize {
        self.mapping.len_bytes() as GuestUsize
    }

    fn start_addr(&self) -> GuestAddress {
        self.start
    }

    fn bitmap(&self) -> BS<'_, ()> {}

    fn get_slice(&self, offset: MemoryRegionAddress, count: usize) -> guest_memory::Result<VolatileSlice<'_>> {
        let len = self.mapping.len_bytes();
        let offset = usize::try_from(offset.0).ok().filter(|offset| *offset <= len && count <= len - offset);
        let offset = offset.ok_or(GuestMemoryError::InvalidBackendAddress)?;
        // SAFETY: the part lies within the mapping, which the region keeps. Guests write to it at any time, so users of
        // the slice read by volatile or atomic accesses.
        Ok(unsafe { VolatileSlice::new(self.mapping.as_ptr().add(offset), count) })
    }
}

impl GuestMemoryRegionBytes for GuestRegion {}

/// Creates memory that is not shared, for tests. `regions` has the start and length of each region, in order.
///
/// # Errors
/// If there is no memory.
pub fn unshared(regions: &[(GuestAddress, usize)]) -> io::Result<Memory> {
    let regions = regions.iter().map(|&(start, len)| {
        let file = memfd_create("unshared", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, len as u64)?;
        let mapping = Arc::new(Mapping::new(&file, 0, len as u64, &MappingOwner::default()).map_err(io::Error::other)?);
        Ok(GuestRegion { start, mapping, _share: None })
    });
    Memory::from_regions(regions.collect::<io::Result<_>>()?).map_err(io::Error::other)
}

/// Memory that a VMM has mapped in all its tables.
#[derive(Debug, Default)]
struct Usage {
    regions: AtomicUsize,
    bytes: AtomicU64,
}

/// A region's part of the usage.
#[derive(Debug)]
struct Share {
    of: Arc<Usage>,
    bytes: u64,
}

impl Share {
    fn new(of: &Arc<Usage>, bytes: u64) -> Self {
        of.regions.fetch_add(1, Ordering::Relaxed);
        of.bytes.fetch_add(bytes, Ordering::Relaxed);
        Share { of: Arc::clone(of), bytes }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.of.regions.fetch_sub(1, Ordering::Relaxed);
        self.of.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Why a memory table cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// The numbers of regions and descriptors differ.
    #[error("{regions} memory regions with {descriptors} file descriptors; each region needs one")]
    Descriptors { regions: usize, descriptors: usize },
    /// More than [`REGIONS_MAX`].
    #[error("{0} memory regions exceed the maximum of {REGIONS_MAX}")]
    TooMany(usize),
    /// More than [`BYTES_MAX`].
    #[error("{0} bytes of memory exceed the maximum of {BYTES_MAX}")]
    TooLarge(u64),
    /// Together with tables that requests in flight keep, the usage is above the limit.
    #[error(
        "Requests in flight still use {regions} memory regions of {bytes} bytes; wait until they complete before the next change"
    )]
    Kept {
        /// Mapped regions.
        regions: usize,
        /// Their size in bytes.
        bytes: u64,
    },
    /// The region is empty, or its addresses wrap around.
    #[error("Memory region at {guest:#x} has {len} bytes at {user:#x}: the range is empty or wraps around")]
    Range {
        /// Guest address.
        guest: u64,
        /// Address in the VMM.
        user: u64,
        /// Size in bytes.
        len: u64,
    },
    /// Two regions overlap.
    #[error("Memory regions at {0:#x} and {1:#x} overlap")]
    Overlap(u64, u64),
    /// No region matches the one to remove.
    #[error("No memory region at {0:#x} matches the one to remove")]
    Unknown(u64),
    /// A region cannot be mapped.
    #[error("Memory region at {guest:#x}: {source}")]
    Mapping {
        /// Guest address.
        guest: u64,
        source: MappingError,
    },
}

/// One region.
#[derive(Debug, Clone)]
struct Region {
    guest: u64,
    user: u64,
    len: u64,
    mapping: Arc<Mapping>,
    region: Arc<GuestRegion>,
}

impl Region {
    fn map(
        wanted: &VhostUserMemoryRegion,
        file: &OwnedFd,
        owner: &MappingOwner,
        usage: &Arc<Usage>,
    ) -> Result<Self, MemoryError> {
        let (guest, user, len) = (wanted.guest_phys_addr, wanted.user_addr, wanted.memory_size);
        let failed = |source| MemoryError::Mapping { guest, source };
        let mapping = Mapping::new(file, wanted.mmap_offset, len, owner).map_err(failed)?;
        let mapping = Arc::new(mapping);
        let share = Some(Share::new(usage, len));
        let region = GuestRegion { start: GuestAddress(guest), mapping: Arc::clone(&mapping), _share: share };
        Ok(Region { guest, user, len, mapping, region: Arc::new(region) })
    }
}

/// The memory of one VMM.
#[derive(Debug)]
pub struct Table {
    regions: Vec<Region>,
    memory: Arc<Memory>,
    /// Owner of the mappings.
    owner: MappingOwner,
    /// Usage of all tables of this VMM.
    usage: Arc<Usage>,
}

impl Table {
    /// Creates a table without regions.
    #[must_use]
    pub fn empty(owner: MappingOwner) -> Self {
        Table { regions: Vec::new(), memory: Arc::new(Memory::new()), owner, usage: Arc::default() }
    }

    /// Returns the memory, for reading and writing.
    #[must_use]
    pub fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// Whether it has no regions.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.regions.is_empty()
    }

    /// Returns a table with the given regions instead (`SET_MEM_TABLE`).
    pub fn replaced(&self, wanted: &[VhostUserMemoryRegion], files: &[OwnedFd]) -> Result<Table, MemoryError> {
        if wanted.len() != files.len() {
            return Err(MemoryError::Descriptors { regions: wanted.len(), descriptors: files.len() });
        }
        check(wanted.iter().map(Place::of).collect())?;
        self.check_usage(wanted)?;
        let map = |(wanted, file)| Region::map(wanted, file, &self.owner, &self.usage);
        let regions = wanted.iter().zip(files).map(map);
        Ok(self.made_of(regions.collect::<Result<_, _>>()?))
    }

    /// Returns the table with another region (`ADD_MEM_REG`).
    pub fn with(&self, wanted: &VhostUserMemoryRegion, file: &OwnedFd) -> Result<Table, MemoryError> {
        check(self.regions.iter().map(Place::at).chain([Place::of(wanted)]).collect())?;
        self.check_usage(std::slice::from_ref(wanted))?;
        let mut regions = self.regions.clone();
        regions.push(Region::map(wanted, file, &self.owner, &self.usage)?);
        Ok(self.made_of(regions))
    }

    /// Returns the table without a region (`REM_MEM_REG`).
    pub fn without(&self, unwanted: &VhostUserMemoryRegion) -> Result<Table, MemoryError> {
        let unwanted = Place::of(unwanted);
        let mut regions = self.regions.clone();
        regions.retain(|region| Place::at(region) != unwanted);
        match regions.len() == self.regions.len() {
            true => Err(MemoryError::Unknown(unwanted.guest)),
            false => Ok(self.made_of(regions)),
        }
    }

    /// Returns the guest address of `user`, an address in the VMM, if `len` bytes from there are in the table without a
    /// gap.
    #[must_use]
    pub fn translate(&self, user: u64, len: u64) -> Option<GuestAddress> {
        let end = user.checked_add(len)?;
        let inside = |region: &&Region| user >= region.user && end <= region.user + region.len;
        self.regions.iter().find(inside).map(|region| GuestAddress(region.guest + (user - region.user)))
    }

    /// Returns the number of missing pages that were accessed.
    #[must_use]
    pub fn faults(&self) -> u32 {
        self.regions.iter().map(|region| region.mapping.faults()).sum()
    }

    /// Checks that these regions may be mapped in addition.
    fn check_usage(&self, wanted: &[VhostUserMemoryRegion]) -> Result<(), MemoryError> {
        let regions = self.usage.regions.load(Ordering::Relaxed);
        let bytes = self.usage.bytes.load(Ordering::Relaxed);
        let more: u64 = wanted.iter().map(|wanted| wanted.memory_size).sum();
        let fits = regions + wanted.len() <= TABLES_MAX * REGIONS_MAX && bytes + more <= TABLES_MAX as u64 * BYTES_MAX;
        if fits { Ok(()) } else { Err(MemoryError::Kept { regions, bytes }) }
    }

    fn made_of(&self, mut regions: Vec<Region>) -> Table {
        regions.sort_by_key(|region| region.guest);
        let memory = match regions.is_empty() {
            true => Memory::new(),
            false => Memory::from_arc_regions(regions.iter().map(|region| Arc::clone(&region.region)).collect())
                .expect("sorted, and checked for overlap"),
        };
        Table { regions, memory: Arc::new(memory), owner: self.owner.clone(), usage: Arc::clone(&self.usage) }
    }
}

/// Addresses of a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    guest: u64,
    user: u64,
    len: u64,
}

impl Place {
    fn of(wanted: &VhostUserMemoryRegion) -> Self {
        Place { guest: wanted.guest_phys_addr, user: wanted.user_addr, len: wanted.memory_size }
    }

    fn at(region: &Region) -> Self {
        Place { guest: region.guest, user: region.user, len: region.len }
    }
}

/// Checks the rules for all regions together.
fn check(mut places: Vec<Place>) -> Result<(), MemoryError> {
    if places.len() > REGIONS_MAX {
        return Err(MemoryError::TooMany(places.len()));
    }
    for &Place { guest, user, len } in &places {
        if len == 0 || guest.checked_add(len).is_none() || user.checked_add(len).is_none() {
            return Err(MemoryError::Range { guest, user, len });
        }
    }
    let total = places.iter().fold(0u64, |total, place| total.saturating_add(place.len));
    if total > BYTES_MAX {
        return Err(MemoryError::TooLarge(total));
    }
    for start in [|place: &Place| place.guest, |place: &Place| place.user] {
        places.sort_by_key(start);
        let overlap = places.windows(2).find(|pair| start(&pair[0]) + pair[0].len > start(&pair[1]));
        if let Some(pair) = overlap {
            return Err(MemoryError::Overlap(pair[0].guest, pair[1].guest));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use rustix::event::{EventfdFlags, eventfd};
    use vm_memory::{Bytes, GuestMemoryBackend};

    use super::*;

    const PAGE: u64 = 4096;

    fn empty() -> Table {
        let fault_event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        Table::empty(MappingOwner { fault_event: Some(Arc::new(fault_event)), quota: None })
    }

    fn memfd(len: u64) -> OwnedFd {
        let file = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, len).unwrap();
        file
    }

    /// Guest address, size, user address, offset.
    fn region(guest: u64, len: u64, user: u64, offset: u64) -> VhostUserMemoryRegion {
        VhostUserMemoryRegion::new(guest, len, user, offset)
    }

    #[test]
    fn requests_in_flight_keep_a_limited_number_of_tables() {
        let file = memfd(REGIONS_MAX as u64 * PAGE);
        let at = |number: u64| region(number * PAGE, PAGE, (1 << 40) + number * PAGE, number * PAGE);
        let wanted: Vec<_> = (0..REGIONS_MAX as u64).map(at).collect();
        let files = || (0..REGIONS_MAX).map(|_| file.try_clone().unwrap()).collect::<Vec<_>>();
        let mut table = empty();
        let mut kept = Vec::new();
        for _ in 0..TABLES_MAX {
            table = table.replaced(&wanted, &files()).unwrap();
            kept.push(Arc::clone(table.memory()));
        }
        assert!(matches!(table.replaced(&wanted, &files()), Err(MemoryError::Kept { regions: 1024, .. })));
        kept.remove(0);
        table = table.replaced(&wanted, &files()).unwrap();
        assert!(matches!(table.replaced(&wanted, &files()), Err(MemoryError::Kept { .. })));
        kept.clear();
        table.replaced(&wanted, &files()).unwrap();
    }

    #[test]
    fn regions_are_found_at_their_addresses() {
        let file = memfd(4 * PAGE);
        let again = || file.try_clone().unwrap();
        let wanted = [region(8 * PAGE, 2 * PAGE, 100 * PAGE, 2 * PAGE), region(0, PAGE, 50 * PAGE, 0)];
        let table = empty().replaced(&wanted, &[again(), again()]).unwrap();
        rustix::io::pwrite(&file, b"low", 10).unwrap();
        rustix::io::pwrite(&file, b"high", 3 * PAGE + 10).unwrap();
        let mut bytes = [0; 3];
        table.memory().read_slice(&mut bytes, GuestAddress(10)).unwrap();
        assert_eq!(&bytes, b"low");
        table.memory().write_slice(b"HIGH", GuestAddress(9 * PAGE + 10)).unwrap();
        let mut bytes = [0; 4];
        rustix::io::pread(&file, &mut bytes, 3 * PAGE + 10).unwrap();
        assert_eq!(&bytes, b"HIGH");
        assert!(
            table.memory().read_slice(&mut bytes, GuestAddress(PAGE)).is_err(),
            "there is a gap between the regions"
        );
        assert_eq!(table.translate(101 * PAGE + 5, PAGE - 5), Some(GuestAddress(9 * PAGE + 5)));
        assert_eq!(table.translate(101 * PAGE + 5, PAGE - 4), None, "a byte too long");
        assert_eq!(table.translate(50 * PAGE, 0), Some(GuestAddress(0)));
        assert_eq!(table.translate(u64::MAX, 2), None);
        assert_eq!(table.translate(8 * PAGE, 1), None, "that is its guest address");
    }

    #[test]
    fn a_region_may_begin_anywhere_in_a_page_of_the_host() {
        // As on a host with pages of 64 KiB, where a region at 4 KiB starts within a page.
        let file = memfd(2 * PAGE);
        let table = empty().with(&region(0x1000, PAGE, 0x5000, 1024), &file).unwrap();
        rustix::io::pwrite(&file, b"here", 1024 + 8).unwrap();
        let mut bytes = [0; 4];
        table.memory().read_slice(&mut bytes, GuestAddress(0x1008)).unwrap();
        assert_eq!(&bytes, b"here");
        assert!(table.memory().read_slice(&mut bytes, GuestAddress(0x1ffd)).is_err(), "a byte past its end");
        assert!(matches!(empty().with(&region(0, PAGE, 0, 1020), &file), Err(MemoryError::Mapping { .. })));
    }

    #[test]
    fn wrong_tables_are_refused() {
        let file = memfd(8 * PAGE);
        let add = |places: &[VhostUserMemoryRegion]| {
            let files: Vec<_> = places.iter().map(|_| file.try_clone().unwrap()).collect();
            empty().replaced(places, &files).map(drop)
        };
        assert!(matches!(add(&[region(0, 0, 0, 0)]), Err(MemoryError::Range { .. })));
        assert!(matches!(add(&[region(u64::MAX - 5, PAGE, 0, 0)]), Err(MemoryError::Range { .. })));
        assert!(matches!(add(&[region(0, PAGE, u64::MAX - 5, 0)]), Err(MemoryError::Range { .. })));
        assert!(matches!(add(&[region(0, PAGE, 0, u64::MAX - 4095)]), Err(MemoryError::Mapping { .. })));
        assert!(matches!(add(&[region(0, 9 * PAGE, 0, 0)]), Err(MemoryError::Mapping { .. })), "longer than the file");
        let guests = [region(0, 2 * PAGE, 0, 0), region(PAGE, PAGE, 4 * PAGE, 0)];
        assert!(matches!(add(&guests), Err(MemoryError::Overlap(0, PAGE))));
        let users = [region(0, 2 * PAGE, 0, 0), region(4 * PAGE, PAGE, PAGE, 0)];
        assert!(matches!(add(&users), Err(MemoryError::Overlap(..))));
        assert!(matches!(add(&[region(0, BYTES_MAX + 1, 0, 0)]), Err(MemoryError::TooLarge(_))));
        let many: Vec<_> = (0..=REGIONS_MAX as u64).map(|n| region(n * PAGE, PAGE, n * PAGE, 0)).collect();
        assert!(matches!(add(&many), Err(MemoryError::TooMany(257))));
        let alone = empty().replaced(&[region(0, PAGE, 0, 0)], &[]);
        assert!(matches!(alone, Err(MemoryError::Descriptors { regions: 1, descriptors: 0 })));
    }

    #[test]
    fn a_table_in_use_keeps_its_regions_when_others_are_added_and_removed() {
        let file = memfd(4 * PAGE);
        let first = empty().with(&region(0, PAGE, 50 * PAGE, 0), &file).unwrap();
        let second = first.with(&region(4 * PAGE, PAGE, 60 * PAGE, PAGE), &file).unwrap();
        assert!(matches!(second.with(&region(4 * PAGE, PAGE, 90 * PAGE, 0), &file), Err(MemoryError::Overlap(..))));
        assert_eq!(second.memory().num_regions(), 2);
        let held = Arc::clone(second.memory());
        assert!(matches!(second.without(&region(0, PAGE, 51 * PAGE, 0)), Err(MemoryError::Unknown(0))));
        let third = second.without(&region(0, PAGE, 50 * PAGE, 77)).unwrap();
        drop((first, second));
        assert_eq!((third.memory().num_regions(), third.translate(50 * PAGE, 1)), (1, None));
        held.write_obj(7u32, GuestAddress(12)).unwrap();
        assert_eq!(held.read_obj::<u32>(GuestAddress(12)).unwrap(), 7, "still mapped");
        let none = third.without(&region(4 * PAGE, PAGE, 60 * PAGE, 0)).unwrap();
        assert!(none.is_empty() && none.memory().num_regions() == 0);
    }

    #[test]
    fn memory_that_its_vmm_truncates_reads_as_zeroes() {
        let file = memfd(4 * PAGE);
        let table = empty().with(&region(0, 4 * PAGE, 0, 0), &file).unwrap();
        table.memory().write_obj(7u64, GuestAddress(2 * PAGE)).unwrap();
        ftruncate(&file, 0).unwrap();
        assert_eq!(table.memory().read_obj::<u64>(GuestAddress(2 * PAGE)).unwrap(), 0);
        assert_eq!(table.faults(), 1);
        let mut rung = [0; 8];
        assert_eq!(
            rustix::io::read(table.owner.fault_event.as_ref().unwrap(), &mut rung),
            Ok(8),
            "its owner is notified"
        );
    }
}
