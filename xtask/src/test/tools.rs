//! The programs that the black-box tests start, and their Debian packages.
//!
//! The tests check the daemon against NBD clients, servers and file systems of other projects, none of which is
//! linked into it. Missing packages are installed if the user is root and apt-get exists. Otherwise the error lists
//! them.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::package;

/// `(program, package)`, packages as in Debian 12.
pub(super) const TOOLS: Tools = &[
    ("c++", "g++"),
    ("chromedriver", "chromium-driver"),
    ("chromium", "chromium"),
    ("chromium-headless-shell", "chromium-headless-shell"),
    ("curl", "curl"),
    ("debugfs", "e2fsprogs"),
    ("dpkg-shlibdeps", "dpkg-dev"),
    ("fio", "fio"),
    ("flock", "util-linux"),
    ("fsfreeze", "util-linux"),
    ("ip", "iproute2"),
    ("iperf", "iperf"),
    ("iperf3", "iperf3"),
    ("losetup", "mount"),
    ("lintian", "lintian"),
    ("lz4", "lz4"),
    ("mkfs.btrfs", "btrfs-progs"),
    ("mkfs.ext4", "e2fsprogs"),
    ("mkfs.xfs", "xfsprogs"),
    ("mmdebstrap", "mmdebstrap"),
    ("mount", "mount"),
    ("nbdcopy", "libnbd-bin"),
    ("nbdfuse", "libnbd-bin"),
    ("nbdinfo", "libnbd-bin"),
    ("nbdkit", "nbdkit"),
    ("nbdsh", "python3-libnbd"),
    ("nsenter", "util-linux"),
    ("prometheus", "prometheus"),
    ("promtool", "prometheus"),
    ("qemu-img", "qemu-utils"),
    ("qemu-io", "qemu-utils"),
    ("qemu-storage-daemon", "qemu-system-common"),
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("sfdisk", "fdisk"),
    ("strace", "strace"),
    ("strip", "binutils"),
    ("systemd-nspawn", "systemd-container"),
    ("virsh", "libvirt-clients"),
    ("virt-qemu-run", "libvirt-daemon-driver-qemu"),
];

/// The same for a Ceph cluster and its clients.
pub(super) const CEPH: Tools = &[
    ("block-rbd.so", "qemu-block-extra"),
    ("ceph", "ceph-common"),
    ("ceph-mgr", "ceph-mgr"),
    ("ceph-mon", "ceph-mon"),
    ("ceph-osd", "ceph-osd"),
    ("fio", "fio"),
    ("nbdinfo", "libnbd-bin"),
    ("qemu-io", "qemu-utils"),
    ("rbd", "ceph-common"),
];

/// Programs that Debian 12 does not have, `(program, package with version)`. They come from Python's package index into a folder of the build.
const OF_PYTHON: Tools = &[("schemathesis", "schemathesis==4.32.5")];

type Tools = &'static [(&'static str, &'static str)];

/// Folders of Debian's administration programs and of QEMU's modules, which are not in every user's path.
const OTHER_FOLDERS: &[&str] = &["/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/lib/x86_64-linux-gnu/qemu"];

pub(super) fn provide(install: bool, tools: Tools) -> Result<(), String> {
    let missing = missing(tools, is_installed);
    if missing.is_empty() {
        println!("all {} tools are installed", tools.len());
        return Ok(());
    }
    if !install || !is_root() || find("apt-get").is_none() {
        return Err(advice(&missing));
    }
    println!("missing, installing: {}", missing.join(" "));
    apt_get(&["update", "-q"])?;
    let mut install = vec!["install", "-q", "-y", "--no-install-recommends"];
    install.extend(&missing);
    apt_get(&install)?;
    match self::missing(tools, is_installed) {
        missing if missing.is_empty() => Ok(()),
        missing => Err(format!("Packages are installed, but programs are still missing from: {}", missing.join(" "))),
    }
}

/// Installs the programs of [`OF_PYTHON`] into the folder `python` of the build.
pub(super) fn provide_of_python(install: bool) -> Result<(), String> {
    let folder = package::target().join("python");
    let missing: Vec<&str> = OF_PYTHON
        .iter()
        .filter(|(program, _)| !folder.join("bin").join(program).is_file())
        .map(|(_, package)| *package)
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let advice = format!(
        "The black-box tests need packages of Python in {0}: python3 -m venv {0} && {0}/bin/pip install {1}",
        folder.display(),
        missing.join(" ")
    );
    if !install {
        return Err(advice);
    }
    println!("missing, installing: {}", missing.join(" "));
    let python = |program: PathBuf, arguments: &[&str]| {
        let ended = Command::new(program).args(arguments).status().map_err(|error| format!("{advice}: {error}"))?;
        if ended.success() { Ok(()) } else { Err(format!("{advice}: {ended}")) }
    };
    python("python3".into(), &["-m", "venv", &folder.to_string_lossy()])?;
    python(folder.join("bin/pip"), &[&["install", "--quiet", "--disable-pip-version-check"], &missing[..]].concat())
}

/// Returns the packages with a missing program, without duplicates.
fn missing(tools: Tools, is_installed: impl Fn(&str) -> bool) -> Vec<&'static str> {
    let tools = tools.iter().filter(|(program, _)| !is_installed(program));
    let mut packages: Vec<&str> = tools.map(|(_, package)| *package).collect();
    packages.sort_unstable();
    packages.dedup();
    packages
}

fn advice(packages: &[&str]) -> String {
    let packages = packages.join(" ");
    format!(
        "The black-box tests need packages that are not installed: {packages}. Run as root: \
         apt-get update && apt-get install -y --no-install-recommends {packages}"
    )
}

fn is_installed(program: &str) -> bool {
    find(program).is_some()
}

fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(OTHER_FOLDERS.iter().map(PathBuf::from))
        .map(|folder| folder.join(program))
        .find(|file| file.is_file())
}

fn is_root() -> bool {
    let status = std::fs::read_to_string(Path::new("/proc/self/status")).unwrap_or_default();
    effective_uid(&status) == Some(0)
}

/// Parses the line `Uid:`, which lists the real, effective, saved and file system user.
fn effective_uid(status: &str) -> Option<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

fn apt_get(arguments: &[&str]) -> Result<(), String> {
    println!("apt-get {}", arguments.join(" "));
    let status = Command::new("apt-get")
        .args(arguments)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .status()
        .map_err(|error| format!("Cannot start apt-get: {error}"))?;
    match status.success() {
        true => Ok(()),
        false => Err(format!("apt-get {} failed ({status}), see above", arguments[0])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_package_is_requested_once() {
        assert_eq!(missing(TOOLS, |_| true), Vec::<&str>::new());
        let packages = missing(TOOLS, |program| !program.starts_with("qemu-"));
        assert_eq!(packages, ["qemu-system-common", "qemu-system-x86", "qemu-utils"]);
    }

    #[test]
    fn the_error_has_a_complete_install_command() {
        let advice = advice(&["fio", "nbdkit"]);
        assert!(advice.ends_with("apt-get install -y --no-install-recommends fio nbdkit"), "{advice}");
    }

    #[test]
    fn the_effective_user_id_is_parsed() {
        let status = "Name:\tx\nUid:\t1000\t0\t1000\t1000\nGid:\t1\t1\t1\t1\n";
        assert_eq!(effective_uid(status), Some(0));
        assert_eq!(effective_uid(""), None);
    }

    #[test]
    fn programs_are_found_by_name() {
        assert!(find("sh").is_some());
        assert!(find("no-such-program-anywhere").is_none());
    }
}
