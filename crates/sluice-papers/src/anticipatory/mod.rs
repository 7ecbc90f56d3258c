//! anticipatory: idles for a moment for the next read of the owner that was just served.
//!
//! Idea: a reader requests its next block only after it has received the last one. Serving another owner in between
//! costs two seeks. So after a read the disk idles for a few milliseconds, if the owner's history makes its next read
//! likely.
//!
//! Rules: sync and async requests are served in batches of limited time, each direction by distance from its last end.
//! In a sync batch, before serving another owner, the disk idles for the owner that was served last, until that owner
//! sends a request, a close request arrives, or the time is up. Whether idling is worth it follows from the owner's
//! think time, and for a new owner from that of new owners in general. `owner` keeps the histories, `batches` the
//! directions.
//!
//! Parameters: see [`Params`].
//!
//! Example: two owners read sequentially, 0.25 ms per block and 8 ms per seek. Served alternately they get about 125
//! blocks per second together. With idling each streams until a request of the other one expires, and they get about
//! 3000.
//!
//! Deviations: an owner exits when it is removed from the gate. There is no list between elevator and driver, so no
//! request is on it. Rules that count ticks count milliseconds if time is exact.
//!
//! Source: the anticipatory elevator of Linux until 2.6.32, by its documentation and measured behaviour.

use core::time::Duration;

use serde::Deserialize;

use crate::elevator::{BACK_SEEK_PENALTY, TICK};
use sluice_sched::guarantees::{Guarantees, Waits};
use sluice_sched::params::{self, ParamError, ParamTable, Parameter, Range};
use sluice_sched::scheduler::{Advice, Descriptor, DeviceInfo, Scheduler};
use sluice_sched::units::Bytes;

mod batches;
mod elevator;
mod owner;

/// The parameters in `[device.NAME.anticipatory]`.
// rule: anticipatory.read-expire, anticipatory.write-expire, anticipatory.read-batch-expire,
// rule: anticipatory.write-batch-expire, anticipatory.antic-expire, anticipatory.think-max, anticipatory.back-max
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Params {
    /// Age from which a sync request is promoted, and interval of the checks for it.
    #[serde(with = "params::duration")]
    pub read_expire: Duration,
    /// The same for async requests.
    #[serde(with = "params::duration")]
    pub write_expire: Duration,
    /// Duration of a sync batch while async requests are queued.
    #[serde(with = "params::duration")]
    pub read_batch_expire: Duration,
    /// Target duration of an async batch.
    #[serde(with = "params::duration")]
    pub write_batch_expire: Duration,
    /// Maximum idling time; 0 disables idling.
    #[serde(with = "params::duration")]
    pub antic_expire: Duration,
    /// Maximum think time that counts.
    #[serde(with = "params::duration")]
    pub think_time_max: Duration,
    /// Maximum backward seek.
    pub back_seek_max: Bytes,
    /// Factor for backward distances.
    pub back_seek_penalty: u32,
    /// Resolution of the clock; 0 is exact time.
    #[serde(with = "params::duration")]
    pub tick: Duration,
}

impl Default for Params {
    fn default() -> Self {
        params::defaults(PARAMETERS)
    }
}

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "anticipatory",
    summary: "idles a few milliseconds for the next read of the VM just served",
    idea: "After a read the disk idles for up to 6 ms if its VM is likely to submit another nearby read. So several \
           VMs that read sequentially do not make the disk seek between them. Sync and async requests are dispatched \
           in batches that last a given time. Apart from that, VMs are not distinguished.",
    when: "For few VMs that read sequentially from one spinning disk. Never in a guest, and not for random reads or \
           SSDs, where it is the slowest of all.",
    source: "anticipatory elevator of Linux up to 2.6.32, from its documentation and measured behaviour",
    merging: true,
    guarantees,
    advice: Advice {
        never_in_guest: Some(
            "anticipatory takes the host's delays for its threads' pauses, and keeps the disk idle for one of them",
        ),
        ..Advice::BASE
    },
    parameters: PARAMETERS,
    build,
    ..Descriptor::BASE
};

const PARAMETERS: &[Parameter] = &[
    Parameter {
        name: "read_expire",
        kind: "time with unit",
        range: Range::Time(Duration::ZERO, Duration::from_secs(3600)),
        default: "\"125ms\"",
        help: "Age from which a sync request is dispatched before nearer ones, at most once in this time",
    },
    Parameter {
        name: "write_expire",
        kind: "time with unit",
        range: Range::Time(Duration::ZERO, Duration::from_secs(3600)),
        default: "\"250ms\"",
        help: "Age from which an async request is dispatched before nearer ones, at most once in this time",
    },
    Parameter {
        name: "read_batch_expire",
        kind: "time with unit",
        range: Range::Time(Duration::ZERO, Duration::from_secs(3600)),
        default: "\"500ms\"",
        help: "Duration of a sync batch while async requests wait",
    },
    Parameter {
        name: "write_batch_expire",
        kind: "time with unit",
        range: Range::Time(Duration::ZERO, Duration::from_secs(3600)),
        default: "\"125ms\"",
        help: "Target duration of an async batch; the scheduler learns how many requests fit into it",
    },
    Parameter {
        name: "antic_expire",
        kind: "time with unit",
        range: Range::Time(Duration::ZERO, Duration::from_secs(10)),
        default: "\"6ms\"",
        help: "Maximum time that the disk idles for a read; \"0s\": never",
    },
    Parameter {
        name: "think_time_max",
        kind: "time with unit",
        range: Range::Time(Duration::ZERO, Duration::from_secs(3600)),
        default: "\"20ms\"",
        help: "Maximum think time that is counted; longer ones count as this",
    },
    Parameter {
        name: "back_seek_max",
        kind: "size with unit",
        range: Range::Size(0, 1 << 50),
        default: "\"512MiB\"",
        help: "Maximum backward seek",
    },
    BACK_SEEK_PENALTY,
    TICK,
];

fn guarantees(_facts: &DeviceInfo, table: &ParamTable) -> Guarantees {
    let Ok(Params { antic_expire, tick, .. }) = params::read(PARAMETERS, table) else { return Guarantees::BASE };
    Guarantees { waits: Waits::idling(antic_expire + tick), learns: true, ..Guarantees::BASE }
}

fn build(_facts: &DeviceInfo, table: &ParamTable) -> Result<Box<dyn Scheduler>, ParamError> {
    let params: Params = params::read(PARAMETERS, table)?;
    Ok(Box::new(elevator::Anticipatory::new(&params)))
}

#[cfg(test)]
mod tests;
