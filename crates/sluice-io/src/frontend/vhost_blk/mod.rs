//! The vhost-user frontend of a device thread: virtqueues of guests.
//!
//! ```text
//! kick --> [intake] --Arrival--> Gate --Submission--> work --op--> ring
//!             ^ available ring                                      |
//! call <-- [returns] <---------------- Finished <---- slot over <---'
//!             | used ring, in-flight log
//! ```
//!
//! What a VM may not have outstanding stays in its available ring; what waits when the queue stops goes back there ([rewind]). Guest memory is read once; what is wrong fails the
//! request, or the queue if the ring itself makes no sense, and is counted with the VM's name.

mod intake;
mod message;
mod request;
mod returns;
mod rewind;
mod session;

pub(crate) use message::{SessionChange, SessionMessage};
pub(crate) use session::SessionState;

#[cfg(test)]
mod tests;
