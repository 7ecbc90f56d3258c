//! Whose turn it is: what [`Tags`](super::tags::Tags) and [`Rounds`](super::rounds::Rounds) have in common.
//!
//! A NIC with packets that its rate credits let it send stands in the class of all, and while it is below its minimum rate
//! in the class that goes first too. What it sends there counts in both: a minimum is a floor under the share, not something
//! on top of it.

use crate::request::RequestId;

/// Before all others, or with them.
pub(super) const URGENT: usize = 0;
pub(super) const ORDINARY: usize = 1;

/// A packet that has been sent, as the order of turns sees it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sent {
    pub(super) length: u32,
    /// The packet behind it, if there is one.
    pub(super) next: Option<RequestId>,
    /// Bytes of the NIC's minimum rate in a window.
    pub(super) allowance: u32,
}

/// The order of turns in both classes.
pub(super) trait Turns: core::fmt::Debug + Send {
    /// A NIC comes, with a weight in hundredths.
    fn add(&mut self, owner: u32, weight: u64);

    /// Another weight, for what is queued too; `head`: the packet at the head, if there is one.
    fn set_weight(&mut self, owner: u32, weight: u64, head: Option<RequestId>);

    /// Another minimum rate: what was sent for the old one is forgotten.
    fn forgive(&mut self, owner: u32, head: Option<RequestId>);

    fn remove(&mut self, owner: u32);

    /// A NIC enters a class, if it is not in it.
    fn join(&mut self, class: usize, owner: u32, head: RequestId);

    fn is_in(&self, class: usize, owner: u32) -> bool;

    /// Who is first in a class.
    fn first(&self, class: usize) -> Option<u32>;

    /// Whether the first of a class may send its packet. If not, its turn is over and another one is first. `passed`
    /// counts those whose turn was over in one search; `length` says how long the packet of a NIC is.
    fn grants(&mut self, class: usize, owner: u32, passed: &mut usize, length: &dyn Fn(u32) -> Option<u32>) -> bool;

    /// Whether the turn of the first of all, which has no packets, may be held for it. If not, another one is first.
    fn may_hold(&mut self, owner: u32) -> bool;

    /// The first of a class has sent.
    fn sent(&mut self, class: usize, owner: u32, packet: &Sent);

    /// The packet at the head of a NIC is another one, or there is none.
    fn head_changed(&mut self, owner: u32, head: Option<RequestId>);

    /// A NIC whose last packet has gone forfeits its turn. It was first in this class.
    fn emptied(&mut self, class: usize, owner: u32);

    /// A NIC without rate credits forfeits what it has saved. It was first in this class.
    fn held_back(&mut self, class: usize, owner: u32);

    /// The first of a class leaves it.
    fn leave(&mut self, class: usize, owner: u32);

    /// Nothing is queued and nothing at the device.
    fn idle(&mut self);
}
