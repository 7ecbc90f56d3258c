//! Groups: one for each VM.

use super::*;

fn weighted(weights: &[u32], stated: &[(&str, &str)]) -> Drive {
    let mut drive = cfq(stated, 0);
    (0u32..).zip(weights).for_each(|(owner, weight)| drive.owner(owner, Policy::weighted(*weight)));
    drive
}

/// rule: cfq.c-groups, cfq.c-charge, cfq.c-group-slice, cfq.group-bound
#[test]
fn groups_share_time_by_weight() {
    let mut drive = weighted(&[100, 200, 500], &[C, ("tick", "0s")]);
    let served = backlogged(&mut drive, &[0, 1, 2], 8, 100, 20_000);
    let weights = [1.0, 2.0, 5.0];
    let millis: Vec<f64> = served.iter().zip(weights).map(|(count, weight)| *count as f64 / 10.0 / weight).collect();
    // One charge is at most a slice of 100 ms. A request of 0.1 ms in each turn, fewer than 600 turns, is not charged.
    for (i, j) in [(0, 1), (0, 2), (1, 2)] {
        let bound = 100.0 / weights[i] + 100.0 / weights[j] + 60.0;
        assert!((millis[i] - millis[j]).abs() <= bound, "{served:?}: {millis:?}");
    }
}

/// rule: cfq.c-iops-mode
#[test]
fn without_idling_groups_share_requests() {
    let info = DeviceInfo { rotational: false, ..DeviceInfo::default() };
    let mut drive = Drive::on(&DESCRIPTOR, &[C, ("slice_idle", "0s")], &info, 0);
    drive.owner(0, Policy::weighted(100));
    drive.owner(1, Policy::weighted(100));
    // The second VM's requests take nine times as long; only their number counts.
    let mut asked = [0u64; 2];
    let mut served = [0u64; 2];
    while served[0] + served[1] < 4000 {
        for owner in 0..2u32 {
            let at = owner as usize;
            while asked[at] < served[at] + 16 {
                drive.read(owner, u64::from(owner) * 1_000_000 + asked[at]);
                asked[at] += 1;
            }
        }
        // Eight in flight at most, so that the device is seen to queue.
        while drive.flying.len() < 8 && matches!(drive.decide(), Decision::Dispatch(_)) {}
        let (owner, page) = drive.flying.values().map(|r| (r.owner.0, r.offset / 4096)).next().expect("some fly");
        drive.wait(if owner == 0 { 1000 } else { 9000 });
        drive.done(owner, page);
        served[owner as usize] += 1;
    }
    assert!(served[0].abs_diff(served[1]) <= 200, "{served:?}");
}

/// rule: cfq.c-async-root
#[test]
fn async_writes_belong_to_the_root_group() {
    let mut drive = weighted(&[1, 1000], &[C]);
    for page in 0..60 {
        drive.write(0, 2 * page);
        drive.write(1, 2 * page + 1);
    }
    let owners: Vec<u32> = (0..40).map(|_| drive.serve(1000).0).collect();
    let first = owners.iter().filter(|owner| **owner == 0).count();
    assert_eq!(first, 20, "a weight a thousand times as large has no effect");
}

/// rule: cfq.group-idle
/// rule: cfq.c-activate, cfq.c-wait-busy, cfq.c-group-idle, cfq.c-tree-idle
#[test]
fn a_group_of_depth_one_keeps_its_position_by_idling() {
    // Depth 1 next to depth 8, equal weights: idling keeps the first from losing its turn at each completion.
    let share = |idle: &str| {
        let mut drive = weighted(&[100, 100], &[C, ("slice_idle", idle), ("group_idle", idle)]);
        let (mut next, mut served) = ([0u64, 1_000_000], [0u32; 2]);
        (0..8).for_each(|_| {
            drive.read(1, next[1]);
            next[1] += 1;
        });
        let mut pending = Some(drive.now);
        let end = drive.now + Duration::from_secs(10);
        while drive.now < end {
            if pending.is_some_and(|at| at <= drive.now) {
                drive.read(0, next[0]);
                next[0] += 1;
                pending = None;
            }
            match drive.decide() {
                Decision::Dispatch(request) => {
                    let (owner, page) = (request.owner.0, request.offset / 4096);
                    drive.wait(1000);
                    drive.done(owner, page);
                    served[owner as usize] += 1;
                    match owner {
                        0 => pending = Some(drive.now + Duration::from_micros(500)),
                        _ => {
                            drive.read(1, next[1]);
                            next[1] += 1;
                        }
                    }
                }
                Decision::WaitUntil(until) => drive.now = pending.map_or(until, |at| at.min(until)),
                other => panic!("{other:?}"),
            }
        }
        f64::from(served[0]) / f64::from(served[0] + served[1])
    };
    // The first VM thinks for a third of its time, so half of the time is 0.4 of the requests.
    assert!((0.35..0.45).contains(&share("8ms")), "{}", share("8ms"));
    assert!(share("0s") < 0.2, "without idling it loses its position each time: {}", share("0s"));
}

/// rule: cfq.c-ssd
#[test]
fn on_an_ssd_groups_with_shallow_queues_are_hardly_isolated() {
    let share = |rotational: bool| {
        let info = DeviceInfo { rotational, ..DeviceInfo::default() };
        let mut drive = Drive::on(&DESCRIPTOR, &[C], &info, 0);
        drive.owner(0, Policy::weighted(1000));
        drive.owner(1, Policy::weighted(100));
        let (mut next, mut served) = ([0u64, 1_000_000], [0u32; 2]);
        let mut pending = [Some(drive.now); 2];
        while served[0] + served[1] < 2000 {
            for owner in 0..2u32 {
                let at = owner as usize;
                if pending[at].is_some_and(|due| due <= drive.now) {
                    drive.read(owner, next[at]);
                    next[at] += 1;
                    pending[at] = None;
                }
            }
            let due = pending.iter().flatten().copied().min();
            match drive.decide() {
                Decision::Dispatch(request) => {
                    let owner = request.owner.0;
                    drive.wait(100);
                    drive.done(owner, request.offset / 4096);
                    served[owner as usize] += 1;
                    pending[owner as usize] = Some(drive.now + Duration::from_micros(100));
                }
                Decision::WaitUntil(until) => drive.now = due.map_or(until, |at| at.min(until)),
                Decision::Idle => drive.now = due.expect("an owner sends a request"),
                other => panic!("{other:?}"),
            }
        }
        f64::from(served[0]) / 2000.0
    };
    assert!(share(false) < 0.6, "ten times the weight: {}", share(false));
    assert!(share(true) > 0.85, "on a disk they are isolated: {}", share(true));
}

/// rule: cfq.c-dispatch-limit
#[test]
fn a_group_sends_half_a_quantum_before_its_slice_begins() {
    let count = |drive: &mut Drive| {
        std::iter::from_fn(|| matches!(drive.decide(), Decision::Dispatch(_)).then_some(())).count()
    };
    let fill = |drive: &mut Drive, owners: u32| {
        for page in 0..40 {
            (0..owners).for_each(|owner| {
                drive.read(owner, u64::from(owner) * 1_000_000 + page);
            });
        }
    };
    let mut drive = weighted(&[100, 100], &[C]);
    fill(&mut drive, 2);
    assert_eq!(count(&mut drive), 4, "before its slice has begun");
    drive.wait(1000);
    drive.done(0, 0);
    assert_eq!(count(&mut drive), 5, "early in the slice up to eight");
    let mut drive = weighted(&[100, 100], &[C]);
    fill(&mut drive, 1);
    assert_eq!(count(&mut drive), 40, "alone all requests");
}

/// rule: cfq.c-preempt
#[test]
fn a_group_is_not_preempted_by_one_that_is_close() {
    for (mode, preempts) in [(B, true), (C, false)] {
        let mut drive = cfq(&[mode], 2);
        drive.read(0, 1000);
        assert_eq!(drive.serve(1000), (0, 1000));
        drive.read(1, 1002);
        assert_eq!(matches!(drive.decide(), Decision::Dispatch(_)), preempts, "{mode:?}");
    }
    // Sync before async also applies across groups.
    let mut drive = weighted(&[100, 100], &[C, ("quantum", "2"), ("low_latency", "false")]);
    (0..20).for_each(|page| {
        drive.write(0, page);
    });
    assert_eq!(drive.serve(1000), (0, 0));
    drive.read(1, 500_000);
    assert_eq!(drive.serve(1000), (1, 500_000));
    // Inside a group real time is served first.
    let mut drive = weighted(&[100], &[C]);
    (0..20).for_each(|page| {
        drive.write(0, page);
    });
    assert_eq!(drive.serve(1000), (0, 0));
    drive.change(Change::SetOwner { owner: OwnerId(0), policy: of_class(PriorityClass::RealTime, 4) });
    drive.write(0, 900_000);
    assert_eq!(drive.serve(1000), (0, 900_000));
}

/// rule: cfq.target-latency, cfq.c-workload, cfq.c-queue-slice, cfq.c-resid
#[test]
fn slices_shrink_with_the_queues_of_a_group() {
    let turn = |volumes: u16| {
        let mut drive = weighted(&[100], &[C]);
        let owner = OwnerId(0);
        (1..volumes).for_each(|volume| {
            let (volume, policy) = (sluice_sched::request::VolumeId(volume), Policy::default());
            drive.change(Change::AddVolume { owner, volume, policy });
        });
        (0..600).for_each(|page| {
            (0..volumes).for_each(|volume| {
                let at = crate::elevator::drive::at(Kind::Read, u64::from(volume) * 1_000_000 + page);
                drive.insert(Request { volume: sluice_sched::request::VolumeId(volume), id: drive.next_id(), ..at });
            });
        });
        let mut turns = vec![];
        let mut last = u64::MAX;
        for _ in 0..500 {
            let (_, page) = drive.serve(1000);
            if page / 1_000_000 != last {
                turns.push(0);
                last = page / 1_000_000;
            }
            *turns.last_mut().expect("just pushed") += 1;
        }
        turns[1]
    };
    assert!((100..=112).contains(&turn(2)), "{}", turn(2));
    assert!((45..=75).contains(&turn(6)), "six of them in 300 ms: {}", turn(6));
}

/// Two owners with one request at a time, each `step` pages after the last one of its own. Returns what the scheduler says when one
/// request has completed and the other owner's waits.
fn after_a_completion(step: u64, deep: bool) -> Decision {
    let mut drive = weighted(&[100, 100], &[("mode", "2.6.32-el6"), ("tick", "0s")]);
    let mut pages = [0, 1 << 30];
    let mut ask = |drive: &mut Drive, owner: u32| {
        pages[owner as usize] += step;
        drive.read(owner, pages[owner as usize]);
    };
    let finish_one = |drive: &mut Drive| loop {
        if let Decision::Dispatch(request) = drive.decide() {
            drive.wait(100);
            drive.done(request.owner.0, request.offset / 4096);
            return request.owner.0;
        }
        drive.wait(1000);
    };
    if deep {
        (0..4).for_each(|_| (0..2).for_each(|owner| ask(&mut drive, owner)));
        for _ in 0..8 {
            finish_one(&mut drive);
        }
    }
    (0..2).for_each(|owner| ask(&mut drive, owner));
    for _ in 0..40 {
        let owner = finish_one(&mut drive);
        ask(&mut drive, owner);
    }
    finish_one(&mut drive);
    drive.decide()
}

/// rule: cfq.c-seeky-window
#[test]
fn a_shallow_queue_that_seeks_has_no_idle_window() {
    assert!(matches!(after_a_completion(1 << 14, false), Decision::Dispatch(_)), "the other one is served");
    assert!(matches!(after_a_completion(1, false), Decision::WaitUntil(_)), "sequential");
    assert!(matches!(after_a_completion(1 << 14, true), Decision::WaitUntil(_)), "deep");
}
