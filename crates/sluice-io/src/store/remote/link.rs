//! The way of an operation with a connection and without one: what is lost with one, and when there is another.
//!
//! All volumes of a device are on one server. So one of them is tried at a time, and the others follow when it answers.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use sluice_sched::Instant;

use super::connection::Connection;
use super::{ConnectionKey, Place, RemoteKey, RemoteStore, Running};
use crate::backend::ring::Ring;
use crate::nbd::wire::{Command, command_flag};
use crate::source::Loss;
use crate::source::remote::{Reached, Resend};
use crate::store::file::jobs::BlockingJob;
use crate::store::{Context, Done, OpIndex};

/// A server that has requests and sends nothing for this time is away.
pub(super) const SILENCE_MAX: Duration = Duration::from_secs(30);
/// Requests wait this long for a server that is away, unless all are sent again: as long as a guest's own timeout.
const AWAY_MAX: Duration = Duration::from_secs(30);
/// Interval at which both are checked.
const TICK: Duration = if cfg!(test) { Duration::from_millis(10) } else { Duration::from_secs(1) };
/// Pause after an attempt that has failed.
const PAUSE: Duration = if cfg!(test) { Duration::from_millis(10) } else { Duration::from_secs(1) };

/// How a volume is connected.
pub(super) enum Link {
    /// By the control plane, or not yet since the device thread was restarted; no request has come since.
    New(Option<OwnedFd>),
    Up(ConnectionKey),
    Away {
        since: Instant,
    },
}

/// Attempts to connect: one at a time.
#[derive(Default)]
pub(super) struct Dials {
    runs: bool,
    /// When the next one may begin.
    next: Instant,
    /// The last volume that was tried.
    last: Option<RemoteKey>,
}

impl RemoteStore {
    pub(super) fn running(&mut self, index: OpIndex) -> &mut Running {
        self.running[index.0 as usize].as_mut().expect("an operation in flight has an entry")
    }

    /// Lets an operation wait until it can be sent, or ends it if it never can.
    pub(super) fn enqueue(&mut self, context: &mut Context<'_>, index: OpIndex) {
        let Running { volume: key, command, .. } = *self.running(index);
        if self.fails(context.now, key, command) {
            return self.end(index, Done::Failed(libc::EIO));
        }
        self.running(index).place = Place::Waiting;
        self.volumes[key].waiting.push_back(index);
        self.go_on(context, key);
    }

    /// Notes a reply.
    pub(super) fn answered(&mut self, context: &mut Context<'_>, index: OpIndex, errno: i32) {
        let Running { volume, command, flushes, covers, flags, .. } = *self.running(index);
        match errno {
            0 => {}
            // The next server does it.
            libc::ESHUTDOWN => return self.enqueue(context, index),
            errno => return self.end(index, Done::Failed(errno)),
        }
        let unforced = self.volumes[volume].source.kind().unforced();
        match command {
            Command::Read => {}
            Command::Flush => unforced.flushed(covers),
            _ if flags & command_flag::FUA != 0 => {}
            _ => unforced.confirm(),
        }
        if flushes {
            *self.running(index) = Running::flush(volume);
            return self.enqueue(context, index);
        }
        self.end(index, Done::Ok);
    }

    fn end(&mut self, index: OpIndex, done: Done) {
        self.running[index.0 as usize] = None;
        self.done.push((index, done));
    }

    /// Closes all connections, so that the ring becomes empty.
    pub(crate) fn shut_down(&mut self, ring: &mut Ring) {
        self.connections.iter().for_each(|(_, connection)| connection.shut());
        self.tick.cancel(ring);
    }

    /// Whether a new request of a volume fails: what was written may be lost, or its server is away for too long.
    pub(super) fn fails(&self, now: Instant, key: RemoteKey, command: Command) -> bool {
        let volume = &self.volumes[key];
        let is_lost = volume.source.loss() != Loss::None && command != Command::Read;
        is_lost || volume.source.kind().resend() != Resend::All && volume.link.is_given_up(now)
    }

    /// Sends what waits, or connects.
    pub(super) fn go_on(&mut self, context: &mut Context<'_>, key: RemoteKey) {
        let volume = &mut self.volumes[key];
        match std::mem::replace(&mut volume.link, Link::Away { since: context.now }) {
            Link::New(Some(socket)) => self.connected(context, key, socket),
            Link::Up(connection) => {
                volume.link = Link::Up(connection);
                self.send(context, connection);
            }
            Link::New(None) => self.dial_next(context),
            away @ Link::Away { .. } => {
                volume.link = away;
                self.dial_next(context);
            }
        }
        self.tick.start(context.ring, TICK);
    }

    /// Starts to use a connection.
    fn connected(&mut self, context: &mut Context<'_>, key: RemoteKey, socket: OwnedFd) {
        let counted = self.volumes[key].source.kind().counted();
        let connection = self.connections.insert(Connection::new(socket, key, counted, context.now));
        self.volumes[key].link = Link::Up(connection);
        self.receive(context, connection);
        self.send(context, connection);
    }

    /// Ends what was on a connection that is lost, and that the ring does not name any more.
    pub(super) fn lost(&mut self, context: &mut Context<'_>, connection: ConnectionKey) {
        let Connection { volume: key, began, .. } = self.connections[connection];
        // A server that takes connections and ends them is not asked without pause.
        if context.now.since(began) < PAUSE {
            self.dials.next = context.now + PAUSE;
        }
        let Some(volume) = self.volumes.get_mut(key) else { return };
        volume.link = Link::Away { since: context.now };
        let resend = volume.source.kind().resend();
        let (vm, name) = (&volume.label.vm, &volume.label.volume);
        let server = volume.source.name();
        let reason = self.connections[connection].reason();
        tracing::warn!(vm, volume = name, server, reason, "Lost the connection to the server of a volume");
        let sent = self.running.iter().enumerate().filter_map(|(at, running)| {
            let running = running.as_ref()?;
            match running.place {
                Place::Sent(on, cookie) if on == connection => Some((cookie, OpIndex(at as u32))),
                _ => None,
            }
        });
        let mut sent: Vec<_> = sent.collect();
        // The latest first, since each is put in front.
        sent.sort_unstable_by_key(|(cookie, _)| *cookie);
        for (_, index) in sent.into_iter().rev() {
            match (self.running(index).command, resend) {
                (Command::Read, _) | (_, Resend::Fenced | Resend::All) => {
                    self.running(index).place = Place::Waiting;
                    self.volumes[key].waiting.push_front(index);
                }
                _ => self.end(index, Done::Failed(libc::EIO)),
            }
        }
        self.dial_next(context);
        self.tick.start(context.ring, TICK);
    }

    /// Handles the end of an attempt to connect.
    pub(crate) fn dialled(&mut self, context: &mut Context<'_>, key: RemoteKey, result: Result<Reached, String>) {
        self.dials.runs = false;
        match (self.volumes.get_mut(key), result) {
            (None, _) => {}
            (Some(volume), Err(why)) => {
                self.dials.next = context.now + PAUSE;
                let (vm, name) = (&volume.label.vm, &volume.label.volume);
                let server = volume.source.name();
                if volume.why != why {
                    tracing::warn!(vm, volume = name, server, why, "Cannot connect to the server of a volume");
                    volume.why = why;
                }
            }
            (Some(volume), Ok((socket, start))) => {
                let (vm, name) = (&volume.label.vm, &volume.label.volume);
                let server = volume.source.name();
                tracing::info!(vm, volume = name, server, "Connected again to the server of a volume");
                volume.why.clear();
                // What a server of ours says for itself: it was not started again since.
                let loses_nothing = volume.source.kind().loses_nothing(start);
                let may_lose = volume.source.kind().resend() != Resend::All && !loses_nothing;
                if may_lose && volume.source.kind().unforced().is_any() {
                    volume.source.set_loss(Loss::OfServer);
                    tracing::error!(
                        vm,
                        volume = name,
                        server,
                        "The server may have lost writes that no flush had followed: writes and flushes fail until the loss is accepted"
                    );
                    self.end_waiting(key, |command| command != Command::Read);
                }
                self.connected(context, key, socket);
            }
        }
        self.dial_next(context);
    }

    /// Tries the next volume whose server is away, if none is being tried.
    fn dial_next(&mut self, context: &mut Context<'_>) {
        if self.dials.runs || context.now < self.dials.next {
            return;
        }
        let away = self.volumes.iter().filter(|(_, volume)| matches!(volume.link, Link::Away { .. }));
        let away: Vec<RemoteKey> = away.map(|(key, _)| key).collect();
        let after = away.iter().find(|key| Some(**key) > self.dials.last).or(away.first());
        if let Some(&key) = after {
            self.dials.last = Some(key);
            let source = Arc::clone(&self.volumes[key].source);
            self.dials.runs = context.jobs.send(BlockingJob::Dial { volume: key, source });
        }
    }

    /// Gives up connections that are silent and requests that have waited for too long, and connects.
    pub(super) fn ticked(&mut self, context: &mut Context<'_>) {
        self.tick.fired();
        let silent = self.connections.iter().filter(|(_, connection)| connection.is_silent(context.now));
        let silent: Vec<ConnectionKey> = silent.map(|(key, _)| key).collect();
        silent.into_iter().for_each(|key| self.connections[key].break_off("it has not answered for 30 s"));
        let given_up = self.volumes.iter().filter(|(_, volume)| volume.source.kind().resend() != Resend::All);
        let given_up = given_up.filter(|(_, volume)| volume.link.is_given_up(context.now));
        let given_up: Vec<RemoteKey> = given_up.map(|(key, _)| key).collect();
        given_up.into_iter().for_each(|key| self.end_waiting(key, |_| true));
        self.dial_next(context);
        let is_away = self.volumes.iter().any(|(_, volume)| matches!(volume.link, Link::Away { .. }));
        if is_away || self.connections.iter().any(|(_, connection)| connection.is_busy()) {
            self.tick.start(context.ring, TICK);
        }
    }

    /// Ends operations that wait, with an error.
    fn end_waiting(&mut self, key: RemoteKey, is_ended: impl Fn(Command) -> bool) {
        for index in std::mem::take(&mut self.volumes[key].waiting) {
            match is_ended(self.running(index).command) {
                true => self.end(index, Done::Failed(libc::EIO)),
                false => self.volumes[key].waiting.push_back(index),
            }
        }
    }
}

impl Link {
    /// Whether its server is away for so long that requests fail.
    fn is_given_up(&self, now: Instant) -> bool {
        matches!(self, Link::Away { since } if now.since(*since) >= AWAY_MAX)
    }
}
