//! The NBD frontend of a device thread: clients on sockets.

pub(super) mod connection;
mod intake;
mod replies;

pub(super) use connection::Connection;
pub(super) use replies::Piece;
