use super::*;
use crate::random::{Stream, stream};

/// Keeps `depth` random reads of 4 KiB outstanding in the first `part` of the disk; returns requests per second.
fn random_reads(spec: HddSpec, depth: u32, part: f64) -> f64 {
    let mut random = stream(1, "reads");
    let pages = (spec.capacity as f64 * part) as u64 / 4096;
    let mut disk = Hdd::new(HddSpec { queue: depth, ..spec });
    let job =
        |slot, random: &mut Stream| Job { slot, kind: Kind::Read, offset: random.below(pages) * 4096, length: 4096 };
    (0..depth).for_each(|slot| disk.submit(Instant::ZERO, job(Slot(slot), &mut random)));
    disk.settle(Instant::ZERO);
    let (count, mut now) = (20_000, Instant::ZERO);
    for _ in 0..count {
        now = disk.next().unwrap();
        let slot = disk.take(now).unwrap();
        disk.submit(now, job(slot, &mut random));
        disk.settle(now);
    }
    f64::from(count) / now.since(Instant::ZERO).as_secs_f64()
}

#[test]
fn random_reads_match_the_prototype() {
    // From an independent prototype with the same equations.
    let table = [
        (HddSpec::sata_7200_1tb(), [77.7, 93.6, 112.0, 133.0, 175.0]),
        (HddSpec::fc_15k_146gb(), [178.0, 214.0, 256.0, 306.0, 406.0]),
        (HddSpec::sas_15k_450gb(), [181.0, 218.0, 260.0, 314.0, 420.0]),
    ];
    for (spec, expected) in table {
        for (depth, expected) in [1, 2, 4, 8, 32].into_iter().zip(expected) {
            let measured = random_reads(spec.clone(), depth, 1.0);
            let off = measured / expected - 1.0;
            assert!(off.abs() < 0.05, "{} rpm, depth {depth}: {measured:.1} against {expected}", spec.rpm);
        }
    }
}

#[test]
fn a_sequential_reader_that_thinks_is_served_by_read_ahead() {
    // In 5 ms the medium transfers six times as much as a read; a segment holds sixteen reads.
    let mut disk = Hdd::new(HddSpec::sata_7200_1tb());
    let (length, mut now) = (64 << 10, Instant::ZERO);
    let mut takes = |disk: &mut Hdd, index: u64| {
        let asked = now + Duration::from_millis(5);
        disk.submit(
            asked,
            Job { slot: Slot(0), kind: Kind::Read, offset: (900 << 30) + index * u64::from(length), length },
        );
        disk.settle(asked);
        now = disk.next().unwrap();
        disk.take(now).unwrap();
        now.nanos_since(asked) / 1000
    };
    let took: Vec<u64> = (0..100).map(|index| takes(&mut disk, index)).collect();
    assert!(took[0] > 1000 && took[1..].iter().all(|micros| *micros == 418), "{took:?}");
    // Bytes before the read have been evicted for read-ahead.
    assert!(takes(&mut disk, 40) > 1000);
}

#[test]
fn sequential_reads_reach_the_media_rate() {
    for depth in [1, 4] {
        let mut disk = Hdd::new(HddSpec { queue: depth, ..HddSpec::sata_7200_1tb() });
        let length = 64 << 10;
        let mut offset = 0;
        let mut next = |slot| {
            offset += u64::from(length);
            Job { slot, kind: Kind::Read, offset: offset - u64::from(length), length }
        };
        (0..depth).for_each(|slot| disk.submit(Instant::ZERO, next(Slot(slot))));
        let mut now = Instant::ZERO;
        disk.settle(now);
        for _ in 0..10_000 {
            now = disk.next().unwrap();
            let slot = disk.take(now).unwrap();
            disk.submit(now, next(slot));
            disk.settle(now);
        }
        let rate = 10_000.0 * f64::from(length) / now.since(Instant::ZERO).as_secs_f64();
        assert!((100e6..126e6).contains(&rate), "depth {depth}: {rate:.0} B/s");
    }
}

#[test]
fn a_drive_prefers_the_reader_that_it_reads_ahead_for() {
    // Two sequential readers with one read outstanding each; the drive knows where its cache continues.
    let mut disk = Hdd::new(HddSpec { queue: 32, ..HddSpec::sata_7200_1tb() });
    let mut at = [0, 10 << 30];
    let mut next = |slot: Slot| {
        let reader = slot.0 as usize;
        at[reader] += 4096;
        Job { slot, kind: Kind::Read, offset: at[reader] - 4096, length: 4096 }
    };
    [Slot(0), Slot(1)].into_iter().for_each(|slot| disk.submit(Instant::ZERO, next(slot)));
    disk.settle(Instant::ZERO);
    let (mut now, mut last, mut changes) = (Instant::ZERO, Slot(0), 0);
    let count = 20_000;
    for _ in 0..count {
        now = disk.next().unwrap();
        let slot = disk.take(now).unwrap();
        changes += u32::from(slot != std::mem::replace(&mut last, slot));
        disk.submit(now, next(slot));
        disk.settle(now);
    }
    let each = now.as_nanos() / count;
    assert!(each < 300_000, "{each} ns for a read, of which a hit takes 214,000");
    // A revolution of 8 ms is worth 0.4 s of waiting.
    let per_second = f64::from(changes) / now.since(Instant::ZERO).as_secs_f64();
    assert!((1.0..20.0).contains(&per_second), "{per_second} changes a second");
}

#[test]
fn no_command_starves_in_a_sorted_queue() {
    let mut disk = Hdd::new(HddSpec { queue: 32, ..HddSpec::sata_7200_1tb() });
    let mut random = stream(1, "near");
    disk.submit(Instant::ZERO, Job { slot: Slot(1000), kind: Kind::Read, offset: 0, length: 4096 });
    disk.submit(Instant::ZERO, Job { slot: Slot(0), kind: Kind::Read, offset: 999_000_000_000, length: 4096 });
    for slot in 1..30 {
        disk.submit(
            Instant::ZERO,
            Job { slot: Slot(slot), kind: Kind::Read, offset: random.below(1 << 20) * 512, length: 512 },
        );
    }
    disk.settle(Instant::ZERO);
    for round in 0..20_000 {
        let now = disk.next().unwrap();
        let slot = disk.take(now).unwrap();
        if slot == Slot(0) {
            return;
        }
        disk.submit(now, Job { slot, kind: Kind::Read, offset: random.below(1 << 20) * 512, length: 512 });
        assert!(round < 19_999, "the distant command was never served");
        disk.settle(now);
    }
}

/// Keeps `depth` random writes of 4 KiB outstanding; returns the drive when they have completed, and that time.
fn random_writes(write_cache: u64, depth: u32, count: u32) -> (Hdd, Instant) {
    let mut random = stream(1, "writes");
    let mut disk = Hdd::new(HddSpec { queue: depth, write_cache, ..HddSpec::sata_7200_1tb() });
    let pages = disk.spec.capacity / 4096;
    let mut job = |slot| Job { slot, kind: Kind::Write, offset: random.below(pages) * 4096, length: 4096 };
    (0..depth).for_each(|slot| disk.submit(Instant::ZERO, job(Slot(slot))));
    disk.settle(Instant::ZERO);
    let mut now = Instant::ZERO;
    for over in 0..count {
        now = disk.next().unwrap();
        let slot = disk.take(now).unwrap();
        if over + depth < count {
            disk.submit(now, job(slot));
        }
        disk.settle(now);
    }
    (disk, now)
}

/// Time of one more job at `now`.
fn one(disk: &mut Hdd, now: Instant, kind: Kind, offset: u64, length: u32) -> Duration {
    disk.submit(now, Job { slot: Slot(0), kind, offset, length });
    disk.settle(now);
    let over = disk.next().unwrap();
    disk.take(over).unwrap();
    over.since(now)
}

#[test]
fn a_write_cache_takes_writes_until_it_is_full() {
    // 16 MiB are 4,096 writes, each complete when it has crossed the bus: 200 us and 14 us.
    let (mut disk, now) = random_writes(16 << 20, 1, 4096);
    assert_eq!(now.as_nanos() / 4096, 213_654);
    let full = one(&mut disk, now, Kind::Write, 0, 4096);
    assert!(full > Duration::from_millis(1), "{full:?}: one write is evicted first");
    // Without the cache each takes a seek and half a revolution.
    let (_, without) = random_writes(0, 1, 4096);
    assert!(without.as_nanos() > 50 * now.as_nanos(), "{without:?}");
}

#[test]
fn sorted_writeback_is_faster_than_random_writes() {
    let (mut disk, now) = random_writes(16 << 20, 1, 4096);
    let flush = one(&mut disk, now, Kind::Flush, 0, 0);
    // From one to the nearest next: a short seek and half a revolution, about 5 ms; at random about 13.
    let each = flush / 4096;
    assert!((Duration::from_millis(3)..Duration::from_millis(8)).contains(&each), "{each:?}");
    let again = one(&mut disk, Instant::from_nanos(now.as_nanos() + flush.as_nanos() as u64), Kind::Flush, 0, 0);
    assert_eq!(again, Duration::from_micros(200), "nothing is left");
}

#[test]
fn an_idle_drive_writes_back() {
    let (mut disk, now) = random_writes(16 << 20, 1, 1000);
    let later = Instant::from_nanos(now.as_nanos() + 20_000_000_000);
    assert_eq!(one(&mut disk, later, Kind::Flush, 0, 0), Duration::from_micros(200), "20 s were enough for a thousand");
    assert!(disk.busy_nanos() < later.as_nanos());
    let (mut disk, now) = random_writes(16 << 20, 1, 1000);
    let soon = Instant::from_nanos(now.as_nanos() + 100_000_000);
    let flush = one(&mut disk, soon, Kind::Flush, 0, 0);
    assert!((Duration::from_secs(2)..Duration::from_secs(8)).contains(&flush), "{flush:?}: a few of a thousand");
}

#[test]
fn reads_are_served_from_the_write_cache() {
    let mut disk = Hdd::new(HddSpec { write_cache: 16 << 20, ..HddSpec::sata_7200_1tb() });
    let write = one(&mut disk, Instant::ZERO, Kind::Write, 1 << 39, 8192);
    let now = Instant::from_nanos(write.as_nanos() as u64);
    assert!(one(&mut disk, now, Kind::Read, (1 << 39) + 4096, 4096) < Duration::from_micros(250));
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig { failure_persistence: None, ..proptest::prelude::ProptestConfig::with_cases(300) })]

    /// A drive makes this comparison itself when assertions are enabled: here with adjacent and equal commands, with
    /// segments that are created and evicted, on any drive.
    #[test]
    fn the_choice_matches_double_precision(
        seed in 0u64..1 << 32,
        queue in 2u32..80,
        segments in 0u32..20,
        (rpm, track, average, full) in (3_000u32..20_000, 0.1e-3..1e-3, 2e-3..9e-3, 10e-3..20e-3),
        capacity in 1u64 << 24..1 << 42,
        part in 0.000_01..1.0f64,
        write_cache in proptest::prop_oneof![proptest::strategy::Just(0u64), proptest::strategy::Just(8 << 20)],
    ) {
        let seek = SeekCurve::formula(track, average, full);
        let mut disk = Hdd::new(HddSpec {
            rpm, seek, capacity, queue, segments, write_cache, ..HddSpec::sata_7200_1tb()
        });
        let mut random = stream(seed, "choices");
        let pages = ((capacity as f64 * part) as u64 / 4096).max(64) - 32;
        let mut before = 0;
        let mut job = |slot| {
            // At random, after the previous one, near it, or at the same offset.
            let page = match random.below(4) {
                0 => random.below(pages),
                1 => (before + 1) % pages,
                2 => (before + random.below(200)) % pages,
                _ => before,
            };
            before = page;
            let kind = if random.chance(0.8) { Kind::Read } else { Kind::Write };
            Job { slot, kind, offset: page * 4096, length: 4096 * (1 + random.below(8) as u32) }
        };
        let mut now = Instant::ZERO;
        (0..2 * queue).for_each(|slot| disk.submit(now, job(Slot(slot))));
        disk.settle(now);
        for _ in 0..600 {
            now = disk.next().unwrap().max(now);
            while let Some(slot) = disk.take(now) {
                disk.submit(now, job(slot));
            }
            disk.settle(now);
        }
    }
}
