//! Metrics of NICs. What a NIC sends is also counted as requests of a volume, by the families of volumes.

use std::fmt;

use sluice_net::NicTotals;

use super::{Family, Kind, Samples};
use crate::metrics::State;
use crate::metrics::series::Series;

/// Adds the series of each NIC. `labels` are its uplink, its VM and its name.
fn each(
    state: &State,
    series: &mut Series<'_>,
    add: impl Fn(&mut Series<'_>, [&str; 3], &NicTotals) -> fmt::Result,
) -> fmt::Result {
    for device in &state.reading.devices {
        for vm in &device.sample.vms {
            for volume in &vm.volumes {
                let Some(totals) = &volume.nic else { continue };
                let nic = volume.volume.strip_prefix("nic/").unwrap_or(&volume.volume);
                add(series, [&device.sample.device, &vm.vm, nic], totals)?;
            }
        }
    }
    Ok(())
}

/// Adds a series of frames or bytes for each direction. `counts` returns those that were sent, and those that were received.
fn directions(state: &State, series: &mut Series<'_>, counts: impl Fn(&NicTotals) -> [u64; 2]) -> fmt::Result {
    each(state, series, |series, [uplink, vm, nic], totals| {
        let [sent, received] = counts(totals);
        series.count(&[uplink, vm, nic, "sent"], sent)?;
        series.count(&[uplink, vm, nic, "received"], received)
    })
}

pub(super) static FAMILIES: &[Family] = &[
    Family {
        name: "sluice_nic_frames_total",
        kind: Kind::Counter,
        labels: &["uplink", "vm", "nic", "direction"],
        help: "Frames that the NIC sent or received, and that were not dropped: `sent` or `received`. A large segment counts once",
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
        help: "Frames of the NIC, or for it, that were dropped, by reason; missing for reasons that have not occurred",
        samples: Samples::Of(|state, series| {
            each(state, series, |series, [uplink, vm, nic], totals| {
                let mut drops = totals.drops.iter().filter(|(_, count)| *count > 0);
                drops.try_for_each(|(reason, count)| series.count(&[uplink, vm, nic, reason.name()], count))
            })
        }),
    },
];
