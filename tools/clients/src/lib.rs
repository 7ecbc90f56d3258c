//! The project's own NBD and vhost-user clients, for the demo, benchmarks and tests.
//!
//! | part | where |
//! |---|---|
//! | an NBD client | [`nbd`] |
//! | a server without a device, which measures the client's ceiling | [`canned`] |
//! | a vhost-user-blk front end without a VM | [`vhost`] |
//! | the archive of a Linux guest's first file system | [`initramfs`] |
//! | attacks by work that never reaches the device | [`hostile`] |
//! | network namespaces with stations that send, count and probe | [`net`] |
//! | programs of other projects | [`programs`] |
//!
//! Only [`vhost::memory`] has unsafe code: it maps the memory that the front end shares with the daemon. The daemon
//! may change it at any time.

#![deny(unsafe_code)]

pub mod canned;
pub mod hostile;
pub mod initramfs;
pub mod nbd;
pub mod net;
pub mod programs;
pub mod vhost;
