//! Several threads for one device, with one gate.
//!
//! Each worker has a loop of its own, with its queues and connections, its requests and an io_uring. It takes requests, copies,
//! submits, completes and interrupts. The gate is behind a lock: a worker posts small records (a request has arrived, a submission
//! has completed) to its outbox, and whichever worker gets the lock handles the records of all, lets the gate dispatch, and puts
//! grants into the inboxes of the workers whose requests they are. So no worker waits for the lock, and no thread only decides.
//!
//! ```text
//!     worker 0 --outbox--.                              .--inbox--> worker 0 --> its io_uring
//!                         >--> [lock: Gate, delay] --> <
//!     worker 1 --outbox--'     by any that gets it     '--inbox--> worker 1 --> its io_uring
//! ```
//!
//! What is not divided among workers: the window, the CPU time and the clients of a VM ([`common`]), and the syncs of a file
//! ([`crate::backend::sync`]). Each worker has tables of all VMs and volumes; [`changes`] says how they stay the same.
//!
//! A device with one thread uses none of this: its core owns its gate ([`gateway`]).

pub(crate) mod changes;
pub(crate) mod common;
pub(crate) mod crew;
pub(crate) mod figures;
pub(crate) mod gateway;
pub(crate) mod hub;
pub(crate) mod joint;
pub(crate) mod lane;
pub(crate) mod port;
pub(crate) mod token;

#[cfg(test)]
pub(crate) mod log;
