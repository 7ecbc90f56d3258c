//! The device of a gate: what it gets, and how its slots are named.

#[cfg(doc)]
use crate::gate::Gate;
use crate::request::Request;
use crate::time::Instant;

/// A slot of the device, numbered below the largest depth that the gate has had. After the depth was lowered, slots
/// above it stay in use until their requests complete. They are used again when the depth is raised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(pub u32);

/// One request, or one piece of a split one, for the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Submission {
    /// Slot at the device; passed to [`Gate::complete`], [`Gate::complete_all`] or [`Gate::complete_parts`].
    pub slot: Slot,
    /// Token of the arrival.
    pub token: u32,
    /// Bytes of the arrival before this piece.
    pub skip: u32,
    /// The request, with offset and length of the piece.
    pub request: Request,
}

/// One of the requests in a merged submission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// Token of its arrival.
    pub token: u32,
    /// Bytes of the arrival before this part.
    pub skip: u32,
    /// Length of the part in bytes.
    pub length: u32,
}

/// The device of a gate. It never blocks and never calls the gate.
pub trait Device {
    /// Whether the device takes another submission, as far as that depends on more than the number of those in flight. A device
    /// that has no room calls for [`Gate::pump`] when it has some again.
    fn has_room(&self, now: Instant) -> bool {
        let _ = now;
        true
    }

    /// Starts `submission`; its completion comes to [`Gate::complete_all`] later.
    fn submit(&mut self, now: Instant, submission: &Submission);

    /// Starts a merged submission. `parts` are its requests, without gaps and in order of their offsets; the token of
    /// the submission is that of the first. It completes once, by [`Gate::complete_all`] or, if parts may have
    /// different results, by [`Gate::complete_parts`]. Only a gate that merges calls it. The default suits devices that
    /// use only offset and size, such as models.
    fn submit_merged(&mut self, now: Instant, submission: &Submission, parts: &[Part]) {
        let _ = parts;
        self.submit(now, submission);
    }
}
