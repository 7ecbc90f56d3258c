//! Counters that begin again, volumes that come and go, clocks that are set, and samples that are late.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::common::{KIB, iops, within};
use sluice_api::event::{Event, EventKind, Phase};
use sluice_api::status::{Vm, Volume};
use sluice_observe::observer::Observer;
use sluice_observe::sample::{DeviceSample, Sample, VmSample, VolumeSample};
use sluice_sched::gate::{Arrival, Device, Slot, Submission};
use sluice_sched::params::ParamTable;
use sluice_sched::scheduler::DeviceInfo;
use sluice_sched::{Flags, Gate, GateSettings, Instant, Kind, OwnerId, Policy, VolumeId, schedulers};

/// Wall-clock time of second 0.
const EPOCH: u64 = 1_700_000_000;
/// Requests that the device takes at the same time.
const DEPTH: u32 = 8;

/// Submissions at the device.
#[derive(Default)]
struct Taken(VecDeque<Slot>);

impl Device for Taken {
    fn submit(&mut self, _: Instant, submission: &Submission) {
        self.0.push_back(submission.slot);
    }
}

/// A volume of a VM, and the requests that its guest keeps outstanding.
struct Disk {
    vm: String,
    volume: String,
    owner: OwnerId,
    id: VolumeId,
    /// Its own, inside that of the VM.
    policy: Policy,
    outstanding: u32,
    there: u32,
}

/// A gate in front of a device that completes a request each `every` milliseconds, and its observer.
struct Rig {
    gate: Gate,
    taken: Taken,
    disks: Vec<Disk>,
    every: u64,
    /// Milliseconds on the clock of the device, and of the observer.
    at: u64,
    clock: u64,
    /// Seconds by which the wall clock is ahead.
    set: i64,
    restarts: u64,
    observer: Observer,
    events: Vec<Event>,
}

fn gate() -> Gate {
    let settings = GateSettings { depth: DEPTH, ..GateSettings::default() };
    let info = DeviceInfo { depth: DEPTH, ..DeviceInfo::default() };
    let scheduler = schedulers::find("mclock").unwrap().build(&info, &ParamTable::new()).unwrap();
    Gate::new(scheduler, settings)
}

impl Rig {
    fn new(every: u64) -> Rig {
        Rig {
            gate: gate(),
            taken: Taken::default(),
            disks: Vec::new(),
            every,
            at: 0,
            clock: 0,
            set: 0,
            restarts: 0,
            observer: Observer::default(),
            events: Vec::new(),
        }
    }

    fn now(&self) -> Instant {
        Instant::from_millis(self.at)
    }

    fn add(&mut self, vm: &str, volume: &str, policy: Policy, outstanding: u32) {
        self.add_inside(vm, volume, (policy, Policy::default()), outstanding);
    }

    fn add_inside(&mut self, vm: &str, volume: &str, (vms, policy): (Policy, Policy), outstanding: u32) {
        let now = self.now();
        let known = self.disks.iter().find(|disk| disk.vm == vm).map(|disk| disk.owner);
        let owner = known.unwrap_or_else(|| self.gate.add_owner(now, vms).unwrap());
        let id = self.gate.add_volume(now, owner, policy).unwrap();
        let (vm, volume) = (vm.to_owned(), volume.to_owned());
        self.disks.push(Disk { vm, volume, owner, id, policy, outstanding, there: 0 });
    }

    /// Takes a volume away, and its VM if it was the only one. Nothing of it may be at the device.
    fn remove(&mut self, vm: &str, volume: &str) {
        let index = self.disks.iter().position(|disk| disk.vm == vm && disk.volume == volume).unwrap();
        let disk = self.disks.remove(index);
        let (now, mut finished) = (self.now(), Vec::new());
        self.gate.remove_volume(now, disk.owner, disk.id, &mut finished).unwrap();
        if self.disks.iter().all(|other| other.vm != vm) {
            self.gate.remove_owner(now, disk.owner, &mut finished).unwrap();
        }
    }

    fn keep_outstanding(&mut self, vm: &str, volume: &str, outstanding: u32) {
        let disk = self.disks.iter_mut().find(|disk| disk.vm == vm && disk.volume == volume).unwrap();
        disk.outstanding = outstanding;
    }

    /// Runs for some milliseconds.
    fn run(&mut self, millis: u64) {
        for _ in 0..millis {
            (self.at, self.clock) = (self.at + 1, self.clock + 1);
            let now = self.now();
            let slot = if self.at.is_multiple_of(self.every) { self.taken.0.pop_front() } else { None };
            if let Some(finished) = slot.and_then(|slot| self.gate.complete(now, slot, true)) {
                // A volume may have been removed with requests at the device.
                if let Some(disk) = self.disks.get_mut(finished.token as usize) {
                    disk.there = disk.there.saturating_sub(1);
                }
            }
            for (token, disk) in (0..).zip(&mut self.disks) {
                while disk.there < disk.outstanding {
                    let (owner, volume) = (disk.owner, disk.id);
                    let arrival = Arrival {
                        owner,
                        volume,
                        kind: Kind::Read,
                        flags: Flags::default(),
                        offset: 0,
                        length: 8 * KIB,
                        token,
                        remote: None,
                    };
                    self.gate.insert(now, &arrival).unwrap();
                    disk.there += 1;
                }
            }
            let _ = self.gate.pump(now, &mut self.taken);
        }
    }

    /// The guests submit nothing, until the device has nothing left.
    fn drain(&mut self) {
        let before: Vec<u32> = self.disks.iter_mut().map(|disk| std::mem::take(&mut disk.outstanding)).collect();
        while self.gate.queued() + self.gate.in_flight() > 0 {
            self.run(1);
        }
        self.disks.iter_mut().zip(before).for_each(|(disk, before)| disk.outstanding = before);
    }

    /// The device thread restarts: another gate, another clock.
    fn restart(&mut self) {
        (self.gate, self.taken, self.at) = (gate(), Taken::default(), 0);
        self.restarts += 1;
        let disks = std::mem::take(&mut self.disks);
        for disk in disks {
            self.add(&disk.vm, &disk.volume, Policy::default().reserving(80), disk.outstanding);
        }
    }

    fn vm_sample(&self, name: &str) -> VmSample {
        let own: Vec<&Disk> = self.disks.iter().filter(|disk| disk.vm == name).collect();
        let volume = |disk: &&Disk| VolumeSample {
            volume: disk.volume.clone(),
            policy: disk.policy,
            stats: self.gate.apart_stats(disk.owner, disk.id).map(Arc::new),
            outstanding: disk.there,
            clients: 1,
            left: 0,
            client_faults: Default::default(),
            faults: Default::default(),
            nic: None,
        };
        VmSample {
            vm: name.to_owned(),
            policy: *self.gate.policy(own[0].owner).unwrap(),
            stats: Arc::new(self.gate.stats(own[0].owner).unwrap()),
            cpu: Default::default(),
            outstanding: own.iter().map(|disk| disk.there).sum(),
            volumes: own.iter().map(volume).collect(),
        }
    }

    fn sample(&mut self) {
        let mut names: Vec<&str> = self.disks.iter().map(|disk| disk.vm.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        let device = DeviceSample {
            at: self.now(),
            serving: true,
            health: "serving",
            depth: DEPTH,
            window: None,
            capacity: iops(1000 / self.every),
            queued: self.gate.queued(),
            in_flight: self.gate.in_flight(),
            restarts: self.restarts,
            failure: (self.restarts > 0).then(|| "panicked at disk.rs:7:3: of a test".to_owned()),
            stats: self.gate.device_stats().clone(),
            vms: names.into_iter().map(|name| self.vm_sample(name)).collect(),
            ..DeviceSample::unknown("disk")
        };
        let second = self.clock / 1000;
        let time = EPOCH.saturating_add(second).saturating_add_signed(self.set);
        self.events.extend(self.observer.push(Sample { second, time, devices: vec![device] }));
    }

    /// Runs with a sample each second.
    fn seconds(&mut self, seconds: u64) {
        for _ in 0..seconds {
            self.run(1000 - self.clock % 1000);
            self.sample();
        }
    }

    fn vm(&self, name: &str) -> Vm {
        self.observer.status().vms.into_iter().find(|vm| vm.vm == name).unwrap()
    }

    fn volume(&self, vm: &str, name: &str) -> Volume {
        self.vm(vm).volumes.into_iter().find(|volume| volume.volume == name).unwrap()
    }

    /// Events about latency targets, as volume and phase.
    fn late(&self) -> Vec<(Option<&str>, Phase)> {
        let late = self.events.iter().filter(|event| event.kind == EventKind::Latency);
        late.map(|event| (event.volume.as_deref(), event.phase)).collect()
    }

    /// Normalised requests per second of the last second.
    fn rate(&self, vm: &str) -> f64 {
        self.vm(vm).rates.second.iops
    }
}

fn reserving(rate: u64) -> Policy {
    Policy::default().reserving(rate)
}

#[test]
fn the_counters_of_a_restarted_device_thread_were_subtracted_from_those_before() {
    // A life of 0.4 s with 80 requests and no queue, and then one of 1 s with 106 requests and a queue: clock and counters
    // of the thread have not gone back, and their difference would be 26 requests in 0.6 s with a queue.
    let mut rig = Rig::new(5);
    rig.add("a", "root", reserving(80), 2);
    rig.run(600);
    rig.drain();
    rig.restart();
    rig.seconds(1);
    rig.drain();
    rig.restart();
    rig.every = 10;
    rig.keep_outstanding("a", "root", 32);
    rig.seconds(30);
    let words: Vec<String> = rig.events.iter().map(Event::in_words).collect();
    let restarted = "The thread of device disk has failed and was restarted (panicked at disk.rs:7:3: of a test)";
    assert_eq!((words.len(), words[0].as_str()), (2, restarted), "{words:?}");
    assert!(words[1].starts_with("Over after 2 s: The thread of device disk"), "{words:?}");
    assert!((rig.rate("a") - 100.0).abs() < 2.0, "{}", rig.rate("a"));
    assert_eq!(rig.observer.reading().devices[0].restarts, 2);
}

#[test]
fn a_violation_that_goes_on_after_a_restart_is_one_event() {
    let mut rig = Rig::new(20);
    rig.add("a", "root", reserving(80), 32);
    rig.seconds(5);
    rig.restart();
    rig.seconds(5);
    let about: Vec<_> = rig.events.iter().filter(|event| event.vm.is_some()).collect();
    assert!(about.len() == 1 && about[0].phase == Phase::Began, "{about:?}");
}

#[test]
fn a_vm_that_was_removed_and_added_again_had_the_counters_of_the_one_before() {
    let mut rig = Rig::new(10);
    rig.add("a", "root", reserving(80), 2);
    rig.add("b", "root", Policy::default(), 0);
    rig.run(100);
    rig.seconds(1);
    // Within one interval, so that the observer sees neither without the VM.
    rig.drain();
    rig.remove("a", "root");
    rig.add("a", "root", reserving(80), 32);
    rig.seconds(20);
    assert_eq!(rig.events, []);
    assert!((rig.rate("a") - 100.0).abs() < 2.0);
}

#[test]
fn a_vm_that_was_added_again_took_over_a_violation_and_its_ten_seconds() {
    let mut rig = Rig::new(20);
    rig.add("a", "root", reserving(80), 32);
    rig.seconds(5);
    assert_eq!(rig.events.last().map(|event| (event.kind, event.phase)), Some((EventKind::Reservation, Phase::Began)));
    rig.drain();
    rig.remove("a", "root");
    rig.add("a", "root", reserving(40), 32);
    rig.seconds(1);
    let last = rig.events.iter().rfind(|event| event.vm.is_some()).unwrap();
    assert_eq!((last.kind, last.phase), (EventKind::Reservation, Phase::Ended), "it was promised to another VM");
    rig.seconds(12);
    assert!(rig.vm("a").promises.iter().all(|promise| promise.cause.is_none()));
    assert_eq!(rig.events.iter().filter(|event| event.vm.is_some()).count(), 2, "{:?}", rig.events);
}

#[test]
fn a_volume_that_was_removed_and_added_again_had_the_counters_of_the_one_before() {
    let mut rig = Rig::new(10);
    rig.add("a", "root", reserving(80), 1);
    rig.add("a", "data", reserving(80), 1);
    rig.run(100);
    rig.seconds(1);
    rig.drain();
    rig.remove("a", "data");
    rig.add("a", "data", reserving(80), 32);
    rig.seconds(1);
    let (vm, data) = (rig.vm("a").rates.second.iops, rig.volume("a", "data").rates.second.iops);
    let root = rig.volume("a", "root").rates.second.iops;
    assert!((vm - root - data).abs() < 1.5, "{vm} of the VM, {root} and {data} of its volumes");
}

#[test]
fn the_first_volume_of_a_vm_lost_its_past_when_a_second_one_was_added() {
    let mut rig = Rig::new(2);
    rig.add("a", "root", reserving(80), 16);
    let minutes = |rig: &mut Rig, seconds: u64| {
        let all = (0..seconds).flat_map(|_| {
            rig.seconds(1);
            rig.observer.minutes()
        });
        all.map(|minute| (minute.volume, minute.interval.is_whole_vm)).collect::<Vec<_>>()
    };
    let whole = (Some("root".to_owned()), true);
    assert_eq!(minutes(&mut rig, 130), [whole.clone(), whole.clone()]);
    let past = |rig: &Rig| rig.observer.history("disk", "a", Some("root")).unwrap().seconds().count();
    assert_eq!(past(&rig), 129);
    rig.run(500);
    rig.add("a", "data", reserving(80), 0);
    rig.seconds(1);
    assert_eq!(past(&rig), 130);
    let (root, data) = (rig.volume("a", "root").rates, rig.volume("a", "data").rates);
    assert!((root.second.iops - 500.0).abs() < 2.0 && (root.minute.iops - 500.0).abs() < 2.0, "{root:?}");
    assert_eq!((data.second.iops, data.minute.iops), (0.0, 0.0));
    let of_both = minutes(&mut rig, 60);
    assert_eq!(of_both, [(Some("root".to_owned()), false), (None, true)], "data asks for nothing");
    rig.keep_outstanding("a", "data", 16);
    rig.seconds(10);
    let (root, data) = (rig.volume("a", "root").rates, rig.volume("a", "data").rates);
    assert!((root.second.iops - 250.0).abs() < 5.0 && (data.second.iops - 250.0).abs() < 5.0, "{root:?} {data:?}");
    assert_eq!(rig.events, []);
}

#[test]
fn the_only_volume_of_a_restarted_thread_was_judged_by_what_it_did_before() {
    let mut rig = Rig::new(2);
    rig.add("a", "root", reserving(80), 16);
    rig.add("a", "data", reserving(80), 16);
    rig.seconds(5);
    rig.drain();
    rig.remove("a", "data");
    rig.seconds(5);
    assert!((rig.volume("a", "root").rates.second.iops - 500.0).abs() < 2.0);
    // The gate of the new thread has had one volume of this VM, whose counters are those of the VM.
    rig.restart();
    rig.keep_outstanding("a", "root", 0);
    rig.seconds(15);
    assert_eq!(rig.volume("a", "root").rates.ten_seconds.iops, 0.0);
    assert_eq!(rig.observer.history("disk", "a", Some("root")).unwrap().seconds().count(), 9);
    assert!(rig.events.iter().all(|event| event.kind == EventKind::Restarted), "{:?}", rig.events);
}

#[test]
fn a_volume_that_moves_to_another_vm_counts_from_there_on() {
    let mut rig = Rig::new(2);
    rig.add("a", "root", reserving(80), 16);
    rig.add("a", "data", reserving(80), 16);
    rig.add("b", "root", Policy::default(), 1);
    rig.seconds(5);
    rig.drain();
    rig.remove("a", "data");
    rig.add("b", "data", Policy::default(), 16);
    rig.seconds(1);
    let total: f64 = ["a", "b"].iter().map(|vm| rig.rate(vm)).sum();
    assert!(total <= 510.0, "{total} iops of a device of 500");
    assert!(rig.volume("b", "data").rates.second.iops > 100.0, "its first second counts");
    assert!(rig.observer.history("disk", "a", Some("data")).is_none(), "it is no volume of that VM");
    rig.seconds(10);
    assert_eq!(rig.events, []);
}

#[test]
fn a_clock_that_is_set_changes_no_length_and_no_judgement() {
    for set in [3600, -3600] {
        let mut rig = Rig::new(20);
        rig.add("a", "root", reserving(80), 32);
        rig.seconds(6);
        rig.set = set;
        rig.seconds(4);
        rig.keep_outstanding("a", "root", 0);
        rig.seconds(10);
        let about: Vec<_> = rig.events.iter().filter(|event| event.kind == EventKind::Reservation).collect();
        assert_eq!(about.iter().map(|event| event.phase).collect::<Vec<_>>(), [Phase::Began, Phase::Ended]);
        assert!((8..=11).contains(&about[1].seconds), "{}", about[1].seconds);
        let ended = (about[1].time as i64 - set) as u64 - EPOCH;
        assert!((10..=16).contains(&ended), "in the time of the clock as it is now: {ended}");
        // What is known of the past has times of the clock as it is now.
        let history = rig.observer.history("disk", "a", None).unwrap();
        let times: Vec<u64> = history.seconds().map(|point| rig.observer.time_of(u64::from(point.second))).collect();
        let first = EPOCH.saturating_add_signed(set) + 2;
        assert!(times.is_sorted() && times[0] == first, "{times:?}");
    }
}

#[test]
fn a_monitor_that_was_held_up_for_ten_seconds_reports_no_violation() {
    let mut rig = Rig::new(2);
    rig.add("a", "root", reserving(400), 16);
    rig.add("b", "root", Policy::default(), 16);
    rig.seconds(12);
    // The device goes on.
    rig.run(9500);
    rig.seconds(3);
    // The host is suspended: the clock of the device stands still.
    rig.clock += 10_000;
    rig.seconds(15);
    assert_eq!(rig.events, []);
    assert!((rig.rate("a") - 400.0).abs() < 10.0, "{}", rig.rate("a"));
    let minute = rig.vm("a").rates.minute.iops;
    assert!((minute - 400.0).abs() < 10.0, "{minute}");
    let history = rig.observer.history("disk", "a", None).unwrap();
    assert!(history.seconds().all(|point| (point.iops - 400.0).abs() < 20.0 || point.second < 2));
}

#[test]
fn the_latency_target_of_a_volume_was_never_judged() {
    // Sixteen requests on a device of 100 iops take 160 ms.
    let mut rig = Rig::new(10);
    rig.add_inside("a", "root", (Policy::default(), within(100)), 16);
    rig.seconds(3);
    assert_eq!(rig.late(), [(Some("root"), Phase::Began)]);
    let mut rig = Rig::new(10);
    rig.add_inside("a", "root", (within(100), within(200)), 16);
    rig.seconds(20);
    assert_eq!(rig.late(), [(None, Phase::Began)], "each is judged by its own target");
    rig.add_inside("a", "data", (Policy::default(), within(50)), 16);
    rig.seconds(10);
    assert_eq!(
        rig.late()[1..],
        [(Some("root"), Phase::Began), (Some("data"), Phase::Began)],
        "together they take 320 ms"
    );
}

#[test]
fn a_latency_target_that_was_raised_was_judged_by_requests_that_were_late_before() {
    let mut rig = Rig::new(10);
    rig.add("a", "root", within(100), 16);
    rig.seconds(20);
    assert_eq!(rig.late(), [(None, Phase::Began)]);
    let owner = rig.disks[0].owner;
    let now = rig.now();
    rig.gate.set_owner(now, owner, within(161)).unwrap();
    rig.seconds(4);
    assert_eq!(rig.late(), [(None, Phase::Began), (None, Phase::Ended)]);
    // Two of hundred are late, which is chance in a second.
    rig.run(500);
    rig.keep_outstanding("a", "root", 18);
    rig.run(20);
    rig.keep_outstanding("a", "root", 16);
    rig.seconds(3);
    assert_eq!(rig.late().len(), 2);
}

#[test]
fn a_device_without_figures_had_negative_zeros() {
    let mut observer = Observer::default();
    let look = |second| {
        observer.push(Sample { second, time: EPOCH, devices: vec![DeviceSample::unknown("d")] });
        let device = observer.device_status().remove(0);
        let parts = [device.full_percent, device.thread_busy_percent, device.thread_late_percent];
        for figure in parts.into_iter().chain([device.capacity.reserved_iops]) {
            assert!(figure == 0.0 && figure.is_sign_positive(), "{figure:?} in second {second}");
        }
    };
    (1..4).for_each(look);
}
