//! `sluice export`: the exact output, and the VMMs themselves where Debian has them.

use std::os::unix::fs::FileExt as _;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::Command;

use crate::common::guest::connection;
use crate::common::guest::qmp::Qmp;
use crate::common::{Daemon, Ended, LONG, MIB, Place, libvirt, run, sluice, start, tool};
use serde_json::{Value, json};

const HOST: &str = r#"
[device.disk]
backend = "null"

[vm.fast.volume.a]
device = "disk"
size = "64MiB"
export = { type = "vhost-user-blk", socket = "/run/a, b.sock", queues = 4 }
[vm.fast.volume.b]
device = "disk"
size = "64MiB"
export = { type = "vhost-user-blk", socket = "/run/b's.sock" }

[vm.plain.volume.a]
device = "disk"
size = "64MiB"
export = { type = "vhost-user-blk", socket = "/run/plain a.sock" }
[vm.plain.volume.b]
device = "disk"
size = "64MiB"
export = { type = "vhost-user-blk", socket = "/run/plain-b.sock", queues = 2 }

[vm.nbd.volume.a]
device = "disk"
size = "64MiB"
read_only = true
export = { socket = "/run/a, &b.sock" }
[vm.nbd.volume.b]
device = "disk"
size = "64MiB"
serial = "WD-4711"
discard = "ignore"
block_size = "512B"
export = { listen = "[::1]:10809", name = "b,b" }

[vm.empty]
"#;

const NETWORK: &str = r#"
[uplink.lan]
tap = "up0"
mtu = 9000

[vm.a.nic.eth0]
uplink = "lan"
socket = "/run/a, b.sock"
mac = "52:54:00:00:00:01"
queues = 4
mtu = 1500
[vm.a.nic.eth1]
uplink = "lan"
tap = "a-eth1"
mac = "52:54:00:00:00:02"

[vm.t.nic.eth0]
uplink = "lan"
tap = "t-eth0"
mac = "52:54:00:00:00:03"
mtu = 1500
[vm.s.nic.eth0]
uplink = "lan"
socket = "/run/s.sock"
mac = "52:54:00:00:00:04"
mtu = 1500
"#;

#[test]
fn without_a_file_the_daemon_says_what_it_serves() {
    let place = Place::new();
    let policy = "[policy.gold]\nweight = 300\n[vm.a]\npolicy = \"gold\"\n[alert.all]\nwebhook = \"http://127.0.0.1:9/secret\"\n";
    let device = "[device.disk]\nbackend = \"null\"\n";
    let volume = format!(
        "[vm.a.volume.v]\ndevice = \"disk\"\nsize = \"64MiB\"\nexport = {{ socket = \"{}\" }}\n",
        place.socket("v").display()
    );
    let host = place.control_keys() + device + policy + &volume;
    let daemon = Daemon::serve(&place, &host);
    let file = place.write("copy.toml", &host);
    let control = place.socket("control");
    let ask = |arguments: &[&str]| run(sluice().args(arguments).env("SLUICE_SOCKET", &control));
    let of_file = ask(&["export", "nbd-uri", "a", file.to_str().unwrap()]).ok();
    assert_eq!(ask(&["export", "nbd-uri", "a"]).ok(), of_file);
    let socket = format!("export.socket={}", place.socket("w").display());
    ask(&["attach", "a/w", "device=disk", "size=1MiB", &socket]).ok();
    let attached = ask(&["export", "nbd-uri", "a", "--volume", "w"]).ok();
    assert!(attached.contains(place.socket("w").to_str().unwrap()), "{attached}");
    let unknown = ask(&["export", "nbd-uri", "b"]);
    assert_eq!((unknown.code(), unknown.stderr.contains("there are: a")), (Some(3), true), "{}", unknown.stderr);
    let reply = sluice_api::http::ask(&control, &sluice_api::request::Request::GetHost);
    let reply: sluice_api::request::Reply<Value> = reply.unwrap();
    assert!(!reply.result.unwrap().to_string().contains("secret"), "it is not for observers");
    daemon.kill();
}

#[test]
fn nics_are_exported_to_each_vmm() {
    let prints = |arguments: &[&str], expected: &str| assert_eq!(export(NETWORK, arguments).ok(), expected);
    let expected = r"-m 1024M \
-object memory-backend-memfd,id=sluice-memory,size=1024M,share=on \
-machine memory-backend=sluice-memory \
-chardev 'socket,id=sluice-nic0-line,path=/run/a,, b.sock,reconnect=1' \
-netdev vhost-user,id=sluice-nic0-net,chardev=sluice-nic0-line,queues=2 \
-device virtio-net-pci,id=sluice-nic0,netdev=sluice-nic0-net,mac=52:54:00:00:00:01,mq=on,vectors=6 \
-netdev tap,id=sluice-nic1-net,ifname=a-eth1,script=no,downscript=no \
-device virtio-net-pci,id=sluice-nic1,netdev=sluice-nic1-net,mac=52:54:00:00:00:02,host_mtu=9000
";
    prints(&["qemu-args", "a", "--memory", "1GiB", "--cpus", "2"], expected);
    let expected = "-netdev tap,id=sluice-nic0-net,ifname=t-eth0,script=no,downscript=no \\\n\
                    -device virtio-net-pci,id=sluice-nic0,netdev=sluice-nic0-net,mac=52:54:00:00:00:03\n";
    prints(&["qemu-args", "t"], expected);
    let expected = "<interface type='vhostuser'>
  <mac address='52:54:00:00:00:01'/>
  <source type='unix' path='/run/a, b.sock' mode='client'>
    <reconnect enabled='yes' timeout='1'/>
  </source>
  <model type='virtio'/>
  <driver queues='3'/>
</interface>
";
    prints(&["libvirt-xml", "a", "--volume", "a/nic/eth0", "--cpus", "3"], expected);
    let expected = "<interface type='ethernet'>
  <mac address='52:54:00:00:00:02'/>
  <target dev='a-eth1' managed='no'/>
  <model type='virtio'/>
  <mtu size='9000'/>
</interface>
";
    prints(&["libvirt-xml", "a", "--volume", "nic/eth1"], expected);
    let expected = "--memory size=1024M,shared=on \\\n--net \
                    vhost_user=true,socket=/run/s.sock,num_queues=4,mac=52:54:00:00:00:04,id=sluice-nic0\n";
    prints(&["cloud-hypervisor-args", "s", "--memory", "1GiB", "--cpus", "2"], expected);
    prints(&["cloud-hypervisor-args", "t"], "--net tap=t-eth0,mac=52:54:00:00:00:03,id=sluice-nic0\n");
    let firecracker: Value = serde_json::from_str(&export(NETWORK, &["firecracker-json", "t"]).ok()).unwrap();
    let interface = json!({ "iface_id": "sluice0", "guest_mac": "52:54:00:00:00:03", "host_dev_name": "t-eth0" });
    assert_eq!(firecracker, json!({ "drives": [], "network-interfaces": [interface] }));
}

#[test]
fn a_nic_that_a_vmm_cannot_use_is_rejected_with_what_to_change() {
    let refused: [(&[&str], i32, &str); 5] = [
        (
            &["firecracker-json", "s"],
            1,
            "NIC s/nic/eth0 is served over vhost-user-net, and Firecracker uses only TAPs; write tap = \"NAME\" instead of \
             socket for it",
        ),
        (
            &["qemu-args", "s"],
            1,
            "A vhost-user volume or NIC shares the memory of its VM, and QEMU needs the size of that memory; add --memory \
             with the VM's memory size, for example --memory 4GiB",
        ),
        (
            &["cloud-hypervisor-args", "a", "--memory=4GiB"],
            1,
            "Cloud Hypervisor cannot use '/run/a, b.sock', because it separates options with ','; use another path or \
             name",
        ),
        (
            &["nbd-uri", "s"],
            1,
            "Nothing to export: this format is only for volumes, and none is selected; choose another format",
        ),
        (&["qmp", "s", "--volume", "nic/eth1"], 3, "No NIC of VM s is called 'eth1'; there are: eth0"),
    ];
    for (arguments, code, message) in refused {
        let ended = export(NETWORK, arguments);
        assert_eq!((ended.code(), ended.stdout.as_str()), (Some(code), ""), "{arguments:?}: {}", ended.stderr);
        assert_eq!(ended.stderr, format!("error: {message}\n"));
    }
}

#[test]
fn libvirt_accepts_nics_and_makes_qemu_arguments() {
    let place = Place::new();
    let file = place.write("host.toml", NETWORK);
    let folder = libvirt::folder();
    let parts = run(sluice().args(["export", "libvirt-xml", "a", "--cpus", "2"]).arg(&file)).ok();
    let own = "<domain type='qemu'><name>a</name><memory unit='MiB'>64</memory><vcpu>2</vcpu>\
               <os><type arch='x86_64' machine='q35'>hvm</type></os>";
    let domain = folder.path().join("a.xml");
    std::fs::write(&domain, parts.replacen("<domain>", own, 1)).unwrap();
    run(libvirt::virsh(folder.path()).args(["define", "--validate"]).arg(&domain)).ok();
    let described = run(libvirt::virsh(folder.path()).args(["dumpxml", "a"])).ok();
    for part in [
        "<interface type='vhostuser'>",
        "<driver queues='2'>",
        "<target dev='a-eth1' managed='no'/>",
        "<mtu size='9000'/>",
    ] {
        assert!(described.contains(part.trim_end_matches('>')), "{part}\n{described}");
    }
}

fn export(host: &str, arguments: &[&str]) -> Ended {
    let place = Place::new();
    let file = place.write("host.toml", host);
    run(sluice().arg("export").args(&arguments[..2]).arg(file).args(&arguments[2..]))
}

#[track_caller]
fn assert_prints(arguments: &[&str], expected: &str) {
    assert_eq!(export(HOST, arguments).ok(), expected);
}

#[test]
fn qemu_gets_memory_and_disks() {
    let expected = r"-m 4096M \
-object memory-backend-memfd,id=sluice-memory,size=4096M,share=on \
-machine memory-backend=sluice-memory \
-chardev 'socket,id=sluice0-line,path=/run/a,, b.sock,reconnect=1' \
-device vhost-user-blk-pci,id=sluice0,chardev=sluice0-line,num-queues=4 \
-chardev 'socket,id=sluice1-line,path=/run/b'\''s.sock,reconnect=1' \
-device vhost-user-blk-pci,id=sluice1,chardev=sluice1-line,num-queues=8
";
    assert_prints(&["qemu-args", "fast", "--memory", "4GiB", "--cpus", "8"], expected);
    let expected = r"-blockdev 'driver=nbd,node-name=sluice0-node,server.type=unix,server.path=/run/a,, &b.sock,export=nbd/a,reconnect-delay=30,discard=unmap,read-only=on' \
-device virtio-blk-pci,id=sluice0,drive=sluice0-node,serial=a \
-blockdev driver=nbd,node-name=sluice1-node,server.type=inet,server.host=::1,server.port=10809,export=b,,b,reconnect-delay=30,discard=ignore \
-device virtio-blk-pci,id=sluice1,drive=sluice1-node,serial=WD-4711,logical_block_size=512,physical_block_size=4096
";
    assert_prints(&["qemu-args", "nbd"], expected);
}

#[test]
fn libvirt_gets_memory_and_disks() {
    let expected = r"<domain>
  <memoryBacking>
    <source type='memfd'/>
    <access mode='shared'/>
  </memoryBacking>
  <devices>
    <disk type='vhostuser' device='disk'>
      <driver name='qemu' type='raw' queues='2'/>
      <source type='unix' path='/run/a, b.sock'>
        <reconnect enabled='yes' timeout='1'/>
      </source>
      <target dev='vda' bus='virtio'/>
    </disk>
    <disk type='vhostuser' device='disk'>
      <driver name='qemu' type='raw' queues='2'/>
      <source type='unix' path='/run/b&apos;s.sock'>
        <reconnect enabled='yes' timeout='1'/>
      </source>
      <target dev='vdb' bus='virtio'/>
    </disk>
  </devices>
</domain>
";
    assert_prints(&["libvirt-xml", "fast", "--cpus", "2"], expected);
    let expected = r"<domain>
  <devices>
    <disk type='network' device='disk'>
      <driver name='qemu' type='raw' discard='unmap'/>
      <source protocol='nbd' name='nbd/a'>
        <host transport='unix' socket='/run/a, &amp;b.sock'/>
      </source>
      <target dev='vda' bus='virtio'/>
      <readonly/>
      <serial>a</serial>
    </disk>
    <disk type='network' device='disk'>
      <driver name='qemu' type='raw' discard='ignore'/>
      <source protocol='nbd' name='b,b'>
        <host name='::1' port='10809'/>
      </source>
      <target dev='vdb' bus='virtio'/>
      <serial>WD-4711</serial>
      <blockio logical_block_size='512' physical_block_size='4096'/>
    </disk>
  </devices>
</domain>
";
    assert_prints(&["libvirt-xml", "nbd"], expected);
}

#[test]
fn cloud_hypervisor_gets_memory_and_disks() {
    let expected = "--memory size=512M,shared=on \\\n--disk 'vhost_user=true,socket=/run/plain a.sock,id=sluice0' \
                    vhost_user=true,socket=/run/plain-b.sock,id=sluice1\n";
    assert_prints(&["cloud-hypervisor-args", "plain", "--memory", "512MiB"], expected);
    let queues = export(HOST, &["cloud-hypervisor-args", "plain", "--memory", "512MiB", "--cpus", "3", "-o", "json"]);
    let queues: Value = serde_json::from_str(&queues.ok()).unwrap();
    assert_eq!(queues["arguments"][3], "vhost_user=true,socket=/run/plain a.sock,id=sluice0,num_queues=3");
    assert_eq!(queues["arguments"][4], "vhost_user=true,socket=/run/plain-b.sock,id=sluice1,num_queues=2");
}

#[test]
fn firecracker_gets_disks() {
    let expected = r#"{
  "drives": [
    {
      "drive_id": "sluice0",
      "is_root_device": false,
      "socket": "/run/a, b.sock"
    },
    {
      "drive_id": "sluice1",
      "is_root_device": true,
      "socket": "/run/b's.sock"
    }
  ]
}
"#;
    assert_prints(&["firecracker-json", "fast", "--root", "b"], expected);
}

#[test]
fn nbd_clients_get_uris() {
    let expected = "nbd+unix:///nbd/a?socket=/run/a%2C%20%26b.sock\nnbd://[::1]:10809/b%2Cb\n";
    assert_prints(&["nbd-uri", "nbd"], expected);
    let shared = export(&format!("{HOST}\n[nbd]\nsocket = \"/run/all.sock\"\n"), &["nbd-uri", "fast"]);
    assert_eq!(shared.ok(), "nbd+unix:///fast/a?socket=/run/all.sock\nnbd+unix:///fast/b?socket=/run/all.sock\n");
}

#[test]
fn the_block_size_of_a_volume_over_nbd_was_left_out_unless_it_was_stated() {
    let place = Place::new();
    let image = place.write("v.img", vec![0; MIB as usize]);
    std::fs::File::options().write(true).open(&image).unwrap().write_all_at(b"EFI PART", 4096).unwrap();
    let host = |lines: &str| place.control_keys() + &place.device("") + &place.volume("a", "v", &image, lines);
    let file = place.write("host.toml", host(""));
    let export = |format: &str| run(sluice().args(["export", format, "a"]).arg(&file));
    let block = ",logical_block_size=4096,physical_block_size=4096";
    assert!(export("qemu-args").ok().contains(block), "of its GPT");
    assert!(export("libvirt-xml").ok().contains("<blockio logical_block_size='4096'"));
    let daemon = Daemon::serve(&place, &host("block_size = \"512B\""));
    place.write("host.toml", host(""));
    assert!(!export("qemu-args").ok().contains("block_size"), "it is remembered, and the daemon runs");
    daemon.kill();
    std::fs::remove_file(&image).unwrap();
    let unknown = export("qemu-args");
    assert!(
        unknown.stderr.contains("Volume a/v: the block size that it is served with is not known"),
        "{}",
        unknown.stderr
    );
    assert!(unknown.stderr.contains("state block_size in the host file") && !unknown.ok().contains("block_size"));
}

#[test]
fn json_has_the_same_content() {
    let printed = |arguments: &[&str]| -> Value { serde_json::from_str(&export(HOST, arguments).ok()).unwrap() };
    let qemu = printed(&["qemu-args", "nbd", "-o", "json"]);
    assert_eq!((&qemu["vm"], &qemu["format"]), (&json!("nbd"), &json!("qemu-args")));
    assert_eq!(qemu["arguments"][3], "virtio-blk-pci,id=sluice0,drive=sluice0-node,serial=a");
    let libvirt = printed(&["libvirt-xml", "nbd", "-o", "json"]);
    assert_eq!(libvirt["xml"].as_str().unwrap().to_owned() + "\n", export(HOST, &["libvirt-xml", "nbd"]).ok());
    let firecracker = printed(&["firecracker-json", "fast", "-o", "json"]);
    assert_eq!(firecracker["drives"][1]["socket"], "/run/b's.sock");
    let uris = printed(&["nbd-uri", "nbd", "-o", "json"]);
    assert_eq!(uris["uris"].as_array().unwrap().len(), 2);
}

#[test]
fn an_impossible_export_is_rejected_with_what_to_change() {
    let refused: [(&[&str], i32, &str); 10] = [
        (&["qemu-args", "fats"], 3, "No VM is called 'fats'; there are: empty, fast, nbd, plain"),
        (
            &["qemu-args", "empty"],
            1,
            "VM empty has neither volumes nor NICs; add [vm.empty.volume.NAME] or [vm.empty.nic.NAME] to the host file",
        ),
        (
            &["qemu-args", "fast"],
            1,
            "A vhost-user volume or NIC shares the memory of its VM, and QEMU needs the size of that memory; add --memory \
             with the VM's memory size, for example --memory 4GiB",
        ),
        (&["qemu-args", "fast", "--memory=4096"], 2, ""),
        (
            &["qemu-args", "fast", "--memory=4097KiB"],
            1,
            "A memory of 4097KiB is not a whole number of MiB; write for example --memory 4GiB",
        ),
        (
            &["firecracker-json", "nbd"],
            1,
            "Volume nbd/a is served over NBD, and Firecracker has no NBD client; write export = { type = \
             \"vhost-user-blk\", socket = \"/run/sluice/NAME.sock\" } for it",
        ),
        (
            &["cloud-hypervisor-args", "nbd"],
            1,
            "Volume nbd/a is served over NBD, and Cloud Hypervisor has no NBD client; write export = { type = \
             \"vhost-user-blk\", socket = \"/run/sluice/NAME.sock\" } for it",
        ),
        (
            &["cloud-hypervisor-args", "fast", "--memory=4GiB"],
            1,
            "Cloud Hypervisor cannot use '/run/a, b.sock', because it separates options with ','; use another path or \
             name",
        ),
        (
            &["nbd-uri", "fast"],
            1,
            "Volume fast/a is served only over vhost-user-blk; write export = { type = \"nbd\", … } for it, or add \
             [nbd] to the host file",
        ),
        (&["firecracker-json", "fast", "--root=c"], 3, "No volume of VM fast is called 'c'; there are: a, b"),
    ];
    for (arguments, code, message) in refused {
        let ended = export(HOST, arguments);
        assert_eq!((ended.code(), ended.stdout.as_str()), (Some(code), ""), "{arguments:?}: {}", ended.stderr);
        if code != 2 {
            assert_eq!(ended.stderr, format!("error: {message}\n"));
        }
    }
}

/// Properties of a vhost-user drive in Firecracker's API specification (`Drive`), and whether each is required.
const FIRECRACKER_DRIVE: [(&str, bool); 5] =
    [("drive_id", true), ("is_root_device", true), ("socket", true), ("partuuid", false), ("cache_type", false)];

/// Keys of `--disk` for vhost-user in Cloud Hypervisor's documentation and in its API specification (`DiskConfig`).
const CLOUD_HYPERVISOR_DISK: [&str; 7] =
    ["vhost_user", "socket", "num_queues", "queue_size", "id", "pci_segment", "readonly"];

#[test]
fn only_documented_keys_are_used_for_vmms_that_are_not_installed() {
    let printed = |arguments: &[&str]| -> Value { serde_json::from_str(&export(HOST, arguments).ok()).unwrap() };
    for drive in printed(&["firecracker-json", "fast"])["drives"].as_array().unwrap() {
        let drive = drive.as_object().unwrap();
        assert!(drive.keys().all(|key| FIRECRACKER_DRIVE.iter().any(|(known, _)| known == key)), "{drive:?}");
        for (key, _) in FIRECRACKER_DRIVE.iter().filter(|(_, required)| *required) {
            assert!(drive.contains_key(*key), "{drive:?} has no {key}");
        }
        let id = drive["drive_id"].as_str().unwrap();
        assert!(id.chars().all(|c| c.is_ascii_alphanumeric() || c == '_'), "{id}");
        assert!(drive["is_root_device"].is_boolean() && drive["socket"].is_string());
    }
    let arguments = printed(&["cloud-hypervisor-args", "plain", "--memory", "1GiB", "--cpus", "2", "-o", "json"]);
    let arguments: Vec<&str> = arguments["arguments"].as_array().unwrap().iter().map(|a| a.as_str().unwrap()).collect();
    assert_eq!((arguments[0], arguments[1], arguments[2]), ("--memory", "size=1024M,shared=on", "--disk"));
    assert_eq!(arguments.len(), 5);
    for disk in &arguments[3..] {
        let options: Vec<(&str, &str)> = disk.split(',').map(|option| option.split_once('=').unwrap()).collect();
        assert!(options.iter().all(|(key, _)| CLOUD_HYPERVISOR_DISK.contains(key)), "{disk}");
        assert!(options.contains(&("vhost_user", "true")) && options.iter().any(|(key, _)| *key == "socket"), "{disk}");
    }
}

/// A daemon whose paths need quoting.
struct Served {
    place: Place,
    file: PathBuf,
    _daemon: Daemon,
}

/// Serves a VM with `a` over vhost-user-blk, and `b` and `c` over NBD. The shared socket of `[nbd]` serves all of
/// them.
fn served() -> Served {
    let place = Place::new();
    let socket = |name: &str| place.socket(&format!("{name}, it's.sock"));
    let volume = |name: &str, kind: &str| {
        let socket = socket(name);
        format!(
            "[vm.v.volume.{name}]\ndevice = \"disk\"\nsize = \"64MiB\"\n\
             export = {{ type = \"{kind}\", socket = \"{}\" }}\n",
            socket.display()
        )
    };
    let shared = format!("[nbd]\nsocket = \"{}\"\n[device.disk]\nbackend = \"null\"\n", socket("all").display());
    let host =
        shared + &volume("a", "vhost-user-blk") + &volume("b", "nbd") + &volume("c", "nbd") + "read_only = true\n";
    let daemon = Daemon::serve(&place, &host);
    Served { file: place.file("host.toml"), _daemon: daemon, place }
}

/// The names of a disk are the same as if the whole VM was exported.
#[test]
fn one_volume_is_exported_for_hot_plug() {
    let disk = export(HOST, &["libvirt-xml", "nbd", "--volume", "nbd/b"]).ok();
    assert!(
        disk.starts_with("<disk type='network' device='disk'>\n  <driver ") && disk.ends_with("\n</disk>\n"),
        "{disk}"
    );
    assert!(disk.contains("<target dev='vdb' bus='virtio'/>") && !disk.contains("<reconnect"), "{disk}");
    let newer = export(HOST, &["libvirt-xml", "nbd", "--volume", "b", "--libvirt", "10.0.0"]).ok();
    assert!(newer.contains("\n    <reconnect delay='30'/>\n  </source>"), "{newer}");
    let older = export(HOST, &["libvirt-xml", "nbd", "--volume", "b", "--libvirt", "9.0.0"]).ok();
    assert_eq!(older, disk);
    assert_eq!(export(HOST, &["nbd-uri", "nbd", "--volume", "b"]).ok().lines().count(), 1);
    let refused = export(HOST, &["qmp", "nbd", "--volume", "c"]);
    assert_eq!(
        (refused.code(), refused.stderr.as_str()),
        (Some(3), "error: No volume of VM nbd is called 'c'; there are: a, b\n")
    );
    assert_eq!(export(HOST, &["libvirt-xml", "nbd", "--libvirt", "new"]).code(), Some(2));
}

#[test]
fn volumes_are_plugged_into_a_running_qemu() {
    let served = served();
    let line = served.place.socket("qmp");
    let listener = UnixListener::bind(&line).unwrap();
    let mut qemu = tool("qemu-system-x86_64", "qemu-system-x86");
    qemu.args([
        "-machine",
        "q35,accel=tcg,memory-backend=m",
        "-nodefaults",
        "-no-user-config",
        "-display",
        "none",
        "-S",
    ]);
    qemu.args(["-m", "64M", "-object", "memory-backend-memfd,id=m,size=64M,share=on"]);
    qemu.args(["-device", "pcie-root-port,id=port0,chassis=1", "-device", "pcie-root-port,id=port1,chassis=2"]);
    qemu.args(["-chardev", &format!("socket,id=q,path={}", line.display()), "-mon", "chardev=q,mode=control"]);
    let running = start(&mut qemu);
    let stream = connection(listener).recv_timeout(LONG).unwrap_or_else(|_| panic!("{}", running.stderr.so_far()));
    let qmp = Qmp::new(stream);
    for (volume, bus, id) in [("a", "port0", "sluice0"), ("c", "port1", "sluice2")] {
        let options = ["export", "qmp", "v", "--volume", volume, "--bus", bus, "--cpus", "1"];
        for command in run(sluice().args(options).arg(&served.file)).ok().lines() {
            let command: Value = serde_json::from_str(command).unwrap();
            qmp.execute(command["execute"].as_str().unwrap(), &command["arguments"]);
        }
        let path = format!("/machine/peripheral/{id}");
        assert_eq!(qmp.execute("qom-get", &json!({ "path": path, "property": "realized" })), true);
    }
    qmp.execute("quit", &json!({}));
    running.end().ok();
}

#[test]
fn qemu_starts_with_its_arguments_from_a_shell() {
    let served = served();
    let printed =
        run(sluice().args(["export", "qemu-args", "v", "--memory", "64MiB", "--cpus", "2"]).arg(&served.file));
    let arguments = printed.ok();
    let line = served.place.socket("qmp");
    let listener = UnixListener::bind(&line).unwrap();
    let qemu = tool("qemu-system-x86_64", "qemu-system-x86");
    let script = format!(
        "exec {} -machine q35,accel=tcg -nodefaults -no-user-config -display none -S -chardev socket,id=q,path={} \
         -mon chardev=q,mode=control {arguments}",
        qemu.get_program().display(),
        line.display()
    );
    let running = start(Command::new("sh").args(["-c", &script]));
    let stream = connection(listener).recv_timeout(LONG).unwrap_or_else(|_| panic!("{}", running.stderr.so_far()));
    let qmp = Qmp::new(stream);
    for (device, kind) in
        [("sluice0", "vhost-user-blk-pci"), ("sluice1", "virtio-blk-pci"), ("sluice2", "virtio-blk-pci")]
    {
        let path = format!("/machine/peripheral/{device}");
        let found = qmp.execute("qom-get", &json!({ "path": path, "property": "type" }));
        assert_eq!(found, kind);
        let realized = qmp.execute("qom-get", &json!({ "path": path, "property": "realized" }));
        assert_eq!(realized, true);
    }
    let queues = qmp.execute("qom-get", &json!({ "path": "/machine/peripheral/sluice0", "property": "num-queues" }));
    assert_eq!(queues, 2);
    let nodes = qmp.execute("query-named-block-nodes", &json!({ "flat": true }));
    let node = |name: &str| nodes.as_array().unwrap().iter().find(|node| node["node-name"] == name).cloned().unwrap();
    assert_eq!((&node("sluice1-node")["ro"], &node("sluice2-node")["ro"]), (&json!(false), &json!(true)));
    assert_eq!(node("sluice1-node")["image"]["virtual-size"], 64 * MIB);
    qmp.execute("quit", &json!({}));
    running.end().ok();
}

#[test]
fn libvirt_accepts_its_parts_and_makes_qemu_arguments() {
    let place = Place::new();
    let file = place.write("host.toml", HOST);
    let folder = libvirt::folder();
    let arguments_of = |vm: &str| {
        let parts = run(sluice().args(["export", "libvirt-xml", vm, "--cpus", "2"]).arg(&file)).ok();
        let own = format!(
            "<domain type='qemu'><name>{vm}</name><memory unit='MiB'>64</memory><vcpu>2</vcpu>\
             <os><type arch='x86_64' machine='q35'>hvm</type></os>"
        );
        let domain = folder.path().join(format!("{vm}.xml"));
        std::fs::write(&domain, parts.replacen("<domain>", &own, 1)).unwrap();
        run(libvirt::virsh(folder.path()).args(["define", "--validate"]).arg(&domain)).ok();
        run(libvirt::virsh(folder.path()).args(["domxml-to-native", "qemu-argv"]).arg(&domain)).ok()
    };
    let fast = arguments_of("fast");
    for part in [
        "path=/run/a,, b.sock,reconnect=1'",
        "\"driver\":\"vhost-user-blk-pci\",\"num-queues\":2",
        "\"qom-type\":\"memory-backend-memfd\"",
        "\"share\":true",
    ] {
        assert!(fast.contains(part), "{part}\n{fast}");
    }
    let nbd = arguments_of("nbd");
    for part in [
        "{\"type\":\"unix\",\"path\":\"/run/a, &b.sock\"},\"export\":\"nbd/a\"",
        "{\"type\":\"inet\",\"host\":\"::1\",\"port\":\"10809\"},\"export\":\"b,b\"",
        "\"read-only\":true,\"discard\":\"unmap\"",
    ] {
        assert!(nbd.contains(part), "{part}\n{nbd}");
    }
}

#[test]
fn clients_of_nbd_connect_with_the_uris() {
    let served = served();
    let uris = run(sluice().args(["export", "nbd-uri", "v"]).arg(&served.file)).ok();
    let sizes = uris.lines().map(|uri| run(tool("nbdinfo", "libnbd-bin").args(["--size", uri])).ok());
    assert_eq!(sizes.collect::<Vec<_>>(), ["67108864\n"; 3]);
}
