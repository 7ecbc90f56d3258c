//! Clients of our own, which speak to the daemon as a VMM or an NBD client does: for the demo, benchmarks and tests.
//!
//! | part | where |
//! |---|---|
//! | an NBD client | [`nbd`] |
//! | a server that answers without a device: the client's ceiling | [`canned`] |
//! | a vhost-user-blk front end without a VM | [`vhost`] |
//!
//! Unsafe code is in [`vhost::memory`] alone: the memory that a front end shares with the daemon, which may change at any
//! moment.

#![deny(unsafe_code)]

pub mod canned;
pub mod nbd;
pub mod vhost;
