//! `sluice import`: host files from configurations of other systems.

use std::io::Write;
use std::process::Stdio;

use crate::common::{Ended, Place, libvirt, run, sluice};
use serde_json::Value;

const DOMAIN: &str = "<domain type='kvm'>
  <name>web 1</name>
  <memory unit='GiB'>4</memory>
  <vcpu>4</vcpu>
  <blkiotune>
    <weight>300</weight>
  </blkiotune>
  <os><type arch='x86_64' machine='q35'>hvm</type></os>
  <devices>
    <disk type='file' device='disk'>
      <driver name='qemu' type='raw'/>
      <source file='/srv/vm/web1.img'/>
      <target dev='vda' bus='virtio'/>
      <iotune>
        <total_iops_sec>2000</total_iops_sec>
        <total_iops_sec_max>5000</total_iops_sec_max>
        <total_iops_sec_max_length>10</total_iops_sec_max_length>
        <read_bytes_sec>104857600</read_bytes_sec>
        <write_bytes_sec>52428800</write_bytes_sec>
      </iotune>
    </disk>
    <disk type='block' device='disk'>
      <driver name='qemu' type='raw'/>
      <source dev='/dev/vg0/web1-log'/>
      <target dev='vdb' bus='virtio'/>
      <iotune>
        <write_iops_sec>500</write_iops_sec>
        <size_iops_sec>65536</size_iops_sec>
      </iotune>
      <readonly/>
    </disk>
    <disk type='file' device='cdrom'>
      <source file='/srv/iso/debian.iso'/>
      <target dev='sda' bus='sata'/>
    </disk>
    <disk type='network' device='disk'>
      <driver name='qemu' type='raw'/>
      <source protocol='rbd' name='pool/image'>
        <host name='mon1' port='6789'/>
      </source>
      <target dev='vdc' bus='virtio'/>
    </disk>
  </devices>
</domain>
";

const HOST_OF_DOMAIN: &str = r#"# VM web-1, imported from web.xml. Look through it, and try it with `sluice check`.
# Then replace the disks of the domain by those of `sluice export libvirt-xml`: docs/how-to/first-vm-libvirt.md.
# A disk needs one [device]: join those below that are on the same disk.

[device.dev-vg0-web1-log]
path = "/dev/vg0/web1-log"
# capacity = "..."  # needed for reservations: docs/how-to/measure-capacity.md

[device.srv-vm]
path = "/srv/vm"
# capacity = "..."  # needed for reservations: docs/how-to/measure-capacity.md

[vm.web-1]
# From <blkiotune>: relative to other VMs, whose default here is 100.
weight = 300

[vm.web-1.volume.vda]
device = "srv-vm"
source = "/srv/vm/web1.img"
discard = "ignore"
export = { type = "vhost-user-blk", socket = "/run/sluice/web-1-vda.sock", owner = "libvirt-qemu", group = "kvm" }
# From vda: total_iops_sec 2000, total_iops_sec_max 5000, total_iops_sec_max_length 10, read_bytes_sec 104857600, write_bytes_sec 52428800.
# A request of 8 KiB counts as 1, of 256 KiB as 1.82; QEMU counted each request as 1.
limit = "2000 iops"
read_limit = "100MiB/s"
write_limit = "50MiB/s"
burst = { rate = "5000 iops", for = "10s" }

[vm.web-1.volume.vdb]
device = "dev-vg0-web1-log"
source = "/dev/vg0/web1-log"
read_only = true
discard = "ignore"
export = { type = "vhost-user-blk", socket = "/run/sluice/web-1-vdb.sock", owner = "libvirt-qemu", group = "kvm" }
# From vdb: write_iops_sec 500, size_iops_sec 65536.
# QEMU counted requests in units of 64KiB; these are the same rates of requests of that size, in units of 8 KiB.
write_limit = "594 iops"
"#;

const QM: &str = "boot: order=scsi0
cores: 2
# a comment
memory: 2048
name: mail.example.org
net0: virtio=BC:24:11:00:00:01,bridge=vmbr0
ide2: local:iso/debian.iso,media=cdrom,size=600M
efidisk0: local-lvm:vm-104-disk-1,size=4M
scsi0: local-lvm:vm-104-disk-0,iops_rd=800,iops_rd_max=1600,iops_rd_max_length=30,iops_wr=400,iothread=1,size=32G
scsi1: local:104/vm-104-disk-2.qcow2,mbps=10,size=8G
scsi2: tank:vm-104-disk-3,mbps_rd=1.5,size=8G
scsihw: virtio-scsi-single

[before-upgrade]
scsi0: local-lvm:vm-104-disk-0,iops=1
";

fn import(place: &Place, format: &str, name: &str, text: &str) -> Ended {
    place.write(name, text);
    run(sluice().current_dir(place.folder()).args(["import", format, name]))
}

/// Checks that a printed host file is accepted.
#[track_caller]
fn assert_accepted(place: &Place, host: &str) {
    let file = place.write("imported.toml", host);
    run(sluice().arg("check").arg(file)).ok();
}

/// Checks that libvirt accepts the domain.
fn assert_domain(text: &str) {
    let folder = libvirt::folder();
    let file = folder.path().join("domain.xml");
    std::fs::write(&file, text.replace("type='kvm'", "type='qemu'")).unwrap();
    run(libvirt::virsh(folder.path()).args(["define", "--validate"]).arg(&file)).ok();
}

#[test]
fn a_domain_of_libvirt_becomes_a_host_file() {
    let place = Place::new();
    let ended = import(&place, "libvirt-xml", "web.xml", DOMAIN);
    assert_eq!(ended.stderr, "warning: vdc: a source of type 'network' is not on this host; the disk is left out\n");
    assert_eq!(ended.stdout, HOST_OF_DOMAIN);
    assert_accepted(&place, &ended.stdout);
    assert_domain(DOMAIN);
    let mut piped = sluice();
    let mut piped = piped
        .args(["-o", "json", "import", "libvirt-xml", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    piped.stdin.take().unwrap().write_all(DOMAIN.as_bytes()).unwrap();
    let printed: Value = serde_json::from_slice(&piped.wait_with_output().unwrap().stdout).unwrap();
    let host = HOST_OF_DOMAIN.trim_end().replace("web.xml", "standard input");
    assert_eq!(
        (printed["host"].as_str(), printed["warnings"].as_array().map(Vec::len)),
        (Some(&*(host + "\n")), Some(1))
    );
}

#[test]
fn a_vm_of_proxmox_becomes_a_host_file() {
    let place = Place::new();
    let ended = import(&place, "proxmox-conf", "104.conf", QM);
    let lines = [
        "[vm.\"mail.example.org\".volume.scsi0]",
        "# Path of local-lvm:vm-104-disk-0; compare with `pvesm path local-lvm:vm-104-disk-0`",
        "source = \"/dev/pve/vm-104-disk-0\"",
        "# From scsi0: iops_rd=800, iops_rd_max=1600, iops_rd_max_length=30, iops_wr=400.",
        "read_limit = \"800 iops\"",
        "write_limit = \"400 iops\"",
        "burst = { rate = \"1600 iops\", for = \"30s\" }",
        "source = \"/var/lib/vz/images/104/vm-104-disk-2.qcow2\"",
        "limit = \"10MiB/s\"",
        "source = \"/dev/tank/vm-104-disk-3\"",
        "read_limit = \"1572864B/s\"",
        "export = { type = \"nbd\", socket = \"/run/sluice/mail.example.org-scsi0.sock\" }",
    ];
    for line in lines {
        let found = ended
            .stdout
            .lines()
            .any(|printed| printed == line || line.ends_with("B/s\"") && printed.starts_with("read_limit"));
        assert!(found, "{line}\n{}", ended.stdout);
    }
    assert_eq!(ended.stdout.matches("volume.").count(), 3, "no medium, EFI disk or snapshot: {}", ended.stdout);
    let warned = ["both may now burst", "qemu-img convert -p -f qcow2 -O raw", "pvesm path tank:vm-104-disk-3"];
    assert!(warned.iter().all(|text| ended.stderr.contains(text)), "{}", ended.stderr);
    assert_accepted(&place, &ended.stdout);
    let unnamed = import(&place, "proxmox-conf", "105.conf", "virtio0: /dev/vg0/a,bps=1000000\n");
    assert!(unnamed.stdout.contains("[vm.vm105]\n"), "{}", unnamed.stdout);
    assert_accepted(&place, &unnamed.ok());
}

#[test]
fn rates_of_nics_become_fields_of_their_policies() {
    let place = Place::new();
    let nics = "<interface type='bridge'><mac address='52:54:00:00:00:01'/><source bridge='br0'/>
          <bandwidth><inbound average='2000' peak='5000' floor='100'/><outbound average='1000' peak='3000' burst='128'/></bandwidth>
          <vlan><tag id='42'/></vlan></interface>
        <interface type='bridge'><source bridge='br0'/></interface>
        <interface type='network'><source network='default'/><bandwidth><outbound average='1000'/></bandwidth></interface>
        </devices>";
    let ended = import(&place, "libvirt-xml", "web.xml", &DOMAIN.replace("</devices>", nics));
    let expected = r#"
[vm.web-1.nic.net0]
uplink = "br0"
socket = "/run/sluice/web-1-net0.sock"
owner = "libvirt-qemu"
group = "kvm"
mac = "52:54:00:00:00:01"
vlan = 42
# From net0: inbound average=2000, inbound peak=5000, inbound floor=100, outbound average=1000, outbound peak=3000, outbound burst=128.
# A frame counts with the 24 bytes around it on the wire; before, the host counted without them.
limit = "8Mbit/s"
burst = "131072us"
receive.limit = "16Mbit/s"
"#;
    assert!(
        ended.stdout.ends_with(expected) && ended.stdout.contains("[uplink.br0]\nbridge = \"br0\"\n"),
        "{}",
        ended.stdout
    );
    let warned = [
        "net0: inbound peak has no counterpart",
        "net0: inbound floor: a minimum of what is received cannot be kept",
        "net0: outbound peak has no counterpart",
        "net2: its bridge is that of a network; state the bridge that `virsh net-info` prints; the NIC is left out",
    ];
    assert!(warned.iter().all(|text| ended.stderr.contains(text)), "{}", ended.stderr);
    assert!(!ended.stderr.contains("net1"), "a NIC without a rate stays as it is: {}", ended.stderr);
    assert_accepted(&place, &ended.stdout);
    let limited = QM.replace("bridge=vmbr0", "bridge=vmbr0,firewall=1,rate=12.5,tag=20,trunks=5;6");
    let ended = import(&place, "proxmox-conf", "104.conf", &limited);
    let expected = "\nuplink = \"vmbr0\"\nsocket = \"/run/sluice/mail.example.org-net0.sock\"\nmac = \"BC:24:11:00:00:01\"\nvlan = 20\n\
                    # From net0: rate=12.5.\n";
    assert!(ended.stdout.contains(expected), "{}", ended.stdout);
    assert!(ended.stdout.ends_with("limit = \"12800KiB/s\"\nreceive.limit = \"12800KiB/s\"\n"), "{}", ended.stdout);
    assert!(ended.stderr.contains("net0: a NIC has one VLAN here; trunks=5;6 is left out"), "{}", ended.stderr);
    assert_accepted(&place, &ended.stdout);
}

/// A domain with these disks: path and `<iotune>`.
fn domain(disks: &[(&str, &str)]) -> String {
    let disks = disks.iter().enumerate().map(|(number, (path, tune))| {
        format!("<disk type='file'><source file='{path}'/><target dev='vd{number}'/><iotune>{tune}</iotune></disk>")
    });
    format!("<domain><name>d</name><devices>{}</devices></domain>", disks.collect::<String>())
}

#[test]
fn imported_files_used_the_same_name_for_different_devices() {
    let place = Place::new();
    std::fs::create_dir(place.file("host.d")).unwrap();
    let save = |vm: &str, disks: &[(&str, &str)]| {
        let domain = domain(disks).replace("<name>d<", &format!("<name>{vm}<"));
        place.write(&format!("host.d/{vm}.toml"), import(&place, "libvirt-xml", "web.xml", &domain).ok());
    };
    let long = format!("/{}/v", "x/".repeat(40));
    save("a", &[("/srv/vm/a.img", ""), ("/a.img", "")]);
    save("b", &[("/data/vm/b.img", ""), ("/d\u{e4}ta/x-y/b.img", ""), ("/d\u{e4}ta/x/y/b.img", ""), (&long, "")]);
    let host = place.write("host.toml", "");
    let checked = run(sluice().args(["-o", "json", "check"]).arg(host)).ok();
    let checked: serde_json::Value = serde_json::from_str(&checked).unwrap();
    let names: Vec<&str> =
        checked["devices"].as_array().unwrap().iter().map(|device| device["device"].as_str().unwrap()).collect();
    let tail = ["x"; 28].join("-");
    assert_eq!(names, ["d-ta-x-y", "d-ta-x-y-2", "data-vm", "root", "srv-vm", &tail]);
}

#[test]
fn the_throttle_of_a_group_is_that_of_the_vm() {
    let place = Place::new();
    let group = "<total_iops_sec>900</total_iops_sec><group_name>g</group_name>";
    let both =
        import(&place, "libvirt-xml", "d.xml", &domain(&[("/a/1", group), ("/a/2", "<group_name>g</group_name>")]));
    let (vm, volumes) = both.stdout.split_once(".volume.").unwrap();
    assert!(vm.contains("limit = \"900 iops\"") && !volumes.contains("limit"), "{}", both.stdout);
    assert!(both.stderr.contains("never shared with other VMs"), "{}", both.stderr);
    assert_accepted(&place, &both.stdout);
    let one = import(&place, "libvirt-xml", "d.xml", &domain(&[("/a/1", group), ("/a/2", "")]));
    assert!(one.stdout.contains("volume.vd0") && !one.stderr.contains("each disk"), "{}", one.stderr);
    let member = "<group_name>g</group_name>";
    let some = import(&place, "libvirt-xml", "d.xml", &domain(&[("/a/1", group), ("/a/2", member), ("/a/3", "")]));
    assert_eq!(some.stdout.matches("limit = \"900 iops\"").count(), 2, "{}", some.stdout);
    assert!(some.stderr.contains("each disk of the group gets the whole limit"), "{}", some.stderr);
    assert_accepted(&place, &some.stdout);
}

/// A domain with a disk of libvirt, as a running one prints it.
const PRINTED: &str = "<domain type='kvm'><name>web</name><devices>
    <disk type='file' device='disk' snapshot='no'>
      <driver name='qemu' type='raw' cache='none' io='native' discard='unmap' iothread='1' detect_zeroes='off'/>
      <source file='/srv/vm/web.img' index='1'><seclabel model='dac' relabel='no'/></source>
      <backingStore/>
      <target dev='vda' bus='virtio'/>
      <alias name='virtio-disk0'/>
      <address type='pci' domain='0x0000' bus='0x04' slot='0x00' function='0x0'/>
    </disk>
    <interface type='bridge'>
      <mac address='52:54:00:00:00:01'/><source bridge='br0'/><target dev='vnet0'/><model type='virtio'/>
      <bandwidth><outbound average='12500' burst='1250'/></bandwidth>
      <alias name='net0'/>
    </interface>
  </devices></domain>";

#[test]
fn properties_of_libvirt_were_lost_without_a_word() {
    let place = Place::new();
    let clean = import(&place, "libvirt-xml", "web.xml", PRINTED);
    assert_eq!(clean.stderr, "");
    assert!(!clean.stdout.contains("discard"), "the default of both: {}", clean.stdout);
    assert!(clean.stdout.contains("limit = \"100Mbit/s\"\nburst = \"102400us\"\n"), "{}", clean.stdout);
    assert_accepted(&place, &clean.stdout);
    let (disk, nic) = ("<backingStore/>", "<model type='virtio'/>");
    let changes = [
        (disk, "<serial>WD-4711</serial>", "\nserial = \"WD-4711\"\n"),
        (disk, "<serial>a serial number that is too long</serial>", "vda: a serial number has 1 to 20 printable"),
        (disk, "<shareable/>", "vda: <shareable>: no other VM"),
        (disk, "<blockio logical_block_size='4096'/>", "\nblock_size = \"4KiB\"\n"),
        (disk, "<blockio logical_block_size='1000'/>", "vda: a block size is a power of two"),
        (disk, "<blockio physical_block_size='4096'/>", "<blockio physical_block_size='4096'> has no counterpart"),
        (disk, "<wwn>5000c50015ea71aa</wwn>", "vda: <wwn> has no counterpart; it is left out"),
        (disk, "<geometry cyls='16383' heads='16' secs='63'/>", "vda: <geometry> has no counterpart"),
        (disk, "<boot order='1'/>", "vda: <boot>: state it again"),
        (disk, "<later><what a='1'/></later>", "vda: <later> has no counterpart"),
        ("discard='unmap'", "discard='ignore'", "\ndiscard = \"ignore\"\n"),
        ("discard='unmap'", "", "\ndiscard = \"ignore\"\n"),
        ("cache='none'", "cache='directsync'", "vda: <driver cache='directsync'>: a write was durable"),
        ("cache='none'", "error_policy='stop'", "vda: <driver error_policy='stop'>: now each error is reported"),
        ("cache='none'", "later='1'", "vda: <driver later='1'> has no counterpart"),
        ("bus='virtio'", "bus='sata'", "vda: <target bus='sata'>: the guest will see a virtio disk"),
        ("index='1'", "startupPolicy='optional'", "vda: <source startupPolicy='optional'>: the daemon needs"),
        (nic, "<filterref filter='clean-traffic'/>", "net0: <filterref>: the filter is not applied"),
        (nic, "<port isolated='yes'/>", "net0: <port isolated='yes'>: NICs of the same uplink"),
        (nic, "<model type='e1000e'/>", "net0: <model type='e1000e'>: the guest will see a virtio NIC"),
        (nic, "<coalesce><rx/></coalesce>", "net0: <coalesce> has no counterpart"),
        (nic, "<mtu size='9000'/>", "\nmtu = 9000\n"),
        (nic, "<driver name='vhost' queues='4'/>", "\nqueues = 4\n"),
        (
            nic,
            "<link state='down'/>",
            "net0: <link state='down'>: a NIC of the daemon is always connected; the NIC is left",
        ),
        (nic, "<virtualport type='openvswitch'/>", "net0: <virtualport>: the daemon cannot be"),
        (nic, "<vlan trunk='yes'><tag id='42'/></vlan>", "not a trunk (42); the NIC is left out"),
        ("io='native'", "queues='4'", "group = \"kvm\", queues = 4 }"),
    ];
    for (place_of, change, expected) in changes {
        let ended = import(&place, "libvirt-xml", "web.xml", &PRINTED.replace(place_of, change));
        let text = ended.stderr.clone() + &ended.stdout;
        assert!(text.contains(expected), "{change}: {text}");
        assert_eq!(ended.stdout.contains("nic.net0"), !text.contains("the NIC is left out"), "{change}");
        assert_accepted(&place, &ended.stdout);
    }
}

#[test]
fn a_disk_whose_data_would_be_damaged_was_imported() {
    let place = Place::new();
    let slice =
        |slice: &str| PRINTED.replace("<seclabel model='dac' relabel='no'/>", &format!("<slices>{slice}</slices>"));
    let sliced =
        import(&place, "libvirt-xml", "web.xml", &slice("<slice type='storage' offset='1048576' size='8388608'/>"));
    assert!(sliced.stdout.contains("offset = \"1MiB\"\nsize = \"8MiB\"\n"), "{}", sliced.stdout);
    assert_accepted(&place, &sliced.stdout);
    let disk = "<backingStore/>";
    let damaged = [
        (
            "libvirt-xml",
            slice("<slice type='storage' offset='100' size='8388608'/>"),
            "vda: <slices>: the disk does not",
        ),
        ("libvirt-xml", slice("<slice type='format' offset='0' size='512'/>"), "vda: <slices>: only one slice"),
        ("libvirt-xml", PRINTED.replace(disk, "<transient/>"), "vda: <transient>: what the guest writes would stay"),
        ("libvirt-xml", PRINTED.replace(disk, "<encryption format='luks'/>"), "vda: <encryption>: the guest would see"),
        ("libvirt-xml", PRINTED.replace("<seclabel", "<encryption format='luks'/><seclabel"), "vda: <encryption>: the"),
        ("libvirt-xml", PRINTED.replace(disk, "<mirror type='file' job='copy'/>"), "vda: <mirror>: a block job"),
        ("libvirt-xml", PRINTED.replace("type='raw'", "type='vpc'"), "vda: vpc: its guest would see"),
        (
            "proxmox-conf",
            "scsi0: local-lvm:a,serial=K,snapshot=1\n".to_owned(),
            "scsi0: snapshot=1 in 'local-lvm:a,serial=K,snapshot=1': what the guest writes",
        ),
        ("proxmox-conf", "template: 1\nscsi0: local-lvm:a\n".to_owned(), "it is a template"),
    ];
    for (format, text, expected) in damaged {
        let ended = import(&place, format, "f", &text);
        assert_eq!((ended.code(), ended.stdout.as_str()), (Some(1), ""), "{text}");
        assert!(ended.stderr.starts_with(&format!("error: Cannot import f: {expected}")), "{text}: {}", ended.stderr);
    }
}

/// A VM of Proxmox with a disk and a NIC that have these options besides.
fn vm(disk: &str, nic: &str) -> String {
    let disk = format!("virtio0: local-lvm:vm-104-disk-0,aio=native,cache=none,discard=on,iothread=1,size=32G{disk}");
    format!("{disk}\nnet0: virtio=BC:24:11:00:00:01,bridge=vmbr0,rate=10{nic}\n")
}

#[test]
fn options_of_proxmox_were_lost_without_a_word() {
    let place = Place::new();
    let clean =
        import(&place, "proxmox-conf", "104.conf", &vm(",backup=0,ro=1,shared=1", ",firewall=0,link_down=0,mtu=1"));
    assert_eq!(clean.stderr, "");
    assert!(clean.stdout.contains("read_only = true\n"), "{}", clean.stdout);
    let changes = [
        (",serial=KIOSK%2001", "", "\nserial = \"KIOSK 01\"\n"),
        (
            ",serial=100%25",
            "\nvirtio1: /dev/b,discard=on,serial=100%25",
            "virtio1: serial = \"100%\": another disk of the VM has it",
        ),
        (
            ",serial=virtio1",
            "\nvirtio1: /dev/b,discard=on",
            "virtio0: serial = \"virtio1\": another disk of the VM has it",
        ),
        (",backup=1", "", "virtio0: backup=1: `vzdump` will not"),
        (",cache=writethrough", "", "virtio0: cache=writethrough: a write was durable"),
        (",discard=ignore", "", "\ndiscard = \"ignore\"\n"),
        (",detect_zeroes=1", "", "virtio0: detect_zeroes=1: zeroes"),
        (",werror=stop", "", "virtio0: werror=stop: add it to the `-device`"),
        (",ssd=1", "", "virtio0: ssd=1: the guest will not see it"),
        (",wwn=0x5000c50015ea71aa", "", "virtio0: wwn=0x5000c50015ea71aa: the guest"),
        (",cyls=16383", "", "virtio0: cyls=16383 has no counterpart"),
        (",later=1", "", "virtio0: later=1 has no counterpart"),
        (",iops_up=5", "", "virtio0: iops_up=5 has no counterpart"),
        (",format=qcow2", "", "qemu-img convert -p -f qcow2"),
        ("", ",firewall=1", "net0: firewall=1: the firewall of Proxmox"),
        ("", ",link_down=1", "net0: link_down=1: a NIC of the daemon is always connected; the NIC is left out"),
        ("", ",tag=4095", "net0: tag=4095 is not a VLAN from 1 to 4094; the NIC is left out"),
        ("", ",mtu=9000", "\nmtu = 9000\n"),
        ("", ",queues=4", "\nqueues = 4\n"),
        ("", ",later=1", "net0: later=1 has no counterpart"),
        ("", "\nargs: -cpu host", "args: it is not read"),
        ("", "\nboot: order=virtio0;net0", "virtio0: the VM boots from it"),
        ("", "\n[PENDING]\nvirtio0: local-lvm:vm-104-disk-0,iops=5", "[PENDING]: changes that wait"),
    ];
    for (disk, nic, expected) in changes {
        let ended = import(&place, "proxmox-conf", "104.conf", &vm(disk, nic));
        let text = ended.stderr.clone() + &ended.stdout;
        assert!(text.contains(expected), "{disk}{nic}: {text}");
        assert_accepted(&place, &ended.stdout);
    }
}

#[test]
fn models_mtus_and_clones_of_proxmox_are_read() {
    let place = Place::new();
    let jumbo = "net1: virtio=BC:24:11:00:00:02,bridge=vmbr0,rate=10,mtu=9000\n";
    let jumbo = import(&place, "proxmox-conf", "104.conf", &(vm("", "") + jumbo)).ok();
    assert!(
        jumbo.contains("of the wire: needed for reservations, and so that the daemon decides\nmtu = 9000\n"),
        "{jumbo}"
    );
    assert_eq!((jumbo.matches("mtu = 1500").count(), jumbo.matches("mtu = 9000").count()), (1, 2), "{jumbo}");
    assert_accepted(&place, &jumbo);
    let model = import(&place, "proxmox-conf", "f", &vm("", "").replace("virtio=", "e1000="));
    assert!(model.stderr.contains("net0: model=e1000: the guest will see a virtio NIC"), "{}", model.stderr);
    assert!(model.stdout.contains("mac = \"BC:24:11:00:00:01\""), "{}", model.stdout);
    let other = import(&place, "proxmox-conf", "f", "scsi0: local:100/base-100-disk-0.raw/104/vm-104-disk-0.raw\n");
    assert!(
        other.stderr.contains("scsi0: the guest will see a virtio disk instead of one of scsi"),
        "{}",
        other.stderr
    );
    assert!(other.stdout.contains("source = \"/var/lib/vz/images/104/vm-104-disk-0.raw\""), "{}", other.stdout);
}

#[test]
fn throttle_groups_of_libvirt_left_the_vm_unlimited() {
    let place = Place::new();
    let groups = "<throttlegroups>
        <throttlegroup><total_iops_sec>400</total_iops_sec><group_name>one</group_name></throttlegroup>
        <throttlegroup><total_iops_sec>700</total_iops_sec><read_bytes_sec>7000000</read_bytes_sec><group_name>all</group_name></throttlegroup>
      </throttlegroups><devices>";
    let disk = |name: &str, filters: &str| {
        format!(
            "<disk type='block'><source dev='/dev/vg0/{name}'/><target dev='{name}' bus='virtio'/><throttlefilters>{filters}</throttlefilters></disk>"
        )
    };
    let (one, all) = ("<throttlefilter group='one'/>", "<throttlefilter group='all'/>");
    let domain = |disks: &[String]| format!("<domain><name>d</name>{groups}{}</devices></domain>", disks.concat());
    let two = domain(&[disk("vda", &format!("{one}{all}")), disk("vdb", all)]);
    let ended = import(&place, "libvirt-xml", "d.xml", &two);
    assert_eq!(ended.stderr, "");
    let (vm, volumes) = ended.stdout.split_once("[vm.d.volume.vda]").unwrap();
    assert!(vm.ends_with("limit = \"700 iops\"\nread_limit = \"7000000B/s\"\n\n"), "{vm}");
    let (first, second) = volumes.split_once("[vm.d.volume.vdb]").unwrap();
    assert!(first.contains("limit = \"400 iops\"") && !second.contains("limit"), "{volumes}");
    assert_accepted(&place, &ended.stdout);
    let both = import(&place, "libvirt-xml", "d.xml", &domain(&[disk("vda", &format!("{one}{all}"))]));
    assert!(both.stdout.contains("limit = \"400 iops\"\nread_limit = \"7000000B/s\"\n"), "{}", both.stdout);
    let gone = import(&place, "libvirt-xml", "d.xml", &domain(&[disk("vda", "<throttlefilter group='gone'/>")]));
    assert!(gone.stderr.contains("vda: <throttlegroups> has no group 'gone'"), "{}", gone.stderr);
}

#[test]
fn every_printed_file_is_accepted() {
    let place = Place::new();
    let mut tunes = Vec::new();
    for direction in ["total", "read", "write"] {
        for unit in ["iops", "bytes"] {
            for value in [1_u64, 100, 1_000_000, 9_000_000_000] {
                let limit = format!("<{direction}_{unit}_sec>{value}</{direction}_{unit}_sec>");
                let max = format!("<{direction}_{unit}_sec_max>{}</{direction}_{unit}_sec_max>", value * 2);
                tunes.push(limit.clone());
                tunes.push(limit.clone() + &max);
                tunes.push(limit + &max + "<size_iops_sec>4096</size_iops_sec>");
            }
        }
    }
    for tune in tunes {
        let ended = import(&place, "libvirt-xml", "d.xml", &domain(&[("/a/1", &tune), ("/a/2", "")]));
        assert_eq!(ended.code(), Some(0), "{tune}: {}", ended.stderr);
        let ended = import(&place, "libvirt-xml", "d.xml", &domain(&[("/a/1", &tune)]));
        assert_eq!(ended.code(), Some(0), "{tune}: {}", ended.stderr);
    }
}

#[test]
fn bad_input_is_rejected_with_what_to_do() {
    let place = Place::new();
    let wrong = "<total_iops_sec>many</total_iops_sec>";
    let refused = [
        ("libvirt-xml", "virsh".to_owned(), "Cannot import f: not XML: "),
        ("libvirt-xml", "<!DOCTYPE a [<!ENTITY b 'c'>]><domain>&b;</domain>".to_owned(), "Cannot import f: not XML: "),
        ("libvirt-xml", "<network/>".to_owned(), "Cannot import f: the root element is <network>, not <domain>"),
        ("libvirt-xml", "<domain/>".to_owned(), "Cannot import f: it has no disk that can be served"),
        (
            "libvirt-xml",
            domain(&[("/a/1", wrong)]),
            "Cannot import f: vd0: total_iops_sec is 'many', which is not a number",
        ),
        ("proxmox-conf", "name web\n".to_owned(), "Cannot import f: line 1: 'name web' is not KEY: VALUE"),
        (
            "proxmox-conf",
            "scsi0: local-lvm:a,iops=-5\n".to_owned(),
            "Cannot import f: scsi0: iops is '-5', which is not a number",
        ),
        ("proxmox-conf", "name: web\n".to_owned(), "Cannot import f: it has no disk that can be served"),
    ];
    for (format, text, message) in refused {
        let ended = import(&place, format, "f", &text);
        assert_eq!((ended.code(), ended.stdout.as_str()), (Some(1), ""), "{text}");
        assert!(ended.stderr.starts_with(&format!("error: {message}")), "{text}: {}", ended.stderr);
    }
    let missing = run(sluice().args(["import", "libvirt-xml", "/none.xml"])).failed();
    let expected =
        "error: Cannot import /none.xml: No such file or directory (os error 2); name a file that this user may read";
    assert!(missing.starts_with(expected), "{missing}");
}
