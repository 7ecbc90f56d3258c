//! QEMU's block layer as a client: formats, conversion, comparison, and its own patterns.

use std::process::Command;

use crate::common::{Daemon, MIB, Place, noise, run, tool};
use serde_json::Value;

fn qemu_img() -> Command {
    tool("qemu-img", "qemu-utils")
}

/// Runs qemu-io with several commands on a raw export.
fn qemu_io(uri: &str, commands: &[&str]) -> String {
    let mut qemu_io = tool("qemu-io", "qemu-utils");
    qemu_io.args(["-f", "raw"]);
    for command in commands {
        qemu_io.args(["-c", command]);
    }
    run(qemu_io.arg(uri)).ok()
}

fn two_volumes() -> (Place, Daemon) {
    let place = Place::new();
    let (a, b) = (place.image("a.img", 32 * MIB), place.image("b.img", 32 * MIB));
    let volumes = place.volume("a", "v", &a, "") + &place.volume("b", "v", &b, "");
    let daemon = Daemon::serve(&place, &(place.device("") + &volumes));
    (place, daemon)
}

#[test]
fn qemu_img_reports_size_and_format() {
    let (place, _daemon) = two_volumes();
    let uri = place.uri("a", "v");
    let info = |uri: &str| -> Value {
        serde_json::from_str(&run(qemu_img().args(["info", "--output=json", uri])).ok()).unwrap()
    };
    assert_eq!((info(&uri)["format"].as_str(), info(&uri)["virtual-size"].as_u64()), (Some("raw"), Some(32 * MIB)));
    run(qemu_img().args(["create", "-q", "-f", "qcow2", &uri, "1G"])).ok();
    assert_eq!((info(&uri)["format"].as_str(), info(&uri)["virtual-size"].as_u64()), (Some("qcow2"), Some(1 << 30)));
}

#[test]
fn qemu_img_converts_and_compares() {
    let (place, _daemon) = two_volumes();
    let (a, b) = (place.uri("a", "v"), place.uri("b", "v"));
    let mut content = noise(5, 32 * MIB as usize);
    content[3 * MIB as usize..20 * MIB as usize].fill(0);
    let original = place.write("original.img", &content);
    let original = original.to_str().unwrap();
    let raw = ["-f", "raw", "-O", "raw"];
    run(qemu_img().args(["convert", "-n", "-W", "-m", "8"]).args(raw).args([original, &a])).ok();
    run(qemu_img().args(["convert", "-n", "-t", "none"]).args(raw).args([&a, &b])).ok();
    let compare = |left: &str, right: &str| run(qemu_img().args(["compare", "-f", "raw", "-F", "raw", left, right]));
    for (left, right) in [(original, a.as_str()), (&a, &b)] {
        assert_eq!(compare(left, right).ok(), "Images are identical.\n");
    }
    assert!(std::fs::read(place.file("b.img")).unwrap() == content);
    qemu_io(&b, &["write -P 0xee 30M 512"]);
    let differs = compare(&a, &b);
    assert_eq!((differs.code(), differs.stdout.as_str()), (Some(1), "Content mismatch at offset 31457280!\n"));
    // Into a qcow2 image inside the volume, and back.
    run(qemu_img().args(["create", "-q", "-f", "qcow2", &a, "16M"])).ok();
    let part = place.write("part.img", &content[..16 * MIB as usize]);
    let part = part.to_str().unwrap();
    run(qemu_img().args(["convert", "-n", "-f", "raw", "-O", "qcow2", part, &a])).ok();
    let same = run(qemu_img().args(["compare", "-f", "raw", "-F", "qcow2", part, &a]));
    assert_eq!(same.ok(), "Images are identical.\n");
    run(qemu_img().args(["check", "-q", "-f", "qcow2", &a])).ok();
}

#[test]
fn qemu_io_reads_the_patterns_that_it_wrote() {
    let (place, _daemon) = two_volumes();
    let printed = qemu_io(
        &place.uri("a", "v"),
        &[
            "write -P 0x5a 0 8M",
            "write -f -P 0xa5 1M 64k",
            "write -z 2M 1M",
            "write -z -u 3M 1M",
            "discard 4M 1M",
            "aio_write -P 0x11 5M 1M",
            "aio_write -P 0x22 6M 1M",
            "aio_flush",
            "flush",
            "read -P 0x5a 0 1M",
            "read -P 0xa5 1M 64k",
            "read -P 0 2M 3M",
            "read -P 0x11 5M 1M",
            "read -P 0x22 6M 1M",
            "read -P 0x5a 7M 1M",
            "read -P 0 8M 24M",
        ],
    );
    assert!(!printed.contains("failed") && !printed.contains("error"), "{printed}");
    // A missing pattern is detected, so the check itself works.
    let mut wrong = tool("qemu-io", "qemu-utils");
    let wrong = run(wrong.args(["-f", "raw", "-c", "read -P 1 0 4k", &place.uri("a", "v")]));
    assert!(wrong.stdout.contains("Pattern verification failed"), "{}{}", wrong.stdout, wrong.stderr);
}

/// QEMU's blkverify writes to both exports concurrently, and compares them at every read.
#[test]
fn qemu_io_uses_two_exports_concurrently() {
    let (place, daemon) = two_volumes();
    let export = |node: &str, vm: &str| {
        let socket = place.volume_socket(vm, "v");
        format!(
            "{node}.driver=nbd,{node}.server.type=unix,{node}.server.path={},{node}.export={vm}/v",
            socket.display()
        )
    };
    let both = format!("driver=blkverify,{},{}", export("test", "a"), export("raw", "b"));
    let qemu_io = || tool("qemu-io", "qemu-utils");
    let mut verifying = qemu_io();
    for n in 0..64 {
        verifying.args(["-c", &format!("aio_write -P {} {}k 96k", n + 1, n * 128)]);
    }
    verifying.args(["-c", "aio_flush", "-c", "flush"]);
    for n in 0..64 {
        verifying.args(["-c", &format!("aio_read -P {} {}k 96k", n + 1, n * 128)]);
    }
    let printed = run(verifying.args(["-c", "aio_flush", "--image-opts", &both])).ok();
    assert!(!printed.contains("failed") && !printed.contains("mismatch"), "{printed}");
    assert!(std::fs::read(place.file("a.img")).unwrap() == std::fs::read(place.file("b.img")).unwrap());
    let accounts = daemon.accounts();
    for vm in ["a", "b"] {
        let completed = &accounts.vm(vm)["completed"];
        assert!(completed["write"].as_u64() >= Some(64) && completed["read"].as_u64() >= Some(64), "{completed}");
    }
}
