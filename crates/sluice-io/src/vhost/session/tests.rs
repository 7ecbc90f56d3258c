//! Sessions over a real socket, with a real device thread behind them.

use std::fs::File;
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use sluice_sched::scheduler::Facts;
use sluice_sched::{GateSettings, Policy, schedulers};
use tempfile::TempDir;
use tokio::sync::oneshot;
use vhost::vhost_user::message::{VhostUserProtocolFeatures as VhostFeature, VhostUserVirtioFeatures};

use super::*;
use crate::device::{Device, DeviceSpec, Edit, SchedulerSpec, Store, VolumeSpec, Window};
use crate::listener::{Endpoint, Seats};
use crate::nbd::export::sample;
use crate::source::{Source, SourceSpec};
use crate::vhost::client::{ALL_FEATURES, ALL_PROTOCOL_FEATURES, Client, ClientOptions, Request};
use crate::vhost::counts::Totals;
use crate::vhost::listener::VhostListener;

const PATIENCE: Duration = Duration::from_secs(20);
const SIZE: u64 = 8 << 20;

/// A device with a volume, and its socket.
struct Bench {
    listener: Arc<VhostListener>,
    device: Device,
    entry: Entry,
    folder: TempDir,
    stop: Option<oneshot::Sender<()>>,
    control: Option<JoinHandle<()>>,
}

impl Bench {
    fn new() -> Bench {
        let scheduler = SchedulerSpec {
            descriptor: schedulers::find("mclock").unwrap(),
            facts: Facts::default(),
            params: Default::default(),
        };
        let gate = GateSettings::default();
        let spec = DeviceSpec { name: "d".to_owned(), scheduler, gate, delay: None, delay_log: None };
        let device = Device::start(spec).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk");
        File::create(&path).unwrap().set_len(SIZE).unwrap();
        let source = Arc::new(Source::open(&SourceSpec { buffered: true, ..SourceSpec::whole(&path) }).unwrap());
        let export = Export { size_bytes: SIZE, ..sample("vm/disk") };
        let store = Store::File { source, extents: None };
        let policy = Policy::default();
        let volume = Box::new(VolumeSpec { name: "disk".to_owned(), policy, store, export: export.clone() });
        let (vm, window) = ("vm".to_owned(), Window { requests: 64, bytes: 32 << 20 });
        device.edit(vec![Edit::AddVm { vm: vm.clone(), policy, window }, Edit::AddVolume { vm, volume }]).unwrap();
        let entry = Entry { export, vm: "vm".to_owned(), volume: "disk".to_owned(), door: device.door(), queues: 4 };
        let seats = Arc::new(Seats::default());
        seats.set_max(8);
        let (listener, stop, control) = listen(folder.path().join("vm.sock"), &entry, &seats);
        Bench { listener, device, entry, folder, stop: Some(stop), control: Some(control) }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("vm.sock")
    }

    fn connect(&self, options: &ClientOptions) -> Client {
        Client::connect(&self.path(), options).unwrap()
    }

    fn totals(&self) -> Totals {
        self.listener.totals()
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.stop.take();
        self.control.take().unwrap().join().unwrap();
        assert_eq!(self.device.snapshot().unwrap().restarts, 0, "nothing panicked");
    }
}

/// A control plane with this socket; it goes on until the sender is dropped.
fn listen(
    path: PathBuf,
    entry: &Entry,
    seats: &Arc<Seats>,
) -> (Arc<VhostListener>, oneshot::Sender<()>, JoinHandle<()>) {
    let endpoint = Endpoint::Unix { path, owner: None, group: None, mode: 0o600 };
    let (entry, seats) = (entry.clone(), Arc::clone(seats));
    let (stop, stopped) = oneshot::channel();
    let (started, starting) = mpsc::channel();
    let control = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move {
            let listener = Arc::new(VhostListener::start(endpoint, Some(entry), &seats).unwrap());
            started.send(Arc::clone(&listener)).unwrap();
            let _ = stopped.await;
        });
    });
    (starting.recv().unwrap(), stop, control)
}

fn options() -> ClientOptions {
    ClientOptions { patience: PATIENCE, ..ClientOptions::default() }
}

fn write_and_read(client: &mut Client) {
    let written: Vec<u8> = (0..16384u32).map(|byte| (byte % 251) as u8).collect();
    client.write(12288, &written).unwrap();
    client.perform(0, Request::Flush).unwrap();
    let mut read = vec![0; written.len()];
    client.read(12288, &mut read).unwrap();
    assert_eq!(read, written);
}

#[test]
fn a_vmm_comes_and_goes_and_comes_back() {
    let bench = Bench::new();
    let mut client = bench.connect(&options());
    assert_eq!((client.config().size_bytes(), client.config().queues), (SIZE, 4));
    assert_eq!(client.features(), ALL_FEATURES & blk::features(&bench.entry.export));
    write_and_read(&mut client);
    client.disconnect();
    client.reconnect(&bench.path()).unwrap();
    write_and_read(&mut client);
    let Totals { sessions, turned_away, refusals, faults, .. } = bench.totals();
    assert_eq!((sessions, turned_away, refusals, faults), (2, 0, 0, 0));
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
fn who_knows_nothing_of_protocol_features_finds_its_rings_enabled() {
    let bench = Bench::new();
    let features = ALL_FEATURES & !VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits();
    let protocol_features = VhostFeature::empty();
    write_and_read(&mut bench.connect(&ClientOptions { features, protocol_features, ..options() }));
}
