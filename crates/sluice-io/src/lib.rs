//! The data plane: serves disks to VMs, with one gate in front of each shared device.
//!
//! It has unsafe code, because operations of io_uring refer to memory and descriptors until they complete. Each unsafe block
//! states why it is sound.
//!
//! | part | where |
//! |---|---|
//! | the loop of a device thread, its supervisor and its handles | [`reactor`] |
//! | a disk, served by such a thread | [`device`] |
//! | a link, served by such a thread | [`uplink`] |
//! | the frontends of a device thread | `frontend` |
//! | virtqueues | [`virtio`] |
//! | operations at the disk, flushes, a device of known capacity | [`backend`] |
//! | CPU time of each VM | [`cpu`] |
//! | endpoints, and the accept loop | [`endpoint`], `accept` |
//! | the NBD protocol, and its listeners | [`nbd`] |
//! | the vhost-user protocol, and its listeners | [`vhost_user`] |
//! | opening volumes | [`source`] |
//! | paths in folders that tenants may write, and the sockets there | [`path_walk`], [`folder_access`], [`socket_file`] |
//! | descriptors that peers send: whether they may, and closing them | [`rights`], [`closing`] |
//! | descriptors from before a restart | [`inherited`] |
//! | limits that sockets share | [`shared_limit`] |
//! | rate limits for connections, messages and starts of rings | `pace` |
//! | what the kernel does for a sealed process | [`jail`], and what another process does for it [`outside`] |
//! | signals that arrive before their handlers are installed | [`signals`] |

mod accept;
pub mod backend;
mod budget;
mod by_descriptor;
pub mod ceph;
pub mod clock;
pub mod closing;
pub mod cpu;
pub mod device;
pub mod endpoint;
pub mod folder_access;
pub(crate) mod frontend;
pub mod inherited;
mod intake;
pub mod jail;
pub mod limits;
pub mod memory_budget;
pub mod nbd;
pub mod outside;
mod pace;
pub mod path_walk;
pub mod reactor;
pub mod rights;
pub mod shared_limit;
pub mod signals;
pub(crate) mod slab;
pub mod socket_file;
pub mod source;
pub mod store;
pub mod uplink;
pub mod users;
pub mod vhost_user;
pub mod virtio;
pub mod volume;
