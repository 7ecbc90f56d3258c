//! Linux guests with disks over vhost-user-blk, under QEMU. They run one at a time, because each needs the whole
//! machine.
//!
//! The guests are emulated, so the tests show nothing about speed. They check that data stay intact whatever happens
//! to the guest, the daemon and the host file.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::common::guest::Guest;
use crate::common::guest::machine::{Disk, Machine};
use crate::common::slots::{self, SECOND_NS, Slot};
use crate::common::{Daemon, MIB, Place, Running, run, sluice, start, tool, until};
use serde_json::{Value, json};

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns a volume over vhost-user-blk on `disk`, with more lines of its table.
fn volume(place: &Place, vm: &str, volume: &str, source: &Path, lines: &str) -> String {
    let (source, socket) = (source.display(), place.volume_socket(vm, volume));
    format!(
        "[vm.{vm}.volume.{volume}]\ndevice = \"disk\"\nsource = \"{source}\"\n\
         export = {{ type = \"vhost-user-blk\", socket = \"{}\", queues = 4 }}\n{lines}\n",
        socket.display()
    )
}

fn disk(place: &Place, vm: &str, volume: &str) -> Disk {
    Disk::new(place.volume_socket(vm, volume))
}

/// Returns QEMU's arguments for the volumes of a VM in the served host file.
fn exported(place: &Place, vm: &str) -> Vec<String> {
    let printed = run(sluice().args(["-o", "json", "export", "qemu-args", vm]).arg(place.file("host.toml"))).ok();
    let printed: Value = serde_json::from_str(&printed).unwrap();
    printed["arguments"].as_array().unwrap().iter().map(|word| word.as_str().unwrap().to_owned()).collect()
}

/// Returns an fio command for a whole disk in a guest, with short output.
fn fio(disk: &str, options: &str) -> String {
    format!(
        "cd /tmp && fio --name=load --filename=/dev/{disk} --ioengine=libaio --direct=1 --thread \
         --output-format=terse {options}"
    )
}

/// Returns an fio command that writes a part of a disk and reads it back, repeatedly until [`ENOUGH`]. So there is
/// load on each disk, even if one is far ahead of another.
fn verified_until_enough(disk: &str) -> String {
    // Another position each time, because old data at the same position would pass the verification.
    let load = "--rw=randwrite --offset=$((4 * time++))m --size=4m --iodepth=32 \
                --verify=crc32c --verify_fatal=1 --do_verify=1";
    let fio = fio(disk, load);
    format!(
        "time=0\nuntil [ -e /tmp/enough ]; do\n{fio} >/tmp/{disk}.printed 2>&1 && grep -q ';load;0;0;' /tmp/{disk}.printed && continue\n\
         cat /tmp/{disk}.printed; exit 1\ndone"
    )
}

/// Command in the guest that ends the load.
const ENOUGH: &str = "touch /tmp/enough";

/// Checks that the guest's kernel has reported no disk errors.
#[track_caller]
fn assert_no_errors(guest: &Guest) {
    let printed = guest.run("dmesg | grep -iE 'I/O error|EXT4-fs error|Buffer I/O|blocked for more|virtio_blk.*fail'");
    assert_eq!(printed.status, 1, "{}", printed.text);
}

/// Starts QEMU's storage daemon with an image over vhost-user-blk.
fn other_server(place: &Place, name: &str, size_bytes: u64) -> (Running, PathBuf) {
    let (image, socket) = (place.image(&format!("{name}.img"), size_bytes), place.socket(name));
    let mut server = tool("qemu-storage-daemon", "qemu-system-common");
    server.args(["--blockdev", &format!("driver=file,filename={},node-name=n,discard=unmap", image.display())]);
    let export = "vhost-user-blk,id=e,node-name=n,writable=on,num-queues=2,addr.type=unix";
    server.args(["--export", &format!("{export},addr.path={}", socket.display())]);
    let server = start(&mut server);
    until("its socket exists", || socket.exists());
    (server, socket)
}

/// Checks the harness without the project's daemon: scripts, disks, queues, reboot.
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
    assert!(guest.requests("vdb") < seen, "the counters restart");
    assert_eq!(guest.sh("head -c 4194304 /dev/vdb | sha256sum"), sum);
}

/// Partition, file system, write, flush, trim, read back; and the same data seen from the host.
#[test]
fn a_file_system_works_in_a_guest_and_on_the_host() {
    let _alone = alone();
    let place = Place::new();
    let image = place.image("a.img", 96 * MIB);
    let locked = place.write("locked.img", crate::common::noise(3, 8 * MIB as usize));
    let volumes = volume(&place, "a", "root", &image, "") + &volume(&place, "a", "seed", &locked, "read_only = true");
    let daemon = Daemon::serve(&place, &(place.device("") + &volumes));
    let root = Disk { queues: 2, ..disk(&place, "a", "root") };
    let guest = Guest::boot(Machine::new([root, disk(&place, "a", "seed")]));
    assert_eq!(guest.sh("cat /sys/block/vda/ro /sys/block/vdb/ro; ls /sys/block/vda/mq | wc -l"), "0\n1\n2\n");
    assert_eq!(guest.sh("cat /sys/block/vda/queue/write_cache /sys/block/vda/serial"), "write back\nroot");
    guest.sh("echo ',,L' | sfdisk -q /dev/vda && mkfs.ext4 -q /dev/vda1 && mount /dev/vda1 /mnt");
    guest.sh("cat /dev/vdb >/mnt/keep && cat /dev/vdb /dev/vdb /dev/vdb >/mnt/drop && sync");
    let full = image.metadata().unwrap().blocks() * 512;
    assert!(full >= 4 * 8 * MIB, "{full}");
    let trimmed = guest.sh("rm /mnt/drop && sync && fstrim -v /mnt");
    assert!(trimmed.contains("bytes trimmed"), "{trimmed}");
    let left = image.metadata().unwrap().blocks() * 512;
    assert!(left + 2 * 8 * MIB < full, "{left} of {full} bytes are still there: {trimmed}");
    guest.sh("echo 3 >/proc/sys/vm/drop_caches && cmp /mnt/keep /dev/vdb && umount /mnt && e2fsck -fn /dev/vda1");
    let denied = guest.run("dd if=/dev/zero of=/dev/vdb bs=4k count=1 oflag=direct");
    assert_ne!(denied.status, 0, "{}", denied.text);
    assert_no_errors(&guest);
    let accounts = daemon.accounts();
    assert_eq!(accounts.number("a", "failed"), 0);
    let completed = &accounts.vm("a")["completed"];
    for kind in ["read", "write", "flush", "discard"] {
        assert!(completed[kind].as_u64() > Some(0), "{kind}: {completed}");
    }
    drop(guest);
    until("the VM's resources are freed", || daemon.accounts().connections() == 0);
    wait_for_exit(daemon);
    let partition = format!("{}?offset={MIB}", image.display());
    run(tool("e2fsck", "e2fsprogs").args(["-fn", &partition])).ok();
    let kept = run(tool("debugfs", "e2fsprogs")
        .args(["-R", &format!("dump /keep {}", place.file("kept").display())])
        .arg(&partition));
    kept.ok();
    assert!(std::fs::read(place.file("kept")).unwrap() == std::fs::read(locked).unwrap());
}

/// Requests of every size, on several queues concurrently, split and merged by the gate.
#[test]
fn a_guest_reads_what_it_wrote_in_every_size() {
    let _alone = alone();
    let place = Place::new();
    let (image, deep) = (place.image("a.img", 64 * MIB), place.image("b.img", 64 * MIB));
    let volumes = volume(&place, "a", "v", &image, "") + &volume(&place, "a", "w", &deep, "");
    // A shallow device, so that requests queue up and can be merged.
    let daemon = Daemon::serve(&place, &(place.device("depth = 4") + &volumes));
    let many = Disk { queues: 4, queue_size: 16, ..disk(&place, "a", "v") };
    let guest = Guest::boot(Machine::new([many, Disk { queue_size: 1024, ..disk(&place, "a", "w") }]));
    let sizes = "--bsrange=512-512k --rw=randrw --size=12m --offset_increment=16m --numjobs=4 --iodepth=32 \
                 --verify=crc32c --verify_fatal=1 --do_verify=1";
    let neighbours = "--bs=4k --rw=write --size=16m --iodepth=64 --verify=crc32c --verify_fatal=1 --do_verify=1";
    let loads = [guest.start(&fio("vda", sizes)), guest.start(&fio("vdb", neighbours))];
    for load in loads {
        let verified = guest.finish(load).ok();
        assert!(verified.contains(";load;0;0;"), "{verified}");
    }
    guest.sh("/usr/sbin/blkdiscard -z -o 1M -l 8M /dev/vda");
    guest.sh("dd if=/dev/vda bs=1M skip=1 count=8 iflag=direct | cmp -n 8388608 - /dev/zero");
    assert_no_errors(&guest);
    let accounts = daemon.accounts();
    assert_eq!((accounts.number("a", "failed"), accounts.number("a", "protocol_errors")), (0, 0));
    assert!(accounts.vm("a")["completed"]["write_zeroes"].as_u64() > Some(0), "{}", accounts.vm("a"));
    wait_for_exit(daemon);
}

/// Speed of the device in the next test, independent of the machine: 4 concurrent requests of 20 ms.
const PER_SECOND: f64 = 200.0;
/// Number of requests of the guest with the smaller weight in a window.
const WINDOW: usize = 150;
const WINDOWS: usize = 3;

/// Weights divide a busy device between frontends, and a limit set at run time holds.
#[test]
fn two_guests_get_service_by_their_policies() {
    let _alone = alone();
    let place = Place::new();
    let log = place.file("slots.csv");
    let control = place.socket("control");
    let mut host = place.control_keys();
    host += "[device.disk]\nbackend = \"null\"\ndepth = 16\n";
    host += &format!("[device.disk.delay]\ntime = \"20ms\"\nparallel = 4\nlog = \"{}\"\n", log.display());
    for (vm, kind, weight) in [("a", "nbd", 100), ("b", "vhost-user-blk", 300)] {
        let socket = place.volume_socket(vm, "v");
        host += &format!("[vm.{vm}]\nweight = {weight}\n[vm.{vm}.volume.v]\ndevice = \"disk\"\nsize = \"64MiB\"\n");
        host += &format!("export = {{ type = \"{kind}\", socket = \"{}\" }}\n", socket.display());
    }
    let daemon = Daemon::serve(&place, &host);
    let guests =
        [Machine::new([]).with(exported(&place, "a")), Machine::new([disk(&place, "b", "v")])].map(Guest::power_on);
    guests.iter().for_each(Guest::ready);
    // Deep enough that the queue outlasts a guest's pauses. Over NBD, QEMU has at most 16 requests in flight, so the
    // guest with the smaller weight must use it.
    let load = fio("vda", "--rw=randread --iodepth=64 --time_based --runtime=3600");
    for guest in &guests {
        guest.start(&load);
        guest.progress("vda", 50);
    }
    let first = guests[0].requests("vda") as usize;
    guests[0].progress("vda", (WINDOWS * WINDOW) as u64);
    run(sluice().args(["set", "b", "limit=40 iops", "--socket"]).arg(&control)).ok();
    guests[1].progress("vda", 200);
    wait_for_exit(daemon);
    drop(guests);
    let slots = slots::read(&log);
    assert_shared(&slots, first);
    // Requests in its window before the limit was set are not counted.
    let b = slots::of(&slots, 1);
    let limited = &b[b.len() - 120..];
    let seconds = (limited[119].dispatched_ns - limited[0].dispatched_ns) as f64 / SECOND_NS as f64;
    assert!(seconds * 40.0 > 112.0, "120 requests in {seconds} s at 40 per second");
}

/// In every window of the first guest's requests, from `first` on, the second guest got three times as much. Windows
/// in which the device was idle for a while do not count, because the machine and not the gate caused that.
#[track_caller]
fn assert_shared(slots: &[Slot], first: usize) {
    let a = slots::of(slots, 0);
    let mut busy = 0;
    for window in a[first..first + WINDOWS * WINDOW].windows(WINDOW).step_by(WINDOW) {
        let (from, to) = (window[0].dispatched_ns, window[WINDOW - 1].dispatched_ns);
        let seconds = (to - from) as f64 / SECOND_NS as f64;
        let [cost_a, cost_b] = [0, 1].map(|owner| slots::cost_between(&slots::of(slots, owner), from, to));
        if cost_a + cost_b > 0.95 * PER_SECOND * seconds {
            busy += 1;
            let times = cost_b / cost_a;
            assert!((2.7..3.3).contains(&times), "b got {cost_b} while a got {cost_a}");
        }
    }
    assert!(busy > 0, "this machine is too busy to measure anything");
}

/// Acknowledged writes survive a kill and restart of the daemon, and requests in flight are done once: over
/// vhost-user because the daemon keeps a log in the VMM's memory, over NBD because QEMU sends them again.
#[test]
fn a_guest_does_not_notice_that_the_daemon_was_killed() {
    let _alone = alone();
    let place = Place::new();
    // Requests overtake each other, and many are in flight when the daemon ends.
    let delay = "depth = 16\n[device.disk.delay]\nparallel = 16\ntime = { min = \"2ms\", max = \"20ms\" }\n";
    let host = place.device(delay)
        + &volume(&place, "a", "v", &place.image("a.img", 1024 * MIB), "")
        + &place.volume("b", "v", &place.image("b.img", 1024 * MIB), "");
    let mut daemon = Daemon::serve(&place, &host);
    let machine = Machine::new([Disk { queues: 2, ..disk(&place, "a", "v") }]).with(exported(&place, "b"));
    let guest = Guest::boot(machine);
    let loads = ["vda", "vdb"].map(|disk| guest.start(&verified_until_enough(disk)));
    // Once while both write, and once while one reads back.
    for (kind, end) in [
        ("write", Daemon::kill as fn(Daemon)),
        ("write", wait_for_exit),
        ("write", Daemon::kill),
        ("read", Daemon::kill),
    ] {
        for vm in ["b", "a"] {
            until("many requests have completed", || daemon.accounts().vm(vm)["completed"][kind].as_u64() >= Some(200));
        }
        for vm in ["a", "b"] {
            until("many requests are in flight", || daemon.accounts().vm(vm)["outstanding"].as_u64() >= Some(8));
        }
        end(daemon);
        daemon = Daemon::serve(&place, &host);
    }
    guest.sh(ENOUGH);
    for load in loads {
        guest.finish(load).ok();
    }
    assert_no_errors(&guest);
    for vm in ["a", "b"] {
        assert_eq!(daemon.accounts().number(vm, "failed"), 0);
    }
    drop(guest);
    until("the VM's resources are freed", || daemon.accounts().connections() == 0);
    wait_for_exit(daemon);
}

#[track_caller]
fn wait_for_exit(daemon: Daemon) {
    let ended = daemon.terminate();
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
}

/// Requests wait in the guest while the volume is detached, and complete when it is attached again.
#[test]
fn a_guest_waits_for_a_volume_that_is_attached_again() {
    let _alone = alone();
    let place = Place::new();
    let image = place.image("a.img", 1024 * MIB);
    let control = place.control_keys();
    // A deep queue at a shallow device: some requests are in flight, others are queued.
    let delay = "depth = 8\n[device.disk.delay]\nparallel = 8\ntime = { min = \"2ms\", max = \"20ms\" }\n";
    let daemon = Daemon::serve(&place, &(control + &place.device(delay) + &volume(&place, "a", "v", &image, "")));
    let guest = Guest::boot(Machine::new([Disk { queues: 2, ..disk(&place, "a", "v") }]));
    let load = guest.start(&verified_until_enough("vda"));
    let ask = |arguments: &[&str]| run(sluice().args(arguments).arg("--socket").arg(place.socket("control")));
    let (source, socket) = (format!("source={}", image.display()), place.volume_socket("a", "v"));
    let socket = format!("export.socket={}", socket.display());
    for queues in ["export.queues=2", "export.queues=4"] {
        guest.progress("vda", 500);
        ask(&["detach", "a/v", "--force", "a/v"]).ok();
        let attach = ["attach", "a/v", "device=disk", &source, "export.type=vhost-user-blk", &socket, queues];
        until("the requests in flight have completed", || ask(&attach).code() == Some(0));
    }
    guest.sh(ENOUGH);
    guest.finish(load).ok();
    assert_no_errors(&guest);
    wait_for_exit(daemon);
}

/// A guest that resets in the middle of its work leaves no requests behind, and finds its disk when it boots.
#[test]
fn a_guest_is_reset_and_reboots_under_load() {
    let _alone = alone();
    let place = Place::new();
    let image = place.image("a.img", 64 * MIB);
    let delay = "depth = 16\n[device.disk.delay]\nparallel = 16\ntime = \"10ms\"\n";
    let host = place.device(delay) + &volume(&place, "a", "v", &image, "");
    let daemon = Daemon::serve(&place, &host);
    let machine = || Machine::new([Disk { queues: 2, ..disk(&place, "a", "v") }]);
    let guest = Guest::boot(machine());
    let sum =
        guest.sh("dd if=/dev/urandom of=/dev/vda bs=1M count=2 oflag=direct && head -c 2097152 /dev/vda | sha256sum");
    let sum = sum.lines().last().unwrap().to_owned() + "\n";
    let load = fio("vda", "--rw=randrw --offset=4m --size=32m --iodepth=32 --time_based --runtime=3600");
    let begin = |guest: &Guest| {
        guest.start(&load);
        guest.progress("vda", 300);
    };
    for way in [Guest::reset, Guest::reboot] {
        begin(&guest);
        way(&guest);
        assert_eq!(guest.sh("head -c 2097152 /dev/vda | sha256sum"), sum);
    }
    // And with the VMM killed.
    begin(&guest);
    drop(guest);
    until("the VM's resources are freed", || daemon.accounts().connections() == 0);
    let guest = Guest::boot(machine());
    assert_eq!(guest.sh("head -c 2097152 /dev/vda | sha256sum"), sum);
    guest.sh(&fio("vda", "--rw=write --offset=4m --size=4m --iodepth=32 --verify=crc32c --do_verify=1"));
    assert_no_errors(&guest);
    until("no request of earlier boots is outstanding", || daemon.accounts().vm("a")["outstanding"] == 0);
    assert_eq!(daemon.accounts().number("a", "failed"), 0);
    wait_for_exit(daemon);
}

/// The queues drain when the VMM pauses, and memory that is plugged in under load is used.
#[test]
fn a_guest_is_paused_and_gets_more_memory_under_load() {
    let _alone = alone();
    let place = Place::new();
    let image = place.image("a.img", 64 * MIB);
    let delay = "depth = 16\n[device.disk.delay]\nparallel = 16\ntime = \"10ms\"\n";
    let control = place.control_keys();
    let daemon = Daemon::serve(&place, &(control + &place.device(delay) + &volume(&place, "a", "v", &image, "")));
    let slots = ["-m", "512M,slots=1,maxmem=1G"].map(str::to_owned);
    let guest = Guest::boot(Machine::new([Disk { queues: 2, ..disk(&place, "a", "v") }]).with(slots));
    guest.start(&fio("vda", "--rw=randrw --size=32m --iodepth=32 --time_based --runtime=3600"));
    for _ in 0..2 {
        guest.progress("vda", 200);
        guest.qmp.execute("stop", &json!({}));
        until("nothing is in flight", || daemon.accounts().vm("a")["outstanding"] == 0);
        guest.qmp.execute("cont", &json!({}));
    }
    guest.progress("vda", 200);
    // Requests that a limit holds back stay in the guest while it is paused; the pause does not wait for the limit.
    let limit = |limit: &str| {
        run(sluice().args(["set", "a", limit, "allow_slow=true", "--socket"]).arg(place.socket("control"))).ok()
    };
    limit("limit=3 iops");
    until("its requests are queued", || daemon.accounts().vm("a")["outstanding"].as_u64() >= Some(16));
    guest.qmp.execute("stop", &json!({}));
    assert_eq!(daemon.accounts().vm("a")["outstanding"], 0);
    limit("limit=unlimited");
    guest.qmp.execute("cont", &json!({}));
    guest.progress("vda", 200);
    let memory = json!({ "qom-type": "memory-backend-memfd", "id": "more", "size": 128 * MIB, "share": true });
    guest.qmp.execute("object-add", &memory);
    guest.qmp.execute("device_add", &json!({ "driver": "pc-dimm", "id": "dimm", "memdev": "more" }));
    // Programs get movable memory first, so the buffers of the next load are in it.
    let online = "for memory in /sys/devices/system/memory/memory*; do\n\
                  grep -q offline $memory/state && echo online_movable >$memory/state && echo one\ndone";
    until("the guest finds the memory", || guest.run(online).text.contains("one"));
    let load = "--rw=write --offset=40m --size=8m --iodepth=32 --verify=crc32c --verify_fatal=1 --do_verify=1";
    let verified = guest.sh(&fio("vda", load));
    assert!(verified.contains(";load;0;0;"), "{verified}");
    assert_no_errors(&guest);
    assert_eq!(daemon.accounts().number("a", "failed"), 0);
    wait_for_exit(daemon);
}

/// A volume that grows, and one that is attached and detached, while the guest works.
#[test]
fn a_guest_sees_its_disks_change() {
    let _alone = alone();
    let place = Place::new();
    let (grows, comes) = (place.image("grows.img", 32 * MIB), place.image("comes.img", 16 * MIB));
    let control = place.control_keys();
    let daemon = Daemon::serve(&place, &(control + &place.device("") + &volume(&place, "a", "grows", &grows, "")));
    let guest = Guest::boot(Machine::new([disk(&place, "a", "grows")]));
    guest.start(&fio("vda", "--rw=randrw --size=16m --iodepth=8 --time_based --runtime=3600"));
    guest.progress("vda", 100);
    let ask = |arguments: &[&str]| run(sluice().args(arguments).arg("--socket").arg(place.socket("control"))).ok();
    ask(&["resize", "a/grows", "48MiB"]);
    until("the guest sees the size", || guest.size_bytes("vda") == 48 * MIB);
    let last = "dd if=/dev/urandom of=/tmp/x bs=4k count=1 && dd if=/tmp/x of=/dev/vda bs=4k seek=12287 oflag=direct && \
                dd if=/dev/vda of=/tmp/y bs=4k skip=12287 iflag=direct && cmp /tmp/x /tmp/y";
    guest.sh(last);
    let socket = place.volume_socket("a", "comes");
    let (source, at) = (format!("source={}", comes.display()), format!("export.socket={}", socket.display()));
    ask(&["attach", "a/comes", "device=disk", &source, "export.type=vhost-user-blk", &at]);
    let backend = json!({ "type": "socket", "data": { "addr": { "type": "unix", "data": { "path": socket } }, "server": false } });
    guest.qmp.execute("chardev-add", &json!({ "id": "plugged-line", "backend": backend }));
    let device =
        json!({ "driver": "vhost-user-blk-pci", "id": "plugged", "chardev": "plugged-line", "bus": "free-slot" });
    guest.qmp.execute("device_add", &device);
    until("the guest finds the disk", || guest.run("[ -b /dev/vdb ]").status == 0);
    assert_eq!(guest.size_bytes("vdb"), 16 * MIB);
    guest.sh("dd if=/dev/urandom of=/dev/vdb bs=1M count=16 oflag=direct && blkdiscard /dev/vdb");
    guest.qmp.execute("device_del", &json!({ "id": "plugged" }));
    guest.qmp.event("DEVICE_DELETED");
    ask(&["detach", "a/comes", "--force", "a/comes"]);
    guest.progress("vda", 100);
    assert_no_errors(&guest);
    assert_eq!(daemon.accounts().number("a", "failed"), 0);
    wait_for_exit(daemon);
}
