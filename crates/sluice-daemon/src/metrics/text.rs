//! The text of a scrape, in both formats that Prometheus reads.

use std::fmt;
use std::sync::{Arc, OnceLock};

use hyper::body::Bytes;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;

use super::State;
use super::families;
use super::series::Series;

/// Collects the metrics of one state.
#[derive(Debug)]
struct Collected(Arc<State>);

impl Collector for Collected {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for family in families::all() {
            let encoder = encoder.encode_descriptor(family.base(), family.help, None, family.kind.metric_type())?;
            family.add(&self.0, &mut Series { family, encoder })?;
        }
        Ok(())
    }
}

/// The metrics of a state as text.
#[derive(Debug)]
pub struct Text {
    open_metrics: Bytes,
    prometheus: OnceLock<Bytes>,
}

impl Text {
    pub(super) fn of(state: Arc<State>) -> Text {
        Text { open_metrics: open_metrics(state).into(), prometheus: OnceLock::new() }
    }

    /// The format OpenMetrics 1.0.
    pub fn open_metrics(&self) -> Bytes {
        self.open_metrics.clone()
    }

    /// The text format 0.0.4 of Prometheus, which the textfile collector reads.
    pub fn prometheus(&self) -> Bytes {
        let open_metrics = || str::from_utf8(&self.open_metrics).expect("it was made from a string");
        self.prometheus.get_or_init(|| prometheus(open_metrics()).into()).clone()
    }
}

fn open_metrics(state: Arc<State>) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Collected(state)));
    let mut text = String::new();
    encode(&mut text, &registry).expect("a string takes any text");
    text
}

/// Rewrites the descriptions for the older format. There a counter is named `x_total` in its description too, and there is no
/// end mark.
fn prometheus(open_metrics: &str) -> String {
    let mut text = String::with_capacity(open_metrics.len());
    let mut help = None;
    for line in open_metrics.split_inclusive('\n') {
        if let Some(described) = line.strip_prefix("# HELP ") {
            help = described.split_once(' ');
        } else if let Some(typed) = line.strip_prefix("# TYPE ") {
            let suffix = if typed.ends_with(" counter\n") { "_total" } else { "" };
            let (name, kind) = typed.split_once(' ').unwrap_or((typed, "untyped\n"));
            if let Some((_, help)) = help.take() {
                text.extend(["# HELP ", name, suffix, " ", help]);
            }
            text.extend(["# TYPE ", name, suffix, " ", kind]);
        } else if line != "# EOF\n" {
            text.push_str(line);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use sluice_api::event::EventKind;
    use sluice_observe::reading::{DeviceReading, PromisesReading, Reading, Times, VmReading};
    use sluice_observe::sample::{CpuSample, DeviceSample, VmSample, VolumeSample};
    use sluice_sched::gate::{GateStats, Waited};
    use sluice_sched::{ByteRate, Iops, LatencyTarget, Limit, Percent, Policy, Reservation};

    use super::*;

    /// Counters of which none is 0.
    fn busy() -> GateStats {
        let mut stats = GateStats::default();
        let waited = Waited { requests: 1, nanos: 1 };
        (stats.dispatched, stats.waits, stats.ended) = ([1; 3], [waited; 6], [[1; 5]; 3]);
        (0..40).for_each(|bit| stats.latency.add(1 << bit));
        stats
    }

    /// 1,000 VMs of which 200 have two volumes and 800 a limit of CPU time, with every kind of promise and limit, all of them busy.
    fn large_host() -> State {
        let rates = (Some(Iops::per_second(100)), Some(ByteRate::per_second(1 << 20)));
        let policy = Policy {
            reservation: Reservation { iops: rates.0, bytes: rates.1 },
            limit: Limit { iops: rates.0, bytes: rates.1 },
            latency: Some(LatencyTarget { p99: std::time::Duration::from_millis(5), reads_only: false }),
            ..Policy::default()
        };
        let volume = |number: usize, is_only: bool| VolumeSample {
            volume: format!("volume-{number}"),
            policy: Policy::default(),
            stats: (!is_only).then(busy).map(Arc::new),
            outstanding: 1,
            clients: 1,
            left: 0,
            client_faults: Default::default(),
            faults: Default::default(),
            nic: None,
        };
        let vm = |number: usize| {
            let volumes = if number < 200 { 2 } else { 1 };
            let volumes = (0..volumes).map(|of| volume(of, volumes == 1)).collect();
            let limit = (number < 800).then_some(Percent::WHOLE);
            let cpu = CpuSample { limit, used_nanos: 1 << 40, held_nanos: 1 << 40 };
            VmSample { vm: format!("customer-{number}"), policy, stats: busy().into(), cpu, outstanding: 1, volumes }
        };
        let promises = PromisesReading {
            broken: vec![(EventKind::Reservation, true), (EventKind::Latency, true)],
            ..PromisesReading::default()
        };
        let vms = vec![VmReading { promises, volumes: Vec::new(), failing: Vec::new() }; 1000];
        let sample = DeviceSample { vms: (0..1000).map(vm).collect(), ..DeviceSample::unknown("nvme0") };
        let device = DeviceReading {
            sample: Arc::new(sample),
            health: "serving",
            restarts: 0,
            measured_iops: Some(1.0),
            measured_bytes_per_second: Some(1.0),
            is_too_slow: false,
            is_overcommitted: false,
            pool_troubles: None,
            waits: Times::default(),
            vms,
        };
        State { reading: Reading { time: 1, devices: vec![device] }, ..State::default() }
    }

    #[test]
    fn a_thousand_busy_vms_with_every_kind_of_promise_stay_within_50_000_series() {
        let text = open_metrics(Arc::new(large_host()));
        let series = text.lines().filter(|line| !line.starts_with('#')).count();
        assert!((40_000..=50_000).contains(&series), "{series}");
        assert_eq!(text.lines().filter(|line| line.starts_with("sluice_promise_broken{")).count(), 2000);
        assert_eq!(text.lines().filter(|line| line.starts_with("sluice_volume_clients{")).count(), 1200);
    }

    #[test]
    fn a_name_with_quotes_does_not_end_its_label() {
        let mut state = large_host();
        let device = &mut state.reading.devices[0];
        let mut sample = DeviceSample::clone(&device.sample);
        sample.vms.truncate(1);
        sample.vms[0].vm = "a\"} 1\nb\\".to_owned();
        device.sample = Arc::new(sample);
        let text = open_metrics(Arc::new(state));
        assert!(text.contains(r#"sluice_outstanding_requests{device="nvme0",vm="a\"} 1\nb\\"} 1"#), "{text}");
    }

    #[test]
    fn a_counter_has_its_full_name_in_the_description_of_the_older_format() {
        let open =
            "# HELP a_b Bs.\n# TYPE a_b counter\na_b_total{c=\"d\"} 1\n# HELP e Es.\n# TYPE e gauge\ne 2\n# EOF\n";
        let older =
            "# HELP a_b_total Bs.\n# TYPE a_b_total counter\na_b_total{c=\"d\"} 1\n# HELP e Es.\n# TYPE e gauge\ne 2\n";
        assert_eq!(prometheus(open), older);
    }
}
