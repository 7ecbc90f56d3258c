//! The daemon's side of the control socket.

use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use sluice_api::line::{self, REQUEST_MAX};
use sluice_config::{Access, CONTROL_SOCKET, Control, DaemonSettings};
use sluice_io::endpoint::{Bound, Endpoint, ListenError};
use sluice_io::socket_file::SocketFile;
use sluice_io::users;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout, timeout_at};

use super::{Code, Reply, Request, http};
use sluice_http::{Connections, Limits, Permit};

/// Timeout of a client for sending its request and for reading the reply. The wait for its turn has no timeout: its
/// request will be carried out, so it must not be told of a failure.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(10);
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
        let http = http::start(sender.clone()).map_err(|source| ListenError::Io { endpoint, advice, source })?;
        let to = To { lines: sender, http };
        let task = tokio::spawn(accept(listener, to));
        Ok((ControlSocket { task, _file: file }, asked))
    }
}

/// Where requests go: lines of JSON at once, HTTP by its thread.
#[derive(Clone)]
struct To {
    lines: mpsc::Sender<Asked>,
    http: mpsc::Sender<http::Connection>,
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

async fn accept(listener: UnixListener, to: To) {
    let connections = Connections::new(LIMITS);
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let Ok(peer) = Peer::of(&stream) else { continue };
                let Some(permit) = connections.enter(peer.uid, peer.is_admin()).await else {
                    tracing::debug!(%peer, "Control client rejected: too many are connected");
                    continue;
                };
                let to = to.clone();
                tokio::spawn(async move {
                    if let Err(error) = converse(stream, peer, permit, to).await {
                        tracing::debug!(%error, "Control client left");
                    }
                });
            }
            Err(error) => {
                tracing::warn!(%error, "Cannot accept a control client");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn converse(stream: UnixStream, peer: Peer, permit: Permit, to: To) -> io::Result<()> {
    let (read, mut write) = stream.into_split();
    let mut line = String::new();
    let mut read = BufReader::new(read.take(REQUEST_MAX));
    let until = Instant::now() + CLIENT_TIMEOUT;
    let no_room = || io::Error::other("It has sent nothing and made room for another client");
    // A method of HTTP has capital letters.
    let is_http = tokio::select! {
        biased;
        () = permit.ended() => return Err(no_room()),
        begin = timeout_at(until, read.fill_buf()) => begin??.first().is_some_and(u8::is_ascii_uppercase),
    };
    if is_http {
        let begin = read.buffer().to_vec();
        let stream = read.into_inner().into_inner().reunite(write).map_err(io::Error::other)?.into_std()?;
        let connection = http::Connection { stream, begin, peer, permit };
        return to.http.send(connection).await.map_err(|_| io::Error::other("The daemon is exiting"));
    }
    // One that has made room is waited for, and is not served.
    tokio::select! {
        biased;
        () = permit.ended() => return Err(no_room()),
        read = timeout_at(until, read.read_line(&mut line)) => read??,
    };
    permit.set_asking(true);
    let mut reply = match line::read(&line) {
        Err(refused) => refused,
        Ok(request) => {
            let (reply, answer) = oneshot::channel();
            let gone = |_| io::Error::other("The daemon is exiting");
            to.lines
                .send(Asked { request, peer, manner: Manner::default(), reply })
                .await
                .map_err(|_| io::Error::other("The daemon is exiting"))?;
            answer.await.map_err(gone)?
        }
    };
    // Commands of the version before know no such code.
    if reply.code == Some(Code::Forbidden) {
        reply.code = Some(Code::Refused);
    }
    timeout(CLIENT_TIMEOUT, write.write_all(line::write(&reply).as_bytes())).await?
}

#[cfg(test)]
mod tests {
    use sluice_api::request::How;

    use super::*;

    impl To {
        /// Nothing speaks HTTP.
        fn lines(lines: mpsc::Sender<Asked>) -> To {
            To { lines, http: mpsc::channel(1).0 }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_queued_request_is_answered_however_long_it_takes() {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let (sender, mut asked) = mpsc::channel(1);
        let peer = Peer::of(&theirs).unwrap();
        let permit = Connections::new(LIMITS).enter(peer.uid, true).await.unwrap();
        let served = tokio::spawn(converse(theirs, peer, permit, To::lines(sender)));
        ours.write_all(b"{\"verb\":\"detach\",\"target\":\"a\"}\n").await.unwrap();
        let Asked { request, peer, reply, .. } = asked.recv().await.unwrap();
        assert_eq!(request, Request::Detach { target: "a".to_owned(), how: How::default() });
        assert_eq!(peer.pid, i32::try_from(std::process::id()).ok());
        tokio::time::advance(CLIENT_TIMEOUT * 10).await;
        reply.send(Reply::changed(None, None)).unwrap();
        let mut said = String::new();
        ours.read_to_string(&mut said).await.unwrap();
        assert_eq!(said, "{\"ok\":true}\n");
        served.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn silent_connections_of_root_kept_root_out() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("control");
        let (sender, _asked) = mpsc::channel(1);
        let accepts = tokio::spawn(accept(UnixListener::bind(&path).unwrap(), To::lines(sender)));
        let mut silent = Vec::new();
        for _ in 0..LIMITS.admins {
            silent.push(UnixStream::connect(&path).await.unwrap());
        }
        let mut client = UnixStream::connect(&path).await.unwrap();
        client.write_all(b"?\n").await.unwrap();
        let mut said = String::new();
        client.read_to_string(&mut said).await.unwrap();
        assert!(said.contains("Invalid request"), "{said}");
        assert_eq!(silent[0].read(&mut [0; 1]).await.unwrap(), 0, "the oldest has made room");
        accepts.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_client_is_disconnected() {
        let (_ours, theirs) = UnixStream::pair().unwrap();
        let peer = Peer::of(&theirs).unwrap();
        let before = tokio::time::Instant::now();
        let permit = Connections::new(LIMITS).enter(peer.uid, true).await.unwrap();
        assert!(converse(theirs, peer, permit, To::lines(mpsc::channel(1).0)).await.is_err());
        assert!(before.elapsed() >= CLIENT_TIMEOUT);
    }
}
