//! State of a VM that the workers of a device share: its window and its CPU time. That of a volume is in [`crate::backend::volume_common`].
//!
//! A worker changes it with single atomic operations. Two workers that see the last free place of a window at the same time
//! both take it, so a window may be exceeded by one request for each worker after the first.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::backend::occupancy::Tally;
use crate::cpu::CpuCommon;

/// A VM of all workers.
#[derive(Debug, Default)]
pub(crate) struct VmCommon {
    pub(crate) outstanding: Arc<Tally>,
    /// The workers with clients that wait for room, a bit for each.
    waiting: AtomicU32,
    /// See [`crate::device::vm::Vm`].
    pub(crate) protocol_errors: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) cpu: Arc<CpuCommon>,
}

impl VmCommon {
    /// Records that a client waits at a worker, which looks for room once more afterwards.
    pub(crate) fn wait(&self, worker: u8) {
        self.waiting.fetch_or(1 << worker, Ordering::SeqCst);
    }

    /// Whether clients of other workers wait for room.
    pub(crate) fn is_awaited(&self, worker: u8) -> bool {
        self.waiting.load(Ordering::SeqCst) & !(1 << worker) != 0
    }

    /// Returns the other workers with clients that wait, a bit for each, and forgets them: each is told once.
    pub(crate) fn take_waiting(&self, worker: u8) -> u32 {
        let others = !(1 << worker);
        match self.waiting.load(Ordering::SeqCst) & others {
            0 => 0,
            _ => self.waiting.fetch_and(!others, Ordering::SeqCst) & others,
        }
    }
}
