//! Statistics of repeated measurements.

/// Measurements of one quantity.
#[derive(Debug, Clone, Default)]
pub(super) struct Samples(Vec<f64>);

impl Samples {
    pub(super) fn push(&mut self, value: f64) {
        self.0.push(value);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the median, or NaN if there are no measurements.
    pub(super) fn median(&self) -> f64 {
        let sorted = self.sorted();
        match sorted.len() {
            0 => f64::NAN,
            len if len % 2 == 1 => sorted[len / 2],
            len => f64::midpoint(sorted[len / 2 - 1], sorted[len / 2]),
        }
    }

    /// Returns the minimum and maximum.
    pub(super) fn range(&self) -> (f64, f64) {
        let sorted = self.sorted();
        (sorted.first().copied().unwrap_or(f64::NAN), sorted.last().copied().unwrap_or(f64::NAN))
    }

    /// Returns the ratio of this quantity to `other` in each round.
    pub(super) fn ratio(&self, other: &Samples) -> Samples {
        self.0.iter().zip(&other.0).map(|(own, others)| own / others).collect()
    }

    fn sorted(&self) -> Vec<f64> {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        sorted
    }
}

impl FromIterator<f64> for Samples {
    fn from_iter<I: IntoIterator<Item = f64>>(values: I) -> Samples {
        Samples(values.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_compares_measurements_of_the_same_round() {
        let own: Samples = [1.0, 20.0, 3.0].into_iter().collect();
        let others: Samples = [2.0, 40.0, 3.0].into_iter().collect();
        assert_eq!(own.ratio(&others).median(), 0.5);
        assert_eq!(own.median(), 3.0);
        assert_eq!(own.range(), (1.0, 20.0));
        let even: Samples = [4.0, 1.0].into_iter().collect();
        assert_eq!(even.median(), 2.5);
        assert!(Samples::default().median().is_nan());
    }
}
