//! Virtqueues, for every kind of virtio device: descriptor chains, rings, event index, in-flight log.

pub(crate) mod chain;
pub(crate) mod data;
pub(crate) mod eventfds;
pub mod inflight;
pub mod queue;
pub(crate) mod queue_set;
pub(crate) mod segment;
pub(crate) mod sessions;
mod used_ring;

pub(crate) use data::GuestData;
pub(crate) use queue::VirtQueue;
