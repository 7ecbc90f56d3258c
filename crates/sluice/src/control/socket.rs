//! The daemon's side of the control socket.

use std::io;
use std::path::Path;
use std::time::Duration;

use sluice_io::endpoint::{Bound, Endpoint, ListenError};
use sluice_io::socket_file::SocketFile;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot};
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

/// A request, who made it, and the channel of its reply.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) request: Request,
    pub(crate) peer: Peer,
    pub(crate) reply: oneshot::Sender<Reply>,
}

/// The process at the other end of the socket, as the kernel states it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Peer {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// `None` if it is in another PID namespace.
    pub(crate) pid: Option<i32>,
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
    /// Makes the socket at `path`, for the daemon's own user only. Hangs as long as its file system does.
    pub(crate) fn bind(path: &Path) -> Result<Bound, ListenError> {
        Bound::bind(Endpoint::Unix { path: path.to_owned(), owner: None, group: None, mode: 0o600 }, None)
    }

    /// Starts listening. The channel receives the requests. Must be called within a tokio runtime.
    pub(crate) fn start(bound: Bound) -> Result<(ControlSocket, mpsc::Receiver<Asked>), ListenError> {
        let (listener, file) = bound.into_unix()?;
        let (sender, asked) = mpsc::channel(WAITING_MAX);
        let task = tokio::spawn(accept(listener, sender));
        Ok((ControlSocket { task, _file: file }, asked))
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(listener: UnixListener, sender: mpsc::Sender<Asked>) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let sender = sender.clone();
                tokio::spawn(async move {
                    if let Err(error) = converse(stream, sender).await {
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

async fn converse(stream: UnixStream, sender: mpsc::Sender<Asked>) -> io::Result<()> {
    let peer = stream.peer_cred()?;
    let peer = Peer { uid: peer.uid(), gid: peer.gid(), pid: peer.pid() };
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
    let mut text = serde_json::to_string(&reply).map_err(io::Error::other)?;
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
        let served = tokio::spawn(converse(theirs, sender));
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

    #[tokio::test(start_paused = true)]
    async fn a_silent_client_is_disconnected() {
        let (_ours, theirs) = UnixStream::pair().unwrap();
        let before = tokio::time::Instant::now();
        assert!(converse(theirs, mpsc::channel(1).0).await.is_err());
        assert!(before.elapsed() >= CLIENT_TIMEOUT);
    }
}
