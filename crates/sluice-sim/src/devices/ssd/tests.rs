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

/// Random page writes, 32 outstanding; returns pages per second.
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
fn write_amplification_matches_greedy_collection() {
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
fn an_aged_drive_is_much_slower() {
    let mut clean = Ssd::new(spec(0.07)).unwrap();
    let fast = writes(&mut clean, 20_000);
    let mut used = Ssd::new(spec(0.07)).unwrap();
    used.age(2.0, &mut stream(1, "age"));
    let slow = writes(&mut used, 20_000);
    // Eight planes, each a page in 750 us; by the formula of the module 1,220 pages per second when aged.
    assert!((fast / 10_667.0 - 1.0).abs() < 0.05, "{fast:.0} pages/s clean");
    assert!((1_000.0..1_300.0).contains(&slow), "{slow:.0} pages/s used");
}

#[test]
fn a_geometry_with_too_few_spare_blocks_is_rejected() {
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
    // A page takes 15 us on the bus; the flash takes one every 94 us.
    assert!(over[50] < 51 * 16_000, "{}", over[50]);
    assert!(over[199] > 130 * 90_000, "{}", over[199]);
    ssd.submit(Instant::ZERO, Job { slot: Slot(0), kind: Kind::Flush, offset: 0, length: 0 });
    assert!(ssd.next().unwrap().as_nanos() >= over[199]);
}

#[test]
fn reads_wait_for_a_plane_that_collects() {
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
    assert!(read(&mut ssd, 300_000) > 10 * quiet, "after the collection that the writes caused");
}

/// A small drive, and a folder for its state.
fn small() -> (SsdSpec, tempfile::TempDir) {
    let mut small = spec(0.28);
    (small.geometry.blocks, small.geometry.pages) = (256, 32);
    (small, tempfile::tempdir().unwrap())
}

fn ageing(seed: u64) -> Ageing {
    Ageing { random: stream(seed, "age"), times: 2.0 }
}

/// Completion times of many writes and reads from now on.
fn behaviour(ssd: &mut Ssd) -> Vec<u64> {
    let mut random = stream(5, "behaviour");
    let pages = ssd.flash.pages();
    let job = |kind, random: &mut Stream| Job { slot: Slot(0), kind, offset: random.below(pages) * 8192, length: 8192 };
    let once = |number: u32| {
        let kind = if number.is_multiple_of(3) { Kind::Read } else { Kind::Write };
        ssd.submit(Instant::ZERO, job(kind, &mut random));
        let at = ssd.next().unwrap();
        ssd.take(at).unwrap();
        at.as_nanos()
    };
    (0..20_000).map(once).collect()
}

#[test]
fn a_restored_drive_behaves_like_the_original() {
    let (spec, folder) = small();
    let mut aged = Ssd::new(spec.clone()).unwrap();
    assert!(aged.age_from(folder.path(), &ageing(7)).is_none());
    let mut loaded = Ssd::new(spec).unwrap();
    loaded.flash.write(0);
    loaded = Ssd::new(loaded.spec).unwrap();
    assert!(loaded.age_from(folder.path(), &ageing(7)).is_none());
    assert!(loaded.is_consistent());
    assert_eq!(behaviour(&mut loaded), behaviour(&mut aged));
    assert_eq!(loaded.write_amplification(), aged.write_amplification());
    assert!(aged.is_consistent());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn a_damaged_or_mismatched_state_is_reported_and_replaced() {
    let (spec, folder) = small();
    let age = |spec: &SsdSpec, seed| {
        let mut ssd = Ssd::new(spec.clone()).unwrap();
        let said = ssd.age_from(folder.path(), &ageing(seed)).map(|error| error.to_string());
        assert!(ssd.is_consistent());
        (said, behaviour(&mut ssd))
    };
    let path = path_in(folder.path(), &spec.geometry, &ageing(7));
    let (said, fresh) = age(&spec, 7);
    assert_eq!(said, None);
    let good = std::fs::read(&path).unwrap();
    let changed = |at: usize, by: u8| {
        let mut bytes = good.clone();
        bytes[at] ^= by;
        bytes
    };
    let longer = [&good[..], &[0; 1 << 20]].concat();
    let cases = [
        (changed(good.len() / 2, 1), "is damaged: its checksum does not match"),
        (changed(13, 1), "is the state of a drive with other parameters, seed or ageing"),
        (good[..good.len() - 4].to_vec(), "is damaged: its checksum does not match"),
        (good[..good.len() - 5].to_vec(), "is damaged: it is truncated"),
        (good[..5].to_vec(), "is damaged: it is truncated"),
        (longer, "is damaged: it is longer than such a state can be"),
    ];
    for (bytes, expected) in cases {
        std::fs::write(&path, bytes).unwrap();
        let (said, rebuilt) = age(&spec, 7);
        assert!(said.as_ref().is_some_and(|said| said.ends_with(expected)), "{said:?}");
        assert_eq!(rebuilt, fresh);
        assert_eq!(std::fs::read(&path).unwrap(), good, "the file was replaced");
    }
    // Another seed has another file.
    assert_eq!(age(&spec, 8).0, None);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
    let gone = Ssd::new(spec).unwrap().age_from(&folder.path().join("none"), &ageing(7)).unwrap().to_string();
    assert!(gone.starts_with("Cannot use "), "{gone}");
}

#[test]
fn an_invalid_state_with_a_valid_checksum_is_rejected() {
    let (spec, folder) = small();
    let path = path_in(folder.path(), &spec.geometry, &ageing(7));
    Ssd::new(spec.clone()).unwrap().age_from(folder.path(), &ageing(7));
    let good = std::fs::read(&path).unwrap();
    let (map, pages) = (16, spec.geometry.host_pages() as usize);
    for (number, value, expected) in [
        (15, 99, "it names a plane that does not exist"),
        (map, 1 << 30, "it names a page that does not exist"),
        (
            map + 1,
            u32::from_le_bytes(good[4 * map..4 * map + 4].try_into().unwrap()),
            "two pages have the same position",
        ),
        (map + pages, 1 << 20, "its blocks do not make up whole planes"),
        (map + pages + 4, 1 << 20, "its blocks do not make up whole planes"),
    ] {
        let mut bytes = good.clone();
        bytes[4 * number..4 * number + 4].copy_from_slice(&u32::to_le_bytes(value));
        bytes.truncate(bytes.len() - 8);
        let numbers: Vec<u32> =
            bytes.chunks_exact(4).map(|four| u32::from_le_bytes(four.try_into().unwrap())).collect();
        bytes.extend(snapshot::checksum(&numbers).to_le_bytes());
        std::fs::write(&path, bytes).unwrap();
        let mut ssd = Ssd::new(spec.clone()).unwrap();
        let said = ssd.age_from(folder.path(), &ageing(7)).unwrap().to_string();
        assert!(said.ends_with(expected), "{number}: {said}");
        assert!(ssd.is_consistent());
    }
}

#[test]
fn inconsistent_write_counts_are_noticed() {
    let (spec, _) = small();
    let mut ssd = Ssd::new(spec).unwrap();
    ssd.age(1.0, &mut stream(1, "age"));
    behaviour(&mut ssd);
    assert!(ssd.write_amplification() > 1.0);
    assert_eq!(ssd.check_invariants(), Ok(()));
    let good = ssd.flash.clone();
    // One page too many, as if a copy had not been counted.
    ssd.flash.program(0, 1, 0);
    let said = ssd.check_invariants().unwrap_err();
    assert!(said.contains("pages of the host and") && said.ends_with("in total"), "{said}");
    ssd.flash = good;
    ssd.flash.map.swap(0, 1);
    assert_eq!(ssd.check_invariants(), Err("the map does not match the pages".to_owned()));
}
