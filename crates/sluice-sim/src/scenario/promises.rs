//! Checks whether a run kept the guarantees of each VM: its reservation, its limit and its latency target.
//!
//! A reservation applies while a VM has a request queued at the gate, so it is compared with the VM's service divided
//! by that time. Bytes count for it as the scheduler counts them ([`sluice_sched::cost::reserved_bytes`]). Weights are not checked: the share of a VM depends on the requests of all others at each moment.
//! Tolerances are stated below; two requests more or less are due to the ends of the measurement.
//!
//! Example: a VM reserves 400 iops and always had a request queued. In 10 s it got 3,950 requests, which is 395 of 400
//! iops and less than 99 %: not kept.

use std::fmt;
use std::time::Duration;

use sluice_sched::policy::Field;
use sluice_sched::scheduler::DeviceClass;
use sluice_sched::{Iops, Limit};

use super::outcome::VmOutcome;
use super::{Device, Event, Scenario, Vm, VmEvent};
use crate::record::Served;

/// Minimum part of a reservation that counts as kept.
const RESERVED_MIN: f64 = 0.99;
/// Maximum multiple of a limit that counts as kept, in addition to its burst.
const LIMIT_MAX: f64 = 1.02;

/// A guarantee of a VM, and whether it was kept.
#[derive(Debug, Clone, PartialEq)]
pub struct Promise {
    /// As text, for example `reservation 400 iops`.
    pub text: String,
    pub verdict: Verdict,
}

/// Result of a guarantee.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Verdict {
    Kept,
    /// Not kept: the measured and the guaranteed value, in the unit of the guarantee.
    Broken {
        measured: f64,
        expected: f64,
    },
    /// The device's scheduler does not enforce it, which the file allows.
    NotGiven,
    /// Not checked: it changed in the run, holds across nodes, or depends on a guest's scheduler or on reads only.
    NotJudged,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Kept => f.write_str("kept"),
            Verdict::Broken { measured, expected } => {
                write!(f, "BROKEN: {:.0} % of {expected:.0}", 100.0 * measured / expected)
            }
            Verdict::NotGiven => f.write_str("not given"),
            Verdict::NotJudged => f.write_str("not judged"),
        }
    }
}

/// Input of the checks for one VM.
pub(super) struct Run<'a> {
    pub(super) scenario: &'a Scenario,
    pub(super) number: usize,
    pub(super) served: Served,
    pub(super) outcome: &'a VmOutcome,
}

/// Checks all guarantees of a VM.
pub(super) fn check(run: &Run<'_>) -> Vec<Promise> {
    let vm = &run.scenario.vms[run.number];
    let device = &run.scenario.devices[vm.device];
    let measured = run.scenario.settings.duration - run.scenario.settings.warm_up;
    let mut promises = Vec::new();
    let mut add = |field: Field, text: String, verdict: Verdict| {
        let verdict = match () {
            () if !device.scheduler.enforces_with(field, &device.params) => Verdict::NotGiven,
            () if device.nodes > 1 || vm.guest.is_some() || changes(run.scenario, run.number) => Verdict::NotJudged,
            () => verdict,
        };
        promises.push(Promise { text, verdict });
    };
    let Served { normalised, reserved_bytes, waiting, .. } = run.served;
    let each = run.outcome.completed.max(1) as f64;
    // A VM that has only throttled requests queued is owed no more than their limit, and that time is not recorded.
    let by_direction = vm.policy.read_limit.is_set() || vm.policy.write_limit.is_set();
    let judged = |verdict| match verdict {
        Verdict::Broken { .. } if by_direction => Verdict::NotJudged,
        verdict => verdict,
    };
    if let Some(iops) = vm.policy.reservation.iops {
        let verdict = judged(at_least(iops.as_f64(), normalised, waiting, normalised / each));
        add(Field::Reservation, format!("reservation {iops}"), verdict);
    }
    if let Some(rate) = vm.policy.reservation.bytes {
        let verdict = judged({
            let got = reserved_bytes as f64;
            at_least(rate.bytes_per_second() as f64, got, waiting, got / each)
        });
        add(Field::Reservation, format!("reservation {rate}"), verdict);
    }
    for (field, text, verdict) in limits(run, measured) {
        add(field, text, verdict);
    }
    if let Some(target) = vm.policy.latency {
        let (got, wanted) = (run.outcome.percentile(99.0).as_secs_f64() * 1e6, target.p99.as_secs_f64() * 1e6);
        let verdict = match target.reads_only {
            true => Verdict::NotJudged,
            false if got <= wanted => Verdict::Kept,
            false => Verdict::Broken { measured: got, expected: wanted },
        };
        add(Field::Latency, format!("99 % within {wanted:.0} us"), verdict);
    }
    promises
}

/// Checks all limits of a VM, of which `measured` is the time.
fn limits(run: &Run<'_>, measured: Duration) -> Vec<(Field, String, Verdict)> {
    let vm = &run.scenario.vms[run.number];
    let Served { normalised, bytes, written, .. } = run.served;
    let each = run.outcome.completed.max(1) as f64;
    let mut checked = Vec::new();
    let limits = [
        (Field::Limit, vm.policy.limit, (normalised, bytes)),
        (Field::ReadLimit, vm.policy.read_limit, (normalised - written.0, bytes - written.1)),
        (Field::WriteLimit, vm.policy.write_limit, written),
    ];
    let burst = |rate: f64| burst(vm, &run.scenario.devices[vm.device], rate);
    let saved = |rate: f64, above: Option<f64>| {
        let length = vm.policy.timed_burst.map_or(0.0, |burst| burst.length.as_secs_f64());
        above.map_or(0.0, |above| (above - rate) * length)
    };
    let above = vm.policy.timed_burst.map_or(Limit::default(), |burst| burst.rate);
    for (field, limit, (normalised, bytes)) in limits {
        if let Some(iops) = limit.iops {
            let edges = burst(iops.as_f64()).0
                + saved(iops.as_f64(), above.iops.map(Iops::as_f64))
                + 2.0 * run.served.normalised / each;
            let verdict = at_most(iops.as_f64(), normalised, measured, edges);
            checked.push((field, format!("{} {iops}", field.name()), verdict));
        }
        if let Some(rate) = limit.bytes {
            let promised = rate.bytes_per_second() as f64;
            let above = above.bytes.map(|rate| rate.bytes_per_second() as f64);
            let edges = burst(promised).1 + saved(promised, above) + 2.0 * run.served.bytes as f64 / each;
            let verdict = at_most(promised, bytes as f64, measured, edges);
            checked.push((field, format!("{} {rate}", field.name()), verdict));
        }
    }
    checked
}

/// Whether the policy of a VM changes during the run.
fn changes(scenario: &Scenario, number: usize) -> bool {
    let is = |event: &Event| matches!(event, Event::Vm(vm, VmEvent::Policy(_)) if *vm == number);
    scenario.timeline.iter().any(|planned| is(&planned.event))
}

/// Checks a minimum. `each` is the size of one request, in the unit of `got`.
fn at_least(promised: f64, got: f64, waiting: Duration, each: f64) -> Verdict {
    let seconds = waiting.as_secs_f64();
    match got + 2.0 * each >= RESERVED_MIN * promised * seconds {
        true => Verdict::Kept,
        false => Verdict::Broken { measured: got / seconds, expected: promised },
    }
}

/// Checks a maximum. `more` is the permitted excess over the rate, in the unit of `got`.
fn at_most(promised: f64, got: f64, measured: Duration, more: f64) -> Verdict {
    let seconds = measured.as_secs_f64();
    match got <= LIMIT_MAX * promised * seconds + more {
        true => Verdict::Kept,
        false => Verdict::Broken { measured: got / seconds, expected: promised },
    }
}

/// The burst of a limit of this rate, in normalised requests and in bytes; see [`Policy::burst`](sluice_sched::Policy).
fn burst(vm: &Vm, device: &Device, rate: f64) -> (f64, f64) {
    let model = &device.info.cost;
    match vm.policy.burst {
        Some(requests) => (f64::from(requests), f64::from(requests) * model.reference_size().0 as f64),
        None => {
            let largest = u32::try_from(device.gate.transfer_max.0).unwrap_or(u32::MAX);
            let depth = f64::from(device.gate.depth);
            let in_time = if device.info.device_class == DeviceClass::Disk { rate / 10.0 } else { 0.0 };
            ((depth * model.cost_max(largest).as_f64()).max(in_time), (depth * f64::from(largest)).max(in_time))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_reservation_counts_only_while_its_vm_waits() {
        assert_eq!(at_least(400.0, 397.0, SECOND, 1.0), Verdict::Kept);
        assert_eq!(at_least(400.0, 390.0, SECOND, 1.0), Verdict::Broken { measured: 390.0, expected: 400.0 });
        assert_eq!(at_least(400.0, 100.0, SECOND / 4, 1.0), Verdict::Kept, "it had requests for a quarter of the time");
        assert_eq!(at_least(400.0, 0.0, Duration::ZERO, 0.0), Verdict::Kept, "it had no requests");
        assert!(matches!(at_least(400.0, 0.0, SECOND, 0.0), Verdict::Broken { .. }), "it got nothing");
    }

    #[test]
    fn a_limit_passes_its_burst_once() {
        assert_eq!(at_most(100.0, 132.0, SECOND, 32.0), Verdict::Kept);
        assert_eq!(at_most(100.0, 135.0, SECOND, 32.0), Verdict::Broken { measured: 135.0, expected: 100.0 });
    }
}
