//! Running VMMs: memory that the daemon can map, huge pages, and limits of their own on the same disks.

use super::Subject;
use sluice_daemon::findings::{Finding, Level};

pub(super) const NAME: &str = "guests";

/// Returns the processes of VMMs.
pub(super) fn vmms(subject: &Subject) -> Vec<u32> {
    let is_vmm = |pid: &u32| {
        let name = subject.name_of(*pid);
        name.starts_with("qemu-system") || name == "qemu-kvm" || name == "kvm" || name.starts_with("cloud-hyperviso")
    };
    subject.processes().filter(is_vmm).collect()
}

pub(super) fn run(subject: &Subject) -> Vec<Finding> {
    let mut found: Vec<Finding> = vmms(subject).into_iter().flat_map(|pid| of_vmm(subject, pid)).collect();
    found.extend(huge_pages(subject));
    found
}

fn of_vmm(subject: &Subject, pid: u32) -> Vec<Finding> {
    let words = subject.words(pid);
    let line = words.join(" ");
    let about = format!("{}, process {pid}", subject.name_of(pid));
    let mut found = Vec::new();
    let uses_vhost_user = line.contains("vhost-user-blk") || line.contains("vhost_user=");
    let is_shared = line.contains("share=on") || line.contains("shared=on") || line.contains("\"share\":true");
    if uses_vhost_user && !is_shared {
        let text = "It has a vhost-user disk, and its memory is not shared: the daemon cannot read or write it, and the disk fails";
        let fix = "QEMU: -object memory-backend-memfd,id=mem,size=SIZE,share=on -machine memory-backend=mem; libvirt: <memoryBacking> with \
                   <source type='memfd'/> and <access mode='shared'/>; Cloud Hypervisor: --memory shared=on. `sluice export` prints all of it";
        found.push(Finding::new(Level::Error, NAME, &about, text).fix(fix));
    }
    let is_huge =
        ["hugetlb=on", "hugepages=on", "/hugepages", "\"hugetlb\":true"].iter().any(|word| line.contains(word));
    if uses_vhost_user && is_shared && !is_huge {
        let text = "Its memory is not on huge pages: guest and daemon miss the TLB more often (memory-backend-memfd,hugetlb=on)";
        found.push(Finding::new(Level::Note, NAME, &about, text));
    }
    let throttles = words.iter().filter(|word| is_throttle(word)).count();
    if throttles > 0 {
        let text = "QEMU limits disks of this VM itself (throttling.* or a throttle group): the VM does not reach \
                    a reservation above that limit, and `sluice` reports too few outstanding requests as the \
                    cause";
        let fix = "take throttling.* and throttle groups (libvirt: <iotune>, `virsh blkdeviotune`) away, and set limit and burst in the host file";
        found.push(Finding::new(Level::Warning, NAME, &about, text).fix(fix));
    }
    found
}

fn is_throttle(word: &str) -> bool {
    const KEYS: [&str; 6] =
        ["throttling.", "throttle-group", "iops-total=", "bps-total=", "\"driver\":\"throttle\"", "rate-limiter"];
    KEYS.iter().any(|key| word.contains(key))
}

/// Whether huge pages were reserved, and all of them are in use.
fn huge_pages(subject: &Subject) -> Option<Finding> {
    let meminfo = subject.read("proc/meminfo")?;
    let number = |key: &str| super::field(&meminfo, key)?.parse::<u64>().ok();
    let (total, free) = (number("HugePages_Total")?, number("HugePages_Free")?);
    (total > 0 && free == 0).then(|| {
        let text = format!("All {total} huge pages are in use: a VM that needs more does not start");
        Finding::new(Level::Note, NAME, "", text)
    })
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Fake, lines};
    use super::*;

    const DISK: [&str; 4] = ["-chardev", "socket,id=c,path=/run/a.sock", "-device", "vhost-user-blk-pci,chardev=c"];

    fn qemu<'a>(more: &[&'a str]) -> Vec<&'a str> {
        ["/usr/bin/qemu-system-x86_64", "-m", "1G"].iter().chain(more).copied().collect()
    }

    #[test]
    fn a_vhost_user_disk_without_shared_memory_is_found() {
        let fake = Fake::new();
        fake.process(9, &qemu(&DISK));
        let found = lines(&run(&fake.subject("")));
        assert!(found[0].starts_with("Error qemu-system-x86, process 9: It has a vhost-user disk"), "{found:?}");
        let shared = ["-object", "memory-backend-memfd,id=mem,size=1G,share=on", "-machine", "memory-backend=mem"];
        fake.process(9, &qemu(&[&DISK[..], &shared].concat()));
        let found = lines(&run(&fake.subject("")));
        assert!(found.len() == 1 && found[0].starts_with("Note") && found[0].contains("huge pages"), "{found:?}");
        fake.process(9, &qemu(&["-drive", "file=a.img,if=virtio"]));
        assert_eq!(lines(&run(&fake.subject(""))), [""; 0], "a VM without vhost-user needs none");
        fake.process(9, &["cloud-hypervisor", "--memory", "size=1G", "--disk", "vhost_user=on,socket=/run/a.sock"]);
        assert!(lines(&run(&fake.subject("")))[0].starts_with("Error cloud-hypervis"));
    }

    #[test]
    fn limits_of_qemu_are_found() {
        let fake = Fake::new();
        for limit in [
            "driver=nbd,throttling.iops-total=100",
            "{\"driver\":\"throttle\",\"node-name\":\"t\"}",
            "throttle-group,id=g,limits.iops-total=5",
        ] {
            fake.process(9, &qemu(&["-drive", limit]));
            let found = lines(&run(&fake.subject("")));
            assert!(found[0].starts_with("Warning") && found[0].contains("QEMU limits disks"), "{found:?}");
        }
    }

    #[test]
    fn used_up_huge_pages_are_found() {
        let fake = Fake::new();
        fake.write("proc/meminfo", "MemTotal: 1 kB\nHugePages_Total:     512\nHugePages_Free:        0\n");
        assert_eq!(
            lines(&run(&fake.subject(""))),
            ["Note : All 512 huge pages are in use: a VM that needs more does not start"]
        );
        fake.write("proc/meminfo", "HugePages_Total:     0\nHugePages_Free:        0\n");
        assert_eq!(lines(&run(&fake.subject(""))), [""; 0]);
    }
}
