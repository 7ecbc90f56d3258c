//! One host's view of a pool: what the hosts have told each other, and the window that follows from it.
//!
//! In each period a host ends what it counts ([`Exchange::end_period`]), reads all blocks ([`Exchange::read`]), writes its own and gives
//! its device an order ([`Exchange::order`]). Reading first shows whether another daemon writes our block.
//!
//! How much may be in flight in the whole pool follows the time of all requests together, as [`law`](crate::law) says, and each host gets
//! the part that its VMs are due ([`dues`](crate::dues)). A host whose path is slower needs more in flight for the same rate, and gets it.
//! A host without fresh views of the others gives its VMs what they must get, or its part of the capacity by the number of hosts if that
//! is more.

use std::time::Duration;

use sluice_sched::admission::Capacity;
use sluice_sched::{Cost, Instant, Iops};

use crate::block::{self, Header, Host, Unreadable, Usage};
use crate::dues::{Curve, Division, Prices, divide};
use crate::law::{ABOVE, Aim, Completed, PERIOD};
use crate::too_low::{Finder, Period};
use crate::window::{Order, Report};

/// Number of periods after which a view is no longer fresh.
const FRESH: u32 = 4;
/// Requests of a host in a period where it reads all blocks at once: it writes its own, too.
const REQUESTS: u64 = 2;
/// The same per second.
pub const HOST_IOPS: u64 = REQUESTS * 1000 / PERIOD.as_millis() as u64;
/// From this number of hosts on a period is 1 s.
const MANY_HOSTS: u8 = 17;
/// A VM must get this part (9 / 8) of what it asks for of its reservation in flight: the device settles a sixteenth above the stated time.
const FLOOR: (u128, u128) = (9, 8);
/// 1, as a ratio of times.
const SCALE: u128 = 1 << 16;
/// A pool gives less than its capacity if it completes less than this part (9 / 10) for [`LESS_AFTER`].
const LESS: (u64, u64) = (9, 10);
/// Time after which it is known.
const LESS_AFTER: Duration = Duration::from_secs(10);
/// Time after which what a silent host completed says nothing more.
const SILENT_MAX: Duration = Duration::from_secs(60);
/// A longer exchange makes no longer periods.
const TRIP_MAX: Duration = Duration::from_secs(1);

/// What a host states of a pool.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Settings {
    pub host: Host,
    pub capacity: Capacity,
    /// Size in bytes of a request that counts as one.
    pub request_bytes: u64,
    /// Time from which on the pool counts as full.
    pub latency: Duration,
}

/// The view of one host.
#[derive(Debug, Clone)]
pub struct Exchange {
    settings: Settings,
    header: Option<Header>,
    /// What the header lacks, as of the last read.
    header_trouble: Option<Trouble>,
    aim: Aim,
    prices: Prices,
    own: Usage,
    /// Dues that the others have read.
    known_dues: Curve,
    /// What completed here in the last period.
    completed: Completed,
    /// By number of the host, from 1.
    views: Vec<View>,
    /// When the last read ended.
    read: Option<Instant>,
    /// When the last period ended.
    ended: Option<Instant>,
    /// Whether our block could not be written last.
    is_unwritten: bool,
    /// Hosts with a claim that could not be read when all blocks were read last, and when they were read the last two times.
    unreadable: [Vec<(Host, Unreadable)>; 2],
    /// When another daemon was last seen to write our block.
    disputed: Option<Instant>,
    too_low: Finder,
    /// Since when the pool has completed less than it should.
    less_since: Option<Instant>,
    /// As of the last read.
    rate: u64,
    latency: Option<u64>,
    division: Division,
}

/// What is known of a host.
#[derive(Debug, Clone)]
struct View {
    /// What it last said.
    usage: Option<Usage>,
    /// When that was new.
    at: Instant,
    /// Time between its last two news: a host whose reads are slow has longer periods.
    gap: Duration,
    unreadable: Option<Unreadable>,
}

/// What keeps hosts from sharing a pool as it is stated.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Trouble {
    /// Nothing has been read for some periods.
    Away,
    /// The header says nothing.
    Header(Unreadable),
    /// The place has another pool than before.
    OtherPool,
    /// Our number is larger than the number of hosts in the header.
    NoBlock(u8),
    /// Another daemon has our number.
    SameNumber,
    /// The block of a host says nothing.
    Block(Host, Unreadable),
    /// The capacity in the header, in thousandths of a request per second, and the size of a request.
    Capacity(u64, u64),
    /// The pool completes so much less than its capacity, in raw cost per second.
    GivesLess(u64),
    /// The pool takes this time in nanoseconds for one request, which is above the stated time.
    TooLow(u64),
}

/// A host as others see it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Seen {
    pub host: Host,
    /// Time since it last said something new.
    pub age: Duration,
    pub is_fresh: bool,
    /// Raw cost per second that it is due; 0 if it is not fresh.
    pub part: u64,
    /// Mean time at the device in nanoseconds; 0 if nothing completed.
    pub latency: u64,
    /// Raw cost per second.
    pub rate: u64,
}

/// The state of a pool, for people.
#[derive(Debug, Clone, PartialEq)]
pub struct State {
    /// Raw cost per second for a unit of weight.
    pub price: f64,
    /// How much may be in flight in the whole pool, in raw cost.
    pub window: u64,
    /// Mean time at the device in nanoseconds, of all hosts; `None` if nothing completed.
    pub latency: Option<u64>,
    /// Raw cost per second that all hosts complete.
    pub rate: u64,
    /// Hosts have the numbers 1 to this one.
    pub last_host: Host,
    /// Hosts that have been seen, this one included.
    pub hosts: Vec<Seen>,
    pub troubles: Vec<Trouble>,
    /// Reads and writes of this host at the meeting place since it began.
    pub requests: u64,
    /// Raw cost per second that this host has claimed, if it does; see [`crate::claims`].
    pub reserved: u64,
    /// Why it has claimed less than its VMs reserve.
    pub unclaimed: Option<String>,
}

impl Settings {
    /// The capacity and time that hold if the header states this capacity: the smaller one.
    fn aim(&self, header: Option<&Header>) -> Aim {
        let own = self.capacity.iops.unwrap_or(Iops::per_second(1));
        let least = header.map_or(own, |header| own.min(Iops::from_milli(header.milli_iops.max(1))));
        Aim::new(least, self.latency)
    }

    /// The prices of all hosts: those of the header, once it is known.
    fn prices(&self, header: Option<&Header>) -> Prices {
        let iops = header.map(|header| Iops::from_milli(header.milli_iops.max(1))).or(self.capacity.iops);
        Prices::new(Capacity { iops, bytes: self.capacity.bytes })
    }
}

impl Exchange {
    /// The view of a daemon that starts. `epoch` is random.
    #[must_use]
    pub fn new(now: Instant, settings: Settings, epoch: u64) -> Self {
        let (aim, prices) = (settings.aim(None), settings.prices(None));
        let own = Usage {
            pool: 0,
            host: settings.host,
            epoch,
            sequence: 0,
            window: aim.outstanding(),
            held_back: false,
            in_force: aim.outstanding(),
            cost: 0,
            latency: 0,
            dues: Curve::NONE,
        };
        let unknown = View { usage: None, at: now, gap: Duration::ZERO, unreadable: None };
        Exchange {
            settings,
            header: None,
            header_trouble: None,
            aim,
            prices,
            own,
            known_dues: Curve::NONE,
            completed: Completed::default(),
            views: vec![unknown; block::HOSTS_MAX.into()],
            read: None,
            ended: None,
            is_unwritten: false,
            unreadable: [Vec::new(), Vec::new()],
            disputed: None,
            too_low: Finder::default(),
            less_since: None,
            rate: 0,
            latency: None,
            division: Division { price: 0.0, parts: Vec::new() },
        }
    }

    /// Changes what this host states.
    pub fn set(&mut self, settings: Settings) {
        self.settings = settings;
        self.take_header(self.header.clone());
    }

    fn take_header(&mut self, header: Option<Header>) {
        (self.aim, self.prices) = (self.settings.aim(header.as_ref()), self.settings.prices(header.as_ref()));
        self.own.window = self.own.window.clamp(1, self.aim.window_max());
        self.header = header;
    }

    /// The header, if it has ever been read.
    #[must_use]
    pub fn header(&self) -> Option<&Header> {
        self.header.as_ref()
    }

    /// Time between two periods if the last exchange took `trip`: at least twice that. One that hung says nothing about the next one, and
    /// orders of a host without views must not last as long.
    #[must_use]
    pub fn period(&self, trip: Duration) -> Duration {
        usual_period(self.hosts()).max(2 * trip.min(TRIP_MAX))
    }

    /// Returns the rate of the requests by which the hosts meet, without the [`HOST_IOPS`] of this one, in raw cost per second. `requests`: of a
    /// host and period.
    #[must_use]
    pub fn rate_of_meeting(&self, requests: u64) -> u64 {
        let hosts = self.hosts();
        meeting_rate(hosts, hosts - 1, requests) + meeting_rate(hosts, 1, requests.saturating_sub(REQUESTS))
    }

    /// Number of hosts of the pool; the most if it is not known.
    fn hosts(&self) -> u8 {
        self.header.as_ref().map_or(block::HOSTS_MAX, |header| header.hosts.clamp(1, block::HOSTS_MAX))
    }

    /// Ends a period with what the device says.
    pub fn end_period(&mut self, now: Instant, report: &Report) {
        let nanos = self.ended.map_or(PERIOD.as_nanos() as u64, |ended| now.nanos_since(ended)).max(1);
        self.ended = Some(now);
        let Report { completed, held_back, dues } = *report;
        self.completed = completed;
        let per_second = u128::from(completed.cost) * 1_000_000_000 / u128::from(nanos);
        self.known_dues = self.own.dues;
        self.own.sequence += 1;
        self.own.held_back = held_back;
        self.own.in_force = self.own.window;
        self.own.cost = u64::try_from(per_second).unwrap_or(u64::MAX);
        self.own.latency = completed.latency().unwrap_or(0);
        self.own.dues = dues.clamped(self.prices.capacity());
    }

    /// Takes what was read from the place: header and usage blocks.
    pub fn read(&mut self, now: Instant, blocks: &[u8], period: Duration) {
        if let Err(trouble) = self.read_header(blocks) {
            self.header_trouble = Some(trouble);
            return;
        }
        self.header_trouble = None;
        // Of a place whose header was not known, no more was read: that says nothing about the others.
        if blocks.len() < (1 + usize::from(self.hosts())) * block::SIZE {
            return;
        }
        self.read = Some(now);
        for host in 1..=self.hosts() {
            let at = block::usage_of(host) * block::SIZE;
            if let Some(bytes) = blocks.get(at..at + block::SIZE) {
                self.view(now, host, bytes);
            }
        }
        self.follow(now, period);
    }

    /// Whether our block could be written. Without it the others do not see this host, so it counts as cut off.
    pub fn wrote(&mut self, is_written: bool) {
        self.is_unwritten = !is_written;
    }

    /// Takes the hosts of which a claim cannot be read, which are told if they are the same the next time.
    pub fn note_claims(&mut self, unreadable: Vec<(Host, Unreadable)>) {
        let both = unreadable.iter().filter(|found| self.unreadable[0].contains(found)).copied().collect();
        self.unreadable = [unreadable, both];
    }

    fn read_header(&mut self, blocks: &[u8]) -> Result<(), Trouble> {
        let first = blocks.get(..block::SIZE).ok_or(Trouble::Header(Unreadable::Torn))?;
        let header: Header = block::decode(first).map_err(Trouble::Header)?;
        if !(1..=block::HOSTS_MAX).contains(&header.hosts) {
            return Err(Trouble::Header(Unreadable::Foreign));
        }
        if self.header.as_ref().is_some_and(|known| known.pool != header.pool) {
            return Err(Trouble::OtherPool);
        }
        if self.settings.host > header.hosts {
            return Err(Trouble::NoBlock(header.hosts));
        }
        if self.header.as_ref() != Some(&header) {
            self.own.pool = header.pool;
            self.take_header(Some(header));
        }
        Ok(())
    }

    fn view(&mut self, now: Instant, host: Host, bytes: &[u8]) {
        let pool = self.own.pool;
        let read = block::decode::<Usage>(bytes).and_then(|usage| {
            if usage.pool == pool && usage.host == host { Ok(usage) } else { Err(Unreadable::Foreign) }
        });
        if host == self.settings.host {
            if read.as_ref().is_ok_and(|usage| usage.epoch != self.own.epoch && self.wrote_before(usage)) {
                self.disputed = Some(now);
            }
            return;
        }
        let view = &mut self.views[usize::from(host) - 1];
        view.unreadable = read.as_ref().err().copied().filter(|reason| *reason != Unreadable::Empty);
        if read.as_ref().is_err_and(|reason| *reason == Unreadable::Empty) {
            // It was forgotten.
            view.usage = None;
        }
        let Ok(mut usage) = read else { return };
        match &view.usage {
            // The same, or a write that was overtaken by a later one.
            Some(known) if known.epoch == usage.epoch && known.sequence >= usage.sequence => return,
            Some(_) => (view.gap, view.at) = (now.since(view.at), now),
            None => view.at = now,
        }
        usage.window = usage.window.min(self.aim.window_max());
        usage.in_force = usage.in_force.min(self.aim.window_max());
        usage.cost = usage.cost.min(2 * self.prices.capacity());
        usage.dues = usage.dues.clamped(self.prices.capacity());
        view.usage = Some(usage);
    }

    /// Whether what stands in our block is not what stood there before this run: our own block was written over.
    fn wrote_before(&mut self, usage: &Usage) -> bool {
        let view = &mut self.views[usize::from(self.settings.host) - 1];
        let is_new =
            view.usage.as_ref().is_none_or(|known| (known.epoch, known.sequence) != (usage.epoch, usage.sequence));
        let is_first = view.usage.is_none();
        view.usage = Some(usage.clone());
        is_new && !is_first
    }

    fn is_fresh(&self, now: Instant, period: Duration, view: &View) -> bool {
        let since = self.read.unwrap_or(now).since(view.at);
        let usual = period.max(view.gap.min(FRESH * period));
        view.usage.is_some() && since <= FRESH * usual
    }

    /// Hosts with fresh blocks, without this one.
    fn fresh(&self, now: Instant, period: Duration) -> impl Iterator<Item = (Host, &Usage)> {
        let others = (1..=self.hosts()).filter(|host| *host != self.settings.host);
        others.filter_map(move |host| {
            let view = &self.views[usize::from(host) - 1];
            view.usage.as_ref().filter(|_| self.is_fresh(now, period, view)).map(|usage| (host, usage))
        })
    }

    /// Computes what may be in flight in the pool from now on.
    fn follow(&mut self, now: Instant, period: Duration) {
        let (mut windows, mut count) = (u128::from(self.own.window), 1);
        let mut in_force = u128::from(self.own.in_force);
        let (mut completed, mut rate) = (self.completed, self.own.cost);
        let mut held_back = self.own.held_back;
        for (_, usage) in self.fresh(now, period) {
            windows += u128::from(usage.window);
            in_force += u128::from(usage.in_force);
            count += 1;
            let cost = (u128::from(usage.cost) * period.as_nanos() / 1_000_000_000) as u64;
            completed.cost = completed.cost.saturating_add(cost);
            completed.cost_nanos += u128::from(cost) * u128::from(usage.latency);
            rate = rate.saturating_add(usage.cost);
            held_back |= usage.held_back;
        }
        let (window, in_force) = ((windows / count) as u64, (in_force / count) as u64);
        self.too_low
            .note(&self.aim, &Period { held_back, completed, window: in_force, nanos: period.as_nanos() as u64 });
        let next = self.aim.next_after(window, in_force, &completed);
        let next = if held_back { next } else { next.min(window) };
        let least = if self.too_low.own_time().is_some() { self.aim.outstanding() / 2 } else { 1 };
        self.own.window = next.clamp(least.min(self.aim.window_max()), self.aim.window_max());
        (self.rate, self.latency) = (rate, completed.latency());
        self.note_less(now, held_back, rate.saturating_add(self.silent_rate(now, period)));
    }

    /// What hosts completed that have said nothing new for some periods, when they last did: one that cannot write goes on all the same.
    fn silent_rate(&self, now: Instant, period: Duration) -> u64 {
        let others = (1..=self.hosts()).filter(|host| *host != self.settings.host);
        let views = others.map(|host| &self.views[usize::from(host) - 1]);
        let silent = views.filter(|view| !self.is_fresh(now, period, view) && now.since(view.at) <= SILENT_MAX);
        silent.filter_map(|view| Some(view.usage.as_ref()?.cost)).fold(0, u64::saturating_add)
    }

    fn note_less(&mut self, now: Instant, held_back: bool, rate: u64) {
        let stated = self.aim.in_time(1_000_000_000);
        let is_less = u128::from(rate) * u128::from(LESS.1) < u128::from(stated) * u128::from(LESS.0);
        let is_full = self.latency.is_some_and(|latency| u128::from(latency) >= self.settings.latency.as_nanos());
        if !(held_back && is_less && is_full) {
            self.less_since = None;
        } else {
            self.less_since.get_or_insert(now);
        }
    }

    /// What this host tells the others.
    #[must_use]
    pub fn usage(&self) -> &Usage {
        &self.own
    }

    /// What the device of this host is to do until the next order.
    pub fn order(&mut self, now: Instant, period: Duration) -> Order {
        let whole_latency = self.settings.latency.as_nanos().max(1);
        let stated = whole_latency * FLOOR.0 / FLOOR.1;
        let floor = |scale: u128| u64::try_from(stated * scale.max(SCALE) / SCALE).unwrap_or(u64::MAX);
        if self.is_cut_off(now, period) {
            let window = self.aim.outstanding() / u64::from(self.hosts());
            self.division.parts.clear();
            // By Little's law a VM needs that much more in flight as requests take longer than they should.
            let scale =
                u128::from(self.own.latency) * SCALE * u128::from(ABOVE) / u128::from(ABOVE + 1) / whole_latency;
            return Order { window, floor_nanos: floor(scale.min(2 * SCALE)), prices: self.prices };
        }
        let others: Vec<Usage> = self.fresh(now, period).map(|(_, usage)| usage.clone()).collect();
        let whole = |own: Curve| [own].into_iter().chain(others.iter().map(|usage| usage.dues)).collect::<Vec<_>>();
        self.division = divide(&self.prices, &whole(self.own.dues));
        // Others have not read yet why our part grows.
        let known = divide(&self.prices, &whole(self.known_dues)).parts[0];
        self.division.parts[0] = self.division.parts[0].min(known);
        let scale = |latency: u64| match self.latency {
            Some(mean) if latency > 0 => ((u128::from(latency) * SCALE) / u128::from(mean)).clamp(SCALE / 2, 2 * SCALE),
            _ => SCALE,
        };
        // What no host asks for is divided equally, so that a host whose VMs begin has something in flight before the others know.
        let spare = self.prices.capacity().saturating_sub(self.division.parts.iter().sum()) / (1 + others.len() as u64);
        let scales = [self.own.latency].into_iter().chain(others.iter().map(|usage| usage.latency)).map(scale);
        let parts = self.division.parts.iter().map(|part| u128::from(part + spare));
        let (sum, own) = parts
            .zip(scales)
            .map(|(part, scale)| part * scale)
            .fold((0, None), |(sum, own), part| (sum + part, own.or(Some(part))));
        let window = u128::from(self.own.window) * own.unwrap_or(0) / sum.max(1);
        Order { window: window as u64, floor_nanos: floor(scale(self.own.latency)), prices: self.prices }
    }

    /// Whether this host does without the views of others: it has not read for some periods, or shares its number.
    #[must_use]
    pub fn is_cut_off(&self, now: Instant, period: Duration) -> bool {
        let long = (FRESH * period).as_nanos() as u64;
        let is_recent = |at: Option<Instant>| at.is_some_and(|at| now.nanos_since(at) <= long);
        !is_recent(self.read) || self.is_unwritten || self.is_disputed(now, period)
    }

    /// Whether another daemon has our number.
    #[must_use]
    pub fn is_disputed(&self, now: Instant, period: Duration) -> bool {
        self.disputed.is_some_and(|at| now.nanos_since(at) <= (FRESH * period).as_nanos() as u64)
    }

    /// Returns its state.
    #[must_use]
    pub fn state(&self, now: Instant, period: Duration) -> State {
        let fresh: Vec<Host> = self.fresh(now, period).map(|(host, _)| host).collect();
        let parts = &self.division.parts;
        let own = Seen {
            host: self.settings.host,
            age: Duration::ZERO,
            is_fresh: !self.is_cut_off(now, period),
            part: parts.first().copied().unwrap_or(0),
            latency: self.own.latency,
            rate: self.own.cost,
        };
        let others = (1..=self.hosts()).filter_map(|host| {
            let view = &self.views[usize::from(host) - 1];
            let usage = view.usage.as_ref().filter(|_| host != self.settings.host)?;
            let place = fresh.iter().position(|fresh| *fresh == host);
            Some(Seen {
                host,
                age: now.since(view.at),
                is_fresh: place.is_some(),
                part: place.and_then(|place| parts.get(place + 1)).copied().unwrap_or(0),
                latency: usage.latency,
                rate: usage.cost,
            })
        });
        let mut hosts: Vec<Seen> = others.chain([own]).collect();
        hosts.sort_by_key(|seen| seen.host);
        State {
            price: self.division.price,
            window: self.own.window,
            latency: self.latency,
            rate: self.rate,
            last_host: self.hosts(),
            hosts,
            troubles: self.troubles(now, period),
            requests: 0,
            reserved: 0,
            unclaimed: None,
        }
    }

    /// Returns what keeps hosts from sharing the pool.
    #[must_use]
    pub fn troubles(&self, now: Instant, period: Duration) -> Vec<Trouble> {
        let mut troubles: Vec<Trouble> = self.header_trouble.into_iter().collect();
        if self.is_disputed(now, period) {
            troubles.push(Trouble::SameNumber);
        } else if troubles.is_empty() && self.is_cut_off(now, period) {
            troubles.push(Trouble::Away);
        }
        let views = self.views.iter().take(self.hosts().into());
        let unreadable = (1..).zip(views).filter_map(|(host, view)| Some(Trouble::Block(host, view.unreadable?)));
        troubles.extend(unreadable);
        troubles.extend(self.unreadable[1].iter().map(|(host, reason)| Trouble::Block(*host, *reason)));
        if let Some(header) = &self.header
            && (Some(header.milli_iops), header.request_bytes)
                != (self.settings.capacity.iops.map(Iops::milli), self.settings.request_bytes)
        {
            troubles.push(Trouble::Capacity(header.milli_iops, header.request_bytes));
        }
        if let Some(own) = self.too_low.own_time() {
            troubles.push(Trouble::TooLow(own));
        } else if self.less_since.is_some_and(|since| now.since(since) >= LESS_AFTER) {
            troubles.push(Trouble::GivesLess(self.rate));
        }
        troubles
    }
}

/// Returns the time between two periods of a pool with this number of hosts.
fn usual_period(hosts: u8) -> Duration {
    if hosts >= MANY_HOSTS { 2 * PERIOD } else { PERIOD }
}

/// Returns the rate of the requests by which `count` of the `hosts` of a pool meet, in raw cost per second. `requests`: of each in a period.
#[must_use]
pub fn meeting_rate(hosts: u8, count: u8, requests: u64) -> u64 {
    let period = usual_period(hosts).as_millis() as u64;
    u64::from(count) * requests * u64::from(Cost::ONE.raw()) * 1000 / period
}

/// Raw cost as normalised requests, for people.
#[must_use]
pub fn requests(raw: u64) -> f64 {
    raw as f64 / f64::from(Cost::ONE.raw())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_whose_writes_fail_is_cut_off() {
        let now = Instant::from_millis(1000);
        let capacity = Capacity { iops: Some(Iops::per_second(1000)), bytes: None };
        let settings = Settings { host: 1, capacity, request_bytes: 8192, latency: Duration::from_millis(8) };
        let header = Header { pool: 7, hosts: 2, milli_iops: 1_000_000, request_bytes: 8192 };
        let mut blocks = block::encode(&header).to_vec();
        blocks.resize(3 * block::SIZE, 0);
        let mut exchange = Exchange::new(now, settings, 1);
        exchange.read(now, &blocks, PERIOD);
        assert!(!exchange.is_cut_off(now, PERIOD) && exchange.troubles(now, PERIOD).is_empty());
        exchange.wrote(false);
        assert!(exchange.is_cut_off(now, PERIOD));
        assert_eq!(exchange.troubles(now, PERIOD), [Trouble::Away]);
        exchange.wrote(true);
        assert!(!exchange.is_cut_off(now, PERIOD));
    }

    #[test]
    fn a_claim_that_was_read_while_it_was_written_is_no_trouble() {
        let now = Instant::from_millis(1000);
        let settings = Settings { host: 1, capacity: Capacity::default(), request_bytes: 8192, latency: PERIOD };
        let mut exchange = Exchange::new(now, settings, 1);
        let torn = |host| (host, Unreadable::Torn);
        let told = |exchange: &Exchange| {
            let troubles = exchange.troubles(now, PERIOD);
            troubles.into_iter().filter(|trouble| matches!(trouble, Trouble::Block(..))).collect::<Vec<_>>()
        };
        exchange.note_claims(vec![torn(2)]);
        exchange.note_claims(vec![torn(3)]);
        assert_eq!(told(&exchange), []);
        exchange.note_claims(vec![torn(3)]);
        assert_eq!(told(&exchange), [Trouble::Block(3, Unreadable::Torn)]);
    }
}
