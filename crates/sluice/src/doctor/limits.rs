//! Limits of the daemon's process: locked memory, open files, address space and file sizes.

use sluice_io::reactor::priority;

use super::Subject;
use super::kernel::version;
use crate::findings::{Finding, Level};

pub(super) const NAME: &str = "limits";

/// Descriptors with which a host of some hundred volumes works.
const DESCRIPTORS: u64 = 16_384;
/// Before this version of Linux the rings of io_uring count as locked memory, about 1 MiB for each device.
const UNCHARGED: (u32, u32) = (5, 12);
const RING_BYTES: u64 = 1 << 20;

pub(super) fn run(subject: &Subject) -> Vec<Finding> {
    let Some(limits) = subject.read(&format!("{}/limits", subject.process())) else { return Vec::new() };
    let about = subject.process_name();
    let mut found = Vec::new();
    if let Some(most) = limit(&limits, "Max open files").filter(|most| *most < DESCRIPTORS) {
        let text = format!("At most {most} open files: NBD connections, VMM sessions and volumes share them");
        let fix = format!(
            "LimitNOFILE={} in the unit, or `ulimit -Hn` in a shell; `sluice check --host` counts what a host file needs",
            1 << 20
        );
        found.push(Finding::new(Level::Warning, NAME, &about, text).fix(fix));
    }
    let devices = subject.host.as_ref().map_or(1, |host| host.devices.len() as u64);
    let release = subject.read("proc/sys/kernel/osrelease").unwrap_or_default();
    let is_charged = version(&release).is_some_and(|version| version < UNCHARGED);
    if is_charged && limit(&limits, "Max locked memory").is_some_and(|most| most < devices * RING_BYTES) {
        let text = format!(
            "Linux {release} counts io_uring's rings as locked memory, and the limit of locked memory is too low"
        );
        found.push(Finding::new(Level::Error, NAME, &about, text).fix("LimitMEMLOCK=infinity in the unit"));
    }
    let wants_real_time = subject.host.as_ref().is_some_and(|host| host.daemon.real_time);
    if wants_real_time && limit(&limits, "Max realtime priority") == Some(0) && !may_set_priorities(subject) {
        let text = "real_time = \"auto\" has no effect: real-time priority is not allowed".to_owned();
        found.push(Finding::new(Level::Warning, NAME, &about, text).fix(priority::FIX));
    }
    for (key, name) in [("Max address space", "LimitAS"), ("Max file size", "LimitFSIZE")] {
        if let Some(most) = limit(&limits, key) {
            let text = format!("{key} is {most} bytes, but the daemon maps the memory of guests and writes images");
            found.push(Finding::new(Level::Warning, NAME, &about, text).fix(format!("{name}=infinity in the unit")));
        }
    }
    found
}

/// Whether the process has CAP_SYS_NICE, with which the limit does not count.
fn may_set_priorities(subject: &Subject) -> bool {
    const SYS_NICE: u32 = 23;
    let status = subject.read(&format!("{}/status", subject.process())).unwrap_or_default();
    let rights = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    rights
        .and_then(|rights| u64::from_str_radix(rights.trim(), 16).ok())
        .is_some_and(|rights| rights >> SYS_NICE & 1 == 1)
}

/// Returns a hard limit; `None` if it is unlimited or not known.
fn limit(limits: &str, key: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix(key))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Fake, lines};
    use super::*;

    fn table(files: &str, locked: &str, space: &str) -> String {
        format!(
            "Limit                     Soft Limit           Hard Limit           Units     \n\
             Max file size             unlimited            unlimited            bytes     \n\
             Max open files            1024                 {files}               files     \n\
             Max locked memory         65536                {locked}             bytes     \n\
             Max address space         unlimited            {space}              bytes     \n"
        )
    }

    #[test]
    fn low_limits_of_the_daemon_are_found() {
        let fake = Fake::new();
        fake.process(7, &["sluice", "serve", "h"]).write("proc/7/limits", &table("524288", "65536", "unlimited"));
        fake.write("proc/sys/kernel/osrelease", "6.1.0");
        assert_eq!(lines(&run(&fake.subject(""))), [""; 0]);
        fake.write("proc/sys/kernel/osrelease", "5.11.0").write("proc/7/limits", &table("4096", "65536", "1000"));
        let found = lines(&run(&fake.subject("")));
        assert!(
            found[0].contains("(daemon, process 7)") || found[0].contains("daemon, process 7: At most 4096"),
            "{found:?}"
        );
        assert!(found[1].contains("locked memory") && found[2].contains("Max address space is 1000"), "{found:?}");
        assert_eq!(found.len(), 3);
    }

    #[test]
    fn real_time_priority_that_is_wanted_and_not_allowed_is_found() {
        let fake = Fake::new();
        let limits = "Max realtime priority     0                    0                    \n";
        fake.process(7, &["sluice", "serve", "h"]).write("proc/7/limits", limits);
        fake.write("proc/7/status", "CapEff:\t0000000000000002\n");
        let host = "[daemon]\nreal_time = \"auto\"\n";
        let found = lines(&run(&fake.subject(host)));
        assert!(found.len() == 1 && found[0].contains("is not allowed"), "{found:?}");
        assert_eq!(lines(&run(&fake.subject(""))), [""; 0], "it is not wanted");
        fake.write("proc/7/status", "CapEff:\t0000000000800000\n");
        assert_eq!(lines(&run(&fake.subject(host))), [""; 0], "CAP_SYS_NICE allows it");
    }
}
