//! `sluice doctor`: what on this host prevents the daemon from working or breaks its guarantees.
//!
//! A check is a function in a file of its own and an entry in [`CHECKS`]. It reads /proc, /sys and /etc through the
//! [`Subject`], whose root a test replaces with a folder, and returns findings with their fixes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use sluice_config::Host;

use sluice_daemon::findings::{Finding, Level};
use sluice_daemon::server::{Disks, Matches};

mod cgroup;
mod clock;
mod disk;
mod guests;
mod io_uring;
mod jail;
mod kernel;
mod limits;
mod network;
mod sockets;
mod space;

/// A check.
pub(crate) struct Check {
    /// Its name in findings.
    name: &'static str,
    run: fn(&Subject) -> Vec<Finding>,
}

/// All checks, in the order in which they run.
const CHECKS: &[Check] = &[
    Check { name: kernel::NAME, run: kernel::run },
    Check { name: io_uring::NAME, run: io_uring::run },
    Check { name: jail::NAME, run: jail::run },
    Check { name: limits::NAME, run: limits::run },
    Check { name: clock::NAME, run: clock::run },
    Check { name: disk::NAME, run: disk::run },
    Check { name: cgroup::NAME, run: cgroup::run },
    Check { name: guests::NAME, run: guests::run },
    Check { name: network::NAME, run: network::run },
    Check { name: sockets::NAME, run: sockets::run },
    Check { name: space::NAME, run: space::run },
];

/// The examined host.
pub(crate) struct Subject {
    /// The folder that contains /proc, /sys and /etc.
    root: PathBuf,
    /// The host file, if there is one.
    host: Option<Host>,
    /// Names of the disks of each device of the host file.
    disks: BTreeMap<String, Vec<String>>,
    /// Process of a running daemon.
    daemon: Option<u32>,
}

impl Subject {
    /// Returns this host. Waits for the paths of the host file's devices.
    pub(crate) fn new(host: Option<Host>) -> Subject {
        let mut subject = Subject::at(Path::new("/"), host);
        for device in subject.host.iter().flat_map(|host| host.devices.values()) {
            if let Ok(disks) = Disks::of(&device.paths, Matches::All, |_| {}) {
                subject.disks.insert(device.name.clone(), disks.found.names().map(str::to_owned).collect());
            }
        }
        subject
    }

    fn at(root: &Path, host: Option<Host>) -> Subject {
        let mut subject = Subject { root: root.to_owned(), host, disks: BTreeMap::new(), daemon: None };
        let is_daemon = |pid: &u32| {
            let words = subject.words(*pid);
            // Before it was a program of its own the daemon was `sluice serve`.
            let name = subject.name_of(*pid);
            name == "sluiced" || name == "sluice" && words.iter().any(|word| word == "serve")
        };
        let daemon = subject.processes().find(is_daemon);
        subject.daemon = daemon;
        subject
    }

    /// Runs all checks. One without findings is reported as in order.
    pub(crate) fn examine(&self) -> Vec<Finding> {
        let run = |check: &Check| match (check.run)(self) {
            found if found.is_empty() => vec![Finding::new(Level::Ok, check.name, "", "No findings")],
            found => found,
        };
        CHECKS.iter().flat_map(run).collect()
    }

    /// Whether this is the host itself, and not a folder of a test.
    fn is_live(&self) -> bool {
        self.root == Path::new("/")
    }

    /// Returns the path of a file of the host, such as `proc/meminfo`.
    fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// Returns the trimmed text of a file; `None` if it cannot be read.
    fn read(&self, path: &str) -> Option<String> {
        fs::read(self.path(path)).ok().map(|text| String::from_utf8_lossy(&text).trim().to_owned())
    }

    /// Returns the names in a folder, in order.
    fn names(&self, path: &str) -> BTreeSet<String> {
        let entries = fs::read_dir(self.path(path)).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
    }

    fn processes(&self) -> impl Iterator<Item = u32> {
        self.names("proc").into_iter().filter_map(|name| name.parse().ok())
    }

    /// Returns the name of a process's program.
    fn name_of(&self, pid: u32) -> String {
        self.read(&format!("proc/{pid}/comm")).unwrap_or_default()
    }

    /// Returns the command line of a process.
    fn words(&self, pid: u32) -> Vec<String> {
        let line = self.read(&format!("proc/{pid}/cmdline")).unwrap_or_default();
        line.split('\0').map(str::to_owned).collect()
    }

    /// Returns the folder in /proc of the daemon, or of this process if none runs.
    fn process(&self) -> String {
        self.daemon.map_or_else(|| "proc/self".to_owned(), |pid| format!("proc/{pid}"))
    }

    /// Names the process of [`Subject::process`].
    fn process_name(&self) -> String {
        self.daemon.map_or_else(|| "this shell (no daemon runs)".to_owned(), |pid| format!("daemon, process {pid}"))
    }
}

/// Returns the value of a line `KEY: VALUE`, such as those of `/proc/PID/status`.
fn field<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':')).map(str::trim)
}

#[cfg(test)]
mod testing {
    use tempfile::TempDir;

    use super::*;

    /// A host in a folder.
    pub(super) struct Fake(TempDir);

    impl Fake {
        pub(super) fn new() -> Fake {
            Fake(TempDir::new().unwrap())
        }

        pub(super) fn write(&self, path: &str, text: &str) -> &Fake {
            let path = self.0.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
            self
        }

        /// Adds a process with this program and command line.
        pub(super) fn process(&self, pid: u32, words: &[&str]) -> &Fake {
            let name = Path::new(words[0]).file_name().unwrap().to_str().unwrap();
            // The kernel keeps 15 bytes of the name.
            self.write(&format!("proc/{pid}/comm"), &format!("{}\n", &name[..name.len().min(15)]));
            self.write(&format!("proc/{pid}/cmdline"), &(words.join("\0") + "\0"))
        }

        pub(super) fn subject(&self, host: &str) -> Subject {
            let host = (!host.is_empty())
                .then(|| sluice_config::parse("a test's host file", host).unwrap_or_else(|found| panic!("{found}")));
            Subject::at(self.0.path(), host)
        }
    }

    /// Returns findings as `LEVEL ABOUT: TEXT`. Each has a fix if it is more than a note.
    pub(super) fn lines(findings: &[Finding]) -> Vec<String> {
        let line = |found: &Finding| {
            assert!(found.level < Level::Warning || found.fix.is_some(), "{found:?} has no fix");
            format!("{:?} {}: {}", found.level, found.about, found.text)
        };
        findings.iter().map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::testing::Fake;
    use super::*;

    #[test]
    fn every_check_reports_something_and_needs_no_file() {
        let fake = Fake::new();
        let found = fake.subject("").examine();
        for check in CHECKS {
            assert!(found.iter().any(|found| found.check == check.name), "{}", check.name);
        }
        assert!(found.iter().all(|found| found.level < Level::Warning), "nothing is known to be wrong: {found:?}");
    }

    #[test]
    fn the_daemon_is_the_process_that_serves() {
        let fake = Fake::new();
        fake.process(10, &["/usr/bin/sluice", "doctor"]).process(20, &["/usr/bin/sluice", "-q", "serve", "/etc/h"]);
        let subject = fake.subject("");
        assert_eq!((subject.daemon, subject.process()), (Some(20), "proc/20".to_owned()));
    }
}
