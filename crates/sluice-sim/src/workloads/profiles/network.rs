//! Network traffic of VMs: datagrams at a constant rate, and transfers with congestion control.

use std::time::Duration;

use serde::Deserialize;
use sluice_sched::params::{self, ParamError, ParamTable, Range};
use sluice_sched::scheduler::DeviceClass;

use super::{BuildContext, Built, WorkloadProfile, parameter, parse, ranged};
use crate::units::BitRate;
use crate::workloads::{DatagramParams, Datagrams, Tcp, TcpParams};

pub(super) const PROFILES: &[WorkloadProfile] = &[
    WorkloadProfile {
        name: "datagrams",
        summary: "UDP: datagrams at a rate, as long as the socket buffer has space; lost datagrams are not sent again",
        source: "the default socket buffer of Linux; jitter [A]",
        device_class: DeviceClass::Network,
        parameters: &[
            parameter("rate", "a rate of bits", "\"100Mbit/s\"", "Data rate of each thread"),
            ranged(
                "payload",
                "bytes",
                Range::Number(1, 65_507),
                "1472",
                "Bytes of data in a datagram; 1472 fill a frame",
            ),
            ranged(
                "jitter",
                "a part",
                Range::Decimal(0.0, 1.0),
                "0.5",
                "[A] Variation of the intervals, as a fraction of their mean",
            ),
            ranged(
                "buffer",
                "frames",
                Range::Number(1, 65_536),
                "50",
                "Maximum number of frames in flight: the socket buffer",
            ),
        ],
        build: datagrams,
    },
    WorkloadProfile {
        name: "tcp",
        summary: "TCP: an endless transfer that slows down when a segment is lost",
        source: "slow start, congestion avoidance and fast recovery as in RFC 5681; no timeouts, no delayed \
                 acknowledgements",
        device_class: DeviceClass::Network,
        parameters: &[
            parameter(
                "round_trip",
                "a time",
                "\"2ms\"",
                "Time from a segment's end on the wire to its acknowledgement",
            ),
            ranged(
                "window",
                "segments",
                Range::Number(2, 65_536),
                "512",
                "Window of the receiver: the maximum number of segments in flight",
            ),
        ],
        build: tcp,
    },
];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Flow {
    rate: BitRate,
    payload: u32,
    jitter: f64,
    buffer: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Transfer {
    #[serde(with = "params::duration")]
    round_trip: Duration,
    window: u32,
}

fn datagrams(context: BuildContext, table: &ParamTable) -> Built {
    let Flow { rate, payload, jitter, buffer } = parse(table)?;
    let params = DatagramParams { payload, bits_per_second: rate.0, jitter, buffer };
    Ok(Box::new(Datagrams::new(params, context.start, context.random)))
}

fn tcp(context: BuildContext, table: &ParamTable) -> Built {
    let Transfer { round_trip, window } = parse(table)?;
    if round_trip.is_zero() {
        return Err(ParamError(
            "round_trip is 0s; write the time until an acknowledgement arrives, for example \"2ms\"".to_owned(),
        ));
    }
    Ok(Box::new(Tcp::new(TcpParams { round_trip, window_max: window }, context.start)))
}
