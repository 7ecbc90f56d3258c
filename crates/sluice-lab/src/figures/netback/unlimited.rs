//! Fig. 6: two VMs without maximum rates.

use sluice_report::{Chart, Line, Table};
use sluice_sched::Policy;

use super::{Backend, Bench, DEVICE, Guests, at, link, range};
use crate::band::BandPoint;
use crate::figure::{Class, Figure, Finding, LabError, Paper, RowSpec};

/// Simulated seconds; the first one is not measured.
const SECONDS: usize = 20;
/// Consecutive seconds of domination that count as long.
const LONG: usize = 5;
/// Fraction of both rates that counts as domination.
const DOMINATES: f64 = 0.75;

pub(in crate::figures) const FIGURE: Figure = Figure {
    id: "netback-unlimited",
    paper: Paper::Netback,
    label: "Fig. 6",
    title: "Sample throughput in time for two separate VMs without limits",
    setup: "Two guests on one CPU without maximum rates send datagrams of 1472 bytes at 100 Mb/s each; what the interface's queue \
            has no room for is lost. Their distances vary by half of their mean, alike for both. Twenty seconds, of which \
            the first is not looked at.",
    device: DEVICE,
    rows: &[
        RowSpec {
            id: "N3a",
            class: Class::Shape,
            must: "one VM has three quarters of the throughput for five seconds in a row, and another VM falls to a tenth of it in some \
                   second",
            paper: "sometimes one VM gets all and the other falls to 0; long periods when one dominates the other by far",
            note: "Does not come out of what the paper describes: turns of two rings are fair, and a full queue is fair to who \
                   offers the same, on one CPU or two, with a neighbour that computes or guests that never sleep. Nothing \
                   random was added to get it. Two set-ups beside it do show one VM that dominates, in table \"What it comes from\". \
                   One: guests whose CPU is just full (5 or 6 times the work for a packet), where the CPU, not the generators, \
                   paces the frames; for seconds one VM then has four fifths or, at 6 times, nine tenths, which leaves the other \
                   a tenth, and sides may change, as in the figure; at 4 times it goes up and down from second to second, and at \
                   7 times it is gone. The paper says that CPUs were not heavily used, so the device file does not have it. \
                   Two: flows of one rate without any variation, in step, of which one always comes just after a place \
                   has become free and so has four fifths. A back end that waits for room ends both.",
        },
        RowSpec {
            id: "N3b",
            class: Class::Hardware,
            must: "least and most that the first VM gets in a second",
            paper: "0 to about 95 Mb/s",
            note: "",
        },
    ],
    run: measure,
};

/// A set-up.
struct Case {
    name: &'static str,
    backend: Backend,
    guests: Guests,
    /// Factor of the CPU time of a packet in a guest.
    work: f64,
    /// Whether another domain computes on the guests' CPU.
    computes: bool,
    /// Whether the intervals of datagrams vary.
    varies: bool,
    /// Difference by which the second VM's rate is higher.
    ppm: u64,
}

const CASE: Case = Case {
    name: "as in the paper",
    backend: Backend::Netback,
    guests: Guests::Together,
    work: 1.0,
    computes: false,
    varies: true,
    ppm: 0,
};

/// Nothing varies, and the two clocks differ slightly.
const IN_STEP: Case = Case { name: "no variation of distances, clocks 20 ppm apart", varies: false, ppm: 20, ..CASE };
/// The guests' CPU is slightly overloaded.
const FULL: Case = Case { name: "a packet costs a guest 6 times as much", work: 6.0, ..CASE };

const CAUSES: [Case; 14] = [
    Case { name: "guests on a CPU each", guests: Guests::Apart, ..CASE },
    Case { name: "a third VM computes on the guests' CPU", computes: true, ..CASE },
    Case { name: "guests loop until a datagram is due", guests: Guests::Looping, ..CASE },
    Case { name: "a packet costs a guest 4 times as much", work: 4.0, ..CASE },
    Case { name: "5 times", work: 5.0, ..CASE },
    FULL,
    Case { name: "7 times", work: 7.0, ..CASE },
    Case { name: "6 times, and a third VM computes", computes: true, ..FULL },
    Case { name: "6 times", backend: Backend::RoundRobin, ..FULL },
    Case { name: "6 times", backend: Backend::Bytes, ..FULL },
    Case { name: "no variation of distances, one clock", varies: false, ..CASE },
    IN_STEP,
    Case { backend: Backend::RoundRobin, ..IN_STEP },
    Case { backend: Backend::Bytes, ..IN_STEP },
];

/// Rates of both VMs by second, and the number of dropped frames.
struct Got {
    rates: [Vec<f64>; 2],
    dropped: u64,
}

impl Got {
    /// The first VM's part of both rates, without the first second.
    fn parts(&self) -> Vec<f64> {
        let both = self.rates[0].iter().zip(&self.rates[1]).skip(1);
        both.map(|(first, second)| first / (first + second)).collect()
    }

    /// Maximum number of consecutive seconds in which one of the two dominated.
    fn longest(&self) -> usize {
        let (mut longest, mut runs) = (0, [0; 2]);
        for part in self.parts() {
            for (run, part) in runs.iter_mut().zip([part, 1.0 - part]) {
                *run = if part >= DOMINATES { *run + 1 } else { 0 };
                longest = longest.max(*run);
            }
        }
        longest
    }
}

fn simulate(case: &Case, point: &BandPoint) -> Result<Got, LabError> {
    let mut link = link(point)?;
    link.guest_us *= case.work;
    link.jitter = if case.varies { point.setting("pacing-jitter") } else { 0.0 };
    let mut bench = Bench::new(case.backend, link, case.guests, &[Policy::default(); 2], point)?;
    for vm in 0..2 {
        let rate = link.bits_per_second + vm as u64 * case.ppm * (link.bits_per_second / 1_000_000);
        bench.flow_at(vm, rate, at(0), &format!("unlimited, VM{}", vm + 1))?;
    }
    if case.computes {
        bench.simulation.add_busy(256, 1 << 1);
    }
    bench.run(SECONDS as u64, case.name)?;
    let rates = [0, 1].map(|vm| bench.rates(vm, 0, SECONDS));
    Ok(Got { rates, dropped: bench.dropped(0) + bench.dropped(1) })
}

fn cells(case: &Case, got: &Got) -> [String; 6] {
    let mean = |vm: usize| got.rates[vm][1..].iter().sum::<f64>() / (SECONDS - 1) as f64;
    let (least, most) = range(&got.rates[0][1..]);
    [
        format!("{}: {}", case.backend.name(), case.name),
        format!("{:.1}", mean(0)),
        format!("{:.1}", mean(1)),
        format!("{least:.1} to {most:.1}"),
        got.longest().to_string(),
        got.dropped.to_string(),
    ]
}

fn measure(point: &BandPoint) -> Result<Finding, LabError> {
    let mut finding = Finding::default();
    let got = simulate(&CASE, point)?;
    let (least, most) = range(&got.parts());
    let falls = least.min(1.0 - most);
    let measured = format!(
        "VM1 has {:.1} to {:.1} % in any second; {} s in a row dominated",
        100.0 * least,
        100.0 * most,
        got.longest()
    );
    finding.judge("N3a", got.longest() >= LONG && falls <= 0.1, measured);
    let (least, most) = range(&got.rates[0][1..]);
    finding.show("N3b", format!("{least:.1} to {most:.1} Mb/s"));
    if !point.is_nominal() {
        return Ok(finding);
    }
    let columns = ["run", "VM1", "VM2", "VM1 in any second", "seconds in a row dominated", "frames lost"];
    let mut table = Table::new("What it comes from [Mb/s of data]", &columns);
    table.row(cells(&CASE, &got));
    let chart = |case: &Case, got: &Got| {
        let lines = got.rates.iter().enumerate();
        let lines = lines.map(|(vm, rates)| Line::new(format!("VM{}", vm + 1), super::timed(rates))).collect();
        Chart::lines(case.name, "time [s]", "Mb/s of data", lines)
    };
    finding.charts.push(chart(&CASE, &got));
    for case in &CAUSES {
        let got = simulate(case, point)?;
        table.row(cells(case, &got));
        if case.backend == Backend::Netback && (!case.varies || case.name == FULL.name) {
            finding.charts.push(chart(case, &got));
        }
    }
    finding.tables.push(table);
    Ok(finding)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn domination_counts_consecutive_seconds_of_either_vm() {
        let got =
            |first: &[f64]| Got { rates: [first.to_vec(), first.iter().map(|rate| 96.0 - rate).collect()], dropped: 0 };
        assert_eq!(got(&[90.0, 48.0, 50.0]).longest(), 0, "the first second is not looked at");
        assert_eq!(got(&[0.0, 90.0, 80.0, 48.0, 90.0]).longest(), 2);
        assert_eq!(got(&[0.0, 90.0, 1.0, 2.0, 3.0]).longest(), 3, "the other one's");
    }
}
