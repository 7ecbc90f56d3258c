//! The independent crate `blkio` as a front end of vhost-user-blk volumes.
//!
//! Its interface returns raw pointers and completions that only unsafe code can read. So the tests check the result
//! of a request by the content of the disk and the daemon's statistics, and access memory through its file
//! descriptor.

use std::fs::File;
use std::mem::MaybeUninit;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::common::{Daemon, KIB, LONG, MIB, Place, noise};
use blkio::{Blkio, BlkioStartOutcome, Blkioq, Completion, MemoryRegion, ReqFlags};

const SIZE: u64 = 16 * MIB;
const QUEUES: i32 = 2;
/// Size of a request, and number of requests in flight on a queue.
const BLOCK: usize = 64 * KIB as usize;
const DEPTH: usize = 32;

/// A started front end with memory for one request in each slot of each queue.
struct Front {
    queues: Vec<Blkioq>,
    region: MemoryRegion,
    /// The memory of the region as a file.
    memory: File,
    blkio: Blkio,
}

impl Front {
    fn new(socket: &Path, queues: i32) -> Self {
        Front::try_new(socket, queues, false).unwrap()
    }

    fn try_new(socket: &Path, queues: i32, read_only: bool) -> Result<Self, blkio::Error> {
        let mut blkio = Blkio::new("virtio-blk-vhost-user").unwrap();
        blkio.set_str("path", socket.to_str().unwrap()).unwrap();
        blkio.set_bool("read-only", read_only).unwrap();
        blkio.connect()?;
        blkio.set_i32("num-queues", queues).unwrap();
        let BlkioStartOutcome { queues, .. } = blkio.start()?;
        let len = (queues.len() * DEPTH * BLOCK).next_multiple_of(2 * MIB as usize);
        let region = blkio.alloc_mem_region(len).unwrap();
        blkio.map_mem_region(&region).unwrap();
        let memory = format!("/proc/self/fd/{}", region.fd);
        let memory = File::options().read(true).write(true).open(memory).unwrap();
        Ok(Front { queues, region, memory, blkio })
    }

    /// Returns the offset of a slot's data in the memory.
    fn offset(queue: usize, slot: usize) -> usize {
        (queue * DEPTH + slot) * BLOCK
    }

    fn address(&self, queue: usize, slot: usize) -> *mut u8 {
        (self.region.addr + Front::offset(queue, slot)) as *mut u8
    }

    fn put(&self, queue: usize, slot: usize, data: &[u8]) {
        self.memory.write_all_at(data, Front::offset(queue, slot) as u64).unwrap();
    }

    fn get(&self, queue: usize, slot: usize, len: usize) -> Vec<u8> {
        let mut data = vec![0; len];
        self.memory.read_exact_at(&mut data, Front::offset(queue, slot) as u64).unwrap();
        data
    }

    /// Waits for `count` completions.
    fn finish(&mut self, queue: usize, count: usize) {
        let mut completions: Vec<MaybeUninit<Completion>> = (0..DEPTH).map(|_| MaybeUninit::uninit()).collect();
        let mut left = LONG;
        let done = self.queues[queue].do_io(&mut completions[..count], count, Some(&mut left), None).unwrap();
        assert_eq!(done, count);
    }

    fn read(&mut self, offset: u64, len: usize) -> Vec<u8> {
        let address = self.address(0, 0);
        self.queues[0].read(offset, address, len, 0, ReqFlags::empty());
        self.finish(0, 1);
        self.get(0, 0, len)
    }
}

fn set_up(lines: &str) -> (Place, Daemon) {
    let place = Place::new();
    let image = place.write("a.img", noise(1, SIZE as usize));
    let daemon = Daemon::serve(&place, &(place.device("") + &place.vhost_volume("a", "v", &image, lines)));
    (place, daemon)
}

#[test]
fn blkio_reads_the_properties_of_the_volume() {
    let (place, _daemon) = set_up("");
    let front = Front::new(&place.volume_socket("a", "v"), QUEUES);
    let number = |name: &str| front.blkio.get_u64(name).unwrap();
    assert_eq!(number("capacity"), SIZE);
    assert!(front.blkio.get_i32("max-queues").unwrap() >= QUEUES);
    assert!(number("max-discard-len") > 0 && number("max-write-zeroes-len") > 0);
    assert!(front.blkio.get_i32("request-alignment").unwrap() >= 512);
    assert!(!front.blkio.get_bool("read-only").unwrap());
}

#[test]
fn blkio_reads_back_its_writes_on_every_queue() {
    let (place, daemon) = set_up("");
    let mut front = Front::new(&place.volume_socket("a", "v"), QUEUES);
    let new = noise(2, SIZE as usize);
    let blocks = SIZE as usize / BLOCK;
    let slots: Vec<(usize, usize, usize)> =
        (0..blocks).map(|block| (block % 2, block / 2 % DEPTH, block * BLOCK)).collect();
    for part in slots.chunks(2 * DEPTH) {
        for &(queue, slot, offset) in part {
            front.put(queue, slot, &new[offset..offset + BLOCK]);
            let address = front.address(queue, slot);
            front.queues[queue].write(offset as u64, address, BLOCK, slot, ReqFlags::empty());
        }
        (0..2).for_each(|queue| front.finish(queue, DEPTH));
    }
    front.queues[0].flush(0, ReqFlags::empty());
    front.finish(0, 1);
    assert!(std::fs::read(place.file("a.img")).unwrap() == new);
    for part in slots.chunks(2 * DEPTH) {
        for &(queue, slot, offset) in part {
            front.put(queue, slot, &[0; BLOCK]);
            let address = front.address(queue, slot);
            front.queues[queue].read(offset as u64, address, BLOCK, slot, ReqFlags::empty());
        }
        (0..2).for_each(|queue| front.finish(queue, DEPTH));
        for &(queue, slot, offset) in part {
            assert!(front.get(queue, slot, BLOCK) == new[offset..offset + BLOCK], "at {offset}");
        }
    }
    drop(front);
    let accounts = daemon.accounts();
    let completed = &accounts.vm("a")["completed"];
    assert_eq!((completed["write"].as_u64(), completed["read"].as_u64()), (Some(256), Some(256)), "{completed}");
    assert_eq!((completed["flush"].as_u64(), accounts.number("a", "failed")), (Some(1), 0), "{completed}");
    assert_eq!(daemon.terminate().code(), Some(0));
}

#[test]
fn blkio_discards_and_zeroes() {
    let (place, daemon) = set_up("");
    let mut front = Front::new(&place.volume_socket("a", "v"), 1);
    let mut expected = noise(1, SIZE as usize);
    front.queues[0].write_zeroes(MIB, 64 * KIB, 0, ReqFlags::empty());
    front.queues[0].write_zeroes(2 * MIB, 64 * KIB, 1, ReqFlags::NO_UNMAP);
    // On a file a discard punches a hole.
    front.queues[0].discard(3 * MIB, 64 * KIB, 2, ReqFlags::empty());
    front.finish(0, 3);
    for start in [MIB, 2 * MIB, 3 * MIB] {
        expected[start as usize..][..BLOCK].fill(0);
        assert!(front.read(start, BLOCK) == vec![0; BLOCK], "at {start}");
    }
    assert!(std::fs::read(place.file("a.img")).unwrap() == expected);
    drop(front);
    assert_eq!(daemon.accounts().number("a", "failed"), 0);
}

#[test]
fn blkio_reconnects_and_learns_that_a_volume_is_read_only() {
    let (place, daemon) = set_up("read_only = true");
    let socket = place.volume_socket("a", "v");
    let refused = Front::try_new(&socket, QUEUES, false).err().expect("it wants to write");
    assert_eq!(refused.message(), "Device is read-only");
    for _ in 0..3 {
        let mut front = Front::try_new(&socket, QUEUES, true).unwrap();
        assert!(front.read(5 * MIB, BLOCK) == noise(1, SIZE as usize)[5 * MIB as usize..][..BLOCK]);
    }
    assert_eq!(daemon.terminate().code(), Some(0));
}
