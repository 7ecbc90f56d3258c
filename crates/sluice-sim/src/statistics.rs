//! Means with confidence intervals.

/// Mean of independent runs, with its confidence interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mean {
    /// The mean.
    pub mean: f64,
    /// Half of the interval that contains the true mean with 95 % confidence (Student's t); `None` for a single run.
    pub half: Option<f64>,
    /// Number of runs.
    pub runs: usize,
}

/// Two-sided 95 % quantiles of Student's t for 1 to 10 degrees of freedom.
const T: [f64; 10] = [12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281];
/// The same of the normal distribution.
const Z: f64 = 1.959_964;

impl Mean {
    /// Mean of these values; `None` if there are none.
    ///
    /// Example: 9, 10 and 11 have the mean 10 and the standard error sqrt(2 / 2 / 3) = 0.577. Student's t for 2 degrees of
    /// freedom is 4.30, so half of the interval is 2.48.
    #[must_use]
    pub fn of(values: &[f64]) -> Option<Mean> {
        let runs = values.len();
        if runs == 0 {
            return None;
        }
        let mean = values.iter().sum::<f64>() / runs as f64;
        let half = (runs > 1).then(|| {
            let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
            t(runs - 1) * (squares / (runs - 1) as f64 / runs as f64).sqrt()
        });
        Some(Mean { mean, half, runs })
    }

    /// Half of the interval if it is one of `intervals` that together contain their true means with 95 % confidence
    /// (Bonferroni): of twenty comparisons, one differs by chance.
    #[must_use]
    pub fn half_among(&self, intervals: usize) -> Option<f64> {
        let freedom = self.runs - 1;
        self.half.map(|half| half / t(freedom) * quantile(freedom, 0.05 / intervals.max(1) as f64))
    }
}

/// The quantile of Student's t that is exceeded on both sides with probability `beyond`.
fn quantile(freedom: usize, beyond: f64) -> f64 {
    let (mut low, mut high) = (0.0, 1e9);
    // Each step halves the interval, so further steps change nothing.
    for _ in 0..100 {
        let middle = (low + high) / 2.0;
        if within(freedom, middle) < 1.0 - beyond { low = middle } else { high = middle }
    }
    high
}

/// Probability that Student's t is between `-t` and `t` (\[Abramowitz and Stegun 1964\] 26.7.3 and 26.7.4).
fn within(freedom: usize, t: f64) -> f64 {
    let angle = (t / (freedom as f64).sqrt()).atan();
    let (sin, cos) = angle.sin_cos();
    let is_odd = freedom % 2 == 1;
    let (mut sum, mut power, mut term) = if is_odd { (0.0, 1, cos) } else { (0.0, 0, 1.0) };
    while power + 2 <= freedom {
        sum += term;
        power += 2;
        term *= cos * cos * (power - 1) as f64 / power as f64;
    }
    if is_odd { (angle + sin * sum) / core::f64::consts::FRAC_PI_2 } else { sin * sum }
}

/// Two-sided 95 % quantile of Student's t: from a table, and above it by the expansion around the normal distribution
/// (\[Abramowitz and Stegun 1964\] 26.7.5), which has four correct digits there.
fn t(freedom: usize) -> f64 {
    if let Some(t) = T.get(freedom - 1) {
        return *t;
    }
    let n = freedom as f64;
    let first = (Z.powi(3) + Z) / (4.0 * n);
    let second = (5.0 * Z.powi(5) + 16.0 * Z.powi(3) + 3.0 * Z) / (96.0 * n * n);
    let third = (3.0 * Z.powi(7) + 19.0 * Z.powi(5) + 17.0 * Z.powi(3) - 15.0 * Z) / (384.0 * n * n * n);
    Z + first + second + third
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_match_the_tables() {
        for (freedom, table) in
            [(1, 12.706), (9, 2.262), (11, 2.201), (15, 2.131), (29, 2.045), (99, 1.984), (999, 1.962)]
        {
            assert!((t(freedom) - table).abs() < 6e-4, "{freedom}: {}", t(freedom));
        }
    }

    #[test]
    fn an_interval_among_several_is_wider() {
        for (freedom, beyond, table) in [
            (1, 0.05, 12.706),
            (2, 0.05, 4.303),
            (4, 0.05, 2.776),
            (9, 0.05, 2.262),
            (3, 0.01, 5.841),
            (4, 0.001, 8.610),
            (10, 0.001, 4.587),
        ] {
            assert!((quantile(freedom, beyond) - table).abs() < 6e-4, "{freedom}: {}", quantile(freedom, beyond));
        }
        let mean = Mean::of(&[10.0, 12.0, 14.0]).unwrap();
        assert!((mean.half_among(1).unwrap() - mean.half.unwrap()).abs() < 1e-4);
        // 1 % outside at two degrees of freedom: 9.925 instead of 4.303.
        assert!((mean.half_among(5).unwrap() / mean.half.unwrap() - 9.925 / 4.303).abs() < 1e-3);
        assert_eq!(Mean::of(&[5.0]).unwrap().half_among(5), None);
    }

    #[test]
    fn an_interval_matches_a_manual_calculation() {
        let mean = Mean::of(&[10.0, 12.0, 14.0]).unwrap();
        // Standard deviation 2, divided by the root of 3, times 4.303.
        assert_eq!((mean.mean, mean.runs), (12.0, 3));
        assert!((mean.half.unwrap() - 4.968).abs() < 1e-3, "{mean:?}");
        assert_eq!(Mean::of(&[5.0]), Some(Mean { mean: 5.0, half: None, runs: 1 }));
        assert_eq!(Mean::of(&[]), None);
    }
}
