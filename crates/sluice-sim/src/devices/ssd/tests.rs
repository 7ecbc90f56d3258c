use super::*;
use crate::random::stream;

/// Eight planes of 1,024 blocks of 128 pages, with MQSim's default times.
fn spec(spare: f64) -> SsdSpec {
    let geometry =
        Geometry { channels: 4, dies: 1, planes: 2, blocks: 1024, pages: 128, page_bytes: 8192, spare, reserve: 3 };
    SsdSpec {
        geometry,
        read: Duration::from_micros(75),
        program: Duration::from_micros(750),
        erase: Duration::from_micros(3800),
        channel: 333e6,
        bus: 550e6,
        overhead: Duration::from_micros(10),
        buffer: 0,
    }
}

/// Random writes of a page, 32 outstanding; pages per second.
fn writes(ssd: &mut Ssd, count: u32) -> f64 {
    let mut random = stream(2, "writes");
    let pages = ssd.flash.pages();
    let job =
        |slot, random: &mut Stream| Job { slot, kind: Kind::Write, offset: random.below(pages) * 8192, length: 8192 };
    (0..32).for_each(|slot| ssd.submit(Instant::ZERO, job(Slot(slot), &mut random)));
    let mut now = Instant::ZERO;
    for _ in 0..count {
        now = ssd.next().unwrap();
        let slot = ssd.take(now).unwrap();
        ssd.submit(now, job(slot, &mut random));
    }
    f64::from(count) / now.since(Instant::ZERO).as_secs_f64()
}

#[test]
fn a_greedy_collector_amplifies_as_much_as_it_must() {
    for (spare, expected) in [(0.07, 7.7), (0.15, 4.0), (0.28, 2.46)] {
        let mut ssd = Ssd::new(spec(spare)).unwrap();
        ssd.age(2.0, &mut stream(1, "age"));
        let mut random = stream(3, "overwrite");
        let pages = ssd.flash.pages();
        for _ in 0..pages {
            ssd.flash.write(random.below(pages));
        }
        let off = ssd.write_amplification() / expected - 1.0;
        assert!(off.abs() < 0.05, "{spare}: {:.2} against {expected}", ssd.write_amplification());
        assert!(ssd.is_consistent());
    }
}

#[test]
fn a_used_drive_falls_off_a_cliff() {
    let mut clean = Ssd::new(spec(0.07)).unwrap();
    let fast = writes(&mut clean, 20_000);
    let mut used = Ssd::new(spec(0.07)).unwrap();
    used.age(2.0, &mut stream(1, "age"));
    let slow = writes(&mut used, 20_000);
    // Eight planes, each a page in 750 us; by the formula of the module 1,220 pages per second when used.
    assert!((fast / 10_667.0 - 1.0).abs() < 0.05, "{fast:.0} pages/s clean");
    assert!((1_000.0..1_300.0).contains(&slow), "{slow:.0} pages/s used");
}

#[test]
fn a_geometry_that_fakes_collection_is_refused() {
    let mut small = spec(0.07);
    small.geometry.blocks = 128;
    let error = Ssd::new(small).unwrap_err();
    assert!(matches!(error, GeometryError::TooFewSpareBlocks { wanted: 765, .. }), "{error}");
}

#[test]
fn a_buffer_takes_writes_until_it_is_full() {
    let mut ssd = Ssd::new(SsdSpec { buffer: 64 * 8192, ..spec(0.07) }).unwrap();
    let job = |slot: u32| Job { slot: Slot(slot), kind: Kind::Write, offset: u64::from(slot) * 8192, length: 8192 };
    (0..200).for_each(|slot| ssd.submit(Instant::ZERO, job(slot)));
    let over: Vec<u64> = std::iter::from_fn(|| {
        let at = ssd.next()?;
        ssd.take(at).map(|_| at.as_nanos())
    })
    .collect();
    // A page takes 15 us on the bus; the flash takes one in 94 us.
    assert!(over[50] < 51 * 16_000, "{}", over[50]);
    assert!(over[199] > 130 * 90_000, "{}", over[199]);
    ssd.submit(Instant::ZERO, Job { slot: Slot(0), kind: Kind::Flush, offset: 0, length: 0 });
    assert!(ssd.next().unwrap().as_nanos() >= over[199]);
}

#[test]
fn reads_wait_for_the_plane_that_cleans_up() {
    let mut ssd = Ssd::new(spec(0.07)).unwrap();
    ssd.age(1.0, &mut stream(1, "age"));
    let read = |ssd: &mut Ssd, page: u64| {
        ssd.submit(Instant::ZERO, Job { slot: Slot(0), kind: Kind::Read, offset: page * 8192, length: 8192 });
        let at = ssd.next().unwrap();
        ssd.take(at).unwrap();
        at.as_nanos()
    };
    let quiet = read(&mut ssd, 0);
    assert!((100_000..140_000).contains(&quiet), "{quiet} ns");
    for number in 0..200 {
        ssd.submit(Instant::ZERO, Job { slot: Slot(1), kind: Kind::Write, offset: number * 8192, length: 8192 });
    }
    while let Some(at) = ssd.next() {
        ssd.take(at);
    }
    assert!(read(&mut ssd, 300_000) > 10 * quiet, "behind what the writes left to do");
}
