//! Metrics of NICs and uplinks. What a NIC sends is also counted as requests of a volume, by the families of volumes.

use std::fmt;

use sluice_api::object::ObjectId;
use sluice_net::drop::Drops;
use sluice_net::{NicTotals, UplinkTotals};

use super::{Family, Kind, Samples, volumes};
use crate::metrics::State;
use crate::metrics::series::Series;

/// Adds the series of each NIC. `labels` are its uplink, its VM and its name.
fn each(
    state: &State,
    series: &mut Series<'_>,
    add: impl Fn(&mut Series<'_>, [&str; 3], &NicTotals) -> fmt::Result,
) -> fmt::Result {
    let mut nics = volumes(state).filter_map(|row| Some((row.labels, row.sample.nic.as_ref()?)));
    nics.try_for_each(|([uplink, vm, name], totals)| match ObjectId::of_vm(vm, name) {
        ObjectId::Nic { nic, .. } => add(series, [uplink, vm, &nic], totals),
        _ => Ok(()),
    })
}

/// Adds a series of frames or bytes for each direction. `counts` returns those that were sent, and those that were received.
fn directions(state: &State, series: &mut Series<'_>, counts: impl Fn(&NicTotals) -> [u64; 2]) -> fmt::Result {
    each(state, series, |series, [uplink, vm, nic], totals| {
        let [sent, received] = counts(totals);
        series.count(&[uplink, vm, nic, "sent"], sent)?;
        series.count(&[uplink, vm, nic, "received"], received)
    })
}

/// Adds the series of each uplink. `labels` is its name.
fn each_uplink(
    state: &State,
    series: &mut Series<'_>,
    add: impl Fn(&mut Series<'_>, &str, &UplinkTotals) -> fmt::Result,
) -> fmt::Result {
    let uplinks =
        state.reading.devices.iter().filter_map(|device| Some((&device.sample, device.sample.uplink.as_ref()?)));
    uplinks.into_iter().try_for_each(|(sample, totals)| add(series, &sample.device, totals))
}

/// Adds a series for each reason for which frames were dropped; it is the last label.
fn by_reason(series: &mut Series<'_>, labels: &[&str], drops: &Drops) -> fmt::Result {
    let mut drops = drops.iter().filter(|(_, count)| *count > 0);
    drops.try_for_each(|(reason, count)| series.count(&[labels, &[reason.name()]].concat(), count))
}

pub(super) static FAMILIES: &[Family] = &[
    Family {
        name: "sluice_nic_frames_total",
        kind: Kind::Counter,
        labels: &["uplink", "vm", "nic", "direction"],
        help: "Frames that the NIC `sent` or `received`, without dropped ones. A large segment counts once",
        samples: Samples::Of(|state, series| directions(state, series, |totals| [totals.sent, totals.received])),
    },
    Family {
        name: "sluice_nic_bytes_total",
        kind: Kind::Counter,
        labels: &["uplink", "vm", "nic", "direction"],
        help: "Bytes of these frames",
        samples: Samples::Of(|state, series| {
            directions(state, series, |totals| [totals.sent_bytes, totals.received_bytes])
        }),
    },
    Family {
        name: "sluice_nic_dropped_frames_total",
        kind: Kind::Counter,
        labels: &["uplink", "vm", "nic", "reason"],
        help: "Dropped frames from or to the NIC, by reason; missing for reasons that have not occurred",
        samples: Samples::Of(|state, series| {
            each(state, series, |series, labels, totals| by_reason(series, &labels, &totals.drops))
        }),
    },
    Family {
        name: "sluice_uplink_link_up",
        kind: Kind::Gauge,
        labels: &["uplink"],
        help: "Whether the daemon can read from the interface of the uplink; 0 while it is down or missing",
        samples: Samples::Of(|state, series| {
            each_uplink(state, series, |series, uplink, totals| {
                let is_missing = state.outages.contains(&ObjectId::Uplink(uplink.to_owned()));
                series.is(&[uplink], !totals.is_down && !is_missing)
            })
        }),
    },
    Family {
        name: "sluice_uplink_link_failures_total",
        kind: Kind::Counter,
        labels: &["uplink"],
        help: "Number of times that the interface of the uplink went down or was removed",
        samples: Samples::Of(|state, series| {
            each_uplink(state, series, |series, uplink, totals| series.count(&[uplink], totals.link_failures))
        }),
    },
    Family {
        name: "sluice_uplink_full_total",
        kind: Kind::Counter,
        labels: &["uplink"],
        help: "Number of times that the interface of the uplink briefly accepted no more frames",
        samples: Samples::Of(|state, series| {
            each_uplink(state, series, |series, uplink, totals| series.count(&[uplink], totals.full))
        }),
    },
    Family {
        name: "sluice_uplink_dropped_frames_total",
        kind: Kind::Counter,
        labels: &["uplink", "reason"],
        help: "Frames from the interface that were dropped before a NIC was found for them, by reason; missing for reasons that \
               have not occurred",
        samples: Samples::Of(|state, series| {
            each_uplink(state, series, |series, uplink, totals| by_reason(series, &[uplink], &totals.drops))
        }),
    },
];
