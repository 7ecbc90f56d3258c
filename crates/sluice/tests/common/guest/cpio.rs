//! The archive for Linux's first file system: cpio in the format `newc`, as in the kernel's documentation of the
//! initramfs buffer format.

use std::collections::BTreeSet;
use std::path::Path;

const FOLDER: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const CONSOLE: u32 = 0o020_600;

/// An archive under construction.
#[derive(Default)]
pub(crate) struct Archive {
    bytes: Vec<u8>,
    entries: u32,
    names: BTreeSet<String>,
}

impl Archive {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Adds a folder and its parents.
    pub(crate) fn folder(&mut self, path: &str) {
        let path = path.trim_matches('/');
        let ends = path.match_indices('/').map(|(at, _)| at).chain([path.len()]);
        for end in ends.filter(|end| *end > 0) {
            self.entry(&path[..end], FOLDER, &[], (0, 0));
        }
    }

    /// Adds an executable file and its folders. A second file at the same path is skipped.
    pub(crate) fn file(&mut self, path: &str, content: &[u8]) {
        let folder = Path::new(path).parent().and_then(Path::to_str).unwrap_or_default();
        self.folder(folder);
        self.entry(path.trim_start_matches('/'), PROGRAM, content, (0, 0));
    }

    /// Adds `/dev/console`, the input and output of the first process.
    pub(crate) fn console(&mut self) {
        self.folder("dev");
        self.entry("dev/console", CONSOLE, &[], (5, 1));
    }

    /// Returns the complete archive.
    pub(crate) fn finish(mut self) -> Vec<u8> {
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
