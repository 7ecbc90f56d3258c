//! Endpoints that clients connect to: Unix sockets and TCP addresses, and binding them.
//!
//! Binding has two steps, because a reload must not change anything before all of it is known to succeed:
//! [`Bound::prepare`] creates the socket, and [`Prepared::place`] gives it its name. [`crate::socket_file`] creates the
//! file of a Unix socket.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use tokio::net::{TcpListener, UnixListener};

use crate::path_walk::Exposed;
use crate::socket_file::{self, FileId, SocketFile, SocketFileError};
use crate::users;

/// Length of the queue of connections that are not accepted yet, unless `net.core.somaxconn` is smaller. If it is full the
/// kernel drops connection requests, and a client tries again after a second.
const BACKLOG: i32 = 4096;

/// Address that clients connect to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    /// A Unix socket.
    Unix {
        /// Path, at most 107 bytes.
        path: PathBuf,
        /// Owner: name or number of a user; `None`: the daemon's user.
        owner: Option<String>,
        /// Group: name or number; `None`: the daemon's group.
        group: Option<String>,
        /// Permissions of the file.
        mode: u32,
    },
    /// An address and a port.
    Tcp(SocketAddr),
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Endpoint::Unix { path, .. } => write!(f, "{}", path.display()),
            Endpoint::Tcp(address) => write!(f, "{address}"),
        }
    }
}

/// An endpoint that cannot be listened on.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Another process listens there.
    #[error("Socket {0} is in use by another process; stop it or choose another socket")]
    InUse(String),
    /// The path exists and is not a socket.
    #[error("{} exists and is not a socket; remove it or choose another path", .0.display())]
    NotASocket(PathBuf),
    /// Other users may replace its file.
    #[error(
        "Socket {endpoint}: {} can replace files in {}; remove its write permission there, set it as the `owner` of the \
         socket, or choose another folder",
        .exposed.by, .exposed.folder.display()
    )]
    Exposed {
        /// The socket.
        endpoint: String,
        /// The folder, and the user that may write there.
        exposed: Exposed,
    },
    /// Its path contains a symbolic link that other users may change.
    #[error(
        "Socket {endpoint}: {} is a symbolic link that users other than root can change; use the folder's own path",
        .link.display()
    )]
    Link {
        /// The socket.
        endpoint: String,
        link: PathBuf,
    },
    /// A call in its folder has not returned in time. The caller of this crate sets the time limit.
    #[error("Socket {endpoint} has not responded for {seconds} s: the file system of its folder hangs")]
    Silent {
        /// The socket.
        endpoint: String,
        /// The time limit in seconds.
        seconds: u64,
    },
    /// The owner or group does not exist.
    #[error("Socket {endpoint}: {kind} {name} does not exist on this host; create it or use another")]
    Nobody {
        /// The socket.
        endpoint: String,
        /// `user` or `group`.
        kind: &'static str,
        /// As configured.
        name: String,
    },
    /// A system call failed.
    #[error("Cannot listen on {endpoint}: {advice}")]
    Io {
        /// The endpoint.
        endpoint: String,
        /// The remedy.
        advice: &'static str,
        #[source]
        source: io::Error,
    },
}

/// A socket without its final name. Dropping it closes it.
pub struct Prepared {
    endpoint: Endpoint,
    socket: PreparedSocket,
}

enum PreparedSocket {
    Unix(socket_file::Prepared),
    Tcp(std::net::TcpListener),
}

impl Prepared {
    /// The second half of [`Bound::bind`]: gives the socket its name, so that clients can connect.
    ///
    /// # Errors
    /// [`ListenError`].
    pub fn place(self) -> Result<Bound, ListenError> {
        let Prepared { endpoint, socket } = self;
        let socket = match socket {
            PreparedSocket::Tcp(listener) => BoundSocket::Tcp(listener),
            PreparedSocket::Unix(prepared) => {
                let (listener, file) = prepared.place().map_err(|error| unix_error(&endpoint, error))?;
                BoundSocket::Unix(listener, file)
            }
        };
        Ok(Bound { endpoint, socket })
    }
}

/// A socket that listens, but whose connections are not accepted yet. Dropping it closes the socket and removes its file.
#[derive(Debug)]
pub struct Bound {
    endpoint: Endpoint,
    socket: BoundSocket,
}

#[derive(Debug)]
enum BoundSocket {
    Unix(std::os::unix::net::UnixListener, SocketFile),
    Tcp(std::net::TcpListener),
}

impl Bound {
    /// Listens. May block as long as the file system of the socket's folder or the host's user database does. Replaces a socket
    /// file that is `ours`, and restores it if the listener is dropped before its `keep`.
    ///
    /// # Errors
    /// [`ListenError`].
    pub fn bind(endpoint: Endpoint, ours: Option<FileId>) -> Result<Bound, ListenError> {
        Bound::prepare(endpoint, ours)?.place()
    }

    /// The first half of [`Bound::bind`], which changes nothing at the endpoint's path. A TCP socket listens from now on.
    ///
    /// # Errors
    /// [`ListenError`].
    pub fn prepare(endpoint: Endpoint, ours: Option<FileId>) -> Result<Prepared, ListenError> {
        let socket = match &endpoint {
            Endpoint::Tcp(address) => PreparedSocket::Tcp(bind_tcp(&endpoint, *address)?),
            Endpoint::Unix { path, owner, group, mode } => {
                let owner = resolve(&endpoint, "user", owner.as_deref(), users::user)?;
                let group = resolve(&endpoint, "group", group.as_deref(), users::group)?;
                let prepared = socket_file::prepare(path, owner, group, *mode, ours);
                PreparedSocket::Unix(prepared.map_err(|error| unix_error(&endpoint, error))?)
            }
        };
        Ok(Prepared { endpoint, socket })
    }

    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Returns the socket, for the tokio runtime in which this is called, and its file.
    ///
    /// # Errors
    /// [`ListenError::Io`].
    ///
    /// # Panics
    /// If the endpoint is not a Unix socket.
    pub fn into_unix(self) -> Result<(UnixListener, SocketFile), ListenError> {
        let Bound { endpoint, socket } = self;
        let BoundSocket::Unix(listener, file) = socket else { panic!("{endpoint} is not a Unix socket") };
        let listener = UnixListener::from_std(listener);
        Ok((listener.map_err(|source| io(&endpoint, NO_FILE, source))?, file))
    }

    /// Returns the socket, for the tokio runtime in which this is called, and the file of a Unix socket.
    ///
    /// # Errors
    /// [`ListenError::Io`].
    pub fn into_tokio(self) -> Result<(TokioSocket, Option<SocketFile>), ListenError> {
        match self.socket {
            BoundSocket::Tcp(listener) => {
                let listener =
                    TcpListener::from_std(listener).map_err(|source| io(&self.endpoint, NO_ADDRESS, source))?;
                Ok((TokioSocket::Tcp(listener), None))
            }
            BoundSocket::Unix(..) => {
                let (listener, file) = self.into_unix()?;
                Ok((TokioSocket::Unix(listener), Some(file)))
            }
        }
    }
}

/// A listening socket of either kind.
#[derive(Debug)]
pub enum TokioSocket {
    Unix(UnixListener),
    Tcp(TcpListener),
}

fn unix_error(endpoint: &Endpoint, error: SocketFileError) -> ListenError {
    match error {
        SocketFileError::InUse => ListenError::InUse(endpoint.to_string()),
        SocketFileError::NotASocket => ListenError::NotASocket(PathBuf::from(endpoint.to_string())),
        SocketFileError::Exposed(exposed) => ListenError::Exposed { endpoint: endpoint.to_string(), exposed },
        SocketFileError::Link(link) => ListenError::Link { endpoint: endpoint.to_string(), link },
        SocketFileError::Folder(error) => io(endpoint, NO_FILE, error),
        SocketFileError::Owner(error) => io(endpoint, NO_OWNER, error),
    }
}

fn io(endpoint: &Endpoint, advice: &'static str, source: io::Error) -> ListenError {
    ListenError::Io { endpoint: endpoint.to_string(), advice, source }
}

/// Advice if the file of a socket cannot be created or removed.
const NO_FILE: &str = "create its folder, and let this user write there";
/// Advice if the owner of the file cannot be set.
const NO_OWNER: &str =
    "only root may give a socket to another user: leave out `owner`, and state a `group` that this user is in";
/// Advice if an address cannot be bound.
const NO_ADDRESS: &str = "state an address of this host and a port that this user may bind";

fn bind_tcp(endpoint: &Endpoint, address: SocketAddr) -> Result<std::net::TcpListener, ListenError> {
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::AddrInUse => ListenError::InUse(endpoint.to_string()),
        _ => io(endpoint, NO_ADDRESS, source),
    };
    let listener = std::net::TcpListener::bind(address).map_err(failed)?;
    rustix::net::listen(&listener, BACKLOG).map_err(|error| failed(error.into()))?;
    listener.set_nonblocking(true).map_err(failed)?;
    Ok(listener)
}

fn resolve(
    endpoint: &Endpoint,
    kind: &'static str,
    name: Option<&str>,
    find: impl Fn(&str) -> Option<u32>,
) -> Result<Option<u32>, ListenError> {
    let Some(name) = name else { return Ok(None) };
    let nobody = || ListenError::Nobody { endpoint: endpoint.to_string(), kind, name: name.to_owned() };
    find(name).map(Some).ok_or_else(nobody)
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_burst_of_connections_kept_others_from_connecting_for_a_second() {
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let listener = bind_tcp(&Endpoint::Tcp(address), address).unwrap();
        let address = listener.local_addr().unwrap();
        // The connections are not accepted: only the kernel replies.
        let mut burst = Vec::new();
        for number in 0..500 {
            let connected = TcpStream::connect_timeout(&address, Duration::from_millis(900));
            burst.push(connected.unwrap_or_else(|error| panic!("connection {number}: {error}")));
        }
    }
}
