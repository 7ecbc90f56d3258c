//! Limits of reads and of writes, and bursts for a time, on modelled devices in virtual time. The expected numbers come from
//! the policies alone: the largest amount in any window, and the rates at which demand, limits and shares meet.

use std::time::Duration;

use crate::common::analysis::{bytes, cost, water_fill, window_max};
use crate::common::*;
use sluice_sched::guarantees::Limits;
use sluice_sched::policy::{Field, TimedBurst};
use sluice_sched::request::Direction;
use sluice_sched::scheduler::DeviceInfo;
use sluice_sched::*;

fn requests(iops: u64) -> Limit {
    Limit { iops: Some(Iops::per_second(iops)), bytes: None }
}

fn write_limited(iops: u64) -> Policy {
    Policy { write_limit: requests(iops), burst: Some(1), ..Policy::default() }
}

/// A closed stream of one kind to the first volume.
fn asks(world: &mut World, vm: OwnerId, kind: Kind, outstanding: u32) -> usize {
    world.source(Source::new(vm, VolumeId(0), Pattern::Closed(outstanding)).kind(kind))
}

fn count(world: &World, vm: OwnerId, direction: Direction, from: Instant, to: Instant) -> f64 {
    let of = |record: &&Record| record.request.kind.direction() == direction;
    world.of(vm).filter(|record| record.at >= from && record.at < to).filter(of).count() as f64
}

// rule: mclock.directions
#[test]
fn writes_at_their_limit_kept_the_reads_behind_them_waiting() {
    let mut world = World::simple(&product(), 4, 1000);
    let vm = world.vm(write_limited(100));
    asks(&mut world, vm, Kind::Write, 64);
    asks(&mut world, vm, Kind::Read, 8);
    world.run_until(secs(10));
    let [reads, writes] = Direction::ALL.map(|direction| count(&world, vm, direction, Instant::ZERO, secs(10)));
    assert!((999.0..=1001.0).contains(&writes), "{writes}");
    assert!(reads >= 8980.0, "{reads}: they have the rest of the device");
    let waits = |kind| world.of(vm).filter(move |record| record.request.kind == kind).map(|record| record.request.wait);
    assert!(waits(Kind::Read).all(|wait| wait != Wait::OwnLimit), "no limit delays a read");
    assert!(waits(Kind::Write).skip(1).all(|wait| wait == Wait::OwnLimit));
}

#[test]
fn flushes_discards_and_zeroes_count_as_writes() {
    for kind in [Kind::Flush, Kind::Discard, Kind::WriteZeroes, Kind::Write] {
        let mut world = World::simple(&product(), 4, 1000);
        let vm = world.vm(write_limited(50));
        asks(&mut world, vm, kind, 8);
        world.run_until(secs(4));
        assert!((200..=201).contains(&world.times(vm).len()), "{kind:?}: {}", world.times(vm).len());
    }
}

/// The reservation counts reads and writes. While only writes are queued the VM is owed no more than their limit, and
/// nothing is saved for reads that come later.
// rule: mclock.directions
#[test]
fn a_reservation_is_met_by_the_direction_that_may_pass() {
    for servers in [1, 16] {
        let mut world = World::simple(&product(), servers, 1000);
        world.device = Stub::parallel(servers as usize, u64::from(servers) * SECOND / 1000);
        let writes = Policy { weight: Some(Weight::MIN), burst: Some(servers + 1), ..write_limited(100) };
        let vm = world.vm(writes.reserving(300));
        world.busy(Policy::weighted(1_000_000), Pattern::Closed(64));
        let reserved =
            world.busy(Policy { weight: Some(Weight::MIN), ..Policy::default() }.reserving(500), Pattern::Closed(64));
        asks(&mut world, vm, Kind::Write, 64);
        world.run_until(secs(10));
        let alone = count(&world, vm, Direction::Write, secs(1), secs(10)) / 9.0;
        assert!((95.0..=101.0).contains(&alone), "{servers}: {alone} writes per second");
        let reads = asks(&mut world, vm, Kind::Read, 64);
        world.run_until(secs(11));
        let first = count(&world, vm, Direction::Read, secs(10), secs(11));
        assert!(first <= 200.0 + 40.0, "{servers}: {first} reads in the first second, nothing was saved");
        world.run_until(secs(20));
        let [read, written] = Direction::ALL.map(|direction| count(&world, vm, direction, secs(11), secs(20)) / 9.0);
        assert!(read + written >= 295.0, "{servers}: {read} + {written} of 300");
        assert!(written >= 90.0, "{servers}: writes get their limit: {written}");
        let other = world.rates(&[reserved], secs(1), secs(20))[0];
        assert!(other >= 495.0, "{servers}: another VM has {other} of 500");
        world.sources[reads].on = false;
    }
}

#[test]
fn a_limit_of_writes_of_the_vm_counts_all_its_volumes() {
    let saved = TimedBurst { rate: requests(200), length: Duration::from_secs(30) };
    let bursts = [
        (100, write_limited(100)),
        (100, Policy { burst: None, ..write_limited(100) }),
        (200, Policy { timed_burst: Some(saved), ..write_limited(100) }),
    ];
    for (limit, policy) in bursts {
        let mut world = World::simple(&product(), 8, 1000);
        let vm = world.vm(policy);
        let second = world.volume(vm, Policy { read_limit: requests(50), burst: Some(1), ..Policy::default() });
        for volume in [VolumeId(0), second] {
            for kind in [Kind::Write, Kind::Read] {
                world.source(Source::new(vm, volume, Pattern::Closed(16)).kind(kind));
            }
        }
        world.run_until(secs(11));
        let of = |volume, kind| {
            let of = |record: &&Record| record.request.volume == volume && record.request.kind == kind;
            world.of(vm).filter(|record| record.at >= secs(1)).filter(of).count() as f64 / 10.0
        };
        let each = [of(VolumeId(0), Kind::Write), of(second, Kind::Write)];
        let limit = f64::from(limit);
        assert!((each[0] + each[1] - limit).abs() <= limit / 100.0, "{each:?} writes per second of {limit}");
        assert!((49.0..=51.0).contains(&of(second, Kind::Read)), "{}", of(second, Kind::Read));
        let rest = of(VolumeId(0), Kind::Read);
        assert!(rest >= 940.0 - limit, "{rest} reads of the rest, beside {limit} writes");
        assert!(each.iter().all(|writes| (writes * 2.0 - limit).abs() <= limit / 50.0), "{each:?}: equal weights");
    }
}

/// The first volume had the next turn to write, and a late share after its reads. Nobody else wrote for as long.
#[test]
fn a_volume_of_a_small_share_kept_the_others_from_writing_below_their_limit() {
    let mut world = World::simple(&product(), 2, 1000);
    let vm = world.vm(Policy { burst: None, ..write_limited(900) });
    let volumes = [1, 100, 100].map(|weight| world.volume(vm, Policy::weighted(weight)));
    for (volume, kind, outstanding) in
        [(0, Kind::Read, 8), (0, Kind::Write, 8), (1, Kind::Write, 16), (2, Kind::Read, 16)]
    {
        world.source(Source::new(vm, volumes[volume], Pattern::Closed(outstanding)).kind(kind));
    }
    world.run_until(secs(20));
    let of = |id| world.of(vm).filter(move |record| record.request.volume == id).map(|record| record.at);
    let got = volumes.map(|id| of(id).count() as f64 / 20.0);
    let expected = water_fill(1000.0, &[1.0, 100.0, 100.0].map(|weight| (weight, 0.0, f64::MAX)));
    assert!(got.iter().zip(&expected).all(|(got, expected)| *got >= 0.98 * expected - 1.0), "{got:?} of {expected:?}");
    let gap = of(volumes[1]).zip(of(volumes[1]).skip(1)).map(|(one, next)| next.since(one)).max();
    assert!(gap <= Some(Duration::from_millis(4)), "{gap:?} between writes that are due every 2 ms");
}

/// The queues are divided and united again with requests in them.
#[test]
fn a_limit_of_writes_comes_and_goes_under_a_backlog() {
    let mut world = World::simple(&product(), 1, 1000);
    let vm = world.vm(Policy::default());
    let writes = asks(&mut world, vm, Kind::Write, 20);
    let reads = asks(&mut world, vm, Kind::Read, 20);
    for source in [writes, reads] {
        world.sources[source].on = false;
    }
    world.gate.set_owner(world.now, vm, write_limited(1)).unwrap();
    world.run_until(millis(30));
    world.gate.set_owner(world.now, vm, Policy::default()).unwrap();
    world.pump();
    world.run_until(secs(1));
    let kinds: Vec<Kind> = world.log.iter().map(|record| record.request.kind).collect();
    assert_eq!(kinds.len(), 40);
    // The first was dispatched before the limit, the second is what it lets pass.
    assert!(kinds[2..22].iter().all(|kind| *kind == Kind::Read), "{kinds:?}");
    let mut ids: Vec<u64> = world.log[22..].iter().map(|record| record.request.id.0).collect();
    assert!(ids.is_sorted(), "{ids:?}");
    ids.dedup();
    assert_eq!(ids.len(), 18);
}

#[test]
fn cancelled_requests_of_both_directions_leave_in_order() {
    let mut world = World::simple(&product(), 1, 1000);
    let vm = world.vm(write_limited(1));
    let writes = asks(&mut world, vm, Kind::Write, 1);
    let reads = asks(&mut world, vm, Kind::Read, 1);
    for _ in 0..5 {
        world.ask(writes);
        world.ask(reads);
    }
    world.stop();
    let mut finished = Vec::new();
    world.gate.cancel(world.now, Scope::Owner(vm), &mut finished);
    let tokens: Vec<u32> = finished.iter().map(|finished| finished.token).collect();
    let expected: Vec<u32> =
        [reads].into_iter().chain((0..5).flat_map(|_| [writes, reads])).map(|source| source as u32).collect();
    assert_eq!(tokens, expected, "one write is at the device");
    assert_eq!(world.gate.queued(), 0);
    world.run_until(secs(1));
    assert_eq!(world.log.len(), 1);
}

/// Amounts that the policies allow in a window: for each limit rate x time, what is passed back to back, the credit of a burst,
/// and one request.
struct Allowed {
    depth: f64,
    largest: f64,
    cost_max: f64,
}

impl Allowed {
    fn check(&self, what: &str, policy: &Policy, world: &World, of: impl Fn(&Record) -> bool) {
        let limits = [
            (&policy.limit, None),
            (&policy.read_limit, Some(Direction::Read)),
            (&policy.write_limit, Some(Direction::Write)),
        ];
        for (limit, only) in limits {
            let counts = |record: &Record| only.is_none_or(|only| record.request.kind.direction() == only);
            let records: Vec<Record> =
                world.log.iter().filter(|record| of(record) && counts(record)).copied().collect();
            for window in [1, 50, 700, 3000] {
                let seconds = window as f64 / 1000.0;
                let burst = policy.timed_burst.map(|burst| (burst.rate, burst.length.as_secs_f64()));
                let most = |rate: f64, above: Option<(f64, f64)>, room: &dyn Fn(f64) -> f64| {
                    let saved = above.map_or(0.0, |(above, length)| (above - rate) * length);
                    let steady = rate * seconds + saved + room(rate);
                    above.map_or(steady, |(above, _)| steady.min(above * seconds + room(above))) * (1.0 + 1e-9) + 1e-3
                };
                if let Some(rate) = limit.iops {
                    let least = self.depth * self.cost_max;
                    let room = |rate: f64| policy.burst.map_or(least.max(rate / 10.0), f64::from) + self.cost_max;
                    let above = burst.and_then(|(rate, length)| Some((rate.iops?.as_f64(), length)));
                    let (found, bound) =
                        (window_max(records.iter(), window * MILLI, cost), most(rate.as_f64(), above, &room));
                    assert!(found <= bound, "{what}: {found} in {window} ms, bound {bound}: {policy:?}");
                }
                if let Some(rate) = limit.bytes {
                    let least = self.depth * 262_144.0;
                    let room = |rate: f64| {
                        policy.burst.map_or(least.max(rate / 10.0), |burst| f64::from(burst) * 8192.0) + self.largest
                    };
                    let above = burst.and_then(|(rate, length)| Some((rate.bytes?.bytes_per_second() as f64, length)));
                    let rate = rate.bytes_per_second() as f64;
                    let (found, bound) = (window_max(records.iter(), window * MILLI, bytes), most(rate, above, &room));
                    assert!(found <= bound, "{what}: {found} B in {window} ms, bound {bound}: {policy:?}");
                }
            }
        }
    }
}

fn any_limits(rng: &mut rand_pcg::Pcg32) -> Policy {
    let limit = |rng: &mut rand_pcg::Pcg32| Limit {
        iops: pick(rng, &[None, None, Some(50), Some(200), Some(600)]).map(Iops::per_second),
        bytes: pick(rng, &[None, None, Some(1 << 20), Some(4 << 20)]).map(ByteRate::per_second),
    };
    let mut policy = Policy {
        limit: limit(rng),
        read_limit: limit(rng),
        write_limit: limit(rng),
        burst: pick(rng, &[None, Some(1), Some(10)]),
        ..Policy::weighted(pick(rng, &[1, 100]))
    };
    let limits = [policy.limit, policy.read_limit, policy.write_limit];
    let rate = Limit {
        iops: Some(Iops::per_second(pick(rng, &[601, 900, 5000])))
            .filter(|_| limits.iter().any(|limit| limit.iops.is_some())),
        bytes: Some(ByteRate::per_second(pick(rng, &[5 << 20, 50 << 20])))
            .filter(|_| limits.iter().any(|limit| limit.bytes.is_some())),
    };
    let length = core::time::Duration::from_millis(pick(rng, &[1, 100, 2000]));
    policy.timed_burst = pick(rng, &[None, Some(TimedBurst { rate, length })]).filter(|_| rate.is_set());
    policy
}

/// On random devices, with pauses, stalls of the device and volumes with limits of their own, of every scheduler that guarantees
/// limits in buckets.
// rule: mclock.directions, mclock.timed-burst
#[test]
fn no_window_holds_more_than_the_limits_and_their_bursts() {
    let mut subjects = subjects();
    subjects.retain(|subject| {
        let enforces = [Field::ReadLimit, Field::WriteLimit, Field::Burst]
            .map(|field| subject.descriptor.enforces_with(field, &subject.params));
        let buckets = subject.guarantees(&DeviceInfo::default()).limits == Limits::Buckets;
        assert_eq!(enforces, [buckets; 3], "{}: a limit that is accepted is enforced", subject.label());
        // A link refuses limits in requests; its own limits are tested in bytes on the wire.
        buckets && subject.device_class.counts_requests()
    });
    assert!(!subjects.is_empty());
    let mut rng = chance(15);
    for round in 0..60 {
        let subject = &subjects[round % subjects.len()];
        let depth = pick(&mut rng, &[1, 4, 32]);
        let settings = GateSettings { depth, ..GateSettings::default() };
        let info = DeviceInfo { depth, ..DeviceInfo::default() };
        let order = pick(&mut rng, &[Order::Fifo, Order::Random]);
        let stub = Stub::new(depth as usize, order, Service::Between(MILLI / 10, 3 * MILLI));
        let mut world = World::new(subject.build(&info), settings, stub);
        let (vm_policy, volume_policy) = (any_limits(&mut rng), any_limits(&mut rng));
        let vm = world.vm(vm_policy);
        let second = world.volume(vm, volume_policy);
        for volume in [VolumeId(0), second] {
            for kind in [Kind::Read, Kind::Write] {
                let on_off = Pattern::OnOff { outstanding: 8, on: 400 * MILLI, off: 900 * MILLI };
                let pattern =
                    pick(&mut rng, &[Pattern::Closed(4), Pattern::Closed(32), on_off, Pattern::Open(7 * MILLI)]);
                let lengths = pick(&mut rng, &[&[8192u32][..], &[4096, 262_144, 512], &[65_536]]);
                world.source(Source::new(vm, volume, pattern).kind(kind).lengths(lengths));
            }
        }
        world.busy(Policy::weighted(100), Pattern::Closed(16));
        world.run_until(secs(3));
        world.device.stalled_until = millis(3700);
        world.run_until(secs(9));
        let allowed = Allowed {
            depth: f64::from(depth),
            largest: 262_144.0,
            cost_max: CostModel::default().cost(Kind::Read, 262_144).as_f64(),
        };
        allowed.check("VM", &vm_policy, &world, |record| record.request.owner == vm);
        allowed.check("volume", &volume_policy, &world, |record| {
            record.request.owner == vm && record.request.volume == second
        });
    }
}

/// Rates of VMs that read and write without end: what limits, reservations and weights leave each, by water filling.
// rule: mclock.directions
#[test]
fn rates_are_those_of_a_fluid_that_knows_only_the_policies() {
    const CAPACITY: u64 = 2000;
    let mut rng = chance(99);
    for _ in 0..40 {
        let servers = pick(&mut rng, &[1, 8]);
        let mut world = World::simple(&product(), servers, CAPACITY);
        world.device = Stub::parallel(servers as usize, u64::from(servers) * SECOND / CAPACITY);
        let (mut vms, mut rows) = (Vec::new(), Vec::new());
        let mut left = CAPACITY * 9 / 10;
        for _ in 0..1 + below(&mut rng, 5) {
            let limit = |rng: &mut rand_pcg::Pcg32| pick(rng, &[None, Some(50), Some(120), Some(400), Some(1500)]);
            let (both, read, write) = (limit(&mut rng), limit(&mut rng), limit(&mut rng));
            let (reads, writes) = pick(&mut rng, &[(true, true), (true, true), (true, false), (false, true)]);
            let most = |limit: Option<u64>| limit.unwrap_or(u64::MAX);
            let of = |is_there: bool, limit: Option<u64>| if is_there { most(limit) } else { 0 };
            let cap = most(both).min(of(reads, read).saturating_add(of(writes, write)));
            let admitted = most(both).min(most(read).saturating_add(most(write)));
            let reserved = pick(&mut rng, &[0, 0, 100, 300, 800]).min(admitted).min(left);
            left -= reserved;
            let weight = pick(&mut rng, &[50, 100, 300]);
            let mut policy = Policy::weighted(weight as u32);
            let of = |limit: Option<u64>| limit.map_or(Limit::default(), requests);
            (policy.limit, policy.read_limit, policy.write_limit) = (of(both), of(read), of(write));
            policy.reservation.iops = (reserved > 0).then(|| Iops::per_second(reserved));
            let vm = world.vm(policy);
            for (is_there, kind) in [(writes, Kind::Write), (reads, Kind::Read)] {
                if is_there {
                    asks(&mut world, vm, kind, 40);
                }
            }
            rows.push((weight as f64, reserved.min(cap) as f64, (cap as f64).min(1e9)));
            vms.push((vm, policy));
        }
        world.run_until(secs(12));
        let owners: Vec<OwnerId> = vms.iter().map(|(vm, _)| *vm).collect();
        let found = world.rates(&owners, secs(2), secs(12));
        let capped: f64 = rows.iter().map(|row| row.2).sum();
        let expected = if capped <= CAPACITY as f64 {
            rows.iter().map(|row| row.2).collect()
        } else {
            water_fill(CAPACITY as f64, &rows)
        };
        for ((found, expected), (_, policy)) in found.iter().zip(&expected).zip(&vms) {
            let close = (found - expected).abs() <= 0.02 * CAPACITY as f64;
            assert!(close, "{found} of {expected}: {policy:?} among {rows:?}, {servers} servers");
        }
    }
}

fn timed(limit: u64, rate: u64, seconds: u64) -> Policy {
    let length = core::time::Duration::from_secs(seconds);
    Policy { timed_burst: Some(TimedBurst { rate: requests(rate), length }), burst: Some(1), ..Policy::default() }
        .limited(limit)
}

/// 100 iops, and 500 for 10 s: 4,000 requests are saved, in 40 s.
// rule: mclock.timed-burst
#[test]
fn a_burst_lasts_its_time_and_fills_again_at_the_limit() {
    let mut world = World::simple(&product(), 4, 1000);
    let vm = world.vm(timed(100, 500, 10));
    let source = asks(&mut world, vm, Kind::Write, 32);
    let per_second =
        |world: &World, from: u64, to: u64| world.count(vm, secs(from), secs(to)) as f64 / (to - from) as f64;
    world.run_until(secs(30));
    assert!((499.0..=501.0).contains(&per_second(&world, 0, 10)), "{}", per_second(&world, 0, 10));
    assert!((99.0..=101.0).contains(&per_second(&world, 11, 30)), "{}", per_second(&world, 11, 30));
    // Idle for half of the time that a full credit takes: half of a burst.
    world.sources[source].on = false;
    world.run_until(secs(50));
    world.sources[source].on = true;
    (0..32).for_each(|_| assert!(world.ask(source)));
    world.pump();
    world.run_until(secs(70));
    let (burst, after) = (per_second(&world, 50, 55), per_second(&world, 56, 70));
    // 32 requests were queued when it became idle.
    assert!((490.0..=500.0).contains(&burst), "{burst}");
    assert!((99.0..=101.0).contains(&after), "{after}");
}

/// A rate between the limit and that of the burst lasts longer, as long as the credit does: 4,000 / (300 - 100) = 20 s.
#[test]
fn a_slower_burst_lasts_longer() {
    let mut world = World::simple(&product(), 4, 300);
    let vm = world.vm(timed(100, 500, 10));
    asks(&mut world, vm, Kind::Read, 32);
    world.run_until(secs(40));
    let rates = [(0, 20), (21, 40)].map(|(from, to)| world.rates(&[vm], secs(from), secs(to))[0]);
    assert!(rates[0] >= 298.0 && (99.0..=101.0).contains(&rates[1]), "{rates:?}");
}

#[test]
fn a_burst_applies_to_each_limit_by_itself() {
    let mut world = World::simple(&product(), 8, 2000);
    let policy =
        Policy { read_limit: requests(200), write_limit: requests(50), limit: Limit::default(), ..timed(0, 500, 4) };
    let vm = world.vm(policy);
    asks(&mut world, vm, Kind::Read, 32);
    asks(&mut world, vm, Kind::Write, 32);
    world.run_until(secs(12));
    for (direction, limit) in Direction::ALL.into_iter().zip([200.0, 50.0]) {
        let burst = count(&world, vm, direction, Instant::ZERO, secs(4)) / 4.0;
        let after = count(&world, vm, direction, secs(5), secs(12)) / 7.0;
        assert!((498.0..=502.0).contains(&burst) && (after - limit).abs() <= 1.0, "{direction:?}: {burst}, {after}");
    }
}

#[test]
fn a_write_that_costs_twice_as_much_passes_half_as_often() {
    let cost = CostModel { write_factor: Cost::requests(2), ..CostModel::per_request() };
    let info = DeviceInfo { cost, depth: 4, ..DeviceInfo::default() };
    let settings = GateSettings { cost, depth: 4, ..GateSettings::default() };
    for (kind, expected) in [(Kind::Read, 100.0), (Kind::Write, 50.0)] {
        let mut world = World::new(product().build(&info), settings, Stub::serial(SECOND / 1000));
        let vm = world.vm(Policy { burst: Some(1), ..Policy::default() }.limited(100));
        asks(&mut world, vm, kind, 8);
        world.run_until(secs(10));
        let rate = world.rates(&[vm], secs(0), secs(10))[0];
        assert!((rate - expected).abs() <= 0.5, "{kind:?}: {rate}");
    }
}

/// The report throttled the VM by the rate of its burst, and its other volume was still taken for one that may be served.
#[test]
fn a_report_of_other_servers_throttles_every_volume() {
    let mut world = World::simple(&product(), 2, 1000);
    let vm = world.vm(Policy { burst: Some(10), ..timed(100, 500, 1) });
    let second = world.volume(vm, Policy::default());
    let request_bytes = world.gate.settings().request_bytes;
    world.gate.set_device(world.now, 1, request_bytes).unwrap();
    let other = world.source(Source::new(vm, second, Pattern::Manual));
    let reporting = world.source(Source::new(vm, VolumeId(0), Pattern::Manual).remote(0, 250));
    (0..3).for_each(|_| assert!(world.ask(other)));
    world.pump();
    assert!(world.ask(reporting));
    world.run_until(secs(10));
    let times: Vec<u64> = world.times(vm).iter().map(|at| at.as_nanos() / MILLI).collect();
    assert_eq!(times.len(), 4, "{times:?}");
    assert!(times[1] >= 470, "{times:?}: 250 requests elsewhere take 0.5 s at the rate of the burst");
}
