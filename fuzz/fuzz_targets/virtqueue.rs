//! Any bytes as descriptor table, available ring and data of a guest, at a real device thread. The thread must
//! survive, free every request, and stay within guest memory. A restarted queue is served.
#![no_main]

use std::sync::{Arc, OnceLock};

use libfuzzer_sys::fuzz_target;
use rustix::event::{EventfdFlags, eventfd};
use sluice_fuzz_device::device;
use sluice_io::device::{Device, VolumeGeneration};
use sluice_io::vhost_user::device_kind::Driver;
use sluice_io::vhost_user::memory::{self, Memory};
use sluice_io::vhost_user::session_handle::SessionHandle;
use sluice_io::virtio::queue::QueueSpec;
use vm_memory::{Bytes, GuestAddress};

#[path = "device.rs"]
mod sluice_fuzz_device;
#[path = "export.rs"]
mod sluice_fuzz_export;

const ENTRIES: u16 = 16;
const TABLE: GuestAddress = GuestAddress(0);
const AVAILABLE: GuestAddress = GuestAddress(0x100);
const USED: GuestAddress = GuestAddress(0x1000);
/// Two regions with a border inside the range that descriptors name, and nothing after them.
const BORDER: u64 = 0x8000;
const END: u64 = 0x1_0000;

struct Bench {
    device: Device,
    runtime: tokio::runtime::Runtime,
}

fn bench() -> &'static Bench {
    static BENCH: OnceLock<Bench> = OnceLock::new();
    BENCH.get_or_init(|| Bench {
        device: device(),
        runtime: tokio::runtime::Builder::new_current_thread().build().expect("a runtime needs nothing"),
    })
}

fn start(session: &SessionHandle, memory: &Arc<Memory>, event_index: bool) -> std::os::fd::OwnedFd {
    let event = || eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).expect("descriptors are left");
    let kick = event();
    let queue = QueueSpec {
        index: 0,
        size: ENTRIES,
        descriptors: TABLE,
        available: AVAILABLE,
        used: USED,
        next_available: 0,
        event_index,
        kick: kick.try_clone().expect("descriptors are left"),
        call: Some(Arc::new(event())),
        error: Some(Arc::new(event())),
        log: None,
    };
    let driver = Driver { features: 0, write_back: !event_index };
    bench().runtime.block_on(session.start_queue(queue, Arc::clone(memory), driver)).expect("the rings lie in memory");
    kick
}

fuzz_target!(|data: &[u8]| {
    let Some((first, bytes)) = data.split_first() else { return };
    let Bench { device, runtime } = bench();
    let ranges = [(GuestAddress(0), BORDER as usize), (GuestAddress(BORDER), (END - BORDER) as usize)];
    let memory: Arc<Memory> = Arc::new(memory::unshared(&ranges).expect("little memory"));
    let len = bytes.len().min(END as usize);
    memory.write_slice(&bytes[..len], TABLE).expect("it fits");
    // The used ring belongs to the device from the start. The guest's index is part of the input, valid or not.
    memory.write_slice(&[0; 8], USED).expect("it fits");
    let opened = runtime.block_on(device.handle().open(
        "vm",
        "disk",
        VolumeGeneration::default(),
        "fuzz".to_owned(),
        Box::new(()),
    ));
    let session = opened.expect("the volume is there");
    let kick = start(&session, &memory, first & 1 == 1);
    rustix::io::write(&kick, &1u64.to_ne_bytes()).expect("an eventfd takes a kick");
    runtime.block_on(session.stop_queue(0)).expect("the thread lives");

    // A flush: header, status.
    let mut flush = [0; 48];
    flush[..8].copy_from_slice(&0x2000u64.to_le_bytes());
    flush[8..16].copy_from_slice(&[16, 0, 0, 0, 1, 0, 1, 0]);
    flush[16..24].copy_from_slice(&0x3000u64.to_le_bytes());
    flush[24..32].copy_from_slice(&[1, 0, 0, 0, 2, 0, 0, 0]);
    memory.write_slice(&flush, TABLE).expect("it fits");
    memory.write_slice(&[4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], GuestAddress(0x2000)).expect("it fits");
    memory.write_obj(0xffu8, GuestAddress(0x3000)).expect("it fits");
    memory.write_slice(&[0; 8], USED).expect("it fits");
    memory.write_slice(&[0, 0, 1, 0, 0, 0], AVAILABLE).expect("it fits");
    let kick = start(&session, &memory, false);
    rustix::io::write(&kick, &1u64.to_ne_bytes()).expect("an eventfd takes a kick");
    // A stopping queue may return the request to the ring. If it never completes, the target hangs here, which is
    // detected.
    let used = || memory.read_obj::<u16>(GuestAddress(USED.0 + 2)).expect("it is there");
    while used() == 0 {
        std::thread::yield_now();
    }
    let base = runtime.block_on(session.stop_queue(0)).expect("the thread lives");
    let status: u8 = memory.read_obj(GuestAddress(0x3000)).expect("it is there");
    assert_eq!((base, used(), status), (1, 1, 0), "a flush succeeds");
    runtime.block_on(session.close());
    let snapshot = device.snapshot().expect("the thread lives");
    assert_eq!((snapshot.restarts, snapshot.vms[0].outstanding), (0, 0), "nothing panicked, nothing is left");
});
