//! Rules of CFQ: those of all variants, and those of 2.6.32.

use super::*;
use crate::elevator::drive::Drive;
use sluice_sched::policy::{Class, Policy, PriorityClass};
use sluice_sched::request::{Kind, OwnerId, Request};
use sluice_sched::scheduler::{Change, Decision};

mod groups;
mod v2_6_18;

const A: (&str, &str) = ("mode", "2.6.18");
const B: (&str, &str) = ("mode", "2.6.32");
const C: (&str, &str) = ("mode", "group");

fn cfq(stated: &[(&str, &str)], owners: u32) -> Drive {
    Drive::new(&DESCRIPTOR, stated, owners)
}

fn of_class(priority_class: PriorityClass, priority_level: u8) -> Policy {
    Policy { priority_class, priority_level, ..Policy::default() }
}

/// Keeps `depth` sequential reads of each owner queued for `millis`, and serves each in `micros`, one at a time.
/// Returns how many of each owner were served.
fn backlogged(drive: &mut Drive, owners: &[u32], depth: u64, micros: u64, millis: u64) -> Vec<u64> {
    let mut served = vec![0; owners.len()];
    let mut asked = vec![0; owners.len()];
    let end = drive.now + Duration::from_millis(millis);
    while drive.now < end {
        for (index, owner) in owners.iter().enumerate() {
            while asked[index] < served[index] + depth {
                drive.read(*owner, u64::from(*owner) * 1_000_000 + asked[index]);
                asked[index] += 1;
            }
        }
        match drive.decide() {
            Decision::Dispatch(request) => {
                let (owner, page) = (request.owner.0, request.offset / 4096);
                drive.wait(micros);
                drive.done(owner, page);
                served[owners.iter().position(|known| *known == owner).expect("one of them")] += 1;
            }
            Decision::WaitUntil(until) => drive.now = until,
            other => panic!("{other:?} with every owner backlogged"),
        }
    }
    served
}

/// rule: cfq.slice-by-level, cfq.async-by-level, cfq.slice-sync, cfq.slice-async, cfq.slice-async-rq
#[test]
fn slices_follow_the_level() {
    let core = super::core::Core::new(Params::default(), &DeviceInfo::default());
    let millis = |base: u64| (0..8).map(|level| super::core::Core::scaled(base, level)).collect::<Vec<_>>();
    assert_eq!(millis(100), [180, 160, 140, 120, 100, 80, 60, 40]);
    assert_eq!(millis(40), [72, 64, 56, 48, 40, 32, 24, 16]);
    let requests: Vec<u32> = (0..8).map(|level| core.async_requests(level)).collect();
    assert_eq!(requests, [32, 28, 24, 20, 16, 12, 8, 4]);
}

/// rule: cfq.round-robin, cfq.time-fair, cfq.slice-starts, cfq.select-expired, cfq.select-queued, cfq.select-first
#[test]
fn backlogged_queues_get_slices_in_turn() {
    for mode in [A, B] {
        let mut drive = cfq(&[mode], 3);
        let served = backlogged(&mut drive, &[0, 1, 2], 4, 1000, 3000);
        // A slice is 100 ms, and an overrun is one request. In ten rounds each owner has had ten slices.
        assert!(served.iter().all(|count| count.abs_diff(1000) <= 110), "{mode:?}: {served:?}");
    }
}

/// rule: cfq.slice-starts, cfq.a-slice-starts
#[test]
fn the_slice_begins_with_the_first_completion_or_dispatch() {
    // The first request takes 60 ms, the others 1 ms each, while another owner waits.
    let turn = |mode| {
        let mut drive = cfq(&[mode, ("quantum", "1")], 2);
        (0..200).for_each(|page| {
            drive.read(0, page);
            drive.read(1, 1_000_000 + page);
        });
        let mut count = 0;
        while drive.serve(if count == 0 { 60_000 } else { 1000 }).0 == 0 {
            count += 1;
        }
        count
    };
    assert_eq!(turn(B), 101, "the first seek is not charged");
    assert_eq!(turn(A), 42, "the first seek is charged");
}

/// rule: cfq.async-shared, cfq.sync-queue, cfq.weak-async, cfq.never-across
#[test]
fn async_writes_share_a_queue_and_sync_ones_do_not() {
    let mut drive = cfq(&[B], 2);
    for page in [5, 3, 1] {
        drive.write(0, page);
        drive.write(1, page + 1);
    }
    let order: Vec<(u32, u64)> = (0..6).map(|_| drive.serve(1000)).collect();
    assert_eq!(order, [(0, 1), (1, 2), (0, 3), (1, 4), (0, 5), (1, 6)], "in order of offsets, for both owners");
    let mut drive = cfq(&[B], 2);
    for page in [5, 3, 1] {
        drive.sync_write(0, page);
        drive.sync_write(1, page + 1);
    }
    let owners: Vec<u32> = (0..3).map(|_| drive.serve(1000).0).collect();
    assert_eq!(owners, [0, 0, 0]);
    assert_eq!(drive.waits(), 8000, "the first might continue");
}

/// rule: cfq.idle-window-start, cfq.slice-idle, cfq.complete-idle, cfq.idle-arm, cfq.select-idle, cfq.idle-timer
/// rule: cfq.idle-bound
#[test]
fn the_disk_waits_for_the_next_read_of_a_stream() {
    for mode in [A, B, C] {
        let mut drive = cfq(&[mode], 2);
        drive.read(0, 100);
        drive.read(1, 900_000);
        assert_eq!(drive.serve(1000), (0, 100));
        assert_eq!(drive.waits(), 8000, "{mode:?}");
        drive.wait(5000);
        drive.read(0, 101);
        assert_eq!(drive.serve(1000), (0, 101), "{mode:?}: it arrives and is dispatched");
        assert_eq!(drive.waits(), 8000);
        drive.wait(8000);
        assert_eq!(drive.go(), (1, 900_000), "{mode:?}: it does not arrive, and the other is served");
    }
}

/// rule: cfq.idle-arm
#[test]
fn the_disk_does_not_idle_without_a_benefit() {
    for mode in [A, B, C] {
        // Never without slice_idle (and group_idle).
        let mut drive = cfq(&[mode, ("slice_idle", "0s"), ("group_idle", "0s")], 2);
        drive.read(0, 100);
        drive.read(1, 900_000);
        assert_eq!((drive.serve(1000).0, drive.serve(1000).0), (0, 1), "{mode:?}");
    }
    for mode in [B, C] {
        // On a device without seeks that queues, as it is assumed to at first.
        let info = DeviceInfo { rotational: false, ..DeviceInfo::default() };
        let mut drive = Drive::on(&DESCRIPTOR, &[mode], &info, 2);
        drive.read(0, 100);
        drive.read(1, 900_000);
        assert_eq!((drive.serve(1000).0, drive.serve(1000).0), (0, 1), "{mode:?}");
    }
}

/// rule: cfq.arrive-statistics, cfq.a-idle-window, cfq.idle-seeky
#[test]
fn idling_is_short_for_long_think_times_and_seeking_streams() {
    for mode in [A, B] {
        let mut drive = cfq(&[mode], 2);
        for turn in 0..6 {
            drive.read(0, 100 + turn);
            assert_eq!(drive.serve(1000).0, 0);
            drive.wait(12_000);
        }
        drive.read(0, 200);
        assert_eq!(drive.serve(1000).0, 0);
        drive.read(1, 900_000);
        assert_eq!(drive.go().0, 1, "{mode:?}: 12 ms are more than 8");
    }
    // A stream that seeks: 2 ms.
    let mut drive = cfq(&[B], 2);
    for turn in 0..6 {
        drive.read(0, turn * 100_000);
        assert_eq!(drive.serve(1000).0, 0);
        drive.wait(1000);
    }
    drive.read(0, 5_000_000);
    drive.read(1, 900_000);
    assert_eq!(drive.serve(1000).0, 0);
    assert_eq!(drive.waits(), 2000);
}

/// rule: cfq.after-dispatch, cfq.weak-async-level
#[test]
fn an_async_turn_is_short_while_others_wait() {
    let mut drive = cfq(&[B, ("quantum", "64"), ("low_latency", "false")], 2);
    (0..40).for_each(|page| {
        drive.write(0, page);
    });
    let alone = (0..20).map(|_| drive.serve(100).0).count();
    assert_eq!(alone, 20, "alone more than 16");
    drive.change(Change::SetOwner { owner: OwnerId(1), policy: of_class(PriorityClass::BestEffort, 3) });
    drive.write(1, 1_000_000);
    let mut order: Vec<u32> = (0..3).map(|_| drive.serve(100).0).collect();
    order.dedup();
    assert_eq!(order, [0, 1, 0], "another level is another queue with its own turn");
}

/// rule: cfq.dispatch-drain
#[test]
fn sync_and_async_are_never_at_the_device_together() {
    let mut drive = cfq(&[B], 2);
    drive.write(0, 10);
    assert_eq!(drive.go(), (0, 10));
    drive.read(1, 900_000);
    assert_eq!(drive.decide(), Decision::WaitCompletion, "async drains before sync with an idle window");
    drive.done(0, 10);
    assert_eq!(drive.go(), (1, 900_000));
    drive.write(0, 20);
    assert_eq!(drive.decide(), Decision::WaitCompletion, "the read is awaited");
}

/// rule: cfq.dispatch-limit, cfq.quantum
#[test]
fn a_queue_has_few_requests_at_the_device() {
    let mut drive = cfq(&[B], 2);
    (0..40).for_each(|page| {
        drive.read(0, page);
    });
    let alone = std::iter::from_fn(|| matches!(drive.decide(), Decision::Dispatch(_)).then_some(())).count();
    assert_eq!(alone, 16, "alone four times the quantum");
    assert_eq!(drive.decide(), Decision::WaitCompletion);
    let mut drive = cfq(&[B], 2);
    (0..40).for_each(|page| {
        drive.read(0, page);
        drive.read(1, 900_000 + page);
    });
    let shared = std::iter::from_fn(|| matches!(drive.decide(), Decision::Dispatch(_)).then_some(())).count();
    assert_eq!(shared, 4);
}

/// rule: cfq.dispatch-async-depth, cfq.low-latency
#[test]
fn async_depth_grows_with_the_time_since_the_last_sync_completion() {
    let depth_after = |millis: u64| {
        let mut drive = cfq(&[B], 2);
        drive.read(0, 1);
        let _ = drive.serve(1000);
        drive.wait(millis * 1000);
        (0..40).for_each(|page| {
            drive.write(1, 100 + page);
        });
        std::iter::from_fn(|| matches!(drive.decide(), Decision::Dispatch(_)).then_some(())).count()
    };
    assert_eq!([20, 250, 350, 5000].map(depth_after), [1, 2, 3, 16]);
}

/// rule: cfq.tree-order, cfq.tree-idle, cfq.idle-class, cfq.starvation
#[test]
fn classes_are_served_in_strict_order() {
    let mut drive = cfq(&[B], 0);
    drive.owner(0, of_class(PriorityClass::Idle, 0));
    drive.owner(1, Policy::default());
    drive.owner(2, of_class(PriorityClass::RealTime, 7));
    let served = backlogged(&mut drive, &[0, 1, 2], 4, 1000, 2000);
    assert!(served[2] >= 1990 && served[0] == 0, "real time starves all others: {served:?}");
    let mut drive = cfq(&[B], 0);
    drive.owner(0, Policy { class: Class::Background, ..Policy::default() });
    drive.owner(1, Policy::default());
    let served = backlogged(&mut drive, &[0, 1], 4, 1000, 2000);
    assert!(served[0] <= 1 && served[1] >= 1990, "background gets nothing while others are backlogged: {served:?}");
    // Alone it has one at a time.
    let mut drive = cfq(&[B], 0);
    drive.owner(0, of_class(PriorityClass::Idle, 0));
    drive.read(0, 1);
    drive.read(0, 2);
    assert_eq!(drive.go(), (0, 1));
    assert_eq!(drive.decide(), Decision::WaitCompletion);
}

/// rule: cfq.tree-key, cfq.level-monotone, cfq.default-level
#[test]
fn a_higher_level_gets_at_least_as_much_time() {
    for mode in [A, B] {
        let mut drive = cfq(&[mode], 0);
        (0..8).for_each(|level| drive.owner(level, of_class(PriorityClass::BestEffort, level as u8)));
        let owners: Vec<u32> = (0..8).collect();
        let served = backlogged(&mut drive, &owners, 4, 1000, 60_000);
        assert!(served.is_sorted_by(|a, b| a >= b), "{mode:?}: {served:?}");
        assert!(served[0] > 3 * served[7] && served[7] > 0, "{mode:?}: {served:?}");
    }
}

/// rule: cfq.preempt, cfq.tree-preempt
#[test]
fn a_read_preempts_writes_and_real_time_preempts_all() {
    let mut drive = cfq(&[B, ("quantum", "1"), ("low_latency", "false")], 0);
    drive.owner(0, Policy::default());
    drive.owner(1, Policy::default());
    drive.owner(2, of_class(PriorityClass::RealTime, 4));
    drive.owner(3, of_class(PriorityClass::Idle, 4));
    (0..20).for_each(|page| {
        drive.write(0, page);
    });
    assert_eq!(drive.serve(1000), (0, 0));
    drive.read(3, 1);
    assert_eq!(drive.serve(1000), (0, 1), "class idle never preempts");
    drive.read(1, 500_000);
    assert_eq!(drive.serve(1000), (1, 500_000), "sync goes before async");
    drive.read(1, 500_001);
    drive.read(1, 500_002);
    assert_eq!(drive.serve(1000), (1, 500_001));
    drive.read(0, 700_000);
    assert_eq!(drive.serve(1000), (1, 500_002), "one of the same class waits for the end of the slice");
    drive.read(1, 500_003);
    drive.read(2, 900_000);
    assert_eq!(drive.serve(1000), (2, 900_000));
}

/// rule: cfq.preempt
#[test]
fn a_close_request_preempts_the_awaited_stream() {
    let mut drive = cfq(&[B], 2);
    drive.read(0, 1000);
    assert_eq!(drive.serve(1000), (0, 1000));
    drive.read(1, 1002);
    // Nothing shows that the first continues elsewhere: up to 8192 sectors, 1024 pages, is close.
    assert_eq!(drive.serve(1000), (1, 1002));
    drive.wait(100_000);
    let mut drive = cfq(&[B], 2);
    drive.read(0, 1000);
    assert_eq!(drive.serve(1000), (0, 1000));
    drive.read(1, 9000);
    assert_eq!(drive.waits(), 8000, "a distant request is not close");
}

/// rule: cfq.select-cooperator
#[test]
fn a_close_cooperator_continues_where_another_stream_stopped() {
    let mut drive = cfq(&[B], 3);
    drive.read(0, 1000);
    drive.read(1, 500_000);
    drive.read(2, 1001);
    assert_eq!(drive.serve(1000), (0, 1000));
    assert_eq!(drive.serve(1000), (2, 1001), "not the next one in the tree");
    assert_eq!(drive.waits(), 8000, "it is the active one now");
    let mut drive = cfq(&[B], 0);
    drive.owner(0, Policy::default());
    drive.owner(1, of_class(PriorityClass::BestEffort, 5));
    drive.read(0, 1000);
    assert_eq!(drive.serve(1000), (0, 1000));
    drive.wait(1000);
    drive.change(Change::SetOwner { owner: OwnerId(0), policy: of_class(PriorityClass::BestEffort, 5) });
    drive.read(1, 900_000);
    assert_eq!(drive.waits(), 7000, "no stream is close");
}

/// rule: cfq.queue-expiry, cfq.fifo-expire
#[test]
fn expiry_is_checked_once_per_slice() {
    let mut drive = cfq(&[B, ("quantum", "1")], 1);
    drive.read(0, 9_000_000);
    drive.read(0, 8_000_000);
    drive.wait(126_000);
    for page in [10, 11, 12] {
        drive.read(0, page);
    }
    let order: Vec<u64> = (0..5).map(|_| drive.serve(100).1).collect();
    assert_eq!(order, [9_000_000, 10, 11, 12, 8_000_000], "the oldest once, then what is near");
}

/// rule: cfq.queue-state, cfq.choose, cfq.back-seek-max, cfq.back-seek-penalty
#[test]
fn the_nearest_request_of_a_queue_is_dispatched() {
    let mut drive = cfq(&[B, ("quantum", "1")], 1);
    drive.read(0, 10_000);
    let _ = drive.serve(100);
    // Head at 10001: 50 pages back count 100, and 4097 back are too far.
    for page in [10_090, 9951, 5900] {
        drive.read(0, page);
    }
    assert_eq!([(); 3].map(|()| drive.serve(100).1), [10_090, 9951, 5900]);
    let mut drive = cfq(&[B, ("quantum", "1"), ("back_seek_max", "1KiB")], 1);
    drive.read(0, 10_000);
    let _ = drive.serve(100);
    for page in [9999, 20_000] {
        drive.read(0, page);
    }
    assert_eq!([(); 2].map(|()| drive.serve(100).1), [20_000, 9999]);
}

/// rule: cfq.complete-expire
#[test]
fn an_overrun_delays_the_next_turn() {
    // The first owner's last request of a slice takes 80 ms longer. Its next turn is later by that, so the others have
    // two turns before it.
    let mut drive = cfq(&[B, ("quantum", "1")], 3);
    let mut next = [0u64; 3];
    let mut turns: Vec<u32> = Vec::new();
    for step in 0..1100 {
        for owner in 0..3u32 {
            while next[owner as usize] < step / 3 + 400 {
                drive.read(owner, u64::from(owner) * 1_000_000 + next[owner as usize]);
                next[owner as usize] += 1;
            }
        }
        let (owner, _) = drive.serve(if step == 99 { 250_000 } else { 1000 });
        if turns.last() != Some(&owner) {
            turns.push(owner);
        }
    }
    assert_eq!(turns[..5], [0, 1, 2, 1, 2], "{turns:?}");
}

/// rule: cfq.arrive-awaited
#[test]
fn an_awaited_request_is_dispatched_immediately() {
    let mut drive = cfq(&[B], 2);
    drive.read(0, 100);
    drive.read(1, 900_000);
    assert_eq!(drive.serve(1000), (0, 100));
    assert_eq!(drive.waits(), 8000);
    drive.wait(95_000);
    // The slice has ended by now, but its request was awaited and must be dispatched. (The timer has not been checked.)
    drive.insert(Request { length: 8192, ..crate::elevator::drive::at(Kind::Read, 101) });
    assert_eq!(drive.go().0, 1, "after 8 ms the other is served");
}

/// rule: cfq.hw-tag
#[test]
fn queueing_is_assumed_until_the_device_shows_otherwise() {
    let mut drive = cfq(&[B, ("low_latency", "false"), ("quantum", "1")], 2);
    // A stream that seeks, on a device that is assumed to queue: no idle window.
    for turn in 0..6 {
        drive.read(0, turn * 100_000);
        let _ = drive.serve(1000);
    }
    drive.read(0, 9_000_000);
    drive.read(1, 1);
    assert_eq!((drive.serve(1000).0, drive.serve(1000).0), (0, 1));
    // Sixty completions with many queued and one in flight.
    (0..70).for_each(|turn| {
        drive.read(0, turn * 100_000);
    });
    (0..60).for_each(|_| {
        let _ = drive.serve(1000);
    });
    while matches!(drive.decide(), Decision::Dispatch(_)) {
        let (owner, page) = drive.flying.values().map(|r| (r.owner.0, r.offset / 4096)).next().unwrap();
        drive.wait(1000);
        drive.done(owner, page);
    }
    drive.wait(1000);
    drive.read(0, 3_000_000);
    assert_eq!(drive.serve(1000).0, 0);
    drive.read(1, 500_000);
    assert_eq!(drive.waits(), 2000, "with one request at a time idling is worth it");
}

#[test]
fn parameters_have_ranges() {
    let build = |stated: &[(&str, &str)]| {
        let table = crate::elevator::drive::params(stated);
        DESCRIPTOR.build(&DeviceInfo::default(), &table).map(drop).map_err(|error| error.to_string())
    };
    assert!(build(&[("back_seek_penalty", "0")]).unwrap_err().contains("from 1 to 1000"));
    assert!(build(&[("slice_sync", "0s")]).unwrap_err().contains("from 1us to 60s"));
    assert!(build(&[("mode", "3.6")]).is_err());
    for parameter in PARAMETERS {
        assert_eq!(build(&[(parameter.name, parameter.default.trim_matches('"'))]), Ok(()), "{}", parameter.name);
    }
}

#[test]
fn an_owner_removed_during_its_turn_leaves_no_state() {
    for mode in [A, B, C] {
        let mut drive = cfq(&[mode], 2);
        drive.read(0, 1);
        drive.read(0, 2);
        drive.read(1, 900_000);
        assert_eq!(drive.go(), (0, 1));
        assert_eq!(drive.cancel(0), 1);
        drive.change(Change::RemoveOwner { owner: OwnerId(0) });
        let next = drive.decide();
        assert!(matches!(next, Decision::Dispatch(request) if request.owner.0 == 1), "{mode:?}: {next:?}");
        drive.done(0, 1);
        drive.owner(0, Policy::default());
        drive.read(0, 5);
        drive.done(1, 900_000);
        assert_eq!(drive.waits(), 8000);
        drive.wait(8000);
        assert_eq!(drive.go(), (0, 5), "{mode:?}");
    }
}
