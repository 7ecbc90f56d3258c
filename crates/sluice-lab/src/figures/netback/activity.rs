//! Fig. 7: one VM sends over more connections than the other.

use sluice_report::{Chart, Line, Table};
use sluice_sched::{Instant, Policy};

use super::{Backend, Bench, DEVICE, Guests, at_most, link};
use crate::band::BandPoint;
use crate::figure::{Class, Figure, Finding, LabError, Paper, RowSpec};
use crate::setup::slashed;

/// Simulated seconds, as in the paper's figure; the first one is not measured.
const SECONDS: usize = 100;
/// Simulated seconds at other points, with other seeds and with other back ends.
const RANGE_SECONDS: usize = 25;
/// Maximum rate of either VM, where there is one, in Mb/s.
const RATE: u64 = 40;
/// Factor above which a ratio counts as larger.
const MORE: f64 = 1.05;

pub(crate) const FIGURE: Figure = Figure {
    id: "netback-activity",
    paper: Paper::Netback,
    label: "Fig. 7",
    title: "Bandwidth division with one overactive VM",
    setup: "Two guests on a CPU each, without maximum rates; the first sends one flow of datagrams at 100 Mb/s, the second two and \
            then three of them. 100 seconds, as in the paper's figure, of which the first is not looked at; 25 at other points, with other seeds and with other back ends.",
    device: DEVICE,
    rows: &[
        RowSpec {
            id: "N4a",
            class: Class::Shape,
            must: "VM2's throughput above VM1's by 5 % or more; with two flows at most twice it and with three at most three times it, by 5 %, \
                   and more with three than with two",
            paper: "the more abusive domain achieves the better throughput, 2x and 3x more active",
            note: "The paper's system drops what its interface's queue has no room for: its own scheduler \"has to be modified to guarantee that the \
                   scheduled packets will not be dropped before they reach the wire\". First in, first out, such a queue gives each VM as much as it has sent \
                   into it. Where no packet is taken from a ring without room downstream, as by the daemon, turns are equal: table \
                   \"VM1/VM2\", and both systems on real NICs in real.md. There the senders' phases decide how much more VM2 gets in the \
                   paper's system.",
        },
        RowSpec {
            id: "N4b",
            class: Class::Hardware,
            must: "VM2's throughput above VM1's with one, two and three flows",
            paper: "in the figure alone",
            note: "A guest's own CPU bounds what it can send.",
        },
        RowSpec {
            id: "N4c",
            class: Class::Shape,
            must: "with a maximum rate of 40 Mb/s for each, VM2 has at most 40 Mb/s of frames in each second, with three flows",
            paper: "with the rate parameter set the overactive domain would never have crossed it",
            note: "",
        },
    ],
    run: measure,
};

/// What both VMs got, in Mb/s of data.
struct Divided {
    means: [f64; 2],
    /// The most that VM2 got in a second, in Mb/s of frames.
    most: f64,
    /// Rates over time.
    lines: Vec<Line>,
}

fn divide(
    backend: Backend,
    flows: usize,
    policy: Policy,
    seconds: usize,
    point: &BandPoint,
) -> Result<Divided, LabError> {
    let mut bench = Bench::new(backend, link(point)?, Guests::Apart, &[policy; 2], point)?;
    bench.flow(0, Instant::ZERO, "VM1")?;
    for flow in 0..flows {
        bench.flow(1, Instant::ZERO, &format!("VM2, flow {flow}"))?;
    }
    bench.run(seconds as u64, backend.name())?;
    let lines = (0..2).map(|vm| Line::new(format!("VM{}", vm + 1), bench.points(vm, seconds))).collect();
    let most = super::range(&bench.rates(1, 0, seconds)).1 / bench.data();
    Ok(Divided { means: [0, 1].map(|vm| bench.mean(vm, 1, seconds)), most, lines })
}

fn measure(point: &BandPoint) -> Result<Finding, LabError> {
    let mut finding = Finding::default();
    let mut times = Vec::new();
    let mut cells = vec![Backend::Netback.name().to_owned()];
    let seconds = if point.is_nominal() { SECONDS } else { RANGE_SECONDS };
    for flows in 1..=3 {
        let Divided { means, lines, .. } = divide(Backend::Netback, flows, Policy::default(), seconds, point)?;
        times.push(means[1] / means[0]);
        cells.push(slashed(&means));
        if flows > 1 && point.is_nominal() {
            let title = format!("VM2 {flows}x more active");
            finding.charts.push(Chart::lines(&title, "time [s]", "Mb/s of data", lines));
        }
    }
    let (two, three) = (times[1], times[2]);
    let holds = (MORE..=2.0 * MORE).contains(&two) && three > two && three <= 3.0 * MORE;
    finding.judge("N4a", holds, format!("x {two:.2} with two flows, x {three:.2} with three"));
    finding.show("N4b", format!("x {:.2}, x {two:.2}, x {three:.2}", times[0]));
    let mut table = Table::new("VM1/VM2 [Mb/s of data]", &["back end", "one flow", "two flows", "three flows"]);
    table.row(cells);
    let limited = divide(Backend::Netback, 3, at_most(RATE), RANGE_SECONDS, point)?;
    let most = limited.most;
    finding.judge("N4c", most <= RATE as f64, format!("at most {most:.2} Mb/s of frames in any second"));
    let cells = ["not run".to_owned(), "not run".to_owned(), slashed(&limited.means)];
    table.row(std::iter::once(format!("netback, {RATE} Mb/s each")).chain(cells));
    for backend in Backend::ALL[1..].iter().filter(|_| point.is_nominal()) {
        let mut cells = vec![backend.name().to_owned()];
        for flows in 1..=3 {
            cells.push(slashed(&divide(*backend, flows, Policy::default(), RANGE_SECONDS, point)?.means));
        }
        table.row(cells);
    }
    finding.tables.push(table);
    Ok(finding)
}
