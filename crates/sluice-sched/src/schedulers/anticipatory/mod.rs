//! anticipatory: waits a moment for the next read of whoever was just served.
//!
//! Idea: a reader asks for its next block only when it has the last one. Serving somebody else in between costs two seeks,
//! so after a read the disk stands still for a few milliseconds, if what is known of that owner says that it will come.
//!
//! Rules: sync and async requests go in batches of time, each direction by nearness to its last end. In a sync batch,
//! before it serves another owner, it waits for the one that it served last: until that one asks, somebody close asks, or
//! the time is up. Whether waiting is worth it follows from the owner's think time, and for a new owner from that of new
//! owners in general. `owner` holds what is known of owners, `batches` which direction goes.
//!
//! Parameters: see [`Params`].
//!
//! Example: two owners read in order, 0.25 ms for a block and 8 ms for a seek. Served in turn they get 125 blocks a second
//! together; with waiting each streams for as long as nothing of the other one expires, and they get some 3000.
//!
//! Deviations: an owner exits when it leaves the gate. There is no list between elevator and driver, so nobody has requests
//! on it. Where time is exact, what counts ticks takes milliseconds.
//!
//! Source: the anticipatory elevator of Linux until 2.6.32, by its documentation and measured behaviour.

use core::time::Duration;

use serde::{Deserialize, Serialize};

use crate::params::{self, ParamError, ParamTable, Parameter, Range};
use crate::scheduler::{Descriptor, Facts, Medium, Scheduler};
use crate::units::{Bytes, Percent};

mod batches;
mod elevator;
mod owner;

/// The parameters in `[device.NAME.anticipatory]`.
// rule: anticipatory.read-expire, anticipatory.write-expire, anticipatory.read-batch-expire,
// rule: anticipatory.write-batch-expire, anticipatory.antic-expire, anticipatory.think-max, anticipatory.back-max
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Params {
    /// From when on a sync request is promoted, and how often that is looked at.
    #[serde(with = "params::duration")]
    pub read_expire: Duration,
    /// The same for async requests.
    #[serde(with = "params::duration")]
    pub write_expire: Duration,
    /// How long a sync batch lasts while async requests wait.
    #[serde(with = "params::duration")]
    pub read_batch_expire: Duration,
    /// How long an async batch should last.
    #[serde(with = "params::duration")]
    pub write_batch_expire: Duration,
    /// How long it waits at most; 0: never.
    #[serde(with = "params::duration")]
    pub antic_expire: Duration,
    /// The longest think time that counts.
    #[serde(with = "params::duration")]
    pub think_time_max: Duration,
    /// The longest backward seek.
    pub back_seek_max: Bytes,
    /// What backward distance is multiplied by.
    pub back_seek_penalty: u32,
    /// Resolution of its clock; 0: exact.
    #[serde(with = "params::duration")]
    pub tick: Duration,
}

impl Default for Params {
    fn default() -> Self {
        let millis = Duration::from_millis;
        Params {
            read_expire: millis(125),
            write_expire: millis(250),
            read_batch_expire: millis(500),
            write_batch_expire: millis(125),
            antic_expire: millis(6),
            think_time_max: millis(20),
            back_seek_max: Bytes::mib(512),
            back_seek_penalty: 2,
            tick: millis(1),
        }
    }
}

/// What is known of it.
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "anticipatory",
    summary: "idles a few milliseconds for the next read of the VM just served",
    idea: "After a read the disk idles for up to 6 ms if its VM is likely to submit another nearby read. So several \
           VMs that read sequentially do not make the disk seek between them. Sync and async requests are dispatched \
           in batches that last a given time. Apart from that, VMs are not distinguished.",
    when: "For few VMs that read sequentially from one spinning disk. Never in a guest, and not for random reads or \
           SSDs, where it is the slowest of all.",
    source: "anticipatory elevator of Linux up to 2.6.32, from its documentation and measured behaviour",
    enforces: &[],
    depends: &[],
    volumes: false,
    medium: Medium::Disk,
    volumes_depend: None,
    merging: true,
    weight_floor: |_| Percent::ZERO,
    parameters: PARAMETERS,
    build,
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
    Parameter {
        name: "back_seek_penalty",
        kind: "factor",
        range: Range::Number(1, 1_000),
        default: "2",
        help: "Factor by which a backward distance is multiplied before it is compared with a forward one",
    },
    Parameter {
        name: "tick",
        kind: "time with unit",
        range: Range::Time(Duration::ZERO, Duration::from_secs(1)),
        default: "\"1ms\"",
        help: "Resolution of the scheduler's clock; 1ms is that of a kernel timer at 1000 Hz, \"0s\" is exact time",
    },
];

fn build(_facts: &Facts, table: &ParamTable) -> Result<Box<dyn Scheduler>, ParamError> {
    let params: Params = params::parse(table)?;
    Ok(Box::new(elevator::Anticipatory::new(&params)))
}

#[cfg(test)]
mod tests;
