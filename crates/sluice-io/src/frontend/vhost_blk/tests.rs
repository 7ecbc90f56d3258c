//! Tests of virtqueues at a real device thread. The tests write the rings like a driver, valid or not.

use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use sluice_sched::scheduler::DeviceInfo;
use sluice_sched::units::Iops;
use sluice_sched::{GateSettings, Policy, schedulers};
use vm_memory::{Bytes as _, GuestAddress};

use crate::device::command::Command as DiskCommand;
use crate::device::{
    Device, DeviceSpec, Edit, FileSpec, SchedulerSpec, StoreSpec, VolumeGeneration, VolumeSpec, Window,
};
use crate::reactor::message::{Fault, Message};
use crate::source::{Source, SourceSpec};
use crate::store::delay::{DelaySpec, ServiceTime};
use crate::vhost_user::device_kind::Driver;
use crate::vhost_user::mapping::MappingOwner;
use crate::vhost_user::memory::{Memory, unshared};
use crate::vhost_user::session_handle::{SessionError, SessionHandle};
use crate::virtio::inflight::Log;
use crate::virtio::queue::QueueSpec;
use crate::volume::{VolumeInfo, sample};

mod budget;
mod held;
mod kicks;
mod long;
mod malformed;
mod stale;
mod stops;

const ENTRIES: u16 = 16;
const TABLE: u64 = 0x1000;
const AVAILABLE: u64 = 0x2000;
const USED: u64 = 0x3000;
/// Guest address of headers, data and status bytes of requests.
const SCRATCH: u64 = 0x10_0000;
const MEMORY: usize = 16 << 20;

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;

/// Types of requests: one without data, and an unknown one.
const FLUSH: u32 = 4;
const UNKNOWN: u32 = 77;

fn doorbell() -> OwnedFd {
    eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap()
}

/// Queue 0 with the rings of the tests.
fn queue_spec(kick: OwnedFd) -> QueueSpec {
    QueueSpec {
        index: 0,
        size: ENTRIES,
        descriptors: GuestAddress(TABLE),
        available: GuestAddress(AVAILABLE),
        used: GuestAddress(USED),
        next_available: 0,
        event_index: false,
        kick,
        call: None,
        error: None,
        log: None,
    }
}

struct Bench {
    device: Device,
    runtime: tokio::runtime::Runtime,
    memory: Arc<Memory>,
}

/// A guest's driver with direct access to its rings.
struct Guest {
    memory: Arc<Memory>,
    kick: OwnedFd,
    call: OwnedFd,
    available: u16,
    used: u16,
}

fn bench(policy: Policy, store: StoreSpec, size_bytes: u64, requests: u32) -> Bench {
    delayed_bench(policy, store, size_bytes, requests, None)
}

fn delayed_bench(policy: Policy, store: StoreSpec, size_bytes: u64, requests: u32, delay: Option<DelaySpec>) -> Bench {
    let scheduler = SchedulerSpec {
        descriptor: schedulers::find("mclock").unwrap(),
        info: DeviceInfo::default(),
        params: Default::default(),
    };
    let gate = GateSettings::default();
    let spec = DeviceSpec { name: "d".to_owned(), scheduler, gate, delay, aim: None, delay_log: None, model: None };
    let device = Device::start(spec).unwrap();
    let window = Window { requests, bytes: 32 << 20 };
    let info = VolumeInfo { size_bytes, serial: "WD-4711".to_owned(), ..sample() };
    let generation = VolumeGeneration::default();
    let volume = Box::new(VolumeSpec { name: "disk".to_owned(), generation, policy: Policy::default(), store, info });
    let vm = "vm".to_owned();
    device.edit(vec![Edit::AddVm { vm: vm.clone(), policy, window }, Edit::AddVolume { vm, volume }]).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    Bench { device, runtime, memory: memory() }
}

fn memory() -> Arc<Memory> {
    Arc::new(unshared(&[(GuestAddress(0), MEMORY)]).unwrap())
}

fn null(requests: u32) -> Bench {
    bench(Policy::default(), StoreSpec::Null, 1 << 30, requests)
}

fn on_file() -> (tempfile::NamedTempFile, Bench) {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(8 << 20).unwrap();
    let spec = SourceSpec { buffered: true, ..SourceSpec::whole(file.path()) };
    let source = Arc::new(Source::open(&spec).unwrap());
    (file, bench(Policy::default(), StoreSpec::File(FileSpec { source, extents: None }), 8 << 20, 64))
}

impl Bench {
    fn open(&self) -> SessionHandle {
        self.session_of("disk")
    }

    fn session_of(&self, volume: &str) -> SessionHandle {
        self.open_generation(volume, VolumeGeneration::default()).unwrap()
    }

    fn open_generation(&self, volume: &str, generation: VolumeGeneration) -> Result<SessionHandle, SessionError> {
        let device = self.device.handle();
        self.runtime.block_on(device.open("vm", volume, generation, "process 1".to_owned(), Box::new(())))
    }

    fn add_volume(&self, name: &str) {
        let info = VolumeInfo { size_bytes: 1 << 30, ..sample() };
        let (store, policy, generation) = (StoreSpec::Null, Policy::default(), VolumeGeneration::default());
        let volume = Box::new(VolumeSpec { name: name.to_owned(), generation, policy, store, info });
        self.device.edit(vec![Edit::AddVolume { vm: "vm".to_owned(), volume }]).unwrap();
    }

    fn start(&self, session: &SessionHandle) -> Guest {
        self.start_at(session, 0)
    }

    fn start_at(&self, session: &SessionHandle, next_available: u16) -> Guest {
        self.start_as(session, |spec| spec.next_available = next_available)
    }

    fn start_as(&self, session: &SessionHandle, change: impl FnOnce(&mut QueueSpec)) -> Guest {
        let [kick, call] = [(); 2].map(|()| doorbell());
        let mut queue = queue_spec(kick.try_clone().unwrap());
        queue.call = Some(Arc::new(call.try_clone().unwrap()));
        change(&mut queue);
        let next_available = queue.next_available;
        let driver = Driver { features: 0, write_back: true };
        self.runtime.block_on(session.start_queue(queue, Arc::clone(&self.memory), driver)).unwrap();
        Guest { memory: Arc::clone(&self.memory), kick, call, available: next_available, used: next_available }
    }

    fn faults(&self) -> u64 {
        self.device.snapshot().unwrap().vms[0].protocol_errors
    }

    fn outstanding(&self) -> u32 {
        self.device.snapshot().unwrap().vms[0].outstanding
    }
}

impl Guest {
    fn describe(&self, table: u64, index: u16, address: u64, len: u32, flags: u16, next: u16) {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&address.to_le_bytes());
        bytes[8..12].copy_from_slice(&len.to_le_bytes());
        bytes[12..14].copy_from_slice(&flags.to_le_bytes());
        bytes[14..].copy_from_slice(&next.to_le_bytes());
        self.memory.write_slice(&bytes, GuestAddress(table + u64::from(index) * 16)).unwrap();
    }

    /// A request in the usual form: header, data if any, status. Its head is `3 * number`.
    fn request(&self, number: u16, kind: u32, sector: u64, len: u32) -> u16 {
        let place = SCRATCH + u64::from(number) * 0x4_0000;
        self.header(place, kind, sector);
        let head = 3 * number;
        let direction = if kind == 1 || kind >= 11 { 0 } else { WRITE };
        if len == 0 {
            self.describe(TABLE, head, place, 16, NEXT, head + 2);
        } else {
            self.describe(TABLE, head, place, 16, NEXT, head + 1);
            self.describe(TABLE, head + 1, place + 0x1000, len, NEXT | direction, head + 2);
        }
        self.memory.write_obj(0xffu8, GuestAddress(place + 0x100)).unwrap();
        self.describe(TABLE, head + 2, place + 0x100, 1, WRITE, 0);
        head
    }

    fn header(&self, place: u64, kind: u32, sector: u64) {
        let mut header = [0; 16];
        header[..4].copy_from_slice(&kind.to_le_bytes());
        header[8..].copy_from_slice(&sector.to_le_bytes());
        self.memory.write_slice(&header, GuestAddress(place)).unwrap();
    }

    fn offer(&mut self, head: u16) {
        let slot = AVAILABLE + 4 + u64::from(self.available % ENTRIES) * 2;
        self.memory.write_obj(head.to_le(), GuestAddress(slot)).unwrap();
        self.available = self.available.wrapping_add(1);
        self.publish(self.available);
    }

    fn publish(&self, index: u16) {
        let order = std::sync::atomic::Ordering::Release;
        self.memory.store(index.to_le(), GuestAddress(AVAILABLE + 2), order).unwrap();
    }

    fn kick(&self) {
        rustix::io::write(&self.kick, &1u64.to_ne_bytes()).unwrap();
    }

    /// Waits for the next returned request: its head, and the number of bytes written for it.
    fn next_used(&mut self) -> (u16, u32) {
        loop {
            let order = std::sync::atomic::Ordering::Acquire;
            let index: u16 = self.memory.load(GuestAddress(USED + 2), order).unwrap();
            if index != self.used {
                let slot = USED + 4 + u64::from(self.used % ENTRIES) * 8;
                let head: u32 = self.memory.read_obj(GuestAddress(slot)).unwrap();
                let len: u32 = self.memory.read_obj(GuestAddress(slot + 4)).unwrap();
                self.used = self.used.wrapping_add(1);
                return (head as u16, len);
            }
            let mut ready = [PollFd::new(&self.call, PollFlags::IN)];
            poll(&mut ready, None).unwrap();
            let mut count = [0; 8];
            let _ = rustix::io::read(&self.call, &mut count);
        }
    }

    fn is_called(&self) {
        let bound = rustix::event::Timespec { tv_sec: 60, tv_nsec: 0 };
        let ready = poll(&mut [PollFd::new(&self.call, PollFlags::IN)], Some(&bound)).unwrap();
        assert_eq!(ready, 1, "there is no interrupt");
    }

    fn ask(&mut self, number: u16, kind: u32, sector: u64, len: u32) -> (u8, u32) {
        let head = self.request(number, kind, sector, len);
        self.offer(head);
        self.kick();
        let (back, written) = self.next_used();
        assert_eq!(back, head);
        (self.status(number), written)
    }

    fn status(&self, number: u16) -> u8 {
        self.memory.read_obj(GuestAddress(SCRATCH + u64::from(number) * 0x4_0000 + 0x100)).unwrap()
    }

    fn data(&self, number: u16) -> GuestAddress {
        GuestAddress(SCRATCH + u64::from(number) * 0x4_0000 + 0x1000)
    }
}

/// As Linux creates them if `seg_max` is larger than the queue.
#[test]
fn a_chain_in_an_indirect_table_may_be_longer_than_its_queue() {
    let (mut file, bench) = on_file();
    let session = bench.open();
    let mut guest = bench.start(&session);
    let (pieces, table, place) = (3 * ENTRIES, SCRATCH + 0x20_0000, SCRATCH);
    guest.header(place, 1, 8);
    guest.describe(table, 0, place, 16, NEXT, 1);
    let written: Vec<u8> = (0..u32::from(pieces) * 512).map(|byte| ((byte * 7) >> 2) as u8).collect();
    for piece in 0..pieces {
        let at = place + 0x1000 + u64::from(piece) * 1024;
        let from = usize::from(piece) * 512;
        guest.memory.write_slice(&written[from..from + 512], GuestAddress(at)).unwrap();
        guest.describe(table, piece + 1, at, 512, NEXT, piece + 2);
    }
    guest.describe(table, pieces + 1, place + 0x100, 1, WRITE, 0);
    guest.describe(TABLE, 0, table, u32::from(pieces + 2) * 16, INDIRECT, 0);
    guest.memory.write_obj(0xff_u8, GuestAddress(place + 0x100)).unwrap();
    guest.offer(0);
    guest.kick();
    assert_eq!(guest.next_used(), (0, 1));
    assert_eq!((guest.status(0), bench.faults()), (0, 0));
    let mut content = Vec::new();
    file.read_to_end(&mut content).unwrap();
    assert!(content[4096..4096 + written.len()] == written);
}

/// The previous daemon returned a request and ended before it signalled the guest. The index for which the guest waits
/// is already passed, so with EVENT_IDX alone it would never be interrupted.
#[test]
fn a_guest_is_interrupted_for_requests_returned_before_its_queue_was_started() {
    let bench = null(64);
    let session = bench.open();
    let used: u16 = 1;
    bench.memory.write_obj(used.to_le(), GuestAddress(USED + 2)).unwrap();
    bench.memory.write_obj(used.to_le(), GuestAddress(AVAILABLE + 2)).unwrap();
    let guest = bench.start_as(&session, |spec| (spec.next_available, spec.event_index) = (used, true));
    guest.is_called();
}

#[test]
fn a_guest_is_interrupted_later_for_requests_returned_without_an_eventfd() {
    let bench = null(64);
    let session = bench.open();
    let mut guest = bench.start_as(&session, |spec| (spec.call, spec.event_index) = (None, true));
    let head = guest.request(1, 0, 0, 4096);
    guest.offer(head);
    guest.kick();
    while bench.device.snapshot().unwrap().vms[0].account.completed()[0] == 0 {
        std::thread::yield_now();
    }
    let call = guest.call.try_clone().unwrap();
    bench.runtime.block_on(session.set_call(0, Some(Arc::new(call)))).unwrap();
    assert_eq!(guest.next_used().0, head);
    guest.is_called();
}

#[test]
fn a_guest_reads_what_it_wrote() {
    let (mut file, bench) = on_file();
    let session = bench.open();
    let mut guest = bench.start(&session);
    let written: Vec<u8> = (0..8192u32).map(|byte| ((byte * 7) >> 2) as u8).collect();
    guest.memory.write_slice(&written, guest.data(1)).unwrap();
    assert_eq!(guest.ask(1, 1, 3, 8192), (0, 1));
    assert_eq!(guest.ask(2, 0, 3, 8192), (0, 8193));
    let mut read = vec![0; 8192];
    guest.memory.read_slice(&mut read, guest.data(2)).unwrap();
    assert!(read == written);
    assert_eq!(guest.ask(3, 4, 0, 0), (0, 1));
    let mut on_disk = vec![0; 1536 + 8192];
    file.read_exact(&mut on_disk).unwrap();
    assert!(on_disk[1536..] == written);
}

#[test]
fn a_request_may_be_divided_anywhere_and_be_in_an_indirect_table() {
    let (_file, bench) = on_file();
    let session = bench.open();
    let mut guest = bench.start(&session);
    guest.memory.write_slice(&[9; 1024], guest.data(1)).unwrap();
    assert_eq!(guest.ask(1, 1, 0, 1024).0, 0);
    // Header in two segments, data and status in one, data in three.
    let (table, place) = (SCRATCH + 0x30_0000, SCRATCH + 0x31_0000);
    guest.header(place, 0, 0);
    guest.describe(table, 0, place, 5, NEXT, 3);
    guest.describe(table, 3, place + 5, 11, NEXT, 1);
    guest.describe(table, 1, place + 0x1001, 100, NEXT | WRITE, 2);
    guest.describe(table, 2, place + 0x2003, 900, NEXT | WRITE, 4);
    guest.describe(table, 4, place + 0x3000, 25, WRITE, 0);
    guest.describe(TABLE, 9, table, 5 * 16, INDIRECT, 0);
    guest.offer(9);
    guest.kick();
    assert_eq!(guest.next_used(), (9, 1025));
    let status: u8 = guest.memory.read_obj(GuestAddress(place + 0x3000 + 24)).unwrap();
    let mut pieces = vec![0; 1024];
    for (at, from, len) in [(0, 0x1001, 100), (100, 0x2003, 900), (1000, 0x3000, 24)] {
        guest.memory.read_slice(&mut pieces[at..at + len], GuestAddress(place + from)).unwrap();
    }
    assert_eq!(status, 0);
    assert!(pieces.iter().all(|byte| *byte == 9));
}

#[test]
fn descriptors_before_an_indirect_table_counted_against_its_length() {
    let bench = null(64);
    let session = bench.open();
    let mut guest = bench.start(&session);
    let (table, place) = (SCRATCH + 0x30_0000, SCRATCH + 0x31_0000);
    guest.header(place, 0, 0);
    guest.describe(TABLE, 0, place, 16, NEXT, 1);
    guest.describe(TABLE, 1, table, 2 * 16, INDIRECT, 0);
    guest.describe(table, 0, place + 0x1000, 512, NEXT | WRITE, 1);
    guest.describe(table, 1, place + 0x2000, 1, WRITE, 0);
    guest.offer(0);
    guest.kick();
    assert_eq!(guest.next_used(), (0, 513));
    assert_eq!(bench.faults(), 0);
}

/// An eventfd to which nothing can be added, so that a write to it does not complete.
fn full_eventfd() -> OwnedFd {
    let full = doorbell();
    rustix::io::write(&full, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    full
}

#[test]
fn a_vmm_that_left_its_error_eventfd_full_kept_its_session_for_ever() {
    let bench = null(64);
    let session = bench.open();
    let error = full_eventfd();
    let mut guest = bench.start_as(&session, |spec| spec.error = Some(Arc::new(error)));
    guest.offer(ENTRIES);
    guest.kick();
    while bench.faults() == 0 {
        std::thread::yield_now();
    }
    let closed = bench.runtime.block_on(async { tokio::time::timeout(Duration::from_secs(60), session.close()).await });
    assert!(closed.is_ok(), "the session has not ended");
    assert_eq!(bench.device.snapshot().unwrap().connections, 0);
}

#[test]
fn a_guest_with_a_full_eventfd_was_not_interrupted_by_the_next_one() {
    let bench = null(64);
    let session = bench.open();
    let (full, other) = (full_eventfd(), full_eventfd());
    let mut guest = bench.start_as(&session, |spec| spec.call = Some(Arc::new(full)));
    let head = guest.request(1, 0, 0, 512);
    guest.offer(head);
    guest.kick();
    while bench.device.snapshot().unwrap().vms[0].account.completed()[0] == 0 {
        std::thread::yield_now();
    }
    let call = guest.call.try_clone().unwrap();
    for call in [other, call] {
        bench.runtime.block_on(session.set_call(0, Some(Arc::new(call)))).unwrap();
    }
    guest.is_called();
}

#[test]
fn an_invalid_request_fails_without_affecting_others() {
    let bench = null(64);
    let session = bench.open();
    let mut guest = bench.start(&session);
    let sectors = (1 << 30) / 512;
    assert_eq!(guest.ask(1, 0, sectors, 512).0, 1, "past the end");
    assert_eq!(guest.ask(1, 0, u64::MAX / 512, 512).0, 1, "an offset that wraps around");
    assert_eq!(guest.ask(1, 0, 0, 100).0, 1, "not a whole sector");
    assert_eq!(guest.ask(1, 77, 0, 512).0, 2, "an unknown type");
    guest.memory.write_slice(&[0; 16], guest.data(1)).unwrap();
    assert_eq!(guest.ask(1, 11, 0, 16).0, 1, "nothing to discard");
    assert_eq!(guest.ask(1, 8, 0, 20), (0, 21));
    let mut id = [0; 20];
    guest.memory.read_slice(&mut id, guest.data(1)).unwrap();
    assert_eq!(&id[..8], b"WD-4711\0");
    assert_eq!(guest.ask(1, 0, 8, 4096), (0, 4097));
    assert_eq!(bench.faults(), 0);
}

#[test]
fn requests_above_the_window_stay_in_the_ring() {
    let mut policy = Policy::default();
    policy.limit.iops = Some(Iops::per_second(50));
    policy.burst = Some(1);
    let bench = bench(policy, StoreSpec::Null, 1 << 30, 2);
    let session = bench.open();
    let mut guest = bench.start(&session);
    for number in 0..5 {
        let head = guest.request(number, 0, 0, 512);
        guest.offer(head);
    }
    guest.kick();
    while bench.outstanding() < 2 {
        std::thread::yield_now();
    }
    assert_eq!(bench.outstanding(), 2, "of five");
    // Requests in flight are answered before the queue is stopped, and no others.
    let next = bench.runtime.block_on(session.stop_queue(0)).unwrap();
    assert!((1..5).contains(&next), "{next}");
    (0..next).for_each(|_| {
        guest.next_used();
    });
    let index: u16 = guest.memory.read_obj(GuestAddress(USED + 2)).unwrap();
    assert_eq!(index, next);
    let (available, used) = (guest.available, guest.used);
    let again = bench.start_at(&session, next);
    guest = Guest { available, used, ..again };
    (next..5).for_each(|_| {
        guest.next_used();
    });
    assert_eq!(bench.outstanding(), 0);
}

/// The window belongs to the VM, and requests that one of its volumes may not have yet do not fill it.
#[test]
fn a_throttled_volume_leaves_window_space_for_others_of_its_vm() {
    let mut bench = null(4);
    bench.add_volume("other");
    let mut slow = Policy::default();
    slow.limit.iops = Some(Iops::from_milli(10));
    slow.burst = Some(1);
    let (policy, window) = (Policy::default(), Window { requests: 4, bytes: 32 << 20 });
    let (vm, volumes) = ("vm".to_owned(), vec![("disk".to_owned(), slow)]);
    bench.device.edit(vec![Edit::SetPolicies { vm, policy, window, volumes }]).unwrap();
    let session = bench.open();
    let mut guest = bench.start(&session);
    for number in 0..5 {
        let head = guest.request(number, 0, 0, 512);
        guest.offer(head);
    }
    guest.kick();
    guest.next_used();
    while bench.outstanding() < 2 {
        std::thread::yield_now();
    }
    assert_eq!(bench.outstanding(), 2, "half of the window; four are queued");
    let other = bench.session_of("other");
    bench.memory = memory();
    let mut neighbour = bench.start(&other);
    (0..100).for_each(|_| assert_eq!(neighbour.ask(1, 0, 8, 4096), (0, 4097)));
    assert_eq!(bench.outstanding(), 2);
}

#[test]
fn the_resources_of_a_disconnected_vmm_are_freed() {
    let mut policy = Policy::default();
    policy.limit.iops = Some(Iops::from_milli(10));
    policy.burst = Some(1);
    let bench = bench(policy, StoreSpec::Null, 1 << 30, 64);
    let session = bench.open();
    let mut guest = bench.start(&session);
    for number in 0..5 {
        let head = guest.request(number, 0, 0, 512);
        guest.offer(head);
    }
    guest.kick();
    guest.next_used();
    while bench.outstanding() < 4 {
        std::thread::yield_now();
    }
    bench.runtime.block_on(session.close());
    assert_eq!((bench.outstanding(), bench.device.snapshot().unwrap().connections), (0, 0));
    let index: u16 = guest.memory.read_obj(GuestAddress(USED + 2)).unwrap();
    assert_eq!(index, 1, "nothing is written to the memory of a disconnected VM");
    assert_eq!(Arc::strong_count(&bench.memory), 2, "the bench's and the guest's");
}

/// Its status byte is in the memory, although it has no data.
#[test]
fn a_flush_keeps_its_memory_table() {
    let (policy, window) = (Policy::default(), Window { requests: 64, bytes: 32 << 20 });
    let mut slow = policy;
    slow.limit.iops = Some(Iops::from_milli(10));
    slow.burst = Some(1);
    let mut bench = bench(slow, StoreSpec::Null, 1 << 30, 64);
    let session = bench.open();
    let mut guest = bench.start(&session);
    assert_eq!(guest.ask(1, FLUSH, 0, 0), (0, 1));
    let head = guest.request(2, FLUSH, 0, 0);
    guest.offer(head);
    guest.kick();
    while bench.outstanding() == 0 {
        std::thread::yield_now();
    }
    let mut rings = vec![0; (USED + 0x1000 - TABLE) as usize];
    guest.memory.read_slice(&mut rings, GuestAddress(TABLE)).unwrap();
    guest.memory = memory();
    guest.memory.write_slice(&rings, GuestAddress(TABLE)).unwrap();
    let before = Arc::downgrade(&std::mem::replace(&mut bench.memory, Arc::clone(&guest.memory)));
    bench.runtime.block_on(session.set_memory(Arc::clone(&bench.memory))).unwrap();
    assert!(before.upgrade().is_some(), "it is written to when the flush completes");
    let vm = "vm".to_owned();
    bench.device.edit(vec![Edit::SetPolicies { vm, policy, window, volumes: Vec::new() }]).unwrap();
    assert_eq!(guest.next_used(), (head, 1));
    bench.runtime.block_on(session.close());
    assert!(before.upgrade().is_none(), "it is unmapped after that");
}

/// Requests that complete immediately make room for more in the same iteration. A guest that fills its ring as fast as
/// it is emptied gets only its part of an iteration.
#[test]
fn a_guest_that_submits_without_pause_does_not_block_others() {
    let bench = null(64);
    let session = bench.open();
    let mut guest = bench.start(&session);
    let head = guest.request(1, UNKNOWN, 0, 0);
    (0..ENTRIES).for_each(|_| guest.offer(head));
    let memory = &guest.memory;
    let stopped = AtomicBool::new(false);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            while !stopped.load(Ordering::Relaxed) {
                let used: u16 = memory.load(GuestAddress(USED + 2), Ordering::Acquire).unwrap();
                let filled = used.wrapping_add(ENTRIES);
                memory.store(filled, GuestAddress(AVAILABLE + 2), Ordering::Release).unwrap();
            }
        });
        let _stop = Stop(&stopped);
        // Counts refused requests, and iterations of the loop.
        let mut before = (0, 0);
        while before.0 < 20_000 {
            guest.kick();
            let snapshot = bench.device.snapshot().unwrap();
            let now = (snapshot.vms[0].refused, snapshot.iterations);
            let (refused, turns) = (now.0 - before.0, now.1 - before.1 + 1);
            assert!(refused <= turns * 2 * u64::from(ENTRIES), "{refused} requests in {turns} turns");
            before = now;
        }
    });
    assert_eq!(bench.faults(), 0);
}

/// Set when it is dropped, even by a failed assertion.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn an_idle_device_sleeps() {
    let bench = null(64);
    let session = bench.open();
    let mut guest = bench.start(&session);
    (0..200).for_each(|_| assert_eq!(guest.ask(1, 0, 8, 4096).0, 0));
    // A snapshot wakes the loop. That nothing else does can only be seen over a period of time.
    let iterations = || bench.device.snapshot().unwrap().iterations;
    let (mut before, mut quiet) = (iterations(), 0);
    while quiet < 20 {
        // polls: the iterations of a thread that should make none; only time can show it.
        std::thread::sleep(Duration::from_millis(2));
        let now = iterations();
        quiet = if now - before <= 2 { quiet + 1 } else { 0 };
        before = now;
    }
}
