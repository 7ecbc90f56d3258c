//! The order of turns: the interface of [`Tags`](super::tags::Tags) and [`Rounds`](super::rounds::Rounds).
//!
//! A NIC with packets that its rate credits cover is in the ordinary class, and while it is below its minimum rate also
//! in the urgent class, which is served first. What it sends there counts in both: a minimum is a lower bound on the
//! share, not an addition to it.

use sluice_sched::request::RequestId;

/// Class that is served before the ordinary one.
pub(super) const URGENT: usize = 0;
pub(super) const ORDINARY: usize = 1;

/// A packet that was sent.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sent {
    pub(super) length: u32,
    /// The next packet of the NIC, if there is one.
    pub(super) next: Option<RequestId>,
    /// Bytes of the NIC's minimum rate per window.
    pub(super) allowance: u32,
}

/// The order of turns in both classes.
pub(super) trait Turns: core::fmt::Debug + Send {
    /// Adds a NIC, with a weight in hundredths.
    fn add(&mut self, owner: u32, weight: u64);

    /// Sets the weight, also for queued packets; `head`: the packet at the head, if there is one.
    fn set_weight(&mut self, owner: u32, weight: u64, head: Option<RequestId>);

    /// Forgets what was sent for a former minimum rate.
    fn forgive(&mut self, owner: u32, head: Option<RequestId>);

    fn remove(&mut self, owner: u32);

    /// Inserts a NIC into a class, if it is not in it.
    fn join(&mut self, class: usize, owner: u32, head: RequestId);

    fn is_in(&self, class: usize, owner: u32) -> bool;

    /// The first NIC of a class.
    fn first(&self, class: usize) -> Option<u32>;

    /// Whether the first NIC of a class may send its packet. If not, its turn ends and another NIC is first. `passed`
    /// counts the turns ended in one search; `length` returns the length of a NIC's packet.
    fn grants(&mut self, class: usize, owner: u32, passed: &mut usize, length: &dyn Fn(u32) -> Option<u32>) -> bool;

    /// Whether the turn of the first ordinary NIC, which has no packets, may be held for it. If not, another NIC is
    /// first.
    fn may_hold(&mut self, owner: u32) -> bool;

    /// Notes that the first NIC of a class has sent a packet.
    fn sent(&mut self, class: usize, owner: u32, packet: &Sent);

    /// Notes that the packet at the head of a NIC has changed, or that there is none.
    fn head_changed(&mut self, owner: u32, head: Option<RequestId>);

    /// Ends the turn of a NIC that has sent its last packet. It was first in this class.
    fn emptied(&mut self, class: usize, owner: u32);

    /// Takes away what a NIC without rate credits has saved. It was first in this class.
    fn held_back(&mut self, class: usize, owner: u32);

    /// Removes the first NIC of a class.
    fn leave(&mut self, class: usize, owner: u32);

    /// Notes that nothing is queued or in flight.
    fn idle(&mut self);
}
