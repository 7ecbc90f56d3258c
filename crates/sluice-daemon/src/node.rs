//! Other NBD servers: how their exports are reached.

use std::fs::File;
use std::net::{TcpStream, ToSocketAddrs as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use sluice_config::{NodeAddress, NodeExport};
use sluice_io::nbd::client::{self, HandshakeError, Session, Wanted};
use sluice_io::source::remote::Dial;

use crate::failure::chain;
use crate::launcher::{self, Question};

/// Maximum time for a connection, and silence of a server during the handshake.
const ANSWER_MAX: Duration = Duration::from_secs(4);

/// Connects to a server, in a process that may.
pub(crate) fn connect_here(address: &str) -> Result<OwnedFd, String> {
    let cannot = |error: std::io::Error| format!("Cannot connect to {address}: {error}");
    match address.parse()? {
        NodeAddress::Unix(path) => UnixStream::connect(path).map(OwnedFd::from).map_err(cannot),
        NodeAddress::Tcp(host, port) => {
            let mut last = std::io::Error::other("the name has no address");
            for address in (host.as_str(), port).to_socket_addrs().map_err(cannot)? {
                match TcpStream::connect_timeout(&address, ANSWER_MAX) {
                    Ok(stream) => return Ok(stream.into()),
                    Err(error) => last = error,
                }
            }
            Err(cannot(last))
        }
    }
}

/// Connects to a server: by the launcher, in a daemon.
fn connect(address: &NodeAddress) -> Result<OwnedFd, String> {
    let address = address.to_string();
    match launcher::ask_for(Question::Connect(address.clone())) {
        None => connect_here(&address),
        Some(connected) => connected?.ok_or_else(|| "no connection came with the answer".to_owned()),
    }
}

/// An export, which is connected to when it is needed.
pub(crate) struct Export(pub(crate) NodeExport);

impl Dial for Export {
    fn dial(&self) -> Result<(OwnedFd, Session), String> {
        let NodeExport { node, name } = &self.0;
        let mut stream = File::from(connect(node)?);
        limit_silence(&stream, Some(ANSWER_MAX))?;
        let session = client::run(&mut stream, name, Wanted::default()).map_err(|error| shown(&error, name))?;
        limit_silence(&stream, None)?;
        Ok((stream.into(), session))
    }
}

/// Sets how long a send or a receive may wait.
fn limit_silence(stream: &File, limit: Option<Duration>) -> Result<(), String> {
    let set = |timeout| set_socket_timeout(stream, timeout, limit);
    [Timeout::Recv, Timeout::Send].into_iter().try_for_each(set).map_err(|error| error.to_string())
}

/// A failed handshake for people: the cause, and what to change.
fn shown(error: &HandshakeError, export: &str) -> String {
    use sluice_io::nbd::wire::option_reply::{ERR_POLICY, ERR_UNKNOWN, ERROR_BIT};
    const ERR_TLS_REQUIRED: u32 = ERROR_BIT | 5;
    match error {
        HandshakeError::Refused { kind: ERR_UNKNOWN, .. } => {
            format!("the server has no export '{export}': state one that it has, or add it there")
        }
        HandshakeError::Refused { kind: ERR_TLS_REQUIRED, .. } => {
            "the server wants TLS, which is not supported: use a Unix socket or a tunnel".to_owned()
        }
        HandshakeError::Refused { kind: ERR_POLICY, .. } => {
            format!("the server does not let this host have the export '{export}'")
        }
        HandshakeError::Io(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
            format!("the server has not answered for {} s", ANSWER_MAX.as_secs())
        }
        error => chain(error),
    }
}
