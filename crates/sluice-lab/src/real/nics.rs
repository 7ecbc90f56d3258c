//! Experiments with NICs that run in two ways: simulated, and by the real daemon with interfaces of the kernel.
//!
//! A trial is a set-up of a figure of the netback paper: VMs with their policies, the seconds in which each sends, and the system between
//! them and a link of 100 Mbit/s. Nothing is compressed: a second of a trial is a second of both runs. Limits and minimum rates are those of
//! frames, as in the paper's toolstack; results are rates of the data in the datagrams, as iperf prints them.
//!
//! The paper's system hands packets to a bridge whatever room the interface behind it has, and the interface's queue drops what it has
//! no room for (VII.A of the paper: a scheduler has to be modified so that packets are not dropped before they reach the wire). The
//! daemon does not do that: it takes a frame when the wire has room. So figures without weights run in two set-ups, [`System::Netback`]
//! and [`System::Waiting`].

use std::time::Duration;

use sluice_sched::Policy;

use crate::figure::{Figure, LabError};
use crate::figures::netback;

/// Payload of a datagram of one full frame.
pub const PAYLOAD: u32 = netback::PAYLOAD;
/// Rate of the link, in Mbit/s of the wire.
pub const LINK_MBIT: u64 = 100;
/// Rate at which each flow sends, in Mbit/s of data.
pub const FLOW_MBIT: u64 = 100;
/// Frames in the queue of the interface that drops what it has no room for.
pub const QUEUE_FRAMES: u32 = 1000;
/// Part of the simulated value by which a real one may differ.
const TOLERANCE: f64 = 0.03;
/// The same behind a queue that drops, where what a flow gets depends on the times of its datagrams.
const TOLERANCE_DROPPING: f64 = 0.10;
/// The same for small rates, in Mb/s: half a percent of the link.
const TOLERANCE_OF_LINK: f64 = 0.5;

/// The system between the VMs and the link.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum System {
    /// The paper's: netback on an interface that never makes it wait; a queue behind the bridge drops what it has no room for.
    Netback,
    /// The daemon as operators run it, with the same scheduler: it takes a frame when the link has room.
    Waiting,
    /// The paper's proposal, which takes no packet that has no room.
    Weighted(Weighted),
}

/// Parameters of weighted round robin.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Weighted {
    /// Unit in which weights divide the link.
    pub unit: &'static str,
    /// Time for which a NIC stays active after its last packet.
    pub delay: Duration,
    /// Whether the turn of an active NIC without packets is kept for it.
    pub hold: bool,
}

impl System {
    /// The paper's proposal as the figures run it.
    #[must_use]
    pub const fn weighted(unit: &'static str) -> System {
        System::Weighted(Weighted { unit, delay: Duration::from_millis(10), hold: false })
    }

    /// Name of the scheduler.
    #[must_use]
    pub fn scheduler(self) -> &'static str {
        match self {
            System::Netback | System::Waiting => "netback",
            System::Weighted(_) => "wrr",
        }
    }

    /// What it is, for the page.
    #[must_use]
    pub fn what(self) -> &'static str {
        match self {
            System::Netback => "netback, drop-tail queue behind it",
            System::Waiting => "netback, waits for room",
            System::Weighted(_) => "WRR, waits for room",
        }
    }
}

/// A VM of a trial.
#[derive(Debug, Clone, PartialEq)]
pub struct NicVm {
    pub name: &'static str,
    /// Number of flows, each at the rate of the link.
    pub flows: u32,
    /// When it sends: first second, and the one after the last.
    pub sends: Vec<(u64, u64)>,
    /// Weight in each second; the last one stays.
    pub weights: Vec<u32>,
    /// In Mb/s of frames; 0 is none.
    pub limit_mbit: u64,
    /// In Mb/s of frames; 0 is none.
    pub minimum_mbit: u64,
}

impl NicVm {
    /// A VM that sends one flow in these seconds.
    #[must_use]
    pub fn new(name: &'static str, sends: &[(u64, u64)]) -> NicVm {
        NicVm { name, flows: 1, sends: sends.to_vec(), weights: vec![1], limit_mbit: 0, minimum_mbit: 0 }
    }

    /// Its weight in a second.
    #[must_use]
    pub fn weight(&self, second: usize) -> u32 {
        self.weights.get(second).or(self.weights.last()).copied().unwrap_or(1)
    }

    /// Its policy in a second, in bytes of frames.
    #[must_use]
    pub fn policy(&self, second: usize) -> Policy {
        netback::real::policy(self.limit_mbit, self.minimum_mbit, self.weight(second))
    }
}

/// An experiment with NICs.
#[derive(Debug, Clone, PartialEq)]
pub struct NicTrial {
    /// Its name, which differs from those of the other trials of the figure.
    pub name: String,
    pub system: System,
    pub vms: Vec<NicVm>,
    /// Length in seconds.
    pub seconds: usize,
    /// Measured intervals: first second, and the one after the last. A VM that sends in all of one has a value.
    pub parts: Vec<(usize, usize)>,
    /// Whether the NICs are also connected over vhost-user-net.
    pub over_vhost: bool,
}

impl NicTrial {
    /// The measured values: indices of interval and VM.
    pub fn values(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        let of_part = move |part| (0..self.vms.len()).map(move |vm| (part, vm));
        (0..self.parts.len()).flat_map(of_part).filter(move |(part, vm)| self.sends(*part, *vm))
    }

    /// Whether a VM sends in an interval from its beginning to its end.
    fn sends(&self, part: usize, vm: usize) -> bool {
        let (first, end) = self.parts[part];
        self.vms[vm].sends.iter().any(|(from, to)| *from <= first as u64 && end as u64 <= *to)
    }

    /// Part of a simulated value by which a real one may differ.
    #[must_use]
    pub fn tolerance(&self) -> f64 {
        if self.system == System::Netback { TOLERANCE_DROPPING } else { TOLERANCE }
    }

    /// Whether a real value is near enough to the simulated one.
    #[must_use]
    pub fn is_near(&self, real: f64, simulated: f64) -> bool {
        (real - simulated).abs() <= (self.tolerance() * simulated).max(TOLERANCE_OF_LINK)
    }

    /// Mean of a VM's rates in an interval.
    #[must_use]
    pub fn mean(&self, rates: &[Vec<f64>], part: usize, vm: usize) -> f64 {
        let (from, to) = self.parts[part];
        rates[vm][from..to].iter().sum::<f64>() / (to - from) as f64
    }

    /// Simulates the trial; returns the rates of each VM by second, in Mb/s of data.
    ///
    /// # Errors
    /// An invalid device file, a policy that the gate rejects, or a violated invariant.
    pub fn simulate(&self) -> Result<Vec<Vec<f64>>, LabError> {
        netback::real::simulate(self)
    }
}

/// A figure with its trials.
pub struct NicFigure {
    pub figure: &'static Figure,
    /// Returns its trials; shortened ones for a quick run.
    pub trials: fn(quick: bool) -> Vec<NicTrial>,
}

/// All figures that run on real NICs.
pub const ALL: &[NicFigure] = &[
    NicFigure { figure: &netback::rates::FIGURE, trials: netback::real::rates },
    NicFigure { figure: &netback::two_rates::FIGURE, trials: netback::real::two_rates },
    NicFigure { figure: &netback::unlimited::FIGURE, trials: netback::real::unlimited },
    NicFigure { figure: &netback::activity::FIGURE, trials: netback::real::activity },
    NicFigure { figure: &netback::priorities::FIGURE, trials: netback::real::priorities },
    NicFigure { figure: &netback::minimum::FIGURE, trials: netback::real::minimum },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_trial_has_values_of_vms_that_send_and_simulates() {
        for NicFigure { figure, trials } in ALL {
            for quick in [false, true] {
                let trials = trials(quick);
                let names: std::collections::BTreeSet<_> = trials.iter().map(|trial| &trial.name).collect();
                assert_eq!(names.len(), trials.len(), "{}", figure.id);
                for trial in trials {
                    assert!(trial.values().count() > 0, "{}", trial.name);
                    assert!(trial.parts.iter().all(|(from, to)| from < to && *to <= trial.seconds), "{}", trial.name);
                    let within = |(from, to): &(u64, u64)| from < to && *to <= trial.seconds as u64;
                    assert!(trial.vms.iter().all(|vm| vm.sends.iter().all(within)), "{}", trial.name);
                    if quick {
                        let rates = trial.simulate().unwrap();
                        let sum: f64 = (0..trial.vms.len()).map(|vm| rates[vm][trial.seconds - 1]).sum();
                        assert!((40.0..98.0).contains(&sum), "{}: {sum}", trial.name);
                    }
                }
            }
        }
    }

    #[test]
    fn all_of_netback_runs_in_less_than_six_minutes() {
        let trials = || ALL.iter().flat_map(|figure| (figure.trials)(false));
        let seconds: usize =
            trials().map(|trial| if trial.over_vhost { 2 * trial.seconds } else { trial.seconds }).sum();
        assert!(seconds + 2 * trials().count() < 360, "{seconds} s");
    }

    #[test]
    fn small_rates_are_compared_with_the_rate_of_the_link() {
        let trial = (ALL[0].trials)(true).remove(0);
        let waiting = NicTrial { system: System::Waiting, ..trial.clone() };
        assert!(trial.is_near(87.0, 95.7) && !waiting.is_near(87.0, 95.7));
        assert!(waiting.is_near(3.5, 3.1) && !waiting.is_near(3.7, 3.1));
    }
}
