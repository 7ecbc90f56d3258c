//! Both ends of dmClock's counts: what a client tells of the service of a VM at each server, and what a server makes of it.
//!
//! A VM whose volumes lie on several storage servers has one reservation, one limit and one weight, but each server
//! sees only its own requests. The client counts completions by server and phase, which the reply contains ([`Tracker`]). Each
//! request tells sums of what other servers have completed: in total, and in the reservation phase. A server keeps what it has heard
//! ([`Heard`]), and what a request tells beyond that advances the VM's tags: \[mclock\]'s `delta` and `rho`. Servers do not communicate.
//!
//! Sums only grow. So a request that is lost, repeated or out of order does no harm: what it told is in the next one. A server takes the
//! first sums that it hears for what was before it.
//!
//! Example: a VM writes alternately to servers 1 and 2, 100 requests per second to each, with a limit of 100 IOPS. Each
//! request to server 1 has a `delta` of 1, so server 1 spaces the requests by 20 ms instead of 10 ms. Server 2 does
//! the same, and the VM gets 100 IOPS in total.
//!
//! The sum at the time when the VM last had no request outstanding at any server is told too, from which `recent` follows: the part of
//! `delta` after that. A VM that has requests queued elsewhere may lag here by as much. A VM that was silent is owed nothing for that
//! time, as on a single server. Example: 256 requests are queued at each of servers 1 and 2 when a VM falls silent. Its next
//! request, a minute later, has a `delta` of 256 and a `recent` of 0.
//!
//! A [`Tracker`] belongs to one VM at its client, a [`Heard`] to that VM at a server, for as long as the client counts. With one server all
//! counts are 0 in product form, so the gate decides as without dmClock.
//!
//! Cost: O(log servers). Every [`SERVER_FORGOTTEN`] one call visits all servers.
//!
//! Bounds: a server that got no request for [`SERVER_FORGOTTEN`] is not counted, and has then forgotten what it heard. A count misses at
//! most the requests in flight.
//!
//! Source: \[mclock\] 3.2 (dmClock).

use core::time::Duration;
use std::collections::BTreeMap;

use crate::cost::Cost;
use crate::gate::{Finished, RemoteService, Service};
use crate::time::Instant;

/// Time without a request after which a client does not count a server, and a server forgets what it heard.
// rule: mclock.forget
pub const SERVER_FORGOTTEN: Duration = Duration::from_secs(600);
/// Time without a request after which a server considers a client idle.
pub const CLIENT_IDLE: Duration = Duration::from_secs(300);

/// Unit of the counts; must match the mode of the servers' mClock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Form {
    /// Completions at other servers, by cost and bytes. The server adds the request's own cost.
    #[default]
    Product,
    /// Number of requests that completed at all servers, as published. The server multiplies it by the request's cost.
    Paper,
}

/// Sums of completions: costs in 1/65,536 of a normalised request, and bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sums {
    pub all: u64,
    /// Of `all`, what was served to meet reservations.
    pub reserved: u64,
    pub all_bytes: u64,
    pub reserved_bytes: u64,
}

impl Sums {
    fn of(service: Service, reserved: Service) -> Sums {
        Sums {
            all: service.cost.raw().into(),
            reserved: reserved.cost.raw().into(),
            all_bytes: service.bytes,
            reserved_bytes: reserved.bytes,
        }
    }

    fn zip(self, other: Sums, operation: impl Fn(u64, u64) -> u64) -> Sums {
        Sums {
            all: operation(self.all, other.all),
            reserved: operation(self.reserved, other.reserved),
            all_bytes: operation(self.all_bytes, other.all_bytes),
            reserved_bytes: operation(self.reserved_bytes, other.reserved_bytes),
        }
    }

    fn plus(self, other: Sums) -> Sums {
        self.zip(other, u64::saturating_add)
    }

    fn beyond(self, other: Sums) -> Sums {
        self.zip(other, u64::saturating_sub)
    }

    /// Whether no storage completes as much in this time: 10 million requests or 1 TB per second, or as much at once.
    fn is_impossible(self, time: Duration) -> bool {
        let seconds = time.as_secs().saturating_add(1);
        let requests = 10_000_000_u64.saturating_mul(seconds);
        self.all > requests << Cost::SHIFT || self.all_bytes > 1_000_000_000_000_u64.saturating_mul(seconds)
    }
}

/// What a client tells a server with a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Told {
    /// In product form what other servers have completed, in paper form what all have.
    pub sums: Sums,
    /// `sums.all` when no request was outstanding at any server.
    pub at_idle: u64,
    /// Number of servers that the client uses, this one included.
    pub servers: u32,
    /// Requests outstanding at the other servers.
    pub outstanding: u32,
    /// The number of the request among those of the VM: of two the higher was told later.
    pub sequence: u64,
}

#[derive(Debug, Clone, Copy)]
struct Server {
    /// Time of the last request to the server.
    asked: Instant,
    /// Whether it is among those that the client uses.
    is_used: bool,
    /// Requests to it that have not ended.
    outstanding: u64,
    /// Completed at this server.
    own: Sums,
    /// `own.all` when no request was outstanding anywhere, at the idle moment of this number.
    at_idle: (u64, u64),
}

/// Service of one VM by server, as its client counts it.
#[derive(Debug, Default)]
pub struct Tracker {
    form: Form,
    total: Sums,
    /// Requests that were sent and have not ended.
    outstanding: u64,
    /// The number of moments without such requests, and the cost of all that had completed at the last one.
    idle: (u64, u64),
    servers: BTreeMap<u32, Server>,
    /// Number of servers in use.
    used: u32,
    /// Number of requests so far.
    sequence: u64,
    /// When servers were last looked through.
    swept: Instant,
}

impl Tracker {
    /// A tracker without servers and counts.
    #[must_use]
    pub fn new(form: Form) -> Tracker {
        Tracker { form, ..Tracker::default() }
    }

    /// Returns what a request to `server` tells.
    // rule: mclock.client-counts, mclock.product-counts, mclock.paper-counts
    pub fn ask(&mut self, now: Instant, server: u32) -> Told {
        if now.since(self.swept) >= SERVER_FORGOTTEN {
            self.sweep(now);
        }
        let new =
            Server { asked: now, is_used: false, outstanding: 0, own: Sums::default(), at_idle: (self.idle.0, 0) };
        let known = self.servers.entry(server).or_insert(new);
        self.used += u32::from(!known.is_used);
        (known.asked, known.is_used) = (now, true);
        let outstanding = self.outstanding - known.outstanding;
        known.outstanding += 1;
        self.outstanding += 1;
        let (sums, at_idle) = match self.form {
            Form::Product => (self.total.beyond(known.own), self.idle.1 - known.own_at_idle(self.idle.0)),
            Form::Paper => (self.total, self.idle.1),
        };
        self.sequence += 1;
        let (servers, outstanding, sequence) = (self.used, count(outstanding), self.sequence);
        Told { sums, at_idle, servers, outstanding, sequence }
    }

    /// Notes that a server completed a request, with `finished` as the reply. In paper form requests are counted, each
    /// in the phase of its last part.
    // rule: mclock.client-counts, mclock.reply-phase
    pub fn completed(&mut self, server: u32, finished: &Finished) {
        let served = match self.form {
            Form::Product => Sums::of(finished.service, finished.reserved),
            Form::Paper => {
                let service = Service { cost: Cost::ONE, ..finished.service };
                Sums::of(service, service.if_reserved(finished.phase))
            }
        };
        self.total = self.total.plus(served);
        if let Some(known) = self.servers.get_mut(&server) {
            known.at_idle = (self.idle.0, known.own_at_idle(self.idle.0));
            known.own = known.own.plus(served);
        }
        self.ended(server);
    }

    /// Notes that a request to a server is no longer outstanding: it was rejected, cancelled or lost with its server.
    /// [`Tracker::completed`] includes it.
    // rule: mclock.share-floor
    pub fn ended(&mut self, server: u32) {
        if let Some(known) = self.servers.get_mut(&server).filter(|known| known.outstanding > 0) {
            known.outstanding -= 1;
            self.outstanding -= 1;
        }
        if self.outstanding == 0 {
            self.idle = (self.idle.0 + 1, self.total.all);
        }
    }

    /// Stops counting servers without a request for [`SERVER_FORGOTTEN`]. What they have completed stays known, because it is no service
    /// elsewhere for them. O(servers).
    // rule: mclock.forget
    fn sweep(&mut self, now: Instant) {
        self.swept = now;
        for known in self.servers.values_mut() {
            known.is_used &= now.since(known.asked) < SERVER_FORGOTTEN;
        }
        self.used = count(self.servers.values().filter(|known| known.is_used).count() as u64);
    }
}

impl Server {
    /// What it had completed at the last idle moment, which has this number.
    fn own_at_idle(&self, number: u64) -> u64 {
        if self.at_idle.0 == number { self.at_idle.1 } else { self.own.all }
    }
}

/// A count of a report, at most the largest that it holds.
fn count(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// What a server has heard of a VM from one client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Heard {
    form: Form,
    last: Option<Last>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Last {
    /// Time of the last request.
    at: Instant,
    /// What the VM's tags have been advanced by.
    sums: Sums,
    /// What was told last, with its number.
    sequence: u64,
    servers: u32,
    outstanding: u32,
}

impl Heard {
    /// Nothing yet.
    #[must_use]
    pub fn new(form: Form) -> Heard {
        Heard { form, last: None }
    }

    /// Returns what a request tells that was not known, and what has been heard with it, if the request is accepted. Parts of a normalised
    /// request are left for later. Sums that cannot be count nothing, and are taken for what was before: the client lies, or was lied to. The
    /// first request, also after [`SERVER_FORGOTTEN`], counts 1 and 1 in paper form and nothing in product
    /// form.
    // rule: mclock.client-counts, mclock.first-request, mclock.forget
    #[must_use]
    pub fn hear(&self, now: Instant, told: &Told) -> (RemoteService, Heard) {
        let Told { sums, at_idle, servers, outstanding, sequence } = *told;
        let told = Last { at: now, sums, sequence, servers, outstanding };
        let Some(last) = self.last.filter(|last| now.since(last.at) < SERVER_FORGOTTEN) else {
            let first = u32::from(self.form == Form::Paper);
            let remote = RemoteService { rho: first, delta: first, servers, outstanding, ..RemoteService::default() };
            return (remote, Heard { last: Some(told), ..*self });
        };
        let before = last.sums;
        // A request that was sent earlier may come later, over another connection.
        let Last { sequence, servers, outstanding, .. } = if sequence >= last.sequence { told } else { last };
        let new = sums.beyond(before);
        if new.is_impossible(now.since(last.at)) {
            return (
                RemoteService { servers, outstanding, ..RemoteService::default() },
                Heard { last: Some(Last { sums, ..told }), ..*self },
            );
        }
        let whole = |cost: u64| count(cost >> Cost::SHIFT);
        let delta = whole(new.all);
        let remote = RemoteService {
            rho: whole(new.reserved).min(delta),
            delta,
            recent: whole(sums.all.saturating_sub(at_idle.max(before.all))).min(delta),
            rho_bytes: new.reserved_bytes.min(new.all_bytes),
            delta_bytes: new.all_bytes,
            servers,
            outstanding,
        };
        let counted = Sums {
            all: u64::from(delta) << Cost::SHIFT,
            reserved: u64::from(remote.rho) << Cost::SHIFT,
            all_bytes: remote.delta_bytes,
            reserved_bytes: remote.rho_bytes,
        };
        (
            remote,
            Heard { last: Some(Last { at: now, sums: before.plus(counted), sequence, servers, outstanding }), ..*self },
        )
    }
}

/// The client of one VM and what each server has heard from it, where all are in one process: in simulations.
#[derive(Debug, Default)]
pub struct Tracked {
    pub client: Tracker,
    heard: BTreeMap<u32, Heard>,
}

impl Tracked {
    #[must_use]
    pub fn new(form: Form) -> Tracked {
        Tracked { client: Tracker::new(form), heard: BTreeMap::new() }
    }

    /// Returns what a request to `server` tells it, and what it has heard if it accepts the request.
    pub fn ask(&mut self, now: Instant, server: u32) -> (RemoteService, Heard) {
        let told = self.client.ask(now, server);
        self.heard.get(&server).copied().unwrap_or(Heard::new(self.client.form)).hear(now, &told)
    }

    /// Notes that a server has accepted a request, or rejected it: then it has heard nothing.
    pub fn answer(&mut self, server: u32, heard: Heard, is_accepted: bool) {
        match is_accepted {
            true => drop(self.heard.insert(server, heard)),
            false => self.client.ended(server),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::gate::Outcome;
    use crate::request::Phase;

    fn reply(phase: Phase, cost: Cost, bytes: u64) -> Finished {
        let service = Service { cost, bytes };
        let reserved = service.if_reserved(phase);
        Finished { token: 0, outcome: Outcome::Done, phase, dispatched: Instant::ZERO, service, reserved }
    }

    fn secs(secs: u64) -> Instant {
        Instant::from_millis(secs * 1000)
    }

    fn remote_at(tracked: &mut Tracked, now: Instant, server: u32) -> RemoteService {
        let (remote, heard) = tracked.ask(now, server);
        tracked.answer(server, heard, true);
        remote
    }

    fn told(tracked: &mut Tracked, server: u32) -> (u32, u32) {
        let RemoteService { rho, delta, .. } = remote_at(tracked, secs(1), server);
        (rho, delta)
    }

    // rule: mclock.client-counts, mclock.first-request, mclock.paper-counts, mclock.product-counts, mclock.reply-phase
    #[test]
    fn a_request_reports_completions_since_the_last_request_to_the_server() {
        for (form, first) in [(Form::Product, (0, 0)), (Form::Paper, (1, 1))] {
            let mut tracker = Tracked::new(form);
            assert_eq!([1, 2, 3].map(|server| told(&mut tracker, server)), [first; 3], "{form:?}");
            for (server, phase) in [(1, Phase::Weight), (2, Phase::Reservation), (2, Phase::Weight), (1, Phase::Weight)]
            {
                tracker.client.completed(server, &reply(phase, Cost::ONE, 8192));
            }
            // Paper form: all four, one of them in the reservation phase. Product form: without those of the server
            // itself.
            let own = form == Form::Paper;
            assert_eq!(told(&mut tracker, 1), (1, if own { 4 } else { 2 }), "{form:?}");
            assert_eq!(told(&mut tracker, 1), (0, 0), "already reported");
            assert_eq!(told(&mut tracker, 2), if own { (1, 4) } else { (0, 2) }, "{form:?}");
            tracker.client.completed(1, &reply(Phase::Reservation, Cost::ONE, 8192));
            assert_eq!(told(&mut tracker, 3), (2, 5), "{form:?}: since its own last request");
        }
    }

    // rule: mclock.client-counts
    #[test]
    fn fractions_of_costs_are_reported_later() {
        let mut tracker = Tracked::new(Form::Product);
        told(&mut tracker, 1);
        let mut all = 0;
        for _ in 0..100 {
            tracker.client.completed(2, &reply(Phase::Weight, Cost::from_raw(Cost::ONE.raw() * 5 / 4), 8192));
            all += told(&mut tracker, 1).1;
        }
        assert_eq!(all, 125, "a hundred requests of cost 1.25");
        let mut tracker = Tracked::new(Form::Paper);
        told(&mut tracker, 1);
        (0..4).for_each(|_| tracker.client.completed(2, &reply(Phase::Weight, Cost::requests(9), 8192)));
        assert_eq!(told(&mut tracker, 1), (0, 4), "as published, requests");
    }

    // rule: mclock.client-counts
    #[test]
    fn rho_never_exceeds_delta() {
        let mut tracker = Tracked::new(Form::Product);
        told(&mut tracker, 1);
        // Parts of requests add up to a whole request in the reservation phase first.
        let eighths = |eighths: u32| Cost::from_raw(Cost::ONE.raw() / 8 * eighths);
        tracker.client.completed(2, &reply(Phase::Weight, eighths(5), 0));
        tracker.client.completed(2, &reply(Phase::Reservation, eighths(7), 0));
        assert_eq!(told(&mut tracker, 1), (0, 1));
        tracker.client.completed(2, &reply(Phase::Reservation, eighths(5), 0));
        assert_eq!(told(&mut tracker, 1), (1, 1));
        tracker.client.completed(2, &reply(Phase::Reservation, eighths(4), 0));
        assert_eq!(told(&mut tracker, 1), (0, 0), "one by reservation, but none in all yet");
        tracker.client.completed(2, &reply(Phase::Weight, eighths(3), 0));
        assert_eq!(told(&mut tracker, 1), (1, 1), "the rest is reported later");
    }

    // rule: mclock.client-counts
    #[test]
    fn remote_bytes_are_reported_as_bytes() {
        let mut tracker = Tracked::new(Form::Product);
        let first = remote_at(&mut tracker, secs(1), 1);
        assert_eq!((first.delta_bytes, first.servers), (0, 1));
        remote_at(&mut tracker, secs(1), 2);
        (0..16).for_each(|_| tracker.client.completed(2, &reply(Phase::Weight, Cost::ONE, 4096)));
        tracker.client.completed(1, &reply(Phase::Weight, Cost::requests(4), 1 << 20));
        tracker.client.completed(2, &reply(Phase::Reservation, Cost::from_raw(7), 512));
        let (remote, heard) = tracker.ask(secs(1), 1);
        let due = RemoteService {
            rho: 0,
            delta: 16,
            recent: 0,
            rho_bytes: 512,
            delta_bytes: 66_048,
            servers: 2,
            outstanding: 0,
        };
        assert_eq!(remote, due);
        tracker.answer(1, heard, false);
        assert_eq!(remote_at(&mut tracker, secs(1), 1), due, "a rejected request has told nothing");
        assert_eq!(remote_at(&mut tracker, secs(1), 1).delta_bytes, 0);
    }

    // rule: mclock.client-counts, mclock.first-request
    #[test]
    fn a_rejected_report_is_repeated() {
        for (form, first) in [(Form::Product, (0, 0)), (Form::Paper, (1, 1))] {
            let mut tracker = Tracked::new(form);
            let refused = |tracker: &mut Tracked| {
                let (told, heard) = tracker.ask(secs(1), 1);
                tracker.answer(1, heard, false);
                (told.rho, told.delta)
            };
            assert_eq!([refused(&mut tracker), refused(&mut tracker), told(&mut tracker, 1)], [first; 3], "{form:?}");
            told(&mut tracker, 2);
            for phase in [Phase::Reservation, Phase::Weight, Phase::Weight] {
                tracker.client.completed(2, &reply(phase, Cost::ONE, 8192));
            }
            assert_eq!([refused(&mut tracker), refused(&mut tracker)], [(1, 3); 2], "{form:?}");
            tracker.client.completed(2, &reply(Phase::Reservation, Cost::ONE, 8192));
            assert_eq!([told(&mut tracker, 1), told(&mut tracker, 1)], [(2, 4), (0, 0)], "{form:?}");
        }
    }

    // rule: mclock.share-floor
    #[test]
    fn what_completed_before_a_silence_was_reported_like_what_came_after_it() {
        let mut tracker = Tracked::new(Form::Product);
        let recent = |tracker: &mut Tracked, server: u32| {
            let RemoteService { delta, recent, .. } = remote_at(tracker, secs(1), server);
            (delta, recent)
        };
        (0..4).for_each(|number| _ = recent(&mut tracker, 1 + number % 2));
        [1, 1, 2]
            .iter()
            .for_each(|server| tracker.client.completed(*server, &reply(Phase::Weight, Cost::requests(5), 0)));
        assert_eq!(recent(&mut tracker, 2), (10, 10), "one is still outstanding at 2");
        (0..2).for_each(|_| tracker.client.completed(2, &reply(Phase::Weight, Cost::requests(3), 0)));
        assert_eq!(recent(&mut tracker, 1), (11, 0), "nothing was outstanding");
        assert_eq!(recent(&mut tracker, 2), (0, 0));
        tracker.client.completed(1, &reply(Phase::Weight, Cost::requests(7), 0));
        assert_eq!(recent(&mut tracker, 2), (7, 7));
        // One is cancelled, and a server refuses another one.
        tracker.client.ended(2);
        tracker.client.completed(2, &reply(Phase::Weight, Cost::requests(2), 0));
        let (_, heard) = tracker.ask(secs(1), 1);
        tracker.answer(1, heard, false);
        assert_eq!(recent(&mut tracker, 1), (2, 0));
    }

    // rule: mclock.forget, mclock.first-request
    #[test]
    fn a_server_without_requests_is_not_counted_and_forgets_what_it_heard() {
        for (form, own) in [(Form::Product, 0), (Form::Paper, 1)] {
            let mut tracker = Tracked::new(form);
            let asked = |tracker: &mut Tracked, at: u64, server: u32| {
                let RemoteService { delta, servers, .. } = remote_at(tracker, secs(at), server);
                (delta, servers)
            };
            assert_eq!([asked(&mut tracker, 0, 1), asked(&mut tracker, 599, 2)], [(own, 1), (own, 2)]);
            (0..2).for_each(|_| tracker.client.completed(2, &reply(Phase::Weight, Cost::ONE, 8192)));
            tracker.client.completed(1, &reply(Phase::Weight, Cost::ONE, 8192));
            assert_eq!(asked(&mut tracker, 600, 1), (own, 2), "as if it had heard nothing before");
            assert_eq!(asked(&mut tracker, 601, 2), if own == 0 { (1, 2) } else { (3, 2) });
            assert_eq!(asked(&mut tracker, 1900, 2), (own, 1), "server 1 was not asked for 600 s");
            // What a server has completed itself stays no service elsewhere.
            assert_eq!(asked(&mut tracker, 1901, 1), (own, 2));
            tracker.client.completed(2, &reply(Phase::Weight, Cost::ONE, 8192));
            assert_eq!(asked(&mut tracker, 1902, 1), (1, 2));
        }
    }

    proptest! {
        /// What a server has advanced the tags by is what the client has counted, whatever became of the requests between.
        // rule: mclock.client-counts
        #[test]
        fn lost_repeated_and_reordered_sums_heal(
            steps in prop::collection::vec((0u32..3, 0u32..400, any::<bool>(), any::<bool>(), 0usize..4), 1..60),
        ) {
            let (mut client, mut heard) = (Tracker::new(Form::Product), Heard::default());
            let (first, mut kept) = (client.ask(secs(0), 1), Vec::new());
            heard = heard.hear(secs(0), &first).1;
            let (mut delta, mut rho, mut bytes) = (0u64, 0u64, 0u64);
            let mut hear = |heard: &mut Heard, told: &Told| {
                let (remote, next) = heard.hear(secs(1), told);
                *heard = next;
                assert!(remote.rho <= remote.delta && remote.recent <= remote.delta);
                (delta, rho, bytes) =
                    (delta + u64::from(remote.delta), rho + u64::from(remote.rho), bytes + remote.delta_bytes);
                (delta, rho, bytes)
            };
            for (server, raw, is_reserved, is_lost, again) in steps {
                let phase = if is_reserved { Phase::Reservation } else { Phase::Weight };
                client.completed(server, &reply(phase, Cost::from_raw(raw << 10), 4096));
                let told = client.ask(secs(1), 1);
                kept.push(told);
                if !is_lost {
                    hear(&mut heard, &told);
                }
                if let Some(old) = kept.len().checked_sub(1 + again) {
                    hear(&mut heard, &kept[old]);
                }
            }
            let last = client.ask(secs(1), 1).sums;
            let (delta, rho, bytes) = hear(&mut heard, &Told { sums: last, ..Told::default() });
            prop_assert_eq!((delta, bytes), (last.all >> Cost::SHIFT, last.all_bytes));
            prop_assert!(rho <= last.reserved >> Cost::SHIFT && delta >= rho);
        }
    }

    /// Numbers that no honest client tells change nothing but that VM's own tags, and never run backwards.
    #[test]
    fn a_server_survives_any_numbers() {
        let mut heard = Heard::default();
        let most = Sums { all: u64::MAX, reserved: u64::MAX, all_bytes: u64::MAX, reserved_bytes: u64::MAX };
        for sums in [Sums::default(), most, Sums::default(), Sums { all: 1, ..most }, most] {
            let told = Told { sums, at_idle: u64::MAX, servers: u32::MAX, outstanding: u32::MAX, sequence: 0 };
            let (remote, next) = heard.hear(secs(1), &told);
            assert!(remote.rho <= remote.delta && remote.recent <= remote.delta);
            assert!(remote.rho_bytes <= remote.delta_bytes);
            heard = next;
        }
    }
}
