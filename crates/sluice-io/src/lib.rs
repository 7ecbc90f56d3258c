//! The data plane: what serves VMs their disks, with one gate in front of each shared device.
//!
//! It has unsafe code, since it speaks to io_uring, whose operations hold memory and descriptors for as long as they
//! last. Each unsafe block says why it is sound.
//!
//! | part | where |
//! |---|---|
//! | a device thread: event loop, gate, supervisor | [`device`] |
//! | the frontends of a device thread | `frontend` |
//! | virtqueues | [`virtio`] |
//! | operations at the disk, flushes, a device of known capacity | [`backend`] |
//! | the NBD protocol, and its listeners | [`nbd`], [`listener`] |
//! | the vhost-user protocol, and its listeners | [`vhost_user`] |
//! | opening volumes | [`source`] |
//! | paths in folders that tenants may write, and the sockets there | [`path_walk`], [`socket_file`] |
//! | the number of connections | [`connection_limit`] |
//! | signals that come before their handlers | [`signals`] |

pub mod backend;
pub mod clock;
pub mod connection_limit;
pub mod device;
pub(crate) mod frontend;
pub mod limits;
pub mod listener;
mod memory_budget;
pub mod nbd;
pub mod path_walk;
pub mod signals;
pub(crate) mod slab;
pub mod socket_file;
pub mod source;
mod unfinished;
pub mod users;
pub mod vhost_user;
pub mod virtio;
pub mod volume;
