//! The network half: the same three VMs have NICs on one link, first with noop, then with mClock.
//!
//! The guests are front ends over vhost-user-net that always have full frames in their rings. The thread of the uplink, its gate and its
//! pacing are those of `sluice serve`. Its interface is one end of a socket pair, whose other end counts what arrives of each VM: an interface
//! of the host would need root.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use sluice_client::vhost::ClientError;
use sluice_client::vhost::net::{HEADER_LEN, NetClient, NetOptions};
use sluice_io::device::{EditError, VolumeGeneration};
use sluice_io::endpoint::{Bound, Endpoint, ListenError};
use sluice_io::shared_limit::SharedLimit;
use sluice_io::uplink::link::tap;
use sluice_io::uplink::{Edit, NicPlug, NicSpec, Uplink, UplinkSpec};
use sluice_io::vhost_user::listener::VhostListener;
use sluice_io::vhost_user::net::Net;
use sluice_io::vhost_user::session::Entry;
use sluice_net::Mac;
use sluice_net::guard::Guard;
use sluice_papers::find;
use sluice_sched::{ByteRate, CostModel, Limit, Policy, Reservation, Weight};

use super::setup::{BACKUP, OLTP, VMS};
use super::share::Claim;
use crate::testbed::pauses::Pauses;

/// Rate of the link, in Mbit/s of the wire.
pub(super) const LINK: u64 = 100;
/// Reservation of one VM and limit of another, in Mbit/s of the wire.
const RESERVED: u64 = 50;
const LIMIT: u64 = 15;
/// Weight of the VM without a reservation or limit.
const WEIGHT: u32 = 200;
/// Length of a frame in bytes, without those around it on the wire.
const FRAME: usize = 1514;
/// Frames of a VM on their way: those of 8 ms of the whole link, so that its ring is never empty.
const SLOTS: u16 = 64;
/// Pause of a guest before it fills its ring again.
const PAUSE: Duration = Duration::from_millis(1);
/// Time before measuring starts.
const WARM_UP: Duration = Duration::from_millis(300);
/// Length of a measurement, and the maximum number of them: one in which threads were late is made again.
const MEASURED: Duration = Duration::from_millis(1500);
const ATTEMPTS_MAX: u32 = 3;
/// Pause between two looks at how late the threads were, and how late they may be in between: a ring holds the frames
/// of 8 ms.
const LOOKS_EVERY: Duration = Duration::from_millis(50);
const LATE_MAX: Duration = Duration::from_millis(5);
/// Maximum wait of the counter before it checks whether it should stop.
const LOOK: Duration = Duration::from_millis(50);

/// Why the network half failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NetworkError {
    /// The thread of the uplink, a thread of a guest or the socket pair.
    #[error("Cannot start the uplink or a guest of the demo")]
    Start(#[source] io::Error),
    /// The socket of a NIC cannot be made.
    #[error("Cannot listen for the NIC of {vm}")]
    Listen {
        vm: &'static str,
        #[source]
        source: ListenError,
    },
    /// The thread of the uplink rejects a VM.
    #[error("Cannot add the NIC of {vm}")]
    Edit {
        vm: &'static str,
        #[source]
        source: EditError,
    },
    /// A guest lost its NIC.
    #[error("VM {vm}: the NIC failed")]
    Guest {
        vm: &'static str,
        #[source]
        source: ClientError,
    },
}

/// Throughput of each VM on the link with one scheduler, in Mbit/s of the wire.
pub(crate) struct Shares {
    pub(super) scheduler: &'static str,
    pub(super) mbit: Vec<f64>,
    /// How late the threads were during the measurement.
    pub(super) paused: Duration,
}

/// Returns the reservation, limit and weight of each VM on the link, in Mbit/s.
pub(super) fn claims() -> Vec<Claim> {
    let mbit = |policy: &Policy| {
        let of = |rate: ByteRate| rate.bytes_per_second() as f64 * 8.0 / 1e6;
        Claim {
            reservation: policy.reservation.bytes.map_or(0.0, of),
            limit: policy.limit.bytes.map_or(f64::INFINITY, of),
            weight: policy.effective_weight().map_or(0.0, Weight::as_f64),
        }
    };
    (0..VMS.len()).map(|vm| mbit(&policy(vm))).collect()
}

fn policy(vm: usize) -> Policy {
    let rate = |mbit: u64| Some(ByteRate::per_second(mbit * 125_000));
    match vm {
        OLTP => Policy { reservation: Reservation { bytes: rate(RESERVED), iops: None }, ..Policy::weighted(100) },
        BACKUP => Policy { limit: Limit { bytes: rate(LIMIT), ..Limit::default() }, ..Policy::weighted(100) },
        _ => Policy::weighted(WEIGHT),
    }
}

/// Lets all VMs send as much as they can, and returns what each got. Their sockets are in `folder`.
pub(super) async fn measure(scheduler: &'static str, folder: &Path) -> Result<Shares, NetworkError> {
    let (near, far) = UnixDatagram::pair().map_err(NetworkError::Start)?;
    near.set_nonblocking(true).map_err(NetworkError::Start)?;
    let counter = Counter::start(far).map_err(NetworkError::Start)?;
    let lab = Lab::start(scheduler, folder, near)?;
    let stop = Arc::new(AtomicBool::new(false));
    let guests = Guests::start(&lab.paths, &stop).map_err(NetworkError::Start)?;
    tokio::time::sleep(WARM_UP).await;
    let mut shares = Shares { scheduler, mbit: Vec::new(), paused: Duration::ZERO };
    let mut pauses = Pauses::watch(LATE_MAX);
    for _ in 0..ATTEMPTS_MAX {
        let (before, began) = (counter.frames(), Instant::now());
        pauses.resume();
        while began.elapsed() < MEASURED {
            pauses.look(LOOKS_EVERY);
            tokio::time::sleep(LOOKS_EVERY).await;
        }
        pauses.look(Duration::ZERO);
        shares.paused = pauses.take();
        let (after, seconds) = (counter.frames(), began.elapsed().as_secs_f64());
        let mbit = |frames: u64| (frames * (FRAME as u64 + CostModel::FRAME_OVERHEAD.0) * 8) as f64 / seconds / 1e6;
        shares.mbit = after.iter().zip(&before).map(|(after, before)| mbit(after - before)).collect();
        if shares.paused.is_zero() {
            break;
        }
    }
    guests.finish()?;
    Ok(shares)
}

/// The uplink with the sockets of the NICs.
struct Lab {
    _device: Uplink,
    _listeners: Vec<VhostListener<Net>>,
    paths: Vec<PathBuf>,
}

impl Lab {
    fn start(scheduler: &str, folder: &Path, interface: UnixDatagram) -> Result<Lab, NetworkError> {
        let link = Arc::new(tap::of_socket(OwnedFd::from(interface)));
        let descriptor = find(scheduler).expect("the demo names schedulers that there are");
        let rate = Some(ByteRate::per_second(LINK * 125_000));
        let device = Uplink::start(UplinkSpec::new("link", descriptor, rate, link), Box::new(|| ()));
        let device = device.map_err(NetworkError::Start)?;
        let connections = Arc::new(SharedLimit::default());
        connections.set_max(VMS.len() as u32);
        let (mut listeners, mut paths) = (Vec::new(), Vec::new());
        for (number, vm) in VMS.iter().enumerate() {
            let path = folder.join(format!("{}.nic", vm.name));
            let entry = add(&device, number).map_err(|source| NetworkError::Edit { vm: vm.name, source })?;
            let endpoint = Endpoint::Unix { path: path.clone(), owner: None, group: None, mode: 0o600 };
            let listens = Bound::bind(endpoint, None);
            let listens = listens.and_then(|bound| VhostListener::start(bound, Some(entry), &connections));
            let mut listener = listens.map_err(|source| NetworkError::Listen { vm: vm.name, source })?;
            listener.open();
            listeners.push(listener);
            paths.push(path);
        }
        Ok(Lab { _device: device, _listeners: listeners, paths })
    }
}

/// Adds a VM with its NIC to the thread of the uplink.
fn add(device: &Uplink, number: usize) -> Result<Entry<Net>, EditError> {
    let (vm, mac, generation) = (VMS[number].name.to_owned(), mac(number), VolumeGeneration::next());
    let nic = NicSpec {
        name: "eth0".to_owned(),
        generation,
        policy: Policy::default(),
        guard: Guard { mac: Some(mac), ..Guard::default() },
        vlan: None,
        mtu: 1500,
        receive_limit: None,
        receive_weight: Weight::DEFAULT,
        plug: NicPlug::VhostUser,
    };
    let volume = nic.name.clone();
    device.edit(vec![
        Edit::AddVm { vm: vm.clone(), policy: policy(number) },
        Edit::AddNic { vm: vm.clone(), nic: Box::new(nic) },
    ])?;
    let kind = Net { mac, mtu: 1500, pairs: 1, offloads: false };
    Ok(Entry { kind, vm, volume, generation, device: device.handle() })
}

/// Address of a VM, whose last byte is its number.
fn mac(number: usize) -> Mac {
    Mac([2, 0, 0, 0, 0, number as u8])
}

/// The threads of the guests.
struct Guests {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Result<(), ClientError>>>,
}

impl Guests {
    fn start(paths: &[PathBuf], stop: &Arc<AtomicBool>) -> io::Result<Guests> {
        let mut guests = Guests { stop: Arc::clone(stop), threads: Vec::new() };
        for (number, path) in paths.iter().enumerate() {
            let (path, stop) = (path.clone(), Arc::clone(stop));
            let name = format!("nic-{}", VMS[number].name);
            guests.threads.push(thread::Builder::new().name(name).spawn(move || send(&path, number, &stop))?);
        }
        Ok(guests)
    }

    fn finish(mut self) -> Result<(), NetworkError> {
        self.stop.store(true, Ordering::Relaxed);
        for (vm, thread) in VMS.iter().zip(self.threads.drain(..)) {
            let ended = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            ended.map_err(|source| NetworkError::Guest { vm: vm.name, source })?;
        }
        Ok(())
    }
}

impl Drop for Guests {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Keeps the ring of a guest full.
fn send(path: &Path, number: usize, stop: &AtomicBool) -> Result<(), ClientError> {
    let options = NetOptions { slots: SLOTS, buffers: 0, ..NetOptions::default() };
    let mut guest = NetClient::connect(path, &options)?;
    let frame = frame(number);
    let batch = [(&[0; HEADER_LEN][..], &frame[..]); SLOTS as usize];
    while !stop.load(Ordering::Relaxed) {
        guest.reclaim();
        guest.send(&batch)?;
        thread::sleep(PAUSE);
    }
    Ok(())
}

/// A frame to a station outside, of a protocol for experiments.
fn frame(number: usize) -> Vec<u8> {
    let mut frame = [&[2, 0, 0, 0, 0, 0xff][..], &mac(number).0, &[0x88, 0xb5]].concat();
    frame.resize(FRAME, 0);
    frame
}

/// Counts the frames that arrive at the other end of the link.
struct Counter {
    frames: Arc<[AtomicU64]>,
    ends: Arc<AtomicBool>,
}

impl Counter {
    fn start(far: UnixDatagram) -> io::Result<Counter> {
        far.set_read_timeout(Some(LOOK))?;
        let frames: Arc<[AtomicU64]> = VMS.iter().map(|_| AtomicU64::new(0)).collect();
        let ends = Arc::new(AtomicBool::new(false));
        let (counts, end) = (Arc::clone(&frames), Arc::clone(&ends));
        let numbers: BTreeMap<[u8; 6], usize> = (0..VMS.len()).map(|vm| (mac(vm).0, vm)).collect();
        thread::Builder::new().name("link".to_owned()).spawn(move || {
            let mut room = [0; HEADER_LEN + FRAME];
            while !end.load(Ordering::Relaxed) {
                let Ok(length) = far.recv(&mut room) else { continue };
                let source = room[..length].get(HEADER_LEN + 6..HEADER_LEN + 12).and_then(|mac| mac.try_into().ok());
                if let Some(vm) = source.and_then(|mac: [u8; 6]| numbers.get(&mac)) {
                    counts[*vm].fetch_add(1, Ordering::Relaxed);
                }
            }
        })?;
        Ok(Counter { frames, ends })
    }

    fn frames(&self) -> Vec<u64> {
        self.frames.iter().map(|count| count.load(Ordering::Relaxed)).collect()
    }
}

impl Drop for Counter {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
    }
}
