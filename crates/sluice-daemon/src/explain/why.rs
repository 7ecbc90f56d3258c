//! `sluice why`: what is so of a VM, what was, and what would help, in words.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use sluice_api::VERSION;
use sluice_api::amount::{percent, rate, span, time};
use sluice_api::cause::Cause;
use sluice_api::event::Neighbour;
use sluice_api::event::{Event, EventKind, Events, Phase};
use sluice_api::request::Request;
use sluice_api::status::{Device, State, Status, Vm};
use sluice_api::why;

use super::advice::{Known, advice};
use super::promise::broken;
use super::{failing, failing_of, neighbours, sentence, shares};

/// Neighbours that are named.
const NEIGHBOURS: usize = 3;

/// Time that is looked at if none is stated, in seconds.
const HOUR: u64 = 3600;

/// A question about a VM: it says which events it needs, is given them, and has the answer when it needs no more.
pub struct Question {
    vm: String,
    /// Seconds since 1970.
    since: u64,
    now: u64,
    /// What is so now, if a daemon runs.
    status: Option<Status>,
    events: Vec<Event>,
    /// What is asked for next: events of the VM, then those of each of its devices.
    of: Of,
    /// Number of the last event that has come of it.
    after: u64,
}

enum Of {
    Vm,
    /// The first of these.
    Devices(Vec<String>),
}

impl Question {
    /// `status` is what is so now, if a daemon runs; times are seconds since 1970.
    #[must_use]
    pub fn new(vm: &str, since: Option<u64>, now: u64, status: Option<Status>) -> Question {
        let since = since.unwrap_or(now.saturating_sub(HOUR)).min(now);
        Question { vm: vm.to_owned(), since, now, status, events: Vec::new(), of: Of::Vm, after: 0 }
    }

    /// The events that it needs next.
    #[must_use]
    pub fn needs(&self) -> Option<Request> {
        let (vm, device) = match &self.of {
            Of::Vm => (Some(self.vm.clone()), None),
            Of::Devices(devices) => (None, Some(devices.first()?.clone())),
        };
        let (since, after) = (Some(self.since), Some(self.after));
        Some(Request::Events { since, until: None, after, vm, device, kind: None, limit: None })
    }

    /// Takes what it has asked for.
    pub fn take(&mut self, page: Events) {
        let (more, last) = (page.more, page.last);
        match &mut self.of {
            Of::Vm => self.events.extend(page.events),
            Of::Devices(_) => self.events.extend(page.events.into_iter().filter(|event| event.vm.is_none())),
        }
        if more {
            self.after = last;
            return;
        }
        self.after = 0;
        let devices = match &mut self.of {
            Of::Vm => self.devices(),
            Of::Devices(devices) => devices.split_off(1),
        };
        self.of = Of::Devices(devices);
    }

    /// The devices of the VM: those that serve it, or, without a daemon, those of its events.
    fn devices(&self) -> Vec<String> {
        let devices: BTreeSet<&String> = match &self.status {
            Some(status) => status.vms.iter().filter(|vm| vm.vm == self.vm).map(|vm| &vm.device).collect(),
            // A change has none.
            None => self.events.iter().map(|event| &event.device).filter(|device| !device.is_empty()).collect(),
        };
        devices.into_iter().cloned().collect()
    }

    /// The answer.
    ///
    /// # Errors
    /// Text that says that no VM has this name.
    pub fn answer(self) -> Result<why::Why, String> {
        let status = self.status.unwrap_or_default();
        if self.events.is_empty() && !status.vms.iter().any(|known| known.vm == self.vm) {
            return Err(unknown(&self.vm, &status));
        }
        Ok(Answer::of(&self.vm, &status, &self.events, (self.since, self.now)).told())
    }
}

/// Says that no VM has this name, and what has it.
fn unknown(name: &str, status: &Status) -> String {
    let error = format!("There is no VM {name}, and no event of one");
    if let Some(volume) = status.volumes().find(|volume| volume.id().to_string() == name) {
        return format!("{error}: it is a volume or a NIC; `sluice why {}` explains its VM", volume.vm);
    }
    if status.devices.iter().any(|device| device.device == name) {
        return format!(
            "{error}: it is a device; `sluice describe {name}` shows it, and `sluice events --device {name}` its past"
        );
    }
    format!("{error}; `sluice get vms` lists the VMs")
}

/// The answer for one VM.
struct Answer<'a> {
    vm: &'a str,
    /// The VM on each of its devices: those that serve it now come first.
    devices: Vec<OnDevice<'a>>,
    /// What was changed of it, in sentences.
    changes: Vec<String>,
    /// Length of the time that was looked at, in seconds.
    seconds: u64,
}

/// A VM on one device.
struct OnDevice<'a> {
    /// `-` if it is not known, as of volumes that are held back.
    device: &'a str,
    /// `None` if it does not serve the VM.
    now: Option<&'a Vm>,
    /// The device, and all VMs, if it serves the VM.
    around: Option<(&'a Device, &'a [Vm])>,
    /// The part of the VM in what the device gives.
    own: Option<Neighbour>,
    /// The largest parts of others.
    neighbours: Vec<Neighbour>,
    /// By the VM or VM/VOLUME, and the name of the kind.
    violations: BTreeMap<(String, &'static str), Violation>,
    /// Events of the device, in sentences.
    events: Vec<String>,
}

/// All violations of one promise.
#[derive(Debug, Default)]
struct Violation {
    told: why::Violation,
    /// Neighbours that were served during the last one.
    neighbours: Option<String>,
    /// Beginning of one that has not ended, in seconds since 1970.
    began: Option<u64>,
}

/// A promise that is broken now.
struct BrokenNow {
    name: String,
    kind: EventKind,
    cause: Cause,
    /// Seconds for which it has been.
    seconds: u64,
}

/// Returns the promises of a VM and its volumes on one device that are broken now.
fn broken_now(now: &Vm) -> impl Iterator<Item = BrokenNow> {
    let broken = now.all_promises().filter(|(_, promise)| promise.state == State::Broken);
    broken.map(|(volume, promise)| BrokenNow {
        name: volume.map_or_else(|| now.vm.clone(), |volume| volume.id().to_string()),
        kind: promise.kind,
        cause: promise.cause.unwrap_or_default(),
        seconds: promise.for_seconds.unwrap_or(0),
    })
}

impl<'a> Answer<'a> {
    /// `events` are those of the VM and its devices from `since` to `now`, in seconds since 1970.
    fn of(vm: &'a str, status: &'a Status, events: &'a [Event], (since, until): (u64, u64)) -> Answer<'a> {
        let now = status.vms.iter().filter(|known| known.vm == vm);
        let mut devices: Vec<OnDevice<'_>> = now.map(|vm| OnDevice::serving(vm, status)).collect();
        let (changes, events): (Vec<&Event>, Vec<&Event>) =
            events.iter().partition(|event| event.phase == Phase::Happened);
        let changes = changes.into_iter().map(sentence).collect();
        for event in events {
            let known = devices.iter().position(|known| known.device == event.device);
            let index = known.unwrap_or_else(|| {
                devices.push(OnDevice::new(&event.device));
                devices.len() - 1
            });
            devices[index].add(event, since);
        }
        devices.iter_mut().for_each(|device| device.until((since, until)));
        Answer { vm, devices, changes, seconds: until - since }
    }

    /// The causes of what is so now and of what was, the longest first.
    fn causes(&self) -> Vec<Cause> {
        let violated = self.devices.iter().any(OnDevice::is_violated);
        sorted(self.devices.iter().filter(|device| device.is_violated() || !violated))
    }

    /// Returns advice against each of these causes, for the first of the VM's devices that has it.
    fn advice(&self, causes: &[Cause]) -> Vec<String> {
        let known = causes.iter().filter(|cause| **cause != Cause::Unknown);
        let on = |cause: Cause| self.devices.iter().find(|on| on.causes().iter().any(|(known, _)| *known == cause));
        known.map(|cause| advice(*cause, on(*cause).and_then(OnDevice::known))).collect()
    }

    /// The answer for people.
    fn in_words(&self) -> String {
        let last = span(self.seconds);
        let mut parts: Vec<String> = self.devices.iter().map(|device| device.in_words(self.vm, &last)).collect();
        if parts.is_empty() {
            parts.push(format!("{} is not served now.\n\nIn the last {last} no promise to it was broken.", self.vm));
        }
        if !self.changes.is_empty() {
            parts.push(format!("Changes of it in the last {last}:\n  {}", self.changes.join("\n  ")));
        }
        parts.join("\n\n")
    }

    /// The answer for programs.
    fn told(&self) -> why::Why {
        let violations = self.devices.iter().flat_map(|on| {
            let device = on.device.to_owned();
            on.violations.values().map(move |known| why::Violation { device: device.clone(), ..known.told.clone() })
        });
        let by_device = self.devices.iter().map(|on| why::OnDevice {
            device: on.device.to_owned(),
            events: on.events.clone(),
            advice: on.advice(),
            causes: sorted([on]),
            own: on.own.clone(),
            neighbours: on.neighbours.clone(),
        });
        let causes = self.causes();
        why::Why {
            ok: true,
            version: VERSION,
            vm: self.vm.to_owned(),
            now: self.devices.iter().filter_map(|device| device.now).cloned().collect(),
            seconds: self.seconds,
            violations: violations.collect(),
            devices: self.devices.iter().flat_map(|device| &device.events).cloned().collect(),
            by_device: by_device.collect(),
            changes: self.changes.clone(),
            advice: self.advice(&causes),
            causes,
            text: self.in_words(),
        }
    }
}

/// Causes on these devices, the longest first, and equal ones by name.
fn sorted<'a>(devices: impl IntoIterator<Item = &'a OnDevice<'a>>) -> Vec<Cause> {
    let mut causes: BTreeMap<Cause, u64> = BTreeMap::new();
    for (cause, seconds) in devices.into_iter().flat_map(OnDevice::causes) {
        *causes.entry(cause).or_default() += seconds;
    }
    longest_first(&causes)
}

fn longest_first(causes: &BTreeMap<Cause, u64>) -> Vec<Cause> {
    let mut sorted: Vec<(Cause, u64)> = causes.iter().map(|(cause, seconds)| (*cause, *seconds)).collect();
    sorted.sort_by_key(|(cause, seconds)| (Reverse(*seconds), cause.name()));
    sorted.into_iter().map(|(cause, _)| cause).collect()
}

impl<'a> OnDevice<'a> {
    /// A device that does not serve the VM now.
    fn new(device: &'a str) -> OnDevice<'a> {
        let (violations, events, neighbours) = (BTreeMap::new(), Vec::new(), Vec::new());
        OnDevice { device, now: None, around: None, own: None, neighbours, violations, events }
    }

    /// A device that serves the VM.
    fn serving(vm: &'a Vm, status: &'a Status) -> OnDevice<'a> {
        let (own, mut neighbours): (Vec<_>, Vec<_>) =
            shares::of_device(&vm.device, &status.vms).into_iter().partition(|one| one.vm == vm.vm);
        neighbours.truncate(NEIGHBOURS);
        let device = status.devices.iter().find(|device| device.device == vm.device);
        OnDevice {
            now: Some(vm),
            around: device.map(|device| (device, status.vms.as_slice())),
            own: own.into_iter().next(),
            neighbours,
            ..OnDevice::new(&vm.device)
        }
    }

    /// The state that advice refers to; `None` without a daemon.
    fn known(&self) -> Option<Known<'_>> {
        let (device, vms) = self.around?;
        Some(Known { vm: self.now?, device, vms, neighbours: &self.neighbours })
    }

    fn advice(&self) -> Vec<String> {
        let causes = sorted([self]);
        let known = causes.iter().filter(|cause| **cause != Cause::Unknown);
        known.map(|cause| advice(*cause, self.known())).collect()
    }

    /// The parts of the VM and of its neighbours in what the device gives.
    fn shares(&self) -> Option<String> {
        let now = self.now?;
        let on = format!("device {}", now.device);
        let own =
            self.own.as_ref().map(|own| format!("It gets {} of what {on} gives{}.", percent(own.percent), rights(now)));
        let others = match shares::in_words(&self.neighbours) {
            Some(others) => format!("Its largest neighbours: {others}."),
            None => format!("No other VM asks {on} for anything."),
        };
        Some(own.into_iter().chain([others]).collect::<Vec<_>>().join(" "))
    }

    fn violation(&mut self, name: String, kind: EventKind) -> &mut Violation {
        let of = self.violations.entry((name.clone(), kind.name())).or_default();
        (of.told.name, of.told.kind) = (name, kind);
        of
    }

    fn add(&mut self, event: &Event, since: u64) {
        match event.vm {
            None => self.events.push(sentence(event)),
            Some(_) => self.violation(event.subject(), event.kind).add(event, since),
        }
    }

    /// Counts what lasts until the end of the time that is looked at.
    fn until(&mut self, (since, until): (u64, u64)) {
        for violation in self.violations.values_mut().filter(|violation| violation.is_absence()) {
            violation.lasts_since_it_began(until);
        }
        for broken in self.now.into_iter().flat_map(broken_now) {
            self.violation(broken.name.clone(), broken.kind).lasts_now(&broken, until - since);
        }
    }

    /// Whether a promise was broken, or is now.
    fn is_violated(&self) -> bool {
        !self.violations.is_empty()
    }

    /// Whether a volume is held back now.
    fn is_held_back(&self) -> bool {
        self.violations.values().any(|violation| violation.told.lasts && violation.told.kind == EventKind::HeldBack)
    }

    /// Seconds by cause; without a violation what holds the VM now.
    fn causes(&self) -> Vec<(Cause, u64)> {
        let violated = self.violations.values().flat_map(|violation| &violation.told.causes_seconds);
        let mut causes: Vec<(Cause, u64)> = violated.map(|(cause, seconds)| (*cause, (*seconds).max(1))).collect();
        let promises = self.now.into_iter().flat_map(|now| &now.promises);
        causes.extend(promises.filter_map(|promise| Some((promise.cause?, 1))));
        if causes.is_empty() {
            causes.extend(self.now.and_then(|now| now.held_by).map(|cause| (cause, 1)));
        }
        causes
    }

    fn in_words(&self, vm: &str, last: &str) -> String {
        let mut lines = vec![match (self.now, self.device) {
            (Some(now), _) => now_in_words(now),
            (None, _) if self.is_held_back() => format!("{vm} has volumes that are held back."),
            (None, "-") => format!("{vm} is not served now."),
            (None, device) => format!("{vm} is not served from device {device} now."),
        }];
        lines.extend(self.shares());
        lines.push(String::new());
        if !self.is_violated() {
            lines.push(format!("In the last {last} no promise to it was broken."));
        }
        lines.extend(self.violations.values().map(|violation| violation.in_words(last)));
        if !self.events.is_empty() {
            lines.push(String::new());
            lines.push("Its device meanwhile:".to_owned());
            lines.extend(self.events.iter().map(|sentence| format!("  {sentence}")));
        }
        let advice = self.advice();
        if !advice.is_empty() {
            lines.push(String::new());
            lines.push("What would help:".to_owned());
            lines.extend(advice.into_iter().map(|advice| format!("  {advice}")));
        }
        lines.join("\n")
    }
}

impl Violation {
    fn add(&mut self, event: &Event, since: u64) {
        let told = &mut self.told;
        self.neighbours = neighbours(event).or(self.neighbours.take());
        if told.kind.is_unserved() {
            told.detail = event.detail.clone().or(told.detail.take());
        }
        if event.phase == Phase::Began {
            told.count += 1;
            self.began = Some(event.time);
            told.causes_seconds.entry(event.cause).or_default();
            return;
        }
        // One that began before the time that is looked at.
        if self.began.take().is_none() {
            told.count += 1;
        }
        let seconds = event.seconds.min(event.time.saturating_sub(since));
        told.seconds += seconds;
        *told.causes_seconds.entry(event.cause).or_default() += seconds;
    }

    /// Whether it is about a volume that is not served, or about requests that fail: the state of promises says nothing of it.
    fn is_absence(&self) -> bool {
        self.told.kind.is_failing() || self.told.kind.is_unserved()
    }

    /// Counts one that has not ended until `now`.
    fn lasts_since_it_began(&mut self, now: u64) {
        if let Some(began) = self.began {
            self.told.lasts = true;
            self.told.seconds += now.saturating_sub(began);
        }
    }

    /// Counts one that lasts. One that has begun and neither ended nor lasts was cut off by the end of the daemon.
    fn lasts_now(&mut self, broken: &BrokenNow, seconds_max: u64) {
        self.told.lasts = true;
        if self.began.is_none() {
            self.told.count += 1;
        }
        self.told.seconds += broken.seconds.min(seconds_max);
        self.told.causes_seconds.entry(broken.cause).or_default();
    }

    fn in_words(&self, last: &str) -> String {
        let why::Violation { name, kind, count, seconds, lasts, causes_seconds, detail, .. } = &self.told;
        let what = match kind {
            EventKind::Reservation => "its reservation was broken",
            EventKind::Latency => "its latency target was broken",
            EventKind::HeldBack => "it was held back",
            EventKind::OutOfService => "it was out of service",
            EventKind::LinkDown => "its interface was down",
            EventKind::Refused => "requests of it were refused",
            EventKind::QueueStopped => "a queue of it had stopped",
            EventKind::NoSpace => "requests failed because there was no space",
            EventKind::Errors => "requests failed",
            EventKind::SourceShortened => "its source was shorter than the volume",
            EventKind::ServerAway => "its server was away",
            EventKind::ClientLost => "it had lost its client",
            other => other.name(),
        };
        let times = if *count == 1 { "once".to_owned() } else { format!("{count} times") };
        let causes =
            || longest_first(causes_seconds).into_iter().map(Cause::in_words).collect::<Vec<_>>().join(", then ");
        let causes = detail.clone().unwrap_or_else(causes);
        let lasts = match lasts {
            true if kind.is_failing() => ", and this has not ended",
            true => ", and still is",
            false => "",
        };
        let others = self.neighbours.as_ref().map_or(String::new(), |others| format!(" Served meanwhile: {others}."));
        format!(
            "{name}: in the last {last} {what} {times}, for {} in all{lasts}. Cause: {}.{others}",
            span(*seconds),
            causes.trim_end_matches('.')
        )
    }
}

/// By which rights a VM is served: `, 70 % of it by its reservation and 30 % by weight`.
fn rights(vm: &Vm) -> String {
    let parts = [(vm.parts.by_reservation_percent, "by its reservation"), (vm.parts.by_weight_percent, "by weight")];
    let parts = parts.into_iter().filter_map(|(part, by)| Some((part.filter(|part| *part >= 1.0)?, by)));
    match parts.collect::<Vec<_>>()[..] {
        [(_, by)] => format!(", {by}"),
        [(reserved, one), (weight, other)] => {
            format!(", {} of it {one} and {} {other}", percent(reserved), percent(weight))
        }
        _ => String::new(),
    }
}

fn now_in_words(vm: &Vm) -> String {
    let (name, device, ten) = (&vm.vm, &vm.device, &vm.rates.ten_seconds);
    let mut lines = Vec::new();
    if ten.iops == 0.0 && vm.outstanding == 0 {
        lines.push(format!("{name} asks for nothing on device {device} now."));
    } else {
        lines.push(format!(
            "{name} gets {} normalised iops on device {device}, with a p99 of {} from arrival to completion. It has {} requests \
             outstanding, and had a queue at the gate for {} of the last 10 s.",
            rate(ten.normalised_iops),
            ten.p99_us.map_or_else(|| "-".to_owned(), time),
            vm.outstanding,
            percent(vm.parts.backlogged_percent),
        ));
        if let Some(held_by) = vm.held_by {
            let detail = vm.held_by_detail.as_ref().map_or(String::new(), |detail| format!(" ({detail})"));
            lines.push(format!("It does not get more, or sooner, because of: {}{detail}.", held_by.in_words()));
        }
    }
    let of_volumes = vm.volumes.iter().flat_map(|volume| broken(&volume.id().to_string(), &volume.promises));
    let all = broken(name, &vm.promises).into_iter().chain(of_volumes);
    lines.extend(all.map(|line| format!("BROKEN now: {line}.")));
    lines.extend(failing(failing_of(vm)));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use sluice_api::event::{Neighbour, Right, Unit};
    use sluice_api::status::{DeviceSettings, Intervals, Parts, Promise, Rates};

    use super::Phase::{Began, Ended};
    use super::*;

    fn event(time: u64, phase: Phase, cause: Cause, seconds: u64) -> Event {
        let neighbour = Neighbour { vm: "web".to_owned(), iops: 0.0, percent: 61.2, by: Right::Weight };
        Event {
            time,
            phase,
            kind: EventKind::Reservation,
            vm: Some("db".to_owned()),
            device: "disk".to_owned(),
            cause,
            seconds,
            neighbours: vec![neighbour],
            ..Event::default()
        }
    }

    /// A VM that gets 200 requests per second.
    fn vm(name: &str) -> Vm {
        let ten_seconds = Rates { iops: 200.0, normalised_iops: 200.0, p99_us: Some(46_000.0), ..Rates::default() };
        Vm {
            vm: name.to_owned(),
            device: "disk".to_owned(),
            outstanding: 8,
            rates: Intervals { ten_seconds, ..Intervals::default() },
            parts: Parts { backlogged_percent: 100.0, ..Parts::default() },
            ..Vm::default()
        }
    }

    /// What a daemon with these VMs on one device replies.
    fn status(vms: &[Vm]) -> Status {
        let device = Device { device: "disk".to_owned(), ..Device::default() };
        Status { vms: vms.to_vec(), devices: vec![device], ..Status::default() }
    }

    /// A VM whose reservation is broken now.
    fn broken(cause: Cause, seconds: u64) -> Vm {
        let promise = Promise {
            kind: EventKind::Reservation,
            state: State::Broken,
            cause: Some(cause),
            for_seconds: Some(seconds),
            wanted: Some(100.0),
            got: Some(50.0),
            unit: Some(Unit::Iops),
        };
        Vm { promises: vec![promise], ..vm("db") }
    }

    #[test]
    fn violations_on_two_devices_were_one_with_the_causes_of_both() {
        let on = |device: &str, vm: Vm| Vm { device: device.to_owned(), ..vm };
        let of = |device: &str, event: Event| Event { device: device.to_owned(), ..event };
        let now = [on("fast", broken(Cause::OwnLimit, 10)), on("slow", broken(Cause::Device, 5))];
        let down = Event {
            vm: None,
            kind: EventKind::Down,
            text: "Device slow does not serve".to_owned(),
            ..of("slow", event(1100, Began, Cause::Device, 0))
        };
        let own_limit = of("fast", event(1190, Began, Cause::OwnLimit, 0));
        let events = [own_limit, of("gone", event(1100, Ended, Cause::Batch, 60)), down];
        let status = status(&now);
        let answer = Answer::of("db", &status, &events, (1000, 1200));
        let told = answer.told();
        let violations: Vec<_> =
            told.violations.iter().map(|one| (one.device.as_str(), one.count, one.seconds)).collect();
        assert_eq!(violations, [("fast", 1, 10), ("slow", 1, 5), ("gone", 1, 60)]);
        let causes: Vec<_> = told.by_device.iter().map(|one| one.causes.clone()).collect();
        assert_eq!(causes, [Cause::OwnLimit, Cause::Device, Cause::Batch].map(|cause| vec![cause]));
        let words = answer.in_words();
        let parts: Vec<&str> = ["on device fast", "on device slow", "not served from device gone"]
            .iter()
            .map(|start| &words[words.find(start).unwrap_or_else(|| panic!("{start}: {words}"))..])
            .collect();
        let [fast, slow, gone] = [0, 1, 2].map(|index| {
            parts.get(index + 1).map_or(parts[index], |next| &parts[index][..parts[index].len() - next.len()])
        });
        assert!(fast.contains("its own limit") && !fast.contains("does not serve"), "{fast}");
        assert!(slow.contains("for 5 s in all") && slow.contains("Device slow does not serve"), "{slow}");
        assert!(gone.contains("a batch of another VM") && !gone.contains("its own limit"), "{gone}");
    }

    #[test]
    fn a_violation_that_began_before_the_time_and_lasts_was_left_out() {
        let now = [broken(Cause::Device, 7200)];
        let status = status(&now);
        let answer = Answer::of("db", &status, &[], (1000, 4600));
        let violation = &answer.told().violations[0];
        assert_eq!((violation.count, violation.seconds, violation.lasts), (1, 3600, true));
        assert!(!answer.in_words().contains("no promise to it was broken"), "{}", answer.in_words());
    }

    #[test]
    fn a_violation_that_a_crash_of_the_daemon_cut_off_lasted_for_ever() {
        let events = [event(1100, Began, Cause::Device, 0)];
        let status = status(&[]);
        let answer = Answer::of("db", &status, &events, (1000, 4600));
        let violation = &answer.told().violations[0];
        assert_eq!((violation.count, violation.seconds, violation.lasts), (1, 0, false));
    }

    #[test]
    fn a_vm_whose_volume_was_detached_was_said_to_be_held_back() {
        let event = |time, phase, kind, device: &str| Event {
            kind,
            vm: Some("web".to_owned()),
            volume: Some("x".to_owned()),
            device: device.to_owned(),
            detail: Some("/x.img is a qcow2 image".to_owned()),
            ..event(time, phase, Cause::SourceUnavailable, 20)
        };
        let out = EventKind::OutOfService;
        let events = [event(1100, Began, out, "disk"), event(1120, Ended, out, "disk")];
        let words = Answer::of("web", &status(&[]), &events, (1000, 1200)).in_words();
        assert!(words.starts_with("web is not served from device disk now."), "{words}");
        let of_volume = "web/x: in the last 3 min 20 s it was out of service once, for 20 s in all. Cause: /x.img is a qcow2 image.";
        assert!(words.contains(of_volume) && words.matches("web/x:").count() == 1, "{words}");
        let held = [event(1100, Began, EventKind::HeldBack, "-")];
        let words = Answer::of("web", &status(&[]), &held, (1000, 1200)).in_words();
        assert!(words.starts_with("web has volumes that are held back."), "{words}");
        let over = [event(1100, Began, EventKind::HeldBack, "-"), event(1120, Ended, EventKind::HeldBack, "-")];
        let words = Answer::of("web", &status(&[]), &over, (1000, 1200)).in_words();
        assert!(words.starts_with("web is not served now."), "{words}");
    }

    #[test]
    fn violations_are_summed_by_promise_and_cause() {
        let events = [
            event(1010, Ended, Cause::Device, 30),
            event(1100, Began, Cause::OthersWeight, 0),
            event(1140, Ended, Cause::OthersWeight, 40),
            event(1190, Began, Cause::OthersWeight, 0),
        ];
        let now = [broken(Cause::OthersWeight, 10)];
        let status = status(&now);
        let answer = Answer::of("db", &status, &events, (1000, 1200));
        let told = answer.told();
        let violation = &told.violations[0];
        assert_eq!((violation.count, violation.seconds), (3, 60), "10 + 40 + 10");
        assert_eq!(violation.causes_seconds, [(Cause::Device, 10), (Cause::OthersWeight, 40)].into());
        assert_eq!((violation.lasts, told.causes[0]), (true, Cause::OthersWeight));
        let words = answer.in_words();
        for part in [
            "broken 3 times, for 1 min in all, and still is",
            "weights of other VMs, then the device",
            "web 61 % (by weight)",
        ] {
            assert!(words.contains(part), "{part}: {words}");
        }
    }

    #[test]
    fn a_vm_without_violations_is_told_what_holds_it() {
        let now = [Vm { held_by: Some(Cause::OwnLimit), ..vm("web") }];
        let words = Answer::of("web", &status(&now), &[], (0, 3600)).in_words();
        for part in ["gets 200 normalised iops", "because of: its own limit", "last 1 h no promise", "Raise the limit"]
        {
            assert!(words.contains(part), "{part}: {words}");
        }
    }
    #[test]
    fn a_vm_with_a_reservation_was_told_to_get_one_and_its_neighbours_were_not_named() {
        let on_disk = |name: &str, iops: f64, reserved: Option<f64>, by: f64| {
            let mut vm = vm(name);
            (vm.rates.ten_seconds.normalised_iops, vm.policy.reservation_iops) = (iops, reserved);
            (vm.parts.by_reservation_percent, vm.parts.by_weight_percent) = (Some(by), Some(100.0 - by));
            vm.policy.weight = Some(100.0);
            vm
        };
        let db = Vm { held_by: Some(Cause::OthersWeight), ..on_disk("db", 800.0, Some(800.0), 90.0) };
        let all = [db, on_disk("batch", 700.0, None, 0.0), on_disk("web", 500.0, Some(700.0), 100.0)];
        let mut status = status(&all);
        let settings = DeviceSettings { reservable_iops: Some(1960.0), ..DeviceSettings::default() };
        status.devices[0].settings = Some(settings);
        let words = |vm: &str, status: &Status| Answer::of(vm, status, &[], (0, 3600)).in_words();
        let of_db = words("db", &status);
        for part in [
            "It gets 40 % of what device disk gives, 90 % of it by its reservation and 10 % by weight.",
            "Its largest neighbours: batch 35 % (by weight), web 25 % (by reservation).",
            "Its reservation is 800 iops; up to 1260 iops fit.",
            "Give it a larger weight than 100, or limit its neighbours (batch).",
        ] {
            assert!(of_db.contains(part), "{part}: {of_db}");
        }
        status.vms[1].held_by = Some(Cause::OthersReservation);
        let of_batch = words("batch", &status);
        let lower = "It has no reservation; up to 460 iops fit. Lower the reservations of its neighbours (db, web)";
        assert!(of_batch.contains(lower), "{of_batch}");
        status.vms[2].held_by = Some(Cause::Batch);
        let settings = status.devices[0].settings.as_mut().unwrap();
        (settings.batch, settings.disk_is_rotational) = (Some(8), true);
        let of_web = words("web", &status);
        let batches =
            "`rotational = false` for device disk if it is an SSD: the disk reports a rotating one, so batches are on";
        assert!(of_web.contains(batches), "{of_web}");
        let told = Answer::of("db", &status, &[], (0, 3600)).told();
        let on = &told.by_device[0];
        let names: Vec<&str> = on.neighbours.iter().map(|one| one.vm.as_str()).collect();
        assert_eq!((names, on.own.as_ref().map(|own| own.percent)), (vec!["batch", "web"], Some(40.0)));
    }

    /// The advice to VM `c`, which gets nearly nothing beside two that have reserved most of the device.
    fn advice_to_c(cause: Cause, change: impl FnOnce(&mut Vm)) -> String {
        let on_disk = |name: &str, iops: f64, by: f64| {
            let mut vm = vm(name);
            vm.rates.ten_seconds.normalised_iops = iops;
            (vm.parts.by_reservation_percent, vm.parts.by_weight_percent) = (Some(by), Some(100.0 - by));
            (vm.policy.reservation_iops, vm.policy.weight) = (Some(900.0).filter(|_| by > 0.0), Some(1000.0));
            vm
        };
        let mut c = Vm { held_by: Some(cause), ..on_disk("c", 6.0, 0.0) };
        c.policy.weight = Some(10.0);
        change(&mut c);
        let mut status = status(&[on_disk("a", 1100.0, 80.0), on_disk("b", 900.0, 100.0), c]);
        let settings = DeviceSettings { reservable_iops: Some(1960.0), ..DeviceSettings::default() };
        status.devices[0].settings = Some(settings);
        let told = Answer::of("c", &status, &[], (0, 3600)).told();
        told.by_device[0].advice.join(" ")
    }

    #[test]
    fn a_vm_of_a_small_weight_was_told_only_to_lower_the_reservations_of_others() {
        let both = "It has no reservation; up to 160 iops fit. Give it a larger weight than 10, or limit its neighbours (a). Lower the \
                    reservations of its neighbours (a, b), or move one of them to another device.";
        assert_eq!(advice_to_c(Cause::OthersReservation, |_| {}), both);
        assert_eq!(advice_to_c(Cause::OthersWeight, |_| {}), both);
        let heavy = advice_to_c(Cause::OthersReservation, |c| c.policy.weight = Some(2000.0));
        assert!(heavy.contains("another device. Give it a larger weight than 2000"), "{heavy}");
    }

    #[test]
    fn background_work_was_told_to_get_a_larger_weight() {
        for cause in [Cause::OthersReservation, Cause::OthersWeight] {
            let advice = advice_to_c(cause, |c| c.policy.class = sluice_api::policy::Class::Background);
            assert!(advice.contains("Its class is background") && !advice.contains("larger weight"), "{advice}");
            assert!(advice.contains("make its class foreground, or give it a reservation."), "{advice}");
        }
    }

    #[test]
    fn a_reservation_above_the_limit_was_advised() {
        let limited = |limit: f64, reserved: Option<f64>| {
            advice_to_c(Cause::OthersWeight, |c| {
                (c.policy.limit_iops, c.policy.reservation_iops) = (Some(limit), reserved);
            })
        };
        assert!(limited(90.0, None).starts_with("It has no reservation; up to 90 iops fit."));
        let full = limited(90.0, Some(90.0));
        assert!(full.starts_with("Its reservation is 90 iops, and its limit allows no more."), "{full}");
        assert!(limited(500.0, None).starts_with("It has no reservation; up to 160 iops fit."));
    }
}
