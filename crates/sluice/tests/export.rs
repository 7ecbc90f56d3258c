//! `sluice export`: the exact output, and the VMMs themselves where Debian has them.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::guest::connection;
use common::guest::qmp::Qmp;
use common::{Daemon, Ended, LONG, MIB, Place, run, sluice, start, tool};
use serde_json::{Value, json};

mod common;

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
export = { listen = "[::1]:10809", name = "b,b" }

[vm.empty]
"#;

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
-device virtio-blk-pci,id=sluice0,drive=sluice0-node \
-blockdev driver=nbd,node-name=sluice1-node,server.type=inet,server.host=::1,server.port=10809,export=b,,b,reconnect-delay=30,discard=unmap \
-device virtio-blk-pci,id=sluice1,drive=sluice1-node
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
    </disk>
    <disk type='network' device='disk'>
      <driver name='qemu' type='raw' discard='unmap'/>
      <source protocol='nbd' name='b,b'>
        <host name='::1' port='10809'/>
      </source>
      <target dev='vdb' bus='virtio'/>
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
fn json_has_the_same_content() {
    let printed = |arguments: &[&str]| -> Value { serde_json::from_str(&export(HOST, arguments).ok()).unwrap() };
    let qemu = printed(&["qemu-args", "nbd", "-o", "json"]);
    assert_eq!((&qemu["vm"], &qemu["format"]), (&json!("nbd"), &json!("qemu-args")));
    assert_eq!(qemu["arguments"][3], "virtio-blk-pci,id=sluice0,drive=sluice0-node");
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
        (&["qemu-args", "empty"], 1, "VM empty has no volumes; add [vm.empty.volume.NAME] to the host file"),
        (
            &["qemu-args", "fast"],
            1,
            "A vhost-user volume shares the memory of its VM, and QEMU needs the size of that memory; add --memory \
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
            "Cloud Hypervisor cannot use the path '/run/a, b.sock', because it separates options with ','; use \
             another path",
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

/// Returns virsh with libvirt's embedded driver and its own folder. As root, the driver needs the user account that
/// Debian's service creates, unless QEMU runs as the user nobody.
fn virsh(folder: &Path) -> Command {
    let is_root = rustix::process::geteuid().is_root();
    let virsh = tool("virsh", "libvirt-clients");
    let mut command = match is_root {
        true => tool("setpriv", "util-linux"),
        false => tool("virsh", "libvirt-clients"),
    };
    if is_root {
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).arg(virsh.get_program());
    }
    command.env("HOME", folder).env("XDG_RUNTIME_DIR", folder);
    command.args(["-q", "-c", &format!("qemu:///embed?root={}", folder.display())]);
    command
}

#[test]
fn libvirt_accepts_its_parts_and_makes_qemu_arguments() {
    let place = Place::new();
    let file = place.write("host.toml", HOST);
    // The user that runs libvirt's driver must be able to read and write there.
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let arguments_of = |vm: &str| {
        let parts = run(sluice().args(["export", "libvirt-xml", vm, "--cpus", "2"]).arg(&file)).ok();
        let own = format!(
            "<domain type='qemu'><name>{vm}</name><memory unit='MiB'>64</memory><vcpu>2</vcpu>\
             <os><type arch='x86_64' machine='q35'>hvm</type></os>"
        );
        let domain = folder.path().join(format!("{vm}.xml"));
        std::fs::write(&domain, parts.replacen("<domain>", &own, 1)).unwrap();
        run(virsh(folder.path()).args(["define", "--validate"]).arg(&domain)).ok();
        run(virsh(folder.path()).args(["domxml-to-native", "qemu-argv"]).arg(&domain)).ok()
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
