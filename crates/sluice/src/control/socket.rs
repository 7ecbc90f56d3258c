//! The daemon's side of the control socket.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sluice_config::{Access, CONTROL_SOCKET, Control, DaemonSettings};
use sluice_io::endpoint::{Bound, Endpoint, ListenError};
use sluice_io::socket_file::SocketFile;
use sluice_io::users;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::{Code, Reply, Request};

/// Maximum length of a request, in bytes.
const REQUEST_MAX: u64 = 1 << 20;
/// Timeout of a client for sending its request and for reading the reply. The wait for its turn has no timeout: its
/// request will be carried out, so it must not be told of a failure.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of queued requests.
const WAITING_MAX: usize = 16;
/// Maximum number of connections of clients that are neither root nor the daemon's user, and of those that are. Further ones
/// are closed.
const CLIENTS_MAX: usize = 32;
const ADMINS_MAX: usize = 64;
/// Maximum number of connections of each user that is neither. Otherwise one could keep all others out by being silent.
const CLIENTS_OF_USER_MAX: usize = 8;
/// Group of the socket if the host file states none and the group exists.
const GROUP: &str = "sluice";

/// A request, who made it, and the channel of its reply.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) request: Request,
    pub(crate) peer: Peer,
    pub(crate) reply: oneshot::Sender<Reply>,
}

/// The process at the other end of the socket, as the kernel states it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Peer {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Its supplementary groups.
    pub(crate) groups: Arc<[u32]>,
    /// `None` if it is in another PID namespace.
    pub(crate) pid: Option<i32>,
}

impl Peer {
    fn of(stream: &UnixStream) -> io::Result<Peer> {
        let peer = stream.peer_cred()?;
        let groups = users::peer_groups(stream.as_fd())?.into();
        Ok(Peer { uid: peer.uid(), gid: peer.gid(), groups, pid: peer.pid() })
    }

    /// Whether it is root or the daemon's own user.
    pub(crate) fn is_admin(&self) -> bool {
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
pub(crate) struct ControlSocket {
    task: JoinHandle<()>,
    _file: SocketFile,
}

impl ControlSocket {
    /// Makes the socket of a host file, if it is to have one. Hangs as long as its file system does. A socket that the file
    /// does not state and that cannot be made is not an error.
    pub(crate) fn bind(settings: &DaemonSettings) -> Result<Option<(Bound, Group)>, ListenError> {
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
    pub(crate) fn endpoint(path: &Path) -> Endpoint {
        Endpoint::Unix { path: path.to_owned(), owner: None, group: None, mode: 0o600 }
    }

    /// Starts listening. The channel receives the requests. Must be called within a tokio runtime.
    pub(crate) fn start(bound: Bound) -> Result<(ControlSocket, mpsc::Receiver<Asked>), ListenError> {
        let (listener, file) = bound.into_unix()?;
        let (sender, asked) = mpsc::channel(WAITING_MAX);
        let task = tokio::spawn(accept(listener, sender));
        Ok((ControlSocket { task, _file: file }, asked))
    }
}

/// Number of the group that owns the socket.
pub(crate) type Group = u32;

/// Returns the path of the socket, and whether the host file states it. Relative paths from the environment are ignored.
pub(crate) fn path(settings: &DaemonSettings) -> Option<(PathBuf, bool)> {
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

/// Connections of each user that has some.
#[derive(Debug, Clone, Default)]
struct Users(Arc<Mutex<BTreeMap<u32, usize>>>);

/// A connection of a user, until it is dropped.
#[derive(Debug)]
struct UserPermit {
    users: Users,
    uid: u32,
}

impl Users {
    /// Counts a connection; `None` if the user has the most that it may have.
    fn enter(&self, uid: u32) -> Option<UserPermit> {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(uid).or_default();
        (*count < CLIENTS_OF_USER_MAX).then(|| {
            *count += 1;
            UserPermit { users: self.clone(), uid }
        })
    }
}

impl Drop for UserPermit {
    fn drop(&mut self) {
        let mut counts = self.users.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Entry::Occupied(mut count) = counts.entry(self.uid) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}

async fn accept(listener: UnixListener, sender: mpsc::Sender<Asked>) {
    let (clients, admins) = (Arc::new(Semaphore::new(CLIENTS_MAX)), Arc::new(Semaphore::new(ADMINS_MAX)));
    let users = Users::default();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let Ok(peer) = Peer::of(&stream) else { continue };
                let permits = if peer.is_admin() { &admins } else { &clients };
                let own = if peer.is_admin() { Some(None) } else { users.enter(peer.uid).map(Some) };
                let permit = own.zip(Arc::clone(permits).try_acquire_owned().ok());
                let Some(permit) = permit else {
                    tracing::debug!(%peer, "Control client rejected: too many are connected");
                    continue;
                };
                let sender = sender.clone();
                tokio::spawn(async move {
                    if let Err(error) = converse(stream, peer, sender).await {
                        tracing::debug!(%error, "Control client left");
                    }
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "Cannot accept a control client");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn converse(stream: UnixStream, peer: Peer, sender: mpsc::Sender<Asked>) -> io::Result<()> {
    let (read, mut write) = stream.into_split();
    let mut line = String::new();
    timeout(CLIENT_TIMEOUT, BufReader::new(read.take(REQUEST_MAX)).read_line(&mut line)).await??;
    let reply = match serde_json::from_str(&line) {
        Err(error) => Reply::failed(Code::Invalid, format!("Invalid request: {error}")),
        Ok(request) => {
            let (reply, answer) = oneshot::channel();
            let gone = |_| io::Error::other("The daemon is exiting");
            sender.send(Asked { request, peer, reply }).await.map_err(|_| io::Error::other("The daemon is exiting"))?;
            answer.await.map_err(gone)?
        }
    };
    let mut text = reply.into_line().map_err(io::Error::other)?;
    text.push('\n');
    timeout(CLIENT_TIMEOUT, write.write_all(text.as_bytes())).await?
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::super::How;
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_queued_request_is_answered_however_long_it_takes() {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let (sender, mut asked) = mpsc::channel(1);
        let peer = Peer::of(&theirs).unwrap();
        let served = tokio::spawn(converse(theirs, peer, sender));
        ours.write_all(b"{\"verb\":\"detach\",\"target\":\"a\"}\n").await.unwrap();
        let Asked { request, peer, reply } = asked.recv().await.unwrap();
        assert_eq!(request, Request::Detach { target: "a".to_owned(), how: How::default() });
        assert_eq!(peer.pid, i32::try_from(std::process::id()).ok());
        tokio::time::advance(CLIENT_TIMEOUT * 10).await;
        let done = Reply::changed(Value::Null, Value::Null);
        reply.send(done.clone()).unwrap();
        let mut said = String::new();
        ours.read_to_string(&mut said).await.unwrap();
        assert_eq!(serde_json::from_str::<Reply>(&said).unwrap(), done);
        served.await.unwrap().unwrap();
    }

    #[test]
    fn one_user_took_the_connections_of_all_others() {
        let users = Users::default();
        let mut first: Vec<_> =
            (0..CLIENTS_OF_USER_MAX).map(|_| users.enter(1000).expect("it may have some")).collect();
        assert!(users.enter(1000).is_none());
        let other = users.enter(1001);
        assert!(other.is_some());
        first.pop();
        assert!(users.enter(1000).is_some(), "one of its connections has ended");
        drop((first, other));
        assert!(users.0.lock().unwrap().is_empty(), "users without connections take no memory");
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_client_is_disconnected() {
        let (_ours, theirs) = UnixStream::pair().unwrap();
        let peer = Peer::of(&theirs).unwrap();
        let before = tokio::time::Instant::now();
        assert!(converse(theirs, peer, mpsc::channel(1).0).await.is_err());
        assert!(before.elapsed() >= CLIENT_TIMEOUT);
    }
}
