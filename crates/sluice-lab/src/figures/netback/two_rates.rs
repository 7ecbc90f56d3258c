//! Fig. 5: two VMs with different maximum rates.

use sluice_report::Table;

use super::rates::Repeated;
use super::{Backend, DEVICE, PAYLOAD, at_most};
use crate::band::BandPoint;
use crate::figure::{Class, Figure, Finding, LabError, Paper, RowSpec};

/// Maximum rates in Mb/s.
const RATES: [u64; 2] = [30, 40];
const REPETITIONS: usize = 10;

pub(crate) const FIGURE: Figure = Figure {
    id: "netback-two-rates",
    paper: Paper::Netback,
    label: "Fig. 5",
    title: "Throughput per VM for different values of rate: 30 and 40 Mb/s",
    setup: "As Fig. 4, with a maximum rate of 30 Mb/s for the first VM and of 40 Mb/s for the second.",
    device: DEVICE,
    rows: &[
        RowSpec {
            id: "N2a",
            class: Class::Shape,
            must: "the first VM notices the second, as in N1c, and both are perturbed alike: the parts of their rates that they get are within \
                   0.02 of each other, and the wider interval, as a part of its rate, is not more than twice the other",
            paper: "the isolation problem remains, but both VMs affect each other similarly",
            note: "They are alike at most points, but because neither affects the other at all: see N1c. So the sentence is not reproduced.",
        },
        RowSpec {
            id: "N2b",
            class: Class::Hardware,
            must: "what the second VM's beginning changes for the first",
            paper: "an isolation problem; no number",
            note: "",
        },
    ],
    run: measure,
};

fn measure(point: &BandPoint) -> Result<Finding, LabError> {
    let mut finding = Finding::default();
    let columns = ["back end", "VM1", "VM2", "of the rates", "0.95 intervals +-", "VM1 changes by"];
    let mut table = Table::new("30 and 40 Mb/s [Mb/s of data]", &columns);
    let policies = RATES.map(at_most);
    // The first one is the paper's.
    let backends = if point.is_nominal() { &[Backend::Netback, Backend::Bytes][..] } else { &[Backend::Netback] };
    for backend in backends {
        let got = Repeated::run(*backend, policies, PAYLOAD, REPETITIONS, "rates 30 and 40", point)?;
        let parts = [0, 1].map(|vm| got.both(vm) / RATES[vm] as f64);
        let halves = [0, 1].map(|vm| got.half(vm) / RATES[vm] as f64);
        let change = format!("{:+.2} %", 100.0 * got.change());
        table.row([
            backend.name().to_owned(),
            format!("{:.2}", got.both(0)),
            format!("{:.2}", got.both(1)),
            format!("{:.3}, {:.3}", parts[0], parts[1]),
            format!("{:.2}, {:.2}", got.half(0), got.half(1)),
            change.clone(),
        ]);
        if *backend != Backend::Netback {
            continue;
        }
        let near = (parts[0] - parts[1]).abs() <= 0.02;
        let (least, most) = super::range(&halves);
        let measured = format!(
            "{:.3} and {:.3} of the rates, intervals +- {:.1} % and {:.1} % of them",
            parts[0],
            parts[1],
            100.0 * halves[0],
            100.0 * halves[1]
        );
        finding.judge("N2a", got.is_noticed() && near && most <= 2.0 * least, measured);
        finding.show("N2b", change);
        let chart = got.chart("rate = 30 Mb/s and 40 Mb/s");
        finding.charts.push(chart.level("rate of VM1", RATES[0] as f64).level("rate of VM2", RATES[1] as f64));
    }
    finding.tables.push(table);
    Ok(finding)
}
