//! Experiments that run in two ways: simulated, and by the real daemon on a device of the same rate.
//!
//! A trial is a set-up of a figure on one device: VMs, policies and loads in the paper's units, the intervals that are
//! measured, and the values that the paper prints. On a device of constant rate the simulated run and the real one use the
//! same numbers, [`SPEEDUP`] times as fast: rates, reservations and limits are multiplied, times divided, and counts of
//! requests are the paper's. Results are divided back, so that all columns are in the paper's units. Arms and platters do not
//! turn faster: where the device is a modelled drive, of which the real device has the completion times, nothing is compressed.
//!
//! Example: Fig. 5 has a limit of 400 IOPS and lasts 180 s. Both runs have a limit of 2400 IOPS and last 30 s. A VM that completes 60,000
//! requests from 70 to 120 s of the paper (8.3 s here) got 1200 IOPS in the paper's units.

use crate::figure::Figure;
use crate::figures::{flubber, mcfq, mclock};

mod device;
mod load;
mod trial;
mod values;

pub use device::{Device, Form};
pub use load::{Arrival, Load, MakeProgram, TrialVm};
pub use trial::{Parameters, Trial};
pub use values::{Quantity, Seen, Value};

pub mod nics;

/// How many times faster than the paper's both runs are on a device of constant rate.
pub const SPEEDUP: u32 = 6;
/// The same of storage nodes, of which there are several on this machine.
pub const SPEEDUP_OF_NODES: u32 = 2;
/// Part of the simulated value by which a real one may differ on a device of constant rate.
pub const TOLERANCE: f64 = 0.03;
/// The same on a modelled drive.
pub const TOLERANCE_DRIVE: f64 = 0.10;

/// A scheduler of the kernel. It has no simulated counterpart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KernelScheduler {
    /// BFQ with the VMs' weights.
    Bfq,
    /// blk-throttle, which limits each VM to what simulated mClock gives it in the last interval. Without reservations and weights this
    /// is the nearest that an administrator can set.
    Throttle,
}

impl KernelScheduler {
    pub const ALL: [KernelScheduler; 2] = [KernelScheduler::Bfq, KernelScheduler::Throttle];

    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            KernelScheduler::Bfq => "bfq",
            KernelScheduler::Throttle => "blk-throttle",
        }
    }
}

/// A figure with its trials.
pub struct RealFigure {
    pub figure: &'static Figure,
    /// Returns its trials.
    pub trials: fn() -> Vec<Trial>,
    /// What of the figure is not part of them, in a sentence; may be empty.
    pub without: &'static str,
}

impl RealFigure {
    const fn new(figure: &'static Figure, trials: fn() -> Vec<Trial>) -> Self {
        RealFigure { figure, trials, without: "" }
    }

    const fn without(self, without: &'static str) -> Self {
        RealFigure { without, ..self }
    }
}

/// Figures that run with guests. The last trial is one of mClock; the kernel's schedulers run on the same device with the same VMs.
pub const IN_GUESTS: &[RealFigure] = &[
    RealFigure::new(&mclock::reservations::FIGURE, mclock::reservations::guest_trials),
    RealFigure::new(&mclock::oltp::FIGURE, mclock::oltp::guest_trials),
];

/// How nodes differ from those of the figures.
const OF_NODES: &str = "On real I/O a node is not an array: it serves 16 requests at once, each for an exponentially distributed time of 10.6 ms in the mean, some 1500 \
    a second. The nodes are daemons in mode \"product\" that the VMs reach through a gateway, twice as fast as in the paper; each trial has five seeds.";

/// All figures that run on real I/O with clients of the daemon.
pub const ALL: &[RealFigure] = &[
    RealFigure::new(&mclock::allocation::FIGURE, mclock::allocation::trials),
    RealFigure::new(&mclock::interference::FIGURE, mclock::interference::trials)
        .without("On real I/O each interval is shorter than in the figure, and SFQ(D) and DM at 1 IOPS are not part of it."),
    RealFigure::new(&mclock::limits::FIGURE, mclock::limits::trials),
    RealFigure::new(&mclock::reservations::FIGURE, mclock::reservations::trials),
    RealFigure::new(&mclock::mixed::FIGURE, mclock::mixed::trials)
        .without("On real I/O one more VM starts every 15 s and not each minute, and under SFQ(D) all four start together."),
    RealFigure::new(&mclock::latency::FIGURE, mclock::latency::trials),
    RealFigure::new(&mclock::idle_credit::FIGURE, mclock::idle_credit::trials),
    RealFigure::new(&mclock::batching::FIGURE, mclock::batching::trials),
    RealFigure::new(&mclock::distributed::FIGURE, mclock::distributed::trials).without(OF_NODES),
    RealFigure::new(&mclock::distributed::SKEWED, mclock::distributed::skewed_trials).without(OF_NODES),
    RealFigure::new(&flubber::credits::FIGURE, flubber::credits::trials),
    RealFigure::new(&flubber::schedulers::FIGURE, flubber::schedulers::trials).without(
        "On real I/O the guests have no scheduler and no ring, as with noop: neither would hold back any of at most 16 requests of 38 KiB.",
    ),
    RealFigure::new(&flubber::backup::FIGURE, flubber::backup::trials).without(
        "On real I/O the guests have no scheduler and no ring, and an eighth of the VMs' work and a 32nd of the copy are done, so that the paper's times do not apply.",
    ),
    RealFigure::new(&mcfq::windows::FIGURE, mcfq::windows::trials)
        .without("On real I/O two minutes are measured and not ten, under CFQ and under MCFQ in mode \"window\" with the window of 10 s. \
             Plain CFQ has two rhythms on this drive: simulated, VM2 gets 85 IOPS if all VMs begin at once, and 140 if each begins 2 s after the one \
             before; MCFQ gives it the same both times. Real runs lie between the two, at 115 to 131. What holds them there is not known."),
];

/// Sets what the paper prints of the VMs in an interval, in the order of the VMs.
pub(crate) fn print(values: &mut [Value], part: usize, quantity: Quantity, printed: &[Option<f64>]) {
    for value in values.iter_mut().filter(|value| value.part == part && value.quantity == quantity) {
        value.paper = value.vm.and_then(|vm| printed.get(vm).copied()).flatten();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_trial_compares_values_of_its_vms_and_simulates_the_papers_rates() {
        for real in ALL.iter().chain(IN_GUESTS) {
            let trials = (real.trials)();
            assert!(!trials.is_empty(), "{}", real.figure.id);
            for trial in trials {
                let names: std::collections::BTreeSet<_> = trial.vms.iter().map(|vm| vm.name).collect();
                assert_eq!(names.len(), trial.vms.len(), "{}", trial.name);
                let exists =
                    |value: &Value| value.part < trial.parts.len() && value.vm.is_none_or(|vm| vm < trial.vms.len());
                assert!(!trial.values.is_empty() && trial.values.iter().all(exists), "{}", trial.name);
                // Shorter reads of a guest go through its page cache.
                let direct = |vm: &TrialVm| vm.load.length.is_multiple_of(4096);
                assert!(!trial.in_guests || trial.vms.iter().all(direct), "{}", trial.name);
                let Some(iops) = trial.iops() else { continue };
                let first = trial.vms.iter().filter(|vm| vm.start as usize <= trial.parts[0].0);
                let nodes = if first.clone().all(|vm| vm.node.is_some()) { 1 } else { trial.nodes.max(1) };
                let iops = iops * nodes as f64;
                let seen = trial.clone().shortened(10).simulate().unwrap();
                let all: f64 = seen[0].iter().map(|vm| vm.iops).sum();
                assert!((all / iops - 1.0).abs() < 0.06, "{}: {all}", trial.name);
            }
        }
    }

    #[test]
    fn work_that_is_waited_for_ends_in_the_simulated_run() {
        let trials = ALL.iter().flat_map(|real| (real.trials)()).filter(|trial| !trial.awaited().is_empty());
        let trials: Vec<Trial> = trials.collect();
        assert_eq!(trials.len(), 7, "Tables III and IV of Flubber");
        for trial in trials {
            // A fraction of the work ends in time as well.
            for trial in [trial.clone().shortened(5), trial] {
                let seen = trial.simulate().unwrap();
                let over = |value: &Value| value.of(&seen) > 0.0 && value.of(&seen) < 0.8 * trial.seconds() as f64;
                assert!(trial.values.iter().all(over), "{}: {seen:?}", trial.name);
            }
        }
    }

    #[test]
    fn a_limit_holds_from_its_second_on() {
        let fig_4 = ALL.iter().find(|real| real.figure.id == "mclock-interference").expect("it runs on real I/O");
        let trial = (fig_4.trials)().remove(0);
        let limits = |second| trial.at(second).vms.iter().map(|vm| vm.limit).collect::<Vec<_>>();
        assert_eq!((limits(24), limits(25)), (vec![0, 0, 0], vec![0, 0, 300]));
        let changed: Vec<u64> = (0..50).filter(|second| trial.is_changed_at(*second)).collect();
        assert_eq!((changed, trial.clone().shortened(5).vms[2].limit_from), (vec![25], 5));
        let seen = trial.simulate().unwrap();
        assert!(seen[0][2].iops > 600.0 && (299.0..301.0).contains(&seen[1][2].iops), "{seen:?}");
    }

    #[test]
    fn values_of_several_vms_are_sums_means_and_multiples() {
        let vm = |iops, latency_ms, seconds| Seen { iops, latency_ms, seconds };
        let seen = vec![vec![vm(300.0, 10.0, 7.0), vm(100.0, 50.0, f64::NAN)]];
        let value = |vm, quantity| Value { part: 0, vm, quantity, paper: None }.of(&seen);
        assert_eq!((value(None, Quantity::Iops), value(None, Quantity::Latency)), (400.0, 20.0));
        assert_eq!((value(Some(0), Quantity::Seconds), value(Some(0), Quantity::Ratio)), (7.0, 3.0));
        assert!(value(Some(1), Quantity::Seconds).is_nan(), "its work has no end");
        let trial = &(ALL[0].trials)()[0];
        assert!(!trial.is_near(Quantity::Seconds, f64::NAN, 7.0), "work that was not done is not near");
    }

    #[test]
    fn small_rates_are_compared_with_the_rate_of_the_device() {
        let trial = &(ALL[0].trials)()[0];
        assert_eq!(trial.iops(), Some(400.0));
        let near = |real, simulated| trial.is_near(Quantity::Iops, real, simulated);
        assert!(near(205.9, 200.0) && !near(206.1, 200.0) && near(1.9, 0.0) && !near(2.1, 0.0));
        assert!(!trial.is_near(Quantity::Latency, 1.0, 0.5), "latencies have no such bound");
    }

    /// The runs take an hour, so a description that changes is changed in the page by hand.
    #[test]
    fn the_pages_of_real_runs_described_figures_as_they_had_been() {
        let page = |name: &str| {
            let path = format!("{}/../../docs/papers/{name}.md", env!("CARGO_MANIFEST_DIR"));
            std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
        };
        let of_disks = |figures: &[RealFigure]| -> Vec<_> {
            figures.iter().flat_map(|real| [real.figure.setup, real.without]).collect()
        };
        let nics = nics::ALL.iter().map(|real| real.figure.setup);
        let said = [("real", of_disks(ALL)), ("real", nics.collect()), ("guests", of_disks(IN_GUESTS))];
        let lacks = |(name, said): &(&'static str, Vec<&'static str>)| {
            let text = page(name);
            said.iter().filter(|words| !text.contains(**words)).map(|words| (*name, *words)).collect::<Vec<_>>()
        };
        let lacking: Vec<_> = said.iter().flat_map(lacks).collect();
        assert!(lacking.is_empty(), "{lacking:#?}");
    }
}
