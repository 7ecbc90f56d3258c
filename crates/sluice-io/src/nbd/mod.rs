//! The NBD protocol without a device: the messages between a client and a server.
//!
//! NBD is a first-class frontend because a hypervisor keeps its own block layer (snapshots, backup, migration) above
//! it. Apart from [`listener`], this folder only knows the protocol: no scheduler, no ring, no file.
//!
//! | file | contents | I/O |
//! |---|---|---|
//! | [`wire`] | numbers of the protocol, headers, reply encoders | none |
//! | [`export`] | a volume under its name; transmission flags | none |
//! | [`options`] | parsing of option payloads during the handshake | none |
//! | [`handshake`] | the server's half of the handshake as a state machine | none |
//! | [`gateway`] | what a gateway and a storage node tell each other beyond the protocol | none |
//! | [`client`] | the client's half of the handshake | yes |
//! | [`negotiate`] | the same, run over an async or a blocking stream | yes |
//! | [`transmission`] | whether a request is allowed, and what to reply if not | none |
//! | [`tls`] | encryption, in a thread of its own | yes |
//! | [`listener`] | sockets that accept clients | yes |
//!
//! A connection in steps: the control plane accepts it and calls [`negotiate::negotiate`], which reads exactly the
//! handshake and no further byte. The raw socket then moves to the device thread, which reads 28-byte headers, parses
//! them with [`wire::RequestHeader::parse`], and checks each with [`transmission::check`].
//!
//! Supported: fixed newstyle, structured replies, `base:allocation`, block size constraints. TLS at TCP addresses. Not supported,
//! and refused with the protocol's own error: extended headers.

#![forbid(unsafe_code)]

pub mod client;
pub mod export;
pub mod gateway;
pub mod handshake;
pub mod listener;
pub mod negotiate;
pub mod options;
pub mod tls;
pub mod transmission;
mod unfinished;
pub mod wire;
