//! Memory of the past of many VMs.
//!
//! The observer gets the samples of half an hour, in virtual time. So each VM and volume has all seconds that are kept; minutes are kept on
//! disk, see `bench history`. In each interval every volume completes 40 requests
//! per second, with times from 30 us to 30 ms that are different for each, so that all intervals and histograms differ.
//!
//! Allocated memory is counted by the allocator; the resident memory of the process also has what the allocator cannot use.

use std::fs;
use std::sync::Arc;

use sluice_observe::history::SECONDS;
use sluice_observe::observer::Observer;
use sluice_observe::sample::{DeviceSample, Sample, VmSample, VolumeSample};
use sluice_sched::gate::GateStats;
use sluice_sched::policy::{LatencyTarget, Reservation};
use sluice_sched::{Instant, Iops, Kind, Policy};
use stats_alloc::Region;

use super::super::core::{ALLOCATOR, grown};
use super::super::report::{Bound, Cell, Report, Table};

/// Maximum of the resident memory, in MiB, at 1,000 VMs.
const MIB_MAX: f64 = 120.0;
const MIB: f64 = (1 << 20) as f64;
/// Requests per second of each volume.
const RATE: u64 = 40;

pub(super) fn run(report: &mut Report, vms: usize) {
    eprintln!("observe: half an hour of {vms} VMs");
    let (region, before) = (Region::new(ALLOCATOR), resident_mib());
    let mut host = Host::new(vms);
    let mut observer = Observer::default();
    for second in 0..=2 * SECONDS {
        observer.push(host.sample(second));
    }
    drop(host);
    let (resident, allocated) = (resident_mib() - before, grown(&region) / MIB);
    let history = observer.history("disk", "vm0", Some("v0")).expect("vm0 was in each sample");
    let seconds = history.seconds().count();
    let title = format!("Memory of the past of {vms} VMs with {} volumes, in MiB", vms + vms / 5);
    let mut table = Table::new(title, &["resident", "allocated", "seconds"]);
    table.row(vec![Cell::Number(resident, 0), Cell::Number(allocated, 0), Cell::text(seconds.to_string())]);
    report.table(table);
    report.target("memory of the past [MiB]", Bound::AtMost(MIB_MAX), resident);
}

/// Resident memory of this process, in MiB; NaN if the kernel does not state it.
fn resident_mib() -> f64 {
    let statm = fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split_whitespace().nth(1).and_then(|pages| pages.parse::<f64>().ok());
    pages.unwrap_or(f64::NAN) * rustix::param::page_size() as f64 / MIB
}

/// The counters of the VMs of a device.
struct Host {
    vms: Vec<VmSample>,
    second: u64,
    random: u64,
}

impl Host {
    /// Each fifth VM has two volumes, which are counted apart.
    fn new(vms: usize) -> Host {
        let reservation = Reservation { iops: Some(Iops::per_second(10)), ..Reservation::default() };
        let latency = Some(LatencyTarget { p99: std::time::Duration::from_millis(10), reads_only: false });
        let policy = Policy { reservation, latency, ..Policy::default() };
        let volume = |volume: usize, is_apart: bool| VolumeSample {
            volume: format!("v{volume}"),
            policy: Policy::default(),
            stats: is_apart.then(Arc::default),
            outstanding: 0,
            clients: 1,
            left: 0,
            client_faults: Default::default(),
            faults: Default::default(),
            nic: None,
        };
        let vm = |vm: usize| {
            let is_apart = vm < vms / 5;
            let volumes = (0..if is_apart { 2 } else { 1 }).map(|index| volume(index, is_apart)).collect();
            VmSample {
                vm: format!("vm{vm}"),
                policy,
                stats: Arc::default(),
                cpu: Default::default(),
                outstanding: 0,
                volumes,
            }
        };
        Host { vms: (0..vms).map(vm).collect(), second: 0, random: 1 }
    }

    /// The counters in `second`, after those of an earlier one.
    fn sample(&mut self, second: u64) -> Sample {
        let requests = (second - self.second) * RATE;
        self.second = second;
        for vm in &mut self.vms {
            let random = &mut self.random;
            add(Arc::make_mut(&mut vm.stats), requests, random);
            let volumes = vm.volumes.iter_mut().filter_map(|volume| volume.stats.as_mut());
            volumes.for_each(|stats| add(Arc::make_mut(stats), requests, random));
        }
        let at = Instant::from_nanos(1 + second * 1_000_000_000);
        let completed = second * RATE * self.vms.len() as u64;
        let mut device = DeviceSample { at, serving: true, health: "serving", ..DeviceSample::unknown("disk") };
        device.vms.clone_from(&self.vms);
        device.stats.completed = completed;
        Sample { second, time: second, devices: vec![device] }
    }
}

/// Counts requests of 4 KiB.
fn add(stats: &mut GateStats, requests: u64, random: &mut u64) {
    // Of a minute some are enough, because only its percentiles are kept.
    for _ in 0..requests.min(4 * RATE) {
        *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // 30 us times 1 to 1,000, with as many requests in each octave.
        let nanos = (30_000.0 * 1_000f64.powf((*random >> 40) as f64 / (1u64 << 24) as f64)) as u64;
        let waited = nanos / 3;
        stats.queue_time.add(waited);
        stats.service_time.add(nanos - waited);
        stats.latency.add(nanos);
        stats.latency_nanos += nanos;
    }
    stats.outstanding.arrived += requests;
    stats.dispatched_cost += requests << 16;
    stats.dispatched[0] += requests;
    stats.cost += requests << 16;
    stats.bytes += requests << 12;
    stats.ended[0][Kind::Read as usize] += requests;
    stats.judged += requests;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_observer_sees_the_requests_of_each_second() {
        let (mut host, mut observer) = (Host::new(5), Observer::default());
        (0..=3).for_each(|second| drop(observer.push(host.sample(second))));
        for volume in ["v0", "v1"] {
            let seconds = observer.history("disk", "vm0", Some(volume)).unwrap().seconds();
            let points: Vec<_> = seconds.map(|point| (point.second, point.iops)).collect();
            assert_eq!(points, [(1, 40.0), (2, 40.0), (3, 40.0)]);
        }
        assert!(observer.history("disk", "vm4", Some("v1")).is_none());
    }
}
