//! A pool over time: what all of its hosts do, and what keeps them from sharing it as it is stated.
//!
//! Each trouble is an event of its own, with a begin and an end. It begins when two samples in a row show it, so that a block that was read
//! while it was written, or the first moment of a daemon, is none. A host vanishes only if it was seen to write since the daemon started.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use sluice_api::amount::span;
use sluice_api::cause::Cause;
use sluice_api::event::{EventKind, Unit};
use sluice_api::shell;
use sluice_api::status::{DevicePool, PoolHost};
use sluice_pool::block::{Host, Unreadable};
use sluice_pool::exchange::{Seen, State, Trouble, requests};
use sluice_sched::admission::Capacity;
use sluice_sched::{Bytes, Iops};

use crate::judge::{Shortfall, Watch};
use crate::now::{About, Now, Subject};
use crate::sample::{DeviceSample, PoolSample};
use crate::status::rounded;

/// Age of a view from which on its host has vanished: a daemon that is restarted has not.
const VANISHED: Duration = Duration::from_secs(5);
/// Samples in a row that must show a trouble.
const CONFIRMED: u32 = 2;

/// A pool at one sample.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shared<'a> {
    stated: &'a PoolSample,
    state: &'a Arc<State>,
    capacity: &'a Capacity,
}

impl<'a> Shared<'a> {
    /// Returns the pool that a device is a part of; `None` if it is in none, or its exchange with other hosts has not begun.
    pub(crate) fn of(sample: &'a DeviceSample) -> Option<Shared<'a>> {
        let window = sample.window.as_ref()?;
        let (stated, state) = (sample.pool.as_ref()?, window.pool.as_ref()?);
        Some(Shared { stated, state, capacity: &sample.capacity })
    }

    fn own(&self) -> Option<&Seen> {
        self.state.hosts.iter().find(|seen| seen.host == self.stated.host)
    }

    /// Whether this host has fresh views of the others.
    fn knows_others(&self) -> bool {
        self.own().is_some_and(|own| own.is_fresh)
    }

    /// Normalised requests per second that all hosts complete; `None` without fresh views of them.
    pub(crate) fn iops(&self) -> Option<f64> {
        self.knows_others().then(|| requests(self.state.rate))
    }

    /// Whether the hosts have found that the storage gives less than its capacity.
    pub(crate) fn gives_less(&self) -> bool {
        self.state.troubles.iter().any(|trouble| matches!(trouble, Trouble::GivesLess(_)))
    }

    /// Part of what all hosts complete that others complete, 0 to 1; `None` without fresh views of them.
    pub(crate) fn part_of_others(&self) -> Option<f64> {
        let (own, all) = (self.own().filter(|own| own.is_fresh)?, self.state.rate);
        Some(if all == 0 { 0.0 } else { 1.0 - own.rate as f64 / all as f64 })
    }

    /// The pool as replies have it, without its troubles.
    fn described(&self) -> DevicePool {
        let State { window, latency, hosts, .. } = self.state.as_ref();
        let known = |raw: f64| self.knows_others().then(|| rounded(raw));
        DevicePool {
            meeting: self.stated.meeting.clone(),
            host: self.stated.host,
            price_iops: known(self.state.price * requests(1)),
            window_requests: rounded(requests(*window)),
            latency_us: latency.map(|nanos| nanos / 1000),
            iops: known(requests(self.state.rate)),
            reserved_iops: rounded(requests(self.state.reserved)),
            part_iops: self.own().and_then(|own| known(requests(own.part))),
            hosts: hosts.iter().map(described).collect(),
            troubles: Vec::new(),
        }
    }

    /// The facts behind [`Cause::Pool`], in words.
    pub(crate) fn cause_in_words(&self) -> Option<String> {
        match self.knows_others() {
            true => self.described().busiest_in_words(),
            false => Some("this host does not see the others, so its VMs get the part of one host".to_owned()),
        }
    }
}

fn described(seen: &Seen) -> PoolHost {
    PoolHost {
        host: seen.host,
        age_ms: u64::try_from(seen.age.as_millis()).unwrap_or(u64::MAX),
        is_fresh: seen.is_fresh,
        part_iops: rounded(requests(seen.part)),
        iops: rounded(requests(seen.rate)),
        latency_us: (seen.latency > 0).then_some(seen.latency / 1000),
    }
}

/// What may be wrong in a pool, in the order in which it is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Matter {
    Away,
    Header,
    OtherPool,
    NoBlock,
    SameNumber,
    Capacity,
    Unclaimed,
    /// A host that was seen to take part does so no more.
    Vanished(Host),
    Unreadable(Host),
}

impl Matter {
    /// Whether nothing is known of it without fresh views.
    fn is_of_another_host(self) -> bool {
        matches!(self, Matter::Vanished(_) | Matter::Unreadable(_))
    }
}

/// Something that is wrong at one sample.
struct Found {
    matter: Matter,
    shortfall: Shortfall,
    /// A sentence without its full stop.
    text: String,
}

impl Found {
    fn new(matter: Matter, text: String) -> Found {
        Found { matter, shortfall: Shortfall { wanted: 1.0, got: 0.0, unit: Unit::Requests }, text }
    }
}

impl Shared<'_> {
    /// What `trouble` is about; `None` for those that are events of other kinds: what the storage gives, and how long it takes for one request.
    fn found(&self, trouble: &Trouble) -> Option<Found> {
        let path = self.stated.meeting.clone();
        let (host, status) = (self.stated.host, shell::command(["sluice", "pool", "status", &path]));
        Some(match *trouble {
            Trouble::Away => Found::new(
                Matter::Away,
                format!(
                    "{path}, where its hosts meet, cannot be read and written, so this host gives its VMs the part of one host; look at that \
                     storage and the daemon's log"
                ),
            ),
            Trouble::Header(reason) => {
                Found::new(Matter::Header, format!("the header at {path} {reason}; look at it with `{status}`"))
            }
            Trouble::OtherPool => Found::new(
                Matter::OtherPool,
                format!(
                    "{path} has another pool than before; state the right `meeting`, or restart the daemon if it is the right one"
                ),
            ),
            Trouble::NoBlock(hosts) => Found::new(
                Matter::NoBlock,
                format!(
                    "this host has number {host}, and the pool at {path} has {hosts} hosts; state another `host`, or give the pool more hosts \
                     with `sluice pool create --keep`"
                ),
            ),
            Trouble::SameNumber => Found::new(
                Matter::SameNumber,
                format!(
                    "another daemon has number {host} too, so neither sees the others; give each host a `host` of its own"
                ),
            ),
            Trouble::Block(other, reason) => Found::new(Matter::Unreadable(other), self.of_block(other, reason)),
            Trouble::Capacity(milli, request_bytes) => self.of_capacity(milli, request_bytes),
            Trouble::GivesLess(_) | Trouble::TooLow(_) => return None,
        })
    }

    fn of_block(&self, other: Host, reason: Unreadable) -> String {
        let remedy = match reason {
            Unreadable::Version(_) => "run the same version on all hosts".to_owned(),
            _ => format!("if it stays so, stop the daemon of that host, and {}", self.forget(other)),
        };
        format!("the block of host {other} at {} {reason}; {remedy}", self.stated.meeting)
    }

    fn forget(&self, other: Host) -> String {
        let path = self.stated.meeting.clone();
        let command = shell::command(["sluice", "pool", "forget", &path, "--host", &other.to_string()]);
        format!("forget it with `{command}`")
    }

    fn of_capacity(&self, milli: u64, request_bytes: u64) -> Found {
        let in_words = |iops: Iops, bytes: u64| format!("{iops}@{}", Bytes(bytes));
        let header = Iops::from_milli(milli.max(1));
        let own = self.capacity.iops.unwrap_or(header);
        let stated = in_words(own, self.stated.request_bytes);
        let path = self.stated.meeting.clone();
        let hosts = self.state.last_host.to_string();
        let command = ["sluice", "pool", "create", &path, "--hosts", &hosts, "--capacity", &stated, "--keep"];
        let command = shell::command(command);
        let text = format!(
            "the host file states a capacity of {stated}, and the pool has {}; the smaller one holds. State that of the pool, or change it with \
             `{command}`",
            in_words(header, request_bytes)
        );
        let shortfall = Shortfall { wanted: header.as_f64(), got: own.as_f64(), unit: Unit::Iops };
        Found { matter: Matter::Capacity, shortfall, text }
    }

    fn of_vanished(&self, other: Host) -> Found {
        let path = &self.stated.meeting;
        let text = format!(
            "host {other} has vanished: it does not write to {path} any more, and the other hosts share its part; look at its daemon, or, if it \
             is gone for good, {}",
            self.forget(other)
        );
        Found::new(Matter::Vanished(other), text)
    }
}

/// The troubles of a pool over time.
#[derive(Debug, Default)]
pub(crate) struct PoolTrack {
    /// Other hosts that were seen to take part.
    seen: BTreeSet<Host>,
    /// What the last sample showed, and the number of samples in a row that did.
    shown: BTreeMap<Matter, u32>,
    watches: BTreeMap<Matter, Watch<About>>,
}

/// The device itself, as the subject of an event.
const SUBJECT: Subject<'static> = Subject { kind: EventKind::Pool, vm: None, volume: None };

impl PoolTrack {
    /// Looks for what is wrong.
    pub(crate) fn judge(&mut self, now: &mut Now<'_>, sample: &DeviceSample) {
        if sample.pool.is_none() {
            self.end(now);
            return;
        }
        // Until the device has its first order, nothing is known.
        let Some(shared) = Shared::of(sample) else { return };
        let is_blind = !shared.knows_others();
        let others = shared.state.hosts.iter().filter(|seen| seen.is_fresh && seen.host != shared.stated.host);
        self.seen.extend(others.map(|seen| seen.host));
        let mut found = self.confirmed(self.found(shared));
        let known: BTreeSet<Matter> = found.keys().chain(self.watches.keys()).copied().collect();
        for matter in known.into_iter().filter(|matter| !(is_blind && matter.is_of_another_host())) {
            let watch = self.watches.entry(matter).or_default();
            let (shortfall, text) = found.remove(&matter).map(|found| (found.shortfall, found.text)).unzip();
            now.judge(SUBJECT, watch, shortfall, || About::new(Cause::Pool, Vec::new()).with(text));
        }
        self.watches.retain(|_, watch| watch.broken().is_some());
    }

    fn found(&self, shared: Shared<'_>) -> Vec<Found> {
        let mut found: Vec<Found> = shared.state.troubles.iter().filter_map(|trouble| shared.found(trouble)).collect();
        found.extend(shared.state.unclaimed.as_ref().map(|why| {
            let text =
                format!("its VMs reserve more than this host has claimed, so other hosts may promise that too: {why}");
            Found::new(Matter::Unclaimed, text)
        }));
        // A block that cannot be read says why.
        let is_unreadable = |host: Host| found.iter().any(|found| found.matter == Matter::Unreadable(host));
        let is_old = |seen: &&Seen| !seen.is_fresh && seen.age >= VANISHED && self.seen.contains(&seen.host);
        let vanished =
            shared.state.hosts.iter().filter(is_old).map(|seen| seen.host).filter(|host| !is_unreadable(*host));
        let vanished: Vec<Found> = vanished.map(|host| shared.of_vanished(host)).collect();
        found.extend(vanished);
        found
    }

    /// Counts what was found, and returns what was found often enough.
    fn confirmed(&mut self, found: Vec<Found>) -> BTreeMap<Matter, Found> {
        let before = std::mem::take(&mut self.shown);
        let count = |matter| before.get(matter).copied().unwrap_or(0) + 1;
        self.shown = found.iter().map(|found| (found.matter, count(&found.matter))).collect();
        let is_sure = |found: &Found| self.shown[&found.matter] >= CONFIRMED;
        found.into_iter().filter(is_sure).map(|found| (found.matter, found)).collect()
    }

    /// Ends what is wrong, because the device is gone or in no pool any more.
    pub(crate) fn end(&mut self, now: &mut Now<'_>) {
        self.watches.values_mut().for_each(|watch| now.end(SUBJECT, watch));
        *self = PoolTrack::default();
    }

    /// The number of troubles.
    pub(crate) fn count(&self) -> usize {
        self.watches.len()
    }

    fn texts(&self) -> impl Iterator<Item = (u64, &str)> {
        let broken = self.watches.values().filter_map(Watch::broken);
        broken.map(|broken| (broken.since, broken.about.detail.as_deref().unwrap_or_default()))
    }

    /// What is wrong, as the predicates of sentences.
    pub(crate) fn problems(&self, second: u64) -> impl Iterator<Item = String> {
        self.texts()
            .map(move |(since, text)| format!("has a problem in its pool for {}: {text}", span(second + 1 - since)))
    }

    /// The pool as replies have it.
    pub(crate) fn status(&self, sample: &DeviceSample) -> Option<DevicePool> {
        let troubles = self.texts().map(|(_, text)| text.to_owned()).collect();
        Some(DevicePool { troubles, ..Shared::of(sample)?.described() })
    }
}
