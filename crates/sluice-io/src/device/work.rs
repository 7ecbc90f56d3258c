//! Work that the loop does before it sleeps.
//!
//! The core notes work where it arises, and the loop does it. Work that ends requests comes first, in the order in which it arose, and then
//! work that lets clients send more, so that a client finds all the room there is.

use std::collections::VecDeque;

use crate::slab::{IoId, VmId, VolumeKey};

/// Work that ends requests, or lets them continue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ends {
    /// The volume has lost a client, which may have abandoned requests.
    Cancel(VolumeKey),
    /// Blocks of the volume were released for which requests may wait.
    Cross(VolumeKey),
    /// The request is to arrive at the gate again: with its next part, or because it was cancelled with those of another client.
    Continue(IoId),
    /// The request is to be answered.
    Complete(IoId),
    /// Slots of the gate are free: nothing to do but to let it dispatch.
    Dispatch,
}

/// Work that lets clients send more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Starts {
    /// No request of a disconnected client of the volume is in flight any more. Clients that waited for this may be served.
    Admit(VolumeKey),
    /// Waiting clients of the VM may fit into its window again.
    Resume(VmId),
}

/// The work of a loop.
#[derive(Debug, Default)]
pub(crate) struct Work {
    ends: VecDeque<Ends>,
    starts: VecDeque<Starts>,
}

impl Work {
    /// Whether there is nothing to do.
    pub(crate) fn is_empty(&self) -> bool {
        self.ends.is_empty() && self.starts.is_empty()
    }

    pub(crate) fn push(&mut self, work: Ends) {
        self.ends.push_back(work);
    }

    /// Adds work, unless it was the last that was added.
    pub(crate) fn push_start(&mut self, work: Starts) {
        if self.starts.back() != Some(&work) {
            self.starts.push_back(work);
        }
    }

    pub(crate) fn next(&mut self) -> Option<Ends> {
        self.ends.pop_front()
    }

    /// Returns the number of times that [`Work::next_start`] has something now.
    pub(crate) fn starts(&self) -> usize {
        self.starts.len()
    }

    pub(crate) fn next_start(&mut self) -> Option<Starts> {
        self.starts.pop_front()
    }
}
