//! The kernel's version.

use sluice_io::rights;

use super::Subject;
use sluice_daemon::findings::{Finding, Level};

pub(super) const NAME: &str = "kernel";

/// The oldest kernel whose io_uring the daemon can use.
const OLDEST: (u32, u32) = (5, 11);
/// The first one whose number of io_uring workers can be set.
const WORKERS: (u32, u32) = (5, 15);
/// The first one with the cheapest completion mode of io_uring.
const CHEAPEST: (u32, u32) = (6, 1);

/// What clients may do before Linux 6.16.
const DESCRIPTORS: &str = "a client of an NBD socket of this host, or of the control socket, can send a file that takes long to close, and \
                           so stop the device, or the daemon's changes, for that time";

pub(super) fn run(subject: &Subject) -> Vec<Finding> {
    let Some(release) = subject.read("proc/sys/kernel/osrelease") else {
        return vec![Finding::new(Level::Note, NAME, "", "Cannot read the kernel's version: /proc is not mounted")];
    };
    let Some(version) = version(&release) else {
        return vec![Finding::new(Level::Note, NAME, "", format!("Unknown kernel version: {release}"))];
    };
    let finding = |level, text: &str| Finding::new(level, NAME, "", format!("Linux {release}: {text}"));
    vec![match version {
        version if version < OLDEST => finding(Level::Error, "its io_uring is too old")
            .fix("install Linux 6.1 or newer; 5.11 is the oldest that works"),
        version if version < WORKERS => finding(
            Level::Warning,
            "the number of io_uring workers cannot be set, so slow operations of one VM can delay the syncs of others",
        )
        .fix("install Linux 6.1 or newer"),
        version if version < CHEAPEST => {
            finding(Level::Note, "completions cost more CPU time than with Linux 6.1 or newer")
        }
        version if version < rights::SINCE => finding(Level::Note, DESCRIPTORS)
            .fix("install Linux 6.16 or newer, or let only programs of the host open those sockets; vhost-user is not affected"),
        _ => finding(Level::Ok, "new enough"),
    }]
}

/// Returns the first two numbers of a version such as `6.1.0-13-amd64`.
pub(super) fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::super::testing::Fake;
    use super::*;

    #[test]
    fn old_kernels_are_found() {
        let levels = [
            ("5.10.0-26-amd64", Level::Error),
            ("5.11.1", Level::Warning),
            ("5.15.0-91-generic", Level::Note),
            ("6.1.0-13-amd64", Level::Note),
            ("6.16.1", Level::Ok),
            ("unknown", Level::Note),
        ];
        for (release, level) in levels {
            let fake = Fake::new();
            fake.write("proc/sys/kernel/osrelease", release);
            let found = run(&fake.subject(""));
            assert_eq!((found.len(), found[0].level), (1, level), "{found:?}");
            assert_eq!(found[0].fix.is_some(), level >= Level::Warning || release.starts_with("6.1."));
        }
    }
}
