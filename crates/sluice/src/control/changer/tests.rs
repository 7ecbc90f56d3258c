//! Tests of the thread that makes changes, with a device that is down.

use tempfile::TempDir;

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
    let (on_disk, saved) = (Saved::default(), Saved::default());
    let begin = Begin { file, files, host, folder: None, on_disk, saved, gone: Vec::new(), force: Force::default() };
    let (thread, _) = Thread::new(server, begin, Format::Json, events, news).unwrap();
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
