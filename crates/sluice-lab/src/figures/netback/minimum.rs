//! Section VII: a minimum rate, as proposed.

use sluice_report::{Chart, Line, Table};
use sluice_sched::Policy;

use super::{Backend, Bench, DEVICE, Guests, at, at_least, link, range};
use crate::band::BandPoint;
use crate::figure::{Class, Figure, Finding, LabError, Paper, RowSpec};
use crate::setup::within;

/// Simulated seconds; the first one is not measured.
const SECONDS: usize = 10;
/// The first VM's minimum, in Mb/s of frames.
const MINIMUM: u64 = 60;

pub(crate) const FIGURE: Figure = Figure {
    id: "netback-minimum",
    paper: Paper::Netback,
    label: "Section VII",
    title: "A minimum rate, by priority for interfaces that have not yet achieved it",
    setup: "Three guests on a CPU each send datagrams of 1472 bytes (1500 with the headers of IP and UDP) at 100 Mb/s each; the first has a minimum of 60 Mb/s of frames. \
            The paper proposes this and measures nothing. Ten seconds, of which the first is not looked at.",
    device: DEVICE,
    rows: &[
        RowSpec {
            id: "N7a",
            class: Class::Conformance,
            must: "in every second from the second one on the first has 98 % of its minimum or more, whether the others' weights \
                   are those of its own or ten times them",
            paper: "proposed: higher priority for interfaces that have not yet achieved the minimum rate",
            note: "",
        },
        RowSpec {
            id: "N7b",
            class: Class::Conformance,
            must: "the two others share the rest within 2 % of each other, and the link is full within 1 %",
            paper: "proposed",
            note: "",
        },
        RowSpec {
            id: "N7c",
            class: Class::Conformance,
            must: "minima of 60 Mb/s for two VMs, more than the link: both have the same within 2 %, the third at most 2 % of the link",
            paper: "proposed",
            note: "The sum is more than there is, so it divides among those below their minimum by weight.",
        },
    ],
    run: measure,
};

fn weighted(policy: Policy, weight: u32) -> Policy {
    Policy { weight: Policy::weighted(weight).weight, ..policy }
}

/// Rates of three senders, in Mb/s of frames.
struct Got {
    means: [f64; 3],
    /// Minimum of the first one in any second.
    least: f64,
    full: f64,
    lines: Vec<Line>,
}

fn simulate(backend: Backend, policies: [Policy; 3], point: &BandPoint) -> Result<Got, LabError> {
    let mut bench = Bench::new(backend, link(point)?, Guests::Apart, &policies, point)?;
    for vm in 0..3 {
        bench.flow(vm, at(0), &format!("VM{}", vm + 1))?;
    }
    bench.run(SECONDS as u64, backend.name())?;
    let frames = 1.0 / bench.data();
    let lines = (0..3).map(|vm| Line::new(format!("VM{}", vm + 1), bench.points(vm, SECONDS))).collect();
    Ok(Got {
        means: [0, 1, 2].map(|vm| bench.mean(vm, 1, SECONDS) * frames),
        least: range(&bench.rates(0, 1, SECONDS)).0 * frames,
        full: bench.full() * frames,
        lines,
    })
}

fn measure(point: &BandPoint) -> Result<Finding, LabError> {
    let (minimum, none) = (at_least(MINIMUM), Policy::default());
    let one = simulate(Backend::Bytes, [minimum, none, none], point)?;
    let light = simulate(Backend::Bytes, [weighted(minimum, 1), weighted(none, 10), weighted(none, 10)], point)?;
    let two = simulate(Backend::Bytes, [minimum, minimum, none], point)?;
    let mut finding = Finding::default();
    let least = one.least.min(light.least);
    finding.judge("N7a", least >= 0.98 * MINIMUM as f64, format!("{least:.1} Mb/s or more"));
    let shared =
        |got: &Got| within(got.means[1], got.means[2], 0.02) && within(got.means.iter().sum::<f64>(), got.full, 0.01);
    let text = |got: &Got| got.means.map(|mean| format!("{mean:.1}")).join("/");
    finding.judge("N7b", shared(&one) && shared(&light), format!("{} and {} Mb/s", text(&one), text(&light)));
    let divides = within(two.means[0], two.means[1], 0.02) && two.means[2] <= 0.02 * two.full;
    finding.judge("N7c", divides, format!("{} Mb/s", text(&two)));
    let columns = ["run", "VM1/VM2/VM3", "VM1 in its worst second"];
    let mut table = Table::new("Minimum of 60 Mb/s [Mb/s of frames]", &columns);
    let rows = [
        ("WRR in bytes, VM1 has a minimum", one),
        ("the same, weights 1:10:10", light),
        ("WRR in bytes, VM1 and VM2 have a minimum", two),
        ("WRR in packets, VM1 has a minimum", simulate(Backend::Packets, [minimum, none, none], point)?),
        ("WRR in bytes, no minimum", simulate(Backend::Bytes, [none; 3], point)?),
        ("round robin that waits for room, no minimum", simulate(Backend::RoundRobin, [none; 3], point)?),
        ("netback, no minimum", simulate(Backend::Netback, [none; 3], point)?),
    ];
    for (name, got) in &rows {
        table.row([(*name).to_owned(), text(got), format!("{:.1}", got.least)]);
    }
    finding.tables.push(table);
    let [(_, one), ..] = rows;
    finding.charts.push(Chart::lines("VM1 has a minimum of 60 Mb/s", "time [s]", "Mb/s of data", one.lines));
    Ok(finding)
}
