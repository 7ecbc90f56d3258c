//! The daemon's side of the control socket.

use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use sluice_config::{Access, CONTROL_SOCKET, Control, DaemonSettings};
use sluice_io::endpoint::{Bound, Endpoint, ListenError};
use sluice_io::socket_file::SocketFile;
use sluice_io::users;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use super::{Reply, Request, http};
use sluice_http::{Connections, Limits};

/// Maximum number of queued requests.
const WAITING_MAX: usize = 16;
/// Connections of clients that are neither root nor the daemon's user, of those that are, and of each user that is neither. Otherwise one
/// could keep all others out by being silent.
const LIMITS: Limits = Limits { clients: 32, admins: 64, of_user: 8 };
/// Group of the socket if the host file states none and the group exists.
const GROUP: &str = "sluice";

/// A request, who made it, and the channel of its reply.
#[derive(Debug)]
pub struct Asked {
    pub request: Request,
    pub peer: Peer,
    pub manner: Manner,
    pub reply: oneshot::Sender<Reply>,
}

/// How a change is made.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Manner {
    /// Whether it only says what would change.
    pub is_dry_run: bool,
    /// The version of its object that it is made for.
    pub only_if: Option<String>,
}

/// The process at the other end of the socket, as the kernel states it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    pub uid: u32,
    pub gid: u32,
    /// Its supplementary groups.
    pub groups: Arc<[u32]>,
    /// `None` if it is in another PID namespace.
    pub pid: Option<i32>,
    /// User who had logged in, also if the process has another user since, for example with sudo; `None` if the kernel does not know.
    pub login: Option<u32>,
}

impl Peer {
    fn of(stream: &UnixStream) -> io::Result<Peer> {
        let peer = stream.peer_cred()?;
        let groups = users::peer_groups(stream.as_fd())?.into();
        let login = peer.pid().and_then(users::login_of);
        Ok(Peer { uid: peer.uid(), gid: peer.gid(), groups, pid: peer.pid(), login })
    }

    /// Whether it is root or the daemon's own user.
    pub fn is_admin(&self) -> bool {
        self.uid == 0 || self.uid == rustix::process::geteuid().as_raw()
    }
}

impl core::fmt::Display for Peer {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "uid {}, gid {}", self.uid, self.gid)?;
        self.pid.map_or(Ok(()), |pid| write!(f, ", pid {pid}"))
    }
}

/// The socket. Dropping it closes it and removes its file.
pub struct ControlSocket {
    task: JoinHandle<()>,
    _file: SocketFile,
}

impl ControlSocket {
    /// Makes the socket of a host file, if it is to have one. Hangs as long as its file system does. A socket that the file
    /// does not state and that cannot be made is not an error.
    pub fn bind(settings: &DaemonSettings) -> Result<Option<(Bound, Group)>, ListenError> {
        let Some((path, is_stated)) = path(settings) else { return Ok(None) };
        match bind(&path, &settings.access) {
            Ok(bound) => Ok(Some(bound)),
            Err(error) if is_stated => Err(error),
            Err(error) => {
                let (path, error) = (path.display().to_string(), crate::failure::chain(&error));
                tracing::warn!(
                    path,
                    error,
                    "No control socket: commands such as `sluice set` do not reach this daemon; correct the \
                     cause, or state another path as `control` in [daemon]"
                );
                Ok(None)
            }
        }
    }

    /// Returns the endpoint of a control socket at `path`, for a look at its folder.
    pub fn endpoint(path: &Path) -> Endpoint {
        Endpoint::Unix { path: path.to_owned(), owner: None, group: None, mode: 0o600 }
    }

    /// Starts listening. The channel receives the requests. Must be called within a tokio runtime.
    pub fn start(bound: Bound) -> Result<(ControlSocket, mpsc::Receiver<Asked>), ListenError> {
        let (endpoint, advice) = (bound.endpoint().to_string(), "raise the number of threads that the daemon may have");
        let (listener, file) = bound.into_unix()?;
        let (sender, asked) = mpsc::channel(WAITING_MAX);
        let http = http::start(sender).map_err(|source| ListenError::Io { endpoint, advice, source })?;
        let task = tokio::spawn(accept(listener, http));
        Ok((ControlSocket { task, _file: file }, asked))
    }
}

/// Number of the group that owns the socket.
pub type Group = u32;

/// Returns the path of the socket, and whether the host file states it. Relative paths from the environment are ignored.
pub fn path(settings: &DaemonSettings) -> Option<(PathBuf, bool)> {
    match &settings.control {
        Control::None => None,
        Control::At(path) => Some((path.clone(), true)),
        Control::Default => match std::env::var_os("SLUICE_SOCKET").map(PathBuf::from) {
            Some(path) if path.as_os_str() == "none" => None,
            Some(path) if path.is_absolute() => Some((path, false)),
            _ => Some((PathBuf::from(CONTROL_SOCKET), false)),
        },
    }
}

fn bind(path: &Path, access: &Access) -> Result<(Bound, Group), ListenError> {
    let with = |group: Option<String>| {
        let mode = access.mode;
        Bound::bind(Endpoint::Unix { path: path.to_owned(), owner: None, group, mode }, None)
    };
    let own = rustix::process::getegid().as_raw();
    if let Some(group) = &access.group {
        return with(Some(group.clone())).map(|bound| (bound, users::group(group).unwrap_or(own)));
    }
    let Some(group) = users::group(GROUP) else {
        let bound = with(None)?;
        tracing::info!("The control socket belongs to the daemon's group, because there is no group {GROUP}");
        return Ok((bound, own));
    };
    match with(Some(group.to_string())) {
        // Only root and members may give a file to a group.
        Err(ListenError::Io { .. }) if !rustix::process::geteuid().is_root() => {
            let bound = with(None)?;
            tracing::info!(
                "The control socket belongs to the daemon's group, because the daemon's user is not in group {GROUP}"
            );
            Ok((bound, own))
        }
        bound => bound.map(|bound| (bound, group)),
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Gives each connection to the thread of HTTP, until that has ended.
async fn accept(listener: UnixListener, http: mpsc::Sender<http::Connection>) {
    let connections = Connections::new(LIMITS);
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let Ok(peer) = Peer::of(&stream) else { continue };
                let Some(permit) = connections.enter(peer.uid, peer.is_admin()).await else {
                    tracing::debug!(%peer, "Control client rejected: too many are connected");
                    continue;
                };
                let Ok(stream) = stream.into_std() else { continue };
                if http.send(http::Connection { stream, peer, permit }).await.is_err() {
                    return;
                }
            }
            Err(error) => {
                tracing::warn!(%error, "Cannot accept a control client");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}
