//! The paths of a device: each leads to a disk, or is a pattern that matches several.

use core::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::quantity::Misread;

/// Maximum number of paths of one device.
pub(crate) const PATHS_MAX: usize = 256;
/// Maximum number of names that one pattern may match.
const MATCHES_MAX: usize = 4096;

/// A path of a device: a block device, a file or folder on the disk, or a pattern.
///
/// A pattern has one `*` in its last part, which stands for any characters. As in a shell it does not match names that begin with a
/// dot, unless the pattern does: programs make such names for a moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskPath(PathBuf);

impl DiskPath {
    /// Checks an absolute path.
    pub(crate) fn new(path: PathBuf) -> Result<DiskPath, Misread> {
        let stars = |text: &Path| text.to_string_lossy().matches('*').count();
        let (folder, last) = (path.parent().unwrap_or(Path::new("")), path.file_name().unwrap_or_default());
        let shown = path.display();
        if stars(folder) > 0 {
            let what = format!("'{shown}' has a * before its last part");
            let hint = "only the last part may have one: write a pattern for each folder, for example path = [\"/dev/rbd/vms/*\", \
                        \"/dev/rbd/isos/*\"]";
            return Err(Misread { what, hint: hint.to_owned() });
        }
        if stars(Path::new(last)) > 1 {
            let what = format!("'{shown}' has more than one *");
            let hint =
                "write one *, or a list of patterns, for example path = [\"/dev/rbd/vms/web*\", \"/dev/rbd/vms/db*\"]";
            return Err(Misread { what, hint: hint.to_owned() });
        }
        Ok(DiskPath(path))
    }

    /// Refuses a path whose disks another path of the list has.
    pub(crate) fn unless_in(self, list: &[DiskPath]) -> Result<DiskPath, Misread> {
        let Some(first) = list.iter().find(|first| first.covers(&self.0) || self.covers(&first.0)) else {
            return Ok(self);
        };
        let (one, pattern) = if first.covers(&self.0) { (&self, first) } else { (first, &self) };
        Err(match one.0 == pattern.0 {
            true => {
                let hint = "remove one of them".to_owned();
                Misread { what: format!("'{one}' is in the list twice"), hint }
            }
            false => Misread {
                what: format!("'{one}' is in the list twice: the pattern '{pattern}' matches it too"),
                hint: format!("remove one of them: write '{pattern}' once, and no other path that it matches"),
            },
        })
    }

    /// The path as it is written.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Whether it is a pattern.
    #[must_use]
    pub fn is_pattern(&self) -> bool {
        self.parts().is_some()
    }

    /// Whether it is the same path as the other one, or a pattern that matches all that the other one does.
    #[must_use]
    pub fn covers(&self, other: &Path) -> bool {
        self.0 == other || self.parts().is_some_and(|pattern| pattern.folder == other.parent() && pattern.takes(other))
    }

    /// Returns the paths of this host that it stands for, in the order of their names: itself, if it is no pattern.
    ///
    /// # Errors
    /// Its folder cannot be read, or it matches more than 4096 names.
    pub fn found(&self) -> io::Result<Vec<PathBuf>> {
        let Some(pattern) = self.parts() else { return Ok(vec![self.0.clone()]) };
        let mut found = Vec::new();
        for entry in fs::read_dir(pattern.folder.unwrap_or(Path::new("/")))? {
            let path = entry?.path();
            if pattern.takes(&path) {
                found.push(path);
            }
            if found.len() > MATCHES_MAX {
                return Err(io::Error::other(format!("it matches more than {MATCHES_MAX} names")));
            }
        }
        found.sort();
        Ok(found)
    }

    fn parts(&self) -> Option<Pattern<'_>> {
        let (before, after) = self.0.file_name()?.to_str()?.split_once('*')?;
        Some(Pattern { folder: self.0.parent(), before, after })
    }
}

impl fmt::Display for DiskPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.display().fmt(f)
    }
}

/// The parts of a pattern: its folder, and the text before and after the `*` of the last part.
struct Pattern<'a> {
    folder: Option<&'a Path>,
    before: &'a str,
    after: &'a str,
}

impl Pattern<'_> {
    /// Whether the last part of a path matches.
    fn takes(&self, path: &Path) -> bool {
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { return false };
        let fits = name.len() >= self.before.len() + self.after.len();
        let is_hidden = name.starts_with('.') && !self.before.starts_with('.');
        fits && !is_hidden && name.starts_with(self.before) && name.ends_with(self.after)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> DiskPath {
        DiskPath::new(PathBuf::from(text)).unwrap_or_else(|error| panic!("{}", error.what))
    }

    #[test]
    fn a_star_stands_for_any_characters_of_the_last_part() {
        let pattern = path("/dev/rbd/vms/web*-os");
        for (other, is_covered) in [
            ("/dev/rbd/vms/web1-os", true),
            ("/dev/rbd/vms/web-os", true),
            ("/dev/rbd/vms/web*-os", true),
            ("/dev/rbd/vms/webos", false),
            ("/dev/rbd/vms/db1-os", false),
            ("/dev/rbd/vms/a/web1-os", false),
            ("/dev/rbd/web1-os", false),
        ] {
            assert_eq!(pattern.covers(Path::new(other)), is_covered, "{other}");
        }
        assert!(!path("/dev/aba*a").covers(Path::new("/dev/aba")), "the two ends do not share characters");
        assert!(path("/dev/*").covers(Path::new("/dev/sd*")), "a pattern within the other");
        assert!(!path("/dev/*").covers(Path::new("/dev/.#sda1")) && path("/dev/.*").covers(Path::new("/dev/.a")));
        assert!(path("/*").covers(Path::new("/a")) && path("/dev/sda").covers(Path::new("/dev//sda/")));
    }

    #[test]
    fn a_pattern_finds_names_in_order_and_a_path_is_itself() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["web2", "web1", "db1", ".web3"] {
            fs::write(folder.path().join(name), "").unwrap();
        }
        let found = |last: &str| path(folder.path().join(last).to_str().unwrap()).found().unwrap();
        assert_eq!(found("web*"), ["web1", "web2"].map(|name| folder.path().join(name)));
        assert_eq!(found("none"), [folder.path().join("none")]);
        assert_eq!(found("x*"), [""; 0].map(PathBuf::from));
        assert!(path("/no/such/folder/*").found().is_err());
    }
}
