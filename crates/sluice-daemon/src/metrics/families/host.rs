//! Metrics of the daemon.

use sluice_api::status::LayerState;
use sluice_io::reactor::priority::{self, Priority};

use std::fmt;

use super::{Family, Kind, Samples};
use crate::jail;
use crate::metrics::series::Series;
use crate::metrics::{State, process};
use crate::space::FileSystem;

/// Adds a series for each file system of images.
fn file_systems(state: &State, series: &mut Series<'_>, of: fn(&FileSystem) -> u64) -> fmt::Result {
    let mut all = state.file_systems.iter();
    all.try_for_each(|system| series.count(&[&system.device, &system.folder.to_string_lossy()], of(system)))
}

pub(super) static FAMILIES: &[Family] = &[
    Family {
        name: "sluice_build_info",
        kind: Kind::Gauge,
        labels: &["version"],
        help: "Always 1; the label is the version of the daemon",
        samples: Samples::Of(|_, series| series.count(&[env!("CARGO_PKG_VERSION")], 1)),
    },
    Family {
        name: "sluice_last_sample_timestamp_seconds",
        kind: Kind::Gauge,
        labels: &[],
        help: "When the counters were read, once per second; 0 before the first time",
        samples: Samples::Of(|state, series| series.count(&[], state.reading.time)),
    },
    Family {
        name: "sluice_config_last_reload_successful",
        kind: Kind::Gauge,
        labels: &[],
        help: "Whether the daemon accepted the host file when it last loaded it",
        samples: Samples::Of(|state, series| series.is(&[], state.load.is_in_force)),
    },
    Family {
        name: "sluice_config_last_reload_timestamp_seconds",
        kind: Kind::Gauge,
        labels: &[],
        help: "When the host file was last loaded, with or without success",
        samples: Samples::Of(|state, series| series.count(&[], state.load.at.0)),
    },
    Family {
        name: "sluice_volumes_held_back",
        kind: Kind::Gauge,
        labels: &[],
        help: "Volumes that are held back: not served because their source or offset has changed, or because they are smaller than before",
        samples: Samples::Of(|state, series| series.count(&[], state.held_back as u64)),
    },
    Family {
        name: "sluice_volumes_out_of_service",
        kind: Kind::Gauge,
        labels: &[],
        help: "Volumes, NICs, sockets of `[nbd]` and devices that are not served because they cannot be opened",
        samples: Samples::Of(|state, series| series.count(&[], state.out_of_service as u64)),
    },
    Family {
        name: "sluice_interfaces_out_of_service",
        kind: Kind::Gauge,
        labels: &[],
        help: "Interfaces of uplinks and TAPs of NICs that are missing or in use",
        samples: Samples::Of(|state, series| series.count(&[], state.outages.len() as u64)),
    },
    Family {
        name: "sluice_file_system_size_bytes",
        kind: Kind::Gauge,
        labels: &["device", "folder"],
        help: "Size of a file system with images; the label is the folder of its first image",
        samples: Samples::Of(|state, series| file_systems(state, series, |system| system.size_bytes)),
    },
    Family {
        name: "sluice_file_system_free_bytes",
        kind: Kind::Gauge,
        labels: &["device", "folder"],
        help: "Free space of a file system with images",
        samples: Samples::Of(|state, series| file_systems(state, series, |system| system.free_bytes)),
    },
    Family {
        name: "sluice_file_system_growth_bytes",
        kind: Kind::Gauge,
        labels: &["device", "folder"],
        help: "Bytes by which the images on a file system may still grow",
        samples: Samples::Of(|state, series| file_systems(state, series, |system| system.growth_bytes)),
    },
    Family {
        name: "sluice_real_time_priority",
        kind: Kind::Gauge,
        labels: &[],
        help: "Whether threads of devices and uplinks have real-time priority; 0 if the kernel does not allow it, \
               missing if `real_time` is off",
        samples: Samples::Of(|_, series| match priority::of_threads() {
            Priority::Normal => Ok(()),
            priority => series.is(&[], priority == Priority::RealTime),
        }),
    },
    Family {
        name: "sluice_jail_layer",
        kind: Kind::Gauge,
        labels: &["layer"],
        help: "Whether this layer of the daemon's seal is in force",
        samples: Samples::Of(|_, series| {
            let layers = jail::status().map(|jail| jail.layers).unwrap_or_default();
            layers.iter().try_for_each(|layer| series.is(&[&layer.name], layer.state == LayerState::InForce))
        }),
    },
    Family {
        name: "sluice_jail_refused_calls_total",
        kind: Kind::Counter,
        labels: &[],
        help: "System calls that were refused because the sealed daemon does not make them",
        samples: Samples::Of(|_, series| {
            let refused = jail::status().map(|jail| jail.refused).unwrap_or_default();
            series.count(&[], refused.iter().map(|one| one.times).sum())
        }),
    },
    Family {
        name: "sluice_jail_rings_free",
        kind: Kind::Gauge,
        labels: &[],
        help: "io_uring rings that the sealed daemon has for further devices",
        samples: Samples::Of(|_, series| match jail::status().and_then(|jail| jail.rings_free) {
            Some(free) => series.count(&[], free),
            None => Ok(()),
        }),
    },
    Family {
        name: "process_cpu_seconds_total",
        kind: Kind::Counter,
        labels: &[],
        help: "CPU time of the daemon, user and system",
        samples: Samples::Of(|_, series| process::cpu_seconds().map_or(Ok(()), |seconds| series.add(&[], seconds))),
    },
    Family {
        name: "process_resident_memory_bytes",
        kind: Kind::Gauge,
        labels: &[],
        help: "Resident memory of the daemon, including the pages of guest memory that it has accessed",
        samples: Samples::Of(|_, series| process::resident_bytes().map_or(Ok(()), |bytes| series.count(&[], bytes))),
    },
    Family {
        name: "process_open_fds",
        kind: Kind::Gauge,
        labels: &[],
        help: "Open descriptors of the daemon",
        samples: Samples::Of(|_, series| process::descriptors().map_or(Ok(()), |count| series.count(&[], count))),
    },
    Family {
        name: "process_max_fds",
        kind: Kind::Gauge,
        labels: &[],
        help: "Maximum number of open descriptors",
        samples: Samples::Of(|_, series| process::descriptors_max().map_or(Ok(()), |count| series.count(&[], count))),
    },
];
