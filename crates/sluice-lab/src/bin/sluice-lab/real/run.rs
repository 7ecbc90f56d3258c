//! Results of a real run, and which of its windows count.
//!
//! A window is a second of the paper. If the machine paused in it, it describes the machine and is left out, and so is the next one, in which
//! the device catches up. A run in which at least half of the windows of an interval were left out is repeated once, and the run with
//! fewer of them counts. If that is not enough, all windows of such an interval count. Only pauses decide this, never what was
//! measured, and each value states the part of its windows in which the machine paused.
//!
//! Example: an interval has 50 windows, and the machine paused in the third and the ninth. The fourth and the tenth are left out as well, 46
//! count, and the value has 8 % of paused windows.

use std::time::Duration;

use sluice_lab::real::{Seen, Trial};

use sluice_daemon::failure::Failure;

/// Maximum number of repetitions of a run.
const REPEATS_MAX: usize = 1;

/// The requests of a VM in a window.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Sample {
    pub(super) seconds: f64,
    pub(super) requests: f64,
    /// Sum of their latencies.
    pub(super) total_ms: f64,
}

/// A window with the requests of each VM.
#[derive(Debug, Clone)]
pub(super) struct Window {
    pub(super) samples: Vec<Sample>,
    /// Length of the machine's pauses.
    pub(super) pause: Duration,
}

/// Results of a real run, of a kind for each kind of trial.
#[derive(Debug)]
pub(super) struct Run<S> {
    /// By interval and VM, in the paper's units.
    pub(super) seen: Vec<Vec<S>>,
    /// Percent of the windows that are left out, by interval.
    pub(super) paused_percent: Vec<f64>,
    /// Rate of each VM in each window, in the paper's units.
    pub(super) series: Vec<Vec<f64>>,
    pub(super) windows: usize,
    pub(super) left_out: usize,
    pub(super) repeats: usize,
}

impl Run<Seen> {
    /// `ended` is when the work of each VM was done; empty if it has no end.
    pub(super) fn of(trial: &Trial, windows: &[Window], ended: &[Option<Duration>]) -> Self {
        let counting = Counting::of(&windows.iter().map(|window| window.pause).collect::<Vec<_>>());
        // A run whose work is done ends before the time that it has at most.
        let parts: Vec<_> = trial.parts.iter().map(|(from, to)| (*from, windows.len().min(*to))).collect();
        let series = |window: &Window| window.samples.iter().map(|sample| seen(trial, &[*sample]).iops).collect();
        let of_part = |part: &(usize, usize)| {
            let counted = counting.counted(*part);
            let of_vm = |vm: usize| {
                let samples: Vec<Sample> = counted.iter().map(|number| windows[*number].samples[vm]).collect();
                let seconds = ended.get(vm).copied().flatten().map_or(f64::NAN, |time| time.as_secs_f64());
                Seen { seconds: seconds * f64::from(trial.speedup()), ..seen(trial, &samples) }
            };
            (0..trial.vms.len()).map(of_vm).collect()
        };
        let seen = parts.iter().map(of_part).collect();
        Run::counted(&counting, &parts, seen, windows.iter().map(series).collect())
    }
}

impl<S> Run<S> {
    /// A run with these results of intervals and these rates of windows.
    pub(super) fn counted(
        counting: &Counting,
        parts: &[(usize, usize)],
        seen: Vec<Vec<S>>,
        series: Vec<Vec<f64>>,
    ) -> Self {
        Run {
            seen,
            paused_percent: parts.iter().map(|part| counting.percent(*part)).collect(),
            windows: series.len(),
            left_out: counting.left_out((0, series.len())),
            series,
            repeats: 0,
        }
    }

    /// Whether more than half of the windows of each interval count.
    fn is_enough(&self) -> bool {
        self.paused_percent.iter().all(|percent| *percent < 50.0)
    }
}

/// Which windows count: those without a pause of the machine in them or in the one before.
#[derive(Debug)]
pub(super) struct Counting(Vec<bool>);

impl Counting {
    pub(super) fn of(pauses: &[Duration]) -> Self {
        let paused = |number: usize| !pauses[number].is_zero();
        Counting((0..pauses.len()).map(|number| !paused(number) && (number == 0 || !paused(number - 1))).collect())
    }

    fn left_out(&self, (from, to): (usize, usize)) -> usize {
        self.0[from..to].iter().filter(|counts| !**counts).count()
    }

    fn percent(&self, part: (usize, usize)) -> f64 {
        100.0 * self.left_out(part) as f64 / (part.1 - part.0) as f64
    }

    /// The windows of an interval that count: all if half of them or more are left out.
    pub(super) fn counted(&self, (from, to): (usize, usize)) -> Vec<usize> {
        let all = 2 * self.left_out((from, to)) >= to - from;
        (from..to).filter(|number| all || self.0[*number]).collect()
    }
}

/// Runs `measure`, and once more if the machine paused too much.
pub(super) async fn repeated<S>(measure: impl AsyncFn() -> Result<Run<S>, Failure>) -> Result<Run<S>, Failure> {
    let mut best = measure().await?;
    for repeats in 1..=REPEATS_MAX {
        if best.is_enough() {
            break;
        }
        let next = measure().await?;
        if next.left_out < best.left_out {
            best = next;
        }
        best.repeats = repeats;
    }
    Ok(best)
}

/// Returns several windows of a VM together, in the paper's units.
fn seen(trial: &Trial, samples: &[Sample]) -> Seen {
    let sum = |of: fn(&Sample) -> f64| samples.iter().map(of).sum::<f64>();
    let (seconds, requests) = (sum(|sample| sample.seconds), sum(|sample| sample.requests));
    let ratio = |of: f64, to: f64| if to > 0.0 { of / to } else { 0.0 };
    let times = f64::from(trial.speedup());
    Seen {
        iops: ratio(requests, seconds) / times,
        latency_ms: ratio(sum(|sample| sample.total_ms), requests) * times,
        seconds: f64::NAN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Windows of a second with this number of requests of 2 ms each, and a pause of the machine in some of them.
    fn windows(requests: &[f64], paused: &[usize]) -> Vec<Window> {
        let window = |(number, requests): (usize, &f64)| Window {
            samples: vec![Sample { seconds: 1.0, requests: *requests, total_ms: 2.0 * requests }; 3],
            pause: Duration::from_millis(if paused.contains(&number) { 300 } else { 0 }),
        };
        requests.iter().enumerate().map(window).collect()
    }

    fn trial() -> Trial {
        let trial = (sluice_lab::real::IN_GUESTS[0].trials)().remove(0);
        Trial { parts: vec![(0, 4), (4, 8)], ..trial }
    }

    #[test]
    fn a_window_with_a_pause_and_the_next_one_do_not_count() {
        let run = Run::of(&trial(), &windows(&[100.0, 10.0, 190.0, 100.0, 50.0, 50.0, 50.0, 50.0], &[1]), &[]);
        assert_eq!((run.windows, run.left_out, &run.paused_percent), (8, 2, &vec![50.0, 0.0]));
        let iops = |run: &Run<Seen>, part: usize| run.seen[part][2].iops;
        assert_eq!((iops(&run, 0), iops(&run, 1)), (100.0, 50.0), "half were left out, so all count");
        let late = Run::of(&trial(), &windows(&[100.0, 100.0, 100.0, 10.0, 90.0, 50.0, 50.0, 50.0], &[3]), &[]);
        assert_eq!((iops(&late, 0), iops(&late, 1)), (100.0, 50.0));
        assert_eq!((late.seen[0][0].latency_ms, &late.paused_percent), (2.0, &vec![25.0, 25.0]));
        assert_eq!(late.series[3], [10.0; 3], "the chart shows all windows");
    }

    #[test]
    fn a_run_with_too_many_pauses_is_repeated_once_and_the_better_one_counts() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let after = |paused: &[&'static [usize]]| {
            let mut left = paused.to_vec();
            left.reverse();
            let left = std::cell::RefCell::new(left);
            runtime.block_on(repeated(async || {
                let paused = left.borrow_mut().pop().expect("it is repeated at most once");
                Ok(Run::of(&trial(), &windows(&[1.0; 8], paused), &[]))
            }))
        };
        for (paused, left_out, repeats) in [
            (&[&[3][..]][..], 2, 0),
            (&[&[0, 1, 2], &[6]], 2, 1),
            (&[&[0, 2], &[0, 2, 4]], 4, 1),
            (&[&[0, 2, 4], &[0, 2]], 4, 1),
        ] {
            let run = after(paused).ok().expect("no run fails");
            assert_eq!((run.left_out, run.repeats), (left_out, repeats), "{paused:?}");
        }
    }
}
