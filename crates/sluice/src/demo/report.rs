//! The result on standard output: a table with an explanation, or one JSON object.

use std::time::Duration;

use comfy_table::{Cell, CellAlignment};
use serde_json::{Value, json};

use super::Phase;
use super::network::{self, Shares};
use super::setup::{BACKUP, DemoVm, OLTP, VMS};
use super::share::Claim;
use super::verdict::{self, Kept, Promise};
use crate::output::{self, Format};

/// Result of the demo.
pub(crate) struct Report {
    pub(super) capacity: f64,
    pub(super) claims: Vec<Claim>,
    /// noop, then mClock.
    pub(super) phases: [Phase; 2],
    /// Throughput of the VMs on the link, with noop and with mClock.
    pub(super) network: [Shares; 2],
    pub(super) promises: Vec<Promise>,
    /// Whether the disks used the page cache.
    pub(super) buffered: bool,
    /// Total length of the machine's pauses while guarantees were measured.
    pub(super) paused: Duration,
}

impl Report {
    /// Whether every guarantee was kept.
    pub(crate) fn is_ok(&self) -> bool {
        self.promises.iter().all(|promise| promise.kept == Kept::Yes)
    }

    /// Says in a line whether the guarantees were kept.
    fn conclusion(&self) -> String {
        let has = |kept| self.promises.iter().any(|promise| promise.kept == kept);
        match (has(Kept::No), has(Kept::NotJudged)) {
            (true, _) => "Not every promise was kept.".to_owned(),
            (false, false) => "Every promise was kept.".to_owned(),
            (false, true) => format!(
                "Not judged: this machine was busy. Other programs kept the CPUs, so the threads of this demo were late by \
                 {} ms while guarantees were measured. End those programs or wait for them, or run the demo as root with \
                 `nice -n -15`.",
                self.paused.as_millis()
            ),
        }
    }

    pub(crate) fn print(&self, format: Format) {
        match format {
            Format::Json => output::json(&self.as_json()),
            Format::Table => self.print_text(),
        }
    }

    fn as_json(&self) -> Value {
        let phase = |phase: &Phase| {
            let vms: Vec<Value> = (0..VMS.len()).map(|vm| self.vm_as_json(phase, vm)).collect();
            json!({ "scheduler": phase.scheduler, "vms": vms })
        };
        let promise = |promise: &Promise| {
            json!({
                "promise": promise.text,
                "kept": match promise.kept {
                    Kept::Yes => Some(true),
                    Kept::No => Some(false),
                    Kept::NotJudged => None,
                },
                "measured": rounded(promise.measured),
                "expected": rounded(promise.expected),
            })
        };
        json!({
            "capacity_iops": rounded(self.capacity),
            "phases": self.phases.iter().map(phase).collect::<Vec<_>>(),
            "link_mbit": network::LINK,
            "link_phases": self.network.iter().map(link_as_json).collect::<Vec<_>>(),
            "promises": self.promises.iter().map(promise).collect::<Vec<_>>(),
            "ok": self.is_ok(),
        })
    }

    fn vm_as_json(&self, phase: &Phase, vm: usize) -> Value {
        let (claim, measured) = (&self.claims[vm], &phase.measured[vm]);
        json!({
            "vm": VMS[vm].name,
            "iops": rounded(measured.iops),
            "p50_us": measured.p50_us,
            "p99_us": measured.p99_us,
            "reservation_iops": (claim.reservation > 0.0).then_some(claim.reservation),
            "limit_iops": claim.limit.is_finite().then_some(claim.limit),
            "weight": claim.weight,
        })
    }

    fn print_text(&self) {
        self.print_phases();
        output::line("");
        self.print_story();
        output::line("");
        self.print_link();
        output::line("");
        self.print_promises();
        output::line("");
        output::line(&self.conclusion());
        self.print_advice();
    }

    /// Prints each VM in both phases.
    fn print_phases(&self) {
        let mut table = output::table(&["VM", "PROMISE", "SCHEDULER", "IOPS@8KiB", "P50", "P99", "VERDICT"]);
        for (vm, demo_vm) in VMS.iter().enumerate() {
            for (at, phase) in self.phases.iter().enumerate() {
                let measured = &phase.measured[vm];
                let headline = verdict::headline(vm, &self.claims, &phase.measured).unless(phase.is_disturbed);
                let first = at == 0;
                table.add_row([
                    Cell::new(if first { demo_vm.name } else { "" }),
                    Cell::new(if first { promised(self.claims[vm]) } else { String::new() }),
                    Cell::new(phase.scheduler),
                    number(format!("{:.0}", measured.iops)),
                    number(millis(measured.p50_us)),
                    number(millis(measured.p99_us)),
                    Cell::new(verdict_text(&headline)),
                ]);
            }
        }
        output::line(&table.to_string());
    }

    /// Prints what each VM got of the link.
    fn print_link(&self) {
        let [noop, mclock] = &self.network;
        let mut table = output::table(&["VM'S NIC", "PROMISE [Mbit/s]", "NOOP", "MCLOCK"]);
        for ((vm, claim), (noop, mclock)) in VMS.iter().zip(network::claims()).zip(noop.mbit.iter().zip(&mclock.mbit)) {
            let rate = |mbit: &f64| number(format!("{mbit:.1}"));
            table.add_row([Cell::new(vm.name), Cell::new(promised(claim)), rate(noop), rate(mclock)]);
        }
        output::line(&table.to_string());
    }

    /// Explains the table.
    fn print_story(&self) {
        let [noop, mclock] = &self.phases;
        let total: f64 = noop.measured.iter().map(|vm| vm.iops).sum();
        let (oltp, backup) = (VMS[OLTP].name, VMS[BACKUP].name);
        let taken = noop.measured[BACKUP].iops / total * 100.0;
        output::line(&format!(
            "noop:   {backup} took {taken:.0} % of the device. {oltp} got {:.0} of the {:.0} IOPS that it needs, \
             with a median latency of {}.",
            noop.measured[OLTP].iops,
            self.claims[OLTP].reservation,
            millis(noop.measured[OLTP].p50_us),
        ));
        output::line(&format!(
            "mclock: {oltp} got {:.0} IOPS with a median latency of {}. The rest was shared by weight, and {backup} \
             stayed below {:.0} IOPS.",
            mclock.measured[OLTP].iops,
            millis(mclock.measured[OLTP].p50_us),
            self.claims[BACKUP].limit,
        ));
    }

    fn print_promises(&self) {
        let mut table = output::table(&["PROMISE OF MCLOCK", "EXPECTED", "MEASURED", "KEPT"]);
        for promise in &self.promises {
            table.add_row([
                Cell::new(&promise.text),
                number(format!("{:.0}", promise.expected)),
                number(format!("{:.0}", promise.measured)),
                Cell::new(match promise.kept {
                    Kept::Yes => "yes",
                    Kept::No => "NO",
                    Kept::NotJudged => "not judged",
                }),
            ]);
        }
        output::line(&table.to_string());
    }

    /// Prints the next steps.
    fn print_advice(&self) {
        if self.buffered {
            output::line("The disks used the page cache here. Real volumes need a file system with direct I/O.");
        }
        let sluice = std::env::args().next().unwrap_or_else(|| "sluice".to_owned());
        output::line(&format!(
            "Next: enter your disk and VMs in a copy of examples/two-vms.toml, then run\n  \
             {sluice} check FILE   to check it for errors\n  \
             {sluice} serve FILE   serves the disks"
        ));
    }
}

/// Returns what a VM is promised, in words.
fn promised(Claim { reservation, limit, weight }: Claim) -> String {
    match (reservation > 0.0, limit.is_finite()) {
        (true, _) => format!("at least {reservation:.0}"),
        (false, true) => format!("at most {limit:.0}"),
        (false, false) => format!("weight {weight:.0}"),
    }
}

fn link_as_json(shares: &Shares) -> Value {
    let vm = |(vm, (claim, mbit)): (&DemoVm, (Claim, &f64))| {
        json!({
            "vm": vm.name,
            "mbit": rounded(*mbit),
            "reservation_mbit": (claim.reservation > 0.0).then_some(claim.reservation),
            "limit_mbit": claim.limit.is_finite().then_some(claim.limit),
            "weight": claim.weight,
        })
    };
    let vms: Vec<Value> = VMS.iter().zip(network::claims().into_iter().zip(&shares.mbit)).map(vm).collect();
    json!({ "scheduler": shares.scheduler, "vms": vms })
}

/// Rounds to a tenth.
fn rounded(iops: f64) -> f64 {
    (iops * 10.0).round() / 10.0
}

fn number(text: String) -> Cell {
    Cell::new(text).set_alignment(CellAlignment::Right)
}

fn millis(micros: u64) -> String {
    format!("{:.1} ms", micros as f64 / 1000.0)
}

fn verdict_text(promise: &Promise) -> String {
    let part = promise.measured / promise.expected * 100.0;
    match promise.kept {
        Kept::Yes => "kept".to_owned(),
        Kept::No => format!("BROKEN: {part:.0} % of {:.0}", promise.expected),
        Kept::NotJudged => "not judged: busy".to_owned(),
    }
}
