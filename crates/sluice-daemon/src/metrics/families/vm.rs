//! Metrics of VMs. A VM with volumes on several devices has a policy, and series, on each of them.

use std::fmt;

use sluice_observe::reading::PromisesReading;
use sluice_observe::sample::VmSample;
use sluice_sched::policy::Limit;
use sluice_sched::{Phase, Wait};

use super::{Family, Kind, Samples, Value, vms};
use crate::metrics::State;
use crate::metrics::series::Series;

/// Adds the series of each VM on each device. `labels` are its device and its name.
fn each(
    state: &State,
    series: &mut Series<'_>,
    add: impl Fn(&mut Series<'_>, [&str; 2], &VmSample) -> fmt::Result,
) -> fmt::Result {
    vms(state).try_for_each(|(device, vm, _)| add(series, [device, &vm.vm], vm))
}

/// Adds the series of the promises to each VM and to each volume, whose name is empty for those of the VM.
fn each_promise(
    state: &State,
    series: &mut Series<'_>,
    add: impl Fn(&mut Series<'_>, [&str; 3], &PromisesReading) -> fmt::Result,
) -> fmt::Result {
    vms(state).try_for_each(|(device, vm, reading)| {
        add(series, [device, &vm.vm, ""], &reading.promises)?;
        let mut volumes = vm.volumes.iter().zip(&reading.volumes);
        volumes.try_for_each(|(volume, promises)| add(series, [device, &vm.vm, &volume.volume], promises))
    })
}

/// A gauge of each VM on each device.
const fn gauge(name: &'static str, help: &'static str, value: fn(&VmSample) -> Option<Value>) -> Family {
    Family { name, kind: Kind::Gauge, labels: &["device", "vm"], help, samples: Samples::Vm(value) }
}

/// A counter of each VM on each device.
const fn counter(name: &'static str, help: &'static str, value: fn(&VmSample) -> Option<Value>) -> Family {
    Family { name, kind: Kind::Counter, labels: &["device", "vm"], help, samples: Samples::Vm(value) }
}

/// The limits of a VM, by what they count.
fn limits(vm: &VmSample) -> [(&'static str, &Limit); 3] {
    [("all", &vm.policy.limit), ("read", &vm.policy.read_limit), ("write", &vm.policy.write_limit)]
}

/// The label of a phase.
fn phase(phase: Phase) -> &'static str {
    match phase {
        Phase::Reservation => "reservation",
        Phase::Weight => "weight",
        Phase::None => "other",
    }
}

/// The label of a reason for waiting.
fn reason(wait: Wait) -> &'static str {
    match wait {
        Wait::None => "none",
        Wait::OwnLimit => "own_limit",
        Wait::Share => "share",
        Wait::Device => "device",
        Wait::Batch => "batch",
        Wait::Anticipation => "anticipation",
    }
}

pub(super) static FAMILIES: &[Family] = &[
    counter(
        "sluice_normalized_requests_total",
        "Completed service in normalised requests, the unit of reservations and limits; a large request counts as several",
        |vm| Some(vm.stats.service().into()),
    ),
    Family {
        name: "sluice_dispatches_total",
        kind: Kind::Counter,
        labels: &["device", "vm", "phase"],
        help: "Requests submitted to the device, by phase: `reservation`, `weight`, or `other` with a scheduler that has neither; \
               a phase that never occurred is missing",
        samples: Samples::Of(|state, series| {
            each(state, series, |series, [device, vm], sample| {
                [Phase::Reservation, Phase::Weight, Phase::None].into_iter().try_for_each(|of| {
                    let count = sample.stats.dispatched_in(of);
                    if count == 0 { Ok(()) } else { series.count(&[device, vm, phase(of)], count) }
                })
            })
        }),
    },
    Family {
        name: "sluice_throttled_seconds_total",
        kind: Kind::Counter,
        labels: &["device", "vm", "reason"],
        help: "Time that requests waited at the gate, summed over requests, by main reason: `own_limit`, `share` (others were \
               served), `device` (full), `batch`, `anticipation`; a reason that never occurred is missing",
        samples: Samples::Of(|state, series| {
            each(state, series, |series, [device, vm], sample| {
                Wait::ALL.into_iter().filter(|wait| *wait != Wait::None).try_for_each(|wait| {
                    let nanos = sample.stats.waits[wait as usize].nanos;
                    if nanos == 0 { Ok(()) } else { series.add(&[device, vm, reason(wait)], nanos as f64 / 1e9) }
                })
            })
        }),
    },
    gauge("sluice_outstanding_requests", "Requests that were taken from clients and are not answered", |vm| {
        Some(u64::from(vm.outstanding).into())
    }),
    gauge(
        "sluice_policy_reservation_ops_per_second",
        "Reservation in normalised requests; missing without one",
        |vm| vm.policy.reservation.iops.map(|iops| iops.as_f64().into()),
    ),
    gauge("sluice_policy_reservation_bytes_per_second", "Reservation in bytes; missing without one", |vm| {
        vm.policy.reservation.bytes.map(|rate| rate.bytes_per_second().into())
    }),
    Family {
        name: "sluice_policy_limit_ops_per_second",
        kind: Kind::Gauge,
        labels: &["device", "vm", "op"],
        help: "Limit in normalised requests of `all`, `read` or `write` requests; missing without one",
        samples: Samples::Of(|state, series| {
            each(state, series, |series, [device, vm], sample| {
                limits(sample).into_iter().try_for_each(|(op, limit)| {
                    limit.iops.map_or(Ok(()), |iops| series.add(&[device, vm, op], iops.as_f64()))
                })
            })
        }),
    },
    Family {
        name: "sluice_policy_limit_bytes_per_second",
        kind: Kind::Gauge,
        labels: &["device", "vm", "op"],
        help: "Limit in bytes of `all`, `read` or `write` requests; missing without one",
        samples: Samples::Of(|state, series| {
            each(state, series, |series, [device, vm], sample| {
                limits(sample).into_iter().try_for_each(|(op, limit)| {
                    limit.bytes.map_or(Ok(()), |bytes| series.count(&[device, vm, op], bytes.bytes_per_second()))
                })
            })
        }),
    },
    counter(
        "sluice_vm_cpu_seconds_total",
        "CPU time of the device thread for the VM: measured for the thread, and divided by the work for each VM",
        |vm| Some((vm.cpu.used_nanos as f64 / 1e9).into()),
    ),
    Family {
        name: "sluice_vm_cpu_held_seconds_total",
        kind: Kind::Counter,
        labels: &["device", "vm"],
        help: "Time for which `cpu_limit` held back requests or frames of the VM; missing without such a limit",
        samples: Samples::Vm(|vm| vm.cpu.limit.map(|_| (vm.cpu.held_nanos as f64 / 1e9).into())),
    },
    gauge("sluice_policy_weight", "Weight; missing without one", |vm| {
        vm.policy.weight.map(|weight| weight.as_f64().into())
    }),
    gauge(
        "sluice_policy_latency_target_seconds",
        "Target for the 99th percentile of the latency; missing without one",
        |vm| vm.policy.latency.map(|target| target.p99.as_secs_f64().into()),
    ),
    Family {
        name: "sluice_promise_broken",
        kind: Kind::Gauge,
        labels: &["device", "vm", "volume", "kind"],
        help: "Whether a promise is broken now: `reservation` or `latency`. Without the label `volume` the promise is \
               that of the VM",
        samples: Samples::Of(|state, series| {
            each_promise(state, series, |series, [device, vm, volume], promises| {
                promises
                    .broken
                    .iter()
                    .try_for_each(|(kind, is_broken)| series.is(&[device, vm, volume, kind.name()], *is_broken))
            })
        }),
    },
    Family {
        name: "sluice_slo_violation_seconds_total",
        kind: Kind::Counter,
        labels: &["device", "vm", "volume", "kind", "cause"],
        help: "Time in which a promise was broken, by kind and main cause; missing if it never was. Without the label \
               `volume` the promise is that of the VM",
        samples: Samples::Of(|state, series| {
            each_promise(state, series, |series, [device, vm, volume], promises| {
                promises.violations.seconds().try_for_each(|(kind, cause, seconds)| {
                    series.add(&[device, vm, volume, kind.name(), cause.name()], seconds)
                })
            })
        }),
    },
];
