//! The thread that meets other hosts for one device: it ends periods, has blocks read and written, and gives the device its orders.
//!
//! ```text
//!     device thread --Report--> [exchange] --Usage--> helper process --> meeting place
//!           ^                    |      ^                 |
//!           '------Order---------'      '-----blocks------'
//! ```
//!
//! It waits for nothing but its channel, so a place that hangs costs views and nothing else: the device then gets orders for a host without
//! views.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use sluice_io::clock::Clock;
use sluice_io::device::PoolHandle;
use sluice_pool::exchange::{Settings, Trouble};
use sluice_pool::{Exchange, block};

use super::helper::{Helper, News, Reply, Request};

/// Maximum time for a device thread to end a period.
const DEVICE_MAX: Duration = Duration::from_millis(100);
/// Time between two attempts to start the helper.
const RESTART: Duration = Duration::from_secs(1);

/// What the thread is told.
enum Event {
    /// News of a helper, by its number.
    Helper(u64, News),
    Set(Settings),
    End,
}

/// The running exchange of a device. Ends when dropped, and waits for nothing.
pub(crate) struct PoolExchange {
    pub(crate) meeting: PathBuf,
    settings: Settings,
    events: Sender<Event>,
}

/// What the helper is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// There is no helper since then.
    None(Instant),
    /// The header is read, then the lock is taken.
    Header,
    Lock,
    Idle,
    Read(Instant),
    Write(Instant),
}

struct Meeting {
    device: PoolHandle,
    name: String,
    path: PathBuf,
    exchange: Exchange,
    settings: Settings,
    clock: Clock,
    events: Sender<Event>,
    helper: Option<Helper>,
    /// Number of the helper, so that news of an earlier one are known.
    number: u64,
    step: Step,
    /// Time that the last exchange took.
    trip: Duration,
    ends: Instant,
    /// Error of the place, as it was last logged.
    error: Option<String>,
}

impl PoolExchange {
    /// Starts to meet the others.
    ///
    /// # Errors
    /// That of starting a thread.
    pub(crate) fn start(device: PoolHandle, name: &str, path: PathBuf, settings: Settings) -> std::io::Result<Self> {
        let (events, inbox) = channel();
        let meeting = Meeting::new(device, name, &path, settings, events.clone());
        thread::Builder::new().name(format!("pool-{name}")).spawn(move || meeting.run(&inbox))?;
        Ok(PoolExchange { meeting: path, settings, events })
    }

    /// Changes what this host states, if it is not the same.
    pub(crate) fn set(&mut self, settings: Settings) {
        if settings != self.settings {
            self.settings = settings;
            let _ = self.events.send(Event::Set(settings));
        }
    }

    /// Number of this host.
    pub(crate) fn host(&self) -> u8 {
        self.settings.host
    }
}

impl Drop for PoolExchange {
    fn drop(&mut self) {
        let _ = self.events.send(Event::End);
    }
}

impl Meeting {
    fn new(device: PoolHandle, name: &str, path: &std::path::Path, settings: Settings, events: Sender<Event>) -> Self {
        let clock = Clock::start();
        Meeting {
            device,
            name: name.to_owned(),
            path: path.to_owned(),
            exchange: Exchange::new(clock.now(), settings, super::random(), None),
            settings,
            clock,
            events,
            helper: None,
            number: 0,
            step: Step::None(Instant::now()),
            trip: Duration::ZERO,
            ends: Instant::now(),
            error: None,
        }
    }

    fn run(mut self, inbox: &Receiver<Event>) {
        self.start_helper();
        self.give_order();
        loop {
            match inbox.recv_timeout(self.ends.saturating_duration_since(Instant::now())) {
                Ok(Event::Helper(number, _)) if number != self.number => {}
                Ok(Event::Helper(_, News::Reply(reply))) => self.replied(reply),
                Ok(Event::Helper(_, News::Gone)) => self.lose_helper(),
                Ok(Event::Set(settings)) => {
                    self.settings = settings;
                    self.exchange.set(settings);
                    self.give_order();
                }
                Ok(Event::End) | Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => self.end_period(),
            }
        }
        self.device.obey(None);
    }

    fn period(&self) -> Duration {
        self.exchange.period(self.trip)
    }

    fn end_period(&mut self) {
        if let Some(report) = self.device.end_period(DEVICE_MAX) {
            self.exchange.end_period(self.clock.now(), &report);
        }
        match self.step {
            Step::None(since) if since.elapsed() >= RESTART => self.start_helper(),
            Step::Idle => self.ask_for_blocks(),
            _ => {}
        }
        self.give_order();
        self.ends = Instant::now() + self.period();
    }

    fn give_order(&mut self) {
        let (now, period) = (self.clock.now(), self.period());
        let order = self.exchange.order(now, period);
        let state = self.exchange.state(now, period);
        self.device.obey(Some((order, Arc::new(state))));
    }

    fn start_helper(&mut self) {
        self.number += 1;
        let (number, events) = (self.number, self.events.clone());
        let started =
            Helper::start(&self.path, &self.name, move |news| events.send(Event::Helper(number, news)).is_ok());
        match started {
            Ok(helper) => {
                self.helper = Some(helper);
                self.ask(&Request::Read { first: 0, count: 1 }, Step::Header);
            }
            Err(error) => {
                self.note_error(Some(format!("its helper cannot be started: {error}")));
                self.lose_helper();
            }
        }
    }

    fn lose_helper(&mut self) {
        self.helper = None;
        self.step = Step::None(Instant::now());
    }

    fn ask(&mut self, request: &Request, step: Step) {
        let asked = self.helper.as_mut().is_some_and(|helper| helper.ask(request).is_ok());
        if asked {
            self.step = step;
        } else {
            self.lose_helper();
        }
    }

    fn ask_for_blocks(&mut self) {
        match self.exchange.header() {
            Some(header) => {
                let count = 1 + u32::from(header.hosts);
                self.ask(&Request::Read { first: 0, count }, Step::Read(Instant::now()));
            }
            None => self.ask(&Request::Read { first: 0, count: 1 }, Step::Header),
        }
    }

    fn replied(&mut self, reply: Reply) {
        let step = std::mem::replace(&mut self.step, Step::Idle);
        let blocks = match reply {
            Ok(blocks) => blocks,
            Err(error) => {
                // Without the lock nothing may be written: a new helper tries again.
                if let Step::Header | Step::Lock = step {
                    self.lose_helper();
                }
                return self.note_error(Some(error));
            }
        };
        match step {
            Step::Header => self.take_header(&blocks),
            Step::Read(since) => self.take_blocks(&blocks, since),
            Step::Write(since) => {
                self.trip = since.elapsed();
                self.note_error(None);
            }
            Step::Lock | Step::Idle | Step::None(_) => {}
        }
    }

    fn take_header(&mut self, blocks: &[u8]) {
        self.exchange.read(self.clock.now(), blocks, self.period());
        let Some(hosts) = self.exchange.header().map(|header| header.hosts) else {
            self.note_error(self.header_error());
            return self.lose_helper();
        };
        let first = block::usage_of(self.settings.host.min(hosts)) as u32;
        self.ask(&Request::Lock { first, count: 1 }, Step::Lock);
    }

    fn take_blocks(&mut self, blocks: &[u8], since: Instant) {
        self.exchange.read(self.clock.now(), blocks, self.period());
        self.give_order();
        if let Some(error) = self.header_error() {
            return self.note_error(Some(error));
        }
        let first = block::usage_of(self.settings.host) as u32;
        let bytes = block::encode(self.exchange.usage()).to_vec();
        self.ask(&Request::Write { first, bytes }, Step::Write(since));
    }

    fn header_error(&self) -> Option<String> {
        let state = self.exchange.state(self.clock.now(), self.period());
        state.troubles.iter().find_map(|trouble| match trouble {
            Trouble::Header(reason) => Some(format!("its header {reason}")),
            Trouble::OtherPool => Some("it is that of another pool".to_owned()),
            Trouble::NoBlock(hosts) => Some(format!("it has blocks for {hosts} hosts")),
            _ => None,
        })
    }

    /// Logs an error of the place once, and that it is over.
    fn note_error(&mut self, error: Option<String>) {
        if error == self.error {
            return;
        }
        let (device, meeting) = (&self.name, self.path.display());
        match &error {
            Some(error) => {
                tracing::error!(device, %meeting, error, "Cannot meet the other hosts: serving with the part of one host")
            }
            None => tracing::info!(device, %meeting, "Meets the other hosts again"),
        }
        self.error = error;
    }
}
