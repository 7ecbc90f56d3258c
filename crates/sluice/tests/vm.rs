//! Linux guests with disks over vhost-user-blk, under QEMU. They run one at a time, because each needs the whole machine.

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use common::guest::Guest;
use common::guest::machine::{Disk, Machine};
use common::{MIB, Place, Running, start, tool, until};

mod common;

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

/// QEMU's storage daemon with an image behind vhost-user-blk.
fn other_server(place: &Place, name: &str, size_bytes: u64) -> (Running, PathBuf) {
    let (image, socket) = (place.image(&format!("{name}.img"), size_bytes), place.socket(name));
    let mut server = tool("qemu-storage-daemon", "qemu-system-common");
    server.args(["--blockdev", &format!("driver=file,filename={},node-name=n,discard=unmap", image.display())]);
    let export = "vhost-user-blk,id=e,node-name=n,writable=on,num-queues=2,addr.type=unix";
    server.args(["--export", &format!("{export},addr.path={}", socket.display())]);
    let server = start(&mut server);
    until("its socket is there", || socket.exists());
    (server, socket)
}

/// What the other tests build on, without anything of ours behind it: scripts, disks, queues, reset and reboot.
#[test]
fn guests_work_with_another_server() {
    let _alone = alone();
    let place = Place::new();
    let (_first, first) = other_server(&place, "first", 16 * MIB);
    let (_second, second) = other_server(&place, "second", 24 * MIB);
    let guest = Guest::boot(Machine::new([Disk { queues: 2, ..Disk::new(first) }, Disk::new(second)]));
    assert_eq!((guest.size_bytes("vda"), guest.size_bytes("vdb")), (16 * MIB, 24 * MIB));
    assert_eq!(guest.sh("ls /sys/block/vda/mq | wc -l; ls /sys/block/vdb/mq | wc -l"), "2\n1\n");
    let failed = guest.run("echo no; exit 7");
    assert_eq!((failed.status, failed.text.as_str()), (7, "no\n"));
    let waits = guest.start("until [ -e /run/go ]; do usleep 10000; done; echo went");
    guest.sh("dd if=/dev/urandom of=/dev/vdb bs=1M count=4 oflag=direct && touch /run/go");
    assert_eq!(guest.finish(waits).ok(), "went\n");
    let sum = guest.sh("head -c 4194304 /dev/vdb | sha256sum");
    let seen = guest.requests("vdb");
    guest.reboot();
    assert!(guest.requests("vdb") < seen, "it counts anew");
    assert_eq!(guest.sh("head -c 4194304 /dev/vdb | sha256sum"), sum);
    guest.reset();
    assert_eq!(guest.sh("head -c 4194304 /dev/vdb | sha256sum"), sum);
}
