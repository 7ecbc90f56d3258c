//! Tests of NICs of guests, over a real socket, with a real thread of the uplink.

use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use sluice_client::vhost::net::{HEADER_LEN, NetClient, NetOptions, RECEIVE, Received, TRANSMIT};
use sluice_net::Mac;
use sluice_net::NicTotals;
use sluice_net::drop::Drop as Reason;
use sluice_net::header::{GSO_TCP4, NEEDS_CHECKSUM, OffloadHeader};
use sluice_sched::Policy;
use tempfile::TempDir;
use tokio::sync::oneshot;

use super::{Far, add, frame, link, mac, nic, uplink};
use crate::endpoint::{Bound, Endpoint};
use crate::reactor::message::{Fault, Message};
use crate::shared_limit::SharedLimit;
use crate::uplink::Uplink;
use crate::uplink::spec::NicPlug;
use crate::vhost_user::listener::VhostListener;
use crate::vhost_user::net::Net;
use crate::vhost_user::session::Entry;

const PATIENCE: Duration = Duration::from_secs(20);
const NO_HEADER: [u8; HEADER_LEN] = [0; HEADER_LEN];

/// An uplink with one NIC, and its socket.
struct Bench {
    device: Uplink,
    far: Far,
    folder: TempDir,
    stop: Option<oneshot::Sender<()>>,
    control: Option<JoinHandle<()>>,
    /// Restarts of the thread that the test has caused.
    restarts: u64,
}

impl Bench {
    fn new(rate: Option<u64>) -> Self {
        Bench::at(rate, tempfile::tempdir().unwrap())
    }

    fn at(rate: Option<u64>, folder: TempDir) -> Self {
        let (spec, far) = uplink(rate);
        let device = Uplink::start(spec, Box::new(|| ())).unwrap();
        let nic = nic(1, NicPlug::VhostUser);
        let kind = Net { mac: mac(1), mtu: 1500, pairs: 1, offloads: true };
        let (vm, volume, generation) = ("vm1".to_owned(), nic.name.clone(), nic.generation);
        device.edit(add(&vm, Policy::default(), nic)).unwrap();
        let entry = Entry { kind, vm, volume, generation, device: device.handle() };
        let (stop, control) = listen(folder.path().join("nic.sock"), entry);
        Bench { device, far, folder, stop: Some(stop), control: Some(control), restarts: 0 }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("nic.sock")
    }

    fn connect(&self, options: &NetOptions) -> NetClient {
        NetClient::connect(&self.path(), options).unwrap()
    }

    fn totals(&self) -> NicTotals {
        *self.device.snapshot().unwrap().vms[0].volumes[0].nic.clone().unwrap()
    }

    /// Ends the daemon without a word to its VMMs.
    fn kill(mut self) -> TempDir {
        self.end();
        std::mem::replace(&mut self.folder, tempfile::tempdir().unwrap())
    }

    fn end(&mut self) {
        self.stop.take();
        if let Some(control) = self.control.take() {
            control.join().unwrap();
        }
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.end();
        let snapshot = self.device.snapshot();
        assert_eq!(snapshot.map(|snapshot| snapshot.restarts), Some(self.restarts), "nothing panicked");
    }
}

fn listen(path: PathBuf, entry: Entry<Net>) -> (oneshot::Sender<()>, JoinHandle<()>) {
    let endpoint = Endpoint::Unix { path, owner: None, group: None, mode: 0o600 };
    let (stop, stopped) = oneshot::channel();
    let (started, starting) = mpsc::channel();
    let control = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move {
            let connections = Arc::new(SharedLimit::default());
            connections.set_max(8);
            let bound = Bound::bind(endpoint, None).unwrap();
            let mut listener = VhostListener::start(bound, Some(entry), &connections).unwrap();
            listener.open();
            started.send(()).unwrap();
            let _ = stopped.await;
        });
    });
    starting.recv().unwrap();
    (stop, control)
}

/// Looks until there is something.
fn eventually<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < until, "it did not happen");
        std::thread::yield_now();
    }
}

/// A frame that carries its number.
fn numbered(number: u32, length: usize) -> Vec<u8> {
    let mut bytes = frame(1, mac(200), length);
    bytes[50..54].copy_from_slice(&number.to_be_bytes());
    bytes
}

fn number_of(frame: &[u8]) -> u32 {
    u32::from_be_bytes(frame[50..54].try_into().unwrap())
}

#[test]
fn a_guest_sends_and_receives() {
    let bench = Bench::new(None);
    let mut guest = bench.connect(&NetOptions::default());
    let out = frame(1, mac(200), 1514);
    assert_eq!(guest.send(&[(&NO_HEADER, &out), (&NO_HEADER, &frame(1, mac(200), 60))]).unwrap(), 2);
    assert_eq!(eventually(|| bench.far.receive()).1, out);
    assert_eq!(eventually(|| bench.far.receive()).1, frame(1, mac(200), 60));
    let returned = eventually(|| Some(guest.reclaim()).filter(|returned| !returned.is_empty()));
    assert!(returned.len() <= 2);
    bench.far.send(OffloadHeader::default(), &frame(200, mac(1), 700));
    let Received { header, frame: bytes } = eventually(|| guest.receive(true).unwrap());
    assert_eq!((header[0], header[10], bytes), (0, 1, frame(200, mac(1), 700)));
    // A segment that the kernel has put together fills many buffers.
    let large = frame(200, mac(1), 60_000);
    let segment =
        OffloadHeader { flags: NEEDS_CHECKSUM, gso_type: GSO_TCP4, gso_size: 1448, ..OffloadHeader::default() };
    bench.far.send(segment, &large);
    let Received { header, frame: bytes } = eventually(|| guest.receive(true).unwrap());
    assert_eq!(
        (header[0], header[1], usize::from(header[10]), bytes),
        (1, GSO_TCP4, 60_012_usize.div_ceil(2048), large)
    );
    let totals = bench.totals();
    assert_eq!((totals.sent, totals.received, totals.drops.total()), (2, 2, 0));
}

#[test]
fn what_waits_for_the_wire_stays_in_the_ring_and_nothing_is_lost() {
    // 10 Mbit/s; 400 frames of 300 bytes take about 0.1 s.
    let bench = Bench::new(Some(1_250_000));
    let mut guest = bench.connect(&NetOptions::default());
    let mut sent = 0;
    let mut received = Vec::new();
    while received.len() < 400 {
        guest.reclaim();
        let frames: Vec<Vec<u8>> = (sent..400).take(64).map(|number| numbered(number, 300)).collect();
        let list: Vec<(&[u8], &[u8])> = frames.iter().map(|frame| (&NO_HEADER[..], &frame[..])).collect();
        sent += guest.send(&list).unwrap() as u32;
        received.extend(bench.far.all().iter().map(|frame| number_of(frame)));
        std::thread::yield_now();
    }
    assert_eq!(received, (0..400).collect::<Vec<_>>(), "all, once, in order");
    assert_eq!(bench.totals().drops.total(), 0);
}

/// Each ring has one descriptor, so it is full with one frame, and free with none: the indices alone tell which.
#[test]
fn rings_of_one_descriptor_carry_frame_by_frame() {
    let bench = Bench::new(None);
    let mut guest = bench.connect(&NetOptions { queue_size: 1, slots: 1, buffers: 1, ..NetOptions::default() });
    for number in 0..300 {
        let out = numbered(number, 400);
        assert_eq!(guest.send(&[(&[], &[&NO_HEADER[..], &out].concat())]).unwrap(), 1);
        assert_eq!(eventually(|| bench.far.receive()).1, out);
        eventually(|| Some(()).filter(|()| !guest.reclaim().is_empty()));
        let back = frame(200, mac(1), 60 + number as usize);
        bench.far.send(OffloadHeader::default(), &back);
        assert_eq!(eventually(|| guest.receive(true).unwrap()).frame, back);
    }
    // It would need two buffers, of which there is never more than one; the frame after it fits.
    bench.far.send(OffloadHeader::default(), &frame(200, mac(1), 3000));
    bench.far.send(OffloadHeader::default(), &frame(200, mac(1), 70));
    assert_eq!(eventually(|| guest.receive(true).unwrap()).frame, frame(200, mac(1), 70));
    let totals = bench.totals();
    assert_eq!((totals.sent, totals.received, totals.drops.of(Reason::NoBuffers)), (300, 301, 1), "{:?}", totals.drops);
}

#[test]
fn a_guest_with_too_few_buffers_gets_the_frame_when_it_adds_some() {
    let bench = Bench::new(None);
    let mut guest = bench.connect(&NetOptions { buffers: 3, ..NetOptions::default() });
    let large = frame(200, mac(1), 20_000);
    bench.far.send(OffloadHeader { flags: NEEDS_CHECKSUM, ..OffloadHeader::default() }, &large);
    bench.far.send(OffloadHeader::default(), &frame(200, mac(1), 60));
    // The answer of the thread shows that it has read them.
    eventually(|| Some(()).filter(|()| bench.far.receive().is_none() && bench.totals().received == 0));
    for buffer in 3..9 {
        assert!(guest.receive(false).unwrap().is_none(), "with {buffer} buffers");
        guest.post(&[buffer]).unwrap();
    }
    guest.post(&[9, 10, 11]).unwrap();
    assert_eq!(eventually(|| guest.receive(false).unwrap()).frame, large);
    assert_eq!(eventually(|| guest.receive(false).unwrap()).frame, frame(200, mac(1), 60));
    assert_eq!(bench.totals().drops.total(), 0);
}

#[test]
fn a_ring_that_stops_under_a_full_gate_is_given_back_at_once_and_continues() {
    // 8 kbyte/s: a frame takes 0.19 s.
    let bench = Bench::new(Some(8192));
    let mut guest = bench.connect(&NetOptions::default());
    let frames: Vec<Vec<u8>> = (0..64).map(|number| numbered(number, 1514)).collect();
    let list: Vec<(&[u8], &[u8])> = frames.iter().map(|frame| (&NO_HEADER[..], &frame[..])).collect();
    guest.send(&list).unwrap();
    let first = number_of(&eventually(|| bench.far.receive()).1);
    assert_eq!(first, 0);
    let base = guest.session().unwrap().ring_base(TRANSMIT).unwrap();
    let (used, available) = guest.transmit_indices();
    assert_eq!((base, available), (used, 64), "every chain that was not sent is in the ring");
    assert!(base <= 4, "{base}");
    // The next back end, or the same one after a pause, sends the rest.
    let folder = bench.kill();
    let bench = Bench::at(None, folder);
    guest.reconnect(&bench.path()).unwrap();
    let rest: Vec<u32> = (u32::from(base)..64).map(|_| number_of(&eventually(|| bench.far.receive()).1)).collect();
    assert_eq!(rest, (u32::from(base)..64).collect::<Vec<_>>());
}

#[test]
fn a_daemon_that_died_with_frames_on_their_way_left_the_ring_intact() {
    let mut bench = Bench::new(Some(100_000));
    let mut guest = bench.connect(&NetOptions::default());
    let mut seen = Vec::new();
    let mut next = 0;
    for _ in 0..3 {
        guest.reclaim();
        let frames: Vec<Vec<u8>> = (next..next + 40).map(|number| numbered(number, 600)).collect();
        let list: Vec<(&[u8], &[u8])> = frames.iter().map(|frame| (&NO_HEADER[..], &frame[..])).collect();
        next += guest.send(&list).unwrap() as u32;
        seen.push(number_of(&eventually(|| bench.far.receive()).1));
        seen.extend(bench.far.all().iter().map(|frame| number_of(frame)));
        let folder = bench.kill();
        bench = Bench::at(Some(100_000), folder);
        guest.reconnect(&bench.path()).unwrap();
    }
    while seen.last() != Some(&(next - 1)) {
        seen.push(number_of(&eventually(|| bench.far.receive()).1));
    }
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen, (0..next).collect::<Vec<_>>(), "each frame at least once");
    eventually(|| Some(()).filter(|()| guest.transmit_indices().0 == guest.transmit_indices().1));
}

#[test]
fn a_disabled_ring_neither_sends_nor_receives() {
    let bench = Bench::new(None);
    let mut guest = bench.connect(&NetOptions::default());
    for ring in [RECEIVE, TRANSMIT] {
        guest.session().unwrap().enable_ring(ring, false).unwrap();
    }
    guest.send(&[(&NO_HEADER, &frame(1, mac(200), 60))]).unwrap();
    bench.far.send(OffloadHeader::default(), &frame(200, mac(1), 60));
    eventually(|| Some(()).filter(|()| bench.totals().drops.total() == 1));
    assert!(guest.receive(true).unwrap().is_none() && bench.far.receive().is_none());
    for ring in [RECEIVE, TRANSMIT] {
        guest.session().unwrap().enable_ring(ring, true).unwrap();
    }
    assert_eq!(eventually(|| bench.far.receive()).1, frame(1, mac(200), 60));
    bench.far.send(OffloadHeader::default(), &frame(200, Mac([0xff; 6]), 61));
    assert_eq!(eventually(|| guest.receive(true).unwrap()).frame, frame(200, Mac([0xff; 6]), 61));
}

#[test]
fn frames_that_cannot_be_are_dropped_counted_and_returned() {
    let bench = Bench::new(None);
    let mut guest = bench.connect(&NetOptions::default());
    let impossible = OffloadHeader { gso_type: GSO_TCP4, gso_size: 0, flags: 1, ..OffloadHeader::default() }.to_bytes();
    let foreign = frame(9, mac(200), 60);
    let long = frame(1, mac(200), 1515);
    let sent = [(&impossible[..], &foreign[..]), (&NO_HEADER, &foreign), (&NO_HEADER, &long), (&NO_HEADER, &[1, 2, 3])];
    guest.send(&sent).unwrap();
    guest.send(&[(&NO_HEADER, &frame(1, mac(200), 61))]).unwrap();
    assert_eq!(eventually(|| bench.far.receive()).1, frame(1, mac(200), 61), "the only good one");
    let mut returned = Vec::new();
    eventually(|| {
        returned.extend(guest.reclaim());
        (returned.len() == 5).then_some(())
    });
    assert_eq!(bench.totals().drops.total(), 4, "{:?}", bench.totals().drops);
}

#[test]
fn a_vm_that_only_receives_gets_each_frame() {
    let (spec, far) = uplink(Some(12_500_000));
    let device = Uplink::start(spec, Box::new(|| ())).unwrap();
    let (near, vm) = link();
    device.edit(add("vm1", Policy::default(), nic(1, NicPlug::Tap(near)))).unwrap();
    for number in 0..100 {
        let frame = frame(200, mac(1), 60 + number);
        far.send(OffloadHeader::default(), &frame);
        assert_eq!(eventually(|| vm.receive()).1, frame);
    }
}

#[test]
fn nics_are_served_again_after_the_thread_has_failed() {
    let mut bench = Bench::new(None);
    let (near, vm) = link();
    bench.device.edit(add("vm2", Policy::default(), nic(2, NicPlug::Tap(near)))).unwrap();
    let mut guest = bench.connect(&NetOptions::default());
    guest.send(&[(&NO_HEADER, &frame(1, mac(200), 60))]).unwrap();
    assert_eq!(eventually(|| bench.far.receive()).1, frame(1, mac(200), 60));
    bench.device.mailbox.send(Message::Test(Fault::Panic)).unwrap();
    bench.restarts = 1;
    eventually(|| bench.device.snapshot().filter(|snapshot| snapshot.restarts == 1));
    eventually(|| guest.reconnect(&bench.path()).ok());
    guest.send(&[(&NO_HEADER, &frame(1, mac(2), 61))]).unwrap();
    assert_eq!(eventually(|| vm.receive()).1, frame(1, mac(2), 61), "from the guest to the TAP");
    vm.send(OffloadHeader::default(), &frame(2, mac(1), 62));
    assert_eq!(eventually(|| guest.receive(true).unwrap()).frame, frame(2, mac(1), 62), "and back");
}
