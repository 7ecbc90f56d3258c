//! Any bytes as the rings and data of a guest's NIC, at a real uplink thread: chains of the transmit queue and buffers of the
//! receive queue, while frames arrive. The thread must survive, give every frame back, and stay within guest memory. A restarted
//! queue is served.
#![no_main]

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::sync::{Arc, OnceLock};

use libfuzzer_sys::fuzz_target;
use rustix::event::{EventfdFlags, eventfd};
use sluice_io::device::VolumeGeneration;
use sluice_io::uplink::link::{Link, tap};
use sluice_io::uplink::{Edit, NicPlug, NicSpec, Uplink, UplinkSpec};
use sluice_io::vhost_user::device_kind::{DeviceKind as _, Driver};
use sluice_io::vhost_user::memory::{self, Memory};
use sluice_io::vhost_user::net::Net;
use sluice_io::vhost_user::session_handle::SessionHandle;
use sluice_io::virtio::queue::QueueSpec;
use sluice_net::{Guard, HEADER_LEN, Mac};
use sluice_sched::{Policy, Weight, schedulers};
use vm_memory::{Bytes, GuestAddress};

const ENTRIES: u16 = 16;
const RECEIVE: u16 = 0;
const TRANSMIT: u16 = 1;
/// Descriptor table, available ring and used ring of a queue, behind one another for each queue.
const PARTS: [u64; 3] = [0, 0x100, 0x180];
const RING: u64 = 0x400;
/// Two regions with a border inside the range that descriptors name, and nothing after them.
const BORDER: u64 = 0x8000;
const END: u64 = 0x1_0000;
/// The addresses of the NICs are locked, so that the switch has no state that lets a later frame arrive elsewhere.
const GUEST: Mac = Mac([2, 0, 0, 0, 0, 1]);
const NEIGHBOUR: Mac = Mac([2, 0, 0, 0, 0, 2]);
/// A frame that is sent last.
const LAST: &[u8] = b"\x02\0\0\0\0\x63\x02\0\0\0\0\x01\x88\xb5 the last frame of a guest that is served again..";

struct Bench {
    device: Uplink,
    /// The far ends of the uplink and of a neighbour's TAP.
    far: UnixDatagram,
    tap: UnixDatagram,
    runtime: tokio::runtime::Runtime,
}

fn link() -> (Arc<Link>, UnixDatagram) {
    let (near, far) = UnixDatagram::pair().expect("descriptors are left");
    for end in [&near, &far] {
        end.set_nonblocking(true).expect("a socket can do that");
    }
    (Arc::new(tap::of_socket(OwnedFd::from(near))), far)
}

fn bench() -> &'static Bench {
    static BENCH: OnceLock<Bench> = OnceLock::new();
    BENCH.get_or_init(|| {
        let (interface, far) = link();
        let (neighbour, tap) = link();
        let scheduler = schedulers::find("mclock").expect("it is in the list");
        let device = Uplink::start(UplinkSpec::new("lan", scheduler, None, interface), Box::new(|| ()));
        let device = device.expect("io_uring works here");
        let nic = |mac, plug| NicSpec {
            name: "eth0".to_owned(),
            generation: VolumeGeneration::default(),
            policy: Policy::default(),
            guard: Guard { mac: Some(mac), ..Guard::default() },
            vlan: None,
            mtu: u16::MAX,
            receive_limit: None,
            receive_weight: Weight::DEFAULT,
            plug,
        };
        let nics = [("vm", nic(GUEST, NicPlug::VhostUser)), ("neighbour", nic(NEIGHBOUR, NicPlug::Tap(neighbour)))];
        for (vm, nic) in nics.map(|(vm, nic)| (vm.to_owned(), Box::new(nic))) {
            let added = Edit::AddVm { vm: vm.clone(), policy: Policy::default() };
            device.edit(vec![added, Edit::AddNic { vm, nic }]).expect("it fits");
        }
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime needs nothing");
        Bench { device, far, tap, runtime }
    })
}

fn start(session: &SessionHandle, memory: &Arc<Memory>, index: u16, (features, event_index): (u64, bool)) -> OwnedFd {
    let event = || eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).expect("descriptors are left");
    let kick = event();
    let [descriptors, available, used] = PARTS.map(|part| GuestAddress(u64::from(index) * RING + part));
    let queue = QueueSpec {
        index,
        size: ENTRIES,
        descriptors,
        available,
        used,
        next_available: 0,
        event_index,
        kick: kick.try_clone().expect("descriptors are left"),
        call: Some(Arc::new(event())),
        error: Some(Arc::new(event())),
        log: None,
    };
    let driver = Driver { features, write_back: false };
    bench().runtime.block_on(session.start_queue(queue, Arc::clone(memory), driver)).expect("the rings lie in memory");
    kick
}

fn kick(kick: &OwnedFd) {
    rustix::io::write(kick, &1u64.to_ne_bytes()).expect("an eventfd takes a kick");
}

/// Reads what has arrived. Returns whether the last frame is among it.
fn drain(socket: &UnixDatagram) -> bool {
    let mut room = vec![0; 70_000];
    let mut found = false;
    while let Ok(length) = socket.recv(&mut room) {
        found |= &room[HEADER_LEN..length] == LAST;
    }
    found
}

/// Lets the thread run two iterations or more.
fn settle() {
    let Bench { device, far, tap, .. } = bench();
    for _ in 0..3 {
        device.snapshot().expect("the thread lives");
        drain(far);
        drain(tap);
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((&first, bytes)) = data.split_first() else { return };
    let Bench { device, far, tap, runtime } = bench();
    let ranges = [(GuestAddress(0), BORDER as usize), (GuestAddress(BORDER), (END - BORDER) as usize)];
    let memory: Arc<Memory> = Arc::new(memory::unshared(&ranges).expect("little memory"));
    memory.write_slice(&bytes[..bytes.len().min(END as usize)], GuestAddress(0)).expect("it fits");
    // The used rings belong to the device from the start. The guest's indices are part of the input, valid or not.
    for ring in [RECEIVE, TRANSMIT] {
        memory.write_slice(&[0; 8], GuestAddress(u64::from(ring) * RING + PARTS[2])).expect("it fits");
    }
    let handle = device.handle();
    let opened = handle.open("vm", "eth0", VolumeGeneration::default(), "fuzz".to_owned(), Box::new(()));
    let session = runtime.block_on(opened).expect("the NIC is there");
    let offered = Net { mac: GUEST, mtu: u16::MAX, pairs: 1, offloads: first & 2 == 0 }.features();
    // Without mergeable buffers, and without version 1.
    let features = offered & !(u64::from(first & 4 != 0) << 15) & !(u64::from(first & 8 != 0) << 32);
    let kicks = [RECEIVE, TRANSMIT].map(|index| start(&session, &memory, index, (features, first & 1 == 1)));
    // The input from its end is a frame for the guest too, and one with an offload header.
    let end = &bytes[bytes.len().saturating_sub(2000)..];
    for header in [&[0; HEADER_LEN][..], &[]] {
        let _ = far.send(&[header, &GUEST.0, end].concat());
        let _ = tap.send(&[header, &GUEST.0, &NEIGHBOUR.0, end].concat());
    }
    kicks.iter().for_each(kick);
    settle();
    if first & 16 != 0 {
        runtime.block_on(session.enable_queue(TRANSMIT, false)).expect("the thread lives");
        runtime.block_on(session.set_memory(Arc::clone(&memory))).expect("the rings are where they were");
        runtime.block_on(session.enable_queue(TRANSMIT, true)).expect("the thread lives");
        kicks.iter().for_each(kick);
        settle();
    }
    for ring in [TRANSMIT, RECEIVE] {
        runtime.block_on(session.stop_queue(ring)).expect("the thread lives");
    }

    let mut chain = [0; 16];
    chain[..8].copy_from_slice(&0x4000u64.to_le_bytes());
    chain[8] = (HEADER_LEN + LAST.len()) as u8;
    memory.write_slice(&chain, GuestAddress(RING)).expect("it fits");
    memory.write_slice(&[&[0; HEADER_LEN], LAST].concat(), GuestAddress(0x4000)).expect("it fits");
    memory.write_slice(&[0; 8], GuestAddress(RING + PARTS[2])).expect("it fits");
    memory.write_slice(&[0, 0, 1, 0, 0, 0], GuestAddress(RING + PARTS[1])).expect("it fits");
    let last = start(&session, &memory, TRANSMIT, (offered, false));
    kick(&last);
    // If it never arrives, the target hangs here, which is detected.
    while !drain(far) {
        std::thread::yield_now();
    }
    assert_eq!(runtime.block_on(session.stop_queue(TRANSMIT)), Ok(1), "the frame was sent once");
    runtime.block_on(session.close());
    settle();
    let snapshot = device.snapshot().expect("the thread lives");
    let outstanding: u32 = snapshot.vms.iter().map(|vm| vm.outstanding).sum();
    assert_eq!((snapshot.restarts, snapshot.in_flight, outstanding), (0, 0, 0), "nothing panicked, nothing is left");
});
