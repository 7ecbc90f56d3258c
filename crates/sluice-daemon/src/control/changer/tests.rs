//! Tests of the thread that makes changes, with a device that is down.

use rustix::fs::{CWD, FileType, Mode, mknodat};
use sluice_api::request::{How, Term};
use tempfile::TempDir;

use super::super::socket::{Manner, Peer};
use super::*;
use crate::events::Events;
use crate::server::Force;

/// What a thread shares that serves a host file whose device `a` is down, and the folder of the file.
async fn with_a_dead_device(text: &str) -> (Shared, mpsc::UnboundedReceiver<ServerEvent>, TempDir) {
    let server = Server::with_a_dead_device(text, "a");
    server.down().notified().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("host.toml");
    std::fs::write(&file, text).unwrap();
    let (files, host) = sluice_config::load_files(&file).unwrap();
    let (news, heard) = mpsc::unbounded_channel();
    let roles = Roles::of(&host.daemon.access, None);
    let (on_disk, saved) = (Saved::default(), Saved::default());
    let (host, gone, force) = (host.into(), Vec::new(), Force::default());
    let start = Start { host, saved, is_damaged: false, gone, force, strict: true };
    let begin = Begin { file, files, folder: None, on_disk, roles, start };
    let reporter = Events::start(None).unwrap().reporter();
    let (shared, _) = shared((server, Board::default(), reporter), begin, Handle::current(), news).unwrap();
    (shared, heard, folder)
}

/// Runs a thread that has begun no change yet.
fn running(shared: Shared) -> (mpsc::UnboundedSender<Event>, thread::JoinHandle<()>) {
    let (events, inbox) = mpsc::unbounded_channel();
    let runtime = Builder::new_current_thread().enable_time().build().unwrap();
    (events, thread::spawn(move || run(&runtime, shared, None, inbox, Format::Json)))
}

#[tokio::test]
async fn a_daemon_kept_running_after_its_last_device_went_down() {
    let (shared, mut heard, _folder) = with_a_dead_device("[device.a]\nbackend = \"null\"\n").await;
    let down = shared.in_force.borrow().server.down();
    let (events, running) = running(shared);
    down.notify_one();
    assert!(matches!(heard.recv().await, Some(ServerEvent::Dead)));
    let (reply, server) = oneshot::channel();
    events.send(Event::End(true, reply)).ok().unwrap();
    // The deadline matters only if the test fails.
    let deadline = Instant::now() + Duration::from_secs(60);
    let draining = server.await.unwrap().drain(deadline);
    draining.until(deadline).await;
    assert!(draining.has_ended(), "there is nothing to drain");
    running.join().unwrap();
}

#[tokio::test]
async fn a_panic_of_the_thread_that_makes_changes_was_not_reported() {
    let (shared, mut heard, _folder) = with_a_dead_device("[device.a]\nbackend = \"null\"\n").await;
    let (events, running) = running(shared);
    events.send(Event::Panic).ok().unwrap();
    assert!(matches!(heard.recv().await, Some(ServerEvent::Panicked)));
    assert!(running.join().is_err());
}

#[tokio::test]
async fn a_panic_of_a_change_ends_the_thread() {
    let (shared, mut heard, _folder) = with_a_dead_device("[device.a]\nbackend = \"null\"\n").await;
    // A kind of request that the monitor answers is no change.
    let (reply, answer) = oneshot::channel();
    let peer = Peer { uid: 0, gid: 0, groups: [].into(), pid: None, login: None };
    let (events, running) = running(shared);
    events
        .send(Event::Change(Box::new(Asked { request: Request::Status, peer, manner: Manner::default(), reply })))
        .ok()
        .unwrap();
    assert!(matches!(heard.recv().await, Some(ServerEvent::Panicked)));
    assert!(running.join().is_err() && answer.await.is_err());
}

#[tokio::test]
async fn a_daemon_kept_running_when_a_reload_removed_its_last_serving_device() {
    let text = "[device.a]\nbackend = \"null\"\n";
    let both = format!("{text}[device.b]\nbackend = \"null\"\n");
    let (shared, mut heard, _folder) = with_a_dead_device(&both).await;
    std::fs::write(&shared.file, text).unwrap();
    let (events, _) = running(shared);
    events.send(Event::Reload).ok().unwrap();
    assert!(matches!(heard.recv().await, Some(ServerEvent::Dead)), "every device that is left is down");
}

#[tokio::test]
async fn a_later_reload_replaces_one_that_waits_for_its_file() {
    let (shared, mut heard, _folder) = with_a_dead_device("[device.a]\nbackend = \"null\"\n").await;
    let file = shared.file.clone();
    std::fs::remove_file(&file).unwrap();
    // A read of a pipe waits for a writer.
    mknodat(CWD, &file, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let (events, _) = running(shared);
    let (reply, answer) = oneshot::channel();
    let request = Request::Apply { file: Some(file.clone()), dry_run: false, force: Vec::new(), reason: None };
    let peer = Peer { uid: 0, gid: 0, groups: [].into(), pid: None, login: None };
    events.send(Event::Change(Box::new(Asked { request, peer, manner: Manner::default(), reply }))).ok().unwrap();
    events.send(Event::Reload).ok().unwrap();
    assert!(answer.await.unwrap().error.unwrap().contains("A later reload has replaced this one"));
    // Neither of them keeps the thread from its end.
    let (reply, server) = oneshot::channel();
    events.send(Event::End(false, reply)).ok().unwrap();
    drop(server.await.unwrap());
    assert!(heard.recv().await.is_none(), "nothing has changed");
}

/// A request to set the weight of VM v in a drop-in.
fn persisted(target: &str) -> (Asked, oneshot::Receiver<Reply>) {
    let (reply, answer) = oneshot::channel();
    let request = Request::Set {
        target: target.to_owned(),
        keys: "weight = 3".parse().unwrap(),
        reset: Vec::new(),
        how: How { term: Term::Persist, ..How::default() },
    };
    let peer = Peer { uid: 0, gid: 0, groups: [].into(), pid: None, login: None };
    (Asked { request, peer, manner: Manner::default(), reply }, answer)
}

const VM_ON_A_DEAD_DEVICE: &str = "[device.a]\nbackend = \"null\"\n[device.b]\nbackend = \"null\"\n[vm.v]\n[vm.v.volume.root]\n\
                                   device = \"a\"\nsize = \"1MiB\"\nexport.socket = \"SOCKET\"\n";

/// Begins a change of VM v in a drop-in, until it waits for the write.
async fn saving(shared: Shared, tasks: &LocalSet) -> (Rc<Shared>, oneshot::Receiver<Reply>) {
    let (asked, answer) = persisted("v");
    let shared = Rc::new(shared);
    super::request(&shared, asked);
    while shared.keeper.try_lock().is_ok() {
        tasks.run_until(tokio::task::yield_now()).await;
    }
    (shared, answer)
}

#[tokio::test]
async fn a_change_that_a_device_refused_stayed_in_its_drop_in() {
    let sockets = tempfile::tempdir().unwrap();
    let text = VM_ON_A_DEAD_DEVICE.replace("SOCKET", sockets.path().join("v.sock").to_str().unwrap());
    let (shared, _heard, folder) = with_a_dead_device(&text).await;
    let tasks = LocalSet::new();
    let _entered = tasks.enter();
    let (_shared, answer) = saving(shared, &tasks).await;
    // Its task does not run meanwhile.
    while !folder.path().join("host.d/zz-sluice.toml").exists() {
        thread::yield_now();
    }
    let reply = tasks.run_until(answer).await.unwrap();
    assert!(!reply.ok && reply.error.as_ref().unwrap().contains("down"), "{reply:?}");
    assert!(!folder.path().join("host.d").exists());
}

#[tokio::test]
async fn a_change_that_was_being_saved_at_the_exit_stayed_in_its_drop_in() {
    let sockets = tempfile::tempdir().unwrap();
    let text = VM_ON_A_DEAD_DEVICE.replace("SOCKET", sockets.path().join("v.sock").to_str().unwrap());
    let (shared, _heard, folder) = with_a_dead_device(&text).await;
    let tasks = LocalSet::new();
    let _entered = tasks.enter();
    let (shared, answer) = saving(shared, &tasks).await;
    tasks.run_until(super::saving::exit(&shared, true)).await;
    assert!(answer.await.unwrap().error.unwrap().contains("exiting"));
    assert!(!folder.path().join("host.d").exists());
}
