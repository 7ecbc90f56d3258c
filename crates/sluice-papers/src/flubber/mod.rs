//! Flubber: throughput by credits, latency by deadlines, and batches of requests that are close together on disk.
//!
//! Idea: two levels. The high one (Virtual Bandwidth Control) passes requests of each VM in proportion to the VM's
//! required bandwidth. The low one (Virtual Latency Control) gives each a deadline and serves the earliest one. The
//! time until then is used for throughput: it continues with the VM or the address at the head, idles for a moment for
//! the next request there, and serves background work only when no VM has requests.
//!
//! Rules: one file per idea. `credits` is the high level; `queues` and `addresses` hold the requests of the low one;
//! `two_level` combines them and chooses.
//!
//! Parameters: see [`Params`].
//!
//! Example: two VMs require 1000 and 120 IOPS within 80 and 60 ms; beta is 32, the longest seek 9 ms. Their credits are
//! 256 and 32. A request of the second VM that passes the credits at t is due at t + 51 ms.
//!
//! Deviations: where the published wording stops the disk for good (replenishment, event 2), both modes follow its
//! purpose. Mode `product` bounds idling, never dispatches background requests before VMs', and replenishes only when
//! all requests that have passed are served. Each place is marked `DEVIATION`.
//!
//! Source: \[flubber\] X. Ling, H. Jin, S. Ibrahim, W. Cao, S. Wu: Efficient Disk I/O Scheduling with QoS Guarantee for Xen-based
//! Hosting Platforms, CCGRID 2012.

// Consequences that tests assert:
// rule: flubber.deadline-feasible, flubber.no-starvation, flubber.credits-conserved, flubber.exact-ratio
// rule: flubber.large-beta, flubber.small-beta, flubber.e2-literal

use core::time::Duration;

use serde::Deserialize;

use sluice_sched::guarantees::{Guarantees, Waits};
use sluice_sched::params::{self, ParamError, ParamTable, Parameter, Range};
use sluice_sched::policy::Field;
use sluice_sched::scheduler::{Descriptor, DeviceInfo, Scheduler};
use sluice_sched::units::{ByteRate, Bytes};

mod addresses;
pub(crate) mod credits;
pub(crate) mod queues;
pub(crate) mod two_level;

use credits::Credits;
use queues::{ByAddress, EqualDeadlines, Queues};
use two_level::{Background, BatchAndDelay, Rule, Start, Targets, TwoLevel};

/// Interpretation of the paper.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Without long idling, and without background requests before those of VMs.
    Product,
    /// As published, in an interpretation that cannot stop for good.
    Paper,
}

/// Requests that may be dispatched because they begin where the last one ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SuccessorScope {
    /// All, background included.
    All,
    /// Those of VMs.
    Vm,
}

/// The parameters in `[device.NAME.flubber]`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Params {
    pub mode: Mode,
    /// The interval factor: full credits are beta times a VM's proportion. \[flubber\] eq. (2), Table II.
    pub beta: u32,
    /// L of a VM without a latency target.
    #[serde(with = "params::duration")]
    pub latency: Duration,
    /// M, the longest seek. \[flubber\] IV.C: 9 ms.
    #[serde(with = "params::duration")]
    pub seek_max: Duration,
    /// Largest request, to calculate its transfer time.
    pub transfer_max: Bytes,
    /// Transfer rate of the device, to calculate the transfer time of the largest request.
    pub transfer_rate: ByteRate,
    /// Start of the time to the deadline.
    pub start: Start,
    /// Order of equal deadlines.
    pub equal_deadlines: EqualDeadlines,
    /// Contiguous requests that may be dispatched out of order; `None`: by the mode.
    pub successor_scope: Option<SuccessorScope>,
    /// Time without queued requests of VMs after which credits are replenished.
    #[serde(with = "params::duration")]
    pub grace: Duration,
    /// Maximum idling; `None`: 6 ms on a rotational device, otherwise 0. Mode product only.
    #[serde(default, with = "params::optional_duration")]
    pub max_wait: Option<Duration>,
    /// Latency target of background work; `None`: it is served when no VM's request is queued. Mode product only.
    #[serde(default, with = "params::optional_duration")]
    pub background_latency: Option<Duration>,
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

    /// Maximum idling on this device; `None`: as long as the deadline allows.
    fn wait_max(&self, info: &DeviceInfo) -> Option<Duration> {
        let default = if info.rotational { Duration::from_millis(6) } else { Duration::ZERO };
        (self.mode == Mode::Product).then(|| self.max_wait.unwrap_or(default))
    }

    fn rule(&self, info: &DeviceInfo) -> Rule {
        // rule: flubber.f2
        let nanos = u128::from(self.transfer_max.0) * 1_000_000_000 / u128::from(self.transfer_rate.bytes_per_second());
        let transfer = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        Rule::BatchAndDelay(BatchAndDelay { transfer, wait_max: self.wait_max(info) })
    }

    fn guarantees(&self, info: &DeviceInfo) -> Guarantees {
        let idle = self.wait_max(info);
        let target = self.background_latency.unwrap_or_default().max(self.latency).max(self.grace);
        let waits = match idle {
            Some(Duration::ZERO) => Waits::idling(self.grace),
            _ => Waits::Deadlines { target, seek: self.seek_max, idle },
        };
        Guarantees { waits, ..Guarantees::BASE }
    }
}

/// Source of both schedulers with credits.
pub(crate) const SOURCE: &str = "X. Ling, H. Jin, S. Ibrahim, W. Cao, S. Wu: Efficient Disk I/O Scheduling with QoS Guarantee for Xen-based Hosting \
     Platforms, CCGRID 2012";
/// Mapping of the required bandwidth, in both of them.
pub(crate) const REQUIRED: &str = "the required bandwidth: credits, and so requests, are in proportion to it, rounded \
                                   to whole multiples of the smallest one; a VM without a reservation counts like the \
                                   smallest";
/// Mapping of the latency target, in both of them.
pub(crate) const TARGET: &str = "the latency target L of every request of the VM, counted from its admission by \
                                 credits; the earliest deadline, L - M, goes first";

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
    // rule: flubber.f13
    merging: true,
    guarantees,
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
    ..Descriptor::BASE
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

fn guarantees(info: &DeviceInfo, table: &ParamTable) -> Guarantees {
    params::read(DESCRIPTOR.parameters, table).map_or(Guarantees::BASE, |params: Params| params.guarantees(info))
}

fn build(info: &DeviceInfo, table: &ParamTable) -> Result<Box<dyn Scheduler>, ParamError> {
    let params: Params = params::read(DESCRIPTOR.parameters, table)?;
    params.check()?;
    // DEVIATION [flubber] III.B, event 1: in product mode credits are not replenished when they are used up, only when
    // the queue of deadlines is empty. Otherwise a VM that is alone with thousands of requests would pass all of them,
    // one set of credits after the other, and the requests of the next VM would queue after them. The disk always has a
    // request.
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
        Credits::new(params.beta, when_used_up, info.cost.reference_size()),
        Queues::new(params.equal_deadlines, by_address),
        targets,
        params.rule(info),
        params.background_latency.map_or(Background::WhenEmpty, Background::Within),
    )))
}
