//! Table II: the effect of the interval factor.

use sluice_report::{Chart, Line, Table};

use crate::band::BandPoint;
use crate::device::DeviceFile;
use crate::figure::{Class, Figure, Finding, LabError, Paper, RowSpec};
use crate::real::{self, Device, Form, Load, Parameters, Quantity, Trial, TrialVm};
use crate::setup::within;

use super::guests::{self, Assumed, Contender, Inside, Outcome, compete};

/// Interval factors of the table.
const BETAS: [i64; 5] = [1, 2, 8, 32, 128];
/// The paper's numbers: mean and largest IOPS, mean and largest delay in milliseconds, of both VMs.
const PAPER: [[[f64; 4]; 2]; 5] = [
    [[476.9, 570.0, 31.6, 46.0], [58.79, 68.31, 125.6, 143.6]],
    [[738.5, 887.0, 21.2, 23.4], [93.53, 107.9, 83.56, 93.57]],
    [[774.4, 985.0, 20.48, 26.0], [131.67, 146.53, 60.6, 65.1]],
    [[1015.2, 1267.0, 12.05, 20.9], [137.5, 151.49, 60.07, 68.5]],
    [[1021.7, 1545.0, 20.12, 94.0], [126.6, 148.5, 62.64, 73.67]],
];
/// Commands at the drive on real I/O.
const READ_QUEUE: u32 = 4;
/// A scheduler at an interval factor.
type Make = fn(i64) -> Contender;
const ORDER: &str = "477, 739, 774, 1015, 1022 and 59, 94, 132, 138, 127 IOPS";
const RATIO: &str = "1015.2/476.9 = 2.13 and 137.5/58.79 = 2.34";
const WIDER: &str = "1545/1022 = 1.51, against 1267/1015 = 1.25";
const RISES: &str = "both VMs' IOPS rise from beta 1 through 2 and 8 to 32; at 128 the sequential VM's are no lower and the random VM's \
                     fall";
const TIMES: &str = "IOPS rise from beta 1 to 32 by at least half as much as in the paper, 113 and 134 %, for both VMs";
const SPREAD: &str = "the sequential VM's largest IOPS lie further above the mean at beta 128 than at 32";

const fn shape(id: &'static str, must: &'static str, paper: &'static str, note: &'static str) -> RowSpec {
    RowSpec { id, class: Class::Shape, must, paper, note }
}

pub(crate) const FIGURE: Figure = Figure {
    id: "flubber-credits",
    paper: Paper::Flubber,
    label: "Table II",
    title: "Two VMs under Flubber at five interval factors",
    setup: guests::GUESTS,
    device: guests::DEVICE,
    rows: &[
        shape(
            "F1a",
            RISES,
            ORDER,
            "Mode \"paper\". Replenishment event 1 comes when the last credit has been used, not when what it let pass \
             has been served: with 24 requests in a closed loop the low level then always holds all that it can get, and beta \
             changes little. See the table of the mode: the disk is idle for 2 to 26 % of the time, waiting for a \
             neighbour until the head is due. With CFQ in the guests the host sees one random read of the VM at a time, and its rate stays below half of the published one (readings).",
        ),
        shape("F1b", TIMES, RATIO, "Mode \"paper\". As F1a, for the random VM."),
        RowSpec {
            id: "F1c",
            class: Class::Hardware,
            must: "at which beta the objective of 1000 and 120 IOPS is met, within 15 % (modes paper; product)",
            paper: "1015 and 138 IOPS at beta 32, 1022 and 127 at beta 128",
            note: "It depends on what a random read costs. The paper's 137.5 of them beside 1015 sequential reads at 98 MB/s \
                   leave 4.3 ms for each, the 174 of Table III alone 5.7 ms: no single drive without a queue does both. With \
                   four commands at the drive mode \"product\" meets both numbers: see the table of readings.",
        },
        shape("F1d", SPREAD, WIDER, "Mode \"paper\"."),
        shape(
            "F1e",
            RISES,
            ORDER,
            "Mode \"product\": it rises to beta 8 and falls by a few percent at 32. Up to 8 a set of credits is no \
             more than what is outstanding and is served with one change of place; of larger ones deadlines come due in between, and \
             the disk changes its place more often, and waits. With four commands at the drive beta 8, 32 and 128 are equal \
             within 3 %: see the table of readings, also without the wait and with threads that think.",
        ),
        shape(
            "F1f",
            TIMES,
            RATIO,
            "Mode \"product\". What a larger beta saves are ways between the VMs' places. They are cheap beside the half turn that each \
             random read waits where the disk turns slowly and its arms are fast.",
        ),
        shape("F1g", SPREAD, WIDER, "Mode \"product\"."),
    ],
    run: measure,
};

fn at_all(make: Make, assumed: &Assumed, point: &BandPoint) -> Result<[Outcome; BETAS.len()], LabError> {
    let all: Result<Vec<Outcome>, LabError> =
        BETAS.into_iter().map(|beta| compete(&make(beta), None, assumed, point)).collect();
    Ok(all?.try_into().expect("one for each"))
}

fn iops(outcomes: &[Outcome; BETAS.len()], vm: usize) -> [f64; BETAS.len()] {
    outcomes.each_ref().map(|outcome| outcome.vms[vm].iops)
}

fn listed(values: &[f64]) -> String {
    values.iter().map(|value| format!("{value:.0}")).collect::<Vec<_>>().join(", ")
}

fn judge(finding: &mut Finding, ids: [&str; 3], outcomes: &[Outcome; BETAS.len()]) {
    let [seq, rnd] = [0, 1].map(|vm| iops(outcomes, vm));
    let rises = |of: &[f64]| of.windows(2).all(|pair| pair[0] < pair[1]);
    let holds = rises(&seq[..4]) && rises(&rnd[..4]) && seq[4] >= seq[3] && rnd[4] < rnd[3];
    let printed = |vm: usize| PAPER.map(|row| row[vm][0]);
    let means = printed(0).into_iter().zip(seq).chain(printed(1).into_iter().zip(rnd));
    finding.judge(ids[0], holds, format!("{} and {} IOPS", listed(&seq), listed(&rnd))).means(means);
    let times = [seq[3] / seq[0], rnd[3] / rnd[0]];
    let effects = (0..2).map(|vm| (printed(vm)[3] / printed(vm)[0] - 1.0, times[vm] - 1.0)).collect();
    finding.judge_effects(ids[1], true, format!("{:.2} and {:.2}", times[0], times[1]), effects);
    let spread = [3, 4].map(|beta| outcomes[beta].vms[0].iops_max / outcomes[beta].vms[0].iops);
    finding.judge(ids[2], spread[1] > spread[0], format!("{:.2}, against {:.2}", spread[1], spread[0]));
}

/// Interval factors at which the objective is met.
fn met(outcomes: &[Outcome; BETAS.len()]) -> String {
    let enough = |got: f64, due: u64| got >= due as f64 || within(got, due as f64, 0.15);
    let at = outcomes
        .iter()
        .zip(BETAS)
        .filter(|(outcome, _)| outcome.vms.iter().zip(guests::SLO).all(|(vm, (due, _))| enough(vm.iops, due)));
    let at: Vec<String> = at.map(|(_, beta)| beta.to_string()).collect();
    if at.is_empty() { "nowhere".into() } else { format!("at beta {}", at.join(", ")) }
}

fn table(name: &str, outcomes: &[Outcome; BETAS.len()]) -> Table {
    let title = format!("{name}: here (paper); IOPS and delays in ms while both VMs work");
    let vm = ["IOPS", "largest", "delay", "largest"];
    let columns: Vec<String> = ["Seq", "Rnd"].iter().flat_map(|of| vm.map(|what| format!("{of} {what}"))).collect();
    let mut all = vec!["beta", "credits"];
    all.extend(columns.iter().map(String::as_str));
    all.push("disk idle");
    let mut table = Table::new(title, &all);
    for ((outcome, beta), paper) in outcomes.iter().zip(BETAS).zip(PAPER) {
        let mut cells = vec![beta.to_string(), format!("{}/{}", 8 * beta, beta)];
        for (got, paper) in outcome.vms.iter().zip(paper) {
            let here = [got.iops, got.iops_max, got.delay, got.delay_max];
            cells.extend(here.iter().zip(paper).map(|(here, paper)| format!("{here:.1} ({paper:.1})")));
        }
        cells.push(format!("{:.1} %", 100.0 * outcome.idle));
        table.row(cells);
    }
    table
}

/// Outstanding requests of Table II by Little's law, if its delays are means over requests.
fn outstanding() -> [[f64; 2]; BETAS.len()] {
    PAPER.map(|row| row.map(|[iops, _, delay, _]| iops * delay / 1000.0))
}

/// The same as a table. No row is refuted by it: a mean over seconds may be longer, and a read-ahead may keep more block requests than
/// threads outstanding.
fn little() -> Table {
    let title = "Table II by Little's law: IOPS x delay, with 16 and 8 threads; more than the threads is possible only if a delay is a mean \
                 over seconds, or if a thread has several block requests outstanding";
    let mut table = Table::new(title, &["beta", "Seq VM", "Rnd VM"]);
    for (beta, [seq, rnd]) in BETAS.iter().zip(outstanding()) {
        table.row([beta.to_string(), format!("{seq:.1}"), format!("{rnd:.1}")]);
    }
    table
}

fn without_waiting(beta: i64) -> Contender {
    let Contender { host, real_time, .. } = guests::flubber_product(beta);
    Contender { name: "Flubber, product, max_wait 0", host: host.text("max_wait", "0ms"), real_time }
}

fn from_arrival(beta: i64) -> Contender {
    let Contender { host, real_time, .. } = guests::flubber_paper(beta);
    Contender { name: "Flubber, paper, deadlines from arrival", host: host.text("start", "arrival"), real_time }
}

/// Results of other interpretations and assumptions.
fn readings(point: &BandPoint) -> Result<Table, LabError> {
    let mut columns = vec!["reading".to_owned()];
    columns.extend(BETAS.map(|beta| format!("beta {beta}")));
    let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
    let mut table = Table::new("Seq/Rnd IOPS: baselines, other readings and assumptions", &columns);
    let one = Assumed::NOMINAL;
    let cfq = Assumed { inside: Inside::CfqOfStreams, ..one };
    let depth = |depth| Assumed { depth, ..one };
    let runs: [(&str, Make, Assumed); 20] = [
        ("EDF with credits", guests::edf, one),
        ("CFQ, which has no credits", |_| guests::cfq(false), one),
        ("product, max_wait 0", without_waiting, one),
        ("paper, deadlines from arrival", from_arrival, one),
        ("paper, 2 commands at the drive", guests::flubber_paper, depth(2)),
        ("product, 2 commands at the drive", guests::flubber_product, depth(2)),
        ("paper, 4 commands at the drive", guests::flubber_paper, depth(4)),
        ("product, 4 commands at the drive", guests::flubber_product, depth(4)),
        ("paper, threads think 5 ms", guests::flubber_paper, Assumed { think: 5000, ..one }),
        ("product, threads think 5 ms", guests::flubber_product, Assumed { think: 5000, ..one }),
        ("paper, threads think 20 ms", guests::flubber_paper, Assumed { think: 20_000, ..one }),
        ("product, threads think 20 ms", guests::flubber_product, Assumed { think: 20_000, ..one }),
        ("product, files spread over images", guests::flubber_product, Assumed { files: Assumed::SPREAD, ..one }),
        ("product, images 3 GB apart", guests::flubber_product, Assumed { apart: 3_000_000_000, ..one }),
        ("product, block requests of 44 KiB", guests::flubber_product, Assumed { block: 44 << 10, ..one }),
        ("product, the host merges", guests::flubber_product, Assumed { merging: true, ..one }),
        ("paper, CFQ in the guests", guests::flubber_paper, cfq),
        ("product, CFQ in the guests", guests::flubber_product, cfq),
        ("paper, CFQ in the guests, 4 commands", guests::flubber_paper, Assumed { depth: 4, ..cfq }),
        ("product, CFQ in the guests, 4 commands", guests::flubber_product, Assumed { depth: 4, ..cfq }),
    ];
    for (name, make, assumed) in runs {
        let outcomes = at_all(make, &assumed, point)?;
        let cells = outcomes.iter().map(|outcome| format!("{:.0}/{:.0}", outcome.vms[0].iops, outcome.vms[1].iops));
        table.row(std::iter::once(name.to_owned()).chain(cells));
    }
    Ok(table)
}

fn measure(point: &BandPoint) -> Result<Finding, LabError> {
    let mut finding = Finding::default();
    let assumed = Assumed::at(point);
    let paper = at_all(guests::flubber_paper, &assumed, point)?;
    let product = at_all(guests::flubber_product, &assumed, point)?;
    judge(&mut finding, ["F1a", "F1b", "F1d"], &paper);
    judge(&mut finding, ["F1e", "F1f", "F1g"], &product);
    let at_32 = PAPER[3].iter().zip(&paper[3].vms).map(|(printed, vm)| (printed[0], vm.iops));
    finding.show("F1c", format!("{}; {}", met(&paper), met(&product))).means(at_32);
    finding.tables.extend([table("Mode paper", &paper), table("Mode product", &product)]);
    if point.is_nominal() {
        finding.tables.extend([little(), readings(point)?]);
    }
    let categories = BETAS.map(|beta| beta.to_string());
    let categories = categories.each_ref().map(String::as_str);
    for (vm, name) in guests::VMS.into_iter().enumerate() {
        let bars = vec![
            Line::bars("the paper", &PAPER.map(|row| row[vm][0])),
            Line::bars("mode paper", &iops(&paper, vm)),
            Line::bars("mode product", &iops(&product, vm)),
        ];
        let title = format!("{name}: throughput by interval factor");
        finding.charts.push(Chart::bars(&title, "IOPS", &categories, bars));
    }
    Ok(finding)
}

/// The same on real I/O, in mode "product" with four commands at the drive: the reading that is nearest to the table. The ring is not
/// part of it, since no more than 16 requests of at most 38 KiB are outstanding, and a read that the guest's page cache answers
/// takes no time.
pub(crate) fn trials() -> Vec<Trial> {
    const PARAMETERS: [Parameters; BETAS.len()] =
        [&[("beta", "1")], &[("beta", "2")], &[("beta", "8")], &[("beta", "32")], &[("beta", "128")]];
    let disk_len = DeviceFile::load(guests::DEVICE).map_or(0, |file| file.place(0).1);
    let vm = |vm: usize, outstanding, length, random_percent| {
        let (reservation, latency_ms) = guests::SLO[vm];
        let plain = TrialVm::new(["VM1-seq", "VM2-rnd"][vm], 100, length);
        let load = Load { outstanding, random_percent, ..plain.load };
        TrialVm { reservation, latency_ms, load, ..plain }
    };
    let trial = |((beta, parameters), printed): ((i64, Parameters), [[f64; 4]; 2])| {
        let vms = vec![vm(0, 16, Assumed::NOMINAL.block as u32, 0), vm(1, 8, 16 << 10, 100)];
        let mut trial = Trial {
            device: Device::Drive { file: guests::DEVICE, form: Form::Queue(READ_QUEUE) },
            disk_len,
            range: 1 << 30,
            rotational: true,
            depth: READ_QUEUE,
            scheduler: "flubber",
            parameters,
            ..Trial::constant(format!("beta {beta}"), 0.0, vms, &[(2, 26)])
        };
        real::print(&mut trial.values, 0, Quantity::Iops, &[Some(printed[0][0]), Some(printed[1][0])]);
        trial
    };
    BETAS.into_iter().zip(PARAMETERS).zip(PAPER).map(trial).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Five seconds of a closed loop of 16, one of them slow: by the mean of their delays it has more than 20 outstanding requests.
    #[test]
    fn a_delay_of_table_two_exceeds_its_threads_only_as_a_mean_over_seconds() {
        let [.., [at_32, _], [at_128, _]] = outstanding();
        assert!((12.2..12.3).contains(&at_32) && (20.5..20.6).contains(&at_128), "{at_32} {at_128}");
        assert!(outstanding().iter().all(|[_, rnd]| *rnd <= 8.4), "eight threads, and rounding");
        // The largest delay that the table prints for a second, 94 ms, and the rest of the seconds at one rate.
        let seconds = [16.0 / 0.094, 1200.0, 1200.0, 1200.0, 1545.0];
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
        let by_second = mean(&seconds) * mean(&seconds.map(|iops| 16.0 / iops));
        let by_request = mean(&seconds) * seconds.len() as f64 * 16.0 / seconds.iter().sum::<f64>();
        assert!(by_second > at_128 && (by_request - 16.0).abs() < 1e-9, "{by_second} {by_request}");
    }
}
