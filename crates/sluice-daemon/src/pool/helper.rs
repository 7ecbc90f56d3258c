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
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use sluice_config::Meeting;
use sluice_pool::block::{BLOCKS, SIZE};

use super::place::{self, Access, Place};
use crate::launcher::{self, PROGRAM, Question};

/// Name of the command of the daemon's program.
pub const COMMAND: &str = "meeting";

/// A request to the helper.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Request {
    /// Reads the first `count` blocks.
    Read { count: u32 },
    /// Writes blocks.
    Write { first: u32, bytes: Vec<u8> },
    /// Writes blocks of claims if the claims are still as this helper has last read all blocks.
    Swap { first: u32, bytes: Vec<u8> },
    /// Locks a block until the helper ends.
    Lock { block: u32 },
}

/// What a request has done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Done {
    Read(Vec<u8>),
    /// It has written or locked.
    Changed,
    /// Nothing was written, because the claims were no longer the same.
    Others,
}

/// A reply: what was done, or the error.
pub(super) type Reply = Result<Done, String>;

impl Done {
    /// The blocks that were read.
    pub(super) fn blocks(self) -> Vec<u8> {
        match self {
            Done::Read(blocks) => blocks,
            Done::Changed | Done::Others => Vec::new(),
        }
    }
}

impl Request {
    fn encode(&self) -> Vec<u8> {
        let (kind, first, count, bytes): (u8, u32, u32, &[u8]) = match self {
            Request::Read { count } => (b'r', 0, *count, &[]),
            Request::Write { first, bytes } => (b'w', *first, (bytes.len() / SIZE) as u32, bytes),
            Request::Swap { first, bytes } => (b's', *first, (bytes.len() / SIZE) as u32, bytes),
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
            b'r' => Ok(Request::Read { count }),
            b'l' => Ok(Request::Lock { block: first }),
            kind @ (b'w' | b's') => {
                let mut bytes = vec![0; count as usize * SIZE];
                input.read_exact(&mut bytes)?;
                Ok(if kind == b'w' { Request::Write { first, bytes } } else { Request::Swap { first, bytes } })
            }
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// `whole`: all blocks as they were last read.
    fn carry_out(&self, place: &dyn Place, whole: &mut Vec<u8>) -> io::Result<Done> {
        match self {
            Request::Read { count } => {
                let blocks = place.read(*count as usize)?;
                if *count as usize == BLOCKS {
                    whole.clone_from(&blocks);
                }
                Ok(Done::Read(blocks))
            }
            Request::Write { first, bytes } => place.write(*first as usize, bytes).map(|()| Done::Changed),
            Request::Swap { .. } if whole.is_empty() => Ok(Done::Others),
            Request::Swap { first, bytes } => {
                if !place.write_if(whole, *first as usize, bytes)? {
                    return Ok(Done::Others);
                }
                let at = *first as usize * SIZE;
                whole[at..at + bytes.len()].copy_from_slice(bytes);
                Ok(Done::Changed)
            }
            Request::Lock { block } => place.lock(*block as usize).map(|()| Done::Changed),
        }
    }
}

fn number(input: &mut impl Read) -> io::Result<u32> {
    let mut bytes = [0; 4];
    input.read_exact(&mut bytes)?;
    Ok(u32::from_le_bytes(bytes))
}

fn send(output: &mut impl Write, reply: &Reply) -> io::Result<()> {
    let (kind, bytes): (u8, &[u8]) = match reply {
        Ok(Done::Read(bytes)) => (b'r', bytes),
        Ok(Done::Changed) => (b'c', &[]),
        Ok(Done::Others) => (b'o', &[]),
        Err(error) => (b'e', error.as_bytes()),
    };
    output.write_all(&[kind])?;
    output.write_all(&(bytes.len() as u32).to_le_bytes())?;
    output.write_all(bytes)?;
    output.flush()
}

fn receive(input: &mut impl Read) -> io::Result<Reply> {
    let mut kind = [0];
    input.read_exact(&mut kind)?;
    let mut bytes = vec![0; number(input)? as usize];
    input.read_exact(&mut bytes)?;
    Ok(match kind[0] {
        b'r' => Ok(Done::Read(bytes)),
        b'c' => Ok(Done::Changed),
        b'o' => Ok(Done::Others),
        _ => Err(String::from_utf8_lossy(&bytes).into_owned()),
    })
}

/// Serves requests from standard input until the daemon has gone. The place is opened with the first request, so that an error reaches the
/// daemon.
///
/// # Errors
/// A request that cannot be read.
pub fn serve(meeting: &Meeting) -> io::Result<()> {
    let _ = rustix::thread::set_name(c"sluice-meeting");
    let (mut input, mut output) = (io::stdin().lock(), io::stdout().lock());
    let mut place: Option<Box<dyn Place>> = None;
    let mut whole = Vec::new();
    loop {
        let request = match Request::decode(&mut input) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            request => request?,
        };
        let opened = match &mut place {
            Some(place) => Ok(&*place),
            none => place::open(meeting, Access::Write).map(|opened| &*none.insert(opened)),
        };
        let done = opened.and_then(|place| match place.is_at_its_name()? {
            true => request.carry_out(&**place, &mut whole),
            false => Err(io::ErrorKind::StaleNetworkFileHandle.into()),
        });
        // The next helper opens what is there then.
        let is_over = done.as_ref().is_err_and(|error| {
            matches!(error.kind(), io::ErrorKind::StaleNetworkFileHandle | io::ErrorKind::NotConnected)
        });
        if send(&mut output, &done.map_err(|error| describe(&error))).is_err() || is_over {
            return Ok(());
        }
    }
}

fn describe(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::StaleNetworkFileHandle => "another file is there now".to_owned(),
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
pub(crate) fn spawn(meeting: &Meeting) -> io::Result<(UnixStream, Child)> {
    let (socket, own) = UnixStream::pair()?;
    let own = OwnedFd::from(own);
    // This program, also after an upgrade has replaced its file.
    let mut command = Command::new("/proc/self/exe");
    command
        .arg0(PROGRAM)
        .arg(COMMAND)
        .arg(serde_json::to_string(meeting)?)
        .stdin(own.try_clone()?)
        .stdout(own)
        .stderr(Stdio::null());
    Ok((socket, command.spawn()?))
}

/// A running helper.
pub(super) struct Helper {
    input: UnixStream,
}

impl Helper {
    /// Starts a helper whose replies go to `news`.
    pub(super) fn start(
        meeting: &Meeting,
        name: &str,
        news: impl Fn(News) -> bool + Send + 'static,
    ) -> io::Result<Helper> {
        let (socket, child) = match launcher::ask_for(Question::Meet(meeting.clone())) {
            Some(started) => {
                let socket = started.and_then(|socket| socket.ok_or_else(|| "it has no socket".to_owned()));
                (UnixStream::from(socket.map_err(io::Error::other)?), None)
            }
            None => spawn(meeting).map(|(socket, child)| (socket, Some(child)))?,
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
pub(crate) fn read_header(meeting: &Meeting, timeout: Duration) -> Result<Vec<u8>, String> {
    let (sender, receiver) = channel();
    let started = Helper::start(meeting, "look", move |news| sender.send(news).is_ok());
    let mut helper = started.map_err(|error| format!("its helper cannot be started: {error}"))?;
    helper.ask(&Request::Read { count: 1 }).map_err(|error| error.to_string())?;
    match receiver.recv_timeout(timeout) {
        Ok(News::Reply(reply)) => reply.map(Done::blocks),
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
        for request in [
            Request::Read { count: 65 },
            Request::Write { first: 3, bytes: bytes.clone() },
            Request::Swap { first: 65, bytes: bytes.clone() },
            Request::Lock { block: 1 },
        ] {
            assert_eq!(Request::decode(&mut request.encode().as_slice()).unwrap(), request);
        }
        for reply in [Err("gone".to_owned()), Ok(Done::Read(bytes)), Ok(Done::Changed), Ok(Done::Others)] {
            let mut sent = Vec::new();
            send(&mut sent, &reply).unwrap();
            assert_eq!(receive(&mut sent.as_slice()).unwrap(), reply);
        }
    }
}
