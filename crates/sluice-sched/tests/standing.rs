//! The state that a new scheduler takes over: over all replacements together a limit passes no more than without
//! them, and a reservation is neither lost nor doubled.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use crate::common::analysis::{bytes, cost};
use crate::common::plan::{for_plans, plan};
use crate::common::*;
use sluice_sched::gate::{GateSettings, RemoteService};
use sluice_sched::guarantees::Limits;
use sluice_sched::params::Value;
use sluice_sched::policy::{Field, TimedBurst};
use sluice_sched::request::Direction;
use sluice_sched::scheduler::{DeviceClass, DeviceInfo};
use sluice_sched::standing::{Balance, Left};
use sluice_sched::*;

const DEPTH: u32 = 8;
const LENGTHS: [u32; 3] = [4096, 16_384, 8192];

/// Amount above rate x time in the worst interval: the level of a bucket that leaks at the rate.
fn excess<'a>(records: impl Iterator<Item = &'a Record>, rate: f64, amount: impl Fn(&Record) -> f64) -> f64 {
    let (mut level, mut at, mut most) = (0.0, Instant::ZERO, 0.0f64);
    for record in records {
        level = (level - rate * record.at.nanos_since(at) as f64 / SECOND as f64).max(0.0) + amount(record);
        (at, most) = (record.at, most.max(level));
    }
    most
}

/// One request of any size, and the rounding of some thousands.
fn one_request() -> [f64; 2] {
    [2.0 + 1e-3, 16_384.0 + 1.0]
}

/// Burst of a limit in requests and in bytes; `windows` if bytes are counted in windows.
fn burst_of(policy: &Policy, limit: &Limit, windows: Option<(Duration, u32)>) -> [f64; 2] {
    if let Some((interval, count)) = windows {
        let credit = limit.bytes.map_or(0.0, |rate| rate.bytes_per_second() as f64 * interval.as_secs_f64());
        return [f64::INFINITY, credit * f64::from(count)];
    }
    let beside = f64::from(policy.burst.expect("the test states it")) - 1.0;
    let saved = |rate: f64, above: f64, burst: Option<TimedBurst>| {
        burst.map_or(0.0, |burst| (above - rate).max(0.0) * burst.length.as_secs_f64())
    };
    let above = policy.timed_burst.map_or(Limit::default(), |burst| burst.rate);
    let iops = |limit: &Limit| limit.iops.map_or(0.0, Iops::as_f64);
    let per_second = |limit: &Limit| limit.bytes.map_or(0.0, |rate| rate.bytes_per_second() as f64);
    let saved_cost = saved(iops(limit), iops(&above), policy.timed_burst);
    let saved_bytes = saved(per_second(limit), per_second(&above), policy.timed_burst);
    [beside + saved_cost, beside * 8192.0 + saved_bytes]
}

/// Asserts that a limit holds in every interval; `bursts` are those of the schedulers that were in force.
fn check_limit<'a>(
    what: &str,
    records: impl Iterator<Item = &'a Record> + Clone,
    limit: &Limit,
    bursts: [f64; 2],
) -> u64 {
    let [one_cost, one_bytes] = one_request();
    let mut checked = 0;
    if let Some(rate) = limit.iops {
        let most = excess(records.clone(), rate.as_f64(), cost);
        assert!(most <= bursts[0] + one_cost, "{what}: {most} requests above {rate}, at most {} and one", bursts[0]);
        checked += u64::from(bursts[0].is_finite());
    }
    if let Some(rate) = limit.bytes {
        let most = excess(records, rate.bytes_per_second() as f64, bytes);
        assert!(most <= bursts[1] + one_bytes, "{what}: {most} bytes above {rate}, at most {} and one", bursts[1]);
        checked += 1;
    }
    checked
}

/// Whether a scheduler enforces a field.
fn enforces(subject: &Subject, field: Field) -> bool {
    subject.descriptor.enforces_with(field, &subject.params)
}

fn windows_of(subject: &Subject) -> Option<(Duration, u32)> {
    match subject.guarantees(&DeviceInfo::default()).limits {
        Limits::Windows { interval, .. } => Some((interval, 2)),
        _ => None,
    }
}

fn requests(iops: u64) -> Limit {
    Limit { iops: Some(Iops::per_second(iops)), bytes: None }
}

fn rate_of_bytes(kib: u64) -> Limit {
    Limit { iops: None, bytes: Some(ByteRate::per_second(kib << 10)) }
}

fn limited(limit: Limit, burst: u32) -> Policy {
    Policy { limit, burst: Some(burst), ..Policy::default() }
}

/// Replaces the scheduler at random instants; `choose` gets the number of the replacement. Returns when each was in force, with its index.
fn replace_at_random(
    world: &mut World,
    subjects: &[Subject],
    rng: &mut rand_pcg::Pcg32,
    pauses: &[u64],
    times: usize,
) -> Vec<(Instant, usize)> {
    let mut periods = vec![(Instant::ZERO, 0)];
    for turn in 1..=times {
        let most = pick(rng, pauses) * MILLI;
        world.run_for(below(rng, most));
        let index = if subjects.len() == 2 { turn % 2 } else { below(rng, subjects.len() as u64) as usize };
        let info = DeviceInfo { depth: DEPTH, ..DeviceInfo::default() };
        let replaced = world.gate.replace_scheduler(world.now, subjects[index].build(&info), turn % 3 == 1);
        replaced.expect("it accepts the policies");
        world.pump();
        periods.push((world.now, index));
    }
    world.run_for(SECOND);
    periods
}

/// A gate with a fast device.
fn world(subject: &Subject) -> World {
    let info = DeviceInfo { depth: DEPTH, ..DeviceInfo::default() };
    let settings = GateSettings { depth: DEPTH, device_class: subject.device_class, ..GateSettings::default() };
    World::new(subject.build(&info), settings, Stub::parallel(DEPTH as usize, MILLI / 4))
}

fn stream(world: &mut World, owner: OwnerId, volume: VolumeId, kind: Kind) {
    world.source(Source::new(owner, volume, Pattern::Closed(64)).kind(kind).lengths(&LENGTHS));
}

/// Subjects that enforce a limit of VMs, with other parameters too.
fn enforcing(class: DeviceClass) -> Vec<Subject> {
    let mut all: Vec<Subject> = subjects().into_iter().filter(|subject| subject.device_class == class).collect();
    all.retain(|subject| enforces(subject, Field::Limit));
    let others = all.iter().map(|subject| match subject.descriptor.name {
        "mclock" | "mclock-paper" => subject.clone().with("batch", Value::Integer(4)),
        _ => subject.clone().text("interval", "20ms"),
    });
    let others: Vec<Subject> = others.collect();
    all.extend(others);
    all
}

/// Every pair of schedulers that enforce limits, one after the other at random instants.
// rule: gate.standing
#[test]
fn a_limit_holds_through_all_replacements() {
    let mut checked = 0;
    for class in [DeviceClass::Disk, DeviceClass::Network] {
        let all = enforcing(class);
        for (first, second) in all.iter().flat_map(|first| all.iter().map(move |second| (first, second))) {
            for (seed, pauses) in [(1, &[300][..]), (2, &[5, 40]), (3, &[1, 30, 900])] {
                let limit = match (class, seed) {
                    (DeviceClass::Network, _) => rate_of_bytes(4096),
                    (_, 1) => requests(300),
                    (_, 2) => rate_of_bytes(2048),
                    _ => Limit { bytes: Some(ByteRate::per_second(3 << 20)), ..requests(300) },
                };
                let policy = limited(limit, 33);
                let mut world = world(first);
                let vm = world.vm(policy);
                stream(&mut world, vm, VolumeId(0), Kind::Read);
                let other = world.vm(limited(limit, 5));
                stream(&mut world, other, VolumeId(0), Kind::Write);
                let pair = [first.clone(), second.clone()];
                replace_at_random(&mut world, &pair, &mut chance(seed), pauses, 60);
                let what = format!("{} and {}, seed {seed}", first.label(), second.label());
                for (vm, policy) in [(vm, policy), (other, limited(limit, 5))] {
                    let bursts = pair.iter().map(|subject| burst_of(&policy, &limit, windows_of(subject)));
                    let worst = bursts.fold([0.0f64; 2], |most, burst| [most[0].max(burst[0]), most[1].max(burst[1])]);
                    checked += check_limit(&what, world.of(vm), &limit, worst);
                }
                // The limit is what holds. With both currencies the published form takes the longer distance of each request.
                let seconds = world.now.as_nanos() as f64 / SECOND as f64;
                let used = |rate: Option<f64>, got: f64| rate.map_or(0.0, |rate| got / (rate * seconds));
                let by_cost = used(limit.iops.map(Iops::as_f64), world.of(vm).map(cost).sum());
                let rate = limit.bytes.map(|rate| rate.bytes_per_second() as f64);
                let by_bytes = used(rate, world.of(vm).map(bytes).sum());
                assert!(by_cost.max(by_bytes) > 0.8, "{what}: {by_cost}, {by_bytes} of the limit used");
            }
        }
    }
    assert!(checked > 500, "{checked}");
}

/// Limits of a VM and of its volumes, in both currencies, by direction, and with a rate above them for a time.
fn of_all_kinds() -> Vec<(Policy, Policy)> {
    let length = Duration::from_millis(200);
    let timed = |rate: Limit| Some(TimedBurst { rate, length });
    let [few, many] = [limited(requests(300), 5), limited(rate_of_bytes(1 << 20), 65)];
    let direct = Policy { read_limit: requests(200), write_limit: rate_of_bytes(700), ..many };
    let both = Limit { bytes: Some(ByteRate::per_second(900 << 10)), ..requests(120) };
    vec![
        (limited(requests(250), 65), Policy { limit: requests(100), ..few }),
        (many, Policy { limit: both, ..few }),
        (direct, Policy { write_limit: requests(40), ..many }),
        (Policy { timed_burst: timed(requests(900)), ..few }, Policy { read_limit: both, ..many }),
        (Policy { timed_burst: timed(requests(600)), ..direct }, many),
    ]
}

/// Checks all limits of a VM and its two volumes, in the records that `counts`.
fn check_all(
    what: &str,
    world: &World,
    vm: OwnerId,
    policies: &[(Option<VolumeId>, Policy)],
    counts: impl Fn(&Record) -> bool,
) {
    for (volume, policy) in policies {
        let of = |record: &&Record| counts(record) && volume.is_none_or(|volume| record.request.volume == volume);
        let records = world.of(vm).filter(of);
        let way = |direction| records.clone().filter(move |record| record.request.kind.direction() == direction);
        let what = format!("{what}, {volume:?}");
        check_limit(&what, records.clone(), &policy.limit, burst_of(policy, &policy.limit, None));
        check_limit(&what, way(Direction::Read), &policy.read_limit, burst_of(policy, &policy.read_limit, None));
        check_limit(&what, way(Direction::Write), &policy.write_limit, burst_of(policy, &policy.write_limit, None));
        // The rate of a burst lets through what is stated as back to back.
        let plain = Policy { timed_burst: None, ..*policy };
        for (limit, direction) in [(policy.read_limit, Direction::Read), (policy.write_limit, Direction::Write)] {
            let peak = standing::peak_of(policy, &limit);
            check_limit(&what, way(direction), &peak, burst_of(&plain, &peak, None));
        }
        let peak = standing::peak_of(policy, &policy.limit);
        check_limit(&what, records.clone(), &peak, burst_of(&plain, &peak, None));
    }
}

/// A VM with two volumes of which each reads and writes.
fn vm_of_two(world: &mut World, policy: Policy, inner: Policy) -> (OwnerId, Vec<(Option<VolumeId>, Policy)>) {
    let vm = world.gate.add_owner(world.now, policy).expect("valid");
    let volumes = [world.volume(vm, inner), world.volume(vm, Policy { weight: Some(Weight::new(7)), ..inner })];
    for (volume, kind) in volumes.into_iter().flat_map(|volume| [(volume, Kind::Read), (volume, Kind::Write)]) {
        stream(world, vm, volume, kind);
    }
    (vm, vec![(None, policy), (Some(volumes[0]), inner), (Some(volumes[1]), inner)])
}

// rule: gate.standing
#[test]
fn limits_of_volumes_and_directions_and_rates_of_bursts_hold_through_all_replacements() {
    let same = [product(), product().with("batch", Value::Integer(8)).text("weight_floor", "10%")];
    for (policy, inner) in of_all_kinds() {
        for (seed, pauses) in [(4, &[300][..]), (5, &[5, 40]), (6, &[1, 30, 900])] {
            let mut world = world(&product());
            let (vm, policies) = vm_of_two(&mut world, policy, inner);
            replace_at_random(&mut world, &same, &mut chance(seed), pauses, 80);
            check_all(&format!("{policy:?}, seed {seed}"), &world, vm, &policies, |_| true);
        }
    }
}

/// Through schedulers that enforce other limits, or none: what is dispatched while mClock is in force keeps all of them.
// rule: gate.standing
#[test]
fn a_scheduler_without_limits_in_between_is_no_way_to_another_burst() {
    let all: Vec<Subject> =
        subjects().into_iter().filter(|subject| subject.device_class == DeviceClass::Disk).collect();
    for (policy, inner) in of_all_kinds() {
        for (seed, pauses) in [(7, &[1][..]), (8, &[1, 1, 200])] {
            let mut subjects = vec![product(); all.len()];
            subjects.extend(all.iter().cloned());
            let mut world = world(&subjects[0]);
            let (vm, policies) = vm_of_two(&mut world, policy, inner);
            let periods = replace_at_random(&mut world, &subjects, &mut chance(seed), pauses, 150);
            let in_force = |record: &Record| {
                // A request dispatched at the instant of a replacement came after it.
                let period = periods.partition_point(|(from, _)| *from <= record.at) - 1;
                subjects[periods[period].1].descriptor.name == "mclock"
            };
            let counted = world.of(vm).filter(|record| in_force(record)).count();
            assert!(counted > 10, "{counted}");
            check_all(&format!("{policy:?}, seed {seed}"), &world, vm, &policies, in_force);
        }
    }
}

/// A VM with a reservation on a device of 1000 IOPS that others want too; the scheduler is replaced every `every`.
fn reserved_under(subjects: &[Subject], policy: Policy, every: Option<u64>, stall: bool) -> f64 {
    let mut world = World::simple(&subjects[0], 1, 1000);
    let vm = world.busy(policy, Pattern::Closed(64));
    let heavy = Policy { weight: Some(Weight::new(10_000)), ..Policy::default() };
    for _ in 0..2 {
        world.busy(heavy, Pattern::Closed(64));
    }
    world.run_until(secs(1));
    if stall {
        world.device.stalled_until = world.after(900 * MILLI);
        world.run_for(901 * MILLI);
    }
    let (info, from, mut turn) = (DeviceInfo { depth: 1, ..DeviceInfo::default() }, world.now, 0);
    while world.now < from + Duration::from_secs(9) {
        world.run_for(every.unwrap_or(SECOND));
        if every.is_some() {
            turn += 1;
            let next = subjects[turn % subjects.len()].build(&info);
            world.gate.replace_scheduler(world.now, next, false).expect("it accepts the policies");
            world.pump();
        }
    }
    world.count(vm, from, from + Duration::from_secs(9)) as f64
}

/// A request is due at each replacement if the reservation restarts, and what a stalled device has left owed is lost.
// rule: gate.standing
#[test]
fn a_reservation_is_neither_lost_nor_doubled() {
    let other = || product().with("batch", Value::Integer(2));
    let bytes = Policy {
        reservation: policy::Reservation { iops: None, bytes: Some(ByteRate::per_second(300 * 8192)) },
        ..Policy::weighted(1)
    };
    // The published form forgives what a stall leaves owed, request by request.
    let pairs = [
        ([product(), other()], true),
        ([product(), other()], false),
        ([product(), paper()], false),
        ([paper(), paper()], false),
        ([product().on_network(), product().on_network()], true),
    ];
    for (pair, stalls) in pairs {
        let of_requests = Some(Policy::weighted(1).reserving(300)).filter(|_| pair[0].device_class.counts_requests());
        for policy in of_requests.into_iter().chain([bytes]) {
            // In the published form each VM starts with the same share.
            let weight = policy.weight.filter(|_| pair.iter().all(|subject| subject.descriptor.name == "mclock"));
            let policy = Policy { weight, ..policy };
            let steady = reserved_under(&pair[..1], policy, None, stalls);
            for every in [3 * MILLI, 10 * MILLI, 97 * MILLI] {
                let got = reserved_under(&pair, policy, Some(every), stalls);
                let what = format!("{} and {}: {got} of {steady}", pair[0].label(), pair[1].label());
                assert!((got - steady).abs() <= 0.015 * steady, "{what}, every {every} ns, stalls: {stalls}");
            }
        }
    }
}

/// The share restarts with its idle credit if nothing is known of it.
#[test]
fn a_busy_vm_gets_no_idle_credit_by_a_replacement() {
    for second in [product().with("batch", Value::Integer(2)), Subject::of("sfqd")] {
        let mut world = World::simple(&product(), 1, 1000);
        let credit = Policy { idle_credit: 256, ..Policy::default() };
        let vms = [credit, Policy { idle_credit: 0, ..credit }].map(|policy| world.busy(policy, Pattern::Closed(64)));
        world.run_until(secs(2));
        let info = DeviceInfo { depth: 1, ..DeviceInfo::default() };
        for turn in 0..40 {
            let next = if turn % 2 == 0 { &second } else { &product() };
            world.gate.replace_scheduler(world.now, next.build(&info), false).unwrap();
            world.pump();
            world.run_for(100 * MILLI);
        }
        let rates = world.rates(&vms, secs(2), secs(6));
        assert!((rates[0] - rates[1]).abs() <= 20.0, "{}: {rates:?}", second.label());
    }
}

/// Every scheduler states what is left of each limit that it enforces, in the currencies of the policy, and of nothing else; and
/// one that is told this states the same, and never more.
// rule: gate.standing
#[test]
fn every_scheduler_states_what_it_enforces_and_takes_what_it_is_told() {
    let known = AtomicU64::new(0);
    for subject in subjects() {
        for_plans(20, plan(false), |plan| {
            let plan = plan.directed();
            // A time of the machine, and one in which less has passed than a reservation may be behind.
            let start = if plan.depth > 4 { secs(5000) } else { Instant::ZERO };
            let mut world = plan.run(subject.build(&plan.info()), start, |_| ());
            let info = DeviceInfo { depth: world.gate.settings().depth, ..plan.info() };
            for _ in 0..2 {
                let (scheduler, noted) = probed(subject.build(&info));
                world.gate.replace_scheduler(world.now, scheduler, false).expect("it accepts the policies");
                for (scope, told, stated) in noted.try_iter() {
                    known.fetch_add(check_stated(&subject, &world, scope, &told, &stated), Ordering::Relaxed);
                }
                world.run_for(3 * MILLI);
            }
        });
    }
    let known = known.into_inner();
    assert!(known > 1000, "{known}");
}

fn check_stated(subject: &Subject, world: &World, scope: Scope, told: &Standing, stated: &Standing) -> u64 {
    let policy = *world.gate.policy(scope.owner()).expect("an owner of the gate");
    let what = format!("{}, {scope:?}: told {told:?}, states {stated:?}", subject.label());
    let fields = [Field::Limit, Field::ReadLimit, Field::WriteLimit];
    let limits = [policy.limit, policy.read_limit, policy.write_limit];
    let mut known = 0;
    for ((field, limit), (told, stated)) in fields.into_iter().zip(limits).zip(told.limits.iter().zip(&stated.limits)) {
        let is_enforced = enforces(subject, field);
        assert!(is_enforced || *stated == Left::default(), "it enforces no {}: {what}", field.name());
        let bytes_only = subject.descriptor.device_classes == [DeviceClass::Network];
        if scope == Scope::Owner(scope.owner()) && is_enforced {
            let has = |balance: &Balance| (balance.cost.is_some(), balance.bytes.is_some());
            let due = (limit.iops.is_some() && subject.device_class.counts_requests(), limit.bytes.is_some());
            // The published form has no tag before the first request.
            let may_lack = (subject.descriptor.name == "mclock-paper") && has(&stated.limit) == (false, false);
            assert!(has(&stated.limit) == due || may_lack, "{} {bytes_only}: {what}", field.name());
        }
        for (told, stated) in [(told.limit, stated.limit), (told.peak, stated.peak)] {
            for (told, stated) in [(told.cost, stated.cost), (told.bytes, stated.bytes)] {
                if let (Some(told), Some(stated)) = (told, stated) {
                    known += 1;
                    assert!(stated <= told, "more than it was told: {what}");
                }
            }
        }
    }
    known
}

/// An owner or volume, what the scheduler is told of it, and what it states then.
type Noted = (Scope, Standing, Standing);

/// Notes what a scheduler is told, and what it states right after.
struct Probed {
    inner: Box<dyn Scheduler>,
    noted: Sender<Noted>,
}

fn probed(inner: Box<dyn Scheduler>) -> (Box<dyn Scheduler>, Receiver<Noted>) {
    let (noted, all) = channel();
    (Box::new(Probed { inner, noted }), all)
}

impl Scheduler for Probed {
    fn insert(&mut self, now: Instant, request: Request) {
        self.inner.insert(now, request);
    }

    fn add_remote_service(&mut self, now: Instant, owner: OwnerId, remote: &RemoteService) {
        self.inner.add_remote_service(now, owner, remote);
    }

    fn grow(&mut self, now: Instant, grown: Request) -> bool {
        self.inner.grow(now, grown)
    }

    fn dispatch(&mut self, now: Instant) -> Decision {
        self.inner.dispatch(now)
    }

    fn complete(&mut self, now: Instant, completion: &Completion) {
        self.inner.complete(now, completion);
    }

    fn configure(&mut self, now: Instant, change: Change) -> Result<(), ChangeError> {
        self.inner.configure(now, change)
    }

    fn cancel(&mut self, now: Instant, scope: Scope, removed: &mut Vec<Request>) {
        self.inner.cancel(now, scope, removed);
    }

    fn inspect(&self, now: Instant) -> State {
        self.inner.inspect(now)
    }

    fn standing(&self, now: Instant, scope: Scope) -> Standing {
        self.inner.standing(now, scope)
    }

    fn resume(&mut self, now: Instant, scope: Scope, standing: &Standing) {
        self.inner.resume(now, scope, standing);
        let stated = self.inner.standing(now, scope);
        self.noted.send((scope, *standing, stated)).expect("the test has the other end");
    }
}
