//! Metrics of volumes.

use std::fmt;

use sluice_observe::sample::VolumeSample;
use sluice_sched::Kind as Operation;
use sluice_sched::gate::{GateStats, Outcome};

use super::{Family, Kind, Samples, VolumeRow, volumes};
use crate::metrics::State;
use crate::metrics::series::Series;

/// Adds the series of each volume. `labels` are its device, its VM and its name. The counters of the only volume of a VM are
/// those of the VM.
fn each(
    state: &State,
    series: &mut Series<'_>,
    add: impl Fn(&mut Series<'_>, [&str; 3], &VolumeSample, &GateStats) -> fmt::Result,
) -> fmt::Result {
    volumes(state).try_for_each(|VolumeRow { labels, vm, sample, .. }| {
        add(series, labels, sample, sample.stats.as_deref().unwrap_or(&vm.stats))
    })
}

/// The operations that are counted apart, and those that each label stands for.
const OPERATIONS: [(&str, &[Operation]); 3] = [
    ("read", &[Operation::Read]),
    ("write", &[Operation::Write]),
    ("other", &[Operation::Flush, Operation::Discard, Operation::WriteZeroes]),
];

pub(super) static FAMILIES: &[Family] = &[
    Family {
        name: "sluice_requests_total",
        kind: Kind::Counter,
        labels: &["device", "vm", "volume", "op", "result"],
        help: "Answered requests: `read`, `write`, or `other` (flush, discard, zeroes); `ok` or `error`. Cancelled requests do not \
               count",
        samples: Samples::Of(|state, series| {
            each(state, series, |series, [device, vm, volume], _, stats| {
                for (op, kinds) in OPERATIONS {
                    for (result, outcome) in [("ok", Outcome::Done), ("error", Outcome::Failed)] {
                        let count = kinds.iter().map(|kind| stats.ended[outcome as usize][*kind as usize]).sum();
                        series.count(&[device, vm, volume, op, result], count)?;
                    }
                }
                Ok(())
            })
        }),
    },
    Family {
        name: "sluice_requests_refused_total",
        kind: Kind::Counter,
        labels: &["device", "vm", "volume"],
        help: "Requests that were refused before they reached the device; `sluice status` states why. Of volumes that have refused some",
        samples: Samples::Of(|state, series| {
            each(state, series, |series, labels, volume, _| match volume.client_faults.refused {
                0 => Ok(()),
                refused => series.count(&labels, refused),
            })
        }),
    },
    Family {
        name: "sluice_queues_stopped",
        kind: Kind::Gauge,
        labels: &["device", "vm", "volume"],
        help: "Virtqueues that take no requests until their driver is reset; `sluice status` states why. Of volumes and NICs that have \
               some",
        samples: Samples::Of(|state, series| {
            each(state, series, |series, labels, volume, _| match volume.client_faults.stopped_queues {
                0 => Ok(()),
                stopped => series.count(&labels, u64::from(stopped)),
            })
        }),
    },
    Family {
        name: "sluice_request_bytes_total",
        kind: Kind::Counter,
        labels: &["device", "vm", "volume"],
        help: "Bytes read and written",
        samples: Samples::Of(|state, series| {
            each(state, series, |series, labels, _, stats| series.count(&labels, stats.bytes))
        }),
    },
    Family {
        name: "sluice_request_latency_seconds",
        kind: Kind::Histogram,
        labels: &["device", "vm", "volume"],
        help: "Time from the arrival of a request to its completion, as the guest sees it, of successful requests",
        samples: Samples::Of(|state, series| {
            each(state, series, |series, labels, _, stats| series.times(&labels, &stats.latency, stats.latency_nanos))
        }),
    },
    Family {
        name: "sluice_volume_clients",
        kind: Kind::Gauge,
        labels: &["device", "vm", "volume"],
        help: "Connected clients: NBD connections, and VMMs that have started a queue",
        samples: Samples::Of(|state, series| {
            each(state, series, |series, labels, volume, _| series.count(&labels, u64::from(volume.clients)))
        }),
    },
    Family {
        name: "sluice_volume_failing",
        kind: Kind::Gauge,
        labels: &["device", "vm", "volume", "kind"],
        help: "1 while requests fail: `no_space`, `errors` of the disk, the file system or the interface, `source_shortened`, or `server_away`; missing otherwise",
        samples: Samples::Of(|state, series| {
            volumes(state).try_for_each(|VolumeRow { labels: [device, vm, volume], failing, .. }| {
                failing.iter().try_for_each(|kind| series.count(&[device, vm, volume, kind.name()], 1))
            })
        }),
    },
    Family {
        name: "sluice_vhost_reconnects_total",
        kind: Kind::Counter,
        labels: &["vm", "volume"],
        help: "VMM sessions after the first; missing for a volume without any session",
        samples: Samples::Of(|state, series| {
            let mut all = state.reconnects.iter();
            all.try_for_each(|(name, count)| {
                let (vm, volume) = name.parts();
                series.count(&[vm, &volume], *count)
            })
        }),
    },
];
