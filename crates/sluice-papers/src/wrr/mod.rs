//! wrr: virtual NICs share a link by weight, with minimum and maximum rates, and nothing is taken that cannot be sent.
//!
//! Idea: NICs with packets are served in turn, and each gets a part of the link in proportion to its weight. A packet
//! is taken only when there is room for it downstream. So packets wait in the queue that this scheduler orders, and
//! none is lost on the way to the wire.
//!
//! Rules: one file per idea. `tags` has turns of one frame in the order of start-time tags (the default). `rounds` has
//! turns in proportion to the weight, as in the paper. `turns` is the interface of both, `minimum` has the minimum
//! rates, and `queue` the rest. A NIC sends while its rate credits last; without credits it leaves until its window
//! ends, as in netback. A NIC that has sent less in its window than its minimum rate times the time since the start of
//! the window is served before all others, in a separate class. What it sends there also counts as service of its
//! share.
//!
//! Parameters: see [`Params`]. `frame` is used with `rounds = "published"` only, all others in both forms.
//!
//! Example: weights 30 and 1, frames of one size, both backlogged: 30 frames of the first, one of the second, and so
//! on; they get 92.9 and 3.1 Mb/s of a link of 96 Mb/s. If the weights are exchanged, the next frames follow the new
//! weights. A third NIC of the same weight that sends a frame now and then waits for one frame of each.
//!
//! Deviations: \[netback\] has rounds in which the quantum is the weight in packets. With `rounds = "tags"` a turn is
//! one frame, since in a round a NIC waits for the turns of all others. With `rounds = "published"` the quantum is the
//! weight divided by the smallest weight in the round, so that weights of 3000 and 100 do not make bursts of 3000
//! packets; a fraction of a packet is kept for the next turn. With unit `packets`, minimum and maximum rates still
//! count bytes.
//!
//! Source: \[netback\] VII; the minimum rate is what it proposes there. Tags: \[sfq\] P. Goyal, H. Vin, H. Cheng: Start-time
//! Fair Queuing, SIGCOMM 1996. Rounds in bytes: M. Shreedhar, G. Varghese: Efficient Fair Queueing Using Deficit Round
//! Robin, SIGCOMM 1995.

// Consequences that tests assert:
// rule: wrr.bound

use core::time::Duration;

use serde::Deserialize;

use sluice_sched::guarantees::{Guarantees, Limits, Order, Waits};
use sluice_sched::params::{self, ParamError, ParamTable, Parameter, Range};
use sluice_sched::policy::Field;
use sluice_sched::scheduler::{Descriptor, DeviceClass, DeviceInfo, Scheduler};

mod members;
mod minimum;
mod queue;
mod rounds;
mod tags;
mod turns;

pub use queue::Wrr;

/// Largest frame that may be stated: a segment of TCP offload.
const FRAME_MAX: u32 = 65_550;

/// Length of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TurnLength {
    /// One frame, in the order of start-time tags.
    Tags,
    /// In proportion to the weight, in rounds, as in the paper.
    Published,
}

/// Whether weights are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Prioritize {
    /// By weight.
    On,
    /// All NICs have the same weight.
    Off,
}

/// Unit in which weights divide the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Unit {
    /// Bytes: deficit round robin.
    Bytes,
    /// Packets of any size, as in the paper.
    Packets,
}

/// The parameters in `[device.NAME.wrr]`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
// rule: wrr.parameters
pub struct Params {
    pub rounds: TurnLength,
    /// Whether weights are used.
    pub prioritize: Prioritize,
    /// Unit in which weights divide the link.
    pub unit: Unit,
    /// Time for which a NIC stays active after its last packet.
    #[serde(with = "params::duration")]
    pub delay: Duration,
    /// Whether the turn of an active NIC without packets is held for it.
    pub hold: bool,
    /// Quantum of the NIC of smallest weight with unit `bytes`; published rounds only.
    pub frame: u32,
    /// Length of a window of rate credits and minimum rates.
    #[serde(with = "params::duration")]
    pub interval: Duration,
    /// Tick of the clock of rate credits; 0 is exact time.
    #[serde(with = "params::duration")]
    pub tick: Duration,
}

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "wrr",
    summary: "shares of a link by weight, with minimum and maximum rates: weighted round robin",
    idea: "Virtual NICs that have packets take turns of one frame, in the order of start-time tags. So each sends as \
           much as its weight entitles it to, counted in bytes or, as in the paper, in packets. A NIC that rarely \
           sends waits for at most one frame of each other NIC. With rounds = \"published\" the length of a turn is \
           proportional to the weight, as in the paper; a NIC with a small weight then makes the turns of NICs with \
           large weights long. A packet is taken only when there is room for it downstream, so none is lost before the \
           wire. A NIC below its minimum rate is served before all others. Maximum rates are credits per window, as in \
           netback. A changed weight applies from the next frame or turn.",
    when: "To share a network interface by weight.",
    source: "B. Adamczyk, A. Chydzinski: On the Performance Isolation Across Virtual Network Adapters in Xen, CLOUD \
             COMPUTING 2011; P. Goyal, H. Vin, H. Cheng: Start-time Fair Queuing, SIGCOMM 1996; M. Shreedhar, G. Varghese: \
             Efficient Fair Queueing Using Deficit Round Robin, SIGCOMM 1995",
    enforces: &[
        (
            Field::Reservation,
            "bytes per second: while a VM is below it in its window, it is served before all others; a reservation in \
             requests is rejected",
        ),
        (Field::Limit, "bytes per second, as credits per window; a limit in requests is rejected"),
        (
            Field::Weight,
            "its share of the link while other NICs have packets; \"none\" means the smallest weight, 0.01",
        ),
        (Field::Class, "background: the smallest weight, 0.01"),
    ],
    depends: &[(Field::Weight, "prioritize", &["on"]), (Field::Class, "prioritize", &["on"])],
    device_classes: &[DeviceClass::Network],
    guarantees,
    parameters: &[
        Parameter {
            name: "rounds",
            kind: "word",
            range: Range::Words(&["tags", "published"]),
            default: "\"tags\"",
            help: "tags: a turn is one frame, in the order of start-time tags; published: the length of a turn is \
                   proportional to the weight, as in the paper, so a NIC with a small weight makes the turns of all \
                   others long",
        },
        Parameter {
            name: "prioritize",
            kind: "word",
            range: Range::Words(&["on", "off"]),
            default: "\"on\"",
            help: "Whether weights are used; off is plain round robin",
        },
        Parameter {
            name: "unit",
            kind: "word",
            range: Range::Words(&["bytes", "packets"]),
            default: "\"bytes\"",
            help: "Unit in which weights divide the link",
        },
        Parameter {
            name: "delay",
            kind: "time with unit",
            range: Range::Time(Duration::ZERO, Duration::from_secs(1)),
            default: "\"10ms\"",
            help: "Time for which a NIC stays active after its last packet",
        },
        Parameter {
            name: "hold",
            kind: "true or false",
            range: Range::Flag,
            default: "false",
            help: "Whether the turn of an active NIC without packets is kept for it; its share is then lost to all \
                   NICs",
        },
        Parameter {
            name: "frame",
            kind: "bytes",
            range: Range::Number(64, FRAME_MAX),
            default: "1514",
            help: "Number of bytes that the NIC with the smallest weight in the round may send in its turn; only with \
                   rounds \"published\" and unit \"bytes\"",
        },
        Parameter {
            name: "interval",
            kind: "time with unit",
            range: Range::Time(Duration::from_millis(1), Duration::from_secs(10)),
            default: "\"50ms\"",
            help: "Length of a window, for the credits of maximum rates and for minimum rates",
        },
        Parameter {
            name: "tick",
            kind: "time with unit",
            range: Range::Time(Duration::ZERO, Duration::from_secs(1)),
            default: "\"0s\"",
            help: "Resolution of the clock that measures credits; 0s is exact time",
        },
    ],
    build,
    ..Descriptor::BASE
};

fn guarantees(_facts: &DeviceInfo, table: &ParamTable) -> Guarantees {
    let Ok(Params { interval, tick, hold, .. }) = params::read(DESCRIPTOR.parameters, table) else {
        return Guarantees::BASE;
    };
    // With `hold` the turn of a NIC is kept for it.
    let waits = if hold { Waits::Other } else { Waits::Windows { in_flight: None } };
    Guarantees { order: Order::Volume, waits, limits: Limits::Windows { interval, tick }, ..Guarantees::BASE }
}

fn build(_facts: &DeviceInfo, table: &ParamTable) -> Result<Box<dyn Scheduler>, ParamError> {
    let params: Params = params::read(DESCRIPTOR.parameters, table)?;
    Ok(Box::new(Wrr::new(&params)))
}
