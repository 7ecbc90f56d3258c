use std::collections::BTreeMap;

use sluice_sched::params::Value;

use super::*;
use crate::random::stream;

const VOLUME: u64 = 64 << 30;

fn make(name: &str, overrides: &[(&str, Value)]) -> Result<Box<dyn Workload>, ProfileError> {
    let context = BuildContext { volume: VOLUME, start: Instant::ZERO, random: stream(1, name) };
    build(name, context, &overrides.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect())
}

/// Runs the workload until it ends or `most` requests have completed, each 1 ms after its submission. Returns all
/// requests, and the time of the last completion.
fn drive(workload: &mut dyn Workload, most: usize) -> (Vec<WorkloadRequest>, Instant) {
    let (mut asks, mut open, mut now) = (Vec::new(), VecDeque::new(), Instant::ZERO);
    while asks.len() < most {
        match (workload.next(), open.front().copied()) {
            (Some(at), over) if over.is_none_or(|over| at <= over) => {
                now = now.max(at);
                asks.push(workload.ask(now));
                open.push_back(Instant::from_nanos(now.as_nanos() + 1_000_000));
            }
            (_, Some(over)) => {
                open.pop_front();
                now = over;
                workload.completed(now);
            }
            _ => break,
        }
    }
    (asks, now)
}

fn share(asks: &[WorkloadRequest], what: impl Fn(&WorkloadRequest) -> bool) -> f64 {
    asks.iter().filter(|ask| what(ask)).count() as f64 / asks.len() as f64
}

#[test]
fn every_profile_stays_within_its_volume() {
    let mut names = BTreeMap::new();
    for profile in all() {
        assert!(names.insert(profile.name, ()).is_none(), "{} twice", profile.name);
        if profile.device_class() == DeviceClass::Network {
            continue;
        }
        let mut workload = make(profile.name, &[]).unwrap_or_else(|error| panic!("{error}"));
        let (asks, _) = drive(&mut *workload, 20_000);
        assert!(asks.len() >= 5_000, "{}: {}", profile.name, asks.len());
        for ask in &asks {
            let empty = ask.kind == Kind::Flush;
            assert_eq!(ask.length == 0, empty, "{}: {ask:?}", profile.name);
            assert!(ask.offset + u64::from(ask.length) <= VOLUME && ask.length % 512 == 0, "{}: {ask:?}", profile.name);
        }
        let mut again = make(profile.name, &[]).unwrap();
        assert_eq!(drive(&mut *again, 20_000).0, asks, "{}: the same stream gives the same requests", profile.name);
    }
    assert!(!names.is_empty());
}

#[test]
fn impossible_values_are_rejected_with_the_accepted_range() {
    let error = |name: &str, overrides: &[(&str, Value)]| make(name, overrides).err().unwrap().to_string();
    assert!(error("iometer", &[]).starts_with("No workload is called 'iometer'; there are: closed, "));
    let cases = [
        ("iometer-oltp", "siez", Value::Integer(1), "Workload iometer-oltp: unknown field `siez`"),
        ("iometer-oltp", "size", Value::Integer(8192), "Workload iometer-oltp: "),
        ("iometer-oltp", "reads", Value::Float(1.5), "Workload iometer-oltp: reads is 1.5; it must be from 0 to 1"),
        ("iometer-rd", "period", Value::Text("0s".to_owned()), "Workload iometer-rd: period is 0; write"),
        ("sysbench-seqrd", "total", Value::Text("1TiB".to_owned()), "Workload sysbench-seqrd: The files need"),
        ("sysbench-rndrd", "block", Value::Text("1000B".to_owned()), "Workload sysbench-rndrd: block is 1000 B"),
        ("sysbench-rndrd", "cached", Value::Integer(1), "Workload sysbench-rndrd: each file must have a block"),
        ("sysbench-rndrd", "apart", Value::Text("1MiB".to_owned()), "Workload sysbench-rndrd: apart must be 0"),
        ("sysbench-seqrd", "apart", Value::Text("1TiB".to_owned()), "Workload sysbench-seqrd: The files need"),
        ("backup", "image", Value::Text("40GiB".to_owned()), "Workload backup: The image and its copy need"),
        ("closed", "outstanding", Value::Integer(0), "Workload closed: outstanding is 0; it must be from 1"),
        ("closed", "random", Value::Float(1.5), "Workload closed: random is 1.5; it must be from 0 to 1"),
        ("poisson", "size", Value::Text("7B".to_owned()), "Workload poisson: size is 7 B"),
        ("bursts", "every", Value::Text("0s".to_owned()), "Workload bursts: every is 0s; write the time between"),
        ("datagrams", "rate", Value::Text("100Mb/s".to_owned()), "Workload datagrams: '100Mb/s' is not a bit rate"),
        ("datagrams", "payload", Value::Integer(0), "Workload datagrams: payload is 0; it must be from 1 to 65507"),
        ("tcp", "round_trip", Value::Text("0s".to_owned()), "Workload tcp: round_trip is 0s; write the time until"),
        ("dvdstore-like", "threads", Value::Integer(0), "Workload dvdstore-like: threads is 0; it must be from 1"),
    ];
    for (name, parameter, value, expected) in cases {
        let found = error(name, &[(parameter, value)]);
        assert!(found.starts_with(expected), "{found}");
    }
}

#[test]
fn bounds_of_profiles_were_stated_in_words_and_again_in_code() {
    let mut refused = 0;
    for profile in all() {
        for parameter in profile.parameters {
            for value in crate::named::outside(parameter.range) {
                let error = make(profile.name, &[(parameter.name, value.clone())]).err().unwrap().to_string();
                let expected = format!("Workload {}: {} is {value}; it must be from ", profile.name, parameter.name);
                assert!(error.starts_with(&expected), "{error}");
                refused += 1;
            }
        }
    }
    assert!(refused > 100, "{refused}");
}

#[test]
fn sysbench_reads_only_uncached_blocks() {
    let mut workload = make("sysbench-seqrd", &[]).unwrap();
    let (asks, end) = drive(&mut *workload, usize::MAX);
    // One cursor for 16 threads: sequential across threads.
    assert_eq!(asks.len(), 10_000);
    assert!(asks.iter().enumerate().all(|(index, ask)| ask.offset == index as u64 * 16_384 && ask.length == 16_384));
    assert_eq!(end, Instant::from_millis(625));
    let (asks, _) = drive(&mut *make("sysbench-rndrd", &[]).unwrap(), usize::MAX);
    // [flubber]: 137.5 requests/s for 46.34 s.
    assert!((6_200..6_600).contains(&asks.len()), "{}", asks.len());
    assert!(asks.iter().all(|ask| ask.offset < 1 << 30 && ask.kind == Kind::Read));
}

#[test]
fn sysbench_supports_think_time_and_distant_files() {
    let apart = ("apart", Value::Text("64MiB".to_owned()));
    let (asks, end) =
        drive(&mut *make("sysbench-seqrd", &[apart, ("think", Value::Text("1ms".to_owned()))]).unwrap(), usize::MAX);
    let place = |block: u64| block / 1024 * (64 << 20) + block % 1024 * 16_384;
    assert!(
        asks.iter().enumerate().all(|(index, ask)| ask.offset == place(index as u64)),
        "files of 16 MiB, 64 MiB apart"
    );
    // Each of 16 threads submits 625 requests of a millisecond, and thinks as long before each.
    assert_eq!((asks.len(), end), (10_000, Instant::from_millis(1250)));
}

#[test]
fn sysbench_syncs_written_files() {
    let (asks, _) = drive(&mut *make("sysbench-seqwr", &[]).unwrap(), usize::MAX);
    let flushes = asks.iter().filter(|ask| ask.kind == Kind::Flush).count();
    // A file has 1,024 blocks: a round of syncs finds one written file, or two at a boundary.
    assert!((100..=110).contains(&flushes), "{flushes}");
    assert_eq!(asks.len() - flushes, 10_000);
    let (asks, _) = drive(&mut *make("sysbench-rndrw", &[]).unwrap(), usize::MAX);
    let data: Vec<WorkloadRequest> = asks.iter().copied().filter(|ask| ask.kind != Kind::Flush).collect();
    assert!((share(&data, |ask| ask.kind == Kind::Read) - 0.6).abs() < 0.02);
    // 40 writes to 128 files touch 34.5 of them on average.
    let per_round = (asks.len() - data.len()) as f64 / 100.0;
    assert!((per_round - 34.5).abs() < 1.0, "{per_round}");
}

#[test]
fn iometer_generates_its_mix_and_bursts() {
    let (asks, _) = drive(&mut *make("iometer-oltp", &[]).unwrap(), 20_000);
    assert!((share(&asks, |ask| ask.kind == Kind::Read) - 0.75).abs() < 0.02);
    let mut workload = make("iometer-rd", &[("requests", Value::Integer(320))]).unwrap();
    let (asks, end) = drive(&mut *workload, usize::MAX);
    assert_eq!((asks.len(), end), (320, Instant::from_millis(9 * 250 + 1)));
    let (asks, _) = drive(&mut *make("iometer-steady", &[]).unwrap(), 20_000);
    let follows = asks.windows(2).filter(|pair| pair[1].offset == pair[0].offset + 16_384).count();
    assert!((follows as f64 / 20_000.0 - 0.8).abs() < 0.02, "{follows}");
}

#[test]
fn filebench_has_the_ratios_of_its_workload_files() {
    let mail = drive(&mut *make("filebench-varmail", &[]).unwrap(), 40_000).0;
    // Per round: two writes, two flushes, two reads, since files are far below 1 MiB.
    for kind in [Kind::Write, Kind::Flush, Kind::Read] {
        assert!((share(&mail, |ask| ask.kind == kind) - 1.0 / 3.0).abs() < 0.02, "{kind:?}");
    }
    let oltp = drive(&mut *make("filebench-oltp", &[]).unwrap(), 100_000).0;
    let of = |kind, length| oltp.iter().filter(|ask| ask.kind == kind && ask.length == length).count() as f64;
    assert!((of(Kind::Write, 2048) / of(Kind::Read, 2048) - 0.1).abs() < 0.01);
    assert!((of(Kind::Read, 2048) / of(Kind::Write, 256 << 10) - 3200.0).abs() < 200.0);
    let limited = [("reads", Value::Integer(10_000))];
    let mut workload = make("filebench-oltp", &limited).unwrap();
    let (asks, _) = drive(&mut *workload, usize::MAX);
    assert_eq!(asks.iter().filter(|ask| ask.kind == Kind::Read).count(), 10_000);
    assert_eq!(
        asks.iter().filter(|ask| ask.kind == Kind::Flush).count(),
        1000 + 3,
        "writers end when the readers have"
    );
}

#[test]
fn bounded_profiles_end() {
    let image = Value::Text("1MiB".to_owned());
    let mut workload = make("backup", &[("image", image)]).unwrap();
    let (asks, end) = drive(&mut *workload, usize::MAX);
    assert_eq!((asks.len(), end), (32, Instant::from_millis(32)));
    assert_eq!(asks[1], WorkloadRequest { kind: Kind::Write, offset: 1 << 20, length: 65_536 });
    let mut workload = make("dvdstore-like", &[("orders", Value::Integer(100))]).unwrap();
    let (asks, _) = drive(&mut *workload, usize::MAX);
    assert_eq!(asks.len(), 2200);
    assert_eq!(asks.iter().filter(|ask| ask.kind == Kind::Flush).count(), 100);
}

#[test]
fn synthetic_workloads_match_the_table() {
    // [mcfq] Table 3: writes for each read, mean size in KB.
    let table = [
        ("financial", 0.24, 2.38),
        ("msn", 0.667, 22.5),
        ("exchange", 1.5, 12.5),
        ("fileserver", 2.0, 72.0),
        ("varmail", 1.0, 24.0),
    ];
    for (name, ratio, kib) in table {
        let asks = drive(&mut *make(&format!("lookalike-{name}"), &[]).unwrap(), 100_000).0;
        let reads = share(&asks, |ask| ask.kind == Kind::Read);
        let mean = asks.iter().map(|ask| f64::from(ask.length)).sum::<f64>() / asks.len() as f64 / 1024.0;
        assert!(((1.0 - reads) / reads / ratio - 1.0).abs() < 0.03, "{name}: {reads}");
        assert!((mean / kib - 1.0).abs() < 0.02, "{name}: {mean} KiB");
    }
}
