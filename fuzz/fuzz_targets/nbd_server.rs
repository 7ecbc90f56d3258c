//! Any bytes as requests to a real device thread, over a real socket. The thread must survive and free every request:
//! a second, valid client of the same VM finds its window open.
#![no_main]

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use sluice_fuzz_export::export;
use sluice_io::device::{Arrived, Device, VolumeGeneration};
use sluice_io::nbd::gateway::{Known, StartId};
use sluice_io::nbd::handshake::Negotiated;

#[path = "device.rs"]
mod sluice_fuzz_device;
#[path = "export.rs"]
mod sluice_fuzz_export;

fn device() -> &'static Device {
    static DEVICE: OnceLock<Device> = OnceLock::new();
    DEVICE.get_or_init(sluice_fuzz_device::device)
}

fn connect(structured_replies: bool, is_gateway: bool) -> UnixStream {
    let (ours, theirs) = UnixStream::pair().expect("sockets can be made");
    let known = || {
        let (gateway, vm) = ("g".to_owned(), ("vm".to_owned(), 0));
        Known { gateway, epoch: 1, vm, server: ("n".to_owned(), "d".to_owned()), start: StartId::default() }
    };
    let structured_replies = structured_replies && !is_gateway;
    let negotiated = Negotiated {
        export: export().name,
        structured_replies,
        base_allocation: structured_replies.then_some(1),
        block_size_requested: false,
        gateway: is_gateway.then(known),
    };
    let (vm, volume) = ("vm".to_owned(), "disk".to_owned());
    let socket = OwnedFd::from(theirs);
    let (generation, permit) = (VolumeGeneration::default(), Box::new(()));
    device().nbd().attach(Arrived {
        vm,
        volume,
        generation,
        socket,
        negotiated,
        offered: export().info,
        peer: "fuzz".to_owned(),
        handshake: Duration::ZERO,
        permit,
    });
    ours
}

fuzz_target!(|data: &[u8]| {
    let Some((first, requests)) = data.split_first() else { return };
    let mut bad = connect(first & 1 == 1, first & 2 == 2);
    let mut reader = bad.try_clone().expect("a socket can be cloned");
    let drain = thread::spawn(move || {
        let mut sink = Vec::new();
        let _ = reader.read_to_end(&mut sink);
    });
    let _ = bad.write_all(requests);
    let _ = bad.shutdown(Shutdown::Write);
    drain.join().expect("reading does not panic");

    // Flush: magic, flags, type 3, cookie, offset, length.
    let mut flush = [0u8; 28];
    flush[..4].copy_from_slice(&0x2560_9513u32.to_be_bytes());
    flush[7] = 3;
    let mut good = connect(false, false);
    good.write_all(&flush).expect("the server reads");
    let mut reply = [0u8; 16];
    good.read_exact(&mut reply).expect("the server answers");
    assert_eq!(reply[4..8], [0; 4], "a flush succeeds");
    let snapshot = device().snapshot().expect("the thread lives");
    assert_eq!(snapshot.restarts, 0, "nothing panicked");
});
