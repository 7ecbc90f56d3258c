//! CFQ: slices of disk time in turn, and idling for the next request of the owner that has the slice.
//!
//! Idea: an owner that reads sequentially requests its next block only after it has received the last one. Serving
//! others in between costs two seeks. So each owner has the disk for itself for a slice of time, and the disk may idle
//! for a moment for its next request. Fair means equal *time*.
//!
//! Rules: one file per idea. `stream` is one internal queue, `core` the common state; `service_trees` the order of the
//! streams, `cooperators` which stream may continue where another one stopped; `v2_6_32` turns and slices in the
//! variants of 2.6.32 and with groups, `groups` the level above; `v2_6_18` the variant of that kernel.
//!
//! Parameters: see [`Params`].
//!
//! Example: one VM reads sequentially at 0.25 ms per block, another one at random at 8 ms. In 200 ms each has 100 ms:
//! about 400 reads for the first, 12 for the second.
//!
//! Deviations: once a queue has had four requests it counts as deep for good. Cooperating queues are not merged, since they belong to different VMs. No request is marked as metadata.
//! With groups a VM is a group, and each of its volumes is a queue in it; without groups a VM has one queue. Any weight
//! is allowed, not only 10 to 1000. The first request of an idle queue is not held back for adjacent ones ("plugging").
//!
//! Source: CFQ of Linux 2.6.18, 2.6.32 and 3.6, by documentation and measured behaviour; the papers on flubber, mcfq
//! and two tiers use it as a baseline.

use ::core::time::Duration;

use serde::Deserialize;

use crate::elevator::{BACK_SEEK_PENALTY, TICK};
use sluice_sched::guarantees::{Guarantees, Waits};
use sluice_sched::params::{self, ParamError, ParamTable, Parameter, Range};
use sluice_sched::policy::Field;
use sluice_sched::scheduler::{Advice, Descriptor, DeviceInfo, Scheduler};
use sluice_sched::units::Bytes;

mod cooperators;
mod core;
mod groups;
mod service_trees;
mod stream;
mod v2_6_18;
mod v2_6_32;

pub(crate) use v2_6_32::V2632;

/// Kernel whose behaviour is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub enum Mode {
    /// A group for each VM, with weights: Linux 2.6.33 and later.
    #[serde(rename = "group")]
    Group,
    /// The same with one group for all VMs: what a guest without control groups does with its threads from 2.6.33 on.
    #[serde(rename = "2.6.32-el6")]
    El6,
    /// Linux 2.6.32.
    #[serde(rename = "2.6.32")]
    V2632,
    /// Linux 2.6.18.
    #[serde(rename = "2.6.18")]
    V2618,
}

impl Mode {
    /// Whether queues belong to groups, with the rules of 2.6.33 and later.
    #[must_use]
    pub fn has_groups(self) -> bool {
        matches!(self, Mode::Group | Mode::El6)
    }
}

/// The parameters in `[device.NAME.cfq]`.
// rule: cfq.quantum, cfq.fifo-expire, cfq.back-seek-max, cfq.back-seek-penalty, cfq.slice-sync, cfq.slice-async,
// rule: cfq.slice-async-rq, cfq.slice-idle, cfq.group-idle, cfq.low-latency, cfq.target-latency, cfq.idle-grace
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Params {
    pub mode: Mode,
    /// Maximum number of requests of one queue in flight; 0 is 8 with groups and 4 without.
    pub quantum: u32,
    /// Age from which a sync request is dispatched before nearer ones.
    #[serde(with = "params::duration")]
    pub fifo_expire_sync: Duration,
    /// The same for async requests.
    #[serde(with = "params::duration")]
    pub fifo_expire_async: Duration,
    /// Maximum backward seek.
    pub back_seek_max: Bytes,
    /// Factor for backward distances.
    pub back_seek_penalty: u32,
    /// The slice of a sync queue at level 4.
    #[serde(with = "params::duration")]
    pub slice_sync: Duration,
    /// The slice of an async queue at level 4.
    #[serde(with = "params::duration")]
    pub slice_async: Duration,
    /// Base of the number of requests that an async queue sends in a slice.
    pub slice_async_rq: u32,
    /// Maximum idling for the next request of a queue.
    #[serde(with = "params::duration")]
    pub slice_idle: Duration,
    /// Maximum idling for a queue that seeks.
    #[serde(with = "params::duration")]
    pub slice_idle_seeky: Duration,
    /// Maximum idling for the only queue of a group.
    #[serde(with = "params::duration")]
    pub group_idle: Duration,
    /// Whether latency has priority over throughput; not in 2.6.18.
    pub low_latency: bool,
    /// Target duration of a round over all groups.
    #[serde(with = "params::duration")]
    pub target_latency: Duration,
    /// Delay by which class idle is ordered after the others; in 2.6.18 it waits for half of this after them.
    #[serde(with = "params::duration")]
    pub idle_class_delay: Duration,
    /// Resolution of the clock; 0 is exact time.
    #[serde(with = "params::duration")]
    pub tick: Duration,
}

impl Default for Params {
    fn default() -> Self {
        params::defaults(PARAMETERS)
    }
}

impl Params {
    /// Maximum number of requests of one queue in flight.
    #[must_use]
    pub fn quantum(&self) -> u32 {
        match (self.quantum, self.mode) {
            (0, Mode::Group | Mode::El6) => 8,
            (0, _) => 4,
            (stated, _) => stated,
        }
    }

    pub(crate) fn guarantees(&self) -> Guarantees {
        let idle = self.slice_idle.max(self.slice_idle_seeky).max(self.group_idle);
        let idle_class = if self.mode == Mode::V2618 { self.idle_class_delay / 2 } else { Duration::ZERO };
        let waits = Waits::Idling { most: idle + self.tick, most_with_background: idle.max(idle_class) + self.tick };
        Guarantees { waits, learns: true, ..Guarantees::BASE }
    }
}

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "cfq",
    summary: "slices of the disk's time, by weight and priority; idles for the next request of a slice",
    idea: "Each VM in turn has the disk for a slice of time, in which only its requests are dispatched. During its \
           slice the disk may idle briefly for the VM's next request. CFQ shares time, not throughput: a VM that reads \
           sequentially achieves far more in a slice than one that reads at random. Writes are sync, as direct I/O is, \
           and stay in the queue of their VM. Writes through the host's page cache (cache = \"buffered\") are async, \
           except forced ones (FUA). The async writes of all VMs share one queue per priority, so VMs are not isolated \
           from each other there.",
    when: "To share one spinning disk among few VMs by time, and as the baseline that the papers compare with. On SSDs \
           and arrays its idling costs more than it gains.",
    source: "CFQ of Linux 2.6.18, 2.6.32 and 3.6, from documentation and measured behaviour",
    enforces: &[
        (Field::Weight, "mode \"group\": the disk's time is shared in proportion, if the VMs keep the disk busy"),
        (Field::Class, "background: priority class idle"),
        (
            Field::PriorityClass,
            "real-time before best-effort before idle; in mode \"group\" only among the requests of one VM",
        ),
        (Field::PriorityLevel, "longer slices: 180 ms at level 0, 100 ms at 4, 40 ms at 7"),
    ],
    depends: &[(Field::Weight, "mode", &["group"])],
    merging: true,
    guarantees,
    advice: Advice {
        rank_for_several: 3,
        guest_params: &[("mode", "2.6.32")],
        stands_for: &[(
            "bfq",
            "both idle for the next request of a thread; bfq gives each thread budgets of sectors, the model slices of time",
        )],
        ..Advice::BASE
    },
    parameters: PARAMETERS,
    build,
    ..Descriptor::BASE
};

pub(crate) const PARAMETERS: &[Parameter] = &[
    Parameter {
        name: "mode",
        kind: "word",
        range: Range::Words(&["group", "2.6.32-el6", "2.6.32", "2.6.18"]),
        default: "\"group\"",
        help: "group: each VM is a group with a weight; the other modes know only priorities. 2.6.32-el6: the rules of group, \
               with one group for all, as for the threads of a guest",
    },
    Parameter {
        name: "quantum",
        kind: "requests",
        range: Range::Number(0, 65_536),
        default: "0",
        help: "Maximum number of requests of one queue in flight; 0 means 8 with groups and 4 without",
    },
    Parameter {
        name: "fifo_expire_sync",
        kind: "time with unit",
        range: Range::Time(Duration::ZERO, Duration::from_secs(3600)),
        default: "\"125ms\"",
        help: "Age from which a sync request is dispatched before nearer ones, at most once per slice",
    },
    Parameter {
        name: "fifo_expire_async",
        kind: "time with unit",
        range: Range::Time(Duration::ZERO, Duration::from_secs(3600)),
        default: "\"250ms\"",
        help: "Age from which an async request is dispatched before nearer ones, at most once per slice",
    },
    Parameter {
        name: "back_seek_max",
        kind: "size with unit",
        range: Range::Size(0, 1 << 50),
        default: "\"16MiB\"",
        help: "Maximum backward seek; requests further back are dispatched after all requests ahead",
    },
    BACK_SEEK_PENALTY,
    Parameter {
        name: "slice_sync",
        kind: "time with unit",
        range: Range::Time(Duration::from_micros(1), Duration::from_secs(60)),
        default: "\"100ms\"",
        help: "Slice of a sync queue at priority level 4; each level changes it by a fifth, for example from 180 ms at \
               level 0 to 40 ms at level 7",
    },
    Parameter {
        name: "slice_async",
        kind: "time with unit",
        range: Range::Time(Duration::from_micros(1), Duration::from_secs(60)),
        default: "\"40ms\"",
        help: "Slice of an async queue at priority level 4; each level changes it by a fifth",
    },
    Parameter {
        name: "slice_async_rq",
        kind: "requests",
        range: Range::Number(1, 1_000),
        default: "2",
        help: "Base of the number of requests that an async queue dispatches in a slice, 2 x base x (8 - level): with \
               base 2, 32 at level 0 and 4 at level 7",
    },
    Parameter {
        name: "slice_idle",
        kind: "time with unit",
        range: Range::Time(Duration::ZERO, Duration::from_secs(10)),
        default: "\"8ms\"",
        help: "Maximum time that the disk idles for the next request of a queue; \"0s\": never",
    },
    Parameter {
        name: "slice_idle_seeky",
        kind: "time with unit",
        range: Range::Time(Duration::ZERO, Duration::from_secs(10)),
        default: "\"2ms\"",
        help: "Maximum time that the disk idles for a queue that seeks",
    },
    Parameter {
        name: "group_idle",
        kind: "time with unit",
        range: Range::Time(Duration::ZERO, Duration::from_secs(10)),
        default: "\"8ms\"",
        help: "Maximum time that the disk idles for the only queue of a group; only in modes \"group\" and \"2.6.32-el6\"",
    },
    Parameter {
        name: "low_latency",
        kind: "true or false",
        range: Range::Flag,
        default: "true",
        help: "Whether slices shrink as queues are added, and async requests are held back for sync ones; not in mode \
               \"2.6.18\"",
    },
    Parameter {
        name: "target_latency",
        kind: "time with unit",
        range: Range::Time(Duration::from_millis(1), Duration::from_secs(60)),
        default: "\"300ms\"",
        help: "Target duration of one round over all groups; only in modes \"group\" and \"2.6.32-el6\"",
    },
    Parameter {
        name: "idle_class_delay",
        kind: "time with unit",
        range: Range::Time(Duration::ZERO, Duration::from_secs(3600)),
        default: "\"200ms\"",
        help: "Delay by which queues of class idle are ordered after all others; in mode \"2.6.18\" they wait for half \
               of it after the last service of another class",
    },
    TICK,
];

fn guarantees(_facts: &DeviceInfo, table: &ParamTable) -> Guarantees {
    params::read(PARAMETERS, table).map_or(Guarantees::BASE, |params: Params| params.guarantees())
}

fn build(info: &DeviceInfo, table: &ParamTable) -> Result<Box<dyn Scheduler>, ParamError> {
    let params: Params = params::read(PARAMETERS, table)?;
    Ok(match params.mode {
        Mode::V2618 => Box::new(v2_6_18::V2618::new(params, info)),
        Mode::V2632 | Mode::Group | Mode::El6 => Box::new(V2632::new(params, info)),
    })
}

#[cfg(test)]
mod tests;
