//! The parameter range of a device model over which a shape must hold, and the source of all random numbers of a run.

use sluice_sim::random::{Stream, stream};

/// Points of the range in addition to the nominal one: ten seeds, with two samples of the parameters each, as a Latin
/// hypercube.
pub const POINTS: u32 = 20;
/// Number of seeds among them.
const SEEDS: u64 = 10;
/// Relative range of each parameter on both sides.
const WIDTH: f64 = 0.3;

/// One point of the range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct BandPoint {
    /// The nominal point is number 0.
    point: u32,
}

impl BandPoint {
    /// The device as in its file.
    pub const NOMINAL: BandPoint = BandPoint { point: 0 };

    /// All points, the nominal one first.
    pub fn band() -> impl Iterator<Item = BandPoint> {
        (0..=POINTS).map(|point| BandPoint { point })
    }

    /// Number of the point; 0 is the nominal one.
    #[must_use]
    pub fn number(self) -> u32 {
        self.point
    }

    /// Whether the device is as in its file.
    #[must_use]
    pub fn is_nominal(self) -> bool {
        self.point == 0
    }

    /// Seed of its runs.
    #[must_use]
    pub fn seed(self) -> u64 {
        if self.point == 0 { 1 } else { 1 + u64::from(self.point - 1) % SEEDS }
    }

    /// A stream of random numbers for the component `name`.
    #[must_use]
    pub fn stream(self, name: &str) -> Stream {
        stream(self.seed(), name)
    }

    /// Factor of the device parameter `name`: 1 at the nominal point, otherwise from 0.7 to 1.3.
    #[must_use]
    pub fn factor(self, name: &str) -> f64 {
        if self.point == 0 {
            return 1.0;
        }
        // A Latin hypercube: each twentieth of a parameter's range once, in a separate order.
        let mut random = stream(0, &format!("band/{name}"));
        let mut order: Vec<u32> = (0..POINTS).collect();
        for last in (1..order.len()).rev() {
            order.swap(last, random.below(last as u64 + 1) as usize);
        }
        let part = (f64::from(order[self.point as usize - 1]) + 0.5) / f64::from(POINTS);
        1.0 - WIDTH + 2.0 * WIDTH * part
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_band_extends_to_both_sides_and_uses_ten_seeds() {
        let factors: Vec<f64> = BandPoint::band().map(|point| point.factor("seek")).collect();
        assert_eq!(factors.len(), 21);
        assert_eq!(factors[0], 1.0);
        assert!(factors.iter().all(|factor| (0.7..=1.3).contains(factor)), "{factors:?}");
        assert!(
            factors.iter().any(|factor| *factor < 0.73) && factors.iter().any(|factor| *factor > 1.27),
            "{factors:?}"
        );
        let mut seeds: Vec<u64> = BandPoint::band().map(BandPoint::seed).collect();
        seeds.sort_unstable();
        seeds.dedup();
        assert_eq!(seeds.len(), 10);
        // Parameters vary independently.
        let other: Vec<f64> = BandPoint::band().map(|point| point.factor("rate")).collect();
        assert_ne!(factors, other);
    }
}
