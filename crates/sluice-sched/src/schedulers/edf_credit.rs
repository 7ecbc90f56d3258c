//! edf-credit: the earliest deadline first, behind credits.
//!
//! Idea: what Flubber is without its eye for the disk. Credits in proportion to the required bandwidths decide whose
//! requests pass; of those that have passed the earliest deadline goes.
//!
//! Rules: Flubber's credits, replenished by its three events; the deadline start + L - M; no contiguous rule, no waiting.
//!
//! Parameters: see [`Params`].
//!
//! Example: targets of 80 and 60 ms. Two requests that pass the credits at one instant go in the order of their targets,
//! the one of 60 ms first, though the other may lie where the disk is.
//!
//! Deviations: the paper does not say what becomes of background work; it has the largest target of the VMs, since the
//! paper blames its slowness on seeks between VMs and background. `background = "idle"` puts it behind all others.
//!
//! Source: \[flubber\] IV.C, "EDF with credit controlling".

use core::time::Duration;

use serde::{Deserialize, Serialize};

use crate::params::{self, ParamError, ParamTable, Parameter, Range};
use crate::policy::Field;
use crate::scheduler::{Descriptor, Facts, Medium, Scheduler};
use crate::units::Percent;

use super::flubber;
use super::flubber::credits::Credits;
use super::flubber::queues::{ByAddress, EqualDeadlines, Queues};
use super::flubber::two_level::{Background, Rule, Start, Targets, TwoLevel};

/// What becomes of background work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BackgroundOrder {
    /// It has a deadline like the others, with the largest target of the VMs.
    #[default]
    Deadline,
    /// It goes when no VM's request is queued.
    Idle,
}

/// The parameters in `[device.NAME.edf-credit]`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Params {
    /// The interval factor.
    pub beta: u32,
    /// L of a VM whose policy states no latency.
    #[serde(with = "params::duration")]
    pub latency: Duration,
    /// M, the longest seek.
    #[serde(with = "params::duration")]
    pub seek_max: Duration,
    /// From when a deadline counts.
    pub start: Start,
    /// Which of two equal deadlines goes first.
    pub equal_deadlines: EqualDeadlines,
    /// How long no VM's request must have been queued for a replenishment.
    #[serde(with = "params::duration")]
    pub grace: Duration,
    /// What becomes of background work.
    pub background: BackgroundOrder,
}

impl Default for Params {
    fn default() -> Self {
        let flubber::Params { beta, latency, seek_max, start, equal_deadlines, grace, .. } = flubber::Params::default();
        let background = BackgroundOrder::Deadline;
        Params { beta, latency, seek_max, start, equal_deadlines, grace, background }
    }
}

/// What is known of it.
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
    volumes: false,
    medium: Medium::Disk,
    volumes_depend: None,
    merging: true,
    weight_floor: |_| Percent::ZERO,
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
};

// rule: edf-credit.credits
fn build(facts: &Facts, table: &ParamTable) -> Result<Box<dyn Scheduler>, ParamError> {
    let params: Params = params::parse(table)?;
    let targets =
        Targets { latency: params.latency, seek_max: params.seek_max, start: params.start, grace: params.grace };
    let background = match params.background {
        BackgroundOrder::Deadline => Background::WithinLargest,
        BackgroundOrder::Idle => Background::WhenEmpty,
    };
    Ok(Box::new(TwoLevel::new(
        Credits::new(params.beta, true, facts.cost.reference_size()),
        Queues::new(params.equal_deadlines, ByAddress::Nothing),
        targets,
        Rule::Earliest,
        background,
    )))
}
