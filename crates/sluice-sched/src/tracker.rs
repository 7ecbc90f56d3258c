//! The client's side of dmClock: what a VM got at other servers, told to each server with its next request.
//!
//! Problem: a VM whose volumes lie on several storage servers has one reservation, one limit and one weight, and each
//! server sees only the requests that come to it. Model: the client counts what completes, at which server and by which
//! right (the reply says it), and a request carries what happened since the VM's previous request to the same server: at
//! all, `delta`, and to meet reservations, `rho`. The server moves the VM's tags by as much. No server asks another one.
//!
//! Example: a VM writes to servers 1 and 2 in turn, 100 a second to each, with a limit of 100 a second. Each request to
//! server 1 says `delta` = 1, so server 1 spaces them by two hundredths of a second, server 2 too, and the VM gets 100.
//!
//! One [`Tracker`] belongs to one VM at its client, [`Clients`] to a server. Nothing here reads a clock. With one server all
//! counts are 0 in product mode, so a gate decides as it does without: locally.
//!
//! Bounds: a client forgets a server after [`SERVER_FORGOTTEN`] without a request, a server its client after
//! [`CLIENT_FORGOTTEN`]; so both tables hold who was used lately. What is missing in a count is at most what was in flight.
//!
//! Source: \[mclock\] 3.2 (dmClock).

use core::time::Duration;

use crate::cost::Cost;
use crate::gate::Elsewhere;
use crate::request::Phase;
use crate::time::Instant;

/// A server that a client has not asked for so long is forgotten.
// rule: mclock.forget
pub const SERVER_FORGOTTEN: Duration = Duration::from_secs(600);
/// A client that has not asked a server for so long is idle.
pub const CLIENT_IDLE: Duration = Duration::from_secs(300);
/// A client that has not asked a server for so long is forgotten.
pub const CLIENT_FORGOTTEN: Duration = Duration::from_secs(600);

/// What is counted; as the servers' mClock is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Form {
    /// What completed at other servers, by its cost. The server adds the request's own cost.
    #[default]
    Product,
    /// The number of requests that completed at all servers, as published. The server multiplies by the request's cost.
    Paper,
}

/// Completions, in 1/65,536 of a normalised request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Count {
    all: u64,
    reserved: u64,
}

impl Count {
    fn add(&mut self, cost: Cost, phase: Phase) {
        let cost = u64::from(cost.raw());
        self.all = self.all.saturating_add(cost);
        if phase == Phase::Reservation {
            self.reserved = self.reserved.saturating_add(cost);
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct Server {
    number: u32,
    /// When it was asked last.
    asked: Instant,
    /// Completed, and not told to it yet.
    untold: Count,
}

/// What one VM has got where, as its client counts it.
#[derive(Debug, Default)]
pub struct Tracker {
    form: Form,
    servers: Vec<Server>,
}

impl Tracker {
    /// Counts nothing yet.
    #[must_use]
    pub fn new(form: Form) -> Tracker {
        Tracker { form, servers: Vec::new() }
    }

    /// A request goes to a server: what to send along. The first one, also the first after the server was forgotten, says
    /// 1 and 1 in paper form, nothing in product form.
    // rule: mclock.client-counts, mclock.first-request, mclock.paper-counts, mclock.product-counts
    pub fn ask(&mut self, now: Instant, server: u32) -> Elsewhere {
        self.forget(now);
        let Some(known) = self.servers.iter_mut().find(|known| known.number == server) else {
            self.servers.push(Server { number: server, asked: now, untold: Count::default() });
            let first = u32::from(self.form == Form::Paper);
            return Elsewhere { rho: first, delta: first };
        };
        known.asked = now;
        // What is less than a whole request is told with a later one.
        let whole = |count: &mut u64| {
            let whole = u32::try_from(*count >> Cost::SHIFT).unwrap_or(u32::MAX);
            *count -= u64::from(whole) << Cost::SHIFT;
            whole
        };
        let delta = whole(&mut known.untold.all);
        Elsewhere { rho: whole(&mut known.untold.reserved).min(delta), delta }
    }

    /// A server has not taken a request: what it was to be told is told with the next one. Without this a VM whose queue is
    /// full would get more than its limit, since servers would never hear of what it got elsewhere.
    // rule: mclock.client-counts
    pub fn refused(&mut self, server: u32, told: Elsewhere) {
        if let Some(known) = self.servers.iter_mut().find(|known| known.number == server) {
            let give_back =
                |count: &mut u64, whole: u32| *count = count.saturating_add(u64::from(whole) << Cost::SHIFT);
            give_back(&mut known.untold.all, told.delta);
            give_back(&mut known.untold.reserved, told.rho);
        }
    }

    /// A server has completed a request: the reply says by which right and at which cost.
    // rule: mclock.client-counts, mclock.reply-phase
    pub fn completed(&mut self, server: u32, phase: Phase, cost: Cost) {
        let (cost, own) = match self.form {
            Form::Product => (cost, false),
            Form::Paper => (Cost::ONE, true),
        };
        let told = self.servers.iter_mut().filter(|known| own || known.number != server);
        told.for_each(|known| known.untold.add(cost, phase));
    }

    /// Forgets servers that have not been asked for long.
    // rule: mclock.forget
    pub fn forget(&mut self, now: Instant) {
        self.servers.retain(|known| now.since(known.asked) < SERVER_FORGOTTEN);
    }

    /// Servers that are known.
    #[must_use]
    pub fn servers(&self) -> usize {
        self.servers.len()
    }
}

/// What a server thinks of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// It has asked lately.
    Active,
    /// It has not asked for [`CLIENT_IDLE`]; its next request begins as that of an owner that was away.
    Idle,
}

/// The clients of a server, by when they asked.
#[derive(Debug, Default)]
pub struct Clients {
    /// When each asked last; in the order in which they came.
    asked: Vec<(u32, Instant)>,
}

impl Clients {
    /// A client asks: what it was until now; `None`: it was not known, its owner has to be added to the gate.
    // rule: mclock.forget
    pub fn ask(&mut self, now: Instant, client: u32) -> Option<Standing> {
        let standing = self.standing(now, client);
        match self.asked.iter_mut().find(|(known, _)| *known == client) {
            Some((_, asked)) => *asked = now,
            None => self.asked.push((client, now)),
        }
        standing
    }

    /// What a client is; `None`: not known, or to be forgotten.
    #[must_use]
    pub fn standing(&self, now: Instant, client: u32) -> Option<Standing> {
        let (_, asked) = self.asked.iter().find(|(known, _)| *known == client)?;
        match now.since(*asked) {
            silent if silent >= CLIENT_FORGOTTEN => None,
            silent if silent >= CLIENT_IDLE => Some(Standing::Idle),
            _ => Some(Standing::Active),
        }
    }

    /// Forgets clients that have not asked for long: their owners are to be removed from the gate.
    // rule: mclock.forget
    pub fn forget(&mut self, now: Instant, mut gone: impl FnMut(u32)) {
        self.asked.retain(|(client, asked)| {
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

    fn secs(secs: u64) -> Instant {
        Instant::from_millis(secs * 1000)
    }

    fn told(tracker: &mut Tracker, server: u32) -> (u32, u32) {
        let Elsewhere { rho, delta } = tracker.ask(secs(1), server);
        (rho, delta)
    }

    // rule: mclock.client-counts, mclock.first-request, mclock.paper-counts, mclock.product-counts, mclock.reply-phase
    #[test]
    fn a_server_is_told_what_completed_since_it_was_asked_last() {
        for (form, first) in [(Form::Product, (0, 0)), (Form::Paper, (1, 1))] {
            let mut tracker = Tracker::new(form);
            assert_eq!([1, 2, 3].map(|server| told(&mut tracker, server)), [first; 3], "{form:?}");
            for (server, phase) in [(1, Phase::Weight), (2, Phase::Reservation), (2, Phase::Weight), (1, Phase::Weight)]
            {
                tracker.completed(server, phase, Cost::ONE);
            }
            // Paper: all four, one by reservation. Product: without the server's own.
            let own = form == Form::Paper;
            assert_eq!(told(&mut tracker, 1), (1, if own { 4 } else { 2 }), "{form:?}");
            assert_eq!(told(&mut tracker, 1), (0, 0), "it has been told");
            assert_eq!(told(&mut tracker, 2), if own { (1, 4) } else { (0, 2) }, "{form:?}");
            tracker.completed(1, Phase::Reservation, Cost::ONE);
            assert_eq!(told(&mut tracker, 3), (2, 5), "{form:?}: since its own last request");
        }
    }

    // rule: mclock.client-counts
    #[test]
    fn costs_are_counted_and_no_part_of_them_is_lost() {
        let mut tracker = Tracker::new(Form::Product);
        told(&mut tracker, 1);
        let mut all = 0;
        for _ in 0..100 {
            tracker.completed(2, Phase::Weight, Cost::from_raw(Cost::ONE.raw() * 5 / 4));
            all += told(&mut tracker, 1).1;
        }
        assert_eq!(all, 125, "a hundred requests of cost 1.25");
        let mut tracker = Tracker::new(Form::Paper);
        told(&mut tracker, 1);
        (0..4).for_each(|_| tracker.completed(2, Phase::Weight, Cost::requests(9)));
        assert_eq!(told(&mut tracker, 1), (0, 4), "as published, requests");
    }

    // rule: mclock.client-counts, mclock.first-request
    #[test]
    fn what_a_server_did_not_take_it_is_told_again() {
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
                tracker.completed(2, phase, Cost::ONE);
            }
            assert_eq!([refused(&mut tracker), refused(&mut tracker)], [(1, 3); 2], "{form:?}");
            tracker.completed(2, Phase::Reservation, Cost::ONE);
            assert_eq!([told(&mut tracker, 1), told(&mut tracker, 1)], [(2, 4), (0, 0)], "{form:?}");
        }
    }

    // rule: mclock.forget, mclock.first-request
    #[test]
    fn who_is_silent_for_long_is_forgotten() {
        let mut tracker = Tracker::new(Form::Paper);
        tracker.ask(secs(0), 1);
        tracker.ask(secs(599), 2);
        tracker.completed(2, Phase::Weight, Cost::ONE);
        tracker.completed(2, Phase::Weight, Cost::ONE);
        tracker.forget(secs(599));
        assert_eq!(tracker.servers(), 2);
        assert_eq!(tracker.ask(secs(600), 1), Elsewhere { rho: 1, delta: 1 }, "as if it had never been asked");
        assert_eq!(tracker.ask(secs(601), 2), Elsewhere { rho: 0, delta: 2 });
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
