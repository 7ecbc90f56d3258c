//! Flubber: throughput by credits, latency by deadlines, and a disk that is given work that lies close together.
//!
//! Idea: two levels. The high one (Virtual Bandwidth Control) lets requests of each VM pass in proportion to the bandwidth
//! that the VM requires. The low one (Virtual Latency Control) gives each a deadline, serves the earliest, and uses the
//! time until then: it goes on with the VM or the address where the disk is, waits a moment for the next request there,
//! and leaves background work for when nobody else asks.
//!
//! Rules: one file per idea. `credits` is the high level; `queues` and `addresses` what is queued in the low one;
//! `two_level` puts them together and chooses.
//!
//! Parameters: see [`Params`].
//!
//! Example: two VMs require 1000 and 120 IOPS within 80 and 60 ms; beta is 32, the longest seek 9 ms. Their credits are
//! 256 and 32. A request of the second that passes the credits at t is due at t + 51 ms.
//!
//! Deviations: where the published wording stops the disk for good (replenishment, event 2) both modes follow its purpose.
//! Mode `product` bounds the wait, lets no background request jump the line, and replenishes only when what has passed is
//! served. Each place says so (`DEVIATION`).
//!
//! Source: \[flubber\] X. Ling, H. Jin, S. Ibrahim, W. Cao, S. Wu: Efficient Disk I/O Scheduling with QoS Guarantee for Xen-based
//! Hosting Platforms, CCGRID 2012.

// What follows from the rules, and tests hold:
// rule: flubber.deadline-feasible, flubber.no-starvation, flubber.credits-conserved, flubber.exact-ratio
// rule: flubber.large-beta, flubber.small-beta, flubber.e2-literal

use core::time::Duration;

use serde::{Deserialize, Serialize};

use crate::params::{self, ParamError, ParamTable, Parameter, Range};
use crate::policy::Field;
use crate::scheduler::{Descriptor, Facts, Medium, Scheduler};
use crate::units::{ByteRate, Bytes, Percent};

mod addresses;
pub(crate) mod credits;
pub(crate) mod queues;
pub(crate) mod two_level;

use credits::Credits;
use queues::{ByAddress, EqualDeadlines, Queues};
use two_level::{Background, BatchAndDelay, Rule, Start, Targets, TwoLevel};

/// Which reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Ours: no long idling, no background request before a VM's.
    #[default]
    Product,
    /// As published, in the reading that cannot stop for good.
    Paper,
}

/// Which requests may go because they begin where the last one ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SuccessorScope {
    /// Any, background too.
    All,
    /// Those of VMs.
    Vm,
}

/// The parameters in `[device.NAME.flubber]`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Params {
    /// Which reading.
    pub mode: Mode,
    /// The interval factor: full credits are beta times a VM's proportion. \[flubber\] eq. (2), Table II.
    pub beta: u32,
    /// L of a VM whose policy states no latency.
    #[serde(with = "params::duration")]
    pub latency: Duration,
    /// M, the longest seek. \[flubber\] IV.C: 9 ms.
    #[serde(with = "params::duration")]
    pub seek_max: Duration,
    /// The largest request, for the time that it takes.
    pub transfer_max: Bytes,
    /// What the device transfers, for the time that the largest request takes.
    pub transfer_rate: ByteRate,
    /// From when a deadline counts.
    pub start: Start,
    /// Which of two equal deadlines goes first.
    pub equal_deadlines: EqualDeadlines,
    /// Which requests may go because they are contiguous; none: by the mode.
    pub successor_scope: Option<SuccessorScope>,
    /// How long no VM's request must have been queued for a replenishment.
    #[serde(with = "params::duration")]
    pub grace: Duration,
    /// The longest wait; none: 6 ms on a rotational device, else 0. Mode product alone.
    #[serde(with = "params::optional_duration")]
    pub max_wait: Option<Duration>,
    /// The background's own target; none: it goes when no VM's request is queued. Mode product alone.
    #[serde(with = "params::optional_duration")]
    pub background_latency: Option<Duration>,
}

impl Default for Params {
    fn default() -> Self {
        Params {
            mode: Mode::Product,
            beta: 32,
            latency: Duration::from_millis(80),
            seek_max: Duration::from_millis(9),
            transfer_max: Bytes::kib(44),
            transfer_rate: ByteRate::per_second(100_000_000),
            start: Start::Entry,
            equal_deadlines: EqualDeadlines::Fifo,
            successor_scope: None,
            grace: Duration::ZERO,
            max_wait: None,
            background_latency: None,
        }
    }
}

impl Params {
    fn check(&self) -> Result<(), ParamError> {
        let product = [("max_wait", self.max_wait), ("background_latency", self.background_latency)];
        if let Some((name, _)) = product.iter().find(|(_, time)| self.mode == Mode::Paper && time.is_some()) {
            return Err(ParamError(format!(
                "{name} is a parameter of mode \"product\"; remove it, or change the mode"
            )));
        }
        Ok(())
    }

    fn rule(&self, facts: &Facts) -> Rule {
        // rule: flubber.f2
        let nanos = u128::from(self.transfer_max.0) * 1_000_000_000 / u128::from(self.transfer_rate.bytes_per_second());
        let transfer = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        let default = if facts.rotational { Duration::from_millis(6) } else { Duration::ZERO };
        let wait_max = (self.mode == Mode::Product).then(|| self.max_wait.unwrap_or(default));
        Rule::BatchAndDelay(BatchAndDelay { transfer, wait_max })
    }
}

/// Where both schedulers of this kind come from.
pub(crate) const SOURCE: &str = "X. Ling, H. Jin, S. Ibrahim, W. Cao, S. Wu: Efficient Disk I/O Scheduling with QoS Guarantee for Xen-based Hosting \
     Platforms, CCGRID 2012";
/// How both schedulers of this kind map what a VM requires.
pub(crate) const REQUIRED: &str = "the required bandwidth: credits, and so requests, are in proportion to it, rounded \
                                   to whole multiples of the smallest one; a VM without a reservation counts like the \
                                   smallest";
/// How both map its latency.
pub(crate) const TARGET: &str = "the latency target L of every request of the VM, counted from its admission by \
                                 credits; the earliest deadline, L - M, goes first";

/// What is known of it.
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "flubber",
    summary: "throughput by credits, latency by deadlines, batches by address (Flubber)",
    idea: "Credits in proportion to the required bandwidths decide which VM's requests are admitted. All credits are \
           replenished when no admitted request of a VM is queued any more, in mode \"paper\" also when all are used \
           up, and when a VM is added or removed. Admitted requests have a deadline. Until the earliest deadline is \
           due, the disk continues with the same VM or at the same address, and may wait briefly for the next request \
           there. Background requests are dispatched when no VM's request is queued.",
    when: "For a spinning disk that VMs with a required throughput and latency share with background jobs such as \
           backups. With more than one request in flight the waiting costs more than it gains.",
    source: SOURCE,
    enforces: &[
        (Field::Reservation, REQUIRED),
        (Field::Latency, TARGET),
        (
            Field::Class,
            "background: its requests take no credits and are dispatched when no request of another VM is queued",
        ),
    ],
    depends: &[],
    volumes: false,
    medium: Medium::Disk,
    volumes_depend: None,
    // rule: flubber.f13
    merging: true,
    weight_floor: |_| Percent::ZERO,
    parameters: &[
        Parameter {
            name: "mode",
            kind: "word",
            range: Range::Words(&["product", "paper"]),
            default: "\"product\"",
            help: "product: the paper with our fixes; paper: as published",
        },
        BETA,
        LATENCY,
        SEEK_MAX,
        Parameter {
            name: "transfer_max",
            kind: "size with unit",
            range: Range::Size(1, 1 << 30),
            default: "\"44KiB\"",
            help: "Maximum size of a request; the time to transfer it at transfer_rate is kept free before a deadline",
        },
        Parameter {
            name: "transfer_rate",
            kind: "rate of bytes",
            range: Range::Rate(1024, 1 << 40),
            default: "\"100MB/s\"",
            help: "Transfer rate of the device",
        },
        START,
        EQUAL_DEADLINES,
        Parameter {
            name: "successor_scope",
            kind: "word",
            range: Range::Words(&["vm", "all"]),
            default: "by the mode: \"vm\" in product, \"all\" in paper",
            help: "Which requests may be chosen because they start where the last one ended. vm: those of VMs; all: \
                   background requests too",
        },
        GRACE,
        Parameter {
            name: "max_wait",
            kind: "time with unit",
            range: Range::Time(Duration::ZERO, Duration::from_secs(3600)),
            default: "\"6ms\" on a rotational device, else \"0s\"",
            help: "Maximum wait for a contiguous request, from the time at which the device became idle; only in mode \
                   \"product\"",
        },
        Parameter {
            name: "background_latency",
            kind: "time with unit",
            range: Range::Time(Duration::ZERO, Duration::from_secs(3600)),
            default: "none",
            help: "Latency target of background requests, which otherwise starve while VMs are busy; only in mode \
                   \"product\"",
        },
    ],
    build,
};

pub(crate) const BETA: Parameter = Parameter {
    name: "beta",
    kind: "number",
    range: Range::Number(1, 65_536),
    default: "32",
    help: "The interval factor: full credits are this number times the VM's proportion. A larger value keeps the \
           device busier and allows longer bursts of one VM",
};
pub(crate) const LATENCY: Parameter = Parameter {
    name: "latency",
    kind: "time with unit",
    range: Range::Time(Duration::ZERO, Duration::from_secs(3600)),
    default: "\"80ms\"",
    help: "Latency target of a VM whose policy has none",
};
pub(crate) const SEEK_MAX: Parameter = Parameter {
    name: "seek_max",
    kind: "time with unit",
    range: Range::Time(Duration::ZERO, Duration::from_secs(3600)),
    default: "\"9ms\"",
    help: "M, the longest seek: subtracted from the target, so that a request dispatched at its deadline completes in \
           time",
};
pub(crate) const START: Parameter = Parameter {
    name: "start",
    kind: "word",
    range: Range::Words(&["entry", "arrival"]),
    default: "\"entry\"",
    help: "Start of a deadline. entry: when credits admit the request; arrival: when it arrives, so a request that \
           waited for credits becomes urgent",
};
pub(crate) const EQUAL_DEADLINES: Parameter = Parameter {
    name: "equal_deadlines",
    kind: "word",
    range: Range::Words(&["fifo", "lifo"]),
    default: "\"fifo\"",
    help: "Which of two requests with equal deadlines goes first; \"lifo\" follows the published listing literally",
};
pub(crate) const GRACE: Parameter = Parameter {
    name: "grace",
    kind: "time with unit",
    range: Range::Time(Duration::ZERO, Duration::from_secs(3600)),
    default: "\"0s\"",
    help: "Time for which no VM's request must have been queued before all credits are replenished",
};

fn build(facts: &Facts, table: &ParamTable) -> Result<Box<dyn Scheduler>, ParamError> {
    let params: Params = params::parse(table)?;
    params.check()?;
    // DEVIATION [flubber] III.B, event 1: in the product using credits up is no reason to replenish them, an empty queue of
    // deadlines is. Else a VM that is alone with thousands of requests lets all of them pass, one set of credits after
    // the other, and whoever comes next stands behind them all. The disk loses nothing: it never is without a request.
    let (when_used_up, scope) = match params.mode {
        Mode::Paper => (true, SuccessorScope::All),
        Mode::Product => (false, SuccessorScope::Vm),
    };
    let by_address = match params.successor_scope.unwrap_or(scope) {
        SuccessorScope::Vm => ByAddress::Vms,
        SuccessorScope::All => ByAddress::All,
    };
    let targets =
        Targets { latency: params.latency, seek_max: params.seek_max, start: params.start, grace: params.grace };
    Ok(Box::new(TwoLevel::new(
        Credits::new(params.beta, when_used_up, facts.cost.reference_size()),
        Queues::new(params.equal_deadlines, by_address),
        targets,
        params.rule(facts),
        params.background_latency.map_or(Background::WhenEmpty, Background::Within),
    )))
}
