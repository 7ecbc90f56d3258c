//! Metrics of devices.

use sluice_observe::reading::DeviceReading;
use sluice_sched::Kind as Operation;

use super::{Family, Kind, Samples, Value};

/// The larger part of the stated capacity that is reserved, in requests or in bytes.
fn reserved_ratio(device: &DeviceReading) -> Option<f64> {
    let capacity = &device.sample.capacity;
    let by_requests = capacity.iops.map(|iops| device.sample.reserved_iops() / iops.as_f64());
    let by_bytes = capacity.bytes.map(|bytes| device.sample.reserved_bytes() as f64 / bytes.bytes_per_second() as f64);
    by_requests.into_iter().chain(by_bytes).reduce(f64::max)
}

/// A gauge of each device.
const fn gauge(name: &'static str, help: &'static str, value: fn(&DeviceReading) -> Option<Value>) -> Family {
    Family { name, kind: Kind::Gauge, labels: &["device"], help, samples: Samples::Device(value) }
}

/// A counter of each device.
const fn counter(name: &'static str, help: &'static str, value: fn(&DeviceReading) -> Option<Value>) -> Family {
    Family { name, kind: Kind::Counter, labels: &["device"], help, samples: Samples::Device(value) }
}

pub(super) static FAMILIES: &[Family] = &[
    gauge("sluice_device_up", "Whether the thread of the device responds", |device| {
        Some(matches!(device.health, "serving" | "stalled").into())
    }),
    gauge("sluice_device_stalled", "Whether the device completes nothing although requests are in flight", |device| {
        Some((device.health == "stalled").into())
    }),
    counter("sluice_device_restarts_total", "Restarts of the thread of the device after a failure", |device| {
        Some(device.restarts.into())
    }),
    gauge("sluice_device_inflight", "Requests at the device", |device| Some(device.sample.in_flight.into())),
    gauge("sluice_device_depth", "Maximum number of requests at the device", |device| {
        Some(u64::from(device.sample.depth).into())
    }),
    gauge("sluice_device_queued", "Requests that wait at the gate of the device", |device| {
        Some(device.sample.queued.into())
    }),
    counter(
        "sluice_device_full_seconds_total",
        "Time in which no further request could be submitted, because `depth` requests were at the device",
        |device| Some((device.sample.stats.full_nanos(device.sample.at) as f64 / 1e9).into()),
    ),
    counter(
        "sluice_device_thread_seconds_total",
        "Time that the thread of the device has worked; polling without work does not count",
        |device| Some((device.sample.worked_nanos as f64 / 1e9).into()),
    ),
    counter(
        "sluice_device_thread_late_seconds_total",
        "Time by which the thread of the device looked at its requests too late, because it had no CPU or too much to do",
        |device| Some((device.sample.late_nanos as f64 / 1e9).into()),
    ),
    gauge(
        "sluice_device_capacity_ops_per_second",
        "Stated capacity in normalised requests; missing if none is stated",
        |device| device.sample.capacity.iops.map(|iops| iops.as_f64().into()),
    ),
    gauge("sluice_device_capacity_bytes_per_second", "Stated capacity in bytes; missing if none is stated", |device| {
        device.sample.capacity.bytes.map(|rate| rate.bytes_per_second().into())
    }),
    gauge(
        "sluice_device_measured_ops_per_second",
        "Throughput of the device in the last minute in which it was full, in normalised requests, in a pool that of all hosts; missing \
         until it was full for ten seconds",
        |device| device.measured_iops.map(Value::from),
    ),
    gauge(
        "sluice_device_measured_bytes_per_second",
        "Throughput of the device in the last minute in which it was full, in bytes; missing in a pool, and until it was full for ten \
         seconds",
        |device| device.measured_bytes_per_second.map(Value::from),
    ),
    gauge(
        "sluice_device_window_requests",
        "Normalised requests that may be in flight, where that follows the time of requests; missing without `latency`",
        |device| device.sample.window.as_ref().map(|window| window.window.into()),
    ),
    gauge(
        "sluice_device_stated_latency_seconds",
        "Stated mean time of requests at the device; missing without `latency`",
        |device| device.sample.window.as_ref().map(|window| (window.stated as f64 / 1e9).into()),
    ),
    gauge(
        "sluice_device_mean_latency_seconds",
        "Mean time of requests at the device in the last half second, weighted by cost; missing without `latency` or requests",
        |device| device.sample.window.as_ref().and_then(|window| Some((window.latency? as f64 / 1e9).into())),
    ),
    gauge(
        "sluice_device_latency_too_low",
        "Whether the device takes longer for one request than is stated, so that it gives less than it could",
        |device| Some(device.sample.own_time().is_some().into()),
    ),
    gauge("sluice_device_below_capacity", "Whether the full device gives less than its stated capacity", |device| {
        Some(device.is_too_slow.into())
    }),
    gauge("sluice_device_overcommitted", "Whether the reservations do not fit into what the device gives", |device| {
        Some(device.is_overcommitted.into())
    }),
    gauge(
        "sluice_device_reserved_ratio",
        "Reserved part of the stated capacity, in requests or in bytes, whichever is larger; missing if none is stated",
        |device| reserved_ratio(device).map(Value::from),
    ),
    Family {
        name: "sluice_device_latency_seconds",
        kind: Kind::Histogram,
        labels: &["device", "op"],
        help: "Time from submission to the device to completion, by operation",
        samples: Samples::Of(|state, series| {
            state.reading.devices.iter().try_for_each(|device| {
                let (name, stats) = (device.sample.device.as_str(), &device.sample.stats);
                Operation::ALL.into_iter().try_for_each(|op| {
                    let (times, nanos) = (&stats.service_time[op as usize], stats.service_nanos[op as usize]);
                    series.times(&[name, op.name()], times, nanos)
                })
            })
        }),
    },
    Family {
        name: "sluice_scheduler_wait_seconds",
        kind: Kind::Histogram,
        labels: &["device"],
        help: "Time from arrival at the gate to submission, of the requests of all VMs",
        samples: Samples::Of(|state, series| {
            let mut devices = state.reading.devices.iter();
            devices.try_for_each(|device| series.sum_of_times(&[&device.sample.device], &device.waits))
        }),
    },
];
