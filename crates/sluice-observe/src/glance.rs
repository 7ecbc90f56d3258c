//! The current state in a compact form, and the times of the last minute.

use sluice_api::status::{Histograms, Promise, State};
use sluice_api::top::{Amount, Figures, Rates};
use sluice_sched::gate::histogram::SparseHistogram;
use sluice_sched::{ByteRate, Iops, Phase, Policy, Weight};

use crate::flow::Flow;
use crate::recent::Recent;
use crate::status::rounded;

fn amount(iops: Option<Iops>, bytes: Option<ByteRate>) -> Amount {
    let bytes = bytes.map(|bytes| bytes.bytes_per_second() as f64);
    Amount { iops: iops.map(Iops::as_f64), bytes_per_second: bytes }
}

fn rates(recent: &Recent) -> Rates {
    let (mut latency, mut dispatched) = (SparseHistogram::default(), [0_u64; 3]);
    for flow in recent.flows_of_ten_seconds() {
        latency.add(&flow.latency);
        dispatched.iter_mut().zip(flow.dispatched).for_each(|(sum, more)| *sum += more);
    }
    let micros = |percent| latency.percentile(percent).map(|nanos| nanos as f64 / 1000.0);
    let all: u64 = dispatched.iter().sum();
    let by_reservation = dispatched[Phase::Reservation as usize] as f64 / all.max(1) as f64;
    let last = recent.last_flow();
    let rate = |flow: &Flow| rounded(if flow.is_link { flow.iops() } else { flow.normalised_iops() });
    Rates {
        iops: last.map_or(0.0, rate),
        bits_per_second: recent.is_link().then(|| last.map_or(0.0, |flow| (8.0 * flow.bytes_per_second()).round())),
        bytes_per_second: last.map_or(0.0, |flow| flow.bytes_per_second().round()),
        p50_us: micros(50.0),
        p99_us: micros(99.0),
        by_reservation_percent: (all > 0).then(|| (by_reservation * 100.0).round()),
    }
}

pub(crate) fn figures(
    policy: &Policy,
    recent: Option<&Recent>,
    promises: Vec<Promise>,
    (outstanding, clients): (u32, u32),
) -> Figures {
    Figures {
        state: Some(State::worst(&promises)).filter(|state| *state != State::None),
        reservation: amount(policy.reservation.iops, policy.reservation.bytes),
        limit: amount(policy.limit.iops, policy.limit.bytes),
        weight: policy.weight.map(Weight::as_f64),
        rates: recent.map(rates),
        outstanding,
        clients,
        promises: promises.into_iter().filter(|promise| promise.state == State::Broken).collect(),
    }
}

pub(crate) fn histograms(recent: &Recent) -> Histograms {
    let minute = recent.minute_of_histograms();
    let buckets = |times: &SparseHistogram| {
        times.buckets().map(|(nanos, count)| (nanos as f64 / 1000.0, count)).collect::<Vec<_>>()
    };
    Histograms {
        seconds: minute.seconds().round(),
        latency: buckets(&minute.latency),
        queue_time: buckets(&minute.queue_time),
        service_time: buckets(&minute.service_time),
    }
}
