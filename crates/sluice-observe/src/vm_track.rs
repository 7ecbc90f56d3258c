//! A VM on one device over time.

use std::collections::BTreeMap;

use sluice_api::cause::Cause;
use sluice_api::event::{EventKind, Neighbour, Right};
use sluice_api::status::{Histograms, Promise, State, Vm, Volume};
use sluice_api::top;
use sluice_sched::gate::{GateStats, Outcome};
use sluice_sched::policy::{LatencyTarget, Reservation};
use sluice_sched::{Phase, Policy};

use crate::cause::{self, DeviceState, NEARLY_ALL, Others, Scene};
use crate::client_track::ClientTrack;
use crate::failing::Failing;
use crate::flow::Flow;
use crate::glance;
use crate::history::History;
use crate::interval::Current;
use crate::judge::{self, Grain, Shortfall, Watch};
use crate::now::{About, Now, Subject};
use crate::pool_track::Shared;
use crate::reading::{PromisesReading, Violations, VmReading};
use crate::recent::{JOINED, Recent};
use crate::sample::{DeviceSample, VmSample, VolumeSample};
use crate::status;

/// Neighbours that an event names.
const NEIGHBOURS: usize = 3;

/// All VMs of a device in one interval.
pub(crate) struct Interval<'a> {
    pub(crate) last: &'a DeviceSample,
    pub(crate) sample: &'a DeviceSample,
    /// Counts of each VM of the sample.
    flows: Vec<Flow>,
    /// All of them together.
    pub(crate) total: Flow,
    /// Indices of those with most of the service, largest first.
    largest: Vec<usize>,
    /// Their service by reservation and by weight, in raw cost units.
    by_right: [f64; 2],
    /// The two with most service by weight for each unit of weight, and how much that is; the most first.
    by_weight_each: [(usize, f64); 2],
}

impl<'a> Interval<'a> {
    pub(crate) fn between(last: &'a DeviceSample, sample: &'a DeviceSample) -> Interval<'a> {
        let of = |vm: &VmSample| {
            let before = last.vm(&vm.vm);
            let flow = Flow::between(before.map(|vm| vm.stats.as_ref()), last.at, &vm.stats, sample.at)
                .of_link(sample.uplink.is_some());
            let cpu = before.map(|vm| vm.cpu).unwrap_or_default();
            Flow {
                cpu_nanos: vm.cpu.used_nanos.saturating_sub(cpu.used_nanos),
                held_nanos: vm.cpu.held_nanos.saturating_sub(cpu.held_nanos),
                ..flow
            }
        };
        let flows: Vec<Flow> = sample.vms.iter().map(of).collect();
        let mut total = Flow { is_link: sample.uplink.is_some(), ..Flow::default() };
        flows.iter().for_each(|flow| total.add(flow));
        total.nanos = sample.at.nanos_since(last.at);
        let mut largest: Vec<usize> = (0..flows.len()).filter(|&vm| flows[vm].dispatched_cost > 0).collect();
        largest.sort_by_key(|&vm| std::cmp::Reverse(flows[vm].dispatched_cost));
        largest.truncate(NEIGHBOURS + 1);
        let by_right =
            [Phase::Reservation, Phase::Weight].map(|phase| flows.iter().map(|flow| flow.cost_by(phase)).sum());
        let by_weight_each = most_by_weight(sample, &flows);
        Interval { last, sample, flows, total, largest, by_right, by_weight_each }
    }

    /// Number of VMs that have a reservation and asked for it.
    pub(crate) fn reserving(&self) -> usize {
        let all = self.sample.vms.iter().zip(&self.flows);
        all.filter(|(vm, flow)| vm.policy.is_reserved() && flow.backlogged_nanos > 0).count()
    }

    /// Whether the device completed less than VMs had reserved for the time in which they had a queue.
    pub(crate) fn misses_reservations(&self) -> bool {
        let asked = |reserved: &dyn Fn(&VmSample) -> f64| -> f64 {
            let all = self.sample.vms.iter().zip(&self.flows);
            all.map(|(vm, flow)| reserved(vm) * flow.backlogged()).sum()
        };
        let bytes = self.total.per_second(self.total.dispatched_bytes as f64);
        self.total.normalised_iops() < asked(&VmSample::reserved_iops) * NEARLY_ALL
            || bytes < asked(&|vm| vm.reserved_bytes() as f64) * NEARLY_ALL
    }

    /// Dispatched service of all other VMs together.
    fn others(&self, index: usize) -> Others {
        let (own, [by_reservation, by_weight]) = (&self.flows[index], self.by_right);
        let most = self.by_weight_each.into_iter().find(|(vm, _)| *vm != index);
        Others {
            cost: self.total.dispatched_cost - own.dispatched_cost,
            by_reservation: by_reservation - own.cost_by(Phase::Reservation),
            by_weight: by_weight - own.cost_by(Phase::Weight),
            by_weight_each: most.map_or(0.0, |(_, each)| each),
        }
    }

    /// The neighbours of a VM with most of the service.
    fn neighbours(&self, index: usize) -> Vec<Neighbour> {
        let of = |&other: &usize| {
            let flow = &self.flows[other];
            let by =
                [(Phase::Reservation, Right::Reservation), (Phase::Weight, Right::Weight), (Phase::None, Right::Other)];
            let by = by.into_iter().max_by_key(|(phase, _)| flow.dispatched[*phase as usize]);
            let part = flow.dispatched_cost as f64 / self.total.dispatched_cost as f64;
            Neighbour {
                vm: self.sample.vms[other].vm.clone(),
                iops: flow.per_second(flow.dispatched_requests()).round(),
                percent: (1000.0 * part).round() / 10.0,
                by: by.map_or(Right::Other, |(_, right)| right),
            }
        };
        self.largest.iter().filter(|&&other| other != index).take(NEIGHBOURS).map(of).collect()
    }
}

/// Whether a VM, or each of its volumes with a queue, gets all that its limit lets through. A volume without counts has those of its VM.
fn fills_limit(sample: &VmSample, own: &Flow, of_volumes: &[Option<Flow>]) -> bool {
    let volumes = sample.volumes.iter().zip(of_volumes).map(|(volume, flow)| (volume, flow.as_ref().unwrap_or(own)));
    let mut queued = volumes.filter(|(_, flow)| flow.backlogged_nanos > 0).peekable();
    let is_full = |(volume, flow): (&VolumeSample, &Flow)| cause::fills_limit(&volume.policy, flow);
    cause::fills_limit(&sample.policy, own) || queued.peek().is_some() && queued.all(is_full)
}

/// Returns the two VMs that got most by weight for each unit of weight.
fn most_by_weight(sample: &DeviceSample, flows: &[Flow]) -> [(usize, f64); 2] {
    let mut most = [(usize::MAX, 0.0); 2];
    for (index, (vm, flow)) in sample.vms.iter().zip(flows).enumerate() {
        let one = (index, cause::by_weight_each(&vm.policy, flow));
        if one.1 > most[0].1 {
            most = [one, most[0]];
        } else if one.1 > most[1].1 {
            most[1] = one;
        }
    }
    most
}

/// A promise that was broken in an interval.
#[derive(Debug, Clone, Copy)]
enum Broken {
    Reservation(Shortfall),
    Latency(LatencyTarget),
}

/// A VM or volume over time.
#[derive(Debug, Default, Clone)]
struct Series {
    recent: Recent,
    history: History,
    current: Current,
}

impl Series {
    fn push(&mut self, second: u64, flow: Flow) {
        self.history.push(second, &flow);
        self.recent.push(flow);
    }
}

/// The promises to a VM or volume.
#[derive(Debug, Default)]
struct Promises {
    /// The reservation at the last sample, and the number of intervals since then in which it was in force all the time.
    reserved: Option<(Reservation, usize)>,
    /// The latency target at the last sample, and for how many intervals it has been in force all the time.
    targeted: Option<(Option<LatencyTarget>, usize)>,
    /// Size of a request, see [`Grain::step`], from the last ten seconds in which one was dispatched.
    step: (f64, f64),
    reservation: Watch<About>,
    latency: Watch<About>,
    violations: Violations,
}

#[derive(Debug, Default)]
struct VolumeTrack {
    /// `None`: that of its VM.
    series: Option<Series>,
    promises: Promises,
    clients: ClientTrack,
    failing: Failing,
}

impl VolumeTrack {
    /// Ends what is not as it should be, because the volume is gone.
    fn end(&mut self, now: &mut Now<'_>, (vm, volume): (&str, &str)) {
        self.promises.end(now, (vm, Some(volume)));
        let over = self.series.as_mut().and_then(|series| series.current.take());
        now.keep((vm, Some(volume)), false, over);
        self.clients.end(now, (vm, volume));
        self.failing.end(now, vm, volume);
    }
}

/// A VM on one device over time.
#[derive(Debug, Default)]
pub(crate) struct VmTrack {
    series: Series,
    promises: Promises,
    held_by: Option<Cause>,
    /// Boxed, because a node of the map has room for eleven, and most VMs have one.
    volumes: BTreeMap<String, Box<VolumeTrack>>,
}

impl VmTrack {
    /// Adds what VM `index` of the interval got.
    pub(crate) fn push(&mut self, now: &mut Now<'_>, interval: &Interval<'_>, index: usize, device: DeviceState) {
        let (sample, own) = (&interval.sample.vms[index], &interval.flows[index]);
        self.begin_again(now, interval, sample);
        let flows = self.push_volumes(now.second, interval, sample);
        self.series.push(now.second, own.clone());
        let is_busy = !own.is_idle() || sample.stats.outstanding.waiting > 0;
        let others = interval.others(index);
        let of_volumes =
            sample.volumes.iter().zip(&flows).map(|(volume, flow)| (&volume.policy, flow.as_ref().unwrap_or(own)));
        let mut limits = of_volumes.chain([(&sample.policy, own)]);
        let at_limit = is_busy && limits.any(|(policy, flow)| cause::reaches(policy, flow));
        let fills_limit = is_busy && fills_limit(sample, own, &flows);
        let of_vm = Scene { device, policy: &sample.policy, own, others: &others, at_limit, fills_limit };
        self.held_by = is_busy.then(|| of_vm.why_not_more());
        let explain = |policy: &Policy, flow: &Flow, broken: Broken| {
            let scene = Scene { policy, own: flow, ..of_vm };
            let cause = match broken {
                Broken::Reservation(shortfall) => scene.why_too_little(1.0 - shortfall.got / shortfall.wanted),
                Broken::Latency(target) => scene.why_too_late(u64::try_from(target.p99.as_nanos()).unwrap_or(u64::MAX)),
            };
            let detail = match (cause, broken) {
                (Cause::DaemonCpu, _) => Some(device.cpu_in_words()),
                (Cause::OwnQueue, Broken::Reservation(_)) => cause::own_queue_in_words(policy, flow),
                (Cause::Pool, _) => pool_in_words(interval.sample),
                _ => None,
            };
            About::new(cause, interval.neighbours(index)).with(detail)
        };
        let vm = sample.vm.as_str();
        self.promises.judge(now, (vm, None), &sample.policy, (&self.series.recent, own), device.turn, &explain);
        for (volume, flow) in sample.volumes.iter().zip(&flows) {
            let track = self.volumes.get_mut(&volume.volume).expect("each volume of the sample has been added");
            let recent = track.series.as_ref().map_or(&self.series.recent, |series| &series.recent);
            let recent = (recent, flow.as_ref().unwrap_or(own));
            track.promises.judge(now, (vm, Some(&volume.volume)), &volume.policy, recent, device.turn, &explain);
            if let Some(series) = &mut track.series {
                let is_broken = track.promises.is_broken(now.second);
                let over =
                    series.current.push(now.time / 60, flow.as_ref().unwrap_or(own), volume.outstanding, is_broken);
                now.keep((vm, Some(&volume.volume)), false, over);
            }
            track.clients.push(now, (vm, &volume.volume), &volume.client_faults);
            track.failing.look(now, vm, volume);
        }
        self.keep(now, own, sample);
    }

    /// Adds a second to the minute of the VM as a whole.
    fn keep(&mut self, now: &mut Now<'_>, own: &Flow, sample: &VmSample) {
        let all = self.volumes.values().map(|track| &track.promises).chain([&self.promises]);
        let is_broken = all.into_iter().any(|promises| promises.is_broken(now.second));
        let over = self.series.current.push(now.time / 60, own, sample.outstanding, is_broken);
        now.keep((&sample.vm, self.only_volume()), true, over);
    }

    /// The volume that is all that the VM has on the device.
    fn only_volume(&self) -> Option<&str> {
        let (name, track) = self.volumes.first_key_value()?;
        (self.volumes.len() == 1 && track.series.is_none()).then_some(name.as_str())
    }

    /// Ends what was promised to a VM or volume that is gone. One that has been added again since the last sample is
    /// another one, which keeps the history of its name.
    fn begin_again(&mut self, now: &mut Now<'_>, interval: &Interval<'_>, sample: &VmSample) {
        let Interval { last, .. } = interval;
        let vm = sample.vm.as_str();
        let is_other = |before: Option<&GateStats>, stats: &GateStats| {
            before.is_some_and(|before| before.began != stats.began && stats.began >= last.at)
        };
        if is_other(last.vm(vm).map(|vm| vm.stats.as_ref()), &sample.stats) {
            self.end(now, vm);
            self.promises = Promises::default();
            self.series.recent = Recent::default();
        }
        let gone = |name: &String, _: &mut _| sample.volumes.iter().all(|volume| volume.volume != *name);
        for (name, mut track) in self.volumes.extract_if(.., gone) {
            track.end(now, (vm, &name));
        }
        for volume in &sample.volumes {
            let stats = volume.stats.as_ref().unwrap_or(&sample.stats);
            let track = self.volumes.entry(volume.volume.clone()).or_default();
            if is_other(last.stats_of_volume(vm, &volume.volume), stats) {
                track.end(now, (vm, &volume.volume));
                (track.promises, track.clients, track.failing) = Default::default();
                track.series.iter_mut().for_each(|series| series.recent = Recent::default());
            }
        }
    }

    /// Adds what volumes with counters of their own got. A volume that gets them with the second volume of its VM has had
    /// those of the VM until now, and keeps its past.
    fn push_volumes(&mut self, second: u64, interval: &Interval<'_>, sample: &VmSample) -> Vec<Option<Flow>> {
        let (last, vm) = (interval.last, sample.vm.as_str());
        let push = |volume: &VolumeSample| {
            let track = self.volumes.get_mut(&volume.volume).expect("each volume of the sample has been added");
            let Some(stats) = &volume.stats else {
                // After a restart of the device thread, the counters of the only volume are those of its VM.
                track.series = None;
                return None;
            };
            let before = last.stats_of_volume(vm, &volume.volume);
            let had_those_of_its_vm = before.is_some_and(|before| before.began == stats.began);
            let of_vm = || Series { current: Current::default(), ..self.series.clone() };
            let past = || if had_those_of_its_vm { of_vm() } else { Series::default() };
            let flow = Flow::between(before, last.at, stats, interval.sample.at);
            let flow = flow.of_link(interval.sample.uplink.is_some());
            track.series.get_or_insert_with(past).push(second, flow.clone());
            Some(flow)
        };
        sample.volumes.iter().map(push).collect()
    }

    /// Ends its violations, because it is gone.
    pub(crate) fn end(&mut self, now: &mut Now<'_>, vm: &str) {
        self.promises.end(now, (vm, None));
        let over = self.series.current.take();
        now.keep((vm, self.only_volume()), true, over);
        for (name, track) in &mut self.volumes {
            track.end(now, (vm, name));
        }
    }

    pub(crate) fn history(&self, volume: Option<&str>) -> Option<&History> {
        self.series(volume).map(|series| &series.history)
    }

    pub(crate) fn histograms(&self, volume: Option<&str>) -> Option<Histograms> {
        self.series(volume).map(|series| glance::histograms(&series.recent))
    }

    /// The series of the VM, or of one of its volumes.
    fn series(&self, volume: Option<&str>) -> Option<&Series> {
        let Some(volume) = volume else { return Some(&self.series) };
        Some(self.volumes.get(volume)?.series.as_ref().unwrap_or(&self.series))
    }

    /// The current state of the VM and its volumes, in a compact form. `is_known`: its device serves.
    pub(crate) fn glance(&self, device: &str, sample: &VmSample, second: u64, is_known: bool) -> top::Vm {
        let (nothing, none) = (Flow::default(), Promises::default());
        let volumes = sample.volumes.iter().map(|volume| {
            let known = self.volumes.get(&volume.volume);
            let own = known.and_then(|known| known.series.as_ref()).map(|series| &series.recent);
            let promises = known.map_or(&none, |known| &known.promises);
            let last = own.unwrap_or(&self.series.recent).last_flow().unwrap_or(&nothing);
            let promises = promises.status(&volume.policy, last, is_known, second);
            let now = glance::figures(&volume.policy, own, promises, (volume.outstanding, volume.clients));
            let failing = known.map_or_else(Vec::new, |known| known.failing.status(second));
            let failed_requests = Some(failed(volume.stats.as_deref().unwrap_or(&sample.stats)));
            top::Volume { volume: volume.volume.clone(), now, failed_requests, failing }
        });
        let volumes: Vec<top::Volume> = volumes.collect();
        let recent = &self.series.recent;
        let promises = self.promises.status(&sample.policy, recent.last_flow().unwrap_or(&nothing), is_known, second);
        let mut now = glance::figures(&sample.policy, Some(recent), promises, (sample.outstanding, sample.clients()));
        if volumes.iter().any(|volume| volume.now.state == Some(State::Broken)) {
            now.state = Some(State::Broken);
        }
        let cpu_percent = status::cpu(sample.cpu.limit, &recent.counts(JOINED)).used_percent;
        let (vm, device) = (sample.vm.clone(), device.to_owned());
        let (held_by, failed_requests) = (self.held_by, Some(failed(&sample.stats)));
        top::Vm { time: None, vm, device, now, held_by, cpu_percent, failed_requests, volumes }
    }

    /// Its promises. `is_known`: its device serves.
    pub(crate) fn reading(&self, sample: &VmSample, is_known: bool) -> VmReading {
        let of = |promises: &Promises, policy: &Policy| PromisesReading {
            broken: promises.broken(policy, is_known),
            violations: promises.violations.clone(),
        };
        let volume = |volume: &VolumeSample| {
            let known = self.volumes.get(&volume.volume);
            known.map_or_else(PromisesReading::default, |known| of(&known.promises, &volume.policy))
        };
        let failing = sample
            .volumes
            .iter()
            .map(|volume| self.volumes.get(&volume.volume).map_or_else(Vec::new, |known| known.failing.kinds()));
        VmReading {
            promises: of(&self.promises, &sample.policy),
            volumes: sample.volumes.iter().map(volume).collect(),
            failing: failing.collect(),
        }
    }

    /// The facts behind the cause why it does not get more, in words.
    fn held_by_detail(&self, device: &DeviceSample, sample: &VmSample) -> Option<String> {
        match self.held_by? {
            Cause::OwnQueue => cause::own_queue_in_words(&sample.policy, &self.series.recent.counts(JOINED)),
            Cause::Pool => pool_in_words(device),
            _ => None,
        }
    }

    /// The current state of the VM and its volumes. `is_known`: its device serves.
    pub(crate) fn status(&self, device: &DeviceSample, sample: &VmSample, second: u64, is_known: bool) -> Vm {
        let recent = &self.series.recent;
        let promises =
            |promises: &Promises, policy: &Policy, last: &Flow| promises.status(policy, last, is_known, second);
        let volumes = sample.volumes.iter().map(|volume| {
            let known = self.volumes.get(&volume.volume);
            let own = known.and_then(|known| known.series.as_ref()).map(|series| &series.recent);
            let recent = own.unwrap_or(recent);
            let (none, failing) =
                (Promises::default(), known.map_or_else(Vec::new, |known| known.failing.status(second)));
            let known = known.map_or(&none, |known| &known.promises);
            let promises = promises(known, &volume.policy, &recent.counts(1));
            Volume {
                vm: sample.vm.clone(),
                volume: volume.volume.clone(),
                device: device.device.clone(),
                state: State::worst(&promises),
                policy: status::policy(&volume.policy),
                rates: status::intervals(recent),
                parts: status::parts(&recent.counts(JOINED)),
                outstanding: volume.outstanding,
                clients: volume.clients,
                promises,
                client_faults: status::client_faults(&volume.client_faults),
                failed_requests: failed(volume.stats.as_deref().unwrap_or(&sample.stats)),
                failing,
                nic: volume.nic.as_deref().map(status::nic),
                disk: None,
                histograms: None,
            }
        });
        let volumes = volumes.collect();
        let promises = promises(&self.promises, &sample.policy, &recent.counts(1));
        let mut vm = Vm {
            vm: sample.vm.clone(),
            device: device.device.clone(),
            state: State::worst(&promises),
            policy: status::policy(&sample.policy),
            rates: status::intervals(recent),
            parts: status::parts(&recent.counts(JOINED)),
            outstanding: sample.outstanding,
            waiting: sample.stats.outstanding.waiting,
            in_flight: sample.stats.outstanding.in_flight,
            clients: sample.clients(),
            promises,
            failed_requests: failed(&sample.stats),
            held_by: self.held_by,
            held_by_detail: self.held_by_detail(device, sample),
            cpu: status::cpu(sample.cpu.limit, &recent.counts(JOINED)),
            volumes,
            histograms: None,
        };
        if vm.is_broken() {
            vm.state = State::Broken;
        }
        vm
    }
}

/// The facts behind [`Cause::Pool`], in words.
fn pool_in_words(sample: &DeviceSample) -> Option<String> {
    Shared::of(sample)?.cause_in_words()
}

/// Returns the number of requests that have failed, without pieces of them.
fn failed(stats: &GateStats) -> u64 {
    stats.ended[Outcome::Failed as usize].iter().sum()
}

impl Promises {
    /// Whether one of them was not kept in the last second.
    fn is_broken(&self, second: u64) -> bool {
        let broken = [&self.reservation, &self.latency].into_iter().filter_map(Watch::broken);
        broken.into_iter().any(|broken| broken.until == second)
    }

    /// Whether each promise of a policy is broken.
    fn broken(&self, policy: &Policy, is_known: bool) -> Vec<(EventKind, bool)> {
        let all = [
            (EventKind::Reservation, policy.is_reserved(), &self.reservation),
            (EventKind::Latency, policy.latency.is_some(), &self.latency),
        ];
        let stated = all.into_iter().filter(|(_, is_stated, _)| *is_stated);
        stated.map(|(kind, _, watch)| (kind, is_known && watch.broken().is_some())).collect()
    }

    fn judge(
        &mut self,
        now: &mut Now<'_>,
        (vm, volume): (&str, Option<&str>),
        policy: &Policy,
        (recent, last): (&Recent, &Flow),
        turn: f64,
        explain: &dyn Fn(&Policy, &Flow, Broken) -> About,
    ) {
        let subject = |kind| Subject { kind, vm: Some(vm), volume };
        let (promised, intervals) = self.reserve(&policy.reservation);
        let targeted = self.target(policy.latency);
        if policy.is_reserved() {
            self.step = recent.counts(JOINED).step().unwrap_or(self.step);
            let grain = Grain { step: self.step, turn };
            let found = judge::reservation(&promised, last, &recent.counts(intervals), grain);
            now.judge(subject(EventKind::Reservation), &mut self.reservation, found, || {
                explain(policy, last, Broken::Reservation(found.expect("it is explained because it was found")))
            });
            self.violations.add(EventKind::Reservation, found, &self.reservation, recent);
        } else {
            now.end(subject(EventKind::Reservation), &mut self.reservation);
        }
        if let Some(target) = policy.latency {
            let found = judge::latency(&recent.counts(targeted.min(1)), &recent.counts(targeted));
            now.judge(subject(EventKind::Latency), &mut self.latency, found, || {
                explain(policy, last, Broken::Latency(target))
            });
            self.violations.add(EventKind::Latency, found, &self.latency, recent);
        } else {
            now.end(subject(EventKind::Latency), &mut self.latency);
        }
    }

    /// Records the current reservation. Returns the one that was in force in the whole of the last interval, and for how many intervals.
    fn reserve(&mut self, reservation: &Reservation) -> (Reservation, usize) {
        let (promised, intervals) = match self.reserved {
            Some((before, intervals)) if before == *reservation => (before, intervals + 1),
            Some((before, _)) => (judge::lesser(&before, reservation), 0),
            None => (*reservation, 1),
        };
        self.reserved = Some((*reservation, intervals));
        (promised, intervals)
    }

    /// Records the current latency target. Returns for how many intervals it has been in force all the time: requests of the
    /// interval of a change were counted by either.
    fn target(&mut self, target: Option<LatencyTarget>) -> usize {
        let intervals = match self.targeted {
            Some((before, intervals)) if before == target => intervals + 1,
            Some(_) => 0,
            None => 1,
        };
        self.targeted = Some((target, intervals));
        intervals
    }

    /// Ends violations, because the VM or volume is gone.
    fn end(&mut self, now: &mut Now<'_>, (vm, volume): (&str, Option<&str>)) {
        let subject = |kind| Subject { kind, vm: Some(vm), volume };
        now.end(subject(EventKind::Reservation), &mut self.reservation);
        now.end(subject(EventKind::Latency), &mut self.latency);
    }

    fn status(&self, policy: &Policy, last: &Flow, is_known: bool, second: u64) -> Vec<Promise> {
        let promise = |kind, watch: &Watch<About>, asked: bool| {
            let broken = watch.broken();
            let state = match broken {
                _ if !is_known => State::Unknown,
                Some(_) => State::Broken,
                None if asked => State::Kept,
                None => State::NotAsked,
            };
            Promise {
                kind,
                state,
                for_seconds: broken.map(|broken| second + 1 - broken.since),
                wanted: broken.map(|broken| broken.now.wanted.round()),
                got: broken.map(|broken| (broken.now.got * 10.0).round() / 10.0),
                unit: broken.map(|broken| broken.now.unit),
                cause: broken.map(|broken| broken.about.cause),
            }
        };
        let mut promises = Vec::new();
        if policy.reservation.iops.is_some() || policy.reservation.bytes.is_some() {
            let asked = last.backlogged_nanos > 0 || last.requests() > 0;
            promises.push(promise(EventKind::Reservation, &self.reservation, asked));
        }
        if policy.latency.is_some() {
            promises.push(promise(EventKind::Latency, &self.latency, last.judged > 0));
        }
        promises
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use sluice_sched::Instant;

    use super::*;
    use crate::observer::Observer;
    use crate::sample::{ClientFaults, CpuSample, Sample};

    #[test]
    fn a_volume_that_became_the_only_one_kept_the_rates_of_its_last_second_apart() {
        let mut observer = Observer::default();
        let mut rates = |second: u64, is_apart: bool, requests: u64| {
            let mut stats = GateStats::default();
            (stats.outstanding.arrived, stats.ended[0][0]) = (requests, requests);
            // The gate of the only volume is made after the second sample.
            stats.began = Instant::from_millis(if is_apart { 0 } else { 2500 });
            let stats = Arc::new(stats);
            let (policy, outstanding, clients) = (Policy::default(), 0, 1);
            let apart = is_apart.then(|| Arc::clone(&stats));
            let volume = VolumeSample {
                volume: "v".to_owned(),
                policy,
                stats: apart,
                outstanding,
                clients,
                left: 0,
                client_faults: ClientFaults::default(),
                faults: Default::default(),
                nic: None,
            };
            let cpu = CpuSample::default();
            let vm = VmSample { vm: "a".to_owned(), policy, stats, cpu, outstanding, volumes: vec![volume] };
            let at = Instant::from_nanos(second * 1_000_000_000);
            let device =
                DeviceSample { at, serving: true, health: "serving", vms: vec![vm], ..DeviceSample::unknown("disk") };
            observer.push(Sample { second, time: second, devices: vec![device] });
            let status = observer.status();
            let vm = status.vms.first();
            vm.map(|vm| (vm.rates.second.iops, vm.volumes[0].rates.second.iops)).unwrap_or_default()
        };
        assert_eq!(rates(1, true, 0), (0.0, 0.0));
        assert_eq!(rates(2, true, 50), (50.0, 50.0));
        assert_eq!(rates(3, false, 10), (10.0, 10.0), "the gate was made again, with one volume");
    }
}
