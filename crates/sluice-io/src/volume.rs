//! A volume as the control plane hands it to a device thread, and as every frontend sees it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sluice_sched::Policy;

use crate::nbd::export::Export;
use crate::source::{ExtentMap, Source};

/// Where the bytes of a volume are.
#[derive(Debug, Clone)]
pub enum Store {
    /// Nowhere: reads give zeroes, everything completes at once. For measurements.
    Null,
    /// In a file, a block device, or a range of one.
    File {
        /// Open, checked and locked.
        source: Arc<Source>,
        /// Where it lies on the disk; absent if that cannot be known.
        extents: Option<ExtentMap>,
    },
}

/// Distinguishes a volume from others of the same VM and name: each volume that is opened has another generation. A resize
/// and a restart of the device thread keep it.
///
/// Example: `web/root` is detached, and another disk is attached under that name. A client whose handshake began before names
/// the old generation, and the device thread disconnects it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct VolumeGeneration(u64);

impl VolumeGeneration {
    /// Returns a generation that no other volume of this process has.
    #[must_use]
    pub fn next() -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        VolumeGeneration(LAST.fetch_add(1, Ordering::Relaxed) + 1)
    }
}

/// A volume to be served.
#[derive(Debug, Clone)]
pub struct VolumeSpec {
    /// As in the host file.
    pub name: String,
    /// Of the volume as it was opened.
    pub generation: VolumeGeneration,
    /// Inside its VM.
    pub policy: Policy,
    /// Where its bytes are.
    pub store: Store,
    /// What clients are told.
    pub export: Export,
}
