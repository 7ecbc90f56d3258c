//! Exclusive use: one writer per byte, one gate per disk, each volume on the disk that it names.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::common::disk::Loop;
use crate::common::raw::Raw;
use crate::common::{Daemon, MIB, Place, noise};

/// A user that owns no files.
const TENANT: u32 = 54_321;

/// Checks the error of another process that tries to serve `host`.
#[track_caller]
fn refused(place: &Place, host: &str, expected: &[&str]) {
    let output = Daemon::refused(place, host);
    for expected in expected {
        assert!(output.contains(expected), "no {expected:?} in: {output}");
    }
}

fn open(place: &Place, vm: &str) -> Raw {
    Raw::open(&place.volume_socket(vm, "v"), &format!("{vm}/v")).unwrap()
}

#[test]
fn a_second_daemon_on_an_image_is_rejected_and_the_first_one_named() {
    let place = Place::new();
    let image = place.image("a.img", MIB);
    let first = Daemon::serve(&place, &(place.device("") + &place.volume("a", "v", &image, "")));
    let second = place.device("") + &place.volume("b", "v", &image, "");
    let expected = format!("VM b, volume v: Volume {}", image.display());
    refused(&place, &second, &[&expected, "is locked by process", "sluice", "stop it, or use another file or range"]);
    refused(
        &place,
        &(place.device("") + &place.volume("b", "v", &image, "read_only = true")),
        &["is locked by process"],
    );
    assert!(!place.volume_socket("b", "v").exists());
    assert_eq!(open(&place, "a").read(0, 512), Ok(vec![0; 512]), "the first goes on");
    let other = place.device("") + &place.volume("c", "v", &place.image("c.img", MIB), "");
    let sealed = Daemon::serve_as(&place, "sealed.toml", &other);
    let log = sealed.reload(&(other + &place.volume("b", "v", &image, "")));
    assert!(log.contains("is locked by process"), "{log}");
    assert_eq!(sealed.terminate().code(), Some(0), "and each system call of its search for the process is on its list");
    assert_eq!(first.terminate().code(), Some(0));
    let second = Daemon::serve(&place, &second);
    assert_eq!(second.terminate().code(), Some(0), "what is free again can be had");
}

#[test]
fn readers_share_an_image_and_exclude_writers() {
    let place = Place::new();
    let content = noise(1, MIB as usize);
    let image = place.write("a.img", &content);
    let reader = |vm| place.device("") + &place.volume(vm, "v", &image, "read_only = true");
    let _first = Daemon::serve_as(&place, "first.toml", &reader("a"));
    let _second = Daemon::serve_as(&place, "second.toml", &reader("b"));
    for vm in ["a", "b"] {
        assert!(open(&place, vm).read(0, MIB as u32).unwrap() == content);
    }
    refused(&place, &(place.device("") + &place.volume("c", "v", &image, "")), &["is locked by"]);
}

#[test]
fn two_volumes_on_the_same_bytes_are_rejected() {
    let place = Place::new();
    let image = place.image("a.img", 4 * MIB);
    let alias = place.file("alias.img");
    std::os::unix::fs::symlink(&image, &alias).unwrap();
    let half = "size = \"2MiB\"";
    let overlapping = "offset = \"1MiB\"\nsize = \"2MiB\"";
    let host = place.device("") + &place.volume("a", "v", &image, half) + &place.volume("b", "v", &alias, overlapping);
    refused(
        &place,
        &host,
        &["VM a, volume v", "of volume b/v", "VM b, volume v", "leads to the file or disk of volume a/v"],
    );
}

#[test]
fn ranges_of_one_file_are_separate_disks() {
    let place = Place::new();
    let image = place.image("a.img", 8 * MIB);
    let part =
        |vm, offset, size| place.volume(vm, "v", &image, &format!("offset = \"{offset}MiB\"\nsize = \"{size}MiB\""));
    let _daemon = Daemon::serve(&place, &(place.device("") + &part("a", 1, 2) + &part("b", 3, 4)));
    let (mut a, mut b) = (open(&place, "a"), open(&place, "b"));
    assert_eq!((a.size_bytes, b.size_bytes), (2 * MIB, 4 * MIB));
    let (in_a, in_b) = (noise(1, 2 * MIB as usize), noise(2, 4 * MIB as usize));
    a.write(0, &in_a).unwrap();
    b.write(0, &in_b).unwrap();
    assert!(a.read(0, 2 * MIB as u32).unwrap() == in_a);
    assert!(b.read(0, 4 * MIB as u32).unwrap() == in_b);
    assert!(a.read(2 * MIB - 512, 1024).is_err(), "a read does not reach into the next range");
    assert!(a.write(2 * MIB - 512, &[1; 1024]).is_err());
    let zeroes = vec![0; MIB as usize];
    assert!(std::fs::read(&image).unwrap() == [zeroes.as_slice(), &in_a, &in_b, &zeroes].concat());
}

#[test]
fn two_devices_on_one_disk_are_rejected() {
    let place = Place::new();
    let image = place.image("a.img", MIB);
    let other = format!("[device.other]\npath = \"{}\"\n", image.display());
    let output = Daemon::refused(&place, &(place.device("") + &other));
    assert!(output.contains("Devices disk and other are on the same disk"), "{output}");
    assert!(output.contains("which can have only one gate; combine them into one device"), "{output}");
}

#[test]
fn a_loop_device_counts_as_the_disk_of_its_file() {
    let place = Place::new();
    let device = Loop::new(&place.image("a.img", MIB));
    let other = format!("[device.other]\npath = \"{}\"\n", device.path.display());
    let output = Daemon::refused(&place, &(place.device("") + &other));
    assert!(output.contains("are on the same disk"), "{output}");
}

#[test]
fn a_volume_on_another_disk_than_its_device_is_rejected() {
    let place = Place::new();
    // /dev/shm is another file system on every host.
    let elsewhere = tempfile::Builder::new().tempfile_in("/dev/shm").expect("there is /dev/shm");
    elsewhere.as_file().set_len(MIB).unwrap();
    let host = place.device("") + &place.volume("a", "v", elsewhere.path(), "cache = \"buffered\"");
    let expected = [
        "VM a, volume v: its source is on filesystem 0:",
        "but its device disk is",
        "use the device that contains the source",
    ];
    refused(&place, &host, &expected);
    assert!(!place.volume_socket("a", "v").exists());
}

#[test]
fn a_volume_without_direct_io_is_rejected_unless_it_is_buffered() {
    let place = Place::new();
    let pipe = place.file("pipe");
    let made = crate::common::run(crate::common::tool("mkfifo", "coreutils").arg(&pipe));
    made.ok();
    let serve = |source: &Path| place.device("") + &place.volume("a", "v", source, "");
    refused(&place, &serve(&pipe), &["is a pipe: use a raw regular file or a block device"]);
    refused(&place, &serve(place.folder()), &["is a folder"]);
    refused(&place, &serve(&place.file("none")), &["Cannot open", "check that it exists"]);
    refused(&place, &serve(&place.image("empty", 0)), &["is empty"]);
    refused(&place, &serve(&place.write("odd", [1; 1000])), &["is not a multiple of the block size", "round it"]);
}

#[test]
fn a_missing_path_is_rejected_with_what_to_change() {
    let place = Place::new();
    let image = place.image("a.img", MIB);
    let host = place.device("") + &place.volume("a", "v", &image, "");
    let elsewhere = |old: &Path, new: &Path| host.replace(old.to_str().unwrap(), new.to_str().unwrap());
    let nowhere = elsewhere(&place.volume_socket("a", "v"), &place.file("none/a.sock"));
    refused(&place, &nowhere, &["Cannot listen on", "none/a.sock: create its folder", "No such file or directory"]);
    let control = format!("{host}[daemon]\ncontrol = \"{}\"\n", place.file("none/control").display());
    refused(&place, &control, &["none/control: create its folder"]);
    let foreign = format!("{host}[nbd]\nlisten = \"192.0.2.1:10809\"\ninsecure = true\n");
    refused(&place, &foreign, &["Cannot listen on 192.0.2.1:10809: state an address of this host"]);
    let device = host.replacen(&format!("path = \"{}\"", place.folder().display()), "path = \"/dev/none0n1\"", 1);
    refused(&place, &device, &["Device disk", "Cannot inspect /dev/none0n1: use an existing block device"]);
    let short = host.replace("[vm.a.volume.v]\n", "[vm.a.volume.v]\nsize = \"2MiB\"\n");
    refused(&place, &short, &["extend it or lower `offset` and `size`"]);
}

#[test]
fn a_socket_with_a_listener_is_rejected() {
    let place = Place::new();
    let image = place.image("a.img", MIB);
    let host = place.device("") + &place.volume("a", "v", &image, "");
    let socket = place.volume_socket("a", "v");
    let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    refused(&place, &host, &["is in use by another process; stop it or choose another socket"]);
    drop(listener);
    // A socket without a listener is replaced; a file that is not a socket is not touched.
    let daemon = Daemon::serve(&place, &host);
    assert_eq!(open(&place, "a").read(0, 512), Ok(vec![0; 512]));
    daemon.kill();
    std::fs::remove_file(&socket).unwrap();
    std::fs::write(&socket, "precious").unwrap();
    refused(&place, &host, &["exists and is not a socket"]);
    assert_eq!(std::fs::read_to_string(&socket).unwrap(), "precious");
}

#[test]
fn a_tenants_link_was_followed_to_the_file_of_another() {
    let place = Place::new();
    let secret = place.image("secret.img", MIB);
    let theirs = place.file("theirs");
    std::fs::create_dir(&theirs).unwrap();
    std::os::unix::fs::chown(&theirs, Some(TENANT), None).unwrap();
    let link = theirs.join("a.img");
    std::os::unix::fs::symlink(&secret, &link).unwrap();
    let output =
        format!("{} is a symbolic link that user {TENANT} can change: use the path of its target", link.display());
    refused(&place, &(place.device("") + &place.volume("a", "v", &link, "")), &["VM a, volume v: Volume ", &output]);
}

#[test]
fn a_socket_in_a_folder_of_another_user_is_rejected_unless_it_has_that_owner() {
    let place = Place::new();
    let image = place.image("a.img", MIB);
    let theirs = place.socket("theirs");
    std::fs::create_dir(&theirs).unwrap();
    std::os::unix::fs::chown(&theirs, Some(TENANT), None).unwrap();
    let host = |more: &str| {
        let socket = theirs.join("a.sock");
        let own = format!("socket = \"{}\"", place.volume_socket("a", "v").display());
        let there = format!("socket = \"{}\"{more}", socket.display());
        (place.device("") + &place.volume("a", "v", &image, "")).replace(&own, &there)
    };
    let output = format!("user {TENANT} can replace files in {}; remove its write permission there", theirs.display());
    refused(&place, &host(""), &[&output]);
    let daemon = Daemon::serve(&place, &host(&format!(", owner = \"{TENANT}\"")));
    let there = std::fs::metadata(theirs.join("a.sock")).unwrap();
    assert_eq!((there.uid(), there.mode() & 0o777), (TENANT, 0o660));
    assert_eq!(daemon.terminate().code(), Some(0));
    assert_eq!(std::fs::read_dir(&theirs).unwrap().count(), 0, "nothing is left there");
}

#[test]
fn permissions_of_the_daemons_files_depended_on_the_inherited_umask() {
    let place = Place::new();
    let image = place.image("a.img", MIB);
    let log = place.file("slots.csv");
    let delay = format!("delay = {{ time = \"1us\", log = \"{}\" }}", log.display());
    let file = place.write("host.toml", place.device(&delay) + &place.volume("a", "v", &image, ""));
    let mut shell = crate::common::tool("sh", "dash");
    let daemon = crate::common::start(
        shell
            .args(["-c", "umask 0; exec \"$@\"", "sh"])
            .arg(crate::common::sluice().get_program())
            .arg("serve")
            .arg(&file),
    );
    daemon.stderr.up_to(&["Ready"]);
    let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o777;
    assert_eq!((mode(&log), mode(&place.volume_socket("a", "v"))), (0o600, 0o660));
}
