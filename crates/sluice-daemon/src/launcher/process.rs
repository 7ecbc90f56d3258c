//! The launcher's own side.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use sluice_io::source::{Seen, look_for_holder};
use sluice_io::{jail, socket_file, users};

use super::{Answer, Order, Permit, Question, receive, send};
use crate::events::deliver;
use crate::pool::helper;

/// Maximum number of questions at the same time. What a question waits for may hang.
const QUESTIONS_MAX: usize = 64;
/// Interval between two looks whether the last alerts are sent.
const LOOK: Duration = Duration::from_millis(20);

/// Answers questions until the daemon ends, and ends when what it has started has ended or was ended.
///
/// # Errors
/// Standard input is not the daemon's socket.
pub fn run() -> io::Result<()> {
    let _ = rustix::thread::set_name(c"sluice-launcher");
    let socket = Arc::new(rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?);
    rustix::thread::set_no_new_privs(true)?;
    // The kernel may have no filters; the daemon says so.
    let _ = jail::seal_helper();
    let mut permits = BTreeSet::new();
    while let Ok((Order::Permit(permit), _)) = receive::<Order>(socket.as_fd()) {
        permits.insert(permit);
    }
    let (alerts, questions) = (Arc::new(AtomicUsize::new(0)), Arc::new(()));
    while let Ok((order, _)) = receive::<Order>(socket.as_fd()) {
        // Permits are too late.
        let Order::Ask(number, question) = order else { continue };
        if !is_permitted(&permits, &question) {
            answer(&socket, number, Answer::Done(Err(NOT_NAMED.to_owned())), None);
            continue;
        }
        if Arc::strong_count(&questions) > QUESTIONS_MAX {
            answer(&socket, number, Answer::Done(Err("too many others run".to_owned())), None);
            continue;
        }
        let (socket, alerts, running) = (Arc::clone(&socket), Arc::clone(&alerts), Arc::clone(&questions));
        let work = move || {
            let _running = running;
            carry_out(question, &alerts, |reply, passed| answer(&socket, number, reply, passed));
        };
        // The daemon learns it from the missing answer.
        let _ = thread::Builder::new().name("question".to_owned()).spawn(work);
    }
    let until = Instant::now() + 2 * deliver::TIMEOUT;
    while alerts.load(Ordering::Acquire) > 0 && Instant::now() < until {
        thread::sleep(LOOK);
    }
    Ok(())
}

const NOT_NAMED: &str = "the host file did not name it when the daemon started: restart the daemon";

fn is_permitted(permits: &BTreeSet<Permit>, question: &Question) -> bool {
    match question {
        Question::User(_) | Question::Group(_) | Question::NameOf(_) | Question::Holder(..) => true,
        Question::Listens(path) => path.parent().is_some_and(|folder| is_below(permits, folder)),
        Question::Program(program, _) => permits.contains(&Permit::Program(program.clone())),
        Question::Webhook(url, _) => permits.contains(&Permit::Webhook(url.clone())),
        Question::Meet(place) => permits.contains(&Permit::Place(place.clone())),
    }
}

fn is_below(permits: &BTreeSet<Permit>, folder: &Path) -> bool {
    permits.iter().any(|permit| matches!(permit, Permit::Sockets(root) if folder.starts_with(root)))
}

fn answer(socket: &OwnedFd, number: u64, answer: Answer, passed: Option<OwnedFd>) {
    // A daemon that has ended needs none.
    let _ = send(socket.as_fd(), &(number, answer), passed.as_ref().map(AsFd::as_fd));
}

fn carry_out(question: Question, alerts: &AtomicUsize, reply: impl FnOnce(Answer, Option<OwnedFd>)) {
    let alert = |deliver: &dyn Fn() -> Result<(), String>| {
        alerts.fetch_add(1, Ordering::AcqRel);
        let sent = deliver();
        alerts.fetch_sub(1, Ordering::AcqRel);
        Answer::Done(sent)
    };
    let answer = match question {
        Question::User(name) => Answer::Number(users::user(&name)),
        Question::Group(name) => Answer::Number(users::group(&name)),
        Question::NameOf(uid) => Answer::Name(users::name_of(uid)),
        Question::Holder(file, start) => {
            let Seen { pid, is_all } = look_for_holder(&file, start);
            Answer::Holder(pid, is_all)
        }
        Question::Listens(path) => Answer::Listens(socket_file::listens(&path)),
        Question::Program(program, body) => alert(&|| deliver::run(&program, &body, deliver::TIMEOUT)),
        Question::Webhook(url, body) => alert(&|| deliver::post(&url, &body)),
        Question::Meet(place) => match helper::spawn(&place) {
            Ok((socket, mut child)) => {
                reply(Answer::Done(Ok(())), Some(socket.into()));
                let _ = child.wait();
                return;
            }
            Err(error) => Answer::Done(Err(error.to_string())),
        },
    };
    reply(answer, None);
}
