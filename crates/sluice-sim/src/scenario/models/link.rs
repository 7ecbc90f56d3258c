//! Network links.

use serde::Deserialize;
use sluice_sched::params::{self, ParamError, ParamTable, Parameter, Range};
use sluice_sched::scheduler::DeviceClass;

use super::{Derived, ModelKind, parameter, ranged};
use crate::devices::link::{CompletesWhen, Link, LinkParams};
use crate::units::BitRate;
use crate::workloads::datagrams::frames_of;

const PARAMETERS: &[Parameter] = &[
    parameter("rate", "a rate of bits", "\"100Mbit/s\"", "Rate of the wire"),
    ranged(
        "queue",
        "frames",
        Range::Number(1, 1_000_000),
        "1000",
        "Maximum number of frames that are queued or being sent",
    ),
    ranged(
        "overhead",
        "bytes",
        Range::Number(0, 1000),
        "24",
        "Additional bytes on the wire for each frame: preamble, checksum, gap",
    ),
    ranged(
        "over",
        "word",
        Range::Words(&["sent", "queued"]),
        "\"sent\"",
        "When the sender learns that a frame has completed. sent: when it is on the wire; queued: as soon as it is \
             in the queue, as behind a bridge",
    ),
];

pub(super) const KINDS: &[ModelKind] = &[ModelKind {
    name: "link",
    summary: "A network link with a transmit queue; a frame that finds the queue full is dropped",
    device_class: DeviceClass::Network,
    parameters: &[PARAMETERS],
    derive: |table| Ok(derive(&read(table)?)),
    build: |table, _, _| Ok(Box::new(Link::new(read(table)?))),
}];

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Over {
    Sent,
    Queued,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Wire {
    rate: BitRate,
    queue: u32,
    overhead: u32,
    over: Over,
}

fn read(table: &ParamTable) -> Result<LinkParams, ParamError> {
    let Wire { rate, queue, overhead, over } = params::read(PARAMETERS, table)?;
    let completes_when = match over {
        Over::Sent => CompletesWhen::Sent,
        Over::Queued => CompletesWhen::Queued,
    };
    Ok(LinkParams { bits_per_second: rate.0, overhead, queue, completes_when })
}

fn derive(link: &LinkParams) -> Derived {
    const PAYLOAD: u32 = 1472;
    let frame = frames_of(PAYLOAD)[0];
    let frames = 1.0 / link.time(frame).as_secs_f64();
    let facts = vec![
        ("rate of the wire", BitRate(link.bits_per_second).to_string()),
        ("data, in full UDP frames", format!("{:.2} Mbit/s", frames * f64::from(PAYLOAD) * 8e-6)),
        ("frames, as policies count them", format!("{:.2} MB/s", frames * f64::from(frame) * 1e-6)),
        ("waiting time in a full queue", format!("{:.1} ms", f64::from(link.queue) / frames * 1e3)),
    ];
    Derived { span: 0, most: (frames, "full frames of 1514 bytes"), facts, rotational: false }
}
