//! edf-credit: earliest deadline first, after credits.
//!
//! Idea: Flubber without regard to offsets. Credits in proportion to the required bandwidths decide which requests are
//! admitted, and the earliest deadline decides among those.
//!
//! Rules: Flubber's credits, replenished at its three events; deadline = start + L - M; no contiguous rule and no
//! idling.
//!
//! Parameters: see [`Params`].
//!
//! Example: latency targets of 80 and 60 ms. Two requests that are admitted at the same instant are dispatched in the
//! order of their targets, the one of 60 ms first, even if the other one is nearer to the head.
//!
//! Deviations: the paper does not define the order of background work. Here it has the largest target of the VMs, since
//! the paper attributes its slowness to seeks between VMs and background. `background = "idle"` dispatches it after all
//! others.
//!
//! Source: \[flubber\] IV.C, "EDF with credit controlling".

use core::time::Duration;

use serde::Deserialize;

use sluice_sched::guarantees::{Guarantees, Order, Waits};
use sluice_sched::params::{self, ParamError, ParamTable, Parameter, Range};
use sluice_sched::policy::Field;
use sluice_sched::scheduler::{Descriptor, DeviceInfo, Scheduler};

use super::flubber;
use super::flubber::credits::Credits;
use super::flubber::queues::{ByAddress, EqualDeadlines, Queues};
use super::flubber::two_level::{Background, Rule, Start, Targets, TwoLevel};

/// Order of background work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BackgroundOrder {
    /// By deadline, with the largest target of the VMs.
    Deadline,
    /// When no VM's request is queued.
    Idle,
}

/// The parameters in `[device.NAME.edf-credit]`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Params {
    /// The interval factor.
    pub beta: u32,
    /// L of a VM without a latency target.
    #[serde(with = "params::duration")]
    pub latency: Duration,
    /// M, the longest seek.
    #[serde(with = "params::duration")]
    pub seek_max: Duration,
    /// Start of the time to the deadline.
    pub start: Start,
    /// Order of equal deadlines.
    pub equal_deadlines: EqualDeadlines,
    /// Time without queued requests of VMs after which credits are replenished.
    #[serde(with = "params::duration")]
    pub grace: Duration,
    /// Order of background work.
    pub background: BackgroundOrder,
}

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "edf-credit",
    summary: "throughput by credits, then earliest deadline first: Flubber's baseline",
    idea: "Credits in proportion to the required bandwidths decide which VM's requests are admitted, as in flubber. Of \
           the admitted requests the one with the earliest deadline goes first, regardless of its position on the \
           disk. Background requests have deadlines too.",
    when: "As the baseline that shows what batching by address gains, and on SSDs, where addresses do not matter.",
    source: flubber::SOURCE,
    enforces: &[
        (Field::Reservation, flubber::REQUIRED),
        (Field::Latency, flubber::TARGET),
        (
            Field::Class,
            "background: no credits; with background = \"idle\" after all other requests, otherwise with the largest \
             latency target of all VMs",
        ),
    ],
    depends: &[(Field::Class, "background", &["idle"])],
    merging: true,
    guarantees,
    parameters: &[
        flubber::BETA,
        flubber::LATENCY,
        flubber::SEEK_MAX,
        flubber::START,
        flubber::EQUAL_DEADLINES,
        flubber::GRACE,
        Parameter {
            name: "background",
            kind: "word",
            range: Range::Words(&["deadline", "idle"]),
            default: "\"deadline\"",
            help: "deadline: background requests have the largest latency target of all VMs; idle: they are dispatched \
                   only when no VM's request is queued",
        },
    ],
    build,
    ..Descriptor::BASE
};

fn guarantees(_facts: &DeviceInfo, table: &ParamTable) -> Guarantees {
    let Ok(Params { grace, .. }) = params::read(DESCRIPTOR.parameters, table) else { return Guarantees::BASE };
    Guarantees { order: Order::VolumeByClass, waits: Waits::idling(grace), ..Guarantees::BASE }
}

// rule: edf-credit.credits
fn build(info: &DeviceInfo, table: &ParamTable) -> Result<Box<dyn Scheduler>, ParamError> {
    let params: Params = params::read(DESCRIPTOR.parameters, table)?;
    let targets =
        Targets { latency: params.latency, seek_max: params.seek_max, start: params.start, grace: params.grace };
    let background = match params.background {
        BackgroundOrder::Deadline => Background::WithinLargest,
        BackgroundOrder::Idle => Background::WhenEmpty,
    };
    Ok(Box::new(TwoLevel::new(
        Credits::new(params.beta, true, info.cost.reference_size()),
        Queues::new(params.equal_deadlines, ByAddress::Nothing),
        targets,
        Rule::Earliest,
        background,
    )))
}
