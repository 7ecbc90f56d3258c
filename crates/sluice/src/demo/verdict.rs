//! The guarantees, and whether they were kept.
//!
//! Each guarantee is checked separately. The use of the device's capacity is one guarantee and its division another,
//! so the expected shares are computed from the measured total. The text of a guarantee states its tolerance.

use sluice_testbed::load::Measured;

use super::Outcome;
use super::network::Shares;
use super::setup::{BACKUP, OLTP, VMS, WEB};
use super::share::{Claim, fill};

/// A reservation is kept if the VM got at least this part of it. The rest is lost at the edges of the measurement.
const RESERVED_MIN: f64 = 0.99;
/// A limit is kept up to this multiple of it, because its burst may fall into the measurement.
const LIMIT_MAX: f64 = 1.02;
/// Minimum use of a limit by a VM that nothing else holds back. Longer pauses of the machine than the burst are lost
/// to it.
const LIMIT_USED_MIN: f64 = 0.9;
/// Maximum relative deviation of a VM from its share of the spare capacity.
const SHARE_OFF_MAX: f64 = 0.05;
/// Minimum use of the capacity: the device thread of a busy machine may wake up late.
const USED_MIN: f64 = 0.95;

/// Whether a guarantee was kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kept {
    Yes,
    No,
    /// It does not look kept, and the machine was busy: its threads waited for a CPU while it was measured.
    NotJudged,
}

impl Kept {
    fn of(is_kept: bool) -> Kept {
        if is_kept { Kept::Yes } else { Kept::No }
    }
}

/// A guarantee.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Promise {
    /// Text with the tolerance.
    pub(super) text: String,
    pub(super) kept: Kept,
    /// Normalised requests per second, or Mbit/s on the link.
    pub(super) measured: f64,
    /// The expected value.
    pub(super) expected: f64,
}

impl Promise {
    /// Does not call it broken if the machine was too busy while it was measured.
    pub(super) fn unless(mut self, is_disturbed: bool) -> Promise {
        if is_disturbed && self.kept == Kept::No {
            self.kept = Kept::NotJudged;
        }
        self
    }
}

/// Returns the main guarantee of a VM, as measured in one phase.
pub(super) fn headline(vm: usize, claims: &[Claim], measured: &[Measured]) -> Promise {
    match vm {
        OLTP => reservation(claims, measured),
        BACKUP => limit("stays within its limit", claims, measured),
        _ => part("gets its share by weight of the rest", vm, claims, measured),
    }
}

/// Checks every guarantee of the phase with mClock: while all VMs submit, and while the VM with the reservation is
/// idle.
pub(super) fn judge(capacity: f64, claims: &[Claim], busy: &Outcome, quiet: &Outcome) -> Vec<Promise> {
    let (while_busy, while_quiet) = (busy.is_disturbed, quiet.is_disturbed);
    let (busy, quiet) = (&busy.measured, &quiet.measured);
    let mut left = claims.to_vec();
    left[OLTP] = Claim { reservation: 0.0, limit: 0.0, weight: claims[OLTP].weight };
    let of_busy = [
        headline(OLTP, claims, busy),
        headline(WEB, claims, busy),
        headline(BACKUP, claims, busy),
        part("gets its share by weight of the rest", BACKUP, claims, busy),
        used("The whole capacity is used", capacity, busy),
    ];
    let of_quiet = [
        used(
            &format!("The capacity that {} does not use while idle goes to the others", VMS[OLTP].name),
            capacity,
            quiet,
        ),
        limit("stays within its limit even then", &left, quiet),
        all_of_limit(&left, quiet),
    ];
    let of_busy = of_busy.into_iter().map(|promise| promise.unless(while_busy));
    of_busy.chain(of_quiet.into_iter().map(|promise| promise.unless(while_quiet))).collect()
}

/// Checks the guarantees of the link.
pub(super) fn judge_link(link: f64, claims: &[Claim], shares: &Shares) -> Vec<Promise> {
    let measured: Vec<Measured> =
        shares.mbit.iter().map(|mbit| Measured { iops: *mbit, p50_us: 0, p99_us: 0, mean_us: 0.0 }).collect();
    let all = vec![
        reservation(claims, &measured),
        part("gets its share by weight of the rest", WEB, claims, &measured),
        limit("stays within its limit", claims, &measured),
        used("the whole rate is used", link, &measured),
    ];
    let on_the_link = |promise: Promise| Promise { text: format!("Link, in Mbit/s: {}", promise.text), ..promise };
    all.into_iter().map(|promise| on_the_link(promise).unless(!shares.paused.is_zero())).collect()
}

fn sum(measured: &[Measured]) -> f64 {
    measured.iter().map(|vm| vm.iops).sum()
}

fn reservation(claims: &[Claim], measured: &[Measured]) -> Promise {
    let (expected, measured) = (claims[OLTP].reservation, measured[OLTP].iops);
    let text = format!("{} gets its reservation (at least {} %)", VMS[OLTP].name, percent(RESERVED_MIN));
    Promise { text, kept: Kept::of(measured >= RESERVED_MIN * expected), measured, expected }
}

fn limit(what: &str, claims: &[Claim], measured: &[Measured]) -> Promise {
    let (expected, measured) = (claims[BACKUP].limit, measured[BACKUP].iops);
    let text = format!("{} {what} (at most {} %)", VMS[BACKUP].name, percent(LIMIT_MAX));
    Promise { text, kept: Kept::of(measured <= LIMIT_MAX * expected), measured, expected }
}

/// A limit must not hold a VM below it if there is enough capacity for all.
fn all_of_limit(claims: &[Claim], measured: &[Measured]) -> Promise {
    let (expected, measured) = (fill(sum(measured), claims)[BACKUP], measured[BACKUP].iops);
    let text = format!("{} reaches that limit (at least {} %)", VMS[BACKUP].name, percent(LIMIT_USED_MIN));
    Promise { text, kept: Kept::of(measured >= LIMIT_USED_MIN * expected), measured, expected }
}

fn part(what: &str, vm: usize, claims: &[Claim], measured: &[Measured]) -> Promise {
    let expected = fill(sum(measured), claims)[vm];
    let measured = measured[vm].iops;
    let text = format!("{} {what} (within {} %)", VMS[vm].name, percent(SHARE_OFF_MAX));
    Promise { text, kept: Kept::of((measured - expected).abs() <= SHARE_OFF_MAX * expected), measured, expected }
}

fn used(what: &str, capacity: f64, measured: &[Measured]) -> Promise {
    let measured = sum(measured);
    let text = format!("{what} (at least {} %)", percent(USED_MIN));
    Promise { text, kept: Kept::of(measured >= USED_MIN * capacity), measured, expected: capacity }
}

fn percent(part: f64) -> u64 {
    (part * 100.0).round() as u64
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const CLAIMS: [Claim; 3] = [
        Claim { reservation: 800.0, limit: f64::INFINITY, weight: 100.0 },
        Claim { reservation: 0.0, limit: f64::INFINITY, weight: 200.0 },
        Claim { reservation: 0.0, limit: 600.0, weight: 100.0 },
    ];

    fn outcome(iops: [f64; 3], is_disturbed: bool) -> Outcome {
        let measured = iops.map(|iops| Measured { iops, p50_us: 1, p99_us: 1, mean_us: 1.0 }).to_vec();
        Outcome { measured, is_disturbed, paused: Duration::ZERO, discarded: 0 }
    }

    fn shares(mbit: [f64; 3], paused: Duration) -> Shares {
        Shares { scheduler: "mclock", mbit: mbit.to_vec(), paused }
    }

    /// Numbers of the promises with this answer.
    fn with(kept: Kept, judged: &[Promise]) -> Vec<usize> {
        (0..judged.len()).filter(|at| judged[*at].kept == kept).collect()
    }

    fn broken(busy: [f64; 3], quiet: [f64; 3]) -> Vec<usize> {
        with(Kept::No, &judge(2000.0, &CLAIMS, &outcome(busy, false), &outcome(quiet, false)))
    }

    #[test]
    fn a_promise_that_a_busy_machine_broke_was_called_broken() {
        let (kept, lost) = ([800.0, 800.0, 400.0], [700.0, 700.0, 350.0]);
        let judged = judge(2000.0, &CLAIMS, &outcome(lost, true), &outcome([0.0, 1200.0, 600.0], false));
        assert_eq!((with(Kept::NotJudged, &judged), with(Kept::No, &judged)), (vec![0, 1, 3, 4], vec![5]));
        let judged = judge(2000.0, &CLAIMS, &outcome(kept, true), &outcome([0.0, 1400.0, 600.0], true));
        assert_eq!(with(Kept::Yes, &judged).len(), judged.len(), "what was kept is kept on any machine");
        let claims = super::super::network::claims();
        let lost = judge_link(100.0, &claims, &shares([50.0, 26.6, 13.4], Duration::from_millis(80)));
        assert_eq!((with(Kept::NotJudged, &lost), with(Kept::No, &lost)), (vec![3], vec![]));
    }

    #[test]
    fn each_guarantee_is_checked_separately() {
        let (busy, quiet) = ([800.0, 800.0, 400.0], [0.0, 1400.0, 600.0]);
        assert!(broken(busy, quiet).is_empty());
        assert_eq!(broken([793.0, 805.0, 402.0], quiet), [0; 0], "793 of 800 is within the tolerance");
        assert_eq!(
            broken([700.0, 867.0, 433.0], quiet),
            [0, 1, 3],
            "the VM with the reservation lost service to the others"
        );
        assert_eq!(broken([300.0, 300.0, 1400.0], quiet), [0, 1, 2, 3], "as without a policy");
        assert_eq!(broken([800.0, 700.0, 350.0], quiet), [4], "capacity was lost, but divided correctly");
        assert_eq!(broken(busy, [0.0, 1200.0, 600.0]), [5]);
        assert_eq!(broken(busy, [0.0, 1300.0, 700.0]), [6]);
        assert_eq!(broken(busy, [0.0, 1500.0, 500.0]), [7]);
    }

    #[test]
    fn guarantees_of_the_link_are_checked_separately() {
        let claims = [(50.0, f64::INFINITY, 100.0), (0.0, f64::INFINITY, 200.0), (0.0, 15.0, 100.0)]
            .map(|(reservation, limit, weight)| Claim { reservation, limit, weight });
        let broken = |mbit: [f64; 3]| -> Vec<usize> {
            with(Kept::No, &judge_link(100.0, &claims, &shares(mbit, Duration::ZERO)))
        };
        assert_eq!(broken([50.0, 35.0, 15.0]), [0; 0]);
        assert_eq!(broken([33.0, 33.0, 34.0]), [0, 1, 2], "as without a policy");
        assert_eq!(broken([50.0, 26.6, 13.4]), [3], "a part of the rate was lost");
        assert_eq!(broken([55.0, 30.0, 15.0]), [1]);
    }

    #[test]
    fn the_text_states_the_tolerance() {
        let all = judge(2000.0, &CLAIMS, &outcome([800.0; 3], false), &outcome([800.0; 3], false));
        assert_eq!(all[0].text, "oltp gets its reservation (at least 99 %)");
        assert_eq!(all[2].text, "backup stays within its limit (at most 102 %)");
        assert!(all.iter().all(|promise| promise.text.contains(" %")));
    }
}
