//! What was promised, and whether it was kept.
//!
//! Each promise is judged on its own cause: that the device's capacity is used is one promise, and how it is split is
//! another, so what is left over is split from what the device really gave. Tolerances are part of the promise's text.

use super::load::Measured;
use super::scene::{BACKUP, CAST, OLTP, WEB};
use super::share::{Claim, fill};

/// A reservation is kept if this part of it was got: what is left is the edges of the measurement.
const RESERVED_MIN: f64 = 0.99;
/// A limit is kept up to this multiple of it: its burst may fall into the measurement.
const LIMIT_MAX: f64 = 1.02;
/// How much of a limit must be used where nothing else holds its VM back: what the machine's pauses cost beyond its
/// burst, a limit does not give back.
const LIMIT_USED_MIN: f64 = 0.9;
/// How far a VM may be from its part of what is left over.
const SHARE_OFF_MAX: f64 = 0.05;
/// How much of the capacity must be used: the device thread of a busy machine may wake up late.
const USED_MIN: f64 = 0.95;

/// A promise.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Promise {
    /// In words, with its tolerance.
    pub(super) text: String,
    /// Whether it was kept.
    pub(super) kept: bool,
    /// Normalised requests per second.
    pub(super) measured: f64,
    /// The same, as promised.
    pub(super) expected: f64,
}

/// What one VM is promised before all else, as measured in one phase.
pub(super) fn headline(vm: usize, claims: &[Claim], measured: &[Measured]) -> Promise {
    match vm {
        OLTP => reservation(claims, measured),
        BACKUP => limit("stays within its limit", claims, measured),
        _ => part("gets its weight's part of what is left", vm, claims, measured),
    }
}

/// Every promise of the phase with mClock: while all ask for all they can get, and while the VM with the reservation is
/// quiet.
pub(super) fn judge(capacity: f64, claims: &[Claim], busy: &[Measured], quiet: &[Measured]) -> Vec<Promise> {
    let mut left = claims.to_vec();
    left[OLTP] = Claim { reservation: 0.0, limit: 0.0, weight: claims[OLTP].weight };
    vec![
        headline(OLTP, claims, busy),
        headline(WEB, claims, busy),
        headline(BACKUP, claims, busy),
        part("gets its weight's part of what is left too", BACKUP, claims, busy),
        used("No capacity is wasted", capacity, busy),
        used(&format!("What {} leaves while it is quiet goes to the others", CAST[OLTP].name), capacity, quiet),
        limit("stays within its limit even then", &left, quiet),
        all_of_limit(&left, quiet),
    ]
}

fn sum(measured: &[Measured]) -> f64 {
    measured.iter().map(|vm| vm.iops).sum()
}

fn reservation(claims: &[Claim], measured: &[Measured]) -> Promise {
    let (expected, measured) = (claims[OLTP].reservation, measured[OLTP].iops);
    let text = format!("{} gets its reservation (at least {} %)", CAST[OLTP].name, percent(RESERVED_MIN));
    Promise { text, kept: measured >= RESERVED_MIN * expected, measured, expected }
}

fn limit(what: &str, claims: &[Claim], measured: &[Measured]) -> Promise {
    let (expected, measured) = (claims[BACKUP].limit, measured[BACKUP].iops);
    let text = format!("{} {what} (at most {} %)", CAST[BACKUP].name, percent(LIMIT_MAX));
    Promise { text, kept: measured <= LIMIT_MAX * expected, measured, expected }
}

/// A limit lets nobody have less than it says, where there is enough for all.
fn all_of_limit(claims: &[Claim], measured: &[Measured]) -> Promise {
    let (expected, measured) = (fill(sum(measured), claims)[BACKUP], measured[BACKUP].iops);
    let text = format!("{} gets all of that limit (at least {} %)", CAST[BACKUP].name, percent(LIMIT_USED_MIN));
    Promise { text, kept: measured >= LIMIT_USED_MIN * expected, measured, expected }
}

fn part(what: &str, vm: usize, claims: &[Claim], measured: &[Measured]) -> Promise {
    let expected = fill(sum(measured), claims)[vm];
    let measured = measured[vm].iops;
    let text = format!("{} {what} (within {} %)", CAST[vm].name, percent(SHARE_OFF_MAX));
    Promise { text, kept: (measured - expected).abs() <= SHARE_OFF_MAX * expected, measured, expected }
}

fn used(what: &str, capacity: f64, measured: &[Measured]) -> Promise {
    let measured = sum(measured);
    let text = format!("{what} (at least {} % is used)", percent(USED_MIN));
    Promise { text, kept: measured >= USED_MIN * capacity, measured, expected: capacity }
}

fn percent(part: f64) -> u64 {
    (part * 100.0).round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLAIMS: [Claim; 3] = [
        Claim { reservation: 800.0, limit: f64::INFINITY, weight: 100.0 },
        Claim { reservation: 0.0, limit: f64::INFINITY, weight: 200.0 },
        Claim { reservation: 0.0, limit: 600.0, weight: 100.0 },
    ];

    fn measured(iops: [f64; 3]) -> [Measured; 3] {
        iops.map(|iops| Measured { iops, p50_us: 1, p99_us: 1 })
    }

    fn broken(busy: [f64; 3], quiet: [f64; 3]) -> Vec<usize> {
        let judged = judge(2000.0, &CLAIMS, &measured(busy), &measured(quiet));
        judged.iter().enumerate().filter_map(|(at, promise)| (!promise.kept).then_some(at)).collect()
    }

    #[test]
    fn each_promise_is_judged_on_its_own_cause() {
        let (busy, quiet) = ([800.0, 800.0, 400.0], [0.0, 1400.0, 600.0]);
        assert!(broken(busy, quiet).is_empty());
        assert_eq!(broken([793.0, 805.0, 402.0], quiet), [0; 0], "793 of 800 is within its tolerance");
        assert_eq!(broken([700.0, 867.0, 433.0], quiet), [0, 1, 3], "who reserved lost it to the others");
        assert_eq!(broken([300.0, 300.0, 1400.0], quiet), [0, 1, 2, 3], "as without a policy");
        assert_eq!(broken([800.0, 700.0, 350.0], quiet), [4], "capacity was lost, and split as it should be");
        assert_eq!(broken(busy, [0.0, 1200.0, 600.0]), [5]);
        assert_eq!(broken(busy, [0.0, 1300.0, 700.0]), [6]);
        assert_eq!(broken(busy, [0.0, 1500.0, 500.0]), [7]);
    }

    #[test]
    fn the_text_states_the_tolerance() {
        let all = judge(2000.0, &CLAIMS, &measured([800.0; 3]), &measured([800.0; 3]));
        assert_eq!(all[0].text, "oltp gets its reservation (at least 99 %)");
        assert_eq!(all[2].text, "backup stays within its limit (at most 102 %)");
        assert!(all.iter().all(|promise| promise.text.contains(" %")));
    }
}
