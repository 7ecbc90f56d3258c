//! The vhost-user frontend of a device thread: virtqueues of guests.

mod message;

pub(crate) use message::SessionMessage;
