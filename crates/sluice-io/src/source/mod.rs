//! Volume sources: opening a volume, which happens outside the request path.
//!
//! A volume is a raw regular file, a block device, or a byte range of one. Opening it determines once everything that
//! the request path needs: whether it can be written, whether another process writes it ([`lock`]), how I/O must be
//! aligned ([`alignment`]), what can be zeroed or discarded ([`capabilities`]), which physical disks it uses
//! ([`disk`]), where on the disk it is ([`extents`]) and which parts of it hold data ([`allocation`]).
//!
//! A source has what every kind of source has ([`Facts`]: name, size, alignment, what it can, identity, losses and failures), and what its
//! kind has: a [`Descriptor`] of an open file or block device, a [`remote::Remote`] export, or an [`rbd::Rbd`] image.
//!
//! A setting that cannot be honoured is rejected here, with the remedy, and never clamped: a guest must not find out at its
//! first write that its disk is shorter than configured.
//!
//! Calls in this module block (they open, stat, lock, walk sysfs, map extents). They belong to the control thread; the
//! device thread gets the open [`Source`] and [`ExtentMap`].
//!
//! ```no_run
//! use sluice_io::source::{Source, SourceSpec};
//! use std::time::Duration;
//!
//! let spec = SourceSpec::whole("/srv/vm/web.img");
//! // After a crash, requests of the dead daemon may still be in the kernel: wait for them.
//! let volume = Source::open_within(&spec, Duration::from_secs(30))?;
//! println!("{} bytes on {}", volume.size_bytes(), volume.disks()?);
//! let map = volume.extents()?;
//! println!("starts at byte {:?} of the disk", map.physical(0));
//! # Ok::<(), sluice_io::source::SourceError>(())
//! ```

pub mod alignment;
pub mod allocation;
pub mod block_size;
pub mod capabilities;
pub(crate) mod claims;
pub mod disk;
pub mod error;
pub mod extents;
pub mod facts;
pub mod faults;
mod fiemap;
mod forcing;
pub mod format;
pub mod holder;
mod identity;
pub mod lock;
pub(crate) mod loss;
pub mod open;
pub mod opened;
pub mod owner;
pub mod range;
pub mod rbd;
pub mod remote;
mod sysfs;

pub use alignment::Alignment;
pub use allocation::{Allocation, Span};
pub use block_size::BlockSize;
pub use capabilities::{Capabilities, Support};
pub use disk::{Disk, DiskSet, Place};
pub use error::SourceError;
pub use extents::ExtentMap;
pub use facts::Facts;
pub use faults::{Failure, FaultReport, FileSizes};
pub use format::Format;
pub use holder::{Holder, Seen, look as look_for_holder};
pub use loss::Loss;
pub use open::{FormatCheck, Located, SourceSpec};
pub use opened::{Descriptor, FileId, Source};
pub use range::ByteRange;
