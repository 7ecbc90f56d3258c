//! Fig. 3 and Table III: the schedulers without other work.

use sluice_report::{Chart, Line, Table};

use crate::band::BandPoint;
use crate::figure::{Class, Figure, Finding, LabError, Paper, RowSpec};
use crate::proof;
use crate::real::Trial;

use super::guests::{self, Assumed, Inside, Outcome, compete, contenders};

/// Response times of the paper in seconds, in the order of [`contenders`].
const PAPER: [[f64; 2]; 5] = [[64.42, 62.11], [58.43, 36.59], [71.28, 53.45], [54.16, 46.34], [54.16, 46.34]];
const CFQ: usize = 0;
const PRIORITIES: usize = 1;
const EDF: usize = 2;
const MODES: [usize; 2] = [3, 4];

const RANDOM: &str = "the random VM is done first under CFQ with priorities, then under Flubber, EDF with credits, CFQ";
const SEQUENTIAL: &str = "the sequential VM is done first under Flubber and last under EDF with credits";
const GAINS: &str = "Flubber's response times are below those under CFQ and under EDF with credits by at least half as much as in Table III, \
                     for both VMs";

/// Quotients of the printed times.
const BY_TABLE: &str = "by the times of Table III over CFQ 15.9 and 25.4 %, over EDF 24.0 and 13.3 %";

const fn shape(id: &'static str, must: &'static str, paper: &'static str, note: &'static str) -> RowSpec {
    RowSpec { id, class: Class::Shape, must, paper, note }
}

pub(crate) const FIGURE: Figure = Figure {
    id: "flubber-schedulers",
    paper: Paper::Flubber,
    label: "Fig. 3, Table III",
    title: "Throughput, latency and response time under four schedulers",
    setup: guests::GUESTS,
    device: guests::DEVICE,
    rows: &[
        shape(
            "F2a",
            RANDOM,
            "36.6, 46.3, 53.5, 62.1 s",
            "Mode \"paper\". CFQ with priorities is first; Flubber is last. Credits hold the VMs to 8:1, which at \
             5.5 ms for a random read and 0.4 ms for a sequential one is 116 random reads per second at best; CFQ gives half \
             of the time to each, 95 a second. What Flubber loses against 116 is seeks between the VMs and waiting (column \
             \"disk idle\"). See the sweep: nothing that was tried puts Flubber clearly before CFQ but 31 commands in the \
             drive's queue; where the host merges, the random VM is done at the same time under both. CFQ in the guests gives CFQ with priorities its published times at any depth, and puts Flubber in mode \"product\" before EDF with credits, but not before CFQ.",
        ),
        shape(
            "F2b",
            SEQUENTIAL,
            "54.2 s; 71.3 s",
            "Mode \"paper\". CFQ with priorities serves one VM after the other: its 57 s are all the work there is, \
             without a seek between the VMs, and nothing that goes back and forth at depth 1 can end the later VM sooner. \
             In the paper Flubber's 54.2 s lie below its 58.4 s: see the column \"last\" of the table.",
        ),
        shape("F2c", GAINS, BY_TABLE, "Mode \"paper\": as F2a and F2b. The text says 17 and 25 %, 24 and 16 %: F2h."),
        shape(
            "F2h",
            "the gains in the text are those of Table III, by one reading: 17 and 25 % over CFQ, 24 and 16 % over EDF with credits",
            "17 and 25 %; 24 and 16 %",
            "17 %, which the abstract repeats, is 15.93 % of the time and 18.94 % of the speed. The other three agree by one reading: 16 % is \
             a speed-up of 15.34 %.",
        ),
        RowSpec {
            id: "F2d",
            class: Class::Hardware,
            must: "response times of both VMs: CFQ; CFQ with priorities; EDF with credits; Flubber",
            paper: "64/62; 58/37; 71/53; 54/46 s",
            note: "Flubber in mode \"paper\".",
        },
        shape(
            "F2e",
            RANDOM,
            "36.6, 46.3, 53.5, 62.1 s",
            "Mode \"product\": it ends with EDF, behind CFQ, as in F2a, at every depth from 1 to 8.",
        ),
        shape(
            "F2f",
            SEQUENTIAL,
            "54.2 s; 71.3 s",
            "Mode \"product\": as F2b. With CFQ in the guests, and one command at the drive, it comes out.",
        ),
        shape("F2g", GAINS, BY_TABLE, "Mode \"product\": as F2c."),
    ],
    run: measure,
};

fn run_all(assumed: &Assumed, point: &BandPoint) -> Result<[Outcome; 5], LabError> {
    let all: Result<Vec<Outcome>, LabError> =
        contenders().iter().map(|contender| compete(contender, None, assumed, point)).collect();
    Ok(all?.try_into().expect("one for each"))
}

fn seconds(outcome: &Outcome) -> [f64; 2] {
    outcome.vms.each_ref().map(|vm| vm.seconds)
}

fn pair(outcome: &Outcome) -> String {
    let [seq, rnd] = seconds(outcome);
    format!("{seq:.0}/{rnd:.0}")
}

/// Reduction of the response times of both VMs by Flubber, as parts of those under CFQ and under EDF with credits.
fn gains(flubber: usize, seconds: &dyn Fn(usize, usize) -> f64) -> [[f64; 2]; 2] {
    [CFQ, EDF].map(|which| [0, 1].map(|vm| 1.0 - seconds(vm, flubber) / seconds(vm, which)))
}

fn judge(finding: &mut Finding, ids: [&str; 3], outcomes: &[Outcome; 5], flubber: usize) {
    let of = |vm: usize, which: usize| outcomes[which].vms[vm].seconds;
    let rnd = [PRIORITIES, flubber, EDF, CFQ].map(|which| of(1, which));
    let text = rnd.map(|seconds| format!("{seconds:.1}")).join(", ");
    let means = |vm: usize| [CFQ, PRIORITIES, EDF, flubber].map(|which| (PAPER[which][vm], of(vm, which)));
    finding.judge(ids[0], rnd.windows(2).all(|pair| pair[0] < pair[1]), format!("{text} s")).means(means(1));
    let others = [CFQ, PRIORITIES, EDF].map(|which| of(0, which));
    let holds = others.iter().all(|other| of(0, flubber) < *other) && others[2] > others[0].max(others[1]);
    let text = format!("{:.1} s; CFQ {:.1}, RT/BE {:.1}, EDF {:.1} s", of(0, flubber), others[0], others[1], others[2]);
    finding.judge(ids[1], holds, text).means(means(0));
    let (printed, here) = (gains(flubber, &|vm, which| PAPER[which][vm]), gains(flubber, &of));
    let [over_cfq, over_edf] = here.map(|[seq, rnd]| format!("{:.1} and {:.1} %", 100.0 * seq, 100.0 * rnd));
    let effects = printed.concat().into_iter().zip(here.concat()).collect();
    finding.judge_effects(ids[2], true, format!("over CFQ {over_cfq}, over EDF {over_edf}"), effects);
}

fn table(outcomes: &[Outcome; 5]) -> Table {
    let columns = [
        "scheduler",
        "Seq VM [s]",
        "Rnd VM [s]",
        "last [s]",
        "Seq IOPS",
        "Rnd IOPS",
        "Seq delay [ms]",
        "Rnd delay [ms]",
        "disk idle",
    ];
    let mut table = Table::new("Response times: here (paper); IOPS and delays while both VMs work", &columns);
    for ((contender, outcome), paper) in contenders().iter().zip(outcomes).zip(PAPER) {
        let ([seq, rnd], [seq_vm, rnd_vm]) = (seconds(outcome), &outcome.vms);
        table.row([
            contender.name.to_owned(),
            format!("{seq:.1} ({:.1})", paper[0]),
            format!("{rnd:.1} ({:.1})", paper[1]),
            format!("{:.1} ({:.1})", seq.max(rnd), paper[0].max(paper[1])),
            format!("{:.0}", seq_vm.iops),
            format!("{:.0}", rnd_vm.iops),
            seq_vm.milliseconds(seq_vm.delay),
            rnd_vm.milliseconds(rnd_vm.delay),
            format!("{:.1} %", 100.0 * outcome.idle),
        ]);
    }
    table
}

fn sweep(point: &BandPoint) -> Result<Table, LabError> {
    let names = contenders().map(|contender| contender.name);
    let columns: Vec<&str> = std::iter::once("assumed").chain(names).collect();
    let mut table = Table::new("Seq/Rnd response times [s] under other assumptions", &columns);
    let one = Assumed::NOMINAL;
    let [cfq, threads] = [Inside::CfqOfStreams, Inside::CfqOfThreads].map(|inside| Assumed { inside, ..one });
    let runs = [
        ("page cache answers 20 %", Assumed { cached: 0.2, ..one }),
        ("page cache answers 30 %", Assumed { cached: 0.3, ..one }),
        ("page cache answers 40 %", Assumed { cached: 0.4, ..one }),
        ("page cache answers 50 %", Assumed { cached: 0.5, ..one }),
        ("sequential block requests of 16 KiB", Assumed { block: 16 << 10, ..one }),
        ("sequential block requests of 44 KiB", Assumed { block: 44 << 10, ..one }),
        ("sequential read-ahead of 128 KiB a thread", Assumed { block: 128 << 10, ..one }),
        ("threads think 1 ms before a request", Assumed { think: 1000, ..one }),
        ("threads think 5 ms before a request", Assumed { think: 5000, ..one }),
        ("threads think 20 ms before a request", Assumed { think: 20_000, ..one }),
        ("128 files spread over each image", Assumed { files: Assumed::SPREAD, ..one }),
        ("images 3 GB apart", Assumed { apart: 3_000_000_000, ..one }),
        ("the host merges, up to 512 KiB", Assumed { merging: true, ..one }),
        ("2 commands at the drive, sorted", Assumed { depth: 2, ..one }),
        ("4 commands at the drive, sorted", Assumed { depth: 4, ..one }),
        ("31 commands at the drive, sorted", Assumed { depth: 31, ..one }),
        ("CFQ in the guests", cfq),
        ("CFQ in the guests, 4 commands at the drive", Assumed { depth: 4, ..cfq }),
        ("CFQ in the guests, 31 commands", Assumed { depth: 31, ..cfq }),
        ("CFQ in the guests, each sequential reader a process", threads),
        ("the same, 4 commands at the drive", Assumed { depth: 4, ..threads }),
    ];
    for (name, assumed) in runs {
        let outcomes = run_all(&assumed, point)?;
        table.row(std::iter::once(name.to_owned()).chain(outcomes.iter().map(pair)));
    }
    Ok(table)
}

pub(super) fn charts(outcomes: &[(&'static str, &Outcome)]) -> Vec<Chart> {
    let kinds = [("throughput", "IOPS"), ("latency", "mean delay [ms]")];
    let mut charts = Vec::new();
    for (vm, name) in guests::VMS.into_iter().enumerate() {
        let (iops, milliseconds) = guests::SLO[vm];
        let required = [("required by Table I", iops), ("target of Table I", milliseconds)];
        for (kind, (what, unit)) in kinds.into_iter().enumerate() {
            let lines = outcomes.iter().map(|(name, outcome)| Line::new(*name, outcome.vms[vm].series[kind].clone()));
            let chart = Chart::lines(&format!("{name}: {what}"), "time [s]", unit, lines.collect());
            charts.push(chart.level(required[kind].0, required[kind].1 as f64));
        }
    }
    charts
}

fn measure(point: &BandPoint) -> Result<Finding, LabError> {
    let mut finding = Finding::default();
    let outcomes = run_all(&Assumed::at(point), point)?;
    judge(&mut finding, ["F2a", "F2b", "F2c"], &outcomes, MODES[0]);
    let (agrees, text) = proof::check("F2h");
    finding.judge("F2h", agrees, text);
    judge(&mut finding, ["F2e", "F2f", "F2g"], &outcomes, MODES[1]);
    let means =
        PAPER.iter().zip(&outcomes).take(4).flat_map(|(printed, here)| printed.iter().copied().zip(seconds(here)));
    finding.show("F2d", format!("{} s", outcomes[..4].iter().map(pair).collect::<Vec<_>>().join("; "))).means(means);
    finding.tables.push(table(&outcomes));
    if point.is_nominal() {
        finding.tables.push(sweep(point)?);
    }
    let named: Vec<_> = contenders().iter().map(|contender| contender.name).zip(&outcomes).collect();
    finding.charts = charts(&named);
    let names: Vec<&str> = named.iter().map(|(name, _)| *name).collect();
    let bars = guests::VMS.into_iter().enumerate().flat_map(|(vm, name)| {
        let here: Vec<f64> = outcomes.iter().map(|outcome| seconds(outcome)[vm]).collect();
        [Line::bars(name, &here), Line::bars(format!("{name}, the paper"), &PAPER.map(|printed| printed[vm]))]
    });
    finding.charts.push(Chart::bars("Response times", "s", &names, bars.collect()));
    Ok(finding)
}

/// The same on real I/O, with Flubber in mode "product".
pub(crate) fn trials() -> Vec<Trial> {
    let printed = [CFQ, PRIORITIES, EDF, MODES[1]].map(|which| PAPER[which].map(Some));
    printed.iter().enumerate().map(|(which, printed)| guests::trial(which, None, 100, printed)).collect()
}
