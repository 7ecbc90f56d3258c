//! Client side of dmClock: counts the service of a VM at each server, and reports it to the other servers.
//!
//! A VM whose volumes lie on several storage servers has one reservation, one limit and one weight, but each server
//! sees only its own requests. The client counts completions by server and phase, which the reply contains. Each
//! request reports what other servers completed since the VM's previous request to the same server: `delta` in total,
//! and `rho` in the reservation phase. The server advances the VM's tags by as much. Servers do not communicate.
//!
//! Example: a VM writes alternately to servers 1 and 2, 100 requests per second to each, with a limit of 100 IOPS. Each
//! request to server 1 reports `delta` = 1, so server 1 spaces the requests by 20 ms instead of 10 ms. Server 2 does
//! the same, and the VM gets 100 IOPS in total.
//!
//! A report also contains the part of `delta` that completed since the VM last had no request outstanding at any server,
//! `recent`. A VM that has requests queued elsewhere may lag here by as much. A VM that was silent is owed nothing for that
//! time, as on a single server. Example: 256 requests are queued at each of servers 1 and 2 when a VM falls silent. Its next
//! request, a minute later, reports `delta` = 256 and `recent` = 0.
//!
//! A [`Tracker`] belongs to one VM at its client, [`Clients`] to one server. With one server all counts are 0 in
//! product form, so the gate decides as without dmClock.
//!
//! Cost: `ask`, `completed` and `refused` take O(log servers). The count for a server is the difference of two sums, so
//! no count per server is kept. Every [`SERVER_FORGOTTEN`] one call visits all servers.
//!
//! Bounds: a client forgets a server after [`SERVER_FORGOTTEN`] without a request, a server its client after
//! [`CLIENT_FORGOTTEN`]. Both tables hold entries used within twice that time. A count misses at most the requests in
//! flight.
//!
//! Source: \[mclock\] 3.2 (dmClock).

use core::time::Duration;
use std::collections::BTreeMap;

use crate::cost::Cost;
use crate::gate::{Finished, RemoteService, Service};
use crate::time::Instant;

/// Time without a request after which a client forgets a server.
// rule: mclock.forget
pub const SERVER_FORGOTTEN: Duration = Duration::from_secs(600);
/// Time without a request after which a server considers a client idle.
pub const CLIENT_IDLE: Duration = Duration::from_secs(300);
/// Time without a request after which a server forgets a client.
pub const CLIENT_FORGOTTEN: Duration = Duration::from_secs(600);

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
struct Sums {
    all: u64,
    reserved: u64,
    all_bytes: u64,
    reserved_bytes: u64,
}

impl Sums {
    fn add(&mut self, service: Service, reserved: Service) {
        self.all = self.all.wrapping_add(service.cost.raw().into());
        self.all_bytes = self.all_bytes.wrapping_add(service.bytes);
        self.reserved = self.reserved.wrapping_add(reserved.cost.raw().into());
        self.reserved_bytes = self.reserved_bytes.wrapping_add(reserved.bytes);
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
        self.zip(other, u64::wrapping_add)
    }

    fn minus(self, other: Sums) -> Sums {
        self.zip(other, u64::wrapping_sub)
    }

    /// The counts of a report, as sums.
    fn of(remote: &RemoteService) -> Sums {
        Sums {
            all: u64::from(remote.delta) << Cost::SHIFT,
            reserved: u64::from(remote.rho) << Cost::SHIFT,
            all_bytes: remote.delta_bytes,
            reserved_bytes: remote.rho_bytes,
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct Server {
    /// Time of the last request to the server.
    asked: Instant,
    /// Requests to it that have not ended.
    outstanding: u64,
    /// Completed at this server since it became known.
    own: Sums,
    /// Part of the total that was reported to this server, or had completed before it became known.
    reported: Sums,
}

/// Service of one VM by server, as its client counts it.
#[derive(Debug, Default)]
pub struct Tracker {
    form: Form,
    total: Sums,
    /// Requests that were sent and have not ended.
    outstanding: u64,
    /// The cost of all that had completed when there were last none of them.
    at_idle: u64,
    servers: BTreeMap<u32, Server>,
    /// When servers were last forgotten.
    swept: Instant,
}

impl Tracker {
    /// A tracker without servers and counts.
    #[must_use]
    pub fn new(form: Form) -> Tracker {
        Tracker { form, ..Tracker::default() }
    }

    /// Returns the report for a request to `server`. The first request to a server, also after the server was
    /// forgotten, reports 1 and 1 in paper form and nothing in product form.
    // rule: mclock.client-counts, mclock.first-request, mclock.paper-counts, mclock.product-counts
    pub fn ask(&mut self, now: Instant, server: u32) -> RemoteService {
        if now.since(self.swept) >= SERVER_FORGOTTEN {
            self.forget(now);
        }
        let (total, outstanding) = (self.total, self.outstanding);
        self.outstanding += 1;
        let known = self.servers.get_mut(&server).filter(|known| now.since(known.asked) < SERVER_FORGOTTEN);
        let Some(known) = known else {
            let own = Sums::default();
            self.servers.insert(server, Server { asked: now, outstanding: 1, own, reported: total });
            let (first, servers) = (u32::from(self.form == Form::Paper), self.known());
            let outstanding = number(outstanding);
            return RemoteService { rho: first, delta: first, servers, outstanding, ..RemoteService::default() };
        };
        known.asked = now;
        let elsewhere = outstanding.saturating_sub(known.outstanding);
        known.outstanding += 1;
        let unreported = match self.form {
            Form::Product => total.minus(known.own).minus(known.reported),
            Form::Paper => total.minus(known.reported),
        };
        // Parts of a request are reported later, when they add up to a whole one.
        let whole = |cost: u64| number(cost >> Cost::SHIFT);
        let delta = whole(unreported.all);
        let recent = whole(total.all.wrapping_sub(self.at_idle)).min(delta);
        let remote = RemoteService {
            rho: whole(unreported.reserved).min(delta),
            delta,
            recent,
            rho_bytes: unreported.reserved_bytes,
            delta_bytes: unreported.all_bytes,
            servers: 0,
            outstanding: number(elsewhere),
        };
        known.reported = known.reported.plus(Sums::of(&remote));
        RemoteService { servers: self.known(), ..remote }
    }

    /// Notes that a server rejected a request: its report is repeated with the next one. Otherwise a VM with a full
    /// queue would exceed its limit, since servers would never learn of its service at other servers.
    // rule: mclock.client-counts
    pub fn refused(&mut self, server: u32, remote: RemoteService) {
        self.ended(server);
        if let Some(known) = self.servers.get_mut(&server) {
            known.reported = known.reported.minus(Sums::of(&remote));
        }
    }

    /// Notes that a server completed a request, with `finished` as the reply. In paper form requests are counted, each
    /// in the phase of its last part.
    // rule: mclock.client-counts, mclock.reply-phase
    pub fn completed(&mut self, server: u32, finished: &Finished) {
        let (service, reserved) = match self.form {
            Form::Product => (finished.service, finished.reserved),
            Form::Paper => {
                let service = Service { cost: Cost::ONE, ..finished.service };
                (service, service.if_reserved(finished.phase))
            }
        };
        self.total.add(service, reserved);
        if let Some(known) = self.servers.get_mut(&server) {
            known.own.add(service, reserved);
        }
        self.ended(server);
    }

    /// Notes that a request to a server is no longer outstanding. Called for requests that were cancelled or lost with their server;
    /// [`Tracker::completed`] and [`Tracker::refused`] include it.
    // rule: mclock.share-floor
    pub fn ended(&mut self, server: u32) {
        self.outstanding = self.outstanding.saturating_sub(1);
        if let Some(known) = self.servers.get_mut(&server) {
            known.outstanding = known.outstanding.saturating_sub(1);
        }
        if self.outstanding == 0 {
            self.at_idle = self.total.all;
        }
    }

    /// Forgets servers without a request for [`SERVER_FORGOTTEN`]. O(servers).
    // rule: mclock.forget
    pub fn forget(&mut self, now: Instant) {
        self.swept = now;
        self.servers.retain(|_, known| now.since(known.asked) < SERVER_FORGOTTEN);
    }

    /// Number of known servers.
    #[must_use]
    pub fn servers(&self) -> usize {
        self.servers.len()
    }

    fn known(&self) -> u32 {
        number(self.servers.len() as u64)
    }
}

/// A count of a report, at most the largest that it holds.
fn number(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// State of a client at a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// It has recently sent a request.
    Active,
    /// It has sent nothing for [`CLIENT_IDLE`]; its next request is treated as that of an owner that was idle.
    Idle,
}

/// The clients of a server, and the time of their last requests. Calls take O(log clients), `forget` O(clients).
#[derive(Debug, Default)]
pub struct Clients {
    asked: BTreeMap<u32, Instant>,
}

impl Clients {
    /// Notes a request of a client. Returns the client's state before it; `None` if it was unknown, so that its owner
    /// must be added to the gate.
    // rule: mclock.forget
    pub fn ask(&mut self, now: Instant, client: u32) -> Option<Standing> {
        let standing = self.standing(now, client);
        self.asked.insert(client, now);
        standing
    }

    /// State of a client; `None` if it is unknown or is to be forgotten.
    #[must_use]
    pub fn standing(&self, now: Instant, client: u32) -> Option<Standing> {
        match now.since(*self.asked.get(&client)?) {
            silent if silent >= CLIENT_FORGOTTEN => None,
            silent if silent >= CLIENT_IDLE => Some(Standing::Idle),
            _ => Some(Standing::Active),
        }
    }

    /// Forgets clients that have sent nothing for [`CLIENT_FORGOTTEN`]; the caller removes their owners from the gate.
    // rule: mclock.forget
    pub fn forget(&mut self, now: Instant, mut gone: impl FnMut(u32)) {
        self.asked.retain(|client, asked| {
            let stays = now.since(*asked) < CLIENT_FORGOTTEN;
            if !stays {
                gone(*client);
            }
            stays
        });
    }
}

#[cfg(test)]
mod tests {
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

    fn told(tracker: &mut Tracker, server: u32) -> (u32, u32) {
        let RemoteService { rho, delta, .. } = tracker.ask(secs(1), server);
        (rho, delta)
    }

    // rule: mclock.client-counts, mclock.first-request, mclock.paper-counts, mclock.product-counts, mclock.reply-phase
    #[test]
    fn a_request_reports_completions_since_the_last_request_to_the_server() {
        for (form, first) in [(Form::Product, (0, 0)), (Form::Paper, (1, 1))] {
            let mut tracker = Tracker::new(form);
            assert_eq!([1, 2, 3].map(|server| told(&mut tracker, server)), [first; 3], "{form:?}");
            for (server, phase) in [(1, Phase::Weight), (2, Phase::Reservation), (2, Phase::Weight), (1, Phase::Weight)]
            {
                tracker.completed(server, &reply(phase, Cost::ONE, 8192));
            }
            // Paper form: all four, one of them in the reservation phase. Product form: without those of the server
            // itself.
            let own = form == Form::Paper;
            assert_eq!(told(&mut tracker, 1), (1, if own { 4 } else { 2 }), "{form:?}");
            assert_eq!(told(&mut tracker, 1), (0, 0), "already reported");
            assert_eq!(told(&mut tracker, 2), if own { (1, 4) } else { (0, 2) }, "{form:?}");
            tracker.completed(1, &reply(Phase::Reservation, Cost::ONE, 8192));
            assert_eq!(told(&mut tracker, 3), (2, 5), "{form:?}: since its own last request");
        }
    }

    // rule: mclock.client-counts
    #[test]
    fn fractions_of_costs_are_reported_later() {
        let mut tracker = Tracker::new(Form::Product);
        told(&mut tracker, 1);
        let mut all = 0;
        for _ in 0..100 {
            tracker.completed(2, &reply(Phase::Weight, Cost::from_raw(Cost::ONE.raw() * 5 / 4), 8192));
            all += told(&mut tracker, 1).1;
        }
        assert_eq!(all, 125, "a hundred requests of cost 1.25");
        let mut tracker = Tracker::new(Form::Paper);
        told(&mut tracker, 1);
        (0..4).for_each(|_| tracker.completed(2, &reply(Phase::Weight, Cost::requests(9), 8192)));
        assert_eq!(told(&mut tracker, 1), (0, 4), "as published, requests");
    }

    // rule: mclock.client-counts
    #[test]
    fn rho_never_exceeds_delta() {
        let mut tracker = Tracker::new(Form::Product);
        told(&mut tracker, 1);
        // Parts of requests add up to a whole request in the reservation phase first.
        let eighths = |eighths: u32| Cost::from_raw(Cost::ONE.raw() / 8 * eighths);
        tracker.completed(2, &reply(Phase::Weight, eighths(5), 0));
        tracker.completed(2, &reply(Phase::Reservation, eighths(7), 0));
        assert_eq!(told(&mut tracker, 1), (0, 1));
        tracker.completed(2, &reply(Phase::Reservation, eighths(5), 0));
        assert_eq!(told(&mut tracker, 1), (1, 1));
        tracker.completed(2, &reply(Phase::Reservation, eighths(4), 0));
        assert_eq!(told(&mut tracker, 1), (0, 0), "one by reservation, but none in all yet");
        tracker.completed(2, &reply(Phase::Weight, eighths(3), 0));
        assert_eq!(told(&mut tracker, 1), (1, 1), "the rest is reported later");
    }

    // rule: mclock.client-counts
    #[test]
    fn remote_bytes_are_reported_as_bytes() {
        let mut tracker = Tracker::new(Form::Product);
        let first = tracker.ask(secs(1), 1);
        assert_eq!((first.delta_bytes, first.servers), (0, 1));
        tracker.ask(secs(1), 2);
        (0..16).for_each(|_| tracker.completed(2, &reply(Phase::Weight, Cost::ONE, 4096)));
        tracker.completed(1, &reply(Phase::Weight, Cost::requests(4), 1 << 20));
        tracker.completed(2, &reply(Phase::Reservation, Cost::from_raw(7), 512));
        let remote = tracker.ask(secs(1), 1);
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
        tracker.refused(1, remote);
        assert_eq!(tracker.ask(secs(1), 1), due, "a rejected report is repeated");
        assert_eq!(tracker.ask(secs(1), 1).delta_bytes, 0);
    }

    // rule: mclock.client-counts, mclock.first-request
    #[test]
    fn a_rejected_report_is_repeated() {
        for (form, first) in [(Form::Product, (0, 0)), (Form::Paper, (1, 1))] {
            let mut tracker = Tracker::new(form);
            let refused = |tracker: &mut Tracker| {
                let told = tracker.ask(secs(1), 1);
                tracker.refused(1, told);
                (told.rho, told.delta)
            };
            assert_eq!([refused(&mut tracker), refused(&mut tracker), told(&mut tracker, 1)], [first; 3], "{form:?}");
            told(&mut tracker, 2);
            for phase in [Phase::Reservation, Phase::Weight, Phase::Weight] {
                tracker.completed(2, &reply(phase, Cost::ONE, 8192));
            }
            assert_eq!([refused(&mut tracker), refused(&mut tracker)], [(1, 3); 2], "{form:?}");
            tracker.completed(2, &reply(Phase::Reservation, Cost::ONE, 8192));
            assert_eq!([told(&mut tracker, 1), told(&mut tracker, 1)], [(2, 4), (0, 0)], "{form:?}");
        }
    }

    // rule: mclock.share-floor
    #[test]
    fn what_completed_before_a_silence_was_reported_like_what_came_after_it() {
        let mut tracker = Tracker::new(Form::Product);
        let recent = |tracker: &mut Tracker, server: u32| {
            let RemoteService { delta, recent, .. } = tracker.ask(secs(1), server);
            (delta, recent)
        };
        (0..4).for_each(|number| _ = recent(&mut tracker, 1 + number % 2));
        [1, 1, 2].iter().for_each(|server| tracker.completed(*server, &reply(Phase::Weight, Cost::requests(5), 0)));
        assert_eq!(recent(&mut tracker, 2), (10, 10), "one is still outstanding at 2");
        (0..2).for_each(|_| tracker.completed(2, &reply(Phase::Weight, Cost::requests(3), 0)));
        assert_eq!(recent(&mut tracker, 1), (11, 0), "nothing was outstanding");
        assert_eq!(recent(&mut tracker, 2), (0, 0));
        tracker.completed(1, &reply(Phase::Weight, Cost::requests(7), 0));
        assert_eq!(recent(&mut tracker, 2), (7, 7));
        // One is cancelled, and a server refuses another one.
        tracker.ended(2);
        tracker.completed(2, &reply(Phase::Weight, Cost::requests(2), 0));
        let remote = tracker.ask(secs(1), 1);
        tracker.refused(1, remote);
        assert_eq!(recent(&mut tracker, 1), (2, 0));
    }

    // rule: mclock.forget, mclock.first-request
    #[test]
    fn servers_and_clients_without_requests_are_forgotten() {
        let mut tracker = Tracker::new(Form::Paper);
        tracker.ask(secs(0), 1);
        tracker.ask(secs(599), 2);
        tracker.completed(2, &reply(Phase::Weight, Cost::ONE, 8192));
        tracker.completed(2, &reply(Phase::Weight, Cost::ONE, 8192));
        tracker.forget(secs(599));
        assert_eq!(tracker.servers(), 2);
        let first = RemoteService { rho: 1, delta: 1, servers: 2, ..RemoteService::default() };
        assert_eq!(tracker.ask(secs(600), 1), first, "like an unknown server");
        let next =
            RemoteService { delta: 2, delta_bytes: 16_384, servers: 2, outstanding: 1, ..RemoteService::default() };
        assert_eq!(tracker.ask(secs(601), 2), next);
        let mut clients = Clients::default();
        assert_eq!(clients.ask(secs(0), 7), None);
        assert_eq!(clients.ask(secs(10), 8), None);
        let seen = [299, 300, 599, 600].map(|at| clients.standing(secs(at), 7));
        assert_eq!(seen, [Some(Standing::Active), Some(Standing::Idle), Some(Standing::Idle), None]);
        let mut gone = Vec::new();
        clients.forget(secs(605), |client| gone.push(client));
        assert_eq!(gone, [7]);
        assert_eq!((clients.ask(secs(605), 8), clients.ask(secs(605), 7)), (Some(Standing::Idle), None));
        assert_eq!(clients.standing(secs(606), 8), Some(Standing::Active));
    }
}
