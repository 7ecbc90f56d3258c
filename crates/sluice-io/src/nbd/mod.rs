//! The NBD protocol: what a client and a server say to each other, without the device behind it.
//!
//! NBD is a first-class frontend because a hypervisor keeps its own block layer (snapshots, backup,
//! migration) above it. This folder knows the protocol and nothing else: no scheduler, no ring, no file.
//!
//! | file | what it holds | I/O |
//! |---|---|---|
//! | [`wire`] | numbers of the protocol, headers, reply encoders | none |
//! | [`export`] | a volume under its name; transmission flags | none |
//! | [`options`] | parsing of option payloads during the handshake | none |
//! | [`handshake`] | the server's half of the handshake as a state machine | none |
//! | [`negotiate`] | the same, driven over an async or a blocking stream | yes |
//! | [`transmission`] | is this request allowed, and if not, what to answer | none |
//!
//! The life of a connection: the control plane accepts it and calls [`negotiate::negotiate`], which reads
//! exactly the handshake and not one byte more; the raw socket then moves to the device thread, which
//! reads 28-byte headers, parses them with [`wire::RequestHeader::parse`] and asks
//! [`transmission::check`] what to do with each.
//!
//! Spoken: fixed newstyle, structured replies, `base:allocation`, block size constraints. Not spoken,
//! and refused with the protocol's own error: TLS (the socket is local or tunnelled), extended headers.

#![forbid(unsafe_code)]

pub mod export;
pub mod handshake;
pub mod listener;
pub mod negotiate;
pub mod options;
pub mod transmission;
mod unfinished;
pub mod wire;
