//! Facts about a source, whatever its kind.

use std::sync::Arc;

use super::alignment::Alignment;
use super::claims::Claims;
use super::faults::Failures;
use super::loss::{Loss, Mark};

/// Properties and state that a source of any kind has. The state (a loss, failed requests, claimed blocks) stays with the source when it
/// is resized and when its device thread restarts.
#[derive(Debug, Clone)]
pub struct Facts {
    pub(super) name: String,
    pub(super) size_bytes: u64,
    pub(super) identity: Option<String>,
    pub(super) alignment: Alignment,
    pub(super) block_size: u32,
    pub(super) read_only: bool,
    pub(super) lost: Mark,
    pub(super) failures: Arc<Failures>,
    pub(super) claims: Claims,
}

impl Facts {
    /// Returns the name for messages: of a file its path.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the volume's size in bytes, a multiple of `alignment().offset`.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Its identity, which a restart and another name do not change; `None` if it has none.
    #[must_use]
    pub fn identity(&self) -> Option<&str> {
        self.identity.as_deref()
    }

    /// Returns the alignment that I/O on it needs.
    #[must_use]
    pub fn alignment(&self) -> Alignment {
        self.alignment
    }

    /// Returns the logical block size of the guest's disk, in bytes.
    #[must_use]
    pub fn block_size(&self) -> u32 {
        self.block_size
    }

    /// Returns the block size of the source, if it is larger than that of the guest: the daemon bridges the difference.
    #[must_use]
    pub fn bridged_block(&self) -> Option<u32> {
        (self.alignment.offset > self.block_size).then_some(self.alignment.offset)
    }

    /// Whether it is opened for reading only.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Returns which data may be lost, so that writes and flushes fail.
    #[must_use]
    pub fn loss(&self) -> Loss {
        self.lost.get()
    }

    /// Records a loss, or its acceptance.
    pub fn set_loss(&self, loss: Loss) {
        self.lost.set(loss);
    }

    pub(crate) fn claims(&self) -> &Claims {
        &self.claims
    }
}
