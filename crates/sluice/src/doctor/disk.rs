//! Disks: the kernel's scheduler, the write cache and the queue depth.

use std::collections::BTreeSet;

use super::Subject;
use sluice_daemon::findings::{Finding, Level};

pub(super) const NAME: &str = "disk";

pub(super) fn run(subject: &Subject) -> Vec<Finding> {
    let of_file: BTreeSet<&String> = subject.disks.values().flatten().collect();
    let is_real = |name: &String| subject.path(&format!("sys/block/{name}/device")).exists();
    let disks: Vec<String> = match of_file.is_empty() {
        // Without a host file, all that are more than files and memory.
        true => subject.names("sys/block").into_iter().filter(is_real).collect(),
        false => of_file.into_iter().cloned().collect(),
    };
    disks.iter().flat_map(|disk| of_disk(subject, disk)).collect()
}

fn of_disk(subject: &Subject, disk: &str) -> Vec<Finding> {
    let queue = |name: &str| subject.read(&format!("sys/block/{disk}/queue/{name}"));
    let about = format!("disk {disk}");
    let mut found = Vec::new();
    let schedulers = queue("scheduler").unwrap_or_default();
    let current = schedulers.split_whitespace().find_map(|name| name.strip_prefix('[')?.strip_suffix(']'));
    if let Some(current) = current.filter(|name| *name != "none") {
        let text = format!(
            "The kernel's scheduler {current} reorders and holds requests after the daemon's: the daemon no \
             longer controls the latency, and reservations may be missed"
        );
        let rule = format!("ACTION==\"add|change\", KERNEL==\"{disk}\", ATTR{{queue/scheduler}}=\"none\"");
        let fix = format!(
            "echo none > /sys/block/{disk}/queue/scheduler, and for the next boot {rule} in /etc/udev/rules.d/60-sluice.rules"
        );
        found.push(Finding::new(Level::Warning, NAME, &about, text).fix(fix));
    }
    if queue("write_cache").as_deref() == Some("write back") {
        let text = "It has a volatile write cache: each flush of a guest takes time, and a power cut loses data \
                    that no guest has flushed";
        found.push(Finding::new(Level::Note, NAME, &about, text));
    }
    let depth =
        subject.host.iter().flat_map(|host| host.devices.values()).filter(|device| {
            subject.disks.get(&device.name).is_some_and(|disks| disks.iter().any(|name| name == disk))
        });
    let requests: Option<u32> = queue("nr_requests").and_then(|text| text.parse().ok());
    if let (Some(device), Some(requests)) = (depth.max_by_key(|device| device.depth), requests)
        && device.depth > requests
    {
        let text =
            format!("Device {} has depth = {}, and the kernel queues at most {requests}", device.name, device.depth);
        let fix = format!("lower depth, or echo {} > /sys/block/{disk}/queue/nr_requests", device.depth);
        found.push(Finding::new(Level::Warning, NAME, &about, text).fix(fix));
    }
    if queue("io_timeout").and_then(|text| text.parse::<u64>().ok()) == Some(0) {
        let text =
            "Requests never time out (io_timeout is 0): a broken disk hangs its volumes until the host is restarted";
        let fix = format!("echo 30000 > /sys/block/{disk}/queue/io_timeout");
        found.push(Finding::new(Level::Warning, NAME, &about, text).fix(fix));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Fake, lines};
    use super::*;

    fn disk(fake: &Fake, name: &str, scheduler: &str, cache: &str) {
        let queue = format!("sys/block/{name}/queue");
        fake.write(&format!("{queue}/scheduler"), scheduler).write(&format!("{queue}/write_cache"), cache);
        fake.write(&format!("{queue}/nr_requests"), "64\n").write(&format!("sys/block/{name}/device/model"), "");
    }

    #[test]
    fn a_second_scheduler_and_a_volatile_cache_are_found() {
        let fake = Fake::new();
        disk(&fake, "sda", "[mq-deadline] none\n", "write back\n");
        disk(&fake, "nvme0n1", "[none] mq-deadline\n", "write through\n");
        fake.write("sys/block/loop0/queue/scheduler", "[mq-deadline] none");
        let found = lines(&run(&fake.subject("")));
        assert!(found[0].starts_with("Warning disk sda: The kernel's scheduler mq-deadline"), "{found:?}");
        assert!(found[1].starts_with("Note disk sda: It has a volatile write cache"), "{found:?}");
        assert_eq!(found.len(), 2);
    }

    #[test]
    fn only_the_disks_of_a_host_file_are_looked_at() {
        let fake = Fake::new();
        disk(&fake, "sda", "[bfq] none\n", "write back\n");
        disk(&fake, "nvme0n1", "[none] mq-deadline\n", "write through\n");
        let mut subject = fake.subject("[device.d]\npath = \"/dev/nvme0n1\"\ndepth = 128\n");
        subject.disks.insert("d".to_owned(), vec!["nvme0n1".to_owned()]);
        let found = lines(&run(&subject));
        assert_eq!(found, ["Warning disk nvme0n1: Device d has depth = 128, and the kernel queues at most 64"]);
        fake.write("sys/block/nvme0n1/queue/io_timeout", "0\n").write("sys/block/nvme0n1/queue/nr_requests", "1023\n");
        assert!(lines(&run(&subject))[0].contains("never time out"));
    }
}
