//! Whether promises are kept.

use std::ops::RangeInclusive;

use sluice_api::event::Unit;
use sluice_sched::policy::Reservation;

use crate::flow::Flow;

/// A promise that is not kept: what was promised for the interval, and what there was.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Shortfall {
    pub wanted: f64,
    pub got: f64,
    pub unit: Unit,
}

impl Shortfall {
    /// The same of an uplink, whose bytes are shown in bits.
    #[must_use]
    pub fn in_bits(self) -> Shortfall {
        match self.unit {
            Unit::BytesPerSecond => {
                Shortfall { wanted: 8.0 * self.wanted, got: 8.0 * self.got, unit: Unit::BitsPerSecond }
            }
            _ => self,
        }
    }
}

/// Requests by which a reservation may be missed in any interval: one that has not come to its turn, and one that was
/// dispatched just before.
const REQUESTS: f64 = 2.0;
/// Part of a reservation that may be missing in a second, and in ten.
const MISSING: [f64; 2] = [0.1, 0.03];
/// Part of the requests that may be late: the target is the 99th percentile.
const LATE: f64 = 0.01;
/// Multiple of the standard deviation of the number of late requests that is accepted as chance.
const DEVIATIONS: f64 = 4.0;
/// Late requests that are accepted in any interval.
const LATE_ACCEPTED: f64 = 2.0;
/// Seconds for which a promise must be kept again before a violation is over.
const KEPT_AGAIN: u32 = 3;

/// The smaller of two reservations, in each currency: what was promised all the time while one became the other.
#[must_use]
pub fn lesser(one: &Reservation, other: &Reservation) -> Reservation {
    Reservation {
        iops: one.iops.zip(other.iops).map(|(one, other)| one.min(other)),
        bytes: one.bytes.zip(other.bytes).map(|(one, other)| one.min(other)),
    }
}

/// A reservation in one currency, and what there was of it in an interval.
struct Account {
    rate: f64,
    unit: Unit,
    /// Time with requests queued, in seconds.
    asked: f64,
    got: f64,
    /// Tolerance, because service comes in whole requests.
    steps: f64,
}

/// Sizes and times of single requests, which the judgement of a reservation tolerates.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Grain {
    /// Size of a request of the VM, in normalised requests and in bytes, see [`Flow::step`]: after a large one it is
    /// ahead of its reservation for a while.
    pub step: (f64, f64),
    /// Seconds until a request that is due is taken, see [`DeviceState::turn`](crate::cause::DeviceState::turn). One that
    /// arrives at an empty queue waits for that time even if nothing is reserved but what the device can give.
    pub turn: f64,
}

impl Account {
    fn of(reservation: &Reservation, flow: &Flow, Grain { step, turn }: Grain) -> impl Iterator<Item = Account> {
        let asked = (flow.backlogged() * flow.seconds() - flow.spells as f64 * turn).max(0.0);
        let account = move |rate, got, step: f64, unit| Account { rate, unit, asked, got, steps: REQUESTS * step };
        let (requests, bytes) = (flow.dispatched_requests(), flow.dispatched_bytes as f64);
        let by_requests = reservation.iops.map(|rate| account(rate.as_f64(), requests, step.0.max(1.0), Unit::Iops));
        let by_bytes = reservation
            .bytes
            .map(|rate| account(rate.bytes_per_second() as f64, bytes, step.1.max(4096.0), Unit::BytesPerSecond));
        by_requests.into_iter().chain(by_bytes)
    }
}

/// Checks a reservation over the last second, and over a longer time, at most ten seconds.
///
/// While a VM has a queue, it gets at least its reservation. Example: with 1,000 iops reserved and a queue for 0.5 s of
/// the second, it gets at least 500, and 448 after the tolerance. What is missing over the longer time counts only while
/// more goes missing.
#[must_use]
pub fn reservation(reservation: &Reservation, last: &Flow, longer: &Flow, grain: Grain) -> Option<Shortfall> {
    let short = |flow: &Flow, account: &Account, missing: f64| {
        let Account { rate, unit, asked, got, steps } = *account;
        let is_short = flow.nanos > 0 && got + steps < rate * asked * (1.0 - missing);
        is_short.then(|| Shortfall { wanted: flow.per_second(rate * asked), got: flow.per_second(got), unit })
    };
    let now = Account::of(reservation, last, grain).find_map(|account| short(last, &account, MISSING[0]));
    now.or_else(|| {
        let mut both = Account::of(reservation, last, grain).zip(Account::of(reservation, longer, grain));
        both.find_map(|(now, account)| {
            let goes_on = now.got < now.rate * now.asked;
            short(longer, &account, MISSING[1]).filter(|_| goes_on)
        })
    })
}

/// Checks a latency target over the last second, and over a longer time, at most ten seconds: whether more requests were
/// late than one in a hundred, and than chance explains. Late requests of the longer time count only while more are late.
#[must_use]
pub fn latency(last: &Flow, longer: &Flow) -> Option<Shortfall> {
    let too_many = |flow: &Flow| {
        let (judged, late) = (flow.judged as f64, flow.late as f64);
        let allowed = judged * LATE;
        let shortfall = Shortfall { wanted: 100.0 * LATE, got: 100.0 * late / judged, unit: Unit::Percent };
        (late > allowed + DEVIATIONS * allowed.sqrt() + LATE_ACCEPTED).then_some(shortfall)
    };
    let goes_on = last.late as f64 > last.judged as f64 * LATE;
    too_many(last).or_else(|| too_many(longer).filter(|_| goes_on))
}

/// A promise over time: from its first violation until it is kept for three seconds.
#[derive(Debug, Clone)]
pub struct Watch<T> {
    broken: Option<Broken<T>>,
    kept_for: u32,
}

impl<T> Default for Watch<T> {
    fn default() -> Self {
        Watch { broken: None, kept_for: 0 }
    }
}

/// A violation.
#[derive(Debug, Clone)]
pub struct Broken<T> {
    /// When it began, on the observer's clock.
    pub since: u64,
    /// When it was seen last.
    pub until: u64,
    /// As it was at its worst.
    pub worst: Shortfall,
    /// As it was seen last.
    pub now: Shortfall,
    /// Data of the caller.
    pub about: T,
}

/// Begin or end of a violation.
#[derive(Debug)]
pub enum Change<'a, T> {
    Began(&'a Broken<T>),
    Ended(Broken<T>),
}

impl<T> Watch<T> {
    /// The violation, if the promise is broken.
    #[must_use]
    pub fn broken(&self) -> Option<&Broken<T>> {
        self.broken.as_ref()
    }

    /// Records whether the promise was kept in these seconds, of which there are several after the daemon has stood still. `about` is called when it is not, with what it returned the last
    /// time if that belongs to the same violation.
    pub fn update(
        &mut self,
        seconds: RangeInclusive<u64>,
        found: Option<Shortfall>,
        about: impl FnOnce(Option<T>) -> T,
    ) -> Option<Change<'_, T>> {
        match (self.broken.take(), found) {
            (Some(mut broken), Some(found)) => {
                self.kept_for = 0;
                let part = |of: &Shortfall| of.got / of.wanted;
                let is_worse = match found.unit {
                    Unit::Percent => found.got > broken.worst.got,
                    _ if found.wanted == 0.0 => found.got > broken.worst.got,
                    _ => part(&found) < part(&broken.worst),
                };
                if is_worse {
                    broken.worst = found;
                }
                (broken.now, broken.until) = (found, *seconds.end());
                self.broken = Some(Broken { about: about(Some(broken.about)), ..broken });
                None
            }
            (None, Some(found)) => {
                self.kept_for = 0;
                let (since, until) = seconds.into_inner();
                let broken = Broken { since, until, worst: found, now: found, about: about(None) };
                Some(Change::Began(self.broken.insert(broken)))
            }
            (Some(broken), None) => {
                self.broken = Some(broken);
                self.kept_for += 1;
                (self.kept_for >= KEPT_AGAIN).then(|| self.end()).flatten()
            }
            (None, None) => None,
        }
    }

    /// Ends the violation, because there is no such promise any more, or it is kept again.
    pub fn end(&mut self) -> Option<Change<'_, T>> {
        self.kept_for = 0;
        self.broken.take().map(Change::Ended)
    }
}

#[cfg(test)]
mod tests {
    use sluice_sched::{ByteRate, Iops};

    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const GRAIN: Grain = Grain { step: (1.0, 8192.0), turn: 0.0 };

    fn flow(backlogged_percent: u64, requests: u64) -> Flow {
        Flow {
            nanos: SECOND,
            backlogged_nanos: SECOND / 100 * backlogged_percent,
            dispatched: [0, requests, 0],
            dispatched_cost: requests << 16,
            dispatched_bytes: requests * 8192,
            ..Flow::default()
        }
    }

    fn iops(rate: u64) -> Reservation {
        Reservation { iops: Some(Iops::per_second(rate)), bytes: None }
    }

    #[test]
    fn a_reservation_counts_for_the_time_with_a_queue() {
        let check = |flow: &Flow| reservation(&iops(1000), flow, &Flow::default(), GRAIN);
        assert_eq!(check(&flow(100, 900)), None);
        let missed = check(&flow(100, 800)).expect("20 % are missing");
        assert_eq!((missed.wanted, missed.got), (1000.0, 800.0));
        assert_eq!(check(&flow(0, 10)), None, "not asked for");
        assert_eq!(check(&flow(50, 460)), None);
        assert_eq!(check(&flow(50, 400)).map(|missed| missed.wanted), Some(500.0));
    }

    #[test]
    fn a_small_shortfall_shows_over_ten_seconds_and_single_requests_do_not_count() {
        let mut ten = Flow::default();
        (0..10).for_each(|_| ten.add(&flow(100, 950)));
        let missed = reservation(&iops(1000), &flow(100, 950), &ten, GRAIN).expect("5 % are missing for 10 s");
        assert_eq!((missed.wanted, missed.got), (1000.0, 950.0));
        assert_eq!(reservation(&iops(3), &flow(100, 1), &Flow::default(), GRAIN), None, "two requests are no evidence");
        let large = Flow { dispatched: [0, 2, 0], dispatched_cost: 64 << 16, ..flow(100, 0) };
        assert_eq!(
            reservation(&iops(100), &large, &Flow::default(), Grain { step: (32.0, 0.0), turn: 0.0 }),
            None,
            "each is worth 32"
        );
    }

    #[test]
    fn a_reservation_in_bytes_is_checked_in_bytes() {
        let bytes = Reservation { iops: None, bytes: Some(ByteRate::per_second(8192 * 1000)) };
        assert_eq!(reservation(&bytes, &flow(100, 950), &Flow::default(), GRAIN), None);
        let missed = reservation(&bytes, &flow(100, 500), &Flow::default(), GRAIN).unwrap();
        assert_eq!((missed.got, missed.unit), (500.0 * 8192.0, Unit::BytesPerSecond));
    }

    #[test]
    fn late_requests_within_chance_break_no_target() {
        let flow = |judged, late| Flow { nanos: SECOND, judged, late, ..Flow::default() };
        for (judged, late) in [(0, 0), (10, 2), (1000, 20), (100_000, 1100)] {
            assert_eq!(latency(&flow(judged, late), &Flow::default()), None, "{late} of {judged}");
        }
        for (judged, late) in [(10, 5), (1000, 30), (100_000, 1200)] {
            assert!(latency(&flow(judged, late), &Flow::default()).is_some(), "{late} of {judged}");
        }
        assert!(latency(&flow(100, 3), &flow(1000, 30)).is_some(), "over ten seconds it is no chance");
    }

    #[test]
    fn a_violation_ends_when_the_promise_is_kept_for_three_seconds() {
        let mut watch = Watch::default();
        let missed = |got| Some(Shortfall { wanted: 100.0, got, unit: Unit::Iops });
        assert!(matches!(watch.update(1..=1, missed(80.0), |_| ()), Some(Change::Began(_))));
        assert!(watch.update(2..=2, missed(50.0), |_| ()).is_none());
        assert!(watch.update(3..=3, None, |_| ()).is_none());
        assert!(watch.update(4..=4, missed(70.0), |_| ()).is_none(), "the same violation");
        assert!(watch.update(5..=5, None, |_| ()).is_none() && watch.update(6..=6, None, |_| ()).is_none());
        let Some(Change::Ended(broken)) = watch.update(7..=7, None, |_| ()) else { panic!("it is over") };
        assert_eq!((broken.since, broken.until, broken.worst.got), (1, 4, 50.0));
    }

    #[test]
    fn a_violation_found_after_the_daemon_had_stood_still_lasted_one_second() {
        let mut watch = Watch::default();
        let missed = Shortfall { wanted: 100.0, got: 1.0, unit: Unit::Iops };
        watch.update(10..=77, Some(missed), |_| ());
        let broken = watch.broken().unwrap();
        assert_eq!((broken.since, broken.until), (10, 77));
    }
}
