//! Tests of sessions over a real socket, with a real device thread.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use sluice_sched::scheduler::DeviceInfo;
use sluice_sched::{GateSettings, Iops, Policy, schedulers};
use tempfile::TempDir;
use tokio::sync::oneshot;
use vhost::vhost_user::message::{
    FrontendReq, VhostUserInflight, VhostUserMemory, VhostUserMemoryRegion, VhostUserProtocolFeatures as VhostFeature,
    VhostUserVirtioFeatures, VhostUserVringState,
};
use vm_memory::ByteValued;

use super::*;
use crate::device::{
    Device, DeviceSpec, Edit, FileSpec, SchedulerSpec, StoreSpec, VolumeGeneration, VolumeSpec, Window,
};
use crate::endpoint::{Bound, Endpoint};
use crate::shared_limit::SharedLimit;
use crate::source::{Source, SourceSpec};
use crate::store::delay::{DelaySpec, ServiceTime};
use crate::vhost_user::counts::Totals;
use crate::vhost_user::listener::{START_MAX, VhostListener};
use crate::volume::{VolumeInfo, sample};
use sluice_client::vhost::config::WRITE_CACHE;
use sluice_client::vhost::memory::{PAGE, Region};
use sluice_client::vhost::session::Session as Vmm;
use sluice_client::vhost::{ALL_FEATURES, ALL_PROTOCOL_FEATURES, Client, ClientError, ClientOptions, Memory, Request};

mod departures;

const PATIENCE: Duration = Duration::from_secs(20);
const SIZE: u64 = 8 << 20;

/// A device with a volume, and its socket.
struct Bench {
    listener: Arc<VhostListener>,
    device: Device,
    connections: Arc<SharedLimit>,
    entry: Entry,
    folder: TempDir,
    stop: Option<oneshot::Sender<()>>,
    control: Option<JoinHandle<()>>,
}

impl Bench {
    fn new() -> Bench {
        Bench::on(None)
    }

    fn on(delay: Option<DelaySpec>) -> Bench {
        let (device, entry, folder) = device(delay);
        let connections = Arc::new(SharedLimit::default());
        connections.set_max(8);
        let (listener, stop, control) = listen(folder.path().join("vm.sock"), &entry, &connections);
        Bench { listener, device, connections, entry, folder, stop: Some(stop), control: Some(control) }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("vm.sock")
    }

    fn connect(&self, options: &ClientOptions) -> Client {
        Client::connect(&self.path(), options).unwrap()
    }

    /// A VMM that has only negotiated its features.
    fn vmm(&self) -> Vmm {
        let mut vmm = Vmm::connect(&self.path(), PATIENCE).unwrap();
        vmm.set_protocol_features(ALL_PROTOCOL_FEATURES.bits()).unwrap();
        vmm.set_owner().unwrap();
        vmm
    }

    fn totals(&self) -> Totals {
        self.listener.counts().totals()
    }

    /// Connects a valid VMM and uses its disk, to check that others have done no harm.
    fn still_serves(&self) {
        let mut client = self.connect(&options());
        write_and_read(&mut client);
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.stop.take();
        self.control.take().unwrap().join().unwrap();
        assert_eq!(self.device.snapshot().unwrap().restarts, 0, "nothing panicked");
    }
}

/// A device with a volume, and the entry that its socket offers.
fn device(delay: Option<DelaySpec>) -> (Device, Entry, TempDir) {
    let scheduler = SchedulerSpec {
        descriptor: schedulers::find("mclock").unwrap(),
        info: DeviceInfo::default(),
        params: Default::default(),
    };
    let gate = GateSettings::default();
    let spec = DeviceSpec { name: "d".to_owned(), scheduler, gate, delay, aim: None, delay_log: None, model: None };
    let device = Device::start(spec).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk");
    File::create(&path).unwrap().set_len(SIZE).unwrap();
    let source = Arc::new(Source::open(&SourceSpec { buffered: true, ..SourceSpec::whole(&path) }).unwrap());
    let info = VolumeInfo { size_bytes: SIZE, ..sample() };
    let store = StoreSpec::File(FileSpec { source, extents: None });
    let (policy, generation) = (Policy::default(), VolumeGeneration::default());
    let volume = Box::new(VolumeSpec { name: "disk".to_owned(), generation, policy, store, info: info.clone() });
    let (vm, window) = ("vm".to_owned(), Window { requests: 64, bytes: 32 << 20 });
    device.edit(vec![Edit::AddVm { vm: vm.clone(), policy, window }, Edit::AddVolume { vm, volume }]).unwrap();
    let (vm, volume) = ("vm".to_owned(), "disk".to_owned());
    let kind = Blk { info, queues: 4 };
    let entry = Entry { kind, vm, volume, generation, device: device.handle() };
    (device, entry, folder)
}

/// Runs a control plane with this socket until the sender is dropped.
fn listen(
    path: PathBuf,
    entry: &Entry,
    connections: &Arc<SharedLimit>,
) -> (Arc<VhostListener>, oneshot::Sender<()>, JoinHandle<()>) {
    let endpoint = Endpoint::Unix { path, owner: None, group: None, mode: 0o600 };
    let (entry, connections) = (entry.clone(), Arc::clone(connections));
    let (stop, stopped) = oneshot::channel();
    let (started, starting) = mpsc::channel();
    let control = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move {
            let bound = Bound::bind(endpoint, None).unwrap();
            let mut listener = VhostListener::start(bound, Some(entry), &connections).unwrap();
            listener.open();
            let listener = Arc::new(listener);
            started.send(Arc::clone(&listener)).unwrap();
            let _ = stopped.await;
        });
    });
    (starting.recv().unwrap(), stop, control)
}

fn options() -> ClientOptions {
    ClientOptions { timeout: PATIENCE, ..ClientOptions::default() }
}

fn write_and_read(client: &mut Client) {
    let written: Vec<u8> = (0..16384u32).map(|byte| (byte % 251) as u8).collect();
    client.write(12288, &written).unwrap();
    client.perform(0, Request::Flush).unwrap();
    let mut read = vec![0; written.len()];
    client.read(12288, &mut read).unwrap();
    assert_eq!(read, written);
}

fn is_refused(result: Result<(), ClientError>) -> bool {
    match result {
        Err(ClientError::Refused { code: 1, .. }) => true,
        Ok(()) => false,
        other => panic!("{other:?}"),
    }
}

/// Whether the session has ended: a message finds the connection closed.
fn is_over(vmm: &Vmm) -> bool {
    matches!(vmm.link().receive(), Err(ClientError::Closed))
}

fn ring_fd() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC).unwrap()
}

/// A VMM with memory and one ring that could start, and the addresses of its areas.
fn about_to_start(bench: &Bench) -> (Vmm, Memory, [u64; 3]) {
    let (vmm, memory) = (bench.vmm(), Memory::new(16 * PAGE, 1).unwrap());
    vmm.set_features(ALL_FEATURES & vmm.features().unwrap()).unwrap();
    vmm.set_memory_table(&memory).unwrap();
    vmm.set_ring_size(0, 64).unwrap();
    let addresses = [0, PAGE, 2 * PAGE].map(|offset| memory.user(offset));
    vmm.set_ring_addresses(0, addresses).unwrap();
    (vmm, memory, addresses)
}

#[test]
fn a_vmm_connects_disconnects_and_connects_again() {
    let bench = Bench::new();
    let mut client = bench.connect(&options());
    assert_eq!((client.config().size_bytes(), client.config().queues), (SIZE, 4));
    assert_eq!(client.features(), ALL_FEATURES & bench.entry.kind.features());
    write_and_read(&mut client);
    client.disconnect();
    client.reconnect(&bench.path()).unwrap();
    write_and_read(&mut client);
    let Totals { sessions, rejected, refusals, faults, .. } = bench.totals();
    assert_eq!((sessions, rejected, refusals, faults), (2, 0, 0, 0));
}

#[test]
fn many_queues_and_regions_in_a_table_or_one_by_one() {
    let bench = Bench::new();
    for left_out in [VhostFeature::empty(), VhostFeature::CONFIGURE_MEM_SLOTS, VhostFeature::REPLY_ACK] {
        let protocol_features = ALL_PROTOCOL_FEATURES.difference(left_out);
        let options = ClientOptions { queues: 4, regions: 7, protocol_features, ..options() };
        let mut client = bench.connect(&options);
        for queue in 0..4 {
            client.perform(queue, Request::Read { offset: 4096 * u64::from(queue), len: 4096 }).unwrap();
        }
        write_and_read(&mut client);
    }
}

#[test]
fn rings_start_enabled_without_protocol_features() {
    let bench = Bench::new();
    let features = ALL_FEATURES & !VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits();
    let protocol_features = VhostFeature::empty();
    write_and_read(&mut bench.connect(&ClientOptions { features, protocol_features, ..options() }));
}

/// Protocol features without acknowledgements: a rejected message ends the session.
fn without_acknowledgements(bench: &Bench) -> Vmm {
    let mut vmm = Vmm::connect(&bench.path(), PATIENCE).unwrap();
    vmm.set_protocol_features(ALL_PROTOCOL_FEATURES.difference(VhostFeature::REPLY_ACK).bits()).unwrap();
    vmm
}

#[test]
fn features_never_offered_are_refused() {
    let bench = Bench::new();
    let vmm = bench.vmm();
    for bit in [0, 26, 33, 34, 35, 50, 63] {
        assert!(is_refused(vmm.set_features(1 << bit)), "{bit}");
    }
    assert!(!is_refused(vmm.set_features(vmm.features().unwrap())), "the session continues");
    assert!(is_refused(vmm.tell(FrontendReq::SET_PROTOCOL_FEATURES, &(1u64 << 8).to_ne_bytes(), &[])));
    let Totals { sessions, refusals, faults, .. } = bench.totals();
    assert_eq!((sessions, refusals, faults), (1, 8, 0));
    drop(vmm);
    let vmm = without_acknowledgements(&bench);
    vmm.set_features(1 << 50).unwrap();
    assert!(is_over(&vmm));
    assert_eq!(bench.totals().faults, 1);
    bench.still_serves();
}

#[test]
fn messages_of_no_feature_or_of_one_not_negotiated_are_rejected() {
    let bench = Bench::new();
    let mut vmm = Vmm::connect(&bench.path(), PATIENCE).unwrap();
    vmm.set_protocol_features(VhostFeature::REPLY_ACK.bits()).unwrap();
    assert!(is_refused(vmm.reset_device()));
    assert!(is_refused(vmm.set_config(WRITE_CACHE, &[0])));
    let file = ring_fd();
    for request in [FrontendReq::SET_LOG_FD, FrontendReq::POSTCOPY_ADVISE, FrontendReq::IOTLB_MSG] {
        assert!(is_refused(vmm.tell(request, &[], &[file.as_fd()])), "{request:?}");
    }
    vmm.link().send(4711, 8, &[1, 2, 3], &[]).unwrap();
    assert_eq!(vmm.link().receive().unwrap().number().unwrap(), 1, "an unknown message");
    let answer = vmm.ask(FrontendReq::GET_CONFIG, &[0; 72], &[]).unwrap();
    assert!(answer.payload.is_empty(), "an empty configuration is a refusal");
    assert!(matches!(vmm.memory_slots_max(), Err(ClientError::Closed)), "a query without a reply");
    bench.still_serves();
}

#[test]
fn too_many_rejected_messages_end_the_session() {
    let bench = Bench::new();
    let vmm = bench.vmm();
    for _ in 0..REFUSALS_MAX {
        assert!(is_refused(vmm.set_features(1 << 50)));
    }
    assert!(matches!(vmm.set_features(1 << 50), Err(ClientError::Closed)));
    assert_eq!((bench.totals().faults, bench.totals().refusals), (1, u64::from(REFUSALS_MAX) + 1));
    bench.still_serves();
}

#[test]
fn invalid_rings_are_rejected() {
    let bench = Bench::new();
    let (vmm, memory, addresses) = about_to_start(&bench);
    for size in [0, 3, 100, 2048, 65536, u32::MAX] {
        assert!(is_refused(vmm.set_ring_size(0, size)), "{size} entries");
    }
    for index in [4, 255, u16::MAX] {
        assert!(is_refused(vmm.set_ring_size(index, 64)), "ring {index}");
        assert!(is_refused(vmm.enable_ring(index, true)));
    }
    let state = VhostUserVringState::new(0, 0x1_0000);
    assert!(is_refused(vmm.tell(FrontendReq::SET_VRING_BASE, state.as_slice(), &[])));
    let state = VhostUserVringState::new(0, 2);
    assert!(is_refused(vmm.tell(FrontendReq::SET_VRING_ENABLE, state.as_slice(), &[])));
    assert!(is_refused(vmm.set_ring_addresses(0, [addresses[0] + 8, addresses[1], addresses[2]])), "not aligned");
    assert!(is_refused(vmm.set_ring_kick(0, None)), "polling");
    vmm.enable_ring(0, true).unwrap();
    let wrong = [
        [u64::MAX - 15, addresses[1], addresses[2]],
        [addresses[0], u64::MAX - 1, addresses[2]],
        [addresses[0], addresses[1], u64::MAX - 3],
        [memory.user(0) - 16, addresses[1], addresses[2]],
        [addresses[0], addresses[1], memory.user(16 * PAGE - 8)],
        [0; 3],
    ];
    for addresses in wrong {
        vmm.set_ring_addresses(0, addresses).unwrap();
        assert!(is_refused(vmm.set_ring_kick(0, Some(ring_fd().as_fd()))), "{addresses:x?}");
    }
    vmm.set_ring_addresses(0, addresses).unwrap();
    vmm.set_ring_kick(0, Some(ring_fd().as_fd())).unwrap();
    assert_eq!(vmm.ring_base(0).unwrap(), 0);
}

#[test]
fn a_notification_descriptor_that_is_not_an_eventfd_is_rejected_and_closed() {
    let bench = Bench::new();
    let vmm = bench.vmm();
    let (reader, writer) = io::pipe().unwrap();
    assert!(is_refused(vmm.set_ring_kick(0, Some(writer.as_fd()))));
    assert!(is_refused(vmm.set_ring_call(0, Some(writer.as_fd()))));
    assert!(is_refused(vmm.set_ring_error(0, Some(writer.as_fd()))));
    assert!(is_refused(vmm.tell(FrontendReq::SET_BACKEND_REQ_FD, &[], &[writer.as_fd()])));
    assert!(is_refused(vmm.tell(FrontendReq::SET_OWNER, &[], &[writer.as_fd()])), "the message has no descriptor");
    assert!(is_refused(vmm.tell(FrontendReq::ADD_MEM_REG, &[1; 40], &[writer.as_fd()])));
    assert!(is_refused(vmm.tell(FrontendReq::SET_INFLIGHT_FD, &[1; 24], &[writer.as_fd(), writer.as_fd()])));
    drop(writer);
    let mut reader = File::from(OwnedFd::from(reader));
    assert_eq!(reader.read(&mut [0]).unwrap(), 0, "it is closed everywhere");
}

#[test]
fn the_end_of_a_session_closes_its_descriptors() {
    let bench = Bench::new();
    let (vmm, memory, _) = about_to_start(&bench);
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    vmm.tell(FrontendReq::SET_BACKEND_REQ_FD, &[], &[theirs.as_fd()]).unwrap();
    drop(theirs);
    vmm.enable_ring(0, true).unwrap();
    vmm.set_ring_call(0, Some(ring_fd().as_fd())).unwrap();
    vmm.set_ring_kick(0, Some(ring_fd().as_fd())).unwrap();
    drop((vmm, memory));
    assert_eq!((&ours).read(&mut [0]).unwrap(), 0);
}

#[test]
fn a_ring_may_be_enabled_before_the_features_and_starts_when_everything_is_set() {
    let bench = Bench::new();
    let (vmm, memory) = (bench.vmm(), Memory::new(16 * PAGE, 1).unwrap());
    vmm.enable_ring(0, true).unwrap();
    vmm.set_memory_table(&memory).unwrap();
    vmm.set_ring_size(0, 64).unwrap();
    vmm.set_ring_base(0, 7).unwrap();
    vmm.set_ring_addresses(0, [0, PAGE, 2 * PAGE].map(|offset| memory.user(offset))).unwrap();
    memory.u16(PAGE + 2).store(7, Ordering::Relaxed);
    memory.u16(2 * PAGE + 2).store(7, Ordering::Relaxed);
    vmm.set_ring_kick(0, Some(ring_fd().as_fd())).unwrap();
    assert!(!is_refused(vmm.set_ring_size(0, 32)) && !is_refused(vmm.set_ring_size(0, 64)), "it is stopped");
    vmm.set_features(ALL_FEATURES & vmm.features().unwrap()).unwrap();
    assert!(is_refused(vmm.set_ring_size(0, 64)), "it is running");
    assert!(is_refused(vmm.set_ring_base(0, 0)));
    assert!(is_refused(vmm.set_features(1 << 30)), "not those with which it is running");
    let addresses = [0, PAGE, 2 * PAGE].map(|offset| memory.user(offset));
    assert!(!is_refused(vmm.set_ring_addresses(0, addresses)), "unchanged");
    assert!(is_refused(vmm.set_ring_addresses(0, [addresses[0], addresses[1], addresses[2] + 4096])));
    assert_eq!(vmm.ring_base(0).unwrap(), 7);
    assert!(!is_refused(vmm.set_ring_size(0, 64)), "it is stopped");
}

#[test]
fn a_stopped_queue_continues_where_it_was() {
    let bench = Bench::new();
    let mut client = bench.connect(&options());
    write_and_read(&mut client);
    let base = client.stop_queue(0).unwrap();
    assert_eq!(base, 3, "a write, a flush, a read");
    client.start_queue(0, base).unwrap();
    write_and_read(&mut client);
    // Disabled, and enabled again.
    client.session().unwrap().enable_ring(0, false).unwrap();
    client.session().unwrap().enable_ring(0, true).unwrap();
    write_and_read(&mut client);
    // Another kick and another call descriptor while it is running.
    let (kick, call) =
        (client.queue(0).kick_descriptor().try_clone_to_owned(), client.queue(0).call().try_clone_to_owned());
    client.session().unwrap().set_ring_kick(0, Some(kick.unwrap().as_fd())).unwrap();
    client.session().unwrap().set_ring_call(0, Some(call.unwrap().as_fd())).unwrap();
    write_and_read(&mut client);
    client.session().unwrap().tell(FrontendReq::RESET_OWNER, &[], &[]).unwrap();
    client.session().unwrap().enable_ring(0, true).unwrap();
    write_and_read(&mut client);
}

#[test]
fn a_reset_device_has_its_initial_state() {
    let bench = Bench::new();
    let mut client = bench.connect(&options());
    write_and_read(&mut client);
    client.session().unwrap().set_config(WRITE_CACHE, &[0]).unwrap();
    client.session().unwrap().reset_device().unwrap();
    assert!(client.read_config().unwrap().write_cache, "the initial state");
    assert_eq!(client.session().unwrap().ring_base(0).unwrap(), 0);
    let features = client.features();
    client.session().unwrap().set_features(features).unwrap();
    let base = client.queue(0).ring().used_index();
    client.start_queue(0, base).unwrap();
    write_and_read(&mut client);
}

#[test]
fn memory_is_added_and_removed_while_a_queue_is_running() {
    let bench = Bench::new();
    let mut client = bench.connect(&options());
    let more = Memory::new(4 * PAGE, 1).unwrap();
    let region = Region { guest: 1 << 40, offset: 0, len: 4 * PAGE };
    client.session().unwrap().add_region(&more, region).unwrap();
    write_and_read(&mut client);
    assert!(is_refused(client.session().unwrap().add_region(&more, region)), "it is there");
    client.session().unwrap().remove_region(&more, region).unwrap();
    assert!(is_refused(client.session().unwrap().remove_region(&more, region)), "it is gone");
    write_and_read(&mut client);
    let under_the_ring = client.memory().regions()[0];
    assert!(is_refused(client.session().unwrap().remove_region(client.memory(), under_the_ring)));
    assert!(is_refused(client.session().unwrap().set_memory_table(&more)));
    write_and_read(&mut client);
    client.session().unwrap().set_memory_table(client.memory()).unwrap();
    write_and_read(&mut client);
}

#[test]
fn only_the_write_cache_can_be_changed() {
    let bench = Bench::new();
    let mut client = bench.connect(&options());
    assert!(client.config().write_cache);
    client.session().unwrap().set_config(WRITE_CACHE, &[0]).unwrap();
    assert!(!client.read_config().unwrap().write_cache);
    write_and_read(&mut client);
    client.session().unwrap().set_config(WRITE_CACHE, &[1]).unwrap();
    assert!(client.read_config().unwrap().write_cache);
    assert!(is_refused(client.session().unwrap().set_config(0, &[0; 8])), "its size");
    assert!(is_refused(client.session().unwrap().set_config(WRITE_CACHE, &[2])));
    assert!(client.session().unwrap().config(250, 7).is_err(), "past the end of the space");
    write_and_read(&mut client);
}

#[test]
fn a_vmm_is_notified_of_a_volume_that_grows() {
    let bench = Bench::new();
    let mut client = bench.connect(&options());
    assert!(!client.session().unwrap().config_changed(Duration::ZERO).unwrap());
    let info = VolumeInfo { size_bytes: 2 * SIZE, ..bench.entry.kind.info.clone() };
    bench.listener.replace(Some(Entry { kind: Blk { info, queues: 4 }, ..bench.entry.clone() }));
    assert!(client.session().unwrap().config_changed(PATIENCE).unwrap());
    assert_eq!(client.read_config().unwrap().size_bytes(), 2 * SIZE);
    bench.listener.replace(Some(Entry { ..bench.entry.clone() }));
    assert!(client.session().unwrap().config_changed(PATIENCE).unwrap());
    write_and_read(&mut client);
    assert_eq!((bench.totals().config_changes, bench.totals().faults), (2, 0));
}

#[test]
fn a_vmm_without_a_channel_reads_the_new_size() {
    let bench = Bench::new();
    let protocol_features = ALL_PROTOCOL_FEATURES.difference(VhostFeature::BACKEND_REQ);
    let mut client = bench.connect(&ClientOptions { protocol_features, ..options() });
    let info = VolumeInfo { size_bytes: 2 * SIZE, ..bench.entry.kind.info.clone() };
    bench.listener.replace(Some(Entry { kind: Blk { info, queues: 4 }, ..bench.entry.clone() }));
    assert!((0..100_000).any(|_| client.read_config().unwrap().size_bytes() == 2 * SIZE), "each is answered in turn");
    assert_eq!(bench.totals().config_changes, 0);
}

#[test]
fn a_removed_or_changed_volume_ends_the_session() {
    let bench = Bench::new();
    let other_features = VolumeInfo { read_only: true, ..bench.entry.kind.info.clone() };
    let others = [
        None,
        Some(Entry { kind: Blk { info: other_features, queues: 4 }, ..bench.entry.clone() }),
        Some(Entry { kind: Blk { queues: 2, ..bench.entry.kind.clone() }, ..bench.entry.clone() }),
        Some(Entry { volume: "other".to_owned(), ..bench.entry.clone() }),
        Some(Entry { generation: VolumeGeneration::next(), ..bench.entry.clone() }),
    ];
    for other in others {
        let vmm = bench.vmm();
        bench.listener.replace(other);
        assert!(is_over(&vmm));
        bench.listener.replace(Some(bench.entry.clone()));
    }
    assert_eq!(bench.totals().faults, 0);
    bench.still_serves();
    bench.listener.replace(None);
    assert!(matches!(Client::connect(&bench.path(), &options()), Err(ClientError::Closed | ClientError::Io(_))));
    assert_eq!(bench.totals().rejected, 1);
}

#[test]
fn a_volume_removed_from_its_device_ends_the_session() {
    let bench = Bench::new();
    let mut client = bench.connect(&options());
    write_and_read(&mut client);
    let (vm, volume) = ("vm".to_owned(), "disk".to_owned());
    bench.device.edit(vec![Edit::RemoveVolume { vm, volume }]).unwrap();
    assert!(is_over(client.session().unwrap()));
    assert_eq!(bench.totals().faults, 0, "it is not an error of the VMM");
}

#[test]
fn one_vmm_is_served_at_a_time_within_the_connection_limit() {
    let bench = Bench::new();
    bench.connections.set_max(1);
    let first = bench.vmm();
    let second = Vmm::connect(&bench.path(), PATIENCE).unwrap();
    assert!(is_over(&second));
    assert_eq!(bench.totals().rejected, 1);
    drop(first);
    let mut third = bench.connect(&options());
    write_and_read(&mut third);
    third.disconnect();
    bench.still_serves();
    bench.connections.set_max(0);
    let nowhere = Vmm::connect(&bench.path(), PATIENCE).unwrap();
    assert!(is_over(&nowhere));
    assert_eq!(bench.totals().rejected, 2);
}

#[test]
fn a_vmm_that_reconnects_waits_for_its_requests_in_flight() {
    let time = ServiceTime::Fixed(Duration::from_millis(300));
    let bench = Bench::on(Some(DelaySpec { time, parallel: 1, bandwidth: None, seed: 1 }));
    let mut client = bench.connect(&options());
    client.queue(0).submit(0, Request::Write { offset: 0, len: 4096 }).unwrap();
    client.queue(0).publish().unwrap();
    let in_flight = || bench.device.snapshot().unwrap().in_flight;
    while in_flight() == 0 {}
    client.disconnect();
    // The first reply comes from a separate session, which starts when the other has ended.
    let vmm = bench.vmm();
    vmm.features().unwrap();
    assert_eq!(in_flight(), 0);
    assert_eq!((bench.totals().sessions, bench.totals().rejected), (2, 0));
}
