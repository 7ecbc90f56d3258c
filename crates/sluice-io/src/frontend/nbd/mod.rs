//! The NBD frontend of a device thread: clients on sockets.

pub(crate) mod connection;
mod intake;
mod replies;

pub(crate) use connection::Connection;
pub(crate) use replies::Piece;
