//! The thread that asks the daemon. The display does not wait for replies, so a daemon that does not reply does not stop it.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use sluice_api::top::Top;

use super::model::Name;
use super::session::Message;
use crate::control::Request;
use crate::control::client::Daemon;

/// The handle of the thread. It ends when the handle is dropped, after the reply that it waits for.
pub(super) struct Fetcher {
    wishes: Sender<Option<Name>>,
}

impl Fetcher {
    /// Starts the thread, which sends what the daemon replies at each interval.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub(super) fn start(daemon: Daemon, interval: Duration, messages: Sender<Message>) -> std::io::Result<Fetcher> {
        let (wishes, inbox) = channel();
        let thread = Thread { daemon, interval, messages, inbox, wanted: None };
        thread::Builder::new().name("fetch".to_owned()).spawn(move || thread.run())?;
        Ok(Fetcher { wishes })
    }

    /// Asks for the details of this with each refresh, and now.
    pub(super) fn look(&self, name: Option<Name>) {
        let _ = self.wishes.send(name);
    }
}

struct Thread {
    daemon: Daemon,
    interval: Duration,
    messages: Sender<Message>,
    inbox: Receiver<Option<Name>>,
    wanted: Option<Name>,
}

impl Thread {
    fn run(mut self) {
        let mut next = Instant::now() + self.interval;
        loop {
            match self.inbox.recv_timeout(next.saturating_duration_since(Instant::now())) {
                Ok(wanted) => {
                    self.wanted = wanted;
                    if !self.details() {
                        return;
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    next = (next + self.interval).max(Instant::now());
                    let reply =
                        self.daemon.get::<Top>(&Request::Top).map_err(sluice_daemon::failure::Failure::into_text);
                    if self.messages.send(Message::Snapshot(reply)).is_err() || !self.details() {
                        return;
                    }
                }
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Asks for the details that are wanted. Returns whether the display is still there.
    fn details(&self) -> bool {
        let Some(name) = &self.wanted else { return true };
        // What has gone has no details; that there is no connection, the next snapshot says.
        let reply = name.look(&self.daemon).unwrap_or(None);
        self.messages.send(Message::Details(name.clone(), reply)).is_ok()
    }
}
