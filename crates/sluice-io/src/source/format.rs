//! Formats of disk images that are not raw, by their first bytes.
//!
//! This is looked for only before a source is served for the first time: afterwards its bytes are the guest's, which may write
//! whatever it wants to the start of its disk.

use core::fmt;

/// A format that a volume must not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Format {
    /// Its name, as `qemu-img` has it for images.
    pub name: &'static str,
    /// The program that unpacks it; `None`: `qemu-img` converts it.
    unpack: Option<&'static str>,
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// First bytes, where they are, and the format.
const MAGIC: [(usize, &[u8], &str, Option<&str>); 17] = [
    (0, b"QFI\xfb", "qcow2", None),
    (0, b"KDMV", "vmdk", None),
    (0, b"COWD", "vmdk", None),
    (0, b"# Disk DescriptorFile", "vmdk", None),
    (0x40, b"\x7f\x10\xda\xbe", "vdi", None),
    (0, b"vhdxfile", "vhdx", None),
    (0, b"conectix", "vpc", None),
    (0, b"QED\0", "qed", None),
    (0, b"WithoutFreeSpace", "parallels", None),
    (0, b"WithouFreSpacExt", "parallels", None),
    (0, b"\x1f\x8b\x08", "gzip", Some("gzip -dc")),
    (0, b"\xfd7zXZ\0", "xz", Some("xz -dc")),
    (0, b"\x28\xb5\x2f\xfd", "zstd", Some("zstd -dc")),
    (0, b"\x04\x22\x4d\x18", "lz4", Some("lz4 -dc")),
    (0, b"BZh91AY&SY", "bzip2", Some("bzip2 -dc")),
    (0, b"PK\x03\x04", "zip", Some("unzip -p")),
    (0, b"7z\xbc\xaf\x27\x1c", "7z", Some("7z x -so")),
];

/// Number of bytes that tell.
pub(super) const START: usize = 512;

impl Format {
    /// The format of an image with these first bytes; `None`: it may be raw.
    #[must_use]
    pub fn of(start: &[u8]) -> Option<Format> {
        let is = |at: usize, magic: &[u8]| start.get(at..).is_some_and(|rest| rest.starts_with(magic));
        let found = MAGIC.into_iter().find(|(at, magic, ..)| is(*at, magic));
        found.map(|(_, _, name, unpack)| Format { name, unpack })
    }

    /// The command that makes a raw image of `path`.
    #[must_use]
    pub fn conversion(self, path: &str) -> String {
        match self.unpack {
            None => format!("qemu-img convert -f {} -O raw {path} {path}.raw", self.name),
            Some(program) => format!("{program} {path} > {path}.raw"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_told_by_their_first_bytes() {
        for (at, magic, name, _) in MAGIC {
            let mut start = vec![0; START];
            start[at..at + magic.len()].copy_from_slice(magic);
            assert_eq!(Format::of(&start).unwrap().name, name);
            start[at] ^= 1;
            assert_eq!(Format::of(&start), None, "{name}");
        }
        assert_eq!(Format::of(b"QF"), None, "too short");
        let (qcow2, gzip) = (Format::of(b"QFI\xfb").unwrap(), Format::of(b"\x1f\x8b\x08").unwrap());
        assert_eq!(qcow2.conversion("/a"), "qemu-img convert -f qcow2 -O raw /a /a.raw");
        assert_eq!(gzip.conversion("/a"), "gzip -dc /a > /a.raw");
    }
}
