//! Nested limits: what control groups take from the daemon, or from VMMs without effect.

use super::Subject;
use sluice_daemon::findings::{Finding, Level};

pub(super) const NAME: &str = "cgroup";

pub(super) fn run(subject: &Subject) -> Vec<Finding> {
    let mut found = Vec::new();
    let about = subject.process_name();
    let groups = subject.read(&format!("{}/cgroup", subject.process())).unwrap_or_default();
    for (file, limit) in limits(subject, &groups) {
        let text = format!(
            "{file} is '{limit}': it limits all VMs together, below the scheduler, so reservations may be missed"
        );
        let fix = "remove the limit from the unit of the daemon and from the slices above it \
                   (IOReadBandwidthMax=, IOWriteIOPSMax=, CPUQuota=, MemoryHigh= and similar), and limit VMs in \
                   the host file";
        found.push(Finding::new(Level::Warning, NAME, &about, text).fix(fix));
    }
    for pid in super::guests::vmms(subject) {
        let groups = subject.read(&format!("proc/{pid}/cgroup")).unwrap_or_default();
        for (file, limit) in limits(subject, &groups).into_iter().filter(|(file, _)| is_io(file)) {
            let text = format!(
                "{file} is '{limit}': it limits what the VMM reads and writes itself, not its volumes at the daemon"
            );
            let vmm = format!("{}, process {pid}", subject.name_of(pid));
            found.push(Finding::new(Level::Note, NAME, vmm, text));
        }
    }
    found
}

fn is_io(file: &str) -> bool {
    file.contains("/io.") || file.contains("/blkio.")
}

/// Returns the limits that apply to a process with these lines of `/proc/PID/cgroup`: file and contents.
fn limits(subject: &Subject, groups: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for line in groups.lines() {
        let Some((controllers, path)) = line.split_once(':').and_then(|(_, rest)| rest.split_once(':')) else {
            continue;
        };
        let (roots, files): (&[&str], &[&str]) = match controllers {
            "" => (
                &["sys/fs/cgroup", "sys/fs/cgroup/unified"],
                &["io.max", "io.latency", "cpu.max", "memory.max", "memory.high"],
            ),
            "blkio" => (&["sys/fs/cgroup/blkio"], &BLKIO),
            _ => continue,
        };
        for root in roots {
            // Each group above it limits it too.
            let mut group = path.trim_matches('/');
            loop {
                for name in files {
                    let file = format!("{root}/{group}/{name}").replace("//", "/");
                    let text = subject.read(&file).unwrap_or_default();
                    let limits = text.lines().filter(|line| is_limit(name, line));
                    found.extend(limits.map(|line| (format!("/{file}"), line.to_owned())));
                }
                match group.rsplit_once('/') {
                    Some((above, _)) => group = above,
                    None if group.is_empty() => break,
                    None => group = "",
                }
            }
        }
    }
    found
}

/// Limits of the first version of control groups.
const BLKIO: [&str; 4] = [
    "blkio.throttle.read_bps_device",
    "blkio.throttle.write_bps_device",
    "blkio.throttle.read_iops_device",
    "blkio.throttle.write_iops_device",
];

/// Whether a line of a file limits anything: `8:0 rbps=max wbps=max riops=100 wiops=max` does.
fn is_limit(file: &str, line: &str) -> bool {
    let mut words = line.split_whitespace();
    match file {
        "io.max" => words.skip(1).any(|word| !word.ends_with("=max")),
        "cpu.max" | "memory.max" | "memory.high" => words.next().is_some_and(|word| word != "max"),
        _ => words.next().is_some(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Fake, lines};
    use super::*;

    #[test]
    fn limits_of_the_daemons_group_and_of_those_above_are_found() {
        let fake = Fake::new();
        fake.process(7, &["sluice", "serve", "h"]).write("proc/7/cgroup", "0::/system.slice/sluice.service\n");
        let group = "sys/fs/cgroup/system.slice/sluice.service";
        fake.write(&format!("{group}/io.max"), "").write(&format!("{group}/cpu.max"), "max 100000\n");
        fake.write(&format!("{group}/memory.max"), "max\n");
        assert_eq!(lines(&run(&fake.subject(""))), [""; 0]);
        fake.write(
            "sys/fs/cgroup/system.slice/io.max",
            "8:0 rbps=max wbps=max riops=max wiops=max\n8:16 rbps=1000 wbps=max\n",
        );
        fake.write(&format!("{group}/cpu.max"), "50000 100000\n");
        let found = lines(&run(&fake.subject("")));
        assert!(found[0].contains("sluice.service/cpu.max is '50000 100000'"), "{found:?}");
        assert!(found[1].contains("/sys/fs/cgroup/system.slice/io.max is '8:16 rbps=1000 wbps=max'"), "{found:?}");
        assert_eq!(found.len(), 2);
    }

    #[test]
    fn limits_of_the_first_version_and_of_vmms_are_found() {
        let fake = Fake::new();
        fake.write("proc/self/cgroup", "7:blkio:/a\n0::/\n");
        fake.write("sys/fs/cgroup/blkio/a/blkio.throttle.read_iops_device", "8:0 100\n");
        let found = lines(&run(&fake.subject("")));
        assert!(found[0].starts_with("Warning this shell") && found[0].contains("is '8:0 100'"), "{found:?}");
        fake.process(9, &["qemu-system-x86_64"]).write("proc/9/cgroup", "0::/machine.slice/a\n");
        fake.write("sys/fs/cgroup/machine.slice/a/io.max", "8:0 wiops=500\n");
        let found = lines(&run(&fake.subject("")));
        assert!(
            found[1].starts_with("Note qemu-system-x86, process 9:") && found[1].contains("not its volumes"),
            "{found:?}"
        );
    }
}
