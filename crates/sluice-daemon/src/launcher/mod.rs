//! The process that starts programs and connects for a sealed daemon.
//!
//! ```text
//!  daemon, sealed --question--> launcher --+--> the program of an alert, a webhook
//!                 <--answer----            +--> the helper of a meeting place, whose socket it passes back
//!                                          +--> another NBD server, to which it passes a connection back
//!                                          '--> names of users, whether something listens at a socket
//! ```
//!
//! It is started before the seal, and told what the host file names: the programs, addresses, places and folders of sockets. Later it checks
//! each question against that. It gets no descriptor of the daemon, and ends with it.

use std::collections::BTreeMap;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sluice_config::Meeting;
use sluice_io::outside::{self, Outside};
use sluice_io::source::Seen;

mod process;

pub use process::run;

use crate::reach::Reach;
use crate::state::dropin;

/// Name by which lists of processes show what the daemon starts of its own program.
pub(crate) const PROGRAM: &str = "sluiced";
/// Name of the command of the daemon's program.
pub const COMMAND: &str = "launcher";

/// Maximum time for an answer: an alert takes 10 s at most.
const ANSWER_MAX: Duration = Duration::from_secs(15);
/// Maximum length of a message.
const MESSAGE_MAX: usize = 160 << 10;

/// What the launcher may do.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
enum Permit {
    Program(PathBuf),
    Webhook(String),
    Place(Meeting),
    /// Another NBD server.
    Node(String),
    /// Sockets in this folder.
    Sockets(PathBuf),
    /// Images in this folder.
    Images(PathBuf),
    /// This drop-in is written.
    DropIn(PathBuf),
}

#[derive(Debug, Serialize, Deserialize)]
enum Order {
    /// One more permit, before [`Order::Begin`].
    Permit(Permit),
    /// Questions follow, and no more permits.
    Begin,
    Ask(u64, Question),
}

/// What a sealed daemon cannot do itself.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Question {
    User(String),
    Group(String),
    NameOf(u32),
    /// Whether a process listens at this socket.
    Listens(PathBuf),
    /// Which process locks a file from a byte on.
    Holder(String, u64),
    /// Starts a program with this text on its standard input.
    Program(PathBuf, String),
    /// Posts this text to a URL.
    Webhook(String, String),
    /// Writes the drop-in of `--persist`, or removes it.
    DropIn(dropin::Write),
    /// Starts the helper of a meeting place. The answer brings its socket.
    Meet(Meeting),
    /// Connects to another NBD server. The answer brings the socket.
    Connect(String),
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Answer {
    Number(Option<u32>),
    Name(Option<String>),
    Listens(bool),
    /// A process, and whether all were examined.
    Holder(Option<u32>, bool),
    Done(Result<(), String>),
}

type Reply = (Answer, Option<OwnedFd>);

/// The daemon's end.
pub struct Launcher {
    socket: OwnedFd,
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    last: u64,
    by_number: BTreeMap<u64, Sender<Reply>>,
    has_ended: bool,
}

/// The launcher of this process, if it is a daemon.
static LAUNCHER: OnceLock<Arc<Launcher>> = OnceLock::new();

/// Why the launcher does not answer.
const ENDED: &str = "the daemon's process for programs and connections has ended: restart the daemon";

/// Starts the launcher, with what a host file names. Only a process with one thread may do that, because it is not sealed yet.
///
/// # Errors
/// The process cannot be started.
pub fn start(reach: &Reach, host: &Path) -> io::Result<Arc<Launcher>> {
    let (socket, own) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    // This program, also after an upgrade has replaced its file.
    let mut command = Command::new("/proc/self/exe");
    command.arg0(PROGRAM).arg(COMMAND).stdin(Stdio::from(own)).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    let programs = reach.programs.iter().cloned().map(Permit::Program);
    let webhooks = reach.webhooks.iter().cloned().map(Permit::Webhook);
    let places = reach.places.iter().cloned().map(Permit::Place);
    let nodes = reach.nodes.iter().cloned().map(Permit::Node);
    let sockets = reach.source_folders().into_iter().chain(reach.sockets.iter().cloned()).map(Permit::Sockets);
    let images = reach.source_folders().into_iter().map(Permit::Images);
    let drop_in = std::path::absolute(host).map(|host| Permit::DropIn(dropin::path(&host)));
    for permit in programs.chain(webhooks).chain(places).chain(nodes).chain(sockets).chain(images).chain(drop_in) {
        send(socket.as_fd(), &Order::Permit(permit), None)?;
    }
    send(socket.as_fd(), &Order::Begin, None)?;
    Ok(Arc::new(Launcher { socket, waiting: Mutex::default() }))
}

/// Makes this the launcher of the process, and starts the thread that reads its answers.
///
/// # Errors
/// No thread can be started.
pub fn use_from_now(launcher: Arc<Launcher>) -> io::Result<()> {
    let reader = Arc::clone(&launcher);
    thread::Builder::new().name("launcher".to_owned()).spawn(move || reader.read())?;
    outside::set(Box::new(Names(Arc::clone(&launcher))));
    let _ = LAUNCHER.set(launcher);
    Ok(())
}

/// Whether the launcher of this process has ended; `None` in a process without one.
pub(crate) fn has_ended() -> Option<bool> {
    Some(LAUNCHER.get()?.waiting().has_ended)
}

/// Asks for something that is done or fails; `None` in a process without a launcher.
pub(crate) fn ask_for(question: Question) -> Option<Result<Option<OwnedFd>, String>> {
    Some(match LAUNCHER.get()?.ask(question) {
        Ok((Answer::Done(done), socket)) => done.map(|()| socket),
        Ok(_) => Err("it answered something else".to_owned()),
        Err(error) => Err(error),
    })
}

impl Launcher {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ask(&self, question: Question) -> Result<Reply, String> {
        let (sender, answer) = channel();
        let number = {
            let mut waiting = self.waiting();
            if waiting.has_ended {
                return Err(ENDED.to_owned());
            }
            waiting.last += 1;
            let number = waiting.last;
            waiting.by_number.insert(number, sender);
            number
        };
        if let Err(error) = send(self.socket.as_fd(), &Order::Ask(number, question), None) {
            self.waiting().by_number.remove(&number);
            return Err(error.to_string());
        }
        let answer = answer.recv_timeout(ANSWER_MAX);
        self.waiting().by_number.remove(&number);
        answer.map_err(|error| match error {
            RecvTimeoutError::Timeout => "the daemon's process for programs and connections does not answer".to_owned(),
            RecvTimeoutError::Disconnected => ENDED.to_owned(),
        })
    }

    /// Passes answers on, until the launcher ends.
    fn read(&self) {
        while let Ok(((number, answer), socket)) = receive::<(u64, Answer)>(self.socket.as_fd()) {
            if let Some(waiting) = self.waiting().by_number.remove(&number) {
                let _ = waiting.send((answer, socket));
            }
        }
        tracing::error!(
            fix = "restart the daemon",
            "The process for programs and connections has ended: no alert is sent"
        );
        let mut waiting = self.waiting();
        waiting.has_ended = true;
        waiting.by_number.clear();
    }
}

/// The launcher for the data plane.
struct Names(Arc<Launcher>);

impl Outside for Names {
    fn user(&self, name: &str) -> Option<u32> {
        self.number(Question::User(name.to_owned()))
    }

    fn group(&self, name: &str) -> Option<u32> {
        self.number(Question::Group(name.to_owned()))
    }

    fn name_of(&self, uid: u32) -> Option<String> {
        match self.0.ask(Question::NameOf(uid)).ok()?.0 {
            Answer::Name(name) => name,
            _ => None,
        }
    }

    fn listens(&self, path: &Path) -> bool {
        // A socket of which nothing is known is another process's.
        !matches!(self.0.ask(Question::Listens(path.to_owned())), Ok((Answer::Listens(false), _)))
    }

    fn holder(&self, file: &str, start: u64) -> Seen {
        match self.0.ask(Question::Holder(file.to_owned(), start)) {
            Ok((Answer::Holder(pid, is_all), _)) => Seen { pid, is_all },
            _ => Seen { pid: None, is_all: false },
        }
    }
}

impl Names {
    fn number(&self, question: Question) -> Option<u32> {
        match self.0.ask(question).ok()?.0 {
            Answer::Number(number) => number,
            _ => None,
        }
    }
}

/// Sends a message, with a socket if there is one.
fn send(to: BorrowedFd<'_>, message: &impl Serialize, socket: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let text = serde_json::to_vec(message)?;
    if text.len() > MESSAGE_MAX {
        return Err(io::Error::other("the message is too long"));
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let sockets = socket.into_iter().collect::<Vec<_>>();
    if !sockets.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(&sockets));
    }
    sendmsg(to, &[IoSlice::new(&text)], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives a message, with a socket if it brings one.
fn receive<T: DeserializeOwned>(from: BorrowedFd<'_>) -> io::Result<(T, Option<OwnedFd>)> {
    let mut text = vec![0; MESSAGE_MAX];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        match recvmsg(from, &mut [IoSliceMut::new(&mut text)], &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(rustix::io::Errno::INTR) => {}
            received => break received?,
        }
    };
    if received.bytes == 0 || received.flags.contains(ReturnFlags::TRUNC) {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let rights = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut sockets) => sockets.next(),
        _ => None,
    });
    Ok((serde_json::from_slice(&text[..received.bytes])?, rights))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_brings_a_socket() {
        let pair = || socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let ((here, there), (passed, other)) = (pair(), pair());
        send(here.as_fd(), &(7u64, Answer::Done(Ok(()))), Some(passed.as_fd())).unwrap();
        let ((number, answer), socket) = receive::<(u64, Answer)>(there.as_fd()).unwrap();
        assert!(number == 7 && matches!(answer, Answer::Done(Ok(()))));
        send(socket.unwrap().as_fd(), &"through", None).unwrap();
        assert_eq!(receive::<String>(other.as_fd()).unwrap().0, "through");
        drop(here);
        assert!(receive::<String>(there.as_fd()).is_err(), "its end");
    }
}
