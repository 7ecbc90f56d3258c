//! The archive for Linux's first file system: cpio in the format `newc`, as in the kernel's documentation of the
//! initramfs buffer format.

use std::collections::BTreeSet;
use std::path::Path;

const FOLDER: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const CONSOLE: u32 = 0o020_600;

/// An archive under construction.
#[derive(Debug, Default)]
pub struct Archive {
    bytes: Vec<u8>,
    entries: u32,
    names: BTreeSet<String>,
}

impl Archive {
    /// Creates an empty archive.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a folder and its parents.
    pub fn folder(&mut self, path: &str) {
        let path = path.trim_matches('/');
        let ends = path.match_indices('/').map(|(at, _)| at).chain([path.len()]);
        for end in ends.filter(|end| *end > 0) {
            self.entry(&path[..end], FOLDER, &[], (0, 0));
        }
    }

    /// Adds an executable file and its folders. A second file at the same path is skipped.
    ///
    /// # Panics
    /// If the file has 4 GiB or more.
    pub fn file(&mut self, path: &str, content: &[u8]) {
        let folder = Path::new(path).parent().and_then(Path::to_str).unwrap_or_default();
        self.folder(folder);
        self.entry(path.trim_start_matches('/'), PROGRAM, content, (0, 0));
    }

    /// Adds `/dev/console`, the input and output of the first process.
    pub fn console(&mut self) {
        self.folder("dev");
        self.entry("dev/console", CONSOLE, &[], (5, 1));
    }

    /// Returns the complete archive.
    #[must_use]
    pub fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[], (0, 0));
        self.bytes
    }

    fn entry(&mut self, name: &str, mode: u32, content: &[u8], (major, minor): (u32, u32)) {
        if !self.names.insert(name.to_owned()) {
            return;
        }
        self.entries += 1;
        let size = u32::try_from(content.len()).expect("no file of a guest has 4 GiB");
        let name_size = u32::try_from(name.len() + 1).expect("names are short");
        // inode, mode, owner, group, links, time, size, device of the file, device number, name length, checksum
        let fields = [self.entries, mode, 0, 0, 1, 0, size, 0, 0, major, minor, name_size, 0];
        let header: String = fields.iter().map(|field| format!("{field:08X}")).collect();
        self.bytes.extend_from_slice(b"070701");
        self.bytes.extend_from_slice(header.as_bytes());
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_aligned_and_folders_come_first() {
        let mut archive = Archive::new();
        archive.console();
        archive.file("a/b/c", b"12345");
        archive.file("a/b/d", b"");
        let bytes = archive.finish();
        let (mut at, mut entries) = (0, Vec::new());
        while at < bytes.len() {
            assert_eq!(&bytes[at..at + 6], b"070701");
            let field = |number: usize| {
                let start = at + 6 + 8 * number;
                let digits = std::str::from_utf8(&bytes[start..start + 8]).unwrap();
                u32::from_str_radix(digits, 16).unwrap() as usize
            };
            let (mode, size, name_size) = (field(1), field(6), field(11));
            let name = String::from_utf8(bytes[at + 110..at + 109 + name_size].to_vec()).unwrap();
            let content = (at + 110 + name_size).next_multiple_of(4);
            entries.push((name, mode as u32, bytes[content..content + size].to_vec()));
            at = (content + size).next_multiple_of(4);
        }
        let names: Vec<_> = entries.iter().map(|(name, ..)| name.as_str()).collect();
        assert_eq!(names, ["dev", "dev/console", "a", "a/b", "a/b/c", "a/b/d", "TRAILER!!!"]);
        assert_eq!((entries[3].1, entries[4].1, entries[4].2.as_slice()), (FOLDER, PROGRAM, &b"12345"[..]));
    }
}
