//! The series of one metric: pairs its labels with values, and encodes them.

use std::fmt;

use prometheus_client::encoding::{MetricEncoder, NoLabelSet};
use prometheus_client::metrics::exemplar::Exemplar;
use sluice_observe::reading::Times;
use sluice_sched::gate::histogram::Histogram;

use super::families::{Family, Kind, Value};

/// Maximum number of labels of a metric.
const LABELS_MAX: usize = 5;

/// Upper bounds of the buckets of every histogram, in nanoseconds: powers of two from 16.4 us to 16.8 ms, and powers of four up
/// to 1.07 s. They are bounds of the daemon's own histograms too, so no time is counted in a wrong bucket.
pub(super) const BOUNDS: [u64; 14] = [
    1 << 14,
    1 << 15,
    1 << 16,
    1 << 17,
    1 << 18,
    1 << 19,
    1 << 20,
    1 << 21,
    1 << 22,
    1 << 23,
    1 << 24,
    1 << 26,
    1 << 28,
    1 << 30,
];

/// The series of one metric.
pub(super) struct Series<'a> {
    pub(super) family: &'a Family,
    pub(super) encoder: MetricEncoder<'a>,
}

impl Series<'_> {
    /// Adds a series. `values` are those of the metric's labels, in their order; an empty one is left out.
    pub(super) fn add(&mut self, values: &[&str], amount: f64) -> fmt::Result {
        let kind = self.family.kind;
        self.with(values, |encoder| match kind {
            Kind::Counter => encoder.encode_counter(&amount, None::<&Exemplar<NoLabelSet, f64>>),
            Kind::Gauge => encoder.encode_gauge(&amount),
            Kind::Histogram => unreachable!("{kind:?} has no single value"),
        })
    }

    /// Adds a series whose value is a whole number.
    pub(super) fn count(&mut self, values: &[&str], amount: u64) -> fmt::Result {
        let kind = self.family.kind;
        self.with(values, |encoder| match kind {
            Kind::Counter => encoder.encode_counter(&amount, None::<&Exemplar<NoLabelSet, f64>>),
            Kind::Gauge => encoder.encode_gauge(&amount),
            Kind::Histogram => unreachable!("{kind:?} has no single value"),
        })
    }

    /// Adds a series whose value is 0 or 1.
    pub(super) fn is(&mut self, values: &[&str], holds: bool) -> fmt::Result {
        self.count(values, u64::from(holds))
    }

    /// Adds a series, if it has a value.
    pub(super) fn value(&mut self, values: &[&str], value: Option<Value>) -> fmt::Result {
        match value {
            Some(Value::Count(count)) => self.count(values, count),
            Some(Value::Amount(amount)) => self.add(values, amount),
            None => Ok(()),
        }
    }

    /// Adds a histogram of times with the sum of its times.
    pub(super) fn times(&mut self, values: &[&str], histogram: &Histogram, sum_nanos: u64) -> fmt::Result {
        self.buckets(values, histogram.buckets(), sum_nanos)
    }

    /// Adds times that were counted over several VMs.
    pub(super) fn sum_of_times(&mut self, values: &[&str], times: &Times) -> fmt::Result {
        self.buckets(values, times.counts.iter().map(|(upper, count)| (*upper, *count)), times.nanos)
    }

    fn buckets(&mut self, values: &[&str], filled: impl Iterator<Item = (u64, u64)>, sum_nanos: u64) -> fmt::Result {
        let mut buckets = [(f64::INFINITY, 0); BOUNDS.len() + 1];
        for (bucket, bound) in buckets.iter_mut().zip(BOUNDS) {
            bucket.0 = bound as f64 / 1e9;
        }
        let mut count = 0;
        for (upper, times) in filled {
            buckets[BOUNDS.partition_point(|bound| *bound < upper)].1 += times;
            count += times;
        }
        self.with(values, |encoder| {
            encoder.encode_histogram::<NoLabelSet>(sum_nanos as f64 / 1e9, count, &buckets, None)
        })
    }

    fn with(&mut self, values: &[&str], encode: impl FnOnce(&mut MetricEncoder<'_>) -> fmt::Result) -> fmt::Result {
        assert_eq!(values.len(), self.family.labels.len(), "{} states its labels", self.family.name);
        let mut labels = [("", ""); LABELS_MAX];
        let given = self.family.labels.iter().zip(values).filter(|(_, value)| !value.is_empty());
        let mut count = 0;
        for (label, (name, value)) in labels.iter_mut().zip(given) {
            *label = (name, value);
            count += 1;
        }
        if count == 0 {
            return encode(&mut self.encoder);
        }
        let labels = &labels[..count];
        encode(&mut self.encoder.encode_family(&labels)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bound_is_one_of_the_daemons_own_histograms() {
        for bound in BOUNDS {
            let mut histogram = Histogram::default();
            histogram.add(bound - 1);
            assert_eq!(histogram.buckets().collect::<Vec<_>>(), [(bound, 1)]);
        }
    }
}
