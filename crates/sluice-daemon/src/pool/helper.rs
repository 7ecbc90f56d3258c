//! The process that reads and writes the meeting place.
//!
//! A write that hangs may land late, and a thread in it cannot be ended: in the daemon it would keep a killed process, and all locks of its
//! volumes, until the storage responds. So a process of its own does that, which has no descriptors of volumes. It ends when the
//! daemon has gone, but not before its last write has returned; until then it holds the lock on its blocks, and the next daemon writes
//! nothing.
//!
//! It reads requests from standard input and writes replies to standard output, one after the other.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use sluice_pool::block::{BLOCKS, SIZE};

use super::place::{Access, Place};
use crate::launcher::{self, PROGRAM, Question};

/// Name of the command of the daemon's program.
pub const COMMAND: &str = "meeting";

/// A request to the helper.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Request {
    /// Reads `count` blocks from `first` on.
    Read { first: u32, count: u32 },
    /// Writes blocks.
    Write { first: u32, bytes: Vec<u8> },
    /// Locks a block until the helper ends.
    Lock { block: u32 },
}

/// A reply: what was read, nothing otherwise, or the error.
pub(super) type Reply = Result<Vec<u8>, String>;

impl Request {
    fn encode(&self) -> Vec<u8> {
        let (kind, first, count, bytes): (u8, u32, u32, &[u8]) = match self {
            Request::Read { first, count } => (b'r', *first, *count, &[]),
            Request::Write { first, bytes } => (b'w', *first, (bytes.len() / SIZE) as u32, bytes),
            Request::Lock { block } => (b'l', *block, 1, &[]),
        };
        let mut whole = vec![kind];
        whole.extend(first.to_le_bytes());
        whole.extend(count.to_le_bytes());
        whole.extend(bytes);
        whole
    }

    fn decode(input: &mut impl Read) -> io::Result<Request> {
        let mut kind = [0];
        input.read_exact(&mut kind)?;
        let (first, count) = (number(input)?, number(input)?);
        if count as usize > BLOCKS {
            return Err(io::ErrorKind::InvalidData.into());
        }
        match kind[0] {
            b'r' => Ok(Request::Read { first, count }),
            b'l' => Ok(Request::Lock { block: first }),
            b'w' => {
                let mut bytes = vec![0; count as usize * SIZE];
                input.read_exact(&mut bytes)?;
                Ok(Request::Write { first, bytes })
            }
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    fn carry_out(&self, place: &Place) -> io::Result<Vec<u8>> {
        match self {
            Request::Read { first, count } => place.read(*first as usize, *count as usize),
            Request::Write { first, bytes } => place.write(*first as usize, bytes).map(|()| Vec::new()),
            Request::Lock { block } => place.lock(*block as usize).map(|()| Vec::new()),
        }
    }
}

fn number(input: &mut impl Read) -> io::Result<u32> {
    let mut bytes = [0; 4];
    input.read_exact(&mut bytes)?;
    Ok(u32::from_le_bytes(bytes))
}

fn send(output: &mut impl Write, reply: &Reply) -> io::Result<()> {
    let (is_error, bytes) = match reply {
        Ok(bytes) => (0_u8, bytes.as_slice()),
        Err(error) => (1, error.as_bytes()),
    };
    output.write_all(&[is_error])?;
    output.write_all(&(bytes.len() as u32).to_le_bytes())?;
    output.write_all(bytes)?;
    output.flush()
}

fn receive(input: &mut impl Read) -> io::Result<Reply> {
    let mut is_error = [0];
    input.read_exact(&mut is_error)?;
    let mut bytes = vec![0; number(input)? as usize];
    input.read_exact(&mut bytes)?;
    Ok(if is_error[0] == 0 { Ok(bytes) } else { Err(String::from_utf8_lossy(&bytes).into_owned()) })
}

/// Serves requests from standard input until the daemon has gone. The place is opened with the first request, so that an error reaches the
/// daemon.
///
/// # Errors
/// A request that cannot be read.
pub fn serve(path: &Path) -> io::Result<()> {
    let _ = rustix::thread::set_name(c"sluice-meeting");
    let (mut input, mut output) = (io::stdin().lock(), io::stdout().lock());
    let mut place = None;
    loop {
        let request = match Request::decode(&mut input) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            request => request?,
        };
        let opened = match &mut place {
            Some(place) => Ok(&*place),
            none => Place::open(path, Access::Write).map(|opened| &*none.insert(opened)),
        };
        let reply = match opened.and_then(|place| Ok((place, place.is_at_its_path()?))) {
            Ok((place, true)) => request.carry_out(place).map_err(|error| describe(&error)),
            Ok((_, false)) => Err(REPLACED.to_owned()),
            Err(error) => Err(describe(&error)),
        };
        // The next helper opens what is there then.
        let is_replaced = reply.as_ref().is_err_and(|error| error == REPLACED);
        if send(&mut output, &reply).is_err() || is_replaced {
            return Ok(());
        }
    }
}

/// The error of a place that is no longer at its path.
const REPLACED: &str = "another file is there now";

fn describe(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::InvalidInput => "its file system has no direct I/O".to_owned(),
        io::ErrorKind::UnexpectedEof => "it is too short: write it with `sluice pool create`".to_owned(),
        io::ErrorKind::NotFound => "it does not exist: write it with `sluice pool create`".to_owned(),
        io::ErrorKind::Unsupported => "it is neither a file nor a block device".to_owned(),
        io::ErrorKind::ResourceBusy => "another process of this host writes the blocks of this number".to_owned(),
        _ => error.to_string(),
    }
}

/// What the thread of replies tells.
pub(super) enum News {
    Reply(Reply),
    /// The helper has ended.
    Gone,
}

/// Starts a helper process. Returns the socket by which it gets requests and sends replies.
pub(crate) fn spawn(path: &Path) -> io::Result<(UnixStream, Child)> {
    let (socket, own) = UnixStream::pair()?;
    let own = OwnedFd::from(own);
    // This program, also after an upgrade has replaced its file.
    let mut command = Command::new("/proc/self/exe");
    command.arg0(PROGRAM).arg(COMMAND).arg(path).stdin(own.try_clone()?).stdout(own).stderr(Stdio::null());
    Ok((socket, command.spawn()?))
}

/// A running helper.
pub(super) struct Helper {
    input: UnixStream,
}

impl Helper {
    /// Starts a helper whose replies go to `news`.
    pub(super) fn start(path: &Path, name: &str, news: impl Fn(News) -> bool + Send + 'static) -> io::Result<Helper> {
        let (socket, child) = match launcher::ask_for(Question::Meet(path.to_owned())) {
            Some(started) => {
                let socket = started.and_then(|socket| socket.ok_or_else(|| "it has no socket".to_owned()));
                (UnixStream::from(socket.map_err(io::Error::other)?), None)
            }
            None => spawn(path).map(|(socket, child)| (socket, Some(child)))?,
        };
        let output = socket.try_clone()?;
        thread::Builder::new().name(format!("meet-{name}")).spawn(move || follow(output, child, &news))?;
        Ok(Helper { input: socket })
    }

    /// Sends a request. One is outstanding at a time, so that it fits into the pipe.
    pub(super) fn ask(&mut self, request: &Request) -> io::Result<()> {
        self.input.write_all(&request.encode())
    }
}

/// Reads the first block in a process of its own: a thread of the daemon that hangs there would keep a killed daemon.
///
/// # Errors
/// The reason in words; without a reply within `timeout` that too.
pub(crate) fn read_header(path: &Path, timeout: Duration) -> Result<Vec<u8>, String> {
    let (sender, receiver) = channel();
    let started = Helper::start(path, "look", move |news| sender.send(news).is_ok());
    let mut helper = started.map_err(|error| format!("its helper cannot be started: {error}"))?;
    helper.ask(&Request::Read { first: 0, count: 1 }).map_err(|error| error.to_string())?;
    match receiver.recv_timeout(timeout) {
        Ok(News::Reply(reply)) => reply,
        Ok(News::Gone) | Err(RecvTimeoutError::Disconnected) => Err("its helper has ended".to_owned()),
        Err(RecvTimeoutError::Timeout) => Err(format!("no response for {} s", timeout.as_secs())),
    }
}

fn follow(mut output: UnixStream, child: Option<Child>, news: &dyn Fn(News) -> bool) {
    while let Ok(reply) = receive(&mut output) {
        if !news(News::Reply(reply)) {
            break;
        }
    }
    news(News::Gone);
    // It may hang with the storage for as long as that does not respond.
    let _ = child.map(|mut child| child.wait());
}

/// Ends the helper when dropped, once its last request has returned: its input ends.
impl Drop for Helper {
    fn drop(&mut self) {
        let _ = self.input.shutdown(Shutdown::Write);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_read_as_it_was_sent() {
        let bytes = vec![7; 2 * SIZE];
        for request in
            [Request::Read { first: 0, count: 65 }, Request::Write { first: 3, bytes }, Request::Lock { block: 1 }]
        {
            assert_eq!(Request::decode(&mut request.encode().as_slice()).unwrap(), request);
        }
        let reply: Reply = Err("gone".to_owned());
        let mut sent = Vec::new();
        send(&mut sent, &reply).unwrap();
        assert_eq!(receive(&mut sent.as_slice()).unwrap(), reply);
    }
}
