//! The data plane: what serves VMs their disks, with one gate in front of each shared device.
//!
//! It has unsafe code, since it speaks to io_uring, whose operations hold memory and descriptors for as long as they
//! last. Each unsafe block says why it is sound.
//!
//! | part | where |
//! |---|---|
//! | a device thread: ring, gate, connections | [`device`] |
//! | the NBD protocol, and where its clients come in | [`nbd`], [`listener`] |
//! | the vhost-user protocol | [`vhost`] |
//! | opening volumes | [`source`] |
//! | paths in folders that tenants may write, and the sockets there | [`path_walk`], [`socket_file`] |
//! | a device of known capacity | [`delay`] |
//! | flushes | [`sync`] |
//! | how many connections there may be | [`seats`] |

pub mod buffer;
pub mod clock;
pub mod delay;
pub mod device;
pub mod limits;
pub mod listener;
pub mod nbd;
pub mod path_walk;
pub mod ring;
pub mod seats;
mod slot_log;
pub mod socket_file;
pub mod source;
pub mod sync;
mod unfinished;
pub mod users;
pub mod vhost;
