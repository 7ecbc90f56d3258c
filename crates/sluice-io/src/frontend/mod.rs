//! The frontends of a device thread: one folder for each protocol.

pub(crate) mod nbd;
pub(crate) mod vhost_blk;
