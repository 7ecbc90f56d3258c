//! The manager of time slices: compares observed bandwidth with weights.
//!
//! At the end of every sample, the bytes that each VM completed are recorded. The reference is the VM of the smallest
//! weight among those that were busy. For each other VM the ideal proportion is its weight divided by the reference's,
//! and the correction is the ideal divided by the observed proportion. A correction above 1 means that the VM gets too
//! little.
//!
//! Example: weights 100 and 10, bandwidths 60 and 10 MiB/s. The ideal proportion is 10, the observed one 6, and the
//! correction 10/6 = 1.67.

use std::collections::VecDeque;

use crate::mcfq::{Mode, Params};
use sluice_sched::time::Instant;

/// 1 as a multiplier or a correction.
pub(super) const ONE: u64 = 1 << 16;
/// Multipliers are limited to a tenth and ten.
// rule: mcfq.t7
const MULTIPLIERS: (u64, u64) = (ONE / 10, ONE * 10);

/// A sample of one VM.
#[derive(Debug, Clone, Copy, Default)]
struct Sample {
    bytes: u64,
    /// Nanoseconds in which it had requests.
    busy: u64,
}

#[derive(Debug, Clone)]
struct Vm {
    weight: u64,
    /// Order in which VMs were added.
    came: u64,
    outstanding: u32,
    since: Instant,
    current: Sample,
    samples: VecDeque<Sample>,
    corrections: VecDeque<u64>,
    multiplier: u64,
}

#[derive(Debug)]
pub(super) struct Manager {
    mode: Mode,
    window: usize,
    interval: u64,
    gain: u64,
    vms: Vec<Option<Vm>>,
    came: u64,
    closed: u64,
}

fn push<T>(list: &mut VecDeque<T>, value: T, most: usize) {
    if list.len() == most {
        list.pop_front();
    }
    list.push_back(value);
}

impl Vm {
    fn bytes(&self) -> u64 {
        self.samples.iter().map(|sample| sample.bytes).sum()
    }

    /// Whether the VM had requests for at least half of the time and completed some. The time is the observed one, but
    /// at least `least` samples.
    // rule: mcfq.t5
    fn worked(&self, interval: u64, least: usize) -> bool {
        let busy: u64 = self.samples.iter().map(|sample| sample.busy).sum();
        self.bytes() > 0 && 2 * busy >= interval * self.samples.len().max(least) as u64
    }

    fn pause(&mut self, now: Instant) {
        if self.outstanding > 0 {
            self.current.busy += now.nanos_since(self.since);
        }
        self.since = now;
    }
}

impl Manager {
    pub(super) fn new(params: &Params) -> Manager {
        Manager {
            mode: params.mode,
            window: params.window as usize,
            interval: params.interval.as_nanos() as u64,
            gain: u64::from(params.gain),
            vms: Vec::new(),
            came: 0,
            closed: 0,
        }
    }

    pub(super) fn window(&self) -> u64 {
        self.window as u64
    }

    fn vm(&mut self, owner: u32) -> Option<&mut Vm> {
        self.vms.get_mut(owner as usize)?.as_mut()
    }

    /// Number of samples of which a VM must have been busy in half. A correction that is applied once stands for a
    /// whole window; corrections of every second start with the first one.
    fn least(&self) -> usize {
        if self.mode == Mode::Window { self.window } else { 1 }
    }

    pub(super) fn set(&mut self, owner: u32, weight: u64) {
        if let Some(vm) = self.vm(owner) {
            if std::mem::replace(&mut vm.weight, weight) != weight {
                self.forget();
            }
            return;
        }
        let index = owner as usize;
        if self.vms.len() <= index {
            self.vms.resize(index + 1, None);
        }
        self.came += 1;
        self.vms[index] = Some(Vm {
            weight,
            came: self.came,
            outstanding: 0,
            since: Instant::ZERO,
            current: Sample::default(),
            // Allocated in full, so that it never grows.
            samples: VecDeque::with_capacity(self.window),
            corrections: VecDeque::with_capacity(self.window),
            multiplier: ONE,
        });
    }

    /// Discards observations under former weights: compared with the new ones they would look like an error as large as
    /// the change. A window starts.
    fn forget(&mut self) {
        self.closed = 0;
        for vm in self.vms.iter_mut().flatten() {
            vm.samples.clear();
            vm.corrections.clear();
            vm.current = Sample::default();
        }
    }

    pub(super) fn remove(&mut self, owner: u32) {
        self.vms[owner as usize] = None;
    }

    pub(super) fn came(&mut self, now: Instant, owner: u32) {
        if let Some(vm) = self.vm(owner) {
            vm.pause(now);
            vm.outstanding += 1;
        }
    }

    pub(super) fn went(&mut self, now: Instant, owner: u32, bytes: u64) {
        if let Some(vm) = self.vm(owner) {
            vm.pause(now);
            vm.outstanding = vm.outstanding.saturating_sub(1);
            vm.current.bytes += bytes;
        }
    }

    /// Ends a sample at `end`.
    // rule: mcfq.observed, mcfq.window-samples
    pub(super) fn close(&mut self, end: Instant) {
        let window = self.window;
        for vm in self.vms.iter_mut().flatten() {
            vm.pause(end);
            let mut sample = std::mem::take(&mut vm.current);
            sample.busy = sample.busy.min(self.interval);
            push(&mut vm.samples, sample, window);
        }
        self.closed += 1;
        if self.mode != Mode::Window || self.closed.is_multiple_of(window as u64) {
            self.correct();
        }
    }

    /// The reference: of the VMs that were busy the one of smallest weight, and of these the oldest. Returns its
    /// position, its weight, and its bytes with the number of samples.
    // rule: mcfq.roles, mcfq.t6
    fn reference(&self) -> Option<(u64, u64, (u64, u64))> {
        let worked = self.vms.iter().flatten().filter(|vm| vm.worked(self.interval, self.least()));
        let least = worked.min_by_key(|vm| (vm.weight, vm.came))?;
        Some((least.came, least.weight, (least.bytes(), least.samples.len() as u64)))
    }

    // rule: mcfq.ideal, mcfq.correction, mcfq.t1, mcfq.t3, mcfq.t5, mcfq.sign, mcfq.fixed-point, mcfq.scaling
    // rule: mcfq.converges, mcfq.limit-cycles, mcfq.base-half
    fn correct(&mut self) {
        let Some((reference, weight, (bytes, samples))) = self.reference() else { return };
        // The part of a correction that is applied: at 15 %, 2.0 multiplies a slice by 1.15.
        let gain = self.gain;
        let damped = |correction: u64| (ONE * (100 - gain) + correction * gain) / 100;
        let (mode, window, interval, shortest) = (self.mode, self.window, self.interval, self.least());
        for vm in self.vms.iter_mut().flatten() {
            if vm.came == reference || !vm.worked(interval, shortest) {
                continue;
            }
            // Rounded only at the end, so the unit of bandwidth does not matter.
            let ideal = u128::from(vm.weight) * u128::from(ONE) * u128::from(bytes) * vm.samples.len() as u128;
            let correction = ideal / (u128::from(weight.max(1)) * u128::from(vm.bytes()) * u128::from(samples));
            let correction = u64::try_from(correction).unwrap_or(u64::MAX).clamp(ONE >> 12, ONE << 12);
            push(&mut vm.corrections, correction, window);
            let mean = vm.corrections.iter().sum::<u64>() / vm.corrections.len() as u64;
            let wanted = match mode {
                Mode::Window => vm.multiplier * damped(correction) / ONE,
                Mode::Paper => vm.multiplier * damped(mean) / ONE,
                Mode::Base => mean,
            };
            vm.multiplier = wanted.clamp(MULTIPLIERS.0, MULTIPLIERS.1);
        }
    }

    /// Calls `each` with the multiplier of each VM's slices.
    pub(super) fn multipliers(&self, mut each: impl FnMut(u32, u64)) {
        for (owner, vm) in (0u32..).zip(&self.vms) {
            if let Some(vm) = vm {
                each(owner, vm.multiplier);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;

    /// VMs of these weights with a manager, and a plant in which bandwidth follows the multipliers: VM i gets
    /// `natural[i]` times its weight times its multiplier to the power of `gain`. Returns the multipliers after each
    /// second.
    struct Plant {
        manager: Manager,
        weights: Vec<u64>,
        natural: Vec<f64>,
        gain: f64,
        now: Instant,
        scale: u64,
    }

    impl Plant {
        fn new(mode: Mode, window: u32, weights: &[u64], natural: &[f64], gain: f64) -> Plant {
            let mut manager = Manager::new(&Params { mode, window, ..Params::default() });
            (0u32..).zip(weights).for_each(|(owner, weight)| manager.set(owner, *weight));
            let (weights, natural) = (weights.to_vec(), natural.to_vec());
            Plant { manager, weights, natural, gain, now: Instant::ZERO, scale: 1 }
        }

        fn multipliers(&self) -> Vec<f64> {
            let mut all = Vec::new();
            self.manager.multipliers(|_, multiplier| all.push(multiplier as f64 / ONE as f64));
            all
        }

        /// Bandwidth of each VM divided by its weight: 1 is ideal.
        fn observed(&self) -> Vec<f64> {
            let natural = self.natural.iter().zip(self.multipliers());
            natural.map(|(natural, multiplier)| natural * multiplier.powf(self.gain)).collect()
        }

        fn second(&mut self) -> Vec<f64> {
            let bandwidth: Vec<f64> = self.observed().iter().zip(&self.weights).map(|(o, w)| o * *w as f64).collect();
            (0u32..).zip(&bandwidth).for_each(|(owner, _)| self.manager.came(self.now, owner));
            self.now = self.now + Duration::from_secs(1);
            for (owner, bandwidth) in (0u32..).zip(bandwidth) {
                self.manager.went(self.now, owner, (bandwidth * 1e6) as u64 * self.scale);
            }
            self.manager.close(self.now);
            self.multipliers()
        }

        fn seconds(&mut self, seconds: usize) -> Vec<Vec<f64>> {
            (0..seconds).map(|_| self.second()).collect()
        }
    }

    const MODES: [Mode; 3] = [Mode::Window, Mode::Paper, Mode::Base];

    /// rule: mcfq.fixed-point, mcfq.ideal, mcfq.roles
    #[test]
    fn ideal_bandwidths_change_no_multiplier() {
        for mode in MODES {
            let mut plant = Plant::new(mode, 10, &[1000, 700, 400, 100], &[1.0; 4], 1.0);
            for multipliers in plant.seconds(100) {
                assert!(multipliers.iter().all(|m| (m - 1.0).abs() < 0.001), "{mode:?}: {multipliers:?}");
            }
        }
    }

    #[test]
    fn a_gain_applies_a_part_of_a_correction() {
        // VM 0 gets half of its due: the correction is 2.
        for (mode, gain, due) in [(Mode::Window, 15, 1.15), (Mode::Paper, 15, 1.15), (Mode::Window, 100, 2.0)] {
            let mut plant = Plant::new(mode, 1, &[1000, 100], &[0.5, 1.0], 1.0);
            plant.manager.gain = gain;
            let after = plant.second();
            assert!((after[0] - due).abs() < 0.01, "{mode:?}, gain {gain}: {after:?}");
        }
    }

    /// rule: mcfq.sign, mcfq.correction, mcfq.apply, mcfq.t1
    #[test]
    fn a_vm_that_gets_too_little_gets_longer_slices() {
        for mode in MODES {
            let mut plant = Plant::new(mode, 5, &[1000, 400, 100], &[0.5, 2.0, 1.0], 1.0);
            let after = plant.seconds(5).pop().unwrap();
            assert!(after[0] > 1.2 && after[1] < 0.8, "{mode:?}: {after:?}");
            assert_eq!(after[2], 1.0, "the reference is never corrected");
        }
    }

    /// rule: mcfq.converges, mcfq.t2, mcfq.t9
    #[test]
    fn corrections_per_window_converge_in_two_windows() {
        for window in [1, 3, 10, 20] {
            for gain in [0.5, 0.8, 1.0, 1.2, 1.5] {
                let mut plant = Plant::new(Mode::Window, window, &[1000, 100], &[0.5, 1.0], gain);
                plant.seconds(2 * window as usize);
                let error = plant.observed()[0].ln().abs();
                let due = 0.5f64.ln().abs() * (1.0 - gain).abs().powi(2);
                assert!(error <= due + 0.01, "window {window}, gain {gain}: {error} of {due}");
            }
        }
        // Not in between: the first window has to end.
        let mut plant = Plant::new(Mode::Window, 10, &[1000, 100], &[0.5, 1.0], 1.0);
        assert!(plant.seconds(9).iter().all(|m| m[0] == 1.0));
        assert!((plant.second()[0] - 2.0).abs() < 0.01);
    }

    /// rule: mcfq.converges
    #[test]
    fn corrections_per_window_converge_if_twice_the_slice_gives_less_than_four_times_the_bandwidth() {
        // An error is multiplied by 1 - gain in each window, so from gain 2 on it does not shrink.
        let error = |gain: f64| {
            let mut plant = Plant::new(Mode::Window, 3, &[1000, 100], &[0.8, 1.0], gain);
            plant.seconds(3 * 60);
            plant.observed()[0].ln().abs()
        };
        assert!(error(1.5) <= 0.001 && error(1.9) <= 0.01, "{} and {}", error(1.5), error(1.9));
        assert!(error(2.0) >= 0.2, "it swings: {}", error(2.0));
    }

    /// rule: mcfq.limit-cycles, mcfq.t3, mcfq.t7, mcfq.observed, mcfq.window-samples
    #[test]
    fn the_published_form_oscillates_between_its_bounds() {
        for window in [3, 5, 10, 20] {
            let mut plant = Plant::new(Mode::Paper, window, &[1000, 100], &[0.8, 1.0], 1.0);
            let late: Vec<f64> = plant.seconds(2000)[1000..].iter().map(|m| m[0]).collect();
            let (low, high) = late.iter().fold((f64::MAX, 0.0f64), |(l, h), m| (l.min(*m), h.max(*m)));
            assert!(high / low > 3.0, "window {window}: between {low} and {high}");
            assert!(low >= 0.0999 && high <= 10.0, "the bounds hold: {low} {high}");
        }
        let mut plant = Plant::new(Mode::Paper, 2, &[1000, 100], &[0.8, 1.0], 1.0);
        let last = plant.seconds(300).pop().unwrap();
        assert!((last[0] - 1.25).abs() < 0.02, "with a window of two it settles: {last:?}");
    }

    /// rule: mcfq.base-half, mcfq.t2
    #[test]
    fn corrections_from_the_base_slice_leave_half_of_the_error() {
        for window in [3, 10] {
            let mut plant = Plant::new(Mode::Base, window, &[1000, 100], &[0.5, 1.0], 1.0);
            plant.seconds(1000);
            let observed = plant.observed()[0];
            assert!((observed - 0.707).abs() < 0.02, "window {window}: {observed}");
        }
    }

    /// rule: mcfq.scaling
    #[test]
    fn multipliers_do_not_depend_on_the_unit_of_bandwidth_or_the_order_of_vms() {
        for mode in MODES {
            let run = |scale: u64, natural: &[f64]| {
                let mut plant = Plant::new(mode, 4, &[1000, 400, 400, 100], natural, 1.0);
                plant.scale = scale;
                plant.seconds(50)
            };
            let before = run(1, &[0.7, 1.4, 0.9, 1.0]);
            for scale in [2, 1000, 1 << 20] {
                assert_eq!(run(scale, &[0.7, 1.4, 0.9, 1.0]), before, "{mode:?} x {scale}");
            }
            let swapped = run(1, &[0.7, 0.9, 1.4, 1.0]);
            let expected: Vec<Vec<f64>> = before.iter().map(|m| vec![m[0], m[2], m[1], m[3]]).collect();
            assert_eq!(swapped, expected, "{mode:?}: two VMs of one weight change places");
        }
    }

    /// rule: mcfq.t5, mcfq.t6
    #[test]
    fn an_idle_vm_is_neither_corrected_nor_the_reference() {
        let mut manager = Manager::new(&Params { window: 2, ..Params::default() });
        [100, 100, 400, 50].into_iter().enumerate().for_each(|(owner, weight)| manager.set(owner as u32, weight));
        let mut now = Instant::ZERO;
        for _ in 0..2 {
            // 0 and 1 are busy, 2 is busy a third of the time, 3 (of the smallest weight) not at all.
            [0, 1].into_iter().for_each(|owner| manager.came(now, owner));
            let end = now + Duration::from_secs(1);
            manager.came(now + Duration::from_millis(666), 2);
            now = end;
            for (owner, bytes) in [(0, 1000), (1, 500), (2, 100)] {
                manager.went(now, owner, bytes);
            }
            manager.close(now);
        }
        let mut after = Vec::new();
        manager.multipliers(|_, multiplier| after.push(multiplier));
        assert_eq!(after, [ONE, 2 * ONE, ONE, ONE], "of two equals the older one is the reference");
    }

    /// rule: mcfq.t5
    #[test]
    fn a_vm_that_joined_late_in_a_window_is_not_corrected_at_its_end() {
        for (mode, corrected) in [(Mode::Window, false), (Mode::Paper, true), (Mode::Base, true)] {
            let mut plant = Plant::new(mode, 10, &[400, 100], &[1.0, 1.0], 1.0);
            plant.seconds(6);
            plant.manager.set(2, 100);
            (plant.weights, plant.natural) = (vec![400, 100, 100], vec![1.0, 1.0, 0.5]);
            let after = plant.seconds(4).pop().unwrap();
            assert_eq!((after[2] - 1.0).abs() > 0.1, corrected, "{mode:?}: {after:?}");
            assert!((after[0] - 1.0).abs() < 0.001, "{mode:?}: {after:?}");
        }
        // The first window of the VM is the one in which it is present for half of the time.
        let mut plant = Plant::new(Mode::Window, 10, &[400, 100], &[1.0, 1.0], 1.0);
        plant.seconds(5);
        plant.manager.set(2, 100);
        (plant.weights, plant.natural) = (vec![400, 100, 100], vec![1.0, 1.0, 0.5]);
        assert!((plant.seconds(5).pop().unwrap()[2] - 2.0).abs() < 0.01);
    }

    /// rule: mcfq.fixed-point, mcfq.t5
    #[test]
    fn a_new_weight_is_not_compared_with_older_observations() {
        for mode in MODES {
            let mut plant = Plant::new(mode, 10, &[100, 100], &[1.0, 1.0], 1.0);
            plant.seconds(18);
            plant.manager.set(0, 1000);
            plant.weights = vec![1000, 100];
            for multipliers in plant.seconds(30) {
                assert!(multipliers.iter().all(|m| (m - 1.0).abs() < 0.001), "{mode:?}: {multipliers:?}");
            }
        }
    }
}
