//! Metrics of the pools that devices are a part of.

use sluice_observe::reading::DeviceReading;
use sluice_pool::exchange::{State, requests};

use super::{Family, Kind, Samples, Value};

/// A gauge of each device in a pool.
const fn gauge(name: &'static str, help: &'static str, value: fn(&DeviceReading) -> Option<Value>) -> Family {
    Family { name, kind: Kind::Gauge, labels: &["device"], help, samples: Samples::Device(value) }
}

fn state(device: &DeviceReading) -> Option<&State> {
    device.sample.window.as_ref()?.pool.as_deref()
}

/// Number of this host in the pool.
fn own(device: &DeviceReading) -> Option<u8> {
    Some(device.sample.pool.as_ref()?.host)
}

/// Whether this host knows what the others do.
fn knows_others(device: &DeviceReading) -> Option<bool> {
    let own = own(device)?;
    Some(state(device)?.hosts.iter().any(|seen| seen.host == own && seen.is_fresh))
}

/// The state, if this host knows what the others do.
fn known(device: &DeviceReading) -> Option<&State> {
    state(device).filter(|_| knows_others(device) == Some(true))
}

pub(super) static FAMILIES: &[Family] = &[
    gauge(
        "sluice_pool_meeting_up",
        "Whether this host knows what the other hosts of its pool do; 0 if the place where they meet cannot be used, or another daemon \
         has the number of this host. Missing without a pool, as all metrics of pools",
        |device| knows_others(device).map(Value::from),
    ),
    gauge(
        "sluice_pool_troubles",
        "Number of things that keep hosts from sharing the pool as it is stated; `sluice status` names them",
        |device| device.pool_troubles.map(|count| (count as u64).into()),
    ),
    gauge(
        "sluice_pool_price_ops_per_second",
        "Normalised requests per second that a unit of weight gets in the pool; missing if the other hosts are not known",
        |device| known(device).map(|state| (state.price * requests(1)).into()),
    ),
    gauge("sluice_pool_window_requests", "Normalised requests that all hosts together may have in flight", |device| {
        state(device).map(|state| requests(state.window).into())
    }),
    gauge(
        "sluice_pool_mean_latency_seconds",
        "Mean time of the requests of all hosts at the storage, weighted by cost; missing without requests",
        |device| Some((state(device)?.latency? as f64 / 1e9).into()),
    ),
    gauge(
        "sluice_pool_ops_per_second",
        "Normalised requests that all hosts complete; missing if the other hosts are not known",
        |device| known(device).map(|state| requests(state.rate).into()),
    ),
    gauge(
        "sluice_pool_part_ops_per_second",
        "Normalised requests that this host is due; missing if the other hosts are not known",
        |device| {
            let own = own(device)?;
            let part = known(device)?.hosts.iter().find(|seen| seen.host == own)?.part;
            Some(requests(part).into())
        },
    ),
    Family {
        name: "sluice_pool_meeting_requests_total",
        kind: Kind::Counter,
        labels: &["device"],
        help: "Reads and writes of this host at the meeting place since its exchange began",
        samples: Samples::Device(|device| Some(state(device)?.requests.into())),
    },
    gauge(
        "sluice_pool_reserved_ops_per_second",
        "Normalised requests per second that this host has claimed: no other host may promise them",
        |device| Some(requests(state(device)?.reserved).into()),
    ),
    Family {
        name: "sluice_pool_view_age_seconds",
        kind: Kind::Gauge,
        labels: &["device", "host"],
        help: "Time since a host of the pool last said something new; the label is its number. Of other hosts that have been seen",
        samples: Samples::Of(|state, series| {
            state.reading.devices.iter().try_for_each(|device| {
                let hosts = self::state(device).map_or(&[][..], |state| &state.hosts);
                let mut others = hosts.iter().filter(|seen| Some(seen.host) != own(device));
                others.try_for_each(|seen| {
                    series.add(&[&device.sample.device, &seen.host.to_string()], seen.age.as_secs_f64())
                })
            })
        }),
    },
];
