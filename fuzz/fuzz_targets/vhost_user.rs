//! Any messages, with any descriptors, to a session on a real socket in front of a real device thread. The session
//! must end when its VMM disconnects and free all resources. Nothing may panic, and a valid VMM is served afterwards.
//!
//! Format of an input: a list of records of request, flags (bit 0: acknowledgement requested; bits 1 to 4:
//! descriptors; bit 5: wrong length; bits 6 and 7: by how much, or how often the session is polled before the next
//! message), length of the payload (2 bytes), payload. The whole input is also the content of guest memory.
#![no_main]

use std::io::{IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream as StdStream;
use std::sync::{Arc, OnceLock};

use libfuzzer_sys::fuzz_target;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use sluice_fuzz_device::device;
use sluice_fuzz_export::export;
use sluice_io::device::{Device, VolumeGeneration};
use sluice_io::vhost_user::blk::Blk;
use sluice_io::vhost_user::counts::Counts;
use sluice_io::vhost_user::session::{Bounds, Entry, serve};
use tokio::net::UnixStream;
use tokio::sync::watch;

#[path = "device.rs"]
mod sluice_fuzz_device;
#[path = "export.rs"]
mod sluice_fuzz_export;

/// Size of guest memory, in bytes.
const MEMORY_LEN: u64 = 64 << 10;
/// Maximum number of records of an input, whose replies fit into the socket.
const RECORDS_MAX: usize = 200;

struct Bench {
    device: Device,
    runtime: tokio::runtime::Runtime,
}

fn bench() -> &'static Bench {
    static BENCH: OnceLock<Bench> = OnceLock::new();
    BENCH.get_or_init(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        Bench { device: device(), runtime: runtime.expect("a runtime needs little") }
    })
}

/// Descriptors that a VMM may pass.
struct Descriptors {
    kick: OwnedFd,
    memory: OwnedFd,
    log: OwnedFd,
    socket: OwnedFd,
    file: OwnedFd,
}

impl Descriptors {
    fn new(data: &[u8]) -> Self {
        let memfd = |len| {
            let file = memfd_create("fuzz", MemfdFlags::CLOEXEC).expect("descriptors are left");
            ftruncate(&file, len).expect("memory is left");
            file
        };
        let memory = memfd(MEMORY_LEN);
        let _ = rustix::io::pwrite(&memory, &data[..data.len().min(MEMORY_LEN as usize)], 0);
        Descriptors {
            kick: eventfd(0, EventfdFlags::CLOEXEC).expect("descriptors are left"),
            memory,
            log: memfd(4096),
            socket: StdStream::pair().expect("descriptors are left").0.into(),
            file: std::fs::File::open("/dev/null").expect("it is there").into(),
        }
    }

    fn chosen(&self, number: u8) -> Vec<BorrowedFd<'_>> {
        let Descriptors { kick, memory, log, socket, file } = self;
        let [kick, memory, log, socket, file] = [kick, memory, log, socket, file].map(|one| one.as_fd());
        match number {
            0 => vec![],
            1 => vec![kick],
            2 => vec![memory],
            3 => vec![memory, memory],
            4 => vec![log],
            5 => vec![socket],
            6 => vec![file],
            7 => vec![kick, memory, log, socket, file],
            _ => vec![file; usize::from(number) * 3],
        }
    }
}

fn send(socket: &StdStream, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> bool {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    let sent = sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    sent.is_ok_and(|sent| sent == bytes.len())
}

/// Sends the messages of an input, and polls the session in between.
async fn send_all(socket: &StdStream, data: &[u8], descriptors: &Descriptors) {
    let mut rest = data;
    for _ in 0..RECORDS_MAX {
        let [request, flags, low, high, after @ ..] = rest else { return };
        let len = usize::from(u16::from_le_bytes([*low, *high])).min(after.len());
        let (payload, after) = after.split_at(len);
        rest = after;
        let lies = flags >> 5 & 1 == 1;
        let told = if lies { len + usize::from(flags >> 6) + 1 } else { len };
        let header = [u32::from(*request), 1 | u32::from(flags & 1) << 3, told as u32].map(u32::to_ne_bytes);
        let message = [header.as_flattened(), payload].concat();
        if !send(socket, &message, &descriptors.chosen(flags >> 1 & 15)) {
            return;
        }
        for _ in 0..if lies { 0 } else { flags >> 6 } {
            tokio::task::yield_now().await;
        }
    }
}

/// Serves messages while they are sent, until no more can be sent.
fn session(
    entry: &watch::Receiver<Option<Entry>>,
    theirs: StdStream,
    ours: &StdStream,
    sent: impl Future<Output = ()>,
) {
    theirs.set_nonblocking(true).expect("it is a socket");
    bench().runtime.block_on(async {
        let stream = Arc::new(UnixStream::from_std(theirs).expect("it does not block"));
        let served = serve(stream, entry.clone(), Box::new(()), Arc::new(Counts::default()), Arc::new(Bounds::new()));
        let sent = async {
            sent.await;
            // The session may have ended because of a protocol violation.
            let _ = ours.shutdown(std::net::Shutdown::Write);
        };
        let _ = tokio::join!(served, sent);
    });
}

fuzz_target!(|data: &[u8]| {
    let device = &bench().device;
    let (vm, volume) = ("vm".to_owned(), "disk".to_owned());
    let generation = VolumeGeneration::default();
    let kind = Blk { info: export().info, queues: 2 };
    let entry = Entry { kind, vm, volume, generation, device: device.handle() };
    let (_entry, offered) = watch::channel(Some(entry));
    let descriptors = Descriptors::new(data);
    let (ours, theirs) = StdStream::pair().expect("descriptors are left");
    session(&offered, theirs, &ours, send_all(&ours, data, &descriptors));
    drop((ours, descriptors));

    let (mut ours, theirs) = StdStream::pair().expect("descriptors are left");
    let get_features = [1u32, 1, 0].map(u32::to_ne_bytes);
    session(&offered, theirs, &ours, async {
        assert!(send(&ours, get_features.as_flattened(), &[]));
    });
    let mut answer = Vec::new();
    ours.read_to_end(&mut answer).expect("it has been answered");
    assert_eq!(answer.len(), 20, "features");
    let snapshot = device.snapshot().expect("the thread lives");
    assert_eq!((snapshot.restarts, snapshot.vms[0].outstanding), (0, 0), "nothing panicked, nothing is left");
});
