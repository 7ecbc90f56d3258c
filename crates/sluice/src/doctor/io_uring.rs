//! Whether io_uring is allowed: by the sysctl, and by a seccomp filter of the daemon.

use sluice_io::backend::ring::Ring;

use super::{Subject, field};
use sluice_daemon::findings::{Finding, Level};

pub(super) const NAME: &str = "io_uring";

pub(super) fn run(subject: &Subject) -> Vec<Finding> {
    let mut found = Vec::new();
    match subject.read("proc/sys/kernel/io_uring_disabled").as_deref() {
        Some("2") => found.push(
            Finding::new(Level::Error, NAME, "", "Disabled for all processes: kernel.io_uring_disabled is 2")
                .fix("sysctl -w kernel.io_uring_disabled=0, and the same line in /etc/sysctl.d"),
        ),
        Some("1") => {
            let group = subject.read("proc/sys/kernel/io_uring_group").unwrap_or_default();
            let text = format!(
                "Allowed only for processes with CAP_SYS_ADMIN or in the group kernel.io_uring_group, which is \
                 {group}: kernel.io_uring_disabled is 1"
            );
            found.push(
                Finding::new(Level::Warning, NAME, "", text)
                    .fix("set kernel.io_uring_group to the group of the daemon, or kernel.io_uring_disabled to 0"),
            );
        }
        _ => {}
    }
    let status = subject.read(&format!("{}/status", subject.process())).unwrap_or_default();
    if field(&status, "Seccomp") == Some("2") && subject.daemon.is_none() {
        let text = "A seccomp filter applies to this shell; container runtimes forbid io_uring by default";
        found.push(Finding::new(Level::Note, NAME, "", text));
    }
    if subject.is_live()
        && let Err(error) = Ring::new()
    {
        let fix = "allow io_uring_setup, io_uring_enter and io_uring_register in the seccomp profile of the container (for example \
                   --security-opt seccomp=PROFILE) or in SystemCallFilter= of the unit; for ENOMEM raise LimitMEMLOCK=";
        found.push(Finding::new(Level::Error, NAME, "", format!("Cannot create an io_uring: {error}")).fix(fix));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Fake, lines};
    use super::*;

    #[test]
    fn a_sysctl_that_forbids_io_uring_is_found() {
        let fake = Fake::new();
        fake.write("proc/sys/kernel/io_uring_disabled", "0\n").write("proc/self/status", "Name:\ta\nSeccomp:\t0\n");
        assert_eq!(lines(&run(&fake.subject(""))), [""; 0]);
        fake.write("proc/sys/kernel/io_uring_disabled", "1\n").write("proc/sys/kernel/io_uring_group", "-1\n");
        let found = lines(&run(&fake.subject("")));
        assert!(found[0].starts_with("Warning : Allowed only for") && found[0].contains("which is -1"), "{found:?}");
        fake.write("proc/sys/kernel/io_uring_disabled", "2\n").write("proc/self/status", "Seccomp:\t2\n");
        let found = lines(&run(&fake.subject("")));
        assert!(found[0].starts_with("Error : Disabled") && found[1].starts_with("Note : A seccomp"), "{found:?}");
    }
}
