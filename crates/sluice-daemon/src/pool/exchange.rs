//! The thread that meets other hosts for one device: it ends periods, has blocks read and written, and gives the device its orders.
//!
//! ```text
//!     device thread --Report--> [exchange] --Usage--> helper process --> meeting place
//!           ^                    |      ^                 |
//!           '------Order---------'      '-----blocks------'
//! ```
//!
//! It waits for no disk, so a place that hangs costs views and nothing else: the device then gets orders for a host without views.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use sluice_config::Meeting as Place;
use sluice_io::clock::Clock;
use sluice_io::device::PoolHandle;
use sluice_pool::block::{self, BLOCKS};
use sluice_pool::claims::Claims;
use sluice_pool::exchange::{Settings, Trouble};
use sluice_pool::{Exchange, Report};
use tokio::sync::oneshot;

use super::claiming::{Answer, ClaimStep, Claiming, Promised, Rules};
use super::helper::{Helper, News, Reply, Request};
use super::place;

/// Maximum time for a device thread to end a period.
const DEVICE_MAX: Duration = Duration::from_millis(100);
/// Maximum time in which what is claimed is given back when the pool has left the host file.
const GIVE_BACK_MAX: Duration = Duration::from_secs(10);
/// Each time after this number of reads all blocks are read, so that claims which were changed or cannot be read are found.
const WHOLE: u32 = 10;
/// Time between two attempts to start the helper.
const RESTART: Duration = Duration::from_secs(1);

/// What the thread is told.
enum Event {
    /// News of a helper, by its number.
    Helper(u64, News),
    /// What is in force.
    Set(Stated),
    /// A change wants to promise this.
    Claim(Promised, Answer),
    /// It ends; if it leaves the pool, what it has there is given back.
    End { leaves: bool },
}

/// What the host file states of a pool.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Stated {
    pub(crate) settings: Settings,
    /// What may be reserved, in raw cost per second.
    pub(crate) most: u64,
    /// `None` before anything is in force.
    pub(crate) promised: Option<Promised>,
}

/// The running exchange of a device. Ends when dropped, and waits for nothing.
pub(crate) struct PoolExchange {
    place: Place,
    stated: Stated,
    leaves: bool,
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
    Claim(ClaimStep),
}

/// The way to the meeting place.
struct Line {
    device: String,
    place: Place,
    events: Sender<Event>,
    helper: Option<Helper>,
    /// Number of the helper, so that news of an earlier one are known.
    number: u64,
    /// Number of requests to helpers so far.
    requests: u64,
}

impl Line {
    fn start(&mut self) -> std::io::Result<()> {
        self.number += 1;
        let (number, events) = (self.number, self.events.clone());
        let news = move |news| events.send(Event::Helper(number, news)).is_ok();
        self.helper = Some(Helper::start(&self.place, &self.device, news)?);
        Ok(())
    }

    /// Whether it was sent. `hosts`: of the pool.
    fn ask(&mut self, request: &Request, hosts: u8) -> bool {
        self.requests += match request {
            Request::Read { count, .. } => place::requests_of_read(&self.place, *count, hosts),
            Request::Write { .. } | Request::Swap { .. } => 1,
            Request::Lock { .. } => 0,
        };
        self.helper.as_mut().is_some_and(|helper| helper.ask(request).is_ok())
    }
}

struct Meeting {
    device: PoolHandle,
    /// The report of a period that the device has not sent yet.
    asked: Option<Receiver<Option<Report>>>,
    line: Line,
    exchange: Exchange,
    claiming: Claiming,
    stated: Stated,
    /// When our block was first written.
    written: Option<Instant>,
    /// Number of reads of the usage blocks.
    reads: u32,
    clock: Clock,
    step: Step,
    /// Time that the last exchange took.
    trip: Duration,
    ends: Instant,
    /// Error of the place, as it was last logged.
    error: Option<String>,
    phase: Phase,
}

/// Whether the device is a part of the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Member,
    /// It goes on without its device until this time at most, to give back what is claimed. `leaves`: the host file does not name the pool
    /// any more.
    Ends {
        until: Instant,
        leaves: bool,
    },
}

impl PoolExchange {
    /// Starts to meet the others.
    ///
    /// # Errors
    /// That of starting a thread.
    pub(crate) fn start(device: PoolHandle, name: &str, place: Place, stated: Stated) -> std::io::Result<Self> {
        let (events, inbox) = channel();
        let meeting = Meeting::new(device, name, place.clone(), stated, events.clone());
        thread::Builder::new().name(format!("pool-{name}")).spawn(move || meeting.run(&inbox))?;
        Ok(PoolExchange { place, stated, leaves: false, events })
    }

    /// Follows what is in force now.
    pub(crate) fn set(&mut self, stated: Stated) {
        self.stated = stated;
        let _ = self.events.send(Event::Set(stated));
    }

    /// Ends because the host file does not name the pool any more: what is claimed is given back.
    pub(crate) fn leave(mut self) {
        self.set(Stated { promised: Some(Promised::default()), ..self.stated });
        self.leaves = true;
    }

    /// Asks whether this host may promise so much. Without an answer it may not.
    pub(crate) fn claim(&self, promised: Promised) -> oneshot::Receiver<Result<(), String>> {
        let (answer, claimed) = oneshot::channel();
        let _ = self.events.send(Event::Claim(promised, answer));
        claimed
    }

    /// Whether it meets the others there, under this number.
    pub(crate) fn is_at(&self, place: &Place, host: u8) -> bool {
        self.place == *place && self.stated.settings.host == host
    }
}

impl Drop for PoolExchange {
    fn drop(&mut self) {
        let _ = self.events.send(Event::End { leaves: self.leaves });
    }
}

impl Meeting {
    fn new(device: PoolHandle, name: &str, place: Place, stated: Stated, events: Sender<Event>) -> Self {
        let (clock, epoch) = (Clock::start(), super::random());
        let mut claiming = Claiming::new(Instant::now(), place::way(&place), stated.settings.host, epoch);
        claiming.promise(Instant::now(), stated.promised);
        let line = Line { device: name.to_owned(), place, events, helper: None, number: 0, requests: 0 };
        Meeting {
            device,
            asked: None,
            line,
            exchange: Exchange::new(clock.now(), stated.settings, epoch),
            claiming,
            stated,
            written: None,
            reads: 0,
            clock,
            step: Step::None(Instant::now()),
            trip: Duration::ZERO,
            ends: Instant::now(),
            error: None,
            phase: Phase::Member,
        }
    }

    fn run(mut self, inbox: &Receiver<Event>) {
        self.start_helper();
        self.give_order();
        loop {
            if let Phase::Ends { until, leaves } = self.phase {
                let has_given_back = !self.claiming.has_too_much() && (!leaves || self.step == Step::Idle);
                if has_given_back && leaves {
                    self.clear_block();
                }
                if has_given_back || Instant::now() >= until {
                    return;
                }
            }
            let until = self
                .claiming
                .due(Instant::now())
                .filter(|_| self.may_claim())
                .map_or(self.ends, |due| due.min(self.ends));
            match inbox.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(Event::Helper(number, _)) if number != self.line.number => {}
                Ok(Event::Helper(_, News::Reply(reply))) => self.replied(reply),
                Ok(Event::Helper(_, News::Gone)) => self.lose_helper(),
                Ok(Event::Set(stated)) => self.follow(stated),
                Ok(Event::Claim(promised, answer)) => self.asked_for(promised, answer),
                Ok(Event::End { leaves }) => {
                    self.device.obey(None);
                    self.phase = Phase::Ends { until: Instant::now() + GIVE_BACK_MAX, leaves };
                }
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) if Instant::now() < self.ends => self.claim(),
                Err(RecvTimeoutError::Timeout) => self.end_period(),
            }
        }
    }

    /// Clears the usage block, so that the other hosts do not take this one for one that has vanished.
    fn clear_block(&mut self) {
        if self.written.is_some() {
            let first = block::usage_of(self.stated.settings.host) as u32;
            self.line.ask(&Request::Write { first, bytes: vec![0; block::SIZE] }, 0);
        }
    }

    fn asked_for(&mut self, promised: Promised, answer: Answer) {
        let (now, period) = (self.clock.now(), self.period());
        // A number that another daemon has is refused with the claim.
        let is_away =
            self.written.is_some() && self.exchange.is_cut_off(now, period) && !self.exchange.is_disputed(now, period);
        let error = self.error.clone().or_else(|| is_away.then(|| "it has not responded for some periods".to_owned()));
        match error.filter(|_| promised.reserved > self.claiming.confirmed()) {
            Some(error) => drop(answer.send(Err(error))),
            None => {
                self.claiming.ask(Instant::now(), promised, answer);
                self.claim();
            }
        }
    }

    fn follow(&mut self, stated: Stated) {
        if stated.settings != self.stated.settings {
            self.exchange.set(stated.settings);
            self.give_order();
        }
        self.claiming.promise(Instant::now(), stated.promised);
        self.stated = stated;
        self.claim();
    }

    fn period(&self) -> Duration {
        self.exchange.period(self.trip)
    }

    fn end_period(&mut self) {
        if self.phase != Phase::Member {
            return self.go_on();
        }
        let asked = self.asked.take().unwrap_or_else(|| self.device.end_period());
        match asked.recv_timeout(DEVICE_MAX) {
            Ok(report) => report.iter().for_each(|report| self.exchange.end_period(self.clock.now(), report)),
            Err(RecvTimeoutError::Timeout) => self.asked = Some(asked),
            Err(RecvTimeoutError::Disconnected) => {}
        }
        self.go_on();
        self.give_order();
    }

    /// Begins the next exchange, if the last one is over.
    fn go_on(&mut self) {
        match self.step {
            Step::None(since) if since.elapsed() >= RESTART => self.start_helper(),
            Step::Idle => self.ask_for_blocks(),
            _ => {}
        }
        self.ends = Instant::now() + self.period();
    }

    /// A device that does not respond gets none: they would only be queued.
    fn give_order(&mut self) {
        if self.asked.is_some() || self.phase != Phase::Member {
            return;
        }
        let (now, period) = (self.clock.now(), self.period());
        let order = self.exchange.order(now, period);
        let mut state = self.exchange.state(now, period);
        state.requests = self.line.requests;
        (state.reserved, state.unclaimed) = (self.claiming.confirmed(), self.claiming.refusal().map(str::to_owned));
        self.device.obey(Some((order, Arc::new(state))));
    }

    fn start_helper(&mut self) {
        match self.line.start() {
            Ok(()) => self.ask(&Request::Read { count: 1 }, Step::Header),
            Err(error) => {
                self.note_error(Some(format!("its helper cannot be started: {error}")));
                self.lose_helper();
            }
        }
    }

    fn lose_helper(&mut self) {
        self.written = None;
        self.claiming.interrupt(Instant::now(), self.error.as_deref().unwrap_or("it does not respond"));
        self.line.helper = None;
        self.step = Step::None(Instant::now());
    }

    fn ask(&mut self, request: &Request, step: Step) {
        let hosts = self.exchange.header().map_or(0, |header| header.hosts);
        if self.line.ask(request, hosts) {
            self.step = step;
        } else {
            self.lose_helper();
        }
    }

    fn ask_for_blocks(&mut self) {
        match self.exchange.header() {
            Some(header) => {
                self.reads = self.reads.wrapping_add(1);
                let count = if self.reads.is_multiple_of(WHOLE) { BLOCKS as u32 } else { 1 + u32::from(header.hosts) };
                self.ask(&Request::Read { count }, Step::Read(Instant::now()));
            }
            None => self.ask(&Request::Read { count: 1 }, Step::Header),
        }
    }

    fn replied(&mut self, reply: Reply) {
        let step = std::mem::replace(&mut self.step, Step::Idle);
        let done = match reply {
            Ok(done) => done,
            Err(error) => {
                self.written = None;
                if let Step::Write(_) = step {
                    self.exchange.wrote(false);
                }
                self.claiming.interrupt(Instant::now(), &error);
                // Without the lock nothing may be written: a new helper tries again.
                if let Step::Header | Step::Lock = step {
                    self.lose_helper();
                }
                return self.note_error(Some(error));
            }
        };
        match step {
            Step::Header => self.take_header(&done.blocks()),
            Step::Read(since) => self.take_blocks(&done.blocks(), since),
            Step::Write(since) => {
                self.trip = since.elapsed();
                self.exchange.wrote(true);
                self.written.get_or_insert(since);
                self.note_error(None);
                self.claim();
            }
            Step::Claim(step) => {
                let next = self.with_rules(|claiming, rules| claiming.replied(Instant::now(), step, done, rules));
                self.ask_for_claim(next);
            }
            Step::Lock | Step::Idle | Step::None(_) => {}
        }
    }

    fn take_header(&mut self, blocks: &[u8]) {
        self.exchange.read(self.clock.now(), blocks, self.period());
        if let Some(error) = self.header_error() {
            self.note_error(Some(error));
            return self.lose_helper();
        }
        let block = block::usage_of(self.stated.settings.host) as u32;
        self.ask(&Request::Lock { block }, Step::Lock);
    }

    fn take_blocks(&mut self, blocks: &[u8], since: Instant) {
        let at = block::usage_of(self.stated.settings.host) * block::SIZE;
        let own = blocks.get(at..at + block::SIZE);
        let is_forgotten = own.is_some_and(|own| own.iter().all(|byte| *byte == 0));
        let was_away = self.exchange.is_cut_off(self.clock.now(), self.period());
        if self.written.is_some() && (is_forgotten || was_away) {
            // `sluice pool forget` may have taken our claims meanwhile.
            self.claiming.learn_again();
        }
        self.exchange.read(self.clock.now(), blocks, self.period());
        self.give_order();
        if let Some(error) = self.header_error() {
            return self.note_error(Some(error));
        }
        if blocks.len() == BLOCKS * block::SIZE
            && let Some(header) = self.exchange.header()
        {
            let claims = Claims::read(header, blocks);
            self.claiming.compare(Instant::now(), &claims);
            self.exchange.note_claims(claims.unreadable);
        }
        let first = block::usage_of(self.stated.settings.host) as u32;
        let bytes = block::encode(self.exchange.usage()).to_vec();
        self.ask(&Request::Write { first, bytes }, Step::Write(since));
    }

    /// Whether our block stands at the place since two periods, so that another daemon with our number would have been seen.
    fn may_claim(&self) -> bool {
        self.step == Step::Idle
            && self.header_error().is_none()
            && self.written.is_some_and(|since| since.elapsed() > 2 * self.period())
    }

    /// Goes on with the claim, if nothing else is under way.
    fn claim(&mut self) {
        if self.may_claim() {
            let next = self.with_rules(|claiming, rules| claiming.next(Instant::now(), rules));
            self.ask_for_claim(next);
        }
    }

    fn ask_for_claim(&mut self, next: Option<(Request, ClaimStep)>) {
        if let Some((request, step)) = next {
            self.ask(&request, Step::Claim(step));
        }
    }

    fn with_rules<T>(&mut self, go_on: impl FnOnce(&mut Claiming, &Rules<'_>) -> Option<T>) -> Option<T> {
        let (now, period) = (self.clock.now(), self.exchange.period(Duration::ZERO));
        let is_disputed = self.exchange.is_disputed(now, self.period());
        let header = self.exchange.header()?;
        let obstacle = self.exchange.troubles(now, period).iter().find_map(|trouble| match trouble {
            Trouble::Capacity(..) => Some(super::manage::other_capacity(header, &self.line.place)),
            _ => None,
        });
        // What hosts read and write here is no longer there for their VMs. What this host needs at a file is not in `most`.
        let requests = place::requests_of_period(&self.line.place, header.hosts);
        let most = self.stated.most.saturating_sub(self.exchange.rate_of_meeting(requests));
        go_on(&mut self.claiming, &Rules { header, most, obstacle, is_disputed })
    }

    fn header_error(&self) -> Option<String> {
        self.exchange.troubles(self.clock.now(), self.period()).iter().find_map(|trouble| match trouble {
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
        let (device, meeting) = (&self.line.device, &self.line.place);
        match &error {
            Some(error) => {
                tracing::error!(device, %meeting, error, "Cannot meet the other hosts: serving with the part of one host")
            }
            None => tracing::info!(device, %meeting, "Meets the other hosts again"),
        }
        self.error = error;
    }
}
