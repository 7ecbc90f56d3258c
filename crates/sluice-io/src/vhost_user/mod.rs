//! vhost-user: a VMM shares guest memory and virtqueues by messages on a Unix socket.
//!
//! The control thread handles messages, descriptors and mappings. It checks everything, and sends only valid changes to
//! a device thread ([`session_handle`]). The definitions of messages come from crate `vhost`, queues from
//! `virtio-queue`, memory from `vm-memory`; this module has the sessions.

pub mod blk;
pub mod counts;
pub mod device_kind;
pub(crate) mod eventfd;
mod guard;
pub mod listener;
pub mod mapping;
pub mod memory;
pub(crate) mod message;
pub mod net;
pub mod ring;
pub mod session;
pub mod session_handle;
pub(crate) mod shared;
pub mod socket;
pub mod wire;
