//! Fig. 4 and Table IV: a backup in the host next to both VMs.

use sluice_report::{Chart, Line, Table};
use sluice_sched::policy::Class as VmClass;

use crate::band::BandPoint;
use crate::figure::{Class, Figure, Finding, LabError, Paper, RowSpec};
use crate::proof;
use crate::real::{Trial, TrialVm};

use super::guests::{self, Assumed, Backup, Contender, Inside, Outcome, compete};
use super::schedulers::charts;

/// Response times of the paper in seconds: sequential VM, random VM, backup; in the order of [`contenders`].
const PAPER: [Option<[f64; 3]>; 5] = [
    Some([138.639, 105.838, 368.627]),
    Some([330.55, 84.05, 583.464]),
    Some([117.955, 77.496, 399.129]),
    Some([117.955, 77.496, 399.129]),
    None,
];
const PRIORITIES: usize = 0;
const EDF: usize = 1;
const MODES: [usize; 2] = [2, 3];

const OVER_CFQ: &str =
    "both VMs are done earlier under Flubber than under CFQ with priorities, by at least half as much as in Table IV";
const OVER_EDF: &str =
    "both VMs are done earlier under Flubber than under EDF with credits, by at least half as much as in Table IV";
const BACKUP: &str =
    "the backup is done earlier under Flubber than under EDF with credits, by at least half as much as in Table IV";
const SLOWER: &str = "the backup takes at most 15 % longer under Flubber than under CFQ with priorities";
const TWICE: &str = "the sequential VM takes at least twice as long under EDF with credits as under Flubber";

const fn shape(id: &'static str, must: &'static str, paper: &'static str, note: &'static str) -> RowSpec {
    RowSpec { id, class: Class::Shape, must, paper, note }
}

pub(crate) const FIGURE: Figure = Figure {
    id: "flubber-backup",
    paper: Paper::Flubber,
    label: "Fig. 4, Table IV",
    title: "Throughput, latency and response time while the host makes a backup",
    setup: "The VMs of Fig. 3, and a copy of an image of 12 GB in the host, which lies behind theirs. Assumed of the copy: read \
            with a read-ahead of 128 KiB, written by the page cache in bursts of 8 MiB (requests of at most 512 KiB), to the \
            same disk, which has no write cache. Background work for Flubber and EDF with credits, best effort for CFQ.",
    device: guests::DEVICE,
    rows: &[
        shape(
            "F3a",
            OVER_CFQ,
            "118 against 139 s, 77 against 106 s: 15 and 27 % earlier",
            "Mode \"paper\". CFQ's real-time class serves the random VM as if it were alone: it always has eight requests \
             waiting, and neither the other VM nor the backup gets anything. In the paper the backup hurts it all the same; \
             what let it through is not stated. In the sweep a queue of 31 in the drive does (102 s), a cache of writes alone \
             does not.",
        ),
        shape("F3h", OVER_EDF, "118 against 331 s, 77 against 84 s: 64 and 8 % earlier", "Mode \"paper\"."),
        shape(
            "F3i",
            BACKUP,
            "399 against 583 s: 32 % earlier",
            "Mode \"paper\". At no depth by half of that: 9 % at one command, and later from \
             two on.",
        ),
        shape(
            "F3j",
            "under EDF with credits the sequential VM is done later than under CFQ with priorities, the random VM earlier",
            "331 against 139 s; 84 against 106 s",
            "The two schedulers that Flubber is compared with. For the random VM as F3a.",
        ),
        shape(
            "F3b",
            SLOWER,
            "399 against 369 s: 8.3 %",
            "Mode \"paper\". The text says \"less than 8 %\" of the performance: F3k.",
        ),
        shape(
            "F3k",
            "by Table IV the backup's performance is less than 8 % lower under Flubber, by one reading",
            "less than 8 %",
            "A sentence of the text. The time rises by 8.27 %; the performance, its inverse, falls by 7.64 %.",
        ),
        shape(
            "F3c",
            TWICE,
            "331 s, 2.8 times 118 s",
            "Mode \"paper\". Under EDF the backup has a deadline among the others' and costs both VMs alike. In the paper the \
             sequential VM takes 4.6 times as long as without the backup, the random VM 1.6 times; here both take 1.8 times.",
        ),
        RowSpec {
            id: "F3d",
            class: Class::Hardware,
            must: "response times of both VMs and the backup: CFQ with priorities; EDF with credits; Flubber",
            paper: "139/106/369; 331/84/583; 118/77/399 s",
            note: "Flubber in mode \"paper\". Where the copy goes is not said; the other destination is in the sweep.",
        },
        shape("F3e", OVER_CFQ, "118 against 139 s, 77 against 106 s: 15 and 27 % earlier", "Mode \"product\": as F3a."),
        shape("F3l", OVER_EDF, "118 against 331 s, 77 against 84 s: 64 and 8 % earlier", "Mode \"product\": as F3h."),
        shape("F3m", BACKUP, "399 against 583 s: 32 % earlier", "Mode \"product\": as F3i."),
        shape("F3f", SLOWER, "399 against 369 s: 8.3 %", "Mode \"product\"."),
        shape("F3g", TWICE, "331 s, 2.8 times 118 s", "Mode \"product\": as F3c."),
    ],
    run: measure,
};

fn contenders() -> [Contender; 5] {
    [guests::cfq(true), guests::edf(32), guests::flubber_paper(32), guests::flubber_product(32), guests::cfq(false)]
}

fn run_all(target: Backup, assumed: &Assumed, point: &BandPoint) -> Result<[Outcome; 5], LabError> {
    let all: Result<Vec<Outcome>, LabError> =
        contenders().iter().map(|contender| compete(contender, Some(target), assumed, point)).collect();
    Ok(all?.try_into().expect("one for each"))
}

fn seconds(outcome: &Outcome) -> [f64; 3] {
    [outcome.vms[0].seconds, outcome.vms[1].seconds, outcome.backup.expect("there was one")]
}

fn slashed(outcome: &Outcome) -> String {
    seconds(outcome).map(|seconds| format!("{seconds:.0}")).join("/")
}

/// The rows of a mode: Flubber against CFQ with priorities, against EDF with credits (VMs, backup), the backup's price, and twice.
fn judge(finding: &mut Finding, ids: [&str; 5], outcomes: &[Outcome; 5], flubber: usize) {
    let of = |which: usize| seconds(&outcomes[which]);
    let (priorities, edf, flubber) = (of(PRIORITIES), of(EDF), of(flubber));
    let printed = |which: usize| PAPER[which].expect("Table IV has it");
    for (id, (which, other), whose) in
        [(ids[0], (PRIORITIES, priorities), &[0, 1][..]), (ids[1], (EDF, edf), &[0, 1]), (ids[2], (EDF, edf), &[2])]
    {
        let earlier = |of: [f64; 3], than: [f64; 3], what: usize| 1.0 - of[what] / than[what];
        let effect = |what: &usize| (earlier(printed(MODES[0]), printed(which), *what), earlier(flubber, other, *what));
        let pairs: Vec<_> =
            whose.iter().map(|what| format!("{:.0} against {:.0}", flubber[*what], other[*what])).collect();
        finding.judge_effects(id, true, format!("{} s", pairs.join(", ")), whose.iter().map(effect).collect());
    }
    let longer = flubber[2] / priorities[2] - 1.0;
    let text = format!("{:.0} against {:.0} s: {:.1} %", flubber[2], priorities[2], 100.0 * longer);
    finding
        .judge(ids[3], longer <= 0.15, text)
        .means([(printed(PRIORITIES)[2], priorities[2]), (printed(MODES[0])[2], flubber[2])]);
    let times = edf[0] / flubber[0];
    finding
        .judge(ids[4], times >= 2.0, format!("{:.0} s, {times:.1} times {:.0} s", edf[0], flubber[0]))
        .means([(printed(EDF)[0], edf[0]), (printed(MODES[0])[0], flubber[0])]);
}

/// The rows without Flubber: its baselines beside each other, and a sentence beside its table.
fn judge_others(finding: &mut Finding, outcomes: &[Outcome; 5]) {
    let [priorities, edf] = [PRIORITIES, EDF].map(|which| seconds(&outcomes[which]));
    let text = format!("{:.0} against {:.0} s; {:.0} against {:.0} s", edf[0], priorities[0], edf[1], priorities[1]);
    finding.judge("F3j", edf[0] > priorities[0] && edf[1] < priorities[1], text);
    let (agrees, text) = proof::check("F3k");
    finding.judge("F3k", agrees, text);
}

fn table(outcomes: &[Outcome; 5]) -> Table {
    let columns = [
        "scheduler",
        "Seq VM [s]",
        "Rnd VM [s]",
        "backup [s]",
        "Seq IOPS",
        "Rnd IOPS",
        "Seq delay [ms]",
        "Rnd delay [ms]",
    ];
    let mut table = Table::new("Response times: here (paper); IOPS and delays while both VMs work", &columns);
    for ((contender, outcome), paper) in contenders().iter().zip(outcomes).zip(PAPER) {
        let times = seconds(outcome).into_iter().enumerate();
        let times = times.map(|(what, here)| match paper {
            Some(paper) => format!("{here:.1} ({:.1})", paper[what]),
            None => format!("{here:.1}"),
        });
        let iops = outcome.vms.each_ref().map(|vm| format!("{:.1}", vm.iops));
        let delays = outcome.vms.each_ref().map(|vm| vm.milliseconds(vm.delay));
        let cells = std::iter::once(contender.name.to_owned()).chain(times);
        table.row(cells.chain(iops).chain(delays));
    }
    table
}

fn sweep(point: &BandPoint) -> Result<Table, LabError> {
    let names = contenders().map(|contender| contender.name);
    let columns: Vec<&str> = std::iter::once("assumed").chain(names).collect();
    let mut table = Table::new("Seq/Rnd/backup response times [s] under other assumptions", &columns);
    let one = Assumed::NOMINAL;
    let cfq = Assumed { inside: Inside::CfqOfStreams, ..one };
    let runs = [
        ("the copy goes elsewhere", Backup::Elsewhere, one),
        ("page cache answers 20 %", Backup::Same, Assumed { cached: 0.2, ..one }),
        ("page cache answers 50 %", Backup::Same, Assumed { cached: 0.5, ..one }),
        ("threads think 5 ms before a request", Backup::Same, Assumed { think: 5000, ..one }),
        ("128 files spread over each image", Backup::Same, Assumed { files: Assumed::SPREAD, ..one }),
        ("the host merges, up to 512 KiB", Backup::Same, Assumed { merging: true, ..one }),
        ("the drive caches 16 MiB of writes", Backup::Same, Assumed { write_cache: 16 << 20, ..one }),
        ("4 commands at the drive, sorted", Backup::Same, Assumed { depth: 4, ..one }),
        ("31 commands at the drive, sorted", Backup::Same, Assumed { depth: 31, ..one }),
        ("31 commands and a cache of writes", Backup::Same, Assumed { depth: 31, write_cache: 16 << 20, ..one }),
        ("CFQ in the guests", Backup::Same, cfq),
        ("CFQ in the guests, 4 commands at the drive", Backup::Same, Assumed { depth: 4, ..cfq }),
    ];
    for (name, target, assumed) in runs {
        let outcomes = run_all(target, &assumed, point)?;
        table.row(std::iter::once(name.to_owned()).chain(outcomes.iter().map(slashed)));
    }
    Ok(table)
}

fn measure(point: &BandPoint) -> Result<Finding, LabError> {
    let mut finding = Finding::default();
    let outcomes = run_all(Backup::Same, &Assumed::at(point), point)?;
    judge(&mut finding, ["F3a", "F3h", "F3i", "F3b", "F3c"], &outcomes, MODES[0]);
    judge(&mut finding, ["F3e", "F3l", "F3m", "F3f", "F3g"], &outcomes, MODES[1]);
    judge_others(&mut finding, &outcomes);
    let printed = PAPER.iter().flatten().zip(&outcomes).take(3);
    let means = printed.flat_map(|(printed, here)| printed.iter().copied().zip(seconds(here)));
    finding.show("F3d", format!("{} s", outcomes[..3].iter().map(slashed).collect::<Vec<_>>().join("; "))).means(means);
    finding.tables.push(table(&outcomes));
    if point.is_nominal() {
        finding.tables.push(sweep(point)?);
    }
    let named: Vec<_> = contenders().iter().map(|contender| contender.name).zip(&outcomes).take(4).collect();
    finding.charts = charts(&named);
    let names: Vec<&str> = named.iter().map(|(name, _)| *name).collect();
    let bars = ["Seq VM", "Rnd VM", "backup"].into_iter().enumerate();
    let bars = bars.map(|(what, name)| {
        Line::bars(name, &named.iter().map(|(_, outcome)| seconds(outcome)[what]).collect::<Vec<_>>())
    });
    let printed = ["Seq VM", "Rnd VM", "backup"].into_iter().enumerate().map(|(what, name)| {
        let heights: Vec<f64> = PAPER.iter().flatten().map(|printed| printed[what]).collect();
        Line::bars(format!("{name}, the paper"), &heights)
    });
    finding.charts.push(Chart::bars("Response times with a backup", "s", &names, bars.chain(printed).collect()));
    Ok(finding)
}

/// Which fraction of both VMs' work is done on real I/O, and which of that part of the copy. All of it would take the paper's 23 minutes.
const REAL_WORK: u32 = 8;
const REAL_COPY: u64 = 4;

/// The same on real I/O, with Flubber in mode "product". The paper prints times of the whole work.
pub(crate) fn trials() -> Vec<Trial> {
    let trial = |which: usize| {
        let copy = guests::trial_vm(None, |fraction, point| Ok(guests::copy(REAL_COPY * fraction, point)));
        let (_, scheduler, ..) = guests::ON_REAL_IO[which];
        // The others have no queue of its own for background work, and a host file that promises one is refused.
        let class = if scheduler == "flubber" { VmClass::Background } else { VmClass::Foreground };
        let backup = TrialVm { class, ..copy };
        Trial { work: REAL_WORK, ..guests::trial(which, Some(backup), 60, &[]) }
    };
    (1..guests::ON_REAL_IO.len()).map(trial).collect()
}
