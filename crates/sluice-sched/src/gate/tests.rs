use super::*;
use crate::scheduler::DeviceInfo;
use crate::schedulers;

struct Log(Vec<Submission>);

impl Device for Log {
    fn submit(&mut self, _now: Instant, submission: &Submission) {
        self.0.push(*submission);
    }
}

fn gate(name: &str, depth: u32) -> Gate {
    let build = schedulers::find(name).unwrap().build;
    let scheduler = build(&DeviceInfo::default(), &Default::default()).unwrap();
    Gate::new(scheduler, GateSettings { depth, ..GateSettings::default() })
}

fn arrival(owner: OwnerId, volume: VolumeId, kind: Kind, length: u32, token: u32) -> Arrival {
    Arrival { owner, volume, kind, flags: Flags::NONE, offset: 4096, length, token, remote: None }
}

/// Completes a slot; returns the tokens and outcomes of the completed arrivals.
fn complete(gate: &mut Gate, slot: Slot, ok: bool) -> Vec<(u32, Outcome)> {
    let mut finished = Vec::new();
    gate.complete_all(Instant::ZERO, slot, ok, &mut finished);
    finished.iter().map(|f| (f.token, f.outcome)).collect()
}

// rule: gate.split
#[test]
fn a_large_request_is_split_and_completed_once() {
    for name in ["noop", "mclock"] {
        let (mut gate, mut log, now) = (gate(name, 8), Log(Vec::new()), Instant::ZERO);
        let owner = gate.add_owner(now, Policy::default()).unwrap();
        let volume = gate.add_volume(now, owner, Policy::default()).unwrap();
        gate.insert(now, &arrival(owner, volume, Kind::Write, 600 << 10, 7)).unwrap();
        assert_eq!(gate.queued(), 3);
        assert_eq!(gate.pump(now, &mut log), None);
        let parts: Vec<_> = log.0.iter().map(|s| (s.token, s.skip, s.request.length)).collect();
        assert_eq!(parts, [(7, 0, 256 << 10), (7, 256 << 10, 256 << 10), (7, 512 << 10, 88 << 10)]);
        assert_eq!(complete(&mut gate, log.0[2].slot, true), []);
        assert_eq!(complete(&mut gate, log.0[0].slot, false), []);
        assert_eq!(complete(&mut gate, log.0[1].slot, true), [(7, Outcome::Failed)]);
        assert_eq!(gate.stats(owner).unwrap().arrived, 1);
    }
}

/// Sums of costs started at the minimum cost of a request instead of 0, and cancelled requests counted as served.
// rule: gate.split
#[test]
fn the_service_of_an_arrival_is_the_sum_of_its_parts() {
    for (policy, reserved) in [(Policy::default(), 0), (Policy::default().reserving(1), 1)] {
        let (mut gate, mut log, now) = (gate("mclock", 2), Log(Vec::new()), Instant::ZERO);
        let owner = gate.add_owner(now, policy).unwrap();
        let volume = gate.add_volume(now, owner, Policy::default()).unwrap();
        gate.insert(now, &arrival(owner, volume, Kind::Write, 600 << 10, 7)).unwrap();
        let _ = gate.pump(now, &mut log);
        let mut finished = Vec::new();
        gate.cancel(now, Scope::Owner(owner), &mut finished);
        log.0.iter().for_each(|sent| gate.complete_all(now, sent.slot, true, &mut finished));
        let piece = u64::from(gate.settings().cost.cost(Kind::Write, 256 << 10).raw());
        let sums = |service: Service| (u64::from(service.cost.raw()), service.bytes);
        let got: Vec<_> = finished.iter().map(|f| (f.outcome, sums(f.service), sums(f.reserved))).collect();
        let pieces = |count: u64| (count * piece, count * (256 << 10));
        assert_eq!(
            got,
            [(Outcome::Cancelled, pieces(2), pieces(reserved))],
            "two of three pieces went, the second by weight"
        );
    }
}

#[test]
fn a_removed_owner_cancels_its_queue_and_keeps_its_number_while_in_flight() {
    for name in ["noop", "mclock"] {
        let (mut gate, mut log, now) = (gate(name, 1), Log(Vec::new()), Instant::ZERO);
        let owner = gate.add_owner(now, Policy::default()).unwrap();
        let volume = gate.add_volume(now, owner, Policy::default()).unwrap();
        for token in 0..3 {
            gate.insert(now, &arrival(owner, volume, Kind::Read, 4096, token)).unwrap();
        }
        let _ = gate.pump(now, &mut log);
        let mut finished = Vec::new();
        gate.remove_owner(now, owner, &mut finished).unwrap();
        let cancelled: Vec<_> = finished.iter().map(|f| (f.token, f.outcome)).collect();
        assert_eq!(cancelled, [(1, Outcome::Cancelled), (2, Outcome::Cancelled)]);
        assert_eq!(gate.add_owner(now, Policy::default()).unwrap(), OwnerId(1));
        assert_eq!(complete(&mut gate, log.0[0].slot, true), [(0, Outcome::Done)]);
        assert_eq!(gate.add_owner(now, Policy::default()).unwrap(), owner);
        assert_eq!(
            gate.insert(now, &arrival(owner, volume, Kind::Read, 4096, 9)),
            Err(Refused::Unknown(owner, volume))
        );
    }
}

#[test]
fn a_full_queue_is_refused_and_changes_nothing() {
    let now = Instant::ZERO;
    let build = schedulers::find("mclock").unwrap().build;
    let scheduler = build(&DeviceInfo::default(), &Default::default()).unwrap();
    let mut gate = Gate::new(scheduler, GateSettings { queue_max: 2, ..GateSettings::default() });
    let owner = gate.add_owner(now, Policy::default()).unwrap();
    let volume = gate.add_volume(now, owner, Policy::default()).unwrap();
    let read = |token| arrival(owner, volume, Kind::Read, 4096, token);
    gate.insert(now, &read(0)).unwrap();
    gate.insert(now, &read(1)).unwrap();
    let before = gate.inspect(now);
    assert_eq!(gate.insert(now, &read(2)), Err(Refused::Full(owner)));
    assert_eq!(gate.inspect(now), before);
}

#[test]
#[should_panic(expected = "exactly once")]
fn a_second_completion_is_a_defect() {
    let (mut gate, mut log, now) = (gate("noop", 1), Log(Vec::new()), Instant::ZERO);
    let owner = gate.add_owner(now, Policy::default()).unwrap();
    let volume = gate.add_volume(now, owner, Policy::default()).unwrap();
    gate.insert(now, &arrival(owner, volume, Kind::Flush, 0, 0)).unwrap();
    let _ = gate.pump(now, &mut log);
    let _ = complete(&mut gate, Slot(0), true);
    let _ = complete(&mut gate, Slot(0), true);
}

/// A gate of noop that merges, with one owner and one volume, and reads of 4 KiB.
fn merging(depth: u32) -> (Gate, impl Fn(u64, u32) -> Arrival) {
    let build = schedulers::find("noop").unwrap().build;
    let scheduler = build(&DeviceInfo::default(), &Default::default()).unwrap();
    let mut gate = Gate::new(scheduler, GateSettings { depth, merging: true, ..GateSettings::default() });
    let owner = gate.add_owner(Instant::ZERO, Policy::default()).unwrap();
    let volume = gate.add_volume(Instant::ZERO, owner, Policy::default()).unwrap();
    (gate, move |offset, token| Arrival { offset, ..arrival(owner, volume, Kind::Read, 4096, token) })
}

/// Offsets and lengths of submissions, in pages.
fn pages(log: &Log) -> Vec<(u64, u32)> {
    log.0.iter().map(|s| (s.request.offset / 4096, s.request.length / 4096)).collect()
}

// rule: gate.merge-back, gate.merge-front, gate.merge-expiry, noop.merges
#[test]
fn merged_requests_are_one_submission_and_complete_separately() {
    let (mut gate, read) = merging(8);
    let now = Instant::ZERO;
    for (token, page) in [10, 11, 9, 20, 12].into_iter().enumerate() {
        gate.insert(now, &read(page * 4096, token as u32)).unwrap();
    }
    let mut log = Log(Vec::new());
    let later = Instant::from_millis(5);
    let _ = gate.pump(later, &mut log);
    assert_eq!(pages(&log), [(9, 4), (20, 1)], "at the position of the oldest");
    assert_eq!((gate.queued(), gate.in_flight()), (0, 2));
    let stats = gate.stats(OwnerId(0)).unwrap();
    assert_eq!((stats.in_flight, stats.waiting, stats.dispatched_in(Phase::None)), (5, 0, 5));
    assert_eq!(stats.queue_time.count(), 5);
    let over = complete(&mut gate, log.0[0].slot, true);
    assert_eq!(over, [2, 0, 1, 4].map(|token| (token, Outcome::Done)), "in order of their offsets");
    assert_eq!(complete(&mut gate, log.0[1].slot, true), [(3, Outcome::Done)]);
    let stats = gate.stats(OwnerId(0)).unwrap();
    assert_eq!((stats.completed[0], stats.bytes, stats.in_flight), (5, 5 * 4096, 0));
    assert_eq!(
        stats.cost,
        5 * u64::from(gate.settings().cost.cost(Kind::Read, 4096).raw()),
        "each is charged separately"
    );
}

#[test]
fn a_forced_write_is_not_merged_with_an_ordinary_one() {
    let (mut gate, read) = merging(8);
    let now = Instant::ZERO;
    let forced = Flags::SYNC.with(Flags::FORCED);
    for (page, flags) in [(10, Flags::SYNC), (11, forced), (12, forced), (13, Flags::SYNC)] {
        gate.insert(now, &Arrival { kind: Kind::Write, flags, ..read(page * 4096, page as u32) }).unwrap();
    }
    let mut log = Log(Vec::new());
    let _ = gate.pump(now, &mut log);
    assert_eq!(pages(&log), [(10, 1), (11, 2), (13, 1)]);
}

// rule: gate.merge-switch
#[test]
fn adjacent_requests_are_not_merged_unless_enabled() {
    let mut gate = gate("noop", 8);
    let owner = gate.add_owner(Instant::ZERO, Policy::default()).unwrap();
    let volume = gate.add_volume(Instant::ZERO, owner, Policy::default()).unwrap();
    for page in [10, 11, 9] {
        let read = Arrival { offset: page * 4096, ..arrival(owner, volume, Kind::Read, 4096, page as u32) };
        gate.insert(Instant::ZERO, &read).unwrap();
    }
    let mut log = Log(Vec::new());
    let _ = gate.pump(Instant::ZERO, &mut log);
    assert_eq!(pages(&log), [(10, 1), (11, 1), (9, 1)]);
}

#[test]
fn parts_of_a_submission_may_have_different_results() {
    let (mut gate, read) = merging(8);
    for page in 0..3 {
        gate.insert(Instant::ZERO, &read(page * 4096, page as u32)).unwrap();
    }
    let mut log = Log(Vec::new());
    let _ = gate.pump(Instant::ZERO, &mut log);
    let mut finished = Vec::new();
    gate.complete_parts(Instant::ZERO, log.0[0].slot, &[true, false, true], &mut finished);
    let over: Vec<_> = finished.iter().map(|f| (f.token, f.outcome)).collect();
    assert_eq!(over, [(0, Outcome::Done), (1, Outcome::Failed), (2, Outcome::Done)]);
    assert_eq!(gate.stats(OwnerId(0)).unwrap().failed, 1);
}

// rule: gate.merge-max, gate.merge-owner
#[test]
fn only_requests_of_one_kind_are_merged_up_to_the_largest_transfer() {
    let (mut gate, read) = merging(64);
    let now = Instant::ZERO;
    let other = gate.add_owner(now, Policy::default()).unwrap();
    let other_volume = gate.add_volume(now, other, Policy::default()).unwrap();
    let second = gate.add_volume(now, OwnerId(0), Policy::default()).unwrap();
    let first = read(0, 0);
    let unlike = [
        Arrival { owner: other, volume: other_volume, ..read(4096, 1) },
        Arrival { volume: second, ..read(4096, 2) },
        Arrival { kind: Kind::Write, ..read(4096, 3) },
        Arrival { flags: Flags::BACKGROUND, ..read(4096, 4) },
        Arrival { remote: Some(RemoteService::default()), ..read(4096, 5) },
        Arrival { kind: Kind::Discard, ..read(4096, 6) },
        read(8192, 7),
        Arrival { length: 256 << 10, ..read(4096, 8) },
    ];
    gate.insert(now, &first).unwrap();
    for arrival in &unlike {
        gate.insert(now, arrival).unwrap();
    }
    let mut log = Log(Vec::new());
    let _ = gate.pump(now, &mut log);
    assert_eq!(log.0.len(), 9, "{:?}", pages(&log));

    // 64 pages of 4 KiB fill a transfer of 256 KiB; of smaller ones at most `PARTS_MAX` are merged.
    for page in 0..100 {
        gate.insert(now, &read(page << 12, 9)).unwrap();
    }
    let mut log = Log(Vec::new());
    let _ = gate.pump(now, &mut log);
    assert_eq!(pages(&log), [(0, 64), (64, 36)]);
    for sector in 0..300 {
        gate.insert(now, &Arrival { length: 512, ..read(sector << 9, 9) }).unwrap();
    }
    let mut log = Log(Vec::new());
    let _ = gate.pump(now, &mut log);
    let sectors: Vec<_> = log.0.iter().map(|s| (s.request.offset >> 9, s.request.length >> 9)).collect();
    assert_eq!(sectors, [(0, 128), (128, 128), (256, 44)]);
}

#[test]
fn pieces_of_a_split_request_are_merged_and_cancelled_correctly() {
    let (mut gate, read) = merging(1);
    let now = Instant::ZERO;
    let mut log = Log(Vec::new());
    gate.insert(now, &read(1 << 30, 0)).unwrap();
    let _ = gate.pump(now, &mut log);
    // 260 KiB: the next request is merged into the second piece, and another one into the result.
    gate.insert(now, &Arrival { length: 260 << 10, ..read(0, 1) }).unwrap();
    gate.insert(now, &read(260 << 10, 2)).unwrap();
    gate.insert(now, &read(264 << 10, 3)).unwrap();
    assert_eq!(gate.queued(), 4);
    let _ = complete(&mut gate, log.0[0].slot, true);
    let _ = gate.pump(now, &mut log);
    assert_eq!(complete(&mut gate, log.0[1].slot, true), [], "the rest is queued");
    let mut finished = Vec::new();
    gate.cancel(now, Scope::Owner(OwnerId(0)), &mut finished);
    let over: Vec<_> = finished.iter().map(|f| (f.token, f.outcome)).collect();
    assert_eq!(over, [1, 2, 3].map(|token| (token, Outcome::Cancelled)));
    assert_eq!((gate.queued(), gate.in_flight()), (0, 0));
    assert_eq!(gate.stats(OwnerId(0)).unwrap().waiting, 0);
    // Cancelled requests are no candidates for merges.
    gate.insert(now, &read(268 << 10, 4)).unwrap();
    let _ = gate.pump(now, &mut log);
    assert_eq!(log.0.last().map(|s| (s.token, s.request.length)), Some((4, 4096)));
}

#[test]
fn a_refused_policy_of_a_volume_leaves_the_policies_of_its_owner_as_they_were() {
    let (mut gate, now) = (gate("netback", 8), Instant::ZERO);
    let limited = |kib: u64| {
        let limit = crate::Limit { iops: None, bytes: Some(crate::ByteRate::per_second(kib << 10)) };
        Policy { limit, ..Policy::default() }
    };
    let owner = gate.add_owner(now, limited(1)).unwrap();
    let volumes = [(); 2].map(|()| gate.add_volume(now, owner, Policy::default()).unwrap());
    let inner = [(volumes[0], limited(3)), (volumes[1], Policy::default().limited(5))];
    assert!(matches!(gate.set_policies(now, owner, limited(2), &inner), Err(ChangeError::CountsBytes { .. })));
    assert_eq!(gate.policy(owner), Some(&limited(1)));
    // 1 KiB/s are 51 bytes per window of 50 ms, 2 KiB/s are 102. The rest of the first window and a whole new one are
    // dispatched.
    let later = now + core::time::Duration::from_secs(1);
    for token in 0..4 {
        gate.insert(later, &arrival(owner, volumes[0], Kind::Read, 51, token)).unwrap();
    }
    let mut log = Log(Vec::new());
    let _ = gate.pump(later, &mut log);
    assert_eq!((log.0.len(), gate.queued()), (2, 2));
}

// rule: gate.merge-max
#[test]
fn a_merged_request_never_exceeds_the_largest_length() {
    let build = schedulers::find("noop").unwrap().build;
    let settings = GateSettings { depth: 1, transfer_max: Bytes(u64::MAX), merging: true, ..GateSettings::default() };
    let mut gate = Gate::new(build(&DeviceInfo::default(), &Default::default()).unwrap(), settings);
    let (mut log, now) = (Log(Vec::new()), Instant::ZERO);
    let owner = gate.add_owner(now, Policy::default()).unwrap();
    let volume = gate.add_volume(now, owner, Policy::default()).unwrap();
    let length = 3 << 30;
    for token in 0..2 {
        let offset = u64::from(token) * u64::from(length);
        gate.insert(now, &Arrival { offset, ..arrival(owner, volume, Kind::Read, length, token) }).unwrap();
    }
    let _ = gate.pump(now, &mut log);
    assert_eq!((log.0[0].request.length, gate.queued()), (length, 1), "two of 3 GiB do not fit into one of 4 GiB");
}

#[test]
fn a_cancel_for_an_owner_that_is_not_present_changes_nothing() {
    for descriptor in schedulers::ALL {
        let (mut gate, now, mut finished) = (gate(descriptor.name, 1), Instant::ZERO, Vec::new());
        let owner = gate.add_owner(now, Policy::default()).unwrap();
        let volume = gate.add_volume(now, owner, Policy::default()).unwrap();
        gate.insert(now, &arrival(owner, volume, Kind::Read, 4096, 0)).unwrap();
        gate.cancel(now, Scope::Owner(OwnerId(4000)), &mut finished);
        gate.cancel(now, Scope::Volume(OwnerId(1), VolumeId(9)), &mut finished);
        gate.cancel(now, Scope::Volume(owner, VolumeId(9)), &mut finished);
        assert_eq!((finished.len(), gate.queued()), (0, 1), "{}", descriptor.name);
    }
}

/// Each request of random streams completes once, whichever requests are merged.
#[test]
fn merging_completes_each_request_exactly_once() {
    for seed in 1..=20u64 {
        let (mut gate, read) = merging(2);
        let now = Instant::ZERO;
        let mut random = seed;
        let mut next = |bound: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % bound
        };
        let (mut log, mut over, mut flying) = (Log(Vec::new()), vec![0u32; 2000], Vec::new());
        let mut finished = Vec::new();
        for token in 0..2000 {
            gate.insert(now, &read(next(96) * 4096, token)).unwrap();
            if next(3) == 0 {
                let _ = gate.pump(now, &mut log);
                flying.append(&mut log.0);
            }
            if next(4) == 0 && !flying.is_empty() {
                let submission: Submission = flying.swap_remove(next(flying.len() as u64) as usize);
                gate.complete_all(now, submission.slot, true, &mut finished);
            }
        }
        while gate.queued() + gate.in_flight() > 0 {
            let _ = gate.pump(now, &mut log);
            flying.append(&mut log.0);
            gate.complete_all(now, flying.pop().unwrap().slot, true, &mut finished);
        }
        finished.iter().for_each(|finished| over[finished.token as usize] += 1);
        assert!(over.iter().all(|times| *times == 1));
        assert_eq!(gate.stats(OwnerId(0)).unwrap().bytes, 2000 * 4096);
    }
}
