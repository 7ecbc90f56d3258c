//! Many plans, one after the other.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::io::Write as _;

use super::check::{Finding, check};
use super::generate;
use super::plan::Plan;
use super::run::run;
use super::shrink::shrink;

pub struct Campaign {
    plans: u64,
    first: u64,
    several: bool,
    length: f64,
    scheduler: &'static str,
    /// Whether to continue after a failure and print each one, for statistics.
    by_hand: bool,
}

pub fn number(name: &str) -> Option<f64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is a number, not '{text}'")))
}

impl Campaign {
    /// A campaign of `plans` plans, unless the environment states another number.
    pub fn from_environment(plans: u64, several: bool) -> Campaign {
        let by_hand = number("SLUICE_FLUID_PLANS");
        Campaign {
            plans: by_hand.map_or(plans, |plans| plans as u64),
            first: number("SLUICE_FLUID_SEED").unwrap_or(1.0) as u64,
            several,
            length: number("SLUICE_FLUID_LENGTH").unwrap_or(1.0),
            scheduler: "mclock",
            by_hand: by_hand.is_some(),
        }
    }

    pub fn run(&self) {
        let mut classes: BTreeMap<String, (u64, u64)> = BTreeMap::new();
        let mut bad = 0u64;
        let mut requests = 0.0;
        let mut tightness = Tightness::default();
        for done in 0..self.plans {
            let plan = generate::plan(self.first + done, self.several, self.length);
            requests += plan.requests();
            let findings = check(&plan, &run(&plan, self.scheduler));
            tightness.count(&findings);
            let failed: Vec<&Finding> = findings.iter().filter(|finding| finding.is_bad()).collect();
            if !failed.is_empty() {
                bad += 1;
                failed.iter().for_each(|finding| {
                    let known = classes.entry(finding.class()).or_insert((0, plan.seed));
                    known.0 += 1;
                });
                if !self.by_hand || std::env::var("SLUICE_FLUID_SHOW").is_ok() {
                    let (plan, findings) = shrink(&plan, self.scheduler);
                    panic!("{}", report(&plan, &findings));
                }
                let mut err = std::io::stderr();
                for finding in failed.iter() {
                    let _ = writeln!(err, "seed {}: {finding}", plan.seed);
                }
            }
            if self.by_hand && (done + 1) % 100 == 0 {
                let _ = writeln!(
                    std::io::stderr(),
                    "{} of {} plans, {bad} bad, {requests:.0} requests",
                    done + 1,
                    self.plans
                );
            }
        }
        if self.by_hand {
            let _ = writeln!(std::io::stderr(), "{tightness}");
        }
        let mut text = String::new();
        for (class, (count, seed)) in &classes {
            let _ = writeln!(text, "{count:6} {class} (seed {seed})");
        }
        assert!(bad == 0, "{bad} of {} plans\n{text}", self.plans);
    }
}

/// Width of the accepted ranges.
#[derive(Default)]
struct Tightness {
    /// Pairs of a VM and a phase.
    all: u64,
    /// Pairs in which the VM is always backlogged.
    always: u64,
    /// Of these, pairs whose range is at most 10 % to each side, and at most 3 %.
    tenth: u64,
    close: u64,
}

impl Tightness {
    fn count(&mut self, findings: &[Finding]) {
        for finding in findings {
            let width = finding.due.1 - finding.due.0 + 2.0 * finding.allowed;
            let within = |part: f64| u64::from(finding.always && width <= 2.0 * part * finding.due.1);
            self.all += 1;
            self.always += u64::from(finding.always);
            self.tenth += within(0.1);
            self.close += within(0.03);
        }
    }
}

impl fmt::Display for Tightness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tightness { all, always, tenth, close } = self;
        write!(
            f,
            "{all} VMs in phases, {always} always backlogged, {tenth} of them checked within 10 %, {close} within 3 %"
        )
    }
}

pub fn report(plan: &Plan, findings: &[Finding]) -> String {
    let mut text = format!("{plan}");
    for finding in findings {
        let mark = if finding.is_bad() { "BAD " } else { "" };
        let _ = writeln!(text, "  {mark}{finding}");
    }
    text
}
