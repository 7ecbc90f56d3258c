//! The report of the study, and the page of the manual.

use std::fs;
use std::process::Command;

use super::{
    EQUAL, FIRST, Knob, LATENCY_FIRST, Measured, ONE_BATCH, Part, Row, SINGLE, SMALL_BATCH, Study, WEIGHTS,
};
use crate::report::{Cell, Report, Table};
use crate::stats::Samples;

/// Adds all tables.
pub(super) fn add_to(report: &mut Report, study: &Study, rounds: usize) {
    let to_none = |row: &Row, number: fn(&Measured) -> &Samples| {
        let is_base = |base: &&Row| (base.part, base.what, base.knob) == (row.part, row.what, Knob::None);
        let base = study.rows.iter().find(is_base).expect("every experiment has a run without a knob");
        Cell::Number(number(&row.measured).ratio(number(&base.measured)).median(), 2)
    };
    let mut add = |part: Part, name: &str, columns: &[&'static str], cells: &dyn Fn(&Row) -> Vec<Cell>| {
        let mut table = Table::new(name, columns);
        for row in study.rows.iter().filter(|row| row.part == part) {
            table.row([vec![Cell::text(row.what), Cell::text(row.knob.name())], cells(row)].concat());
        }
        report.table(table);
    };
    let columns = ["apps", "knob", "p50 [us]", "p99 [us]", "p50, to no knob"];
    add(Part::Latency, "D1: latency of latency-critical apps", &columns, &|row| {
        let Measured { p50_us, p99_us, .. } = &row.measured;
        vec![Cell::spread(p50_us, 0), Cell::spread(p99_us, 0), to_none(row, |row| &row.p50_us)]
    });
    let columns = ["apps", "knob", "MB/s", "to no knob", "busy CPUs"];
    add(Part::Bandwidth, "D1: bandwidth of batch apps", &columns, &|row| {
        let Measured { all, cpus, .. } = &row.measured;
        vec![Cell::spread(all, 0), to_none(row, |row| &row.all), Cell::Number(cpus.median(), 2)]
    });
    let columns = ["four batch apps", "knob", "Jain's index of MB/s by weight", "MB/s", "to no knob"];
    add(Part::Fairness, "D2: fairness", &columns, &|row| {
        let Measured { jain, all, .. } = &row.measured;
        vec![Cell::spread(jain, 3), Cell::spread(all, 0), to_none(row, |row| &row.all)]
    });
    let columns = ["app with priority", "knob", "setting", "its IOPS", "its p99 [us]", "best effort [MB/s]", "all, to no knob"];
    add(Part::Priority, "D3: an app with priority, beside four batch apps", &columns, &|row| {
        let Measured { iops, p99_us, others, .. } = &row.measured;
        let cells = [Cell::spread(iops, 0), Cell::spread(p99_us, 0), Cell::spread(others, 0), to_none(row, |row| &row.all)];
        [vec![Cell::text(row.setting)], cells.to_vec()].concat()
    });
    let columns = ["app that wakes up", "knob", "setting", "time until its share [ms]", "its IOPS"];
    add(Part::Burst, "D4: an app with priority wakes up", &columns, &|row| {
        let Measured { iops, reached_ms, .. } = &row.measured;
        vec![Cell::text(row.setting), Cell::spread(reached_ms, 0), Cell::spread(iops, 0)]
    });
    add_notes(report, study, rounds);
}

fn add_notes(report: &mut Report, study: &Study, rounds: usize) {
    report.note(format!(
        "Median of {rounds} rounds of {} ms each (lowest to highest). \"To no knob\" is the median of the rounds' ratios.",
        study.time_ms
    ));
    report.note(format!(
        "blk-throttle's limits are the apps' parts of what they get together without a knob. BFQ has low_latency = 0. \
         The daemon has depth 32 unless stated, and the measured `knee` of {} bytes.",
        study.bed.knee.unwrap_or_default()
    ));
    report.note(
        "Time until its share: start of the first window of 50 ms with 80 % of the app's rate in the second half of its \
         burst of 1.5 s, in steps of 10 ms.",
    );
    report.note(missing());
}

/// Returns which knobs of the study cannot run here, and how that is seen.
fn missing() -> String {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let groups = read("/proc/cgroups");
    let hierarchy = groups.lines().find_map(|line| line.strip_prefix("blkio\t")?.split('\t').next()).unwrap_or("none");
    let v2 = ["", "unified/"].map(|folder| read(&format!("/sys/fs/cgroup/{folder}cgroup.controllers"))).concat();
    let config = Command::new("zcat").arg("/proc/config.gz").output().map(|output| output.stdout).unwrap_or_default();
    let config = String::from_utf8_lossy(&config);
    let has = |option: &str| if config.contains(&format!("CONFIG_{option}=y")) { "is set" } else { "is not set" };
    format!(
        "Not run: io.cost and io.latency, which exist in cgroup v2 only. On this machine the controller of block devices \
         belongs to cgroup v1 (/proc/cgroups: hierarchy {hierarchy}), and cgroup v2 has only: {}. BLK_CGROUP_IOCOST {}, \
         BLK_CGROUP_IOLATENCY {}. io.prio.class: BLK_CGROUP_IOPRIO {}, so fio sets the class of its process.",
        v2.trim(),
        has("BLK_CGROUP_IOCOST"),
        has("BLK_CGROUP_IOLATENCY"),
        has("BLK_CGROUP_IOPRIO"),
    )
}

/// Returns the page of the manual.
pub(super) fn page(study: &Study, report: &Report) -> String {
    let tables = report.markdown();
    let tables = tables.split_once('\n').map_or("", |(_, rest)| rest);
    format!("{HEAD}\n## What we see\n\n{}\n\n## Results\n{tables}", seen(study))
}

const HEAD: &str = include_str!("head.md");

/// Returns the paragraph that compares the daemon with the kernel's knobs, with its losses first.
fn seen(study: &Study) -> String {
    let get = |part, what, knob, number| study.median(part, what, knob, number);
    let (none, noop, mclock, bfq) = (Knob::None, Knob::Noop, Knob::Mclock, Knob::Bfq);
    let p50 = |knob| get(Part::Latency, SINGLE, knob, |row| &row.p50_us);
    let bandwidth = |what, knob| get(Part::Bandwidth, what, knob, |row| &row.all);
    let lost = |what| bandwidth(what, mclock) / bandwidth(what, none) * 100.0;
    let jain = |what, knob| get(Part::Fairness, what, knob, |row| &row.jain);
    let p99 = |knob| get(Part::Priority, LATENCY_FIRST, knob, |row| &row.p99_us) / 1e3;
    let effort = |knob| get(Part::Priority, LATENCY_FIRST, knob, |row| &row.others);
    let burst = |what, knob| get(Part::Burst, what, knob, |row| &row.reached_ms);
    format!(
        "**Overhead.** One read of 4 KiB at a time takes {:.0} us without a knob (p50), {:.0} us with BFQ, {:.0} us behind the \
         daemon with noop and {:.0} us with mclock. The daemon passes on {:.0} % of the bandwidth of one batch app, and {:.0} % of \
         that of four with 4 KiB, where the CPUs are the limit (BFQ {:.0} %).\n\n\
         **Fairness.** With equal weights Jain's index is {:.3} without a knob, {:.3} with BFQ and {:.3} with mclock; with \
         weights 1:2:3:4 it is {:.3}, {:.3} and {:.3}. mclock divides the cost of requests and not bytes, so its index of bytes \
         falls where sizes differ.\n\n\
         **Priority.** Beside four batch apps the p99 of a latency-critical app is {:.1} ms without a knob, where the others get \
         {:.0} MB/s; {:.1} ms with BFQ ({:.0} MB/s), and {:.1} ms with mclock and depth 4 ({:.0} MB/s).\n\n\
         **Bursts.** A latency-critical app has its share after {:.0} ms with BFQ and {:.0} ms with mclock, a batch app after \
         {:.0} and {:.0} ms.",
        p50(none),
        p50(bfq),
        p50(noop),
        p50(mclock),
        lost(ONE_BATCH),
        lost(SMALL_BATCH),
        bandwidth(SMALL_BATCH, bfq) / bandwidth(SMALL_BATCH, none) * 100.0,
        jain(EQUAL, none),
        jain(EQUAL, bfq),
        jain(EQUAL, mclock),
        jain(WEIGHTS, none),
        jain(WEIGHTS, bfq),
        jain(WEIGHTS, mclock),
        p99(none),
        effort(none),
        p99(bfq),
        effort(bfq),
        p99(mclock),
        effort(mclock),
        burst(LATENCY_FIRST, bfq),
        burst(LATENCY_FIRST, mclock),
        burst(FIRST[1].0, bfq),
        burst(FIRST[1].0, mclock),
    )
}
