//! mClock: reservation, limit and weight for each VM, by tags.
//!
//! Idea: every VM has clocks that run at its own rates. A reservation tag says when its next request is due, a limit
//! says when it may be dispatched, and a share tag orders it for the spare capacity. While a reservation is due, the
//! scheduler serves the most overdue one (reservation phase). Otherwise it serves the VM with the smallest share tag
//! among those that their limit lets pass (weight phase).
//!
//! Rules: one file per idea. `meter` is one clock, `bucket` a limit in one currency; `tags` has the clocks of a VM or a volume and says how service advances
//! them; `level` keeps the orders of VMs, or of the volumes of a VM (`owner`); `lanes` has the limits of reads and of writes;
//! `floor` keeps a part for the weight phase; `remote` holds what clients report of other servers (dmClock); [`product`] decides.
//!
//! Parameters: see [`Params`].
//!
//! Example: weights 100, 200, 300, reservations of 250 for the first two VMs, a limit of 1000 for the third. A device
//! of 1200 IOPS gives 250, 380, 570: the first VM gets its reservation, and the rest is split 2:3. At 2400 IOPS the
//! third is limited to 1000, and the others get 467 and 933.
//!
//! Deviations: published formulas are replaced where they violate their own guarantees; each place is marked `DEVIATION`. The
//! crate `sluice-papers` has them as published, with their failures, to reproduce the paper.
//!
//! Source: \[mclock\] A. Gulati, A. Merchant, P. Varman: mClock: Handling Throughput Variability for Hypervisor IO
//! Scheduling, OSDI 2010.

// Consequences that tests assert:
// rule: mclock.bound-reservation, mclock.bound-limit-paper, mclock.bound-limit-product, mclock.bound-share
// rule: mclock.water-filling, mclock.queues-no-owners

use core::time::Duration;

use serde::Deserialize;

use crate::guarantees::{Guarantees, Limits, Order, Shares, Waits};
use crate::params::{self, ParamError, ParamTable, Parameter};
use crate::policy::Field;
use crate::scheduler::{Advice, Descriptor, DeviceClass, DeviceInfo, Scheduler};
use crate::tracker::Form;
use crate::units::{Bytes, Percent};

mod bucket;
mod floor;
mod lanes;
mod level;
mod meter;
mod owner;
pub mod product;
mod remote;
mod tags;

/// The parameters in `[device.NAME.mclock]`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Params {
    /// Maximum number of requests of one VM in a locality batch; 0 is 8 on a rotational device and 1 on others.
    /// \[mclock\] 3.1.
    pub batch: u32,
    /// Maximum distance between consecutive requests of a batch, in bytes. \[mclock\] 3.1: 4 MB.
    pub batch_distance: Bytes,
    /// Maximum reservation time that is caught up after a stall.
    #[serde(with = "params::duration")]
    pub reservation_catchup_max: Duration,
    /// Minimum part of the device that is divided by weight while a VM without a reservation waits, and of a VM's
    /// service while a volume without one waits.
    pub weight_floor: Percent,
}

/// Parameter of the length of a locality batch.
pub const BATCH: Parameter = Parameter {
    name: "batch",
    kind: "requests",
    range: params::Range::Number(0, 256),
    default: "0",
    help: "Maximum number of requests of one VM that are dispatched in a row because they are close to each other; 0 means \
           8 on a rotational device, otherwise 1",
};
/// Parameter of what is close in a locality batch.
pub const BATCH_DISTANCE: Parameter = Parameter {
    name: "batch_distance",
    kind: "size with unit",
    range: params::Range::Size(0, 1 << 50),
    default: "\"4MiB\"",
    help: "Maximum distance between the end of one request and the start of the next in a batch",
};

/// Maximum length of a batch on this device, with this value of [`BATCH`].
#[must_use]
pub fn batch_on(stated: u32, info: &DeviceInfo) -> u32 {
    match (stated, info.rotational) {
        (0, true) => 8,
        (0, false) => 1,
        (stated, _) => stated,
    }
}

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "mclock",
    summary: "per-VM reservation, limit and weight by tags (OSDI 2010)",
    idea: "Every VM has a reservation tag, a limiter and a share tag. The reservation tag is the time at which its \
           next request is due. The limiter gives the earliest time at which it may be dispatched. The share tag \
           orders the VMs for the spare capacity. While a reservation is due, the VM that is most overdue is served. \
           Otherwise, of the VMs that their limiters allow, the one with the smallest share tag is served.",
    when: "The default: whenever VMs that share a device need a minimum, a maximum, or unequal shares.",
    source: "A. Gulati, A. Merchant, P. Varman: mClock: Handling Throughput Variability for Hypervisor IO \
             Scheduling, OSDI 2010",
    enforces: &[
        (Field::Reservation, "the reservation tag: due requests go first"),
        (Field::Limit, "checked at every dispatch, in requests and in bytes; both must allow it"),
        (
            Field::ReadLimit,
            "checked at every dispatch of a read. A throttled read does not delay the writes of \
             the VM",
        ),
        (
            Field::WriteLimit,
            "checked at every dispatch of another request: write, zeroes, discard, flush. A \
             throttled one does not delay the reads of the VM",
        ),
        (Field::Weight, "the share tag: the spare capacity is divided in proportion"),
        (
            Field::Burst,
            "the amount that the limit lets through back to back, one piece of any size plus \
             (`burst` - 1) requests of the reference size, in requests and in bytes; default: the device's depth times \
             its largest piece, or 100 ms of the limit if that is more. With `rate` and `for`: what the VM does not use of a limit is saved, at most (`rate` - \
             limit) x `for`, and the VM may use it later at up to `rate`",
        ),
        (Field::IdleCredit, "how far the share tag may lag behind after the VM was idle, at most 256 requests"),
        (Field::Class, "background: the smallest weight, 0.01; the reservation applies unchanged"),
    ],
    device_classes: &[DeviceClass::Disk, DeviceClass::Network],
    volumes: true,
    // Requests are not merged, since the cost is counted per request.
    weight_floor,
    remote: |_| Some(Form::Product),
    guarantees,
    advice: Advice { rank_for_several: 1, ..Advice::BASE },
    parameters: &[
        BATCH,
        BATCH_DISTANCE,
        Parameter {
            name: "reservation_catchup_max",
            kind: "time with unit",
            range: params::Range::Time(Duration::ZERO, Duration::from_secs(3600)),
            default: "\"1s\"",
            help: "How much of a missed reservation is caught up after a device stall. During the catch-up the other \
                   VMs share what weight_floor leaves free. Example with weight_floor 2%: after a stall of 1 s with 90 \
                   % of the device reserved, 0.9 s of work is caught up at 98 - 90 = 8 % of the device, which takes 11 \
                   s; with 50 or 95 % reserved it takes 1 or 32 s",
        },
        Parameter {
            name: "weight_floor",
            kind: "percent",
            range: params::Range::Percent(0, 5000),
            default: "\"2%\"",
            help: "Minimum part of the device that is divided by weight while a VM without a reservation has requests \
                   queued, even during the catch-up after a stall. Inside a VM the same part of what it gets is divided by \
                   weight among its volumes. Admission control leaves both free",
        },
    ],
    build,
    ..Descriptor::BASE
};

/// The floor that admission control leaves free.
fn weight_floor(table: &ParamTable) -> Percent {
    params::read::<Params>(DESCRIPTOR.parameters, table).map_or(Percent::ZERO, |params| params.weight_floor)
}

fn guarantees(info: &DeviceInfo, table: &ParamTable) -> Guarantees {
    let Ok(params) = params::read::<Params>(DESCRIPTOR.parameters, table) else { return Guarantees::BASE };
    Guarantees {
        order: Order::Volume,
        waits: Waits::Tags { inside: true },
        limits: Limits::Buckets,
        shares: Some(Shares { batch: batch_on(params.batch, info), by_request: false, with_credit: true }),
        ..Guarantees::BASE
    }
}

fn build(info: &DeviceInfo, table: &ParamTable) -> Result<Box<dyn Scheduler>, ParamError> {
    Ok(Box::new(product::Product::new(info, &params::read(DESCRIPTOR.parameters, table)?)))
}
