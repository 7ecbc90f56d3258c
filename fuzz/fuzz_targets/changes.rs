//! Any sequence of changes to a disk and to an uplink while sessions of VMMs are in any state: attach, detach, change of policies and
//! of a NIC, open, start, stop, disable, change the memory, close. No thread may panic, and nothing may be left when all is removed.
#![no_main]

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::sync::{Arc, OnceLock};

use libfuzzer_sys::fuzz_target;
use rustix::event::{EventfdFlags, eventfd};
use sluice_fuzz_device::device;
use sluice_fuzz_export::export;
use sluice_io::device::{Device, DeviceHandle, Edit, EditError, StoreSpec, VolumeGeneration, VolumeSpec, Window};
use sluice_io::reactor::Thread;
use sluice_io::uplink::link::{Link, tap};
use sluice_io::uplink::{self, NicPlug, NicSpec, Uplink, UplinkSpec};
use sluice_io::vhost_user::device_kind::Driver;
use sluice_io::vhost_user::memory::{self, Memory};
use sluice_io::vhost_user::session_handle::SessionHandle;
use sluice_io::virtio::queue::QueueSpec;
use sluice_net::{Guard, Mac};
use sluice_sched::{Policy, Weight, schedulers};
use tokio::runtime::Runtime;
use vm_memory::{Bytes, GuestAddress};

#[path = "device.rs"]
mod sluice_fuzz_device;
#[path = "export.rs"]
mod sluice_fuzz_export;

const ENTRIES: u16 = 16;
/// Bytes of memory for the rings of a queue.
const RING: u64 = 0x1000;
const MEMORY: usize = 0x1_0000;
const WINDOW: Window = Window { requests: 8, bytes: 1 << 20 };
/// VMs of each device, each with one volume or NIC. The first VM of the disk has another name, and stays.
const VMS: u8 = 2;

/// Each step waits for a device thread.
const STEPS_MAX: usize = 64;

struct Bench {
    disk: Device,
    uplink: Uplink,
    /// The far end of the uplink, which must stay open.
    _far: UnixDatagram,
    runtime: Runtime,
}

fn bench() -> &'static Bench {
    static BENCH: OnceLock<Bench> = OnceLock::new();
    BENCH.get_or_init(|| {
        let (near, far) = UnixDatagram::pair().expect("descriptors are left");
        for end in [&near, &far] {
            end.set_nonblocking(true).expect("a socket can do that");
        }
        let link: Arc<Link> = Arc::new(tap::of_socket(OwnedFd::from(near)));
        let scheduler = schedulers::find("mclock").expect("it is in the list");
        let uplink = Uplink::start(UplinkSpec::new("lan", scheduler, None, link), Box::new(|| ()));
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime needs nothing");
        Bench { disk: device(), uplink: uplink.expect("io_uring works here"), _far: far, runtime }
    })
}

/// What the device has of a port. A change adds nothing that is there already.
#[derive(Clone, Copy, PartialEq)]
enum State {
    Nothing,
    Vm,
    Port,
}

/// The thread that serves a port.
#[derive(Clone, Copy)]
enum Server {
    Disk(&'static Device),
    Uplink(&'static Uplink),
}

/// A volume or NIC, and the session of its VMM.
struct Port {
    server: Server,
    vm: String,
    number: u8,
    generation: VolumeGeneration,
    state: State,
    session: Option<SessionHandle>,
    memory: Arc<Memory>,
}

impl Port {
    fn new(server: Server, number: u8) -> Port {
        let memory = Arc::new(memory::unshared(&[(GuestAddress(0), MEMORY)]).expect("little memory"));
        let (vm, generation) = (format!("vm{number}"), VolumeGeneration::next());
        Port { server, vm, number, generation, state: State::Nothing, session: None, memory }
    }

    fn volume(&self) -> String {
        "port".to_owned()
    }

    fn nic(&self) -> Box<NicSpec> {
        Box::new(NicSpec {
            name: self.volume(),
            generation: self.generation,
            policy: Policy::default(),
            guard: Guard { mac: Some(Mac([2, 0, 0, 0, 0, self.number])), ..Guard::default() },
            vlan: None,
            mtu: 1500,
            receive_limit: None,
            receive_weight: Weight::DEFAULT,
            plug: NicPlug::VhostUser,
        })
    }

    fn handle(&self) -> DeviceHandle {
        match self.server {
            Server::Disk(device) => device.handle(),
            Server::Uplink(uplink) => uplink.handle(),
        }
    }

    fn edit_disk(&self, device: &Device, step: u8) -> Result<(), EditError> {
        let (vm, volume, policy) = (self.vm.clone(), self.volume(), Policy::default());
        device.edit(match step {
            0 => vec![Edit::AddVm { vm, policy, window: WINDOW }],
            1 => {
                let (name, generation, info) = (volume, self.generation, export().info);
                let volume = Box::new(VolumeSpec { name, generation, policy, store: StoreSpec::Null, info });
                vec![Edit::AddVolume { vm, volume }]
            }
            2 => vec![Edit::RemoveVolume { vm, volume }],
            3 => vec![Edit::RemoveVm { vm }],
            4 => vec![Edit::SetPolicies { vm, policy, window: WINDOW, volumes: vec![(volume, policy)] }],
            _ => Vec::new(),
        })
    }

    fn edit_uplink(&self, uplink: &Uplink, step: u8) -> Result<(), EditError> {
        use uplink::Edit;
        let (vm, nic, policy) = (self.vm.clone(), self.volume(), Policy::default());
        uplink.edit(match step {
            0 => vec![Edit::AddVm { vm, policy }],
            1 => vec![Edit::AddNic { vm, nic: self.nic() }],
            2 => vec![Edit::RemoveNic { vm, nic }],
            3 => vec![Edit::RemoveVm { vm }],
            4 => vec![Edit::SetPolicies { vm, policy, nics: vec![(nic, policy)] }],
            5 => vec![Edit::SetNic { vm, nic: self.nic() }],
            // Of these changes the last one fails.
            6 => vec![Edit::RemoveVm { vm: vm.clone() }, Edit::SetNic { vm, nic: self.nic() }],
            _ => Vec::new(),
        })
    }

    fn play(&mut self, runtime: &Runtime, step: u8, index: u16) {
        match step {
            0..=6 => self.edit(step),
            7 if self.session.is_none() => {
                let (vm, volume, handle) = (self.vm.clone(), self.volume(), self.handle());
                let opened = handle.open(&vm, &volume, self.generation, "fuzz".to_owned(), Box::new(()));
                self.session = runtime.block_on(opened).ok();
            }
            8 => self.session.take().into_iter().for_each(|session| runtime.block_on(session.close())),
            // It leaves without a word.
            9 => drop(self.session.take()),
            _ => self.ask(runtime, step, index),
        }
    }

    fn edit(&mut self, step: u8) {
        let after = match (step, self.state) {
            (0, State::Nothing) | (2, State::Port) => State::Vm,
            (1, State::Vm) => State::Port,
            (0 | 1, _) => return,
            (3, _) => State::Nothing,
            (6, _) if matches!(self.server, Server::Uplink(_)) => State::Nothing,
            (_, state) => state,
        };
        // A change of what is not there fails.
        let made = match self.server {
            Server::Disk(device) => self.edit_disk(device, step),
            Server::Uplink(uplink) => self.edit_uplink(uplink, step),
        };
        assert!(made.is_ok() || step == 6 || self.state != State::Port && step > 1, "{step}: {made:?}");
        self.state = after;
    }

    /// A message to an open session, which may have ended on the device thread.
    fn ask(&self, runtime: &Runtime, step: u8, index: u16) {
        let Some(session) = &self.session else { return };
        match step {
            10 => drop(runtime.block_on(session.start_queue(self.queue(index), Arc::clone(&self.memory), driver()))),
            11 => drop(runtime.block_on(session.enable_queue(index, false))),
            12 => drop(runtime.block_on(session.enable_queue(index, true))),
            13 => drop(runtime.block_on(session.set_memory(Arc::clone(&self.memory)))),
            // Without the rings.
            14 => {
                let other = memory::unshared(&[(GuestAddress(1 << 30), MEMORY)]).expect("little memory");
                drop(runtime.block_on(session.set_memory(Arc::new(other))));
            }
            _ => drop(runtime.block_on(session.stop_queue(index))),
        }
    }

    /// A queue with one available chain, which lies where the memory holds zeroes: a descriptor of length 0.
    fn queue(&self, index: u16) -> QueueSpec {
        let event = || eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).expect("descriptors are left");
        let ring = u64::from(index) * RING;
        self.memory.write_slice(&[0, 0, 1, 0, 0, 0], GuestAddress(ring + 0x400)).expect("it fits");
        QueueSpec {
            index,
            size: ENTRIES,
            descriptors: GuestAddress(ring),
            available: GuestAddress(ring + 0x400),
            used: GuestAddress(ring + 0x800),
            next_available: 0,
            event_index: false,
            kick: event(),
            call: Some(Arc::new(event())),
            error: Some(Arc::new(event())),
            log: None,
        }
    }
}

fn driver() -> Driver {
    Driver { features: 1 << 32, write_back: true }
}

fuzz_target!(|steps: &[u8]| {
    let Bench { disk, uplink, runtime, .. } = bench();
    let mut ports: Vec<Port> = Vec::new();
    for server in [Server::Disk(disk), Server::Uplink(uplink)] {
        ports.extend((1..=VMS).map(|number| Port::new(server, number)));
    }
    for pair in steps.chunks_exact(2).take(STEPS_MAX) {
        let port = usize::from(pair[1]) % ports.len();
        ports[port].play(runtime, pair[0] & 15, u16::from(pair[1] >> 4) % 4);
    }
    for port in &mut ports {
        port.play(runtime, 9, 0);
        port.play(runtime, 3, 0);
    }
    let threads: [(&Thread, usize); 2] = [(disk, 1), (uplink, 0)];
    for (device, vms) in threads {
        // What sessions have left ends with the next iterations.
        let snapshot = loop {
            let snapshot = device.snapshot().expect("the thread lives");
            if snapshot.connections == 0 && snapshot.in_flight == 0 {
                break snapshot;
            }
        };
        assert_eq!((snapshot.restarts, snapshot.vms.len()), (0, vms), "nothing panicked, nothing is left");
    }
});
