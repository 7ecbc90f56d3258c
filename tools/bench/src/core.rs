//! `cargo xtask bench core`: the cost of a decision.
//!
//! One thread passes requests through a complete gate with its statistics: insert, pump, complete. Every owner has a
//! reservation, a limit and a weight, and always has 32 queued requests. The subject is mClock (mode `product`). noop
//! in the same harness shows the share of the gate, the harness and memory, and mClock with binary heaps
//! (`textbook.rs`) what its own structures gain. The other schedulers are measured alone.
//! Time is the thread's CPU time; memory is counted by the allocator.

mod harness;
mod textbook;

use std::alloc::System;

use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

use super::report::{Bound, Cell, Report, Table};
use super::stats::Samples;
use harness::{Harness, QUEUED, TEXTBOOK};

#[global_allocator]
pub(super) static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Numbers of owners, and the promised maximum in nanoseconds per request.
const SIZES: &[(u32, Option<f64>)] =
    &[(10, Some(100.0)), (100, None), (1_000, Some(150.0)), (10_000, None), (100_000, Some(400.0))];
/// Numbers of owners, the promised maximum of the ratio of mClock's cost to that of noop, and the minimum of the ratio of the
/// textbook's to mClock's.
const RATIOS: &[(u32, f64, f64)] = &[(10, 2.5, 1.2), (1_000, 3.5, 2.0), (100_000, 8.0, 2.0)];
/// Numbers of owners for the other schedulers, and the promised maximum in nanoseconds per request.
const OTHER_SIZES: &[(u32, Option<f64>)] = &[(10, None), (1_000, Some(250.0)), (100_000, None)];
/// Numbers of volumes of one VM, and the promised maximum of the ratio of their costs per request.
const VOLUMES: ([u32; 2], f64) = ([1, 256], 2.0);
/// Maximum memory per queued request, in bytes.
const BYTES_MAX: f64 = 64.0;

/// Options of the benchmark.
#[derive(Debug, clap::Args)]
pub(super) struct Options {
    /// Run only with this number of owners (may be given several times).
    #[arg(long, value_name = "N")]
    owners: Vec<u32>,
    /// Run only this scheduler, for a profiler.
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
}

/// Duration of the measurements.
#[derive(Debug, Clone, Copy)]
struct Effort {
    rounds: usize,
    requests: u64,
    added: u32,
}

/// A scheduler and its measurements.
struct Subject {
    harness: Harness,
    request_ns: Samples,
    add_ns: Samples,
    owner_bytes: f64,
    request_bytes: f64,
    allocations: usize,
}

pub(super) fn run(options: &Options, quick: bool) -> Result<Report, String> {
    let effort = match quick {
        true => Effort { rounds: 5, requests: 50_000, added: 100 },
        false => Effort { rounds: 9, requests: 1_000_000, added: 1_000 },
    };
    let names: Vec<&str> = options.only.as_deref().map_or(vec!["mclock", "noop", TEXTBOOK], |only| vec![only]);
    let mut report = Report::new("core");
    let mut time = Table::new(
        "CPU time per request (insert + pump + complete) [ns]",
        &["owners", "scheduler", "per request", "ratio to noop", "adding an owner", "reservation", "weight", "limited"],
    );
    let mut memory = Table::new("Memory", &["owners", "scheduler", "B per request", "B per owner", "allocations"]);
    for &(owners, target) in SIZES {
        if !options.owners.is_empty() && !options.owners.contains(&owners) {
            continue;
        }
        let mut subjects = names.iter().map(|name| Subject::new(name, owners)).collect::<Result<Vec<_>, _>>()?;
        for round in 0..effort.rounds {
            eprintln!("core: {owners} owners, round {} of {}", round + 1, effort.rounds);
            report.measure_baseline();
            subjects.iter_mut().for_each(|subject| subject.measure(effort));
        }
        add_rows(&mut time, &mut memory, owners, &names, &subjects);
        let subject = &subjects[0];
        if let Some(target) = target
            && options.only.is_none()
        {
            report.target(
                format!("ns per request, {owners} owners"),
                Bound::AtMost(target),
                subject.request_ns.median(),
            );
        }
        if options.only.is_none() {
            add_ratios(&mut report, owners, &subjects);
            let what = format!("allocations, {owners} owners");
            report.target(what, Bound::AtMost(0.0), subject.allocations as f64);
        }
        if owners >= 10_000 && options.only.is_none() {
            report.target(format!("B per request, {owners} owners"), Bound::AtMost(BYTES_MAX), subject.request_bytes);
        }
    }
    if options.owners.is_empty() && names.contains(&"mclock") {
        add_volumes(&mut report, effort)?;
    }
    if options.only.is_none() {
        let others = sluice_papers::ALL.iter().map(|descriptor| descriptor.name).filter(|name| !names.contains(name));
        for name in others {
            add_other(&mut report, &mut time, &mut memory, (name, options), effort)?;
        }
    }
    report.table(time);
    report.table(memory);
    report.note(format!("{} rounds of {} requests each, subject and noop in turns", effort.rounds, effort.requests));
    Ok(report)
}

/// Adds the targets for the ratios of mClock, noop and the textbook, in this order.
fn add_ratios(report: &mut Report, owners: u32, subjects: &[Subject]) {
    let (Some((_, noop_max, textbook_min)), [own, noop, textbook]) =
        (RATIOS.iter().find(|(known, ..)| *known == owners), subjects)
    else {
        return;
    };
    let to_noop = own.request_ns.ratio(&noop.request_ns).median();
    report.target(format!("mclock / noop, {owners} owners"), Bound::AtMost(*noop_max), to_noop);
    let to_own = textbook.request_ns.ratio(&own.request_ns).median();
    report.target(format!("textbook / mclock, {owners} owners"), Bound::AtLeast(*textbook_min), to_own);
}

/// Compares a VM with one volume and a VM with many. Each volume has a reservation, a limit and a weight inside the
/// VM.
fn add_volumes(report: &mut Report, effort: Effort) -> Result<(), String> {
    let (volumes, bound) = VOLUMES;
    let mut subjects = Vec::new();
    for volumes in volumes {
        let mut harness = Harness::of_volumes("mclock", volumes)?;
        harness.fill();
        harness.warm_up(|| false);
        subjects.push((harness, Samples::default()));
    }
    for round in 0..effort.rounds {
        eprintln!("core: volumes of one VM, round {} of {}", round + 1, effort.rounds);
        for (harness, samples) in &mut subjects {
            samples.push(harness.run(effort.requests) / effort.requests as f64);
        }
    }
    let mut table = Table::new(
        "CPU time per request with volumes of one VM (mclock) [ns]",
        &["volumes", "per request", "ratio to one volume"],
    );
    for (number, (_, samples)) in volumes.iter().zip(&subjects) {
        let ratio = samples.ratio(&subjects[0].1);
        table.row(vec![Cell::Number(f64::from(*number), 0), Cell::spread(samples, 0), Cell::spread(&ratio, 2)]);
    }
    let ratio = subjects[1].1.ratio(&subjects[0].1).median();
    report.target(format!("{} volumes of one VM beside one", volumes[1]), Bound::AtMost(bound), ratio);
    report.table(table);
    Ok(())
}

/// Measures one of the other schedulers alone: with this number of requests, only one fits into memory.
fn add_other(
    report: &mut Report,
    time: &mut Table,
    memory: &mut Table,
    (name, options): (&str, &Options),
    effort: Effort,
) -> Result<(), String> {
    let sizes = OTHER_SIZES.iter().filter(|(owners, _)| options.owners.is_empty() || options.owners.contains(owners));
    for &(owners, target) in sizes {
        eprintln!("core: {name} with {owners} owners");
        let mut subject = Subject::new(name, owners)?;
        (0..effort.rounds).for_each(|_| subject.measure(effort));
        if let Some(target) = target {
            let what = format!("ns per request, {name}, {owners} owners");
            report.target(what, Bound::AtMost(target), subject.request_ns.median());
        }
        let what = format!("allocations, {name}, {owners} owners");
        report.target(what, Bound::AtMost(0.0), subject.allocations as f64);
        add_rows(time, memory, owners, &[name], &[subject]);
    }
    Ok(())
}

impl Subject {
    fn new(scheduler: &str, owners: u32) -> Result<Subject, String> {
        let region = Region::new(ALLOCATOR);
        let mut harness = Harness::new(scheduler, owners)?;
        let owner_bytes = grown(&region) / f64::from(owners);
        let region = Region::new(ALLOCATOR);
        harness.fill();
        let request_bytes = grown(&region) / f64::from(owners * QUEUED);
        let mut since = Region::new(ALLOCATOR);
        harness.warm_up(|| allocations(&std::mem::replace(&mut since, Region::new(ALLOCATOR))) > 0);
        let (request_ns, add_ns) = (Samples::default(), Samples::default());
        Ok(Subject { harness, request_ns, add_ns, owner_bytes, request_bytes, allocations: 0 })
    }

    fn measure(&mut self, effort: Effort) {
        let region = Region::new(ALLOCATOR);
        let nanos = self.harness.run(effort.requests);
        self.allocations += allocations(&region);
        self.request_ns.push(nanos / effort.requests as f64);
        self.add_ns.push(self.harness.add_owners(effort.added));
    }
}

/// Returns the number of allocations since `region` began.
fn allocations(region: &Region<'_, System>) -> usize {
    let change = region.change();
    change.allocations + change.reallocations
}

/// Returns the growth of allocated memory since `region` began, in bytes.
pub(super) fn grown(region: &Region<'_, System>) -> f64 {
    let change = region.change();
    change.bytes_allocated as f64 - change.bytes_deallocated as f64
}

fn add_rows(time: &mut Table, memory: &mut Table, owners: u32, names: &[&str], subjects: &[Subject]) {
    let noop = names.iter().position(|name| *name == "noop");
    for (name, subject) in names.iter().zip(subjects) {
        let ratio = noop.map(|noop| subject.request_ns.ratio(&subjects[noop].request_ns)).unwrap_or_default();
        let phases = subject.harness.phases();
        let percent = |part: u64| Cell::text(format!("{:.0} %", 100.0 * part as f64 / phases.all.max(1) as f64));
        time.row(vec![
            Cell::Number(f64::from(owners), 0),
            Cell::text(*name),
            Cell::spread(&subject.request_ns, 0),
            Cell::spread(&ratio, 2),
            Cell::spread(&subject.add_ns, 0),
            percent(phases.reservation),
            percent(phases.weight),
            percent(phases.limited),
        ]);
        memory.row(vec![
            Cell::Number(f64::from(owners), 0),
            Cell::text(*name),
            Cell::Number(subject.request_bytes, 1),
            Cell::Number(subject.owner_bytes, 0),
            Cell::Number(subject.allocations as f64, 0),
        ]);
    }
}
