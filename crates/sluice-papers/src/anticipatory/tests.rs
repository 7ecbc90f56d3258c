use super::*;
use crate::elevator::drive::Drive;
use sluice_sched::request::OwnerId;
use sluice_sched::scheduler::{Change, Decision};

fn anticipatory(stated: &[(&str, &str)], owners: u32) -> Drive {
    Drive::new(&DESCRIPTOR, stated, owners)
}

/// Makes an owner known by a few sequential reads with this think time in microseconds; returns its next page.
fn known(drive: &mut Drive, owner: u32, page: u64, think: u64) -> u64 {
    for next in 0..4 {
        drive.read(owner, page + next);
        assert_eq!(drive.serve(1000), (owner, page + next));
        drive.wait(think);
    }
    page + 4
}

/// rule: anticipatory.can-anticipate, anticipatory.wait-next, anticipatory.antic-start, anticipatory.timeout
/// rule: anticipatory.timer, anticipatory.idle-bound, anticipatory.antic-expire, anticipatory.nothing-while-waiting
#[test]
fn the_disk_idles_for_the_next_read_after_a_read() {
    let mut drive = anticipatory(&[], 2);
    let page = known(&mut drive, 0, 100, 1000);
    drive.read(0, page);
    drive.read(1, 50_000_000);
    assert_eq!(drive.serve(1000), (0, page));
    assert_eq!(drive.waits(), 6000);
    drive.wait(1000);
    drive.read(0, page + 1);
    assert_eq!(drive.serve(1000), (0, page + 1), "the read arrived");
    assert_eq!(drive.waits(), 6000);
    drive.wait(5999);
    assert_eq!(drive.waits(), 1);
    drive.wait(1);
    assert_eq!(drive.go(), (1, 50_000_000), "the read did not arrive");
}

/// rule: anticipatory.wait-request, anticipatory.one-in-device
#[test]
fn no_request_is_dispatched_while_an_awaited_read_is_in_flight() {
    let mut drive = anticipatory(&[], 2);
    let page = known(&mut drive, 0, 100, 1000);
    drive.read(0, page);
    assert_eq!(drive.go(), (0, page));
    drive.read(1, 50_000_000);
    assert_eq!(drive.decide(), Decision::WaitCompletion);
    drive.wait(30_000);
    assert_eq!(drive.decide(), Decision::WaitCompletion, "until the request completes");
    drive.done(0, page);
    assert_eq!(drive.waits(), 6000, "the time runs from its completion");
    // An owner with several queued requests has several in flight.
    let mut drive = anticipatory(&[], 1);
    (0..5).for_each(|page| {
        drive.read(0, page);
    });
    assert_eq!([(); 5].map(|()| drive.go().1), [0, 1, 2, 3, 4]);
}

/// rule: anticipatory.same-owner, anticipatory.arrive-breaks, anticipatory.monopoly, anticipatory.random-readers
#[test]
fn a_request_of_the_awaited_owner_is_dispatched_at_any_distance() {
    let mut drive = anticipatory(&[], 2);
    drive.read(0, 10_000_000);
    assert_eq!(drive.serve(8000).0, 0);
    drive.read(0, 10_050_000);
    let began = drive.now;
    drive.read(1, 0);
    // A reader without think time, at random offsets in 400 MB, keeps the disk until the other's request has expired.
    let mut served = 0;
    loop {
        let (owner, page) = drive.go();
        if owner == 1 {
            break;
        }
        drive.wait(8000);
        drive.done(owner, page);
        served += 1;
        drive.read(0, 10_000_000 + (served * 7_919_003) % 100_000);
    }
    let kept = drive.now.nanos_since(began) / 1_000_000;
    // Expiry is checked every 125 ms, and the request may expire just after a check.
    assert!((125..260).contains(&kept), "{kept} ms, {served} requests");
}

/// rule: anticipatory.same-owner
#[test]
fn a_write_of_the_awaited_owner_ends_the_wait_too() {
    let mut drive = anticipatory(&[], 2);
    let page = known(&mut drive, 0, 100, 1000);
    drive.read(0, page);
    drive.read(1, 50_000_000);
    assert_eq!(drive.serve(1000).0, 0);
    assert_eq!(drive.waits(), 6000);
    drive.write(0, 7);
    assert_eq!(drive.go().0, 1, "idling ends, and the sync batch continues");
}

/// rule: anticipatory.close-request, anticipatory.close-distance
#[test]
fn a_close_request_of_another_owner_ends_the_idling() {
    let mut drive = anticipatory(&[], 2);
    let page = known(&mut drive, 0, 1000, 1000);
    drive.read(0, page);
    assert_eq!(drive.serve(1000).0, 0);
    // Requests up to 4 MiB ahead, or half of that behind, are close.
    drive.read(1, page + 1 + 1024);
    assert_eq!(drive.serve(1000).0, 1);
    for (ahead, waited, goes) in [(1025, 0, false), (1025, 1000, true), (2049, 1000, false), (2049, 2000, true)] {
        let mut drive = anticipatory(&[], 3);
        let page = known(&mut drive, 0, 1000, 1000);
        drive.read(0, page);
        assert_eq!(drive.serve(1000).0, 0);
        drive.read(2, 90_000_000);
        assert_eq!(drive.waits(), 6000);
        drive.wait(waited);
        drive.read(1, page + 1 + ahead);
        let decision = drive.decide();
        assert_eq!(matches!(decision, Decision::Dispatch(_)), goes, "{ahead} pages after {waited} us: {decision:?}");
    }
}

/// rule: anticipatory.think-time, anticipatory.think-max, anticipatory.owner-completed
#[test]
fn the_disk_does_not_idle_for_an_owner_with_a_long_think_time() {
    for (think, waited_for) in [(1000, true), (5000, true), (9000, false), (1_000_000, false)] {
        let mut drive = anticipatory(&[("antic_expire", "7ms")], 2);
        let page = known(&mut drive, 0, 100, think);
        drive.read(0, page);
        drive.read(1, 50_000_000);
        assert_eq!(drive.serve(1000).0, 0);
        let waits = matches!(drive.decide(), Decision::WaitUntil(_));
        assert_eq!(waits, waited_for, "{think} us");
    }
}

/// rule: anticipatory.owner-has-more
#[test]
fn the_disk_does_not_idle_for_an_owner_with_queued_requests() {
    let mut drive = anticipatory(&[], 2);
    let page = known(&mut drive, 0, 1000, 1000);
    drive.read(0, page);
    assert_eq!(drive.serve(1000).0, 0);
    drive.read(1, 50_000_000);
    assert_eq!(drive.waits(), 6000);
    drive.cancel(1);
    drive.read(0, 40_000_000);
    drive.read(1, page + 100_000);
    // It is nearer to the head, and the owner's own distant request is no reason to idle.
    assert_eq!(drive.go(), (1, page + 100_000));
}

/// rule: anticipatory.no-history, anticipatory.first-sample
#[test]
fn idling_for_new_owners_depends_on_earlier_new_owners() {
    // Owners that send two reads and never return: after a few of them the disk does not idle for the first read of a
    // new one.
    let mut drive = anticipatory(&[], 40);
    let mut waited = Vec::new();
    for owner in 0..20 {
        drive.read(owner, u64::from(owner) * 1_000_000);
        assert_eq!(drive.serve(1000).0, owner);
        drive.read(20 + owner, 50_000_000 + u64::from(owner) * 1_000_000);
        let waits = matches!(drive.decide(), Decision::WaitUntil(_));
        waited.push(waits);
        drive.wait(6000);
        if waits {
            assert_eq!(drive.go().0, 20 + owner);
        }
        let (_, page) = drive.flying.values().map(|r| (r.owner.0, r.offset / 4096)).next().unwrap();
        drive.wait(1000);
        drive.done(20 + owner, page);
        drive.change(Change::RemoveOwner { owner: OwnerId(owner) });
        drive.wait(100_000);
    }
    assert!(waited[0] && waited[1], "it idles for the first ones: {waited:?}");
}

/// rule: anticipatory.owner-exited
#[test]
fn idling_for_removed_owners_stops_when_none_continues_in_their_place() {
    let mut drive = anticipatory(&[], 60);
    let mut waits = 0;
    for owner in 0..30 {
        let page = known(&mut drive, owner, u64::from(owner) * 1_000_000, 1000);
        drive.read(owner, page);
        assert_eq!(drive.serve(1000).0, owner);
        drive.change(Change::RemoveOwner { owner: OwnerId(owner) });
        drive.read(30 + owner, 90_000_000);
        if let Decision::WaitUntil(until) = drive.decide() {
            waits += 1;
            drive.now = until;
            assert_eq!(drive.go().0, 30 + owner);
        }
        drive.done(30 + owner, 90_000_000);
        drive.wait(100_000);
    }
    assert_eq!(waits, 6, "each time in vain, then it stops");
}

/// rule: anticipatory.antic-expire
#[test]
fn the_disk_never_idles_without_anticipation() {
    let mut drive = anticipatory(&[("antic_expire", "0s")], 2);
    let page = known(&mut drive, 0, 100, 1000);
    drive.read(0, page);
    drive.read(1, 50_000_000);
    assert_eq!((drive.serve(1000).0, drive.serve(1000).0), (0, 1));
}

/// rule: anticipatory.batch-runs, anticipatory.switch-to-async, anticipatory.switch-to-sync, anticipatory.drain
/// rule: anticipatory.drained, anticipatory.alternation, anticipatory.read-batch-expire, anticipatory.batch-expired
/// rule: anticipatory.new-batch, anticipatory.dispatch-state
#[test]
fn batches_of_both_directions_alternate() {
    let mut drive = anticipatory(&[("antic_expire", "0s"), ("read_expire", "100s"), ("write_expire", "100s")], 2);
    let (mut reads, mut writes) = (0, 0);
    let mut runs: Vec<(bool, u64)> = Vec::new();
    let end = drive.now + Duration::from_secs(3);
    while drive.now < end {
        while reads < 40_000 && drive.flying.is_empty() && reads < 1 + runs.iter().map(|r| r.1).sum::<u64>() + 20 {
            drive.read(0, reads);
            drive.write(1, 1_000_000 + writes);
            (reads, writes) = (reads + 1, writes + 1);
        }
        let (owner, page) = drive.go();
        drive.wait(5000);
        drive.done(owner, page);
        match runs.last_mut() {
            Some((read, count)) if *read == (owner == 0) => *count += 1,
            _ => runs.push((owner == 0, 1)),
        }
    }
    assert!(runs.len() >= 6, "{runs:?}");
    // A sync batch of 500 ms is 100 reads of 5 ms; the first async one has twelve writes.
    let sync: Vec<u64> = runs.iter().filter(|run| run.0).map(|run| run.1).collect();
    assert!(sync[1..sync.len() - 1].iter().all(|count| (98..=104).contains(count)), "{runs:?}");
    let first = runs.iter().find(|run| !run.0).map(|run| run.1);
    assert_eq!(first, Some(12), "{runs:?}");
    // With one request at a time nothing drains; with two it does.
    let mut drive = anticipatory(&[("antic_expire", "0s"), ("read_batch_expire", "1ms")], 2);
    (0..4).for_each(|page| {
        drive.read(0, page);
        drive.write(1, 1_000_000 + page);
    });
    assert_eq!((drive.go().0, drive.go().0), (0, 0));
    drive.wait(2000);
    assert_eq!(drive.decide(), Decision::WaitCompletion, "the sync batch drains");
    drive.done(0, 0);
    assert_eq!(drive.decide(), Decision::WaitCompletion);
    drive.done(0, 1);
    assert_eq!(drive.go().0, 1);
}

/// rule: anticipatory.next-update, anticipatory.state, anticipatory.arrive-insert
/// rule: anticipatory.expired-or-anticipate, anticipatory.expiry-rate, anticipatory.read-expire
#[test]
fn one_expired_request_is_promoted_in_each_interval() {
    let mut drive = anticipatory(&[("antic_expire", "0s")], 1);
    drive.read(0, 10_000);
    let _ = drive.serve(1000);
    // Far behind the head, and old by now; close requests arrive all the time.
    for page in [10, 11, 12] {
        drive.read(0, page);
    }
    let mut order = Vec::new();
    for page in 0..400 {
        drive.read(0, 10_100 + page);
        let served = drive.serve(1000).1;
        if served < 100 {
            order.push((served, page));
        }
    }
    let gaps: Vec<u64> = order.windows(2).map(|pair| pair[1].1 - pair[0].1).collect();
    assert_eq!(order.iter().map(|at| at.0).collect::<Vec<_>>(), [10, 11, 12]);
    assert!(gaps.iter().all(|gap| *gap >= 1), "{order:?}");
    assert!(order[0].1 >= 123, "not before it has expired: {order:?}");
}

/// rule: anticipatory.write-batch-idled, anticipatory.batch-extends, anticipatory.expiry-in-batch
/// rule: anticipatory.write-expire
#[test]
fn a_batch_continues_while_the_other_direction_is_empty() {
    let mut drive = anticipatory(&[], 2);
    (0..100).for_each(|page| {
        drive.write(1, page);
    });
    assert_eq!(drive.pages(100), (0..100).collect::<Vec<u64>>());
    assert_eq!(drive.decide(), Decision::Idle);
    let mut drive = anticipatory(&[("read_batch_expire", "10ms")], 1);
    (0..100).for_each(|page| {
        drive.read(0, page);
    });
    (0..50).for_each(|page| assert_eq!(drive.serve(1000), (0, page)));
    drive.write(0, 900_000);
    // The end of the batch has moved with each read.
    (50..60).for_each(|page| assert_eq!(drive.serve(1000), (0, page)));
}

/// rule: anticipatory.direction
#[test]
fn a_sync_write_counts_as_a_read() {
    let mut drive = anticipatory(&[("antic_expire", "0s")], 1);
    drive.write(0, 10);
    drive.sync_write(0, 500);
    drive.read(0, 400);
    assert_eq!(drive.pages(3), [400, 500, 10]);
}

/// rule: anticipatory.ssd-as-disk
#[test]
fn an_ssd_is_treated_like_a_disk() {
    let info = DeviceInfo { rotational: false, ..DeviceInfo::default() };
    let mut drive = Drive::on(&DESCRIPTOR, &[], &info, 2);
    let page = known(&mut drive, 0, 100, 1000);
    drive.read(0, page);
    drive.read(1, 50_000_000);
    assert_eq!(drive.serve(1000).0, 0);
    assert_eq!(drive.waits(), 6000);
}
