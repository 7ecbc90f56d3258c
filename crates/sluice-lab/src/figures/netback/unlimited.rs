//! Fig. 6: two VMs without maximum rates.

use sluice_report::{Chart, Line, Table};
use sluice_sched::Policy;

use super::{Backend, Bench, DEVICE, Guests, at, link, range};
use crate::band::BandPoint;
use crate::figure::{Class, Figure, Finding, LabError, Paper, RowSpec};

/// Simulated seconds, as in the paper's figure; the first one is not measured.
const SECONDS: usize = 500;
/// Simulated seconds at other points and with other seeds.
const RANGE_SECONDS: usize = 100;
/// Simulated seconds of the runs that show what it comes from.
const CAUSE_SECONDS: usize = 30;
/// Consecutive seconds of domination that count as long: a twentieth of the figure.
const LONG: usize = 25;
/// Value of the axis for pacing by absolute times.
const ABSOLUTE: f64 = 1.0;
/// Fraction of both rates that counts as domination.
const DOMINATES: f64 = 0.75;

pub(crate) const FIGURE: Figure = Figure {
    id: "netback-unlimited",
    paper: Paper::Netback,
    label: "Fig. 6",
    title: "Sample throughput in time for two separate VMs without limits",
    setup: "Two guests on one CPU without maximum rates send datagrams of 1472 bytes (1500 with the headers of IP and UDP) at 100 Mb/s each; what the interface's queue \
            has no room for is lost. Both generators pace by absolute times on one clock, as those do that make up for late \
            wake-ups; a datagram deviates from its time by up to half of the distance of two (axes: independent distances, and \
            less deviation). 500 seconds as in the paper's figure, of which the first is not looked at; 100 at other points and with other seeds, since what \
            comes out is the same in every second; 30 for the table.",
    device: DEVICE,
    rows: &[
        RowSpec {
            id: "N3a",
            class: Class::Shape,
            must: "one VM has three quarters of the throughput for 25 seconds in a row",
            paper: "long periods when one dominates the other by far",
            note: "Turns of two rings are fair, and so is a full queue to those that offer the same. What comes out is a phase: of two flows of \
                   one rate in step, one always comes just after a place has become free and has up to four fifths, for the whole \
                   run. Two things decide it: datagrams deviate from their times by a tenth of a distance or less (sweep of \
                   pacing-jitter), and the phase in which the two started, which does it with three of five seeds; with the others \
                   the parts are 25:75 and 43:57. A back end that waits for room ends it. The other set-up with one VM that \
                   dominates is a guests' CPU that is just full (5 or 6 times the work for a packet, table \"What it comes from\"); the \
                   paper says that CPUs were not heavily used, so the device file does not have it.",
        },
        RowSpec {
            id: "N3c",
            class: Class::Shape,
            must: "a VM falls to a tenth of both rates in some second",
            paper: "sometimes one VM gets all and the other falls to 0",
            note: "In no set-up with CPUs that have time to spare: the flow that comes late still finds a place now and then. At 6 times the work \
                   for a packet it does (table).",
        },
        RowSpec {
            id: "N3b",
            class: Class::Hardware,
            must: "least and most that the first VM gets in a second",
            paper: "it decreases to 0; the most in the figure alone",
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
    /// Whether they are paced independently, whatever the axis says.
    independent: bool,
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
    independent: false,
    ppm: 0,
};

/// Nothing varies, and the two clocks differ slightly.
const IN_STEP: Case = Case { name: "no variation of distances, clocks 20 ppm apart", varies: false, ppm: 20, ..CASE };
/// The guests' CPU is slightly overloaded.
const FULL: Case = Case { name: "a packet costs a guest 6 times as much", work: 6.0, ..CASE };

const CAUSES: [Case; 15] = [
    Case { name: "distances that vary independently", independent: true, ..CASE },
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

fn simulate(case: &Case, seconds: usize, point: &BandPoint) -> Result<Got, LabError> {
    let mut link = link(point)?;
    link.guest_us *= case.work;
    link.jitter = if case.varies { point.setting("pacing-jitter") } else { 0.0 };
    let mut bench = Bench::new(case.backend, link, case.guests, &[Policy::default(); 2], point)?;
    if point.setting("pacing") == ABSOLUTE && !case.independent {
        bench = bench.paced_absolutely();
    }
    for vm in 0..2 {
        let rate = link.bits_per_second + vm as u64 * case.ppm * (link.bits_per_second / 1_000_000);
        bench.flow_at(vm, rate, at(0), &format!("unlimited, VM{}", vm + 1))?;
    }
    if case.computes {
        bench.simulation.add_busy(256, 1 << 1);
    }
    bench.run(seconds as u64, case.name)?;
    let rates = [0, 1].map(|vm| bench.rates(vm, 0, seconds));
    Ok(Got { rates, dropped: bench.dropped(0) + bench.dropped(1) })
}

fn cells(case: &Case, got: &Got) -> [String; 6] {
    let mean = |vm: usize| got.rates[vm][1..].iter().sum::<f64>() / (got.rates[vm].len() - 1) as f64;
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
    let got = simulate(&CASE, if point.is_nominal() { SECONDS } else { RANGE_SECONDS }, point)?;
    let (least, most) = range(&got.parts());
    let falls = least.min(1.0 - most);
    let measured = format!(
        "VM1 has {:.1} to {:.1} % in any second; {} s in a row dominated",
        100.0 * least,
        100.0 * most,
        got.longest()
    );
    finding.judge("N3a", got.longest() >= LONG, measured);
    finding.judge("N3c", falls <= 0.1, format!("at least {:.1} % in any second", 100.0 * falls));
    let (least, most) = range(&got.rates[0][1..]);
    finding.show("N3b", format!("{least:.1} to {most:.1} Mb/s")).means([(0.0, least)]);
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
        let got = simulate(case, CAUSE_SECONDS, point)?;
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
