//! Tests of the thread that makes changes, with a device that is down.

use sluice_api::request::{How, Term};
use tempfile::TempDir;

use super::super::socket::Peer;
use super::*;

/// Returns a thread for a server whose device `a` is down, and the folder of its file.
async fn with_a_dead_device(text: &str) -> (Thread, mpsc::UnboundedReceiver<ServerEvent>, Receiver<Event>, TempDir) {
    let server = Server::with_a_dead_device(text, "a");
    server.down().notified().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("host.toml");
    std::fs::write(&file, text).unwrap();
    let (files, host) = sluice_config::load_files(&file).unwrap();
    let (events, inbox) = channel();
    let (news, heard) = mpsc::unbounded_channel();
    let roles = Roles::of(&host.daemon.access, None);
    let (on_disk, saved) = (Saved::default(), Saved::default());
    let begin = Begin {
        file,
        files,
        host,
        folder: None,
        on_disk,
        saved,
        is_damaged: false,
        gone: Vec::new(),
        force: Force::default(),
        strict: true,
        roles,
    };
    let (thread, _) = Thread::new((server, Board::default()), begin, Format::Json, events, news).unwrap();
    (thread, heard, inbox, folder)
}

#[tokio::test]
async fn a_daemon_kept_running_after_its_last_device_went_down() {
    let (thread, mut heard, inbox, _folder) = with_a_dead_device("[device.a]\nbackend = \"null\"\n").await;
    let events = thread.events.clone();
    let running = thread::spawn(move || thread.run(&inbox));
    events.send(Event::LookAtDevices).unwrap();
    assert!(matches!(heard.recv().await, Some(ServerEvent::Dead)));
    let (reply, server) = oneshot::channel();
    events.send(Event::End(true, reply)).unwrap();
    // The deadline matters only if the test fails.
    let deadline = Instant::now() + Duration::from_secs(60);
    let draining = server.await.unwrap().drain(deadline);
    draining.until(deadline).await;
    assert!(draining.has_ended(), "there is nothing to drain");
    running.join().unwrap();
}

#[tokio::test]
async fn a_panic_of_the_thread_that_makes_changes_was_not_reported() {
    let (thread, mut heard, inbox, _folder) = with_a_dead_device("[device.a]\nbackend = \"null\"\n").await;
    let events = thread.events.clone();
    let running = thread::spawn(move || thread.run(&inbox));
    events.send(Event::Panic).unwrap();
    assert!(matches!(heard.recv().await, Some(ServerEvent::Panicked)));
    assert!(running.join().is_err());
}

#[tokio::test]
async fn a_daemon_kept_running_when_a_reload_removed_its_last_serving_device() {
    let text = "[device.a]\nbackend = \"null\"\n";
    let both = format!("{text}[device.b]\nbackend = \"null\"\n");
    let (mut thread, mut heard, inbox, _folder) = with_a_dead_device(&both).await;
    std::fs::write(&thread.file, text).unwrap();
    thread.begin(Kind::Reload(Reload::default()));
    thread.take(inbox.recv().unwrap());
    assert!(matches!(heard.try_recv(), Ok(ServerEvent::Dead)), "every device that is left is down");
}

/// A request to set the weight of VM v in a drop-in.
fn persisted(target: &str) -> (Asked, oneshot::Receiver<Reply>) {
    let (reply, answer) = oneshot::channel();
    let request = Request::Set {
        target: target.to_owned(),
        keys: "weight = 3".parse().unwrap(),
        how: How { term: Term::Persist, ..How::default() },
    };
    let peer = Peer { uid: 0, gid: 0, groups: [].into(), pid: None };
    (Asked { request, peer, reply }, answer)
}

const VM_ON_A_DEAD_DEVICE: &str = "[device.a]\nbackend = \"null\"\n[device.b]\nbackend = \"null\"\n[vm.v]\n[vm.v.volume.root]\n\
                                   device = \"a\"\nsize = \"1MiB\"\nexport.socket = \"SOCKET\"\n";

#[tokio::test]
async fn a_change_that_a_device_refused_stayed_in_its_drop_in() {
    let sockets = tempfile::tempdir().unwrap();
    let text = VM_ON_A_DEAD_DEVICE.replace("SOCKET", sockets.path().join("v.sock").to_str().unwrap());
    let (mut thread, _heard, inbox, folder) = with_a_dead_device(&text).await;
    let (asked, answer) = persisted("v");
    thread.take(Event::Change(asked));
    let written = inbox.recv().unwrap();
    assert!(folder.path().join("host.d/zz-sluice.toml").exists(), "it is written before the device is asked");
    thread.take(written);
    let reply = answer.await.unwrap();
    assert!(!reply.ok && reply.error.as_ref().unwrap().contains("down"), "{reply:?}");
    assert!(matches!(inbox.recv().unwrap(), Event::Saved(_, Ok(None))));
    assert!(!folder.path().join("host.d").exists());
}

#[tokio::test]
async fn a_change_that_was_being_saved_at_the_exit_stayed_in_its_drop_in() {
    let sockets = tempfile::tempdir().unwrap();
    let text = VM_ON_A_DEAD_DEVICE.replace("SOCKET", sockets.path().join("v.sock").to_str().unwrap());
    let (mut thread, _heard, inbox, folder) = with_a_dead_device(&text).await;
    let (asked, answer) = persisted("v");
    thread.take(Event::Change(asked));
    thread.end(true, &inbox);
    assert!(answer.await.unwrap().error.unwrap().contains("exiting"));
    assert!(!folder.path().join("host.d").exists());
}
