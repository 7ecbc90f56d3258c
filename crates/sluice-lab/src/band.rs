//! The points at which a figure is run, and the source of all random numbers of a run.
//!
//! The *range* is the nominal point and 20 samples of the device's parameters and of the axes (facts that the paper does not
//! state), as a Latin hypercube; each is run with five seeds. A *sweep* runs the nominal device at every value of an
//! axis, with the same five seeds, and shows what depends on it.

use sluice_sim::random::{Stream, stream};

use crate::claims::{self, Axis};

/// Points of the range in addition to the nominal one.
pub const POINTS: u32 = 20;
/// Seeds at each point.
pub const SEEDS: u64 = 5;
/// Relative range of each parameter on both sides.
const WIDTH: f64 = 0.3;

/// One point of the range or of a sweep, with a seed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct BandPoint {
    /// The nominal point is number 0.
    point: u32,
    seed: u64,
    /// Index of an axis and of its value, for a point of a sweep.
    sweep: Option<(usize, usize)>,
}

impl BandPoint {
    /// The device as in its file, all axes nominal, the first seed.
    pub const NOMINAL: BandPoint = BandPoint { point: 0, seed: 1, sweep: None };

    /// The nominal point with another seed.
    #[must_use]
    pub const fn of_seed(seed: u64) -> BandPoint {
        BandPoint { point: 0, seed, sweep: None }
    }

    /// All points of the range with all seeds, the nominal one first.
    pub fn band() -> impl Iterator<Item = BandPoint> {
        (0..=POINTS).flat_map(|point| (1..=SEEDS).map(move |seed| BandPoint { point, seed, sweep: None }))
    }

    /// All points of a figure: its range, then a sweep of each of its axes.
    pub fn all(figure: &str) -> impl Iterator<Item = BandPoint> {
        let axes = claims::axes().iter().enumerate();
        let of_figure = axes.filter(move |(_, axis)| axis.figures.iter().any(|name| name == figure));
        let settings = of_figure.flat_map(|(axis, of)| (0..of.values.len()).map(move |value| (axis, value)));
        let sweeps = settings
            .flat_map(|setting| (1..=SEEDS).map(move |seed| BandPoint { point: 0, seed, sweep: Some(setting) }));
        BandPoint::band().chain(sweeps)
    }

    /// Number of the point in the range; 0 is the nominal one.
    #[must_use]
    pub fn number(self) -> u32 {
        self.point
    }

    /// Whether this is the run that is shown: the device as in its file, all axes nominal, the first seed.
    #[must_use]
    pub fn is_nominal(self) -> bool {
        self == BandPoint::NOMINAL
    }

    /// Whether the point belongs to the sweep of an axis.
    #[must_use]
    pub fn is_sweep(self) -> bool {
        self.sweep.is_some()
    }

    /// The axis and the value of a point of a sweep.
    #[must_use]
    pub fn swept(self) -> Option<(&'static str, f64)> {
        let (axis, value) = self.sweep?;
        let axis = &claims::axes()[axis];
        Some((&axis.name, axis.values[value]))
    }

    /// The point whose runs are also those of this one: a sweep passes through the nominal point at the nominal value of its axis.
    #[must_use]
    pub fn same_run(self) -> BandPoint {
        let is_nominal = self.sweep.is_some_and(|(axis, value)| {
            let axis = &claims::axes()[axis];
            axis.values[value] == axis.nominal
        });
        if is_nominal { BandPoint { sweep: None, ..self } } else { self }
    }

    /// Name of its file of results.
    #[must_use]
    pub fn file_name(self) -> String {
        match self.swept() {
            Some((axis, value)) => format!("{axis}-{value}-{}", self.seed),
            None => format!("{:02}-{}", self.point, self.seed),
        }
    }

    /// Name of the point, whatever its seed.
    #[must_use]
    pub fn without_seed(self) -> String {
        BandPoint { seed: 0, ..self }.file_name()
    }

    /// Seed of its runs.
    #[must_use]
    pub fn seed(self) -> u64 {
        self.seed
    }

    /// A stream of random numbers for the component `name`.
    #[must_use]
    pub fn stream(self, name: &str) -> Stream {
        stream(self.seed(), name)
    }

    /// Factor of the device parameter `name`: 1 at the nominal point, otherwise from 0.7 to 1.3.
    #[must_use]
    pub fn factor(self, name: &str) -> f64 {
        self.quantile(name).map_or(1.0, |part| 1.0 - WIDTH + 2.0 * WIDTH * part)
    }

    /// Value of the axis `name`, in its unit.
    ///
    /// # Panics
    /// If no axis has this name.
    #[must_use]
    pub fn setting(self, name: &str) -> f64 {
        let axis: &Axis = claims::axes().iter().find(|axis| axis.name == name).expect("figures name axes that exist");
        match (self.swept(), self.quantile(name)) {
            (Some((swept, value)), _) if swept == name => value,
            (_, Some(part)) => axis.values[(part * axis.values.len() as f64) as usize],
            _ => axis.nominal,
        }
    }

    /// Position in the range of the parameter `name`, from 0 to 1; `None` at the nominal point.
    fn quantile(self, name: &str) -> Option<f64> {
        if self.point == 0 {
            return None;
        }
        // A Latin hypercube: each twentieth of a parameter's range once, in a separate order.
        let mut random = stream(0, &format!("band/{name}"));
        let mut order: Vec<u32> = (0..POINTS).collect();
        for last in (1..order.len()).rev() {
            order.swap(last, random.below(last as u64 + 1) as usize);
        }
        Some((f64::from(order[self.point as usize - 1]) + 0.5) / f64::from(POINTS))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_band_extends_to_both_sides_with_five_seeds_at_each_point() {
        let factors: Vec<f64> = BandPoint::band().map(|point| point.factor("seek")).collect();
        assert_eq!(factors.len(), 21 * 5);
        assert_eq!(factors[..5], [1.0; 5]);
        assert!(factors.iter().all(|factor| (0.7..=1.3).contains(factor)), "{factors:?}");
        assert!(
            factors.iter().any(|factor| *factor < 0.73) && factors.iter().any(|factor| *factor > 1.27),
            "{factors:?}"
        );
        let runs: BTreeSet<_> = BandPoint::band().map(|point| (point.number(), point.seed())).collect();
        assert_eq!(runs.len(), 21 * 5, "crossed");
        // Parameters vary independently.
        let other: Vec<f64> = BandPoint::band().map(|point| point.factor("rate")).collect();
        assert_ne!(factors, other);
    }

    #[test]
    fn an_axis_takes_each_value_in_the_range_and_in_its_sweep() {
        for (index, axis) in claims::axes().iter().enumerate() {
            assert_eq!(BandPoint::NOMINAL.setting(&axis.name), axis.nominal);
            let all: Vec<_> = BandPoint::all(&axis.figures[0]).collect();
            for value in &axis.values {
                let at =
                    |sweep| all.iter().filter(move |at| at.is_sweep() == sweep && at.setting(&axis.name) == *value);
                assert!(at(false).count() >= 5, "{} {value}", axis.name);
                let swept = at(true).filter(|at| at.sweep.is_some_and(|(axis, _)| axis == index));
                assert!(swept.clone().count() == 5 && swept.clone().all(|at| at.factor("seek") == 1.0));
            }
            let names: BTreeSet<_> = all.iter().map(|point| point.file_name()).collect();
            assert_eq!(names.len(), all.len());
            let shared: Vec<_> = all.iter().filter(|at| at.same_run() != **at).collect();
            let of_axis = shared.iter().filter(|at| at.sweep.is_some_and(|(axis, _)| axis == index));
            assert_eq!(of_axis.count(), 5, "one value, with five seeds");
            assert!(shared.iter().all(|at| {
                let run = at.same_run();
                !run.is_sweep()
                    && run.number() == 0
                    && run.seed() == at.seed()
                    && run.setting(&axis.name) == axis.nominal
            }));
        }
    }
}
