//! Differences of the variant of 2.6.18.

use super::*;

/// rule: cfq.a-rt-starves, cfq.a-lists, cfq.a-placement
#[test]
fn real_time_starves_best_effort_in_2_6_18() {
    let mut drive = cfq(&[A], 0);
    drive.owner(0, of_class(PriorityClass::RealTime, 4));
    drive.owner(1, Policy::default());
    let served = backlogged(&mut drive, &[0, 1], 8, 1000, 5000);
    assert!(served[1] == 0 && served[0] >= 4990, "{served:?}");
}

/// rule: cfq.a-levels
#[test]
fn a_pass_serves_one_more_level_each_time() {
    let mut drive = cfq(&[A, ("slice_idle", "0s"), ("quantum", "1")], 0);
    (0..3).for_each(|level| drive.owner(level, of_class(PriorityClass::BestEffort, level as u8)));
    let mut turns = Vec::new();
    for asked in 0..39 {
        (0..3).for_each(|owner| {
            drive.read(owner, u64::from(owner) * 1_000_000 + asked);
        });
        turns.push(drive.serve(1000).0);
    }
    // 0 / 0 1 / 0 1 2 / and for each further pass up to level 7 again 0 1 2: 21 turns, then from the start.
    let mut expected = vec![0, 0, 1];
    (0..6).for_each(|_| expected.extend([0, 1, 2]));
    assert_eq!(turns[..21], expected[..], "{turns:?}");
    assert_eq!(turns[21..39], expected[..18]);
}

/// rule: cfq.a-batch, cfq.a-no-window, cfq.weak-rounds
#[test]
fn seeking_streams_get_rounds_of_four_once_queueing_is_observed() {
    let mut drive = cfq(&[A], 2);
    // More than four in flight.
    for owner in 0..2 {
        (0..12).for_each(|turn| {
            drive.read(owner, u64::from(owner) * 100_000_000 + turn * 1_000_000);
        });
    }
    let first: Vec<(u32, u64)> = (0..6).map(|_| drive.go()).collect();
    assert!(first.iter().all(|(owner, _)| *owner == 0), "at first its slice: {first:?}");
    for (owner, page) in first {
        drive.wait(1000);
        drive.done(owner, page);
    }
    (0..12).for_each(|turn| {
        drive.read(0, 13_000_000 + turn * 1_000_000);
        drive.read(1, 113_000_000 + turn * 1_000_000);
    });
    let order: Vec<u32> = (0..24).map(|_| drive.serve(1000).0).collect();
    let rounds: Vec<usize> = order.chunk_by(|a, b| a == b).map(<[u32]>::len).skip(1).take(4).collect();
    assert_eq!(rounds, [4, 4, 4, 4], "{order:?}");
}

/// rule: cfq.a-batch
#[test]
fn a_batch_is_sorted_from_the_head() {
    let mut drive = cfq(&[A], 1);
    drive.read(0, 500);
    let _ = drive.serve(1000);
    for page in [700, 100, 600, 300] {
        drive.read(0, page);
    }
    assert_eq!([(); 4].map(|()| drive.go().1), [600, 700, 100, 300], "requests ahead first, then from the start");
}

/// rule: cfq.idle-grace, cfq.idle-class
#[test]
fn class_idle_waits_for_its_grace_time_in_2_6_18() {
    let mut drive = cfq(&[A, ("slice_idle", "0s")], 0);
    drive.owner(0, Policy::default());
    drive.owner(1, of_class(PriorityClass::Idle, 0));
    drive.read(0, 1);
    drive.read(1, 1000);
    drive.read(1, 2000);
    assert_eq!(drive.serve(1000), (0, 1));
    assert_eq!(drive.waits(), 100_000);
    drive.wait(100_000);
    assert_eq!(drive.serve(1000), (1, 1000));
    drive.read(0, 2);
    assert_eq!(drive.serve(1000), (0, 2), "one at a time, after all others");
}

/// rule: cfq.a-preempt, cfq.a-select, cfq.a-preempted-slice, cfq.a-overrun
#[test]
fn only_class_idle_is_preempted_in_2_6_18() {
    let mut drive = cfq(&[A, ("quantum", "1")], 0);
    drive.owner(0, Policy::default());
    drive.owner(1, of_class(PriorityClass::RealTime, 0));
    drive.owner(2, Policy::default());
    (0..200).for_each(|page| {
        drive.write(0, page);
    });
    assert_eq!(drive.serve(1000).0, 0);
    drive.read(1, 9_000_000);
    drive.read(2, 8_000_000);
    assert_eq!(drive.serve(1000).0, 0, "neither a read nor real time ends a running slice");
    // An async request of the awaited owner ends the idling.
    let mut drive = cfq(&[A], 2);
    drive.read(0, 1);
    drive.read(1, 900_000);
    assert_eq!(drive.serve(1000).0, 0);
    assert_eq!(drive.waits(), 8000);
    drive.write(0, 50);
    assert_eq!(drive.serve(1000).0, 1);
}
