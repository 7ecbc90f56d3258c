//! What VMs send into a network: datagrams at a rate, and transfers that back off.

use std::time::Duration;

use serde::Deserialize;
use sluice_sched::params::{self, ParamError, ParamTable};

use super::{Built, Recipe, Setting, parameter, parse, part};
use crate::units::BitRate;
use crate::workloads::{DatagramParams, Datagrams, Tcp, TcpParams};

pub(super) const RECIPES: &[Recipe] = &[
    Recipe {
        name: "datagrams",
        summary: "UDP: datagrams at a rate, as far as the socket's buffer has room; what is lost is not sent again",
        source: "the default socket buffer of Linux; jitter [A]",
        parameters: &[
            parameter("rate", "a rate of bits", "\"100Mbit/s\"", "Of data, that each thread offers"),
            parameter("payload", "1 to 65507", "1472", "Bytes that a datagram carries; 1472 fill a frame"),
            parameter("jitter", "0 to 1", "0.5", "[A] How far distances vary, as a part of their mean"),
            parameter("buffer", "frames, 1 to 65536", "50", "On their way at most: the buffer of the socket"),
        ],
        build: datagrams,
    },
    Recipe {
        name: "tcp",
        summary: "TCP: a transfer without end that backs off when a segment is lost",
        source: "slow start, congestion avoidance and fast recovery as in RFC 5681; no time-outs, no delayed answers",
        parameters: &[
            parameter("round_trip", "a time", "\"2ms\"", "From a segment's end on the wire to its acknowledgement"),
            parameter("window", "segments, 2 to 65536", "512", "Of the receiver: on their way at most"),
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

fn datagrams(setting: Setting, table: &ParamTable) -> Built {
    let Flow { rate, payload, jitter, buffer } = parse(table)?;
    params::within("payload", payload, 1, 65_507, "bytes")?;
    params::within("buffer", buffer, 1, 65_536, "frames")?;
    part("jitter", jitter)?;
    let params = DatagramParams { payload, bits_per_second: rate.0, jitter, buffer };
    Ok(Box::new(Datagrams::new(params, setting.start, setting.random)))
}

fn tcp(setting: Setting, table: &ParamTable) -> Built {
    let Transfer { round_trip, window } = parse(table)?;
    params::within("window", window, 2, 65_536, "segments")?;
    if round_trip.is_zero() {
        return Err(ParamError("round_trip is 0s; write how long an acknowledgement takes, as in \"2ms\"".to_owned()));
    }
    Ok(Box::new(Tcp::new(TcpParams { round_trip, window_max: window }, setting.start)))
}
