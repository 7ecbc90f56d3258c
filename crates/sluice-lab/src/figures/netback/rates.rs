//! Fig. 4: two VMs with the same maximum rate.

use std::time::Duration;

use sluice_report::{Chart, Line, Table};
use sluice_sched::Policy;
use sluice_sim::statistics::Mean;

use super::{Backend, Bench, DEVICE, Guests, PAYLOAD, at, at_most, link, timed};
use crate::band::BandPoint;
use crate::device::LinkFile;
use crate::figure::{Class, Figure, Finding, LabError, Paper, RowSpec};

/// Maximum rates in Mb/s.
const RATES: [u64; 4] = [25, 30, 35, 40];
/// The one at which the paper finds the isolation weak.
const WEAK: u64 = 35;
/// Start of the second VM and end of both in seconds, as in the paper's figures.
const BEGINS: u64 = 5;
const ENDS: usize = 25;
/// End at other points and with other seeds.
const RANGE_ENDS: usize = 12;
/// Interval in Mb/s below which nobody would see one in the paper's figures.
const VISIBLE: f64 = 0.1;
/// Repetitions per rate, as in the paper.
const REPETITIONS: usize = 10;

pub(crate) const FIGURE: Figure = Figure {
    id: "netback-rates",
    paper: Paper::Netback,
    label: "Fig. 4",
    title: "The throughput per VM for different values of rate: 25, 30, 35 and 40 Mb/s",
    setup: "Two guests on one CPU, each with the same maximum rate, send datagrams of 1472 bytes (1500 with the headers of IP and UDP) as fast as they can; the second \
            begins after 5 s; 25 s in all, and 12 at other points and with other seeds. Ten repetitions with 0.95 intervals, as in the paper; one repetition differs from another by \
            where in a window of credits its flows begin, and by the distances of datagrams. Rates are credits of frames \
            per 50 ms, the window rounded up to ticks; what is shown is data. The interval is that of one second's \
            throughput, averaged over the seconds from 6 on and both VMs. The link of 100 Mb/s is never full with these rates.",
    device: DEVICE,
    rows: &[
        RowSpec {
            id: "N1a",
            class: Class::Shape,
            must: "each VM's mean is below the rate, by at most 10 %, at each of the four rates",
            paper: "the actual rate is always a little smaller than the rate parameter",
            note: "Part of a window's credits is lost where no frame fits, the window is rounded up to the clock's tick, and 42 \
                   bytes of each frame are headers.",
        },
        RowSpec {
            id: "N1b",
            class: Class::Shape,
            must: "the interval at 40 Mb/s is wider than that at 25 Mb/s by 10 % or more, and at least 0.1 Mb/s",
            paper: "with growing rate the intervals are getting larger and larger",
            note: "A second holds 19 or 20 windows, and a window's credits grow with the rate: that is all that varies here. With a tick of \
                   which 50 ms \
                   are a multiple every second holds 20 windows, and intervals are below 0.03 Mb/s.",
        },
        RowSpec {
            id: "N1c",
            class: Class::Shape,
            must: "at 35 Mb/s the first VM notices the second: its mean changes by 5 % or more when that begins, or its interval is at least half \
                   wider than alone",
            paper: "at 35 Mb/s the isolation becomes rather weak",
            note: "Not in the model: the first VM does not notice the second at any tick, because neither the link nor a CPU is ever full. \
                   What disturbed the paper's VMs at 35 Mb/s is not among the causes that the paper names.",
        },
    ],
    run: measure,
};

/// The device with the driver domain's tick of a point.
fn ticking(point: &BandPoint) -> Result<LinkFile, LabError> {
    Ok(LinkFile { tick_us: point.setting("driver-tick") as u64, ..link(point)? })
}

/// Results of repetitions with one pair of rates.
pub(super) struct Repeated {
    /// Mb/s of data, by VM, second and repetition.
    seconds: [Vec<Vec<f64>>; 2],
}

impl Repeated {
    /// Runs `count` repetitions.
    pub(super) fn run(
        backend: Backend,
        policies: [Policy; 2],
        payload: u32,
        count: usize,
        name: &str,
        point: &BandPoint,
    ) -> Result<Self, LabError> {
        let mut seconds: [Vec<Vec<f64>>; 2] = Default::default();
        let ends = if point.is_nominal() { ENDS } else { RANGE_ENDS };
        seconds.iter_mut().for_each(|vm| vm.resize(ends, Vec::new()));
        for repetition in 0..count {
            let mut bench = Bench::new(backend, ticking(point)?, Guests::Together, &policies, point)?.payload(payload);
            for (vm, start) in [0, BEGINS].into_iter().enumerate() {
                let name = format!("{name}, repetition {repetition}, VM{}", vm + 1);
                // A program does not start synchronously with the windows of another clock.
                let later = point.stream(&format!("{name}, start")).below(1_000_000_000);
                bench.flow(vm, at(start) + Duration::from_nanos(later), &name)?;
            }
            bench.run(ends as u64, name)?;
            for (vm, seconds) in seconds.iter_mut().enumerate() {
                seconds.iter_mut().zip(bench.rates(vm, 0, ends)).for_each(|(second, got)| second.push(got));
            }
        }
        Ok(Repeated { seconds })
    }

    /// Number of seconds.
    fn ends(&self) -> usize {
        self.seconds[0].len()
    }

    fn means(&self, vm: usize, from: usize, to: usize) -> impl Iterator<Item = Mean> + '_ {
        self.seconds[vm][from..to].iter().filter_map(|second| Mean::of(second))
    }

    /// Mean of a VM's rate over seconds, in Mb/s.
    pub(super) fn mean(&self, vm: usize, from: usize, to: usize) -> f64 {
        self.means(vm, from, to).map(|mean| mean.mean).sum::<f64>() / (to - from) as f64
    }

    /// Mean while both send.
    pub(super) fn both(&self, vm: usize) -> f64 {
        self.mean(vm, BEGINS as usize + 1, self.ends())
    }

    /// Mean half-width of the 0.95 interval of a second's throughput while both send, in Mb/s.
    pub(super) fn half(&self, vm: usize) -> f64 {
        self.half_of(vm, BEGINS as usize + 1, self.ends())
    }

    fn half_of(&self, vm: usize, from: usize, to: usize) -> f64 {
        self.means(vm, from, to).filter_map(|mean| mean.half).sum::<f64>() / (to - from) as f64
    }

    /// The first VM's interval while both send, as a multiple of that alone.
    pub(super) fn widening(&self) -> f64 {
        self.half(0) / self.half_of(0, 1, BEGINS as usize).max(f64::MIN_POSITIVE)
    }

    /// Whether the first VM notices the second: its mean changes by 5 %, or its interval is half wider and can be seen.
    pub(super) fn is_noticed(&self) -> bool {
        self.change().abs() >= 0.05 || self.widening() >= 1.5 && self.half(0) >= VISIBLE
    }

    /// Relative change of the first VM's throughput when the second one starts.
    pub(super) fn change(&self) -> f64 {
        self.both(0) / self.mean(0, 1, BEGINS as usize) - 1.0
    }

    /// Means of each second with their intervals.
    pub(super) fn chart(&self, title: &str) -> Chart {
        let mut lines = Vec::new();
        for vm in 0..2 {
            let means: Vec<_> = self.means(vm, 0, self.ends()).collect();
            let part = |side: f64| -> Vec<f64> {
                means.iter().map(|mean| mean.mean + side * mean.half.unwrap_or(0.0)).collect()
            };
            for (what, side) in [("", 0.0), (", interval's lower end", -1.0), (", upper end", 1.0)] {
                lines.push(Line::new(format!("VM{}{what}", vm + 1), timed(&part(side))));
            }
        }
        Chart::lines(title, "time [s]", "Mb/s of data", lines)
    }
}

fn measure(point: &BandPoint) -> Result<Finding, LabError> {
    let mut finding = Finding::default();
    let columns = ["rate [Mb/s]", "VM1 alone", "VM1", "VM2", "of the rate", "0.95 interval +-", "VM1 changes by"];
    let mut table = Table::new("netback, ten repetitions [Mb/s of data]", &columns);
    let (mut parts, mut halves, mut changes, mut is_noticed) = (Vec::new(), Vec::new(), Vec::new(), false);
    for rate in RATES {
        let name = format!("rate {rate}");
        let got = Repeated::run(Backend::Netback, [at_most(rate); 2], PAYLOAD, REPETITIONS, &name, point)?;
        let means = [0, 1].map(|vm| got.both(vm));
        let of_rate = means.map(|mean| mean / rate as f64);
        let (half, change) = ((got.half(0) + got.half(1)) / 2.0, got.change());
        table.row([
            rate.to_string(),
            format!("{:.2}", got.mean(0, 1, BEGINS as usize)),
            format!("{:.2}", means[0]),
            format!("{:.2}", means[1]),
            format!("{:.3}, {:.3}", of_rate[0], of_rate[1]),
            format!("{half:.3}"),
            format!("{:+.2} %", 100.0 * change),
        ]);
        if point.is_nominal() {
            let chart = got.chart(&format!("rate = {rate} Mb/s"));
            finding.charts.push(chart.level("rate", rate as f64));
        }
        parts.extend(of_rate);
        halves.push(half);
        changes.push(format!("{:+.2} %, interval x {:.2}", 100.0 * change, got.widening()));
        is_noticed |= rate == WEAK && got.is_noticed();
    }
    let (least, most) = super::range(&parts);
    finding.judge("N1a", least >= 0.90 && most < 1.0, format!("{least:.3} to {most:.3} of the rate"));
    let measured: Vec<_> = halves.iter().map(|half| format!("{half:.2}")).collect();
    let wider = halves[3] >= 1.1 * halves[0] && halves[3] >= VISIBLE;
    finding.judge("N1b", wider, format!("+- {} Mb/s", measured.join("/")));
    finding.judge("N1c", is_noticed, changes.join("; "));
    finding.tables.push(table);
    if point.is_nominal() {
        finding.tables.push(beside(point)?);
    }
    Ok(finding)
}

/// The same with other back ends and other datagrams.
fn beside(point: &BandPoint) -> Result<Table, LabError> {
    let none = Policy::default();
    let runs = [
        ("netback, datagrams of 1500 bytes in two fragments", Backend::Netback, at_most(35), 1500),
        ("netback without a rate: round robin", Backend::Netback, none, PAYLOAD),
        ("round robin that waits for room, without a rate", Backend::RoundRobin, none, PAYLOAD),
        ("WRR in bytes, equal weights, without a rate", Backend::Bytes, none, PAYLOAD),
        ("WRR in bytes, equal weights, 35 Mb/s each", Backend::Bytes, at_most(35), PAYLOAD),
    ];
    let columns = ["run", "VM1 alone", "VM1", "VM2", "0.95 interval +-"];
    let mut table = Table::new("Beside it: three repetitions [Mb/s of data]", &columns);
    for (name, backend, policy, payload) in runs {
        let got = Repeated::run(backend, [policy; 2], payload, 3, name, point)?;
        let numbers = [got.mean(0, 1, BEGINS as usize), got.both(0), got.both(1), (got.half(0) + got.half(1)) / 2.0];
        table.row(std::iter::once(name.to_owned()).chain(numbers.map(|number| format!("{number:.2}"))));
    }
    Ok(table)
}
