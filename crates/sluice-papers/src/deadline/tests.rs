use super::*;
use crate::elevator::drive::Drive;
use sluice_sched::request::RequestId;

fn deadline(stated: &[(&str, &str)]) -> Drive {
    Drive::new(&DESCRIPTOR, stated, 2)
}

/// rule: deadline.fifo-batch, deadline.writes-starved, deadline.batch-continues, deadline.read-first
/// rule: deadline.starved-reset, deadline.write-progress, deadline.read-progress, deadline.relative-starvation
#[test]
fn reads_pass_over_writes_twice() {
    let mut drive = deadline(&[]);
    for page in 0..40 {
        drive.write(0, 1000 + page);
        drive.read(0, page);
    }
    let all = drive.pages(80);
    let runs: Vec<(bool, usize)> =
        all.chunk_by(|a, b| (a < &1000) == (b < &1000)).map(|r| (r[0] < 1000, r.len())).collect();
    assert_eq!(runs, [(true, 32), (false, 16), (true, 8), (false, 24)], "the example of the head comment");

    // Under a flood of reads writes get one batch of three, however long they have waited.
    let mut drive = deadline(&[("write_expire", "1ms")]);
    for page in 0..400 {
        drive.write(0, 1000 + page);
        drive.read(0, page);
    }
    drive.wait(60_000_000);
    let all = drive.pages(480);
    assert_eq!(all.iter().filter(|page| **page >= 1000).count(), 160);

    let mut drive = deadline(&[("writes_starved", "0"), ("fifo_batch", "2")]);
    for page in 0..4 {
        drive.write(0, 1000 + page);
        drive.read(0, page);
    }
    assert_eq!(drive.pages(8), [1000, 1001, 1002, 1003, 0, 1, 2, 3]);
}

/// rule: deadline.starved-reset
#[test]
fn reads_without_queued_writes_never_starve_them() {
    let mut drive = deadline(&[("fifo_batch", "1")]);
    for page in 0..9 {
        drive.read(0, page);
    }
    let _ = drive.pages(5);
    drive.write(0, 1000);
    assert_eq!(drive.pages(3), [5, 6, 1000], "counted from the first write on");
    drive.write(0, 1001);
    assert_eq!(drive.pages(3), [7, 8, 1001], "then the next batch");
}

/// rule: deadline.read-expire, deadline.write-expire, deadline.fifo-expire, deadline.one-expired, deadline.lateness
/// rule: deadline.batch-order, deadline.successor
#[test]
fn an_expired_request_starts_a_batch_but_ends_none() {
    let mut drive = deadline(&[("fifo_batch", "4")]);
    for page in [900, 100, 101, 102, 103, 104, 105] {
        drive.read(0, page);
    }
    assert_eq!(drive.pages(1), [900], "with no successor a batch starts at the oldest");
    drive.read(0, 50);
    drive.read(0, 51);
    assert_eq!(drive.pages(2), [100, 101], "beyond the highest there is no successor, and no wrap");
    drive.wait(499_999);
    assert_eq!(drive.pages(1), [102], "inside a batch age does not count");
    drive.read(0, 104);
    drive.wait(2);
    // 104 twice: the older one is forced out at once.
    assert_eq!(drive.pages(2), [104, 103]);
    drive.wait(500_000);
    let rest = drive.pages(4);
    assert_eq!(rest, [105, 50, 51, 104], "one expired request per batch, and on from it");
}

/// rule: deadline.alias, deadline.arrive, deadline.state
#[test]
fn a_request_at_the_same_offset_forces_the_older_one_out() {
    let mut drive = deadline(&[]);
    for page in 0..4 {
        drive.read(0, page);
    }
    drive.read(1, 2);
    drive.write(1, 2);
    assert_eq!((drive.go(), drive.go(), drive.go()), ((0, 2), (0, 0), (0, 1)), "a write is not of its direction");
    assert_eq!((drive.go(), drive.go(), drive.go()), ((1, 2), (0, 3), (1, 2)));
    // The one that the batch would go on with: it goes on behind it.
    for page in 0..4 {
        drive.read(0, 10 + page);
    }
    assert_eq!(drive.go(), (0, 10));
    drive.read(1, 11);
    assert_eq!((drive.go(), drive.go(), drive.go()), ((0, 11), (1, 11), (0, 12)));
}

/// rule: deadline.direction
#[test]
fn a_sync_write_is_a_write() {
    let mut drive = deadline(&[]);
    drive.sync_write(0, 0);
    drive.read(0, 10);
    drive.ask(0, Kind::Discard, 5);
    drive.ask(0, Kind::Flush, 5);
    assert_eq!(drive.pages(4), [10, 0, 5, 5]);
}

/// rule: deadline.early-contiguous, deadline.early-wrap, deadline.early-batch-reset
#[test]
fn in_2_6_18_a_batch_ends_at_a_gap() {
    let mut v2_6_18 = deadline(&[("mode", "early")]);
    let mut v2_6_32 = deadline(&[]);
    for drive in [&mut v2_6_18, &mut v2_6_32] {
        // Runs of three; a write waits all the time.
        for page in [0, 1, 2, 10, 11, 12, 20, 21, 22, 30] {
            drive.read(0, page);
        }
        drive.write(0, 500);
    }
    assert_eq!(v2_6_32.pages(11), [0, 1, 2, 10, 11, 12, 20, 21, 22, 30, 500]);
    // Batches 0 and 10; after the second the counter is still beyond a batch, so 11 is a selection of its own.
    assert_eq!(v2_6_18.pages(5), [0, 1, 2, 10, 500]);
    let rest = v2_6_18.pages(6);
    assert_eq!(rest, [11, 12, 20, 21, 22, 30], "from the lowest place, since a write has no successor among reads");

    let mut drive = deadline(&[("mode", "early")]);
    for page in [50, 60, 10, 20] {
        drive.read(0, page);
    }
    assert_eq!(drive.pages(4), [10, 20, 50, 60], "not from the oldest but from the lowest");
    for page in [60, 50, 10] {
        drive.read(0, page);
    }
    drive.wait(501_000);
    assert_eq!(drive.pages(3), [60, 50, 10], "but from the oldest once it has expired");
}

/// rule: deadline.expired-storm
#[test]
fn a_queue_too_long_to_drain_is_served_by_age() {
    let mut drive = deadline(&[("fifo_batch", "4")]);
    // Each start of a batch is the oldest there is, in an order that no elevator would choose.
    for index in 0..10 {
        let page = (9 - index) * 100;
        for next in 0..4 {
            drive.read(0, page + next);
        }
    }
    drive.wait(600_000);
    let all = drive.pages(40);
    let starts: Vec<u64> = all.iter().copied().step_by(4).collect();
    assert_eq!(starts, [900, 800, 700, 600, 500, 400, 300, 200, 100, 0]);
}

/// rule: deadline.work-conserving, deadline.no-timer
#[test]
fn it_never_waits() {
    let mut drive = deadline(&[]);
    for page in 0..100 {
        drive.write(page as u32 % 2, page * 7919 % 1000);
        assert_ne!(drive.go().1, u64::MAX);
        assert_eq!(drive.decide(), Decision::Idle);
    }
}

/// rule: deadline.front-merges
#[test]
fn front_merges_can_be_declined() {
    for (stated, front) in [("true", true), ("false", false)] {
        let mut drive = deadline(&[("front_merges", stated)]);
        let id = RequestId(drive.read(0, 10));
        let grown =
            |page, pages: u32| Request { id, length: pages * 4096, ..crate::elevator::drive::at(Kind::Read, page) };
        let now = drive.now;
        assert!(drive.scheduler.grow(now, grown(10, 2)), "a back merge");
        assert_eq!(drive.scheduler.grow(now, grown(9, 3)), front);
        let page = drive.go().1;
        assert_eq!(page, if front { 9 } else { 10 });
        assert!(!drive.scheduler.grow(now, grown(10, 4)), "it waits no more");
    }
}

/// rule: deadline.read-expire
#[test]
fn the_clock_jumps() {
    let mut drive = deadline(&[("fifo_batch", "1"), ("tick", "10ms")]);
    drive.read(0, 90);
    drive.read(0, 95);
    let _ = drive.pages(1);
    drive.read(0, 99);
    drive.wait(509_000);
    drive.read(0, 1);
    drive.read(0, 97);
    // 95 came at 10.000 s: it has expired when the clock shows more than 10.500 s.
    assert_eq!(drive.pages(1), [95]);
    drive.wait(900);
    assert_eq!(drive.pages(1), [97], "99 has not expired before the next tick");
}

#[test]
fn parameters_have_ranges() {
    let build = |stated: &[(&str, &str)]| {
        let table = crate::elevator::drive::params(stated);
        DESCRIPTOR.build(&DeviceInfo::default(), &table).map(drop).map_err(|error| error.to_string())
    };
    assert!(build(&[("fifo_batch", "0")]).unwrap_err().contains("from 1 to 65536 requests"));
    assert!(build(&[("writes_starved", "65537")]).unwrap_err().contains("from 0 to 65536"));
    assert!(build(&[("mode", "middle")]).is_err() && build(&[("read_expire", "5")]).is_err());
    assert_eq!(build(&[("mode", "early"), ("read_expire", "0s"), ("tick", "0s")]), Ok(()));
}
