//! The thread of a device: one loop for disks and for links.
//!
//! ```text
//!     handle --Message--> [mailbox] --> [event_loop] --event, command, edit, work--> Actor: a disk, or an uplink
//!                                           | ^
//!                             supervisor ---' '--- io_uring
//! ```
//!
//! A `Reactor` has what every device thread needs: the loop with its bounds, its messages, the pause after an
//! interrupted operation, polling before a sleep, and the accounts of lateness and CPU time. What a thread serves is an
//! `Actor`, which has the ring, the gate and the clients. The reactor knows no kind of actor and no frontend.
//!
//! Panics: a panic in the loop closes its connections. The supervisor waits until the kernel refers to no memory any
//! more, builds the actor again from the same specification, and continues. Other devices are not affected. A device
//! that fails repeatedly goes down.

pub(crate) mod actor;
pub(crate) mod base;
pub(crate) mod event_loop;
#[cfg(test)]
pub(crate) mod faults;
pub mod handle;
pub(crate) mod lateness;
pub(crate) mod life;
pub(crate) mod mailbox;
pub(crate) mod message;
pub mod panics;
pub mod priority;
pub mod probe;
pub mod spec;
pub(crate) mod spin;
pub(crate) mod statistics;
pub(crate) mod supervisor;
pub(crate) mod worker;

pub use handle::Thread;
