//! Fig. 9: weighted round robin, with weights that change every second.

use sluice_report::{Chart, Line, Table};
use sluice_sched::Policy;
use sluice_sim::engine::Change;

use super::{Backend, Bench, DEVICE, Guests, at, link};
use crate::band::BandPoint;
use crate::figure::{Class, Figure, Finding, LabError, Paper, RowSpec};
use crate::setup::within;

/// The largest weight.
const MOST: u32 = 30;
/// Tolerance of a VM's throughput, as a part of the expected one.
const TOLERANCE: f64 = 0.02;

pub(crate) const FIGURE: Figure = Figure {
    id: "netback-priorities",
    paper: Paper::Netback,
    label: "Fig. 9",
    title: "Results of the improved scheduler for changing priorities of each VM",
    setup: "Two guests on one CPU send datagrams of 1472 bytes (1500 with the headers of IP and UDP) at 100 Mb/s each through the paper's weighted round robin, which takes \
            no packet that has no room downstream. Weights change every second: 30:1, 29:1, ... 1:1, 1:2, ... 1:30. Each \
            second is looked at whole, the change included; in the first the flows begin. For inactivity: weights 30:1, the first stops \
            from 3 s to 6 s, and its turns are held for `delay` (parameter hold), of 1 s and of others.",
    device: DEVICE,
    rows: &[
        RowSpec {
            id: "N6a",
            class: Class::Conformance,
            must: "in each second from the change on each VM has w/(sum of w) of the link's 95.7 Mb/s, within 2 % of that part, and in the \
                   first, in which the flows begin, within 2 % of the link, counted in packets and in bytes",
            paper: "bandwidth follows priorities from 30/1 to 1/30",
            note: "",
        },
        RowSpec {
            id: "N6b",
            class: Class::Conformance,
            must: "with a delay of 1 s and turns that are held: the other VM gets nothing in the second of the delay, 98 % of the link or more after \
                   it, and 1/31, within 2 % of that part, before the first stops and after it has begun again",
            paper: "a NIC is inactive after a period without traffic, and bandwidth is shared among active ones",
            note: "What is not used of a turn that is held is lost to all: the table by delay has the price. Where turns are not held, as by \
                   default, \
                   a NIC without packets has none, and the delay changes nothing.",
        },
    ],
    run: measure,
};

/// The weights, second by second.
pub(super) fn steps() -> Vec<[u32; 2]> {
    (1..=MOST).rev().map(|weight| [weight, 1]).chain((2..=MOST).map(|weight| [1, weight])).collect()
}

fn bench(backend: Backend, point: &BandPoint) -> Result<Bench, LabError> {
    let policies = [MOST, 1].map(Policy::weighted);
    let mut bench = Bench::new(backend, link(point)?, Guests::Together, &policies, point)?;
    for vm in 0..2 {
        bench.flow(vm, at(0), &format!("VM{}", vm + 1))?;
    }
    Ok(bench)
}

/// A run with weights that change.
fn changing(backend: Backend, point: &BandPoint) -> Result<Bench, LabError> {
    let mut bench = bench(backend, point)?;
    let steps = steps();
    for (second, weights) in steps.iter().enumerate().skip(1) {
        for (vm, weight) in weights.iter().enumerate() {
            let change = Change::Policy(vm, Policy::weighted(*weight));
            bench.simulation.plan_change(at(second as u64), change);
        }
    }
    bench.run(steps.len() as u64, backend.name())?;
    Ok(bench)
}

/// Whether in the first second, in which the flows start, a VM has its part of the link, within a part of the whole.
fn begins(bench: &Bench, vm: usize, due: f64) -> bool {
    (bench.mean(vm, 0, 1) / bench.full() - due).abs() <= TOLERANCE
}

/// Largest relative deviation of any VM in any second after the first.
fn furthest(bench: &Bench) -> f64 {
    let steps = steps();
    let off = |vm: usize| {
        let got = bench.rates(vm, 0, steps.len());
        let due = steps.iter().map(move |weights| f64::from(weights[vm]) / f64::from(weights[0] + weights[1]));
        got.into_iter().zip(due).skip(1).map(|(got, due)| (got / bench.full() / due - 1.0).abs()).fold(0.0, f64::max)
    };
    off(0).max(off(1))
}

fn measure(point: &BandPoint) -> Result<Finding, LabError> {
    let mut finding = Finding::default();
    let columns = ["back end", "30:1", "15:1", "1:1", "1:15", "1:30", "furthest off [% of what is due]", "frames lost"];
    let mut table = Table::new(
        "VM1/VM2 by weights [Mb/s of data]; netback's frames count when they have a place in the queue",
        &columns,
    );
    let (steps, mut worst, mut begun) = (steps(), 0.0f64, true);
    let first = steps[0].map(|weight| f64::from(weight) / f64::from(steps[0][0] + steps[0][1]));
    for backend in [Backend::Packets, Backend::Bytes, Backend::RoundRobin, Backend::Netback] {
        let run = changing(backend, point)?;
        let off = furthest(&run);
        let mut cells = vec![backend.name().to_owned()];
        for weights in [[30, 1], [15, 1], [1, 1], [1, 15], [1, 30]] {
            let second = steps.iter().position(|step| *step == weights).expect("it is one of the steps");
            let got = [0, 1].map(|vm| run.mean(vm, second, second + 1));
            cells.push(format!("{:.1}/{:.1}", got[0], got[1]));
        }
        let lost = run.dropped(0) + run.dropped(1);
        table.row(cells.into_iter().chain([format!("{:.1}", 100.0 * off), lost.to_string()]));
        if matches!(backend, Backend::Packets | Backend::Bytes) {
            worst = worst.max(off);
            begun &= (0..2).all(|vm| begins(&run, vm, first[vm]));
        }
        if backend == Backend::Packets {
            let lines = (0..2).map(|vm| Line::new(format!("VM{}", vm + 1), run.points(vm, steps.len()))).collect();
            finding.charts.push(Chart::lines(backend.name(), "time [s]", "Mb/s of data", lines));
        }
    }
    finding.judge("N6a", begun && worst <= TOLERANCE, format!("furthest off: {:.2} % of what is due", 100.0 * worst));
    finding.tables.push(table);
    inactivity(&mut finding, point)?;
    Ok(finding)
}

/// The weight 30 stops from 3 to 6 s.
fn stopping(delay: &str, hold: bool, point: &BandPoint) -> Result<Bench, LabError> {
    let host = Backend::Packets.host(&link(point)?).text("delay", delay).flag("hold", hold);
    let policies = [MOST, 1].map(Policy::weighted);
    let mut run = Bench::scheduled(&host, Backend::Packets, link(point)?, Guests::Together, &policies, point)?;
    for vm in 0..2 {
        run.flow(vm, at(0), &format!("VM{}", vm + 1))?;
    }
    run.simulation.plan_change(at(3), Change::Idle(0));
    run.simulation.plan_change(at(6), Change::Start(0));
    run.run(9, "inactivity")?;
    Ok(run)
}

fn inactivity(finding: &mut Finding, point: &BandPoint) -> Result<(), LabError> {
    let columns = ["turns", "delay", "2 to 3 s", "3 to 4 s", "4 to 5 s", "5 to 6 s", "7 to 9 s"];
    let mut table = Table::new("VM2's part of the link while VM1 is inactive from 3 to 6 s [%]", &columns);
    for (hold, delay) in [(false, "1s"), (true, "0s"), (true, "10ms"), (true, "100ms"), (true, "300ms"), (true, "1s")] {
        let run = stopping(delay, hold, point)?;
        let parts = [(2, 3), (3, 4), (4, 5), (5, 6), (7, 9)].map(|(from, to)| run.mean(1, from, to) / run.full());
        let percents = parts.map(|part| format!("{:.2}", 100.0 * part));
        if (hold, delay) == (true, "1s") {
            // The first VM sends what its queue holds after it was stopped: the delay ends in the next second.
            let [before, lost, _, alone, after] = parts;
            let shared = [before, after].iter().all(|part| within(*part, 1.0 / f64::from(MOST + 1), TOLERANCE));
            let measured = format!("{} % of the link", percents.join(", "));
            finding.judge("N6b", shared && lost <= 0.01 && alone >= 0.98, measured);
        }
        table.row([if hold { "held" } else { "not held" }.to_owned(), delay.to_owned()].into_iter().chain(percents));
    }
    finding.tables.push(table);
    Ok(())
}
