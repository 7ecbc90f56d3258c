//! How many requests a VM must keep outstanding for its reservation, by Little's law.

use std::time::Duration;

use serde_json::{Value, json};
use sluice_api::amount::rate;
use sluice_pool::Aim;
use sluice_pool::law::written;

/// Multiple of the mean with which a reservation is met in every second.
const EVERY_SECOND: f64 = 1.5;

/// What a reservation needs on a device where what is in flight follows the time of requests.
pub struct Needed {
    iops: f64,
    /// The stated time of requests at the device.
    latency: Duration,
    /// Requests outstanding on average.
    mean: f64,
    /// The rate that one request outstanding gives.
    one: f64,
    /// The longest stated time with which one request outstanding is enough.
    latency_for_one: Option<Duration>,
}

impl Needed {
    /// Of a reservation of `iops`.
    pub fn new(aim: &Aim, iops: f64) -> Needed {
        let mean = aim.needed(iops);
        Needed { iops, latency: aim.latency(), mean, one: iops / mean, latency_for_one: aim.latency_for_one(iops) }
    }

    fn every_second(&self) -> f64 {
        (EVERY_SECOND * self.mean).ceil()
    }

    /// A predicate of the VM, without an end.
    pub fn in_words(&self) -> String {
        let (latency, iops) = (written(self.latency), rate(self.iops));
        let mut words = format!(
            "needs {:.1} requests outstanding on average for its {iops} iops, and {} to have them in every second",
            self.mean,
            self.every_second()
        );
        if self.mean > 1.0 {
            words += &format!("; with one, latency = \"{latency}\" gives {} iops at most", rate(self.one));
            if let Some(latency) = self.latency_for_one {
                let latency = written(latency);
                words += &format!(", and latency = \"{latency}\" all of them if the device takes less for one request");
            }
        }
        words
    }

    pub fn json(&self) -> Value {
        json!({
            "mean": (self.mean * 100.0).round() / 100.0,
            "every_second": self.every_second() as u64,
            "iops_with_one": self.one.round(),
            "latency_for_one_us": self.latency_for_one.map(|latency| latency.as_micros() as u64),
        })
    }
}
