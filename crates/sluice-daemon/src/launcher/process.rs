//! The launcher's own side.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::DumpableBehavior;
use sluice_io::source::{Seen, look_for_holder};
use sluice_io::{jail, signals, socket_file, users};

use super::{Answer, Order, Permit, Question, receive, send};
use crate::events::deliver;
use crate::node;
use crate::pool::helper;
use crate::state::dropin::{self, Write};

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
    signals::ignore();
    let socket = Arc::new(rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?);
    rustix::thread::set_no_new_privs(true)?;
    // Others of its user, of whom one is the daemon, do not look into it.
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    // The kernel may have no filters; the daemon says so.
    let _ = jail::seal_helper();
    let mut permits = BTreeSet::new();
    while let Ok((Order::Permit(permit), _)) = receive::<Order>(socket.as_fd()) {
        permits.insert(permit);
    }
    let (permits, alerts, questions) = (Arc::new(permits), Arc::new(()), Arc::new(()));
    while let Ok((order, _)) = receive::<Order>(socket.as_fd()) {
        // Permits are too late.
        let Order::Ask(number, question) = order else { continue };
        if !is_permitted(&permits, &question) {
            let why = if matches!(question, Question::DropIn(_)) { NOT_OURS } else { NOT_NAMED };
            answer(&socket, number, Answer::Done(Err(why.to_owned())), None);
            continue;
        }
        if Arc::strong_count(&questions) > QUESTIONS_MAX {
            answer(&socket, number, Answer::Done(Err("too many others run".to_owned())), None);
            continue;
        }
        let is_alert = matches!(question, Question::Program(..) | Question::Webhook(..));
        let (own, running) = (Arc::clone(&socket), Arc::clone(if is_alert { &alerts } else { &questions }));
        let permits = Arc::clone(&permits);
        let work = move || {
            carry_out(&permits, question, |reply, passed| answer(&own, number, reply, passed));
            drop(running);
        };
        if let Err(error) = thread::Builder::new().name("question".to_owned()).spawn(work) {
            answer(&socket, number, Answer::Done(Err(error.to_string())), None);
        }
    }
    let until = Instant::now() + 2 * deliver::TIMEOUT;
    while Arc::strong_count(&alerts) > 1 && Instant::now() < until {
        thread::sleep(LOOK);
    }
    Ok(())
}

const NOT_NAMED: &str = "the host file did not name it when the daemon started: restart the daemon";

const NOT_OURS: &str = "it would have tables other than [vm] and [policy], or paths outside the folders that the host file named when the \
                        daemon started: move such tables to another drop-in, or restart the daemon";

fn is_permitted(permits: &BTreeSet<Permit>, question: &Question) -> bool {
    match question {
        Question::User(_) | Question::Group(_) | Question::NameOf(_) | Question::Holder(..) => true,
        Question::Listens(path) => is_in(permits, path, Permit::Sockets),
        Question::DropIn(Write::Text(text)) => is_harmless(permits, text),
        Question::DropIn(Write::Nothing { .. }) => true,
        Question::Program(program, _) => permits.contains(&Permit::Program(program.clone())),
        Question::Webhook(url, _) => permits.contains(&Permit::Webhook(url.clone())),
        Question::Meet(place) => permits.contains(&Permit::Place(place.clone())),
        Question::Connect(node) => permits.contains(&Permit::Node(node.clone())),
    }
}

/// Whether a path is in a folder with such a permit.
fn is_in(permits: &BTreeSet<Permit>, path: &Path, permit: fn(PathBuf) -> Permit) -> bool {
    let is_plain = path.components().all(|part| part != Component::ParentDir);
    is_plain && path.ancestors().skip(1).any(|folder| permits.contains(&permit(folder.to_owned())))
}

/// Whether a drop-in says of VMs and policies alone, and every path in it is in a folder of images or sockets.
fn is_harmless(permits: &BTreeSet<Permit>, text: &str) -> bool {
    fn paths(value: &toml::Value) -> Vec<&Path> {
        match value {
            toml::Value::String(text) if text.starts_with('/') => vec![Path::new(text)],
            toml::Value::Array(values) => values.iter().flat_map(paths).collect(),
            toml::Value::Table(table) => table.values().flat_map(paths).collect(),
            _ => Vec::new(),
        }
    }
    let Ok(table) = text.parse::<toml::Table>() else { return false };
    let is_named = |path: &&Path| is_in(permits, path, Permit::Images) || is_in(permits, path, Permit::Sockets);
    table.keys().all(|key| key == "vm" || key == "policy") && table.values().flat_map(paths).all(|path| is_named(&path))
}

/// Writes or removes the drop-in.
fn write(permits: &BTreeSet<Permit>, change: &Write) -> Result<(), String> {
    let file = permits.iter().find_map(|permit| if let Permit::DropIn(file) = permit { Some(file) } else { None });
    dropin::put_here(file.ok_or(NOT_NAMED)?, change).map_err(|error| error.to_string())
}

fn answer(socket: &OwnedFd, number: u64, answer: Answer, passed: Option<OwnedFd>) {
    // A daemon that has ended needs none.
    let _ = send(socket.as_fd(), &(number, answer), passed.as_ref().map(AsFd::as_fd));
}

fn carry_out(permits: &BTreeSet<Permit>, question: Question, reply: impl FnOnce(Answer, Option<OwnedFd>)) {
    let answer = match question {
        Question::User(name) => Answer::Number(users::user(&name)),
        Question::Group(name) => Answer::Number(users::group(&name)),
        Question::NameOf(uid) => Answer::Name(users::name_of(uid)),
        Question::Holder(file, start) => {
            let Seen { pid, is_all } = look_for_holder(&file, start);
            Answer::Holder(pid, is_all)
        }
        Question::Listens(path) => Answer::Listens(socket_file::listens(&path)),
        Question::Program(program, body) => Answer::Done(deliver::run(&program, &body, deliver::TIMEOUT)),
        Question::Webhook(url, body) => Answer::Done(deliver::post(&url, &body)),
        Question::DropIn(change) => Answer::Done(write(permits, &change)),
        Question::Connect(node) => match node::connect_here(&node) {
            Ok(socket) => return reply(Answer::Done(Ok(())), Some(socket)),
            Err(why) => Answer::Done(Err(why)),
        },
        Question::Meet(place) => match helper::spawn(&place) {
            Ok((socket, mut child)) => {
                reply(Answer::Done(Ok(())), Some(socket.into()));
                // It may hang with its storage, and takes none of the places for questions.
                let _ = thread::Builder::new().name("helper".to_owned()).spawn(move || child.wait());
                return;
            }
            Err(error) => Answer::Done(Err(error.to_string())),
        },
    };
    reply(answer, None);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_next_start_reads_names_nothing_new() {
        let permits = BTreeSet::from([Permit::Images("/srv/vm".into()), Permit::Sockets("/run/vm".into())]);
        let is_harmless = |text: &str| is_harmless(&permits, text);
        assert!(is_harmless("[policy.gold]\nlimit = \"9 iops\"\n[vm.a.volume.v]\nsource = \"/srv/vm/new/a\"\n"));
        assert!(is_harmless("[vm.a.volume.v]\nexport = { socket = \"/run/vm/a\" }\n"));
        for text in [
            "[daemon]\njail = { without = [\"seccomp\"] }\n",
            "[alert.all]\ncommand = \"/srv/vm/x\"\n",
            "[vm.a.volume.v]\nsource = \"/etc/shadow\"\n",
            "[vm.a.volume.v]\nsource = \"/srv/vm/../../etc/shadow\"\n",
            "vm = { a = { nic = { n = { socket = \"/etc/x\" } } } }\n",
            "vm",
        ] {
            assert!(!is_harmless(text), "{text}");
        }
        let listens = |path: &str| is_permitted(&permits, &Question::Listens(path.into()));
        assert!(listens("/run/vm/sub/a") && !listens("/run/vm/../docker.sock") && !listens("/run/other"));
    }
}
