//! The current state: the figures of every VM, volume and device.
//!
//! Times are upper bounds of percentiles, at most an eighth above the true value.

use sluice_api::policy::{Class, Policy as Described, PriorityClass};
use sluice_api::status::{Cpu, DeviceWindow, Intervals, Nic, Operation, Parts, Rates, ServiceTime, WaitedFor};
use sluice_net::NicTotals;
use sluice_sched::policy::{Class as OwnClass, PriorityClass as OwnPriorityClass};
use sluice_sched::{ByteRate, Iops, Kind, Percent, Phase, Policy, Wait, Weight};

use crate::flow::Flow;
use crate::recent::Recent;
use crate::sample::{ClientFaults, DeviceSample};

fn rates(flow: &Flow) -> Rates {
    let micros = |percent| flow.latency.percentile(percent).map(|nanos| nanos as f64 / 1000.0);
    Rates {
        iops: rounded(flow.iops()),
        read_iops: rounded(flow.iops_of(Kind::Read)),
        write_iops: rounded(flow.iops_of(Kind::Write)),
        normalised_iops: rounded(flow.normalised_iops()),
        bytes_per_second: rounded(flow.bytes_per_second()),
        bits_per_second: flow.is_link.then(|| (8.0 * flow.bytes_per_second()).round()),
        failed_per_second: rounded(flow.per_second(flow.failed as f64)),
        p50_us: micros(50.0),
        p99_us: micros(99.0),
    }
}

/// Rounds to thousandths, so that output is short.
pub(crate) fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

pub(crate) fn intervals(recent: &Recent) -> Intervals {
    let (second, ten_seconds, minute) = (recent.last(), recent.ten_seconds(), recent.minute());
    Intervals { second: rates(&second), ten_seconds: rates(&ten_seconds), minute: rates(&minute) }
}

/// `flow`: that of the last ten seconds.
pub(crate) fn parts(flow: &Flow) -> Parts {
    let percent = |part: f64| (part * 1000.0).round() / 10.0;
    let waits = flow.main_wait().map(|_| {
        let part = |wait| percent(flow.waited_for(wait).unwrap_or(0.0));
        WaitedFor {
            own_limit: part(Wait::OwnLimit),
            share: part(Wait::Share),
            device: part(Wait::Device),
            batch: part(Wait::Batch),
            anticipation: part(Wait::Anticipation),
        }
    });
    Parts {
        backlogged_percent: percent(flow.backlogged()),
        by_reservation_percent: flow.by(Phase::Reservation).map(percent),
        by_weight_percent: flow.by(Phase::Weight).map(percent),
        waited_for_percent: waits,
    }
}

/// `flow`: that of the last ten seconds.
pub(crate) fn cpu(limit: Option<Percent>, flow: &Flow) -> Cpu {
    let percent = |part: f64| (part * 10_000.0).round() / 100.0;
    Cpu {
        limit_percent: limit.map(|limit| limit.hundredths() as f64 / 100.0),
        used_percent: percent(flow.cpu()),
        held_percent: percent(flow.held()),
    }
}

pub(crate) fn nic(totals: &NicTotals) -> Nic {
    let drops = totals.drops.iter().filter(|(_, count)| *count > 0);
    Nic {
        sent_frames: totals.sent,
        sent_bytes: totals.sent_bytes,
        received_frames: totals.received,
        received_bytes: totals.received_bytes,
        dropped_frames: drops.map(|(reason, count)| (reason.name().to_owned(), count)).collect(),
    }
}

pub(crate) fn client_faults(faults: &ClientFaults) -> sluice_api::status::ClientFaults {
    sluice_api::status::ClientFaults {
        refused: faults.refused,
        refusal: faults.refusal.map(str::to_owned),
        stopped_queues: faults.stopped_queues,
        stopped: faults.stopped.map(str::to_owned),
    }
}

pub(crate) fn operation(kind: Kind) -> Operation {
    match kind {
        Kind::Read => Operation::Read,
        Kind::Write => Operation::Write,
        Kind::Flush => Operation::Flush,
        Kind::Discard => Operation::Discard,
        Kind::WriteZeroes => Operation::WriteZeroes,
    }
}

/// Percentiles of a device's own times, by kind of request.
pub(crate) fn service_times(sample: &DeviceSample) -> Vec<ServiceTime> {
    let of = |kind: Kind| {
        let times = &sample.stats.service_time[kind as usize];
        let micros = |percent| times.percentile(percent).map(|nanos| nanos as f64 / 1000.0);
        Some(ServiceTime { kind: operation(kind), p50_us: micros(50.0)?, p99_us: micros(99.0)? })
    };
    Kind::ALL.into_iter().filter_map(of).collect()
}

/// The window of a device as replies have it, if it has one.
pub(crate) fn window(sample: &DeviceSample) -> Option<DeviceWindow> {
    let (micros, state) = (|nanos: u64| nanos / 1000, sample.window.as_ref()?);
    Some(DeviceWindow {
        requests: (state.window * 100.0).round() / 100.0,
        latency_us: micros(state.stated),
        measured_latency_us: state.latency.map(micros),
        own_time_us: sample.own_time().map(micros),
    })
}

/// A policy as replies have it.
#[must_use]
pub fn policy(policy: &Policy) -> Described {
    let burst = policy.timed_burst;
    Described {
        reservation_iops: policy.reservation.iops.map(Iops::as_f64),
        reservation_bytes_per_second: policy.reservation.bytes.map(ByteRate::bytes_per_second),
        limit_iops: policy.limit.iops.map(Iops::as_f64),
        limit_bytes_per_second: policy.limit.bytes.map(ByteRate::bytes_per_second),
        read_limit_iops: policy.read_limit.iops.map(Iops::as_f64),
        read_limit_bytes_per_second: policy.read_limit.bytes.map(ByteRate::bytes_per_second),
        write_limit_iops: policy.write_limit.iops.map(Iops::as_f64),
        write_limit_bytes_per_second: policy.write_limit.bytes.map(ByteRate::bytes_per_second),
        weight: policy.weight.map(Weight::as_f64),
        burst: policy.burst,
        burst_iops: burst.and_then(|burst| burst.rate.iops).map(Iops::as_f64),
        burst_bytes_per_second: burst.and_then(|burst| burst.rate.bytes).map(ByteRate::bytes_per_second),
        burst_seconds: burst.map(|burst| burst.length.as_secs_f64()),
        idle_credit: policy.idle_credit,
        latency_p99_us: policy.latency.map(|target| target.p99.as_secs_f64() * 1e6),
        latency_reads_only: policy.latency.map(|target| target.reads_only),
        class: match policy.class {
            OwnClass::Foreground => Class::Foreground,
            OwnClass::Background => Class::Background,
        },
        priority_class: match policy.priority_class {
            OwnPriorityClass::RealTime => PriorityClass::RealTime,
            OwnPriorityClass::BestEffort => PriorityClass::BestEffort,
            OwnPriorityClass::Idle => PriorityClass::Idle,
        },
        priority_level: policy.priority_level,
    }
}
