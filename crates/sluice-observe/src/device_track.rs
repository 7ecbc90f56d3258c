//! A device over time.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use sluice_api::amount::{span, time};
use sluice_api::event::{EventKind, Unit};
use sluice_api::status::{self as api, Device, Health, Histograms, Verdict, Vm};
use sluice_api::top;
use sluice_pool::Aim;
use sluice_pool::law::written;
use sluice_sched::admission::Capacity;

use crate::capacity::{self, Capacities};
use crate::cause::{DeviceState, Lateness, OtherHosts, THREAD_BUSY};
use crate::flow::Flow;
use crate::history::History;
use crate::judge::{Broken, Shortfall, Watch};
use crate::now::{About, Now, Subject};
use crate::pool_track::{PoolTrack, Shared};
use crate::reading::{DeviceReading, Times, VmReading};
use crate::recent::{JOINED, Recent};
use crate::sample::{DeviceSample, VmSample};
use crate::status;
use crate::vm_track::{Interval, VmTrack};

/// Multiple of what a device gives up to which reservations fit: sums of parts are rounded.
const FITS: f64 = 1.001;
/// The shortest interval that is judged.
const SHORTEST: Duration = Duration::from_millis(500);
/// Part of a second from which on a late thread says nothing about the device.
const LATE: f64 = 0.5;
/// Seconds over which the load of a device is averaged.
const LOADS: usize = 10;

/// A device over time.
#[derive(Debug, Default)]
pub(crate) struct DeviceTrack {
    /// The last sample in which its thread responded.
    last: Option<Arc<DeviceSample>>,
    /// Health of the latest sample, and its restarts.
    health: &'static str,
    restarts: u64,
    vms: BTreeMap<String, VmTrack>,
    /// All VMs together.
    total: Recent,
    waits: Times,
    loads: VecDeque<Load>,
    capacities: Capacities,
    too_slow: Watch<About>,
    overcommitted: Watch<About>,
    too_low: Watch<About>,
    pool: PoolTrack,
    stalled: Watch<About>,
    down: Watch<About>,
    link_down: Watch<About>,
    restarted: Watch<About>,
}

/// Parts of a second, 0 to 1.
#[derive(Debug, Clone, Copy, Default)]
struct Load {
    /// Without a free slot.
    full: f64,
    /// With a working thread.
    worked: f64,
    /// In which the thread was late.
    late: f64,
    /// Normalised requests per second that all hosts of its pool completed then, if that is known.
    pool_iops: Option<f64>,
}

/// The device itself, as the subject of an event.
fn device(kind: EventKind) -> Subject<'static> {
    Subject { kind, vm: None, volume: None }
}

/// Seconds that a request takes of what the device gives, or of what is stated if that is more.
fn turn(stated: &Capacity, total: &Flow) -> f64 {
    let Some((cost, bytes)) = total.step() else { return 0.0 };
    let iops = stated.iops.map_or(0.0, |stated| stated.as_f64()).max(total.normalised_iops());
    let rate = stated.bytes.map_or(0.0, |stated| stated.bytes_per_second() as f64).max(total.bytes_per_second());
    let by_requests = if iops > 0.0 { cost / iops } else { 0.0 };
    by_requests.max(if rate > 0.0 { bytes / rate } else { 0.0 })
}

/// What to write instead of a stated time below the device's own, both in nanoseconds.
fn too_low_in_words(stated: u64, own: u64) -> String {
    let (stated, own) = (Duration::from_nanos(stated), Duration::from_nanos(own));
    let least = Aim::latency_for(own);
    format!(
        "latency = {} is below the {} that it takes for one request; at least {}",
        written(stated),
        time(own.as_nanos() as f64 / 1000.0),
        written(least)
    )
}

fn percent(part: f64) -> f64 {
    (part * 1000.0).round() / 10.0
}

impl DeviceTrack {
    /// Adds a sample, whose VMs are sorted by name.
    pub(crate) fn push(&mut self, now: &mut Now<'_>, sample: DeviceSample) {
        let restarted = sample.restarts > self.restarts;
        (self.health, self.restarts) = (sample.health, sample.restarts);
        let restarted = restarted.then_some(Shortfall { wanted: 1.0, got: 0.0, unit: Unit::Requests });
        let about = || About::device().with(sample.failure.clone());
        now.judge(device(EventKind::Restarted), &mut self.restarted, restarted, about);
        let down = (!sample.serving).then_some(Shortfall { wanted: 1.0, got: 0.0, unit: Unit::Requests });
        now.judge(device(EventKind::Down), &mut self.down, down, About::device);
        if !sample.serving {
            return;
        }
        let is_down = sample.uplink.as_ref().is_some_and(|uplink| uplink.is_down);
        let down = is_down.then_some(Shortfall { wanted: 1.0, got: 0.0, unit: Unit::Requests });
        now.judge(device(EventKind::LinkDown), &mut self.link_down, down, About::interface);
        for (name, mut track) in self.vms.extract_if(.., |name, _| sample.vm(name).is_none()) {
            track.end(now, &name);
        }
        for vm in &sample.vms {
            if !self.vms.contains_key(&vm.vm) {
                self.vms.insert(vm.vm.clone(), VmTrack::default());
            }
        }
        // A thread that has restarted counts from zero, on another clock; so does one of another device of that name.
        let counts_on = |last: &Arc<DeviceSample>| {
            let same_thread = last.restarts == sample.restarts && last.at < sample.at;
            same_thread && last.stats.completed <= sample.stats.completed
        };
        let last = self.last.take().filter(counts_on);
        match last {
            // Rates of a moment say nothing. The next sample covers its time.
            Some(last) if sample.at.since(last.at) < SHORTEST => self.last = Some(last),
            last => {
                if let Some(last) = last {
                    self.look_at(now, &Interval::between(&last, &sample));
                }
                self.last = Some(Arc::new(sample));
            }
        }
    }

    /// Whether it is an uplink.
    pub(crate) fn is_link(&self) -> bool {
        self.last.as_ref().is_some_and(|last| last.uplink.is_some())
    }

    /// Ends what is not as it should be, because the device is gone.
    pub(crate) fn end(&mut self, now: &mut Now<'_>) {
        for (name, track) in &mut self.vms {
            track.end(now, name);
        }
        let watches = [
            (EventKind::Capacity, &mut self.too_slow),
            (EventKind::Overcommitted, &mut self.overcommitted),
            (EventKind::LatencyTooLow, &mut self.too_low),
            (EventKind::Stalled, &mut self.stalled),
            (EventKind::Down, &mut self.down),
            (EventKind::LinkDown, &mut self.link_down),
            (EventKind::Restarted, &mut self.restarted),
        ];
        watches.into_iter().for_each(|(kind, watch)| now.end(device(kind), watch));
        self.pool.end(now);
    }

    fn look_at(&mut self, now: &mut Now<'_>, interval: &Interval<'_>) {
        let Interval { last, sample, total, .. } = interval;
        self.total.push(total.clone());
        let part = |nanos: u64| nanos as f64 / total.nanos as f64;
        let full = part(sample.stats.full_nanos(sample.at).saturating_sub(last.stats.full_nanos(last.at)));
        let worked = part(sample.worked_nanos.saturating_sub(last.worked_nanos));
        let late = part(sample.late_nanos.saturating_sub(last.late_nanos)).min(1.0);
        if self.loads.len() == LOADS {
            self.loads.pop_front();
        }
        let pool_iops = Shared::of(sample).and_then(|shared| shared.iops());
        self.loads.push_back(Load { full, worked, late, pool_iops });
        let completed = sample.stats.completed - last.stats.completed;
        // What the device has completed while its thread was late is not known.
        let is_stalled = completed == 0 && last.in_flight > 0 && sample.in_flight > 0 && late < LATE;
        let stalled = Shortfall { wanted: 0.0, got: sample.in_flight as f64, unit: Unit::Requests };
        now.judge(device(EventKind::Stalled), &mut self.stalled, is_stalled.then_some(stalled), About::device);
        self.pool.judge(now, sample);
        let too_low = sample.window.as_ref().zip(sample.own_time());
        let about = || About::device().with(too_low.map(|(window, own)| too_low_in_words(window.stated, own)));
        let below = too_low.map(|(window, own)| Shortfall {
            wanted: own as f64 / 1000.0,
            got: window.stated as f64 / 1000.0,
            unit: Unit::Microseconds,
        });
        now.judge(device(EventKind::LatencyTooLow), &mut self.too_low, below, about);
        // A stall, a thread without time left, or a window that is too small says nothing about what the device gives when it works.
        let is_working = below.is_none() && !is_stalled && !now.is_late && worked < THREAD_BUSY && late < LATE;
        self.judge_capacity(now, interval, is_working.then_some(full));
        let state = DeviceState {
            serving: !is_stalled,
            is_late: now.is_late,
            full,
            worked,
            late: Lateness {
                part: late,
                part_of_ten_seconds: self.load().late,
                longest: sample.late.since(&last.late).percentile(100.0).unwrap_or(0),
            },
            given: self.given(interval),
            other_hosts: Shared::of(sample).map(|shared| OtherHosts { part: shared.part_of_others() }),
            turn: turn(&sample.capacity, &self.total.counts(JOINED)) * (1 + interval.reserving()) as f64,
            misses_reservations: interval.misses_reservations(),
        };
        for (index, vm) in sample.vms.iter().enumerate() {
            let track = self.vms.get_mut(&vm.vm).expect("each VM of the sample has been added");
            track.push(now, interval, index, state);
        }
        self.waits.add_waits(total);
    }

    /// What an interval's service is of what is stated; `None` if that is not known. In a pool that of all hosts counts, in requests, over ten
    /// seconds: each sample has it of half a second.
    fn given(&self, interval: &Interval<'_>) -> Option<f64> {
        let Interval { sample, total, .. } = interval;
        let Some(shared) = Shared::of(sample) else {
            return capacity::given(&sample.capacity, total.normalised_iops(), total.bytes_per_second());
        };
        shared.iops()?;
        let known: Vec<f64> = self.loads.iter().filter_map(|load| load.pool_iops).collect();
        let mean = known.iter().sum::<f64>() / known.len().max(1) as f64;
        capacity::given(&Capacity { bytes: None, ..sample.capacity }, mean, 0.0)
    }

    fn judge_capacity(&mut self, now: &mut Now<'_>, interval: &Interval<'_>, full: Option<f64>) {
        let Interval { last, sample, total, .. } = interval;
        if (sample.depth, sample.capacity, &sample.pool) != (last.depth, last.capacity, &last.pool) {
            self.capacities.clear();
        }
        let shared = Shared::of(sample);
        // What other hosts complete is known in requests only.
        let capacity = if shared.is_some() { Capacity { bytes: None, ..sample.capacity } } else { sample.capacity };
        match (full, shared) {
            (None, _) => {}
            (Some(full), None) => self.capacities.push(full, total.normalised_iops(), total.bytes_per_second()),
            (Some(full), Some(shared)) => self.capacities.push_shared(full, &shared),
        }
        self.capacities.compare(&capacity, shared.is_none_or(|shared| shared.gives_less()));
        let stated = match capacity {
            Capacity { iops: Some(iops), .. } => Some((iops.as_f64(), Unit::Iops)),
            Capacity { bytes: Some(rate), .. } => Some((rate.bytes_per_second() as f64, Unit::BytesPerSecond)),
            Capacity { iops: None, bytes: None } => None,
        };
        let given = self.capacities.given(&capacity).filter(|_| self.capacities.verdict() == Verdict::TooHigh);
        let too_slow =
            stated.zip(given).map(|((stated, unit), given)| Shortfall { wanted: stated, got: stated * given, unit });
        let bound = sample.window.as_ref().map(|window| {
            let stated = written(Duration::from_nanos(window.stated));
            let hosts = if shared.is_some() { "all hosts of its pool together; " } else { "" };
            format!("{hosts}latency = {stated} bounds what is in flight; with a longer one it may give more")
        });
        now.judge(device(EventKind::Capacity), &mut self.too_slow, too_slow, || About::device().with(bound));
        let reserved: f64 = sample.vms.iter().map(|vm| vm.reserved_part(&sample.capacity)).sum();
        let given = given.unwrap_or(1.0);
        let over = stated.filter(|_| reserved > given * FITS);
        let over = over.map(|(stated, unit)| Shortfall { wanted: stated * reserved, got: stated * given, unit });
        now.judge(device(EventKind::Overcommitted), &mut self.overcommitted, over, About::device);
    }

    /// The load of the last ten seconds.
    fn load(&self) -> Load {
        // The sum of no numbers is -0.0.
        let sum = |of: fn(&Load) -> f64| self.loads.iter().map(of).sum::<f64>() + 0.0;
        let mean = |of: fn(&Load) -> f64| sum(of) / self.loads.len().max(1) as f64;
        let (full, worked, late) = (mean(|load| load.full), mean(|load| load.worked), mean(|load| load.late));
        Load { full, worked, late, pool_iops: self.loads.back().and_then(|load| load.pool_iops) }
    }

    pub(crate) fn history(&self, vm: &str, volume: Option<&str>) -> Option<&History> {
        self.vms.get(vm)?.history(volume)
    }

    pub(crate) fn status(&self, name: &str, second: u64) -> Device {
        let Load { full, worked, late, .. } = self.load();
        let unknown = DeviceSample::unknown(name);
        let last = self.last.as_deref().unwrap_or(&unknown);
        Device {
            device: name.to_owned(),
            health: Health::named(self.health()),
            depth: last.depth,
            window: status::window(last),
            pool: self.pool.status(last),
            in_flight: last.in_flight,
            queued: last.queued,
            full_percent: percent(full),
            thread_busy_percent: percent(worked),
            thread_late_percent: percent(late),
            rates: status::intervals(&self.total),
            service_times: status::service_times(last),
            capacity: api::Capacity {
                stated_iops: last.capacity.iops.map(|iops| iops.as_f64()),
                stated_bytes_per_second: last.capacity.bytes.map(|bytes| bytes.bytes_per_second()),
                measured_iops: self.capacities.iops().map(f64::round),
                measured_bytes_per_second: self.measured_bytes().map(f64::round),
                verdict: self.capacities.verdict(),
                reserved_iops: last.reserved_iops(),
                reserved_bytes_per_second: last.reserved_bytes(),
            },
            vms: last.vms.len() as u32,
            clients: last.vms.iter().map(VmSample::clients).sum(),
            problems: self.problems(second),
            settings: None,
        }
    }

    /// Bytes per second that it gave while it was full; what other hosts got is known in requests only.
    fn measured_bytes(&self) -> Option<f64> {
        let is_shared = self.last.as_ref().is_some_and(|last| Shared::of(last).is_some());
        self.capacities.bytes().filter(|_| !is_shared)
    }

    fn health(&self) -> &'static str {
        let is_stalled = self.down.broken().is_none() && self.stalled.broken().is_some();
        if is_stalled { "stalled" } else { self.health }
    }

    fn problems(&self, second: u64) -> Vec<String> {
        let mut problems = Vec::new();
        let mut add = |broken: Option<&Broken<About>>, what: &dyn Fn(&Shortfall) -> String| {
            if let Some(broken) = broken {
                problems.push(format!("{}, for {}", what(&broken.now), span(second + 1 - broken.since)));
            }
        };
        add(self.down.broken(), &|_| format!("does not serve ({})", self.health));
        add(self.link_down.broken(), &|_| {
            "has an interface that is down; switch it on with `ip link set NAME up`".to_owned()
        });
        add(self.stalled.broken(), &|now| format!("completes nothing, with {} in flight", now.unit.show(now.got)));
        add(self.too_low.broken(), &|now| {
            let own = now.wanted * 1000.0;
            format!("gives less than it could: {}", too_low_in_words((now.got * 1000.0) as u64, own as u64))
        });
        add(self.too_slow.broken(), &|now| {
            format!(
                "gives {} while it is full; its stated capacity is {}",
                now.unit.show(now.got),
                now.unit.show(now.wanted)
            )
        });
        add(self.overcommitted.broken(), &|now| {
            format!("has reservations of {}, and gives {}", now.unit.show(now.wanted), now.unit.show(now.got))
        });
        problems.extend(self.pool.problems(second));
        if let (Verdict::TooLow, Some(iops)) = (self.capacities.verdict(), self.capacities.iops()) {
            problems.push(format!("gives {iops:.0} iops, more than its stated capacity; more could be reserved"));
        }
        problems
    }

    pub(crate) fn glance(&self, second: u64) -> impl Iterator<Item = top::Vm> {
        let is_known = self.down.broken().is_none();
        let of = move |device: &DeviceSample, vm: &VmSample| {
            Some(self.vms.get(&vm.vm)?.glance(&device.device, vm, second, is_known))
        };
        self.last.iter().flat_map(move |last| last.vms.iter().filter_map(move |vm| of(last, vm)))
    }

    pub(crate) fn details(&self, vm: &str, volume: Option<&str>, second: u64) -> Option<(Vm, Option<Histograms>)> {
        let (last, track) = (self.last.as_ref()?, self.vms.get(vm)?);
        let status = track.status(last, last.vm(vm)?, second, self.down.broken().is_none());
        Some((status, track.histograms(volume)))
    }

    /// The counters, without a copy of them.
    pub(crate) fn reading(&self, name: &str) -> DeviceReading {
        let sample = self.last.clone().unwrap_or_else(|| Arc::new(DeviceSample::unknown(name)));
        let is_known = self.down.broken().is_none();
        let of =
            |vm: &VmSample| self.vms.get(&vm.vm).map_or_else(VmReading::default, |track| track.reading(vm, is_known));
        DeviceReading {
            health: self.health(),
            restarts: self.restarts,
            measured_iops: self.capacities.iops(),
            measured_bytes_per_second: self.measured_bytes(),
            pool_troubles: sample.pool.as_ref().map(|_| self.pool.count()),
            is_too_slow: self.too_slow.broken().is_some(),
            is_overcommitted: self.overcommitted.broken().is_some(),
            waits: self.waits.clone(),
            vms: sample.vms.iter().map(of).collect(),
            sample,
        }
    }

    pub(crate) fn vm_status(&self, second: u64) -> impl Iterator<Item = Vm> {
        let is_known = self.down.broken().is_none();
        let of = move |device: &DeviceSample, vm: &VmSample| {
            Some(self.vms.get(&vm.vm)?.status(device, vm, second, is_known))
        };
        self.last.iter().flat_map(move |last| last.vms.iter().filter_map(move |vm| of(last, vm)))
    }
}
