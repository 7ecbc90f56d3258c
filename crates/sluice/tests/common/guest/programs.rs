//! Programs of the host that a guest runs as well, with their shared libraries at the same paths.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::common::{run, tool};

/// Pairs of program and package. Everything else is busybox, whose shell prefers its own version of a program.
const PROGRAMS: [(&str, &str); 7] = [
    ("e2fsck", "e2fsprogs"),
    ("fio", "fio"),
    ("flock", "util-linux"),
    ("iperf3", "iperf3"),
    ("mkfs.ext4", "e2fsprogs"),
    ("sfdisk", "fdisk"),
    ("blkdiscard", "util-linux"),
];

/// Returns the paths of the programs and their libraries.
pub(crate) fn files() -> BTreeSet<PathBuf> {
    let mut files = BTreeSet::new();
    for (program, package) in PROGRAMS {
        let program = PathBuf::from(tool(program, package).get_program());
        files.extend(libraries(&program));
        files.insert(program);
    }
    files
}

/// Returns the paths of the libraries of a program.
pub(crate) fn libraries(program: &Path) -> Vec<PathBuf> {
    let listed = run(tool("ldd", "libc-bin").arg(program)).ok();
    // `NAME => PATH (ADDRESS)`, or `PATH (ADDRESS)` for the loader.
    let paths = listed.lines().filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')));
    paths.map(PathBuf::from).collect()
}
