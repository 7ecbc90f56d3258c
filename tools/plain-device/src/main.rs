//! A vhost-user-blk device that completes every request immediately and stores nothing.
//!
//! The baseline of `cargo xtask bench vhost`: the common vhost crates with their own connection handler, and no
//! scheduler. It makes only the checks that the protocol needs.
//!
//! ```text
//! plain-device SOCKET QUEUES          one device, a thread for each queue
//! plain-device --one-thread SOCKET... a device with one queue at each socket, and one thread for all of them
//! ```

#![forbid(unsafe_code)]

mod echo;

use std::io;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use vhost::vhost_user::Listener;
use vhost::vhost_user::message::{VhostUserProtocolFeatures, VhostUserVirtioFeatures};
use vhost_user_backend::{VhostUserBackend, VhostUserDaemon, VringRwLock, VringT};
use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_F_BLK_SIZE, VIRTIO_BLK_F_FLUSH, VIRTIO_BLK_F_MQ, VIRTIO_BLK_F_SEG_MAX, VIRTIO_BLK_S_IOERR,
    VIRTIO_BLK_S_OK, VIRTIO_BLK_S_UNSUPP, VIRTIO_BLK_T_FLUSH, VIRTIO_BLK_T_IN, VIRTIO_BLK_T_OUT,
};
use virtio_bindings::virtio_config::VIRTIO_F_VERSION_1;
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};
use virtio_queue::{QueueOwnedT, desc::split::Descriptor};
use vm_memory::{Bytes, GuestAddress, GuestAddressSpace, GuestMemory, GuestMemoryAtomic, GuestMemoryMmap, Permissions};
use vmm_sys_util::epoll::EventSet;
use vmm_sys_util::event::{EventConsumer, EventFlag, EventNotifier, new_event_consumer_and_notifier};

use echo::Echo;

type Memory = GuestMemoryAtomic<GuestMemoryMmap<()>>;

/// Capacity in sectors: 1 GiB.
const CAPACITY: u64 = 1 << 21;
const QUEUE_SIZE_MAX: usize = 1024;
const SEGMENTS_MAX: u32 = 126;
/// Size of the configuration space, in bytes.
const CONFIG_LEN: usize = 60;

/// Number of sessions that were started.
static SESSIONS: AtomicU64 = AtomicU64::new(0);

/// The thread that answers a queue.
#[derive(Clone)]
enum Answering {
    /// Its own.
    Each,
    /// That of all devices.
    One(Arc<Echo>),
}

struct Plain {
    memory: Memory,
    queues: usize,
    answering: Answering,
    session: u64,
    /// Whether the thread of all devices answers the only queue.
    has_started: AtomicBool,
    event_index: AtomicBool,
    exits: Vec<Mutex<Option<(EventConsumer, EventNotifier)>>>,
}

impl Plain {
    /// Completes all available requests.
    fn serve(&self, vring: &VringRwLock<Memory>) -> io::Result<()> {
        let memory = self.memory.memory();
        let mut vring = vring.get_mut();
        let mut answered = false;
        while let Some(chain) = vring.get_queue_mut().iter(memory.clone()).map_err(io::Error::other)?.next() {
            let head = chain.head_index();
            let written = answer(&memory, chain);
            vring.add_used(head, written).map_err(io::Error::other)?;
            answered = true;
        }
        if answered && vring.needs_notification().map_err(io::Error::other)? {
            vring.signal_used_queue()?;
        }
        Ok(())
    }
}

/// Completes one request. Returns the number of bytes written for the guest.
fn answer(memory: &GuestMemoryMmap<()>, chain: impl Iterator<Item = Descriptor>) -> u32 {
    let (mut header, mut last, mut len, mut inside) = (None, None, 0u64, true);
    for piece in chain {
        if header.is_none() {
            header = Some(piece);
        } else if let Some(data) = last.replace(piece) {
            len += u64::from(data.len());
            inside &= memory.check_range(data.addr(), data.len() as usize, Permissions::ReadWrite);
        }
    }
    let (Some(header), Some(last)) = (header, last) else { return 0 };
    if !last.is_write_only() {
        return 0;
    }
    let kind: u32 = memory.read_obj(header.addr()).unwrap_or(u32::MAX);
    let sector: u64 = memory.read_obj(GuestAddress(header.addr().0.wrapping_add(8))).unwrap_or(u64::MAX);
    let fits = inside && sector.checked_add(len / 512).is_some_and(|end| end <= CAPACITY);
    let status = match kind {
        VIRTIO_BLK_T_IN | VIRTIO_BLK_T_OUT if fits => VIRTIO_BLK_S_OK,
        VIRTIO_BLK_T_IN | VIRTIO_BLK_T_OUT => VIRTIO_BLK_S_IOERR,
        VIRTIO_BLK_T_FLUSH => VIRTIO_BLK_S_OK,
        _ => VIRTIO_BLK_S_UNSUPP,
    };
    if memory.write_obj(status as u8, last.addr()).is_err() {
        return 0;
    }
    if kind == VIRTIO_BLK_T_IN { len as u32 + 1 } else { 1 }
}

impl VhostUserBackend for Plain {
    type Bitmap = ();
    type Vring = VringRwLock<Memory>;

    fn num_queues(&self) -> usize {
        self.queues
    }

    fn max_queue_size(&self) -> usize {
        QUEUE_SIZE_MAX
    }

    fn features(&self) -> u64 {
        let bits = [
            VIRTIO_F_VERSION_1,
            VIRTIO_RING_F_EVENT_IDX,
            VIRTIO_RING_F_INDIRECT_DESC,
            VIRTIO_BLK_F_SEG_MAX,
            VIRTIO_BLK_F_BLK_SIZE,
            VIRTIO_BLK_F_FLUSH,
            VIRTIO_BLK_F_MQ,
        ];
        bits.iter().fold(VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits(), |all, bit| all | 1 << bit)
    }

    fn protocol_features(&self) -> VhostUserProtocolFeatures {
        VhostUserProtocolFeatures::CONFIG
            | VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::REPLY_ACK
            | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS
    }

    fn set_event_idx(&self, enabled: bool) {
        self.event_index.store(enabled, Ordering::Relaxed);
    }

    fn get_config(&self, offset: u32, size: u32) -> Vec<u8> {
        let mut space = [0; CONFIG_LEN];
        space[..8].copy_from_slice(&CAPACITY.to_le_bytes());
        space[12..16].copy_from_slice(&SEGMENTS_MAX.to_le_bytes());
        space[20..24].copy_from_slice(&512u32.to_le_bytes());
        space[34..36].copy_from_slice(&(self.queues as u16).to_le_bytes());
        space.into_iter().chain(std::iter::repeat(0)).skip(offset as usize).take(size as usize).collect()
    }

    fn update_memory(&self, _memory: Memory) -> io::Result<()> {
        Ok(())
    }

    fn queues_per_thread(&self) -> Vec<u64> {
        (0..self.queues).map(|queue| 1 << queue).collect()
    }

    fn exit_event(&self, thread: usize) -> Option<(EventConsumer, EventNotifier)> {
        self.exits[thread].lock().expect("nobody panics with it").take()
    }

    fn handle_event(
        &self,
        event: u16,
        _set: EventSet,
        vrings: &[VringRwLock<Memory>],
        _thread: usize,
    ) -> io::Result<()> {
        let vring = &vrings[usize::from(event)];
        if let Answering::One(echo) = &self.answering {
            // The front end kicks again whenever its index passes the one that it last kicked for.
            if !self.has_started.swap(true, Ordering::Relaxed) {
                vring.disable_notification().map_err(io::Error::other)?;
                echo.add(self.session, vring, &self.memory);
            }
            return Ok(());
        }
        if !self.event_index.load(Ordering::Relaxed) {
            return self.serve(vring);
        }
        loop {
            vring.disable_notification().map_err(io::Error::other)?;
            self.serve(vring)?;
            if !vring.enable_notification().map_err(io::Error::other)? {
                return Ok(());
            }
        }
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["--one-thread", sockets @ ..] if !sockets.is_empty() => {
            let answering = Answering::One(Echo::start());
            std::thread::scope(|scope| {
                for socket in sockets {
                    scope.spawn(|| serve(socket, 1, &answering));
                }
            });
        }
        [socket, queues] => match queues.parse() {
            Ok(queues) => serve(socket, queues, &Answering::Each),
            Err(error) => eprintln!("{queues}: {error}"),
        },
        _ => eprintln!("usage: plain-device SOCKET QUEUES | plain-device --one-thread SOCKET..."),
    }
    ExitCode::FAILURE
}

/// Serves one front end after another, until the process is killed or the socket cannot be made.
fn serve(socket: &str, queues: usize, answering: &Answering) {
    let mut listener = match Listener::new(socket, true) {
        Ok(listener) => listener,
        Err(error) => return eprintln!("{socket}: {error}"),
    };
    loop {
        let memory = Memory::new(GuestMemoryMmap::new());
        let exit = || Mutex::new(new_event_consumer_and_notifier(EventFlag::NONBLOCK).ok());
        let session = SESSIONS.fetch_add(1, Ordering::Relaxed);
        let device = Plain {
            memory: memory.clone(),
            queues,
            answering: answering.clone(),
            session,
            has_started: AtomicBool::new(false),
            event_index: AtomicBool::new(false),
            exits: (0..queues).map(|_| exit()).collect(),
        };
        let daemon = VhostUserDaemon::new("plain-device".to_owned(), Arc::new(device), memory);
        // The crate reports a disconnected front end as an error, which ends only this daemon object.
        let served = daemon.map_err(|error| error.to_string()).and_then(|mut daemon| {
            daemon.start(&mut listener).map_err(|error| error.to_string())?;
            daemon.wait().map_err(|error| error.to_string())
        });
        if let Answering::One(echo) = answering {
            echo.end(session);
        }
        if let Err(error) = served {
            eprintln!("{error}");
        }
    }
}
