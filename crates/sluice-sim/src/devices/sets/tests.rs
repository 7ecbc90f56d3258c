use sluice_sched::gate::Slot;
use sluice_sched::params::Value;
use sluice_sched::{Instant, Kind};

use super::super::Job;
use super::*;

fn make(name: &str, overrides: &[(&str, Value)]) -> Result<Device, DeviceError> {
    let table = overrides.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
    build(name, &Setting::default(), &table)
}

fn text(text: &str) -> Value {
    Value::Text(text.to_owned())
}

/// Random reads of 4 KiB per second, so many outstanding.
fn reads(device: &mut Device, depth: u32) -> f64 {
    let mut random = stream(1, "reads");
    let (model, pages) = (&mut device.model, device.capacity / 4096);
    let mut job = |slot| Job { slot, kind: Kind::Read, offset: random.below(pages) * 4096, length: 4096 };
    (0..depth).for_each(|slot| model.submit(Instant::ZERO, job(Slot(slot))));
    model.settle(Instant::ZERO);
    let (count, mut now) = (2000, Instant::ZERO);
    for _ in 0..count {
        now = model.next().unwrap().max(now);
        let slot = model.take(now).unwrap();
        model.submit(now, job(slot));
        model.settle(now);
    }
    f64::from(count) / now.since(Instant::ZERO).as_secs_f64()
}

#[test]
fn every_set_is_made_and_as_fast_as_its_line_says() {
    // An SSD of 400 GB takes more memory than a test should: a smaller one of the same make.
    let small = [("blocks", Value::Integer(770)), ("pages", Value::Integer(8)), ("aged_by", Value::Integer(0))];
    let expected = [
        ("sata-7200-1tb", 77.7),
        ("fc-15k-146", 178.0),
        ("sas-15k-450", 181.0),
        ("raid0-10x-fc-15k-146", 178.0),
        ("raid5-10x-fc-15k-146", 178.0),
        ("raid5-6x-fc-15k-146", 178.0),
        ("raid0-4x-sata-7200-1tb", 77.7),
        // 10 us of command, 75 us of flash, 25 us of channel, 7 us of bus.
        ("ssd-sata-400-consumer", 8550.0),
    ];
    assert_eq!(DEVICES.iter().map(|set| set.name).collect::<Vec<_>>(), expected.map(|(name, _)| name));
    for (name, expected) in expected {
        let overrides = match name {
            "ssd-sata-400-consumer" => &small[..],
            _ => &[],
        };
        let mut device = make(name, overrides).unwrap_or_else(|error| panic!("{error}"));
        let off = reads(&mut device, 1) / expected - 1.0;
        assert!(off.abs() < 0.05 && device.notice.is_none(), "{name}: {off:+.3} of {expected}");
    }
}

#[test]
fn capacities_and_overrides_are_taken() {
    let capacity = |name: &str, overrides: &[(&str, Value)]| make(name, overrides).unwrap().capacity;
    assert_eq!(capacity("sata-7200-1tb", &[]), 1_000_000_000_000);
    assert_eq!(capacity("raid5-6x-fc-15k-146", &[]), 5 * 146_000_000_000);
    assert_eq!(capacity("raid0-10x-fc-15k-146", &[("disks", Value::Integer(2))]), 2 * 146_000_000_000);
    let geometry = Geometry {
        channels: 8,
        dies: 4,
        planes: 2,
        blocks: 3189,
        pages: 256,
        page_bytes: 8192,
        spare: 0.07,
        reserve: 3,
    };
    assert_eq!(geometry.host_pages() * 8192 / 1_000_000_000, 400);
    let mut sorted = make("sata-7200-1tb", &[("queue", Value::Integer(32))]).unwrap();
    let mut fast = make("sata-7200-1tb", &[("rpm", Value::Integer(15_000)), ("overhead", text("100us"))]).unwrap();
    assert!((reads(&mut sorted, 32) / 175.0 - 1.0).abs() < 0.05);
    assert!(reads(&mut fast, 1) > 85.0);
}

#[test]
fn what_cannot_be_is_refused_with_what_can() {
    let cases = [
        ("sata", "queue", Value::Integer(1), "No device is called 'sata'; there are: sata-7200-1tb, fc-15k-146, "),
        ("sata-7200-1tb", "qeue", Value::Integer(1), "Device sata-7200-1tb: unknown field `qeue`"),
        ("sata-7200-1tb", "rpm", Value::Integer(1), "Device sata-7200-1tb: rpm is 1; it must be from 1000 to 100000"),
        ("sata-7200-1tb", "seek_full", text("1ms"), "Device sata-7200-1tb: seek_track must be below seek_average"),
        ("sata-7200-1tb", "inner_rate", text("1GB/s"), "Device sata-7200-1tb: inner_rate must not be above"),
        (
            "raid5-6x-fc-15k-146",
            "disks",
            Value::Integer(2),
            "Device raid5-6x-fc-15k-146: disks is 2; it must be from 3",
        ),
        ("raid5-6x-fc-15k-146", "disk", Value::Integer(2), "Device raid5-6x-fc-15k-146: unknown field `disk`"),
        ("raid0-4x-sata-7200-1tb", "stripe", text("100B"), "Device raid0-4x-sata-7200-1tb: stripe must be a multiple"),
        ("ssd-sata-400-consumer", "blocks", Value::Integer(128), "Device ssd-sata-400-consumer: A plane of 128 blocks"),
        ("ssd-sata-400-consumer", "spare", Value::Integer(0), "Device ssd-sata-400-consumer: spare must be from 0.001"),
    ];
    for (name, parameter, value, expected) in cases {
        let error = make(name, &[(parameter, value)]).err().unwrap().to_string();
        assert!(error.starts_with(expected), "{error}");
    }
}

#[test]
fn an_aged_drive_is_kept_in_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let setting = Setting { seed: 3, states: Some(folder.path().to_owned()) };
    let small = [("blocks", 770), ("pages", 4), ("channels", 1), ("dies", 1)];
    let table = small.map(|(name, value)| (name.to_owned(), Value::Integer(value))).into();
    let notice = |setting| build("ssd-sata-400-consumer", setting, &table).unwrap().notice;
    assert_eq!(notice(&setting), None);
    let file = std::fs::read_dir(folder.path()).unwrap().next().unwrap().unwrap().path();
    assert_eq!(notice(&setting), None);
    std::fs::write(&file, b"SLSD").unwrap();
    let said = notice(&setting).unwrap();
    assert!(said.ends_with("is broken: it is cut off; the drive was aged anew"), "{said}");
    assert_eq!(notice(&setting), None);
}
