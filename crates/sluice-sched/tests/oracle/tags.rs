//! The oracle's tags of a VM or a volume, as exact integers.

use sluice_sched::scheduler::DeviceInfo;
use sluice_sched::*;

/// 1/16 ns on the caller's clock; virtual time is 252 * 10^9 per request at weight 0.01.
pub type Tag = i128;

pub const LONG_AGO: Tag = i128::MIN / 4;
pub const ONE: Tag = 65_536;

pub fn exact(dividend: Tag, divisor: Tag) -> Tag {
    assert_eq!(dividend % divisor, 0, "the plan's numbers must give exact tags: {dividend} / {divisor}");
    dividend / divisor
}

/// Time that `raw` cost units take at a rate.
pub fn requests_at(rate: Iops, raw: Tag) -> Tag {
    exact(raw * 16_000_000_000 * 1000, ONE * Tag::from(rate.milli()))
}

pub fn bytes_at(rate: ByteRate, bytes: Tag) -> Tag {
    exact(bytes * 16_000_000_000, Tag::from(rate.bytes_per_second()))
}

/// The same for a burst, rounded up.
pub fn requests_ahead(rate: Iops, raw: Tag) -> Tag {
    (raw * 16_000_000_000 * 1000 + ONE * Tag::from(rate.milli()) - 1) / (ONE * Tag::from(rate.milli()))
}

pub fn bytes_ahead(rate: ByteRate, bytes: Tag) -> Tag {
    let rate = Tag::from(rate.bytes_per_second());
    (bytes * 16_000_000_000 + rate - 1) / rate
}

pub fn share_of(weight: Weight, raw: Tag) -> Tag {
    exact(raw * 252_000_000_000, ONE * Tag::from(weight.hundredths()))
}

/// sigma/w.
pub fn credit(policy: &Policy) -> Tag {
    policy.weight.map_or(0, |weight| share_of(weight, Tag::from(policy.idle_credit) * ONE))
}

/// Amounts of service: its cost, its bytes against a limit, and its bytes for a reservation, which are at least those
/// that the device transfers in the time of the request.
#[derive(Debug, Clone, Copy)]
pub struct Amount {
    pub raw: Tag,
    pub bytes: Tag,
    pub reserved_bytes: Tag,
}

impl Amount {
    pub fn new(raw: Tag, bytes: Tag, info: &DeviceInfo) -> Self {
        let by_cost = exact(raw * Tag::from(info.request_bytes.0), ONE);
        Amount { raw, bytes, reserved_bytes: bytes.max(by_cost) }
    }

    pub fn of(request: &Request, info: &DeviceInfo) -> Self {
        let raw = Tag::from(request.cost.raw());
        let bytes = match request.kind {
            Kind::Read | Kind::Write => Tag::from(request.length),
            Kind::Flush => 0,
            Kind::Discard | Kind::WriteZeroes => exact(raw * Tag::from(info.cost.reference_size().0), ONE),
        };
        Amount::new(raw, bytes, info)
    }
}

/// Reports of a client of several servers.
#[derive(Debug, Clone, Copy)]
pub struct Client {
    pub servers: Tag,
    /// Reported since the VM was last served here, in raw cost units.
    pub reported: Tag,
    /// Its last request here.
    pub piece: Amount,
    /// Requests that other servers may have started without a report.
    pub started: Tag,
}

/// A limit throttles a VM or a volume: until when, and the first decision since, with virtual time at that decision.
#[derive(Debug, Clone, Copy)]
pub struct Hold {
    pub until: Tag,
    pub decision: Option<(Tag, Tag)>,
}

/// Tags of a VM or of a volume: each says when the *next* request is due, may pass, or its position in the order.
#[derive(Debug, Clone)]
pub struct Level {
    pub policy: Policy,
    pub due: Tag,
    pub due_bytes: Tag,
    pub tat: Tag,
    pub tat_bytes: Tag,
    pub share: Tag,
    pub hold: Option<Hold>,
    /// Of its limits: in raw cost units and in bytes.
    pub bursts: (Tag, Tag),
    /// Sum of the limit's steps less that of the reservation's.
    pub excess: Tag,
    /// When a limit that had delayed it last let it pass.
    pub released: Tag,
}

impl Level {
    pub fn new(policy: Policy, info: &DeviceInfo, now: Tag, v: Tag) -> Self {
        let (share, bursts) = (v - credit(&policy), bursts(&policy, info, 1));
        Level {
            policy,
            due: now,
            due_bytes: now,
            tat: now,
            tat_bytes: now,
            share,
            hold: None,
            bursts,
            excess: 0,
            released: LONG_AGO,
        }
    }

    /// Each reservation is a separate minimum: the earlier tag counts.
    pub fn due(&self) -> Option<Tag> {
        let reservation = self.policy.reservation;
        let requests = reservation.iops.map(|_| self.due);
        requests.into_iter().chain(reservation.bytes.map(|_| self.due_bytes)).min()
    }

    /// Whether a limit held it during a part of the time by which its reservation is late.
    pub fn was_held(&self) -> bool {
        self.due().is_some_and(|due| due < self.released)
    }

    /// The common offset of the reservations increases.
    pub fn shift(&mut self, by: Tag) {
        self.due += by;
        self.due_bytes += by;
        self.released += by;
    }

    /// Distance that its limit keeps between requests of this amount.
    pub fn limit_step(&self, amount: Amount) -> Tag {
        let limit = self.policy.limit;
        let by_requests = limit.iops.map(|rate| requests_at(rate, amount.raw));
        let by_bytes = limit.bytes.map(|rate| bytes_at(rate, amount.bytes));
        by_requests.max(by_bytes).unwrap_or(0)
    }

    /// 8.4: may be dispatched iff TAT - burst/l <= now, in requests and in bytes.
    pub fn limit_eligible_at(&self) -> Tag {
        let limit = self.policy.limit;
        let (requests, bytes) = self.bursts;
        let requests = limit.iops.map(|rate| self.tat - requests_ahead(rate, requests));
        let bytes = limit.bytes.map(|rate| self.tat_bytes - bytes_ahead(rate, bytes));
        requests.max(bytes).unwrap_or(LONG_AGO)
    }

    /// Sets the limit, the burst or the number of servers: the rest of the burst stays, as the same service.
    pub fn set_limit(&mut self, policy: Policy, servers: Tag, info: &DeviceInfo, now: Tag) {
        let (old, old_bursts) = (self.policy.limit, self.bursts);
        let (new, bursts) = (policy.limit, bursts(&policy, info, servers));
        (self.policy, self.bursts) = (policy, bursts);
        let milli = |rate: Iops| Tag::from(rate.milli());
        let bytes = |rate: ByteRate| Tag::from(rate.bytes_per_second());
        if let Some(rate) = new.iops {
            let ahead = |rate, burst| requests_ahead(rate, burst);
            self.tat = refill(
                self.tat,
                now,
                old.iops.map(|old| (milli(old), ahead(old, old_bursts.0))),
                (milli(rate), ahead(rate, bursts.0)),
            );
        }
        if let Some(rate) = new.bytes {
            let ahead = |rate, burst| bytes_ahead(rate, burst);
            self.tat_bytes = refill(
                self.tat_bytes,
                now,
                old.bytes.map(|old| (bytes(old), ahead(old, old_bursts.1))),
                (bytes(rate), ahead(rate, bursts.1)),
            );
        }
    }

    /// A member without weight is served by its reservation only.
    pub fn eligible_at(&self) -> Tag {
        match self.due() {
            Some(due) if self.policy.weight.is_none() => due.max(self.limit_eligible_at()),
            _ => self.limit_eligible_at(),
        }
    }

    /// When to check a throttled member again.
    pub fn wake(&self) -> Option<Tag> {
        let hold = self.hold?;
        let due = self.due().filter(|_| self.policy.weight.is_none());
        Some(due.map_or(hold.until, |due| due.max(hold.until)))
    }

    /// 8.6: rho and delta count other servers only, and lie in the past.
    pub fn add_remote(&mut self, now: Tag, v: Tag, client: &Client, (reserved, beyond): (Amount, Amount)) {
        self.owe(now, reserved, 0);
        // Service beyond its reservation at other servers makes up for what is overdue here, up to now.
        if let Some(rate) = self.policy.reservation.iops {
            self.due = self.due.max((self.due + requests_at(rate, beyond.raw)).min(now));
        }
        if let Some(rate) = self.policy.reservation.bytes {
            self.due_bytes = self.due_bytes.max((self.due_bytes + bytes_at(rate, beyond.reserved_bytes)).min(now));
        }
        if let Some(rate) = self.policy.limit.iops {
            self.tat += requests_at(rate, reserved.raw + beyond.raw);
        }
        if let Some(rate) = self.policy.limit.bytes {
            self.tat_bytes += bytes_at(rate, reserved.bytes + beyond.bytes);
        }
        if let Some(weight) = self.policy.weight {
            let cap = self.share.max(v + share_of(weight, 16 * client.servers * client.piece.raw));
            self.share = (self.share + share_of(weight, reserved.raw)).min(cap);
            self.share += share_of(weight, beyond.raw);
        }
    }

    /// Charges service for the reservation. If both currencies are reserved, the later tag is at most one step beyond
    /// now.
    pub fn owe(&mut self, now: Tag, amount: Amount, inner_step: Tag) {
        self.forget_excess(now);
        let Some(due) = self.due() else { return };
        let present = now.max(due);
        if let Some(rate) = self.policy.reservation.iops {
            let step = requests_at(rate, amount.raw);
            self.due = self.due.max((self.due + step).min(present + step));
        }
        if let Some(rate) = self.policy.reservation.bytes {
            let step = bytes_at(rate, amount.reserved_bytes);
            self.due_bytes = self.due_bytes.max((self.due_bytes + step).min(present + step));
        }
        // Nothing is owed beyond the limit; what smaller steps of it leave counts for larger steps between them.
        let step = self.due().expect("as before") - due;
        let limit_step = self.limit_step(amount).max(inner_step);
        if limit_step > 0 {
            self.excess = (self.excess + limit_step - step).max(-16 * step);
        }
    }

    /// Service that its limit did not let pass is not owed, up to now.
    pub fn forget_excess(&mut self, now: Tag) {
        if let Some(due) = self.due().filter(|_| self.excess > 0) {
            let by = self.excess.min(now - due).max(0);
            self.due = self.due.max((self.due + by).min(now));
            self.due_bytes = self.due_bytes.max((self.due_bytes + by).min(now));
            self.excess = 0;
        }
    }

    /// The floor of shares: a lag beyond it is forgotten.
    pub fn floor(&self, v: Tag, client: Option<Client>) -> Tag {
        let reported = client.map_or(0, |client| client.reported);
        v - credit(&self.policy) - self.policy.weight.map_or(0, |weight| share_of(weight, reported))
    }

    /// 8.4: R is raised when an owner becomes backlogged, P to the floor.
    /// `due`: now, or the tag of the most overdue volume.
    pub fn activate(&mut self, due: Tag, v: Tag, client: Option<Client>) {
        // What others may have started is reported later, and counts then.
        let (started, started_bytes) = client
            .map_or((0, 0), |client| (client.started * client.piece.raw, client.started * client.piece.reserved_bytes));
        let Reservation { iops, bytes } = self.policy.reservation;
        self.due = self.due.max(due - iops.map_or(0, |rate| requests_at(rate, started)));
        self.due_bytes = self.due_bytes.max(due - bytes.map_or(0, |rate| bytes_at(rate, started_bytes)));
        self.share = self.share.max(self.floor(v, client));
    }

    pub fn raise_to(&mut self, due: Tag) {
        self.due = self.due.max(due);
        self.due_bytes = self.due_bytes.max(due);
    }

    /// 8.4: time throttled by its limit saves nothing, from the first decision on; its lag before that stays.
    pub fn settle(&mut self, now: Tag, held_until: Option<Tag>, v: Tag) {
        match (held_until, self.hold) {
            (Some(until), was) => self.hold = Some(Hold { until, decision: was.and_then(|hold| hold.decision) }),
            (None, Some(Hold { until, decision })) => {
                self.hold = None;
                let released = until.min(now);
                if let Some((since, v_then)) = decision.filter(|(since, _)| *since < released) {
                    let held = released - since;
                    self.due = self.due.max((self.due + held).min(released));
                    self.due_bytes = self.due_bytes.max((self.due_bytes + held).min(released));
                    self.forget_excess(released);
                    self.share = self.share.max((self.share + v - v_then).min(v));
                    self.released = released;
                }
            }
            (None, None) => {}
        }
    }

    /// Whether service for its reservation may take its debt past 16 requests after virtual time.
    pub fn is_past_cap(&self, v: Tag, raw: Tag) -> bool {
        let after = |weight| self.share + share_of(weight, raw) > v + share_of(weight, 16 * raw);
        self.policy.weight.is_some_and(after)
    }

    /// 8.2 and 8.4: R advances by reservation service only; P by both, by reservation service to at most v + 16 c/w at
    /// each server; the limiter by both.
    pub fn charge(
        &mut self,
        now: Tag,
        amount: Amount,
        reserved: bool,
        v: Tag,
        (client, inner_step): (Option<Client>, Tag),
    ) {
        if reserved {
            self.owe(now, amount, inner_step);
        }
        if let Some(weight) = self.policy.weight {
            let servers = client.map_or(1, |client| client.servers);
            let cap = if reserved { self.share.max(v + share_of(weight, 16 * servers * amount.raw)) } else { Tag::MAX };
            self.share = (self.share + share_of(weight, amount.raw)).min(cap);
        }
        if let Some(rate) = self.policy.limit.iops {
            self.tat = self.tat.max(now) + requests_at(rate, amount.raw);
        }
        if let Some(rate) = self.policy.limit.bytes {
            self.tat_bytes = self.tat_bytes.max(now) + bytes_at(rate, amount.bytes);
        }
    }

    /// A change also applies to queued requests: what was charged ahead stays charged as the same service, and what is
    /// overdue stays so, as the same service or the same time.
    pub fn set(&mut self, policy: Policy, servers: Tag, info: &DeviceInfo, now: Tag, v: Tag) {
        let milli = |rate: Option<Iops>| rate.map(|rate| Tag::from(rate.milli()));
        let bytes = |rate: Option<ByteRate>| rate.map(|rate| Tag::from(rate.bytes_per_second()));
        let weight = |weight: Option<Weight>| weight.map(|weight| Tag::from(weight.hundredths()));
        let old = self.policy;
        if old.reservation != policy.reservation {
            self.excess = 0;
        }
        rescale(&mut self.due, now, milli(old.reservation.iops), milli(policy.reservation.iops));
        rescale(&mut self.due_bytes, now, bytes(old.reservation.bytes), bytes(policy.reservation.bytes));
        let most = self.share.max(v);
        rescale(&mut self.share, v, weight(old.weight), weight(policy.weight));
        self.share = self.share.min(most);
        self.set_limit(policy, servers, info, now);
    }
}

/// A stated burst of n passes n requests back to back: the one that may always pass and n - 1 more. The default is that
/// one and the device's depth of the largest pieces, or 100 ms of the limit. Each of several servers has its part.
pub fn bursts(policy: &Policy, info: &DeviceInfo, servers: Tag) -> (Tag, Tag) {
    let limit = policy.limit;
    let rate = limit.iops.map_or(0, |rate| Tag::from(rate.milli()) * ONE / 1000);
    let byte_rate = limit.bytes.map_or(0, |rate| Tag::from(rate.bytes_per_second()));
    let (requests, bytes) = match policy.burst {
        Some(burst) => {
            let extra = Tag::from(burst - 1);
            (extra * ONE, extra * Tag::from(info.cost.reference_size().0))
        }
        None => {
            let depth = Tag::from(info.depth);
            let pieces = (depth * Tag::from(info.piece_cost().raw()), depth * Tag::from(info.piece_max.0));
            (pieces.0.max(rate / 10), pieces.1.max(byte_rate / 10))
        }
    };
    let part = |burst: Tag, rate: Tag| burst.min(burst.max(rate / 4) / servers);
    (part(requests, rate), part(bytes, byte_rate))
}

/// The theoretical arrival time with another limit. Limits are (rate, burst as a distance).
pub fn refill(tat: Tag, now: Tag, old: Option<(Tag, Tag)>, (rate, ahead): (Tag, Tag)) -> Tag {
    let Some((old_rate, old_ahead)) = old else { return now };
    if tat <= now {
        // It was full; a larger burst fills from then on.
        return tat + (ahead - old_ahead * old_rate / rate).max(0);
    }
    let left = old_ahead - (tat - now).max(0);
    if left >= 0 { now + ahead - (left * old_rate / rate).min(ahead) } else { now + ahead + -left * old_rate / rate }
}

pub fn rescale(tag: &mut Tag, base: Tag, old: Option<Tag>, new: Option<Tag>) {
    if old == new {
        return;
    }
    let Some((old, new)) = old.zip(new) else {
        *tag = base;
        return;
    };
    if *tag >= base {
        *tag = base + (*tag - base) * old / new;
    } else {
        let behind = base - *tag;
        *tag = base - behind.min(behind * old / new);
    }
}
