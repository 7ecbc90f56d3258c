//! Why a volume is rejected: one variant for each action that the operator can take.
//!
//! The operating system's own text is the `#[source]` and is not repeated in the message.

use std::io;
use std::path::PathBuf;

use super::format::Format;
use super::holder::Holder;
use super::owner::Owner;
use super::range::ByteRange;
use crate::path_walk::Stranger;

/// A volume cannot be opened, locked or inspected.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// The operating system refuses to open it.
    #[error("Cannot open {path} for {access}: check that it exists and {advice}")]
    Open {
        path: PathBuf,
        /// Requested access: `reading`, or `writing`, which includes reading.
        access: &'static str,
        /// Further conditions to check, apart from its existence.
        advice: &'static str,
        #[source]
        source: io::Error,
    },

    /// The path contains a symbolic link that a tenant may have created.
    #[error(
        "Volume {path}: {link} is a symbolic link that {by} can change: use the path of its target, or keep the link in a folder that only root can write to"
    )]
    Link {
        path: PathBuf,
        link: PathBuf,
        /// A user or group that may change the link.
        by: Stranger,
    },

    /// Another file replaced it between the check and its use.
    #[error("Volume {path} was replaced while it was opened: attach it again")]
    Replaced { path: PathBuf },

    /// Another file has its path now.
    #[error(
        "Volume {path} was replaced: its path leads to another file or device than the one that is served; move the served one back, or \
         detach the volume and attach it again"
    )]
    OtherFile { path: PathBuf },

    /// Another server does not serve it.
    #[error("Volume {name}: {why}")]
    Remote {
        name: String,
        /// Why not, for people.
        why: String,
    },

    /// Another client has the lock of its image.
    #[error("Volume {name}: {owner}; if that host is down, or is to lose the volume, `sluice takeover` takes the lock")]
    Locked { name: String, owner: Box<Owner> },

    /// This daemon itself has not closed its image yet.
    #[error("Volume {name} is still being closed: try again when that is done")]
    Closing { name: String },

    /// The cluster has locked out this host's connection for the VM.
    #[error("Volume {name}: another host has taken it over: the cluster has locked the connection out")]
    LockedOut { name: String },

    /// A call on its path has not returned in time. The caller of this crate sets the time limit.
    #[error("Volume {path} has not responded for {seconds} s: its disk or file system hangs")]
    Silent {
        path: PathBuf,
        /// The time limit in seconds.
        seconds: u64,
    },

    /// It is neither a regular file nor a block device.
    #[error("Volume {path} is a {kind}: use a raw regular file or a block device")]
    NotAVolume {
        path: PathBuf,
        /// Its actual type.
        kind: &'static str,
    },

    /// The file or its filesystem does not support direct I/O.
    #[error(
        "Volume {path} cannot do direct I/O: move it to a filesystem that can, or set `cache = \"buffered\"`, which gives up its guarantees"
    )]
    NotDirect { path: PathBuf },

    /// The host itself uses this block device.
    #[error(
        "Volume {path} is in use by this host (mounted, swap, or part of a RAID or volume group): release it, or declare the volume read-only"
    )]
    InUse { path: PathBuf },

    /// It has no bytes.
    #[error(
        "Volume {path} is empty: give the file a size (`truncate -s 10G`), or the volume a `size` above 0 and an `offset` before the end"
    )]
    Empty { path: PathBuf },

    /// The configured range goes past the end.
    #[error(
        "Volume {path} is shorter than declared: it has {size_bytes} bytes and the volume needs {end_bytes}; extend it or lower `offset` and `size`"
    )]
    TooShort {
        path: PathBuf,
        /// Actual size in bytes.
        size_bytes: u64,
        /// End of the configured range in bytes.
        end_bytes: u64,
    },

    /// Offset or length do not fit direct I/O, or a virtual disk's sectors.
    #[error(
        "Volume {path}: the volume's {what} of {value_bytes} bytes is not a multiple of the block size {alignment_bytes}; round it with `offset` and `size`, or a file itself with `truncate -s %{alignment_bytes}`"
    )]
    Misaligned {
        path: PathBuf,
        /// `offset` or `length`.
        what: &'static str,
        /// The value, in bytes.
        value_bytes: u64,
        /// It must be a multiple of this, in bytes.
        alignment_bytes: u32,
    },

    /// A disk image in another format, before it was ever served.
    #[error(
        "Volume {path} begins like a {format} image, and its bytes would be served unconverted: convert it ({}) and use the \
         result as source, or set format = \"raw\" if the guest wrote these bytes",
        format.conversion(&path.display().to_string())
    )]
    NotRaw {
        path: PathBuf,
        /// For example qcow2.
        format: Format,
    },

    /// The daemon panicked at it.
    #[error("Path {path} cannot be opened because of a fault of the daemon (see its log): report it")]
    Panicked { path: PathBuf },

    /// Another volume of the host has these bytes.
    #[error(
        "Volume {path} leads to the file or disk of volume {other}: give each volume its own, or remove one of them from the host file"
    )]
    Claimed {
        path: PathBuf,
        /// `VM/VOLUME` that last served these bytes, or whose path leads there too.
        other: String,
    },
    /// A volume that was never served has a partition table that does not state the block size, on a disk of larger blocks.
    #[error(
        "Volume {path} has an MBR, which does not state for which block size it was made, and its disk has blocks of \
         {alignment_bytes} bytes: set block_size = \"512B\" for the volume, or block_size = \"{alignment_bytes}B\" if it was \
         partitioned on such a disk"
    )]
    BlockSizeUnknown {
        path: PathBuf,
        /// In bytes.
        alignment_bytes: u32,
    },

    /// Another holder has a lock on the volume's bytes.
    #[error("Volume {path}, {range}, is locked by {holder}: stop it, or use another file or range for this volume")]
    Busy {
        path: PathBuf,
        /// The requested bytes.
        range: ByteRange,
        /// The holder, as far as it is known.
        holder: Holder,
    },

    /// The lock call itself failed.
    #[error("Cannot lock {path}, {range}: use a filesystem with open file description locks")]
    Lock {
        path: PathBuf,
        /// The requested bytes.
        range: ByteRange,
        #[source]
        source: io::Error,
    },

    /// A property of an open volume cannot be read.
    #[error("Cannot read the {what} of {path}: check the device and the system log")]
    Inspect {
        path: PathBuf,
        /// The property, such as `size`.
        what: &'static str,
        #[source]
        source: io::Error,
    },

    /// A file cannot be extended or truncated.
    #[error("Cannot make {path} {length_bytes} bytes long: choose a size that fits on its file system or device")]
    Length {
        path: PathBuf,
        /// The requested length.
        length_bytes: u64,
        #[source]
        source: io::Error,
    },

    /// The path of a device does not exist.
    #[error("Cannot inspect {path}: use an existing block device, or a file or folder on the intended disk")]
    NoPath {
        path: PathBuf,
        #[source]
        source: io::Error,
    },

    /// A pattern of a device matches no disk.
    #[error("No disk matches {path}: connect the disks (map, import or attach them), or correct the path")]
    NoMatch {
        path: PathBuf,
        #[source]
        source: io::Error,
    },

    /// Two paths of one device lead to one disk.
    #[error(
        "Path {path} leads to the disk of {other}: remove one of them from the list; a partition stands for its disk"
    )]
    SameDisk { path: PathBuf, other: PathBuf },

    /// The physical disk under a path is not known, so two gates could be on one disk.
    #[error("Cannot find the disk under {path}: check that /sys is mounted and shows this device")]
    Disk {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

impl SourceError {
    /// Whether the bytes are locked by the remains of a process: requests in the kernel, which end when their disk
    /// responds.
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
            SourceError::Panicked { path: path.clone() },
            SourceError::InUse { path: path.clone() },
            SourceError::Empty { path: path.clone() },
            SourceError::TooShort { path: path.clone(), size_bytes: 1, end_bytes: 2 },
            SourceError::Misaligned { path: path.clone(), what: "offset", value_bytes: 1, alignment_bytes: 512 },
            SourceError::NotRaw { path: path.clone(), format: Format::of(b"QFI\xfb").expect("it is known") },
            SourceError::Claimed { path: path.clone(), other: "a/v".to_owned() },
            SourceError::BlockSizeUnknown { path: path.clone(), alignment_bytes: 4096 },
            SourceError::Busy { path: path.clone(), range, holder: Holder::Unknown },
            SourceError::Lock { path: path.clone(), range, source: io() },
            SourceError::Inspect { path: path.clone(), what: "size", source: io() },
            SourceError::Length { path: path.clone(), length_bytes: 1 << 60, source: io() },
            SourceError::NoPath { path: path.clone(), source: io() },
            SourceError::NoMatch { path: path.clone(), source: io() },
            SourceError::SameDisk { path: path.clone(), other: "/dev/sda".into() },
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
