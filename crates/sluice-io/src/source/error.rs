//! Why a volume was refused: one variant per thing that the operator can do about it.
//!
//! The operating system's own words are the `#[source]` and are not repeated in the message.

use std::io;
use std::path::PathBuf;

use super::holder::Holder;
use super::range::ByteRange;
use crate::path_walk::Stranger;

/// A volume cannot be opened, locked or inspected.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// The operating system refused to open it.
    #[error("Cannot open {path} for {access}: check that it exists and {advice}")]
    Open {
        /// The volume's path.
        path: PathBuf,
        /// What we asked for: `reading`, or `writing`, which includes reading.
        access: &'static str,
        /// What to check besides that it exists.
        advice: &'static str,
        /// The operating system's reason.
        #[source]
        source: io::Error,
    },

    /// A symbolic link on the way that a tenant may have put there.
    #[error(
        "Volume {path}: {link} is a symbolic link that {by} can change: use the path of its target, or keep the link in a folder that only root can write to"
    )]
    Link {
        /// The volume's path.
        path: PathBuf,
        /// The link.
        link: PathBuf,
        /// A user or group that may change it.
        by: Stranger,
    },

    /// Another file took its place between check and use.
    #[error("Volume {path} was replaced while it was opened: attach it again")]
    Replaced {
        /// The volume's path.
        path: PathBuf,
    },

    /// A call on its path has not returned. The caller of this crate decides how long that may take.
    #[error("Volume {path} does not respond for {seconds} s: its disk or file system hangs")]
    Silent {
        /// The volume's path.
        path: PathBuf,
        /// How long it was waited for, in seconds.
        seconds: u64,
    },

    /// Neither a regular file nor a block device.
    #[error("Volume {path} is a {kind}: use a raw regular file or a block device")]
    NotAVolume {
        /// The volume's path.
        path: PathBuf,
        /// What it is instead.
        kind: &'static str,
    },

    /// The file or its filesystem has no direct I/O.
    #[error(
        "Volume {path} cannot do direct I/O: move it to a filesystem that can, or set `cache = \"buffered\"`, which gives up its guarantees"
    )]
    NotDirect {
        /// The volume's path.
        path: PathBuf,
    },

    /// The kernel itself uses this block device.
    #[error(
        "Volume {path} is in use by this host (mounted, swap, or part of a RAID or volume group): release it, or declare the volume read-only"
    )]
    InUse {
        /// The volume's path.
        path: PathBuf,
    },

    /// There is not one byte in it.
    #[error(
        "Volume {path} is empty: give the file a size (`truncate -s 10G`), or the volume a `size` above 0 and an `offset` before the end"
    )]
    Empty {
        /// The volume's path.
        path: PathBuf,
    },

    /// The declared range goes beyond the end.
    #[error(
        "Volume {path} is shorter than declared: it has {size_bytes} bytes and the volume needs {end_bytes}, extend it or lower `offset` and `size`"
    )]
    TooShort {
        /// The volume's path.
        path: PathBuf,
        /// What is there, in bytes.
        size_bytes: u64,
        /// Where the declared range ends, in bytes.
        end_bytes: u64,
    },

    /// Offset or length do not suit direct I/O, or a virtual disk's sectors.
    #[error(
        "Volume {path}: the volume's {what} of {value_bytes} bytes is not a multiple of the block size {alignment_bytes}, round it with `offset` and `size`, or a file itself with `truncate -s %{alignment_bytes}`"
    )]
    Misaligned {
        /// The volume's path.
        path: PathBuf,
        /// `offset` or `length`.
        what: &'static str,
        /// The value that does not fit, in bytes.
        value_bytes: u64,
        /// What it must be a multiple of, in bytes.
        alignment_bytes: u32,
    },

    /// A disk image in another format, seen where its length does not suit a raw one.
    #[error("Volume {path} is a {format} image: convert it to raw (`qemu-img convert -O raw`)")]
    NotRaw {
        /// The volume's path.
        path: PathBuf,
        /// For example `qcow2`.
        format: &'static str,
    },

    /// Somebody else has the volume's bytes.
    #[error("Volume {path}, {range}, is locked by {holder}: stop it, or use another file or range for this volume")]
    Busy {
        /// The volume's path.
        path: PathBuf,
        /// The bytes that we wanted.
        range: ByteRange,
        /// Who has them, as far as can be seen.
        holder: Holder,
    },

    /// The lock call itself failed.
    #[error("Cannot lock {path}, {range}: use a filesystem with open file description locks")]
    Lock {
        /// The volume's path.
        path: PathBuf,
        /// The bytes that we wanted.
        range: ByteRange,
        /// The operating system's reason.
        #[source]
        source: io::Error,
    },

    /// A question about an open volume could not be answered.
    #[error("Cannot read the {what} of {path}: check the device and the system log")]
    Inspect {
        /// The volume's path.
        path: PathBuf,
        /// What was asked for, e.g. `size`.
        what: &'static str,
        /// The operating system's reason.
        #[source]
        source: io::Error,
    },

    /// A volume's file cannot be made longer, or as long as it was.
    #[error("Cannot make {path} {length_bytes} bytes long: choose a size that fits on its file system or device")]
    Length {
        /// The volume's path.
        path: PathBuf,
        /// What it was to have.
        length_bytes: u64,
        /// The operating system's reason.
        #[source]
        source: io::Error,
    },

    /// What a device is named by is not there.
    #[error("Cannot inspect {path}: use an existing block device, or a file or folder on the intended disk")]
    NoPath {
        /// The path that was to be resolved.
        path: PathBuf,
        /// The operating system's reason.
        #[source]
        source: io::Error,
    },

    /// The physical disk under a path is not known, so the rule of one gate per disk cannot be kept.
    #[error("Cannot find the disk under {path}: check that /sys is mounted and shows this device")]
    Disk {
        /// The path that was resolved.
        path: PathBuf,
        /// What was missing.
        #[source]
        source: io::Error,
    },
}

impl SourceError {
    /// Whether the bytes are held by what is left of a process: requests in the kernel, which end when their disk answers.
    #[must_use]
    pub fn is_left_behind(&self) -> bool {
        matches!(self, SourceError::Busy { holder, .. } if holder.is_dying())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_names_the_path_and_has_one_line() {
        let path = PathBuf::from("/srv/a.img");
        let range = ByteRange::new(0, 512);
        let io = || io::Error::from_raw_os_error(5);
        let all = [
            SourceError::Open {
                path: path.clone(),
                access: "reading",
                advice: "that this user may read it",
                source: io(),
            },
            SourceError::Link { path: path.clone(), link: path.clone(), by: Stranger::User(1000) },
            SourceError::Silent { path: path.clone(), seconds: 5 },
            SourceError::NotAVolume { path: path.clone(), kind: "directory" },
            SourceError::NotDirect { path: path.clone() },
            SourceError::Replaced { path: path.clone() },
            SourceError::InUse { path: path.clone() },
            SourceError::Empty { path: path.clone() },
            SourceError::TooShort { path: path.clone(), size_bytes: 1, end_bytes: 2 },
            SourceError::Misaligned { path: path.clone(), what: "offset", value_bytes: 1, alignment_bytes: 512 },
            SourceError::NotRaw { path: path.clone(), format: "qcow2" },
            SourceError::Busy { path: path.clone(), range, holder: Holder::Unknown },
            SourceError::Lock { path: path.clone(), range, source: io() },
            SourceError::Inspect { path: path.clone(), what: "size", source: io() },
            SourceError::Length { path: path.clone(), length_bytes: 1 << 60, source: io() },
            SourceError::NoPath { path: path.clone(), source: io() },
            SourceError::Disk { path, source: io() },
        ];
        for error in all {
            let text = error.to_string();
            assert!(text.contains("/srv/a.img"), "{text}");
            assert!(text.starts_with(char::is_uppercase), "{text}");
            assert!(!text.contains('\n') && !text.ends_with('.'), "{text}");
        }
    }
}
