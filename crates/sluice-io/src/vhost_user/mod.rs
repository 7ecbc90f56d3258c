//! vhost-user: a VMM hands over guest memory and virtqueues by messages on a Unix socket.
//!
//! Messages, descriptors and mappings are the control thread's work; it checks everything, and tells a device thread only
//! what has been found right ([`session_handle`]). Definitions of messages come from crate `vhost`, queues from `virtio-queue`,
//! memory from `vm-memory`; who speaks, waits and answers is here.

pub mod blk;
pub mod counts;
pub mod device_kind;
mod eventfd;
mod guard;
pub mod listener;
pub mod mapping;
pub mod memory;
mod pace;
pub mod ring;
pub mod session;
pub mod session_handle;
pub(crate) mod shared;
pub mod socket;
pub mod wire;
