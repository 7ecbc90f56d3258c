//! Counters for programs that compute rates themselves, such as Prometheus.
//!
//! A [`Reading`] refers to the samples and does not copy their histograms, so one can be taken after each sample. Counters
//! only grow while a device thread runs and a VM is served. A restarted thread, or a VM that was removed and added again,
//! counts from zero. Seconds of violations are counted here, and outlast restarts of the thread.

use std::collections::BTreeMap;
use std::sync::Arc;

use sluice_api::cause::Cause;
use sluice_api::event::EventKind;

use crate::flow::Flow;
use crate::judge::{Shortfall, Watch};
use crate::now::About;
use crate::recent::Recent;
use crate::sample::DeviceSample;

/// The counters of all devices at one instant.
#[derive(Debug, Clone, Default)]
pub struct Reading {
    /// Seconds since 1970.
    pub time: u64,
    pub devices: Vec<DeviceReading>,
}

/// The counters of one device.
#[derive(Debug, Clone)]
pub struct DeviceReading {
    /// The last sample in which its thread responded.
    pub sample: Arc<DeviceSample>,
    /// `serving`, `restarting`, `silent`, `down`, or `stalled` if it serves and completes nothing.
    pub health: &'static str,
    /// Restarts of its thread.
    pub restarts: u64,
    /// Median of what it gave in the last minute in which it was full, in normalised requests per second.
    pub measured_iops: Option<f64>,
    pub measured_bytes_per_second: Option<f64>,
    /// Whether it gives less than is stated of it.
    pub is_too_slow: bool,
    /// Whether the reservations do not fit into what it gives.
    pub is_overcommitted: bool,
    /// Number of things that keep hosts from sharing its pool as it is stated; `None` if it is in none.
    pub pool_troubles: Option<usize>,
    /// Time from arrival to dispatch of the requests of all VMs, also of those that are gone.
    pub waits: Times,
    /// In the order of the VMs of the sample.
    pub vms: Vec<VmReading>,
}

/// Times since the start of the daemon.
#[derive(Debug, Clone, Default)]
pub struct Times {
    /// Sum in nanoseconds.
    pub nanos: u64,
    /// Counts, by the upper bound of their bucket in nanoseconds.
    pub counts: BTreeMap<u64, u64>,
}

impl Times {
    /// Adds the waits of an interval.
    pub(crate) fn add_waits(&mut self, flow: &Flow) {
        self.nanos += flow.wait_nanos.iter().sum::<u64>();
        for (upper, count) in flow.queue_time.buckets() {
            *self.counts.entry(upper).or_default() += count;
        }
    }
}

/// State of the promises to a VM and its volumes, which the counters do not contain.
#[derive(Debug, Clone, Default)]
pub struct VmReading {
    pub promises: PromisesReading,
    /// In the order of the volumes of the sample; empty before the second sample.
    pub volumes: Vec<PromisesReading>,
    /// What fails now, in the same order.
    pub failing: Vec<Vec<EventKind>>,
}

/// The promises to a VM or a volume.
#[derive(Debug, Clone, Default)]
pub struct PromisesReading {
    /// The promises that its policy states, and whether each is broken now.
    pub broken: Vec<(EventKind, bool)>,
    pub violations: Violations,
}

/// Time in which promises were broken, by kind and cause.
#[derive(Debug, Clone, Default)]
pub struct Violations {
    nanos: BTreeMap<(EventKind, Cause), u64>,
}

impl Violations {
    /// Adds the last interval, if the promise was not kept in it.
    pub(crate) fn add(&mut self, kind: EventKind, found: Option<Shortfall>, watch: &Watch<About>, recent: &Recent) {
        if let (Some(_), Some(broken)) = (found, watch.broken()) {
            *self.nanos.entry((kind, broken.about.cause)).or_default() += recent.counts(1).nanos;
        }
    }

    /// The time in seconds, by kind and cause.
    pub fn seconds(&self) -> impl Iterator<Item = (EventKind, Cause, f64)> + '_ {
        self.nanos.iter().map(|(&(kind, cause), &nanos)| (kind, cause, nanos as f64 / 1e9))
    }
}

#[cfg(test)]
mod tests {
    use sluice_sched::gate::GateStats;
    use sluice_sched::{Instant, Policy};

    use crate::observer::Observer;
    use crate::sample::{DeviceSample, Sample, VmSample};

    /// A sample of VMs with these numbers of requests that have waited for 1 ms each.
    fn sample(second: u64, vms: &[(&str, u64)]) -> Sample {
        let vm = |&(name, requests): &(&str, u64)| {
            let mut stats = GateStats::default();
            (0..requests).for_each(|_| stats.queue_time.add(1_000_000));
            (stats.outstanding.arrived, stats.waits[0].nanos) = (requests, requests * 1_000_000);
            VmSample {
                vm: name.to_owned(),
                policy: Policy::default(),
                stats: stats.into(),
                cpu: Default::default(),
                outstanding: 0,
                volumes: Vec::new(),
            }
        };
        let at = Instant::from_nanos(second * 1_000_000_000);
        let vms = vms.iter().map(vm).collect();
        let device = DeviceSample { at, serving: true, health: "serving", vms, ..DeviceSample::unknown("disk") };
        Sample { second, time: second, devices: vec![device] }
    }

    #[test]
    fn the_waits_of_a_device_do_not_go_back_when_a_vm_is_removed() {
        let mut observer = Observer::default();
        let mut waits = |sample| {
            observer.push(sample);
            let waits = &observer.reading().devices[0].waits;
            (waits.counts.values().sum::<u64>(), waits.nanos)
        };
        assert_eq!(waits(sample(1, &[("a", 0), ("b", 0)])), (0, 0));
        assert_eq!(waits(sample(2, &[("a", 5), ("b", 7)])), (12, 12_000_000));
        assert_eq!(waits(sample(3, &[("a", 6)])), (13, 13_000_000));
    }
}
