//! Seek time by distance.

/// Distances are parts of the full stroke.
#[derive(Debug, Clone, PartialEq)]
pub enum SeekCurve {
    /// A square root up to the knee and a line after it: four numbers fit most drives within 5 %.
    Formula {
        /// Time to the next track, in seconds.
        track: f64,
        /// Mean over all pairs of bytes, in seconds.
        average: f64,
        /// Time across the whole stroke, in seconds.
        full: f64,
        /// Start of the line, as a part of the stroke.
        knee: f64,
        /// Scale by which [`SeekCurve::fitted`] reaches the stated mean.
        scale: f64,
    },
    /// Measured: ascending distances as parts of the stroke, and seconds, with linear interpolation.
    Table(Vec<(f64, f64)>),
}

/// Number of positions per axis when the mean is calculated.
const GRID: u32 = 400;

impl SeekCurve {
    /// A formula from three times of a data sheet, in seconds, with the knee at a third of the stroke.
    #[must_use]
    pub fn formula(track: f64, average: f64, full: f64) -> Self {
        SeekCurve::Formula { track, average, full, knee: 1.0 / 3.0, scale: 1.0 }
    }

    /// Seconds for a distance.
    #[inline]
    #[must_use]
    pub fn time(&self, distance: f64) -> f64 {
        if distance <= 0.0 {
            return 0.0;
        }
        match self {
            SeekCurve::Formula { track, scale, .. } => track + scale * self.rise(distance),
            SeekCurve::Table(points) => {
                let after = points.partition_point(|(at, _)| *at < distance);
                match (after.checked_sub(1).map(|before| points[before]), points.get(after)) {
                    (Some((d0, t0)), Some((d1, t1))) => t0 + (t1 - t0) * (distance - d0) / (d1 - d0),
                    (Some((_, last)), None) => last,
                    (None, Some((_, first))) => *first,
                    (None, None) => 0.0,
                }
            }
        }
    }

    /// Time of a formula in addition to that for one track, before scaling.
    ///
    /// Example: 0.8, 8.5 and 18 ms with the knee at 1/3. A twelfth of the stroke is a quarter of the knee, so it takes
    /// 7.7 x 0.5 = 3.85 ms; two thirds are half of the line, 7.7 + 9.5 x 0.5 = 12.45 ms.
    fn rise(&self, distance: f64) -> f64 {
        let SeekCurve::Formula { track, average, full, knee, .. } = self else { return 0.0 };
        if distance <= *knee {
            (average - track) * (distance / knee).sqrt()
        } else {
            (average - track) + (full - average) * (distance - knee) / (1.0 - knee)
        }
    }

    /// Scales the curve so that its mean over pairs of bytes is the stated one; `position` returns the position of a
    /// byte. Without this the "average seek" of a data sheet would apply to pairs of positions, which zones make
    /// different.
    #[must_use]
    pub fn fitted(&self, position: impl Fn(f64) -> f64) -> Self {
        let SeekCurve::Formula { track, average, full, knee, .. } = *self else { return self.clone() };
        let places: Vec<f64> = (0..GRID).map(|part| position((f64::from(part) + 0.5) / f64::from(GRID))).collect();
        let distances = places.iter().flat_map(|from| places.iter().map(move |to| (from - to).abs()));
        let mean = distances.map(|distance| self.rise(distance)).sum::<f64>() / f64::from(GRID * GRID);
        SeekCurve::Formula { track, average, full, knee, scale: (average - track) / mean }
    }
}

/// A curve with precomputed constants, for many thousand look-ups per second.
#[derive(Debug)]
pub(super) enum Curve {
    /// `near + root * sqrt(distance)` up to the knee, `far + slope * distance` after it.
    Formula {
        knee: f64,
        near: f64,
        root: f64,
        far: f64,
        slope: f64,
    },
    Table(SeekCurve),
}

impl Curve {
    pub(super) fn new(curve: &SeekCurve) -> Self {
        let SeekCurve::Formula { track, average, full, knee, scale } = *curve else {
            return Curve::Table(curve.clone());
        };
        let (rise, slope) = (scale * (average - track), scale * (full - average) / (1.0 - knee));
        Curve::Formula { knee, near: track, root: rise / knee.sqrt(), far: track + rise - slope * knee, slope }
    }

    /// Seconds for a distance.
    #[inline]
    pub(super) fn time(&self, distance: f64) -> f64 {
        match self {
            _ if distance <= 0.0 => 0.0,
            Curve::Formula { knee, near, root, .. } if distance <= *knee => near + root * distance.sqrt(),
            Curve::Formula { far, slope, .. } => far + slope * distance,
            Curve::Table(curve) => curve.time(distance),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_over_bytes_is_the_stated_one() {
        // More bytes outside than inside.
        let position = |part: f64| part * part;
        let curve = SeekCurve::formula(0.8e-3, 8.5e-3, 18e-3).fitted(position);
        let n = 300;
        let places: Vec<f64> = (0..n).map(|part| position((f64::from(part) + 0.5) / f64::from(n))).collect();
        let pairs = places.iter().flat_map(|a| places.iter().map(move |b| (a - b).abs()));
        let sum: f64 = pairs.map(|distance| curve.time(distance)).sum();
        let mean = sum / f64::from(n * n);
        assert!((mean - 8.5e-3).abs() < 0.05e-3, "{mean}");
        assert_eq!(curve.time(0.0), 0.0);
        let quick = Curve::new(&curve);
        for part in 0..=1000 {
            let distance = f64::from(part) / 1000.0;
            assert!((quick.time(distance) - curve.time(distance)).abs() < 1e-12, "{distance}");
        }
    }

    #[test]
    fn a_table_is_read_between_its_points() {
        let curve = SeekCurve::Table(vec![(0.1, 1.0), (0.3, 3.0), (1.0, 10.0)]);
        for (distance, time) in [(0.05, 1.0), (0.2, 2.0), (0.3, 3.0), (0.65, 6.5), (1.0, 10.0)] {
            assert!((curve.time(distance) - time).abs() < 1e-9, "{distance}");
        }
    }
}
