//! Hard disks, alone and in arrays.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use sluice_sched::params::{self, ParamError, ParamTable, Parameter, Range};
use sluice_sched::scheduler::DeviceClass;
use sluice_sched::{ByteRate, Bytes};

use super::{BuildContext, Derived, ModelKind, parameter, parse, ranged};
use crate::devices::Model;
use crate::devices::array::{Array, Layout};
use crate::devices::hdd::{Hdd, HddSpec, SeekCurve};
use crate::devices::read_ahead::ReadAhead;

/// Constructor of a data sheet.
type Sheet = fn() -> HddSpec;

/// Data sheets, by name.
const DRIVES: &[(&str, Sheet)] = &[
    ("sata-7200-1tb", HddSpec::sata_7200_1tb),
    ("fc-15k-146", HddSpec::fc_15k_146gb),
    ("sas-15k-450", HddSpec::sas_15k_450gb),
];

const DRIVE_NAMES: [&str; 3] = [DRIVES[0].0, DRIVES[1].0, DRIVES[2].0];

const OF_DRIVE: &str = "none";

const DRIVE: &[Parameter] = &[
    ranged(
        "drive",
        "word",
        Range::Words(&DRIVE_NAMES),
        "\"sata-7200-1tb\"",
        "Name of the data sheet; the other keys replace its values",
    ),
    ranged("capacity", "a size", Range::Size(1 << 20, 1 << 50), OF_DRIVE, "Size of one disk"),
    ranged("rpm", "number", Range::Number(1000, 30_000), OF_DRIVE, "Revolutions per minute"),
    parameter("seek_track", "a time", OF_DRIVE, "Time of a seek to the next track"),
    parameter("seek_average", "a time", OF_DRIVE, "Mean seek time over all pairs of bytes on the disk"),
    parameter("seek_full", "a time", OF_DRIVE, "Time of a seek across the whole disk"),
    ranged(
        "seek_knee",
        "number",
        Range::Decimal(0.01, 0.99),
        OF_DRIVE,
        "Point at which the seek curve becomes linear, as a fraction of the full stroke",
    ),
    parameter(
        "seek_file",
        "a file",
        "none",
        "Measured seek curve, in lines of cylinders, milliseconds; needs cylinders",
    ),
    ranged(
        "cylinders",
        "number",
        Range::Number(2, 10_000_000),
        "none",
        "Number of cylinders of the disk whose curve was measured",
    ),
    parameter("outer_rate", "a rate of bytes", OF_DRIVE, "Media rate of the outermost zone"),
    parameter("inner_rate", "a rate of bytes", OF_DRIVE, "Media rate of the innermost zone"),
    parameter("overhead", "a time", OF_DRIVE, "Additional time of each command"),
    parameter("bus", "a rate of bytes", OF_DRIVE, "Rate of the interface"),
    ranged(
        "queue",
        "number",
        Range::Number(1, 256),
        "1",
        "Number of commands that a disk queues and sorts itself; 1: first come, first served",
    ),
    ranged("segments", "number", Range::Number(0, 1024), "16", "Number of cache segments for read-ahead; 0: none"),
    ranged("segment_size", "a size", Range::Size(4096, 1 << 40), "\"1MiB\"", "Size of each segment"),
    ranged("write_cache", "a size", Range::Size(0, 1 << 40), "\"0B\"", "Size of the disk's write cache; 0B: none"),
];

const fn disks(min: u32) -> Parameter {
    ranged("disks", "number", Range::Number(min, 256), "10", "Number of disks")
}

/// Parameters of an array in addition to the number of its disks.
const ARRAY: &[Parameter] = &[
    ranged(
        "stripe",
        "a multiple of 512B",
        Range::Size(512, 1 << 30),
        "\"64KiB\"",
        "Number of bytes on one disk before the next disk follows",
    ),
    ranged("cache", "a size", Range::Size(0, 1 << 40), "\"0B\"", "Size of the controller's write cache; 0B: none"),
    parameter(
        "cache_latency",
        "a time",
        "\"100us\"",
        "Time of a write into that cache, or of a read from the read-ahead",
    ),
    ranged(
        "read_ahead",
        "a size",
        Range::Size(0, 1 << 30),
        "\"0B\"",
        "Number of bytes that the controller reads ahead for a sequential reader; 0B: none",
    ),
];

pub(super) const KINDS: &[ModelKind] = &[
    ModelKind {
        name: "hdd",
        summary: "A hard disk with seeks, rotation, zones, read-ahead and a command queue",
        device_class: DeviceClass::Disk,
        parameters: &[DRIVE],
        derive: |table| Ok(Derived::of_disks(&read(table)?, 1, 0)),
        build: |table, _, _| Ok(Box::new(Hdd::new(read(table)?))),
    },
    ModelKind {
        name: "raid0",
        summary: "Striped hard disks (RAID-0)",
        device_class: DeviceClass::Disk,
        parameters: &[&[disks(1)], ARRAY, DRIVE],
        derive: |table| derive_array(table, Layout::Raid0),
        build: |table, context, _| build_array(table, Layout::Raid0, context),
    },
    ModelKind {
        name: "raid5",
        summary: "Striped hard disks with rotating parity (RAID-5); a small write takes two reads and two writes",
        device_class: DeviceClass::Disk,
        parameters: &[&[disks(3)], ARRAY, DRIVE],
        derive: |table| derive_array(table, Layout::Raid5),
        build: |table, context, _| build_array(table, Layout::Raid5, context),
    },
];

#[derive(Deserialize, Default)]
#[serde(default, deny_unknown_fields)]
struct Drive {
    drive: Option<String>,
    capacity: Option<Bytes>,
    rpm: Option<u32>,
    #[serde(with = "params::optional_duration")]
    seek_track: Option<Duration>,
    #[serde(with = "params::optional_duration")]
    seek_average: Option<Duration>,
    #[serde(with = "params::optional_duration")]
    seek_full: Option<Duration>,
    seek_knee: Option<f64>,
    seek_file: Option<PathBuf>,
    cylinders: Option<u32>,
    outer_rate: Option<ByteRate>,
    inner_rate: Option<ByteRate>,
    #[serde(with = "params::optional_duration")]
    overhead: Option<Duration>,
    bus: Option<ByteRate>,
    queue: Option<u32>,
    segments: Option<u32>,
    segment_size: Option<Bytes>,
    write_cache: Bytes,
}

fn read(table: &ParamTable) -> Result<HddSpec, ParamError> {
    let stated: Drive = parse(table)?;
    let name = stated.drive.as_deref().unwrap_or(DRIVES[0].0);
    let Some((_, sheet)) = DRIVES.iter().find(|(known, _)| *known == name) else {
        return Err(ParamError(format!("drive '{name}' is not known; known drives are {}", DRIVE_NAMES.join(", "))));
    };
    let sheet = sheet();
    let rate = |stated: Option<ByteRate>, sheet: f64| stated.map_or(sheet, |rate| rate.bytes_per_second() as f64);
    let spec = HddSpec {
        capacity: stated.capacity.map_or(sheet.capacity, |size| size.0),
        rpm: stated.rpm.unwrap_or(sheet.rpm),
        seek: seek(&stated, &sheet.seek)?,
        rates: (rate(stated.outer_rate, sheet.rates.0), rate(stated.inner_rate, sheet.rates.1)),
        overhead: stated.overhead.unwrap_or(sheet.overhead),
        bus: rate(stated.bus, sheet.bus),
        queue: stated.queue.unwrap_or(sheet.queue),
        segments: stated.segments.unwrap_or(sheet.segments),
        segment_bytes: stated.segment_size.map_or(sheet.segment_bytes, |size| size.0),
        write_cache: stated.write_cache.0,
    };
    match spec.rates.0 >= spec.rates.1 {
        true => Ok(spec),
        false => Err(ParamError(
            "inner_rate is above outer_rate; the outer zone of a disk is the faster one, so exchange them".to_owned(),
        )),
    }
}

fn seek(stated: &Drive, sheet: &SeekCurve) -> Result<SeekCurve, ParamError> {
    if let Some(file) = &stated.seek_file {
        let cylinders = stated.cylinders.ok_or_else(|| {
            ParamError("seek_file needs cylinders, because its distances are counted in cylinders".to_owned())
        })?;
        return seek_table(file, cylinders);
    }
    let SeekCurve::Formula { track, average, full, knee, scale } = *sheet else { return Ok(sheet.clone()) };
    let seconds = |stated: Option<Duration>, sheet: f64| stated.map_or(sheet, |time| time.as_secs_f64());
    let (track, average) = (seconds(stated.seek_track, track), seconds(stated.seek_average, average));
    let full = seconds(stated.seek_full, full);
    if !(track < average && average < full) {
        let message = "seek_track, seek_average and seek_full must be ascending";
        return Err(ParamError(format!("{message}, but they are {track} s, {average} s and {full} s")));
    }
    let knee = stated.seek_knee.unwrap_or(knee);
    Ok(SeekCurve::Formula { track, average, full, knee, scale })
}

/// Maximum size of a file with a seek curve.
const SEEK_FILE_MAX: u64 = 1 << 20;

/// Parses a curve in DiskSim's format: a header, then `cylinders, milliseconds`.
fn seek_table(file: &Path, cylinders: u32) -> Result<SeekCurve, ParamError> {
    let wrong = |what: String| ParamError(format!("seek_file {}: {what}", file.display()));
    let mut text = String::new();
    let opened = crate::traces::open(file).map_err(|error| wrong(error.to_string()))?;
    opened.take(SEEK_FILE_MAX + 1).read_to_string(&mut text).map_err(|error| wrong(error.to_string()))?;
    if text.len() as u64 > SEEK_FILE_MAX {
        return Err(wrong("it is longer than 1 MiB; remove points".to_owned()));
    }
    let mut points: Vec<(f64, f64)> = Vec::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| line.contains(',')) {
        let mut fields = line.split(',').map(|field| field.trim().parse::<f64>());
        let (Some(Ok(distance)), Some(Ok(millis))) = (fields.next(), fields.next()) else {
            return Err(wrong(format!("line {} is not of the form 'cylinders, milliseconds'", number + 1)));
        };
        let point = (distance / f64::from(cylinders), millis * 1e-3);
        let rises = points.last().is_none_or(|last| last.0 < point.0);
        if !rises || !(0.0..=1.0).contains(&point.0) || !(0.0..=1.0).contains(&point.1) {
            return Err(wrong(format!(
                "line {}: distances must ascend up to {cylinders} cylinders, and times must be below 1000 ms",
                number + 1
            )));
        }
        points.push(point);
    }
    if points.len() < 2 { Err(wrong("it has fewer than two points".to_owned())) } else { Ok(SeekCurve::Table(points)) }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Disks {
    disks: u32,
    stripe: Bytes,
    cache: Bytes,
    #[serde(with = "params::duration")]
    cache_latency: Duration,
    read_ahead: Bytes,
}

fn read_array(table: &ParamTable) -> Result<(Disks, HddSpec), ParamError> {
    let count = disks(1);
    let known = || [&count].into_iter().chain(ARRAY);
    let (own, drive): (ParamTable, ParamTable) =
        table.clone().into_iter().partition(|(name, _)| known().any(|known| known.name == name));
    let own: Disks = parse(&params::with_defaults(known(), &own))?;
    if !own.stripe.0.is_multiple_of(512) {
        return Err(ParamError(format!("stripe is {}; it must be a multiple of 512B", own.stripe)));
    }
    Ok((own, read(&drive)?))
}

fn derive_array(table: &ParamTable, layout: Layout) -> Result<Derived, ParamError> {
    let (own, drive) = read_array(table)?;
    Ok(Derived::of_disks(&drive, u64::from(own.disks), u64::from(layout == Layout::Raid5)))
}

fn build_array(table: &ParamTable, layout: Layout, _: &BuildContext) -> Result<Box<dyn Model>, ParamError> {
    let (own, drive) = read_array(table)?;
    let array = Array::new(layout, own.disks as usize, own.stripe.0, &drive);
    let array = Box::new(if own.cache.0 > 0 { array.with_cache(own.cache.0, own.cache_latency) } else { array });
    let span = Derived::of_disks(&drive, u64::from(own.disks), u64::from(layout == Layout::Raid5)).span;
    Ok(match own.read_ahead.0 {
        0 => array,
        ahead => Box::new(ReadAhead::new(array, ahead, own.stripe.0, span, own.cache_latency)),
    })
}

#[cfg(test)]
mod tests {
    use sluice_sched::gate::Slot;
    use sluice_sched::params::Value;
    use sluice_sched::{Instant, Kind};

    use super::*;
    use crate::devices::Job;

    #[test]
    fn read_ahead_shortens_sequential_reads() {
        let last_of_ten = |ahead: &str| {
            let table = [("read_ahead".to_owned(), Value::Text(ahead.to_owned()))].into();
            let context = BuildContext { seed: 1, name: "array".to_owned() };
            let mut model = build_array(&table, Layout::Raid5, &context).unwrap();
            let mut now = Instant::ZERO;
            for read in 0..10 {
                model.submit(now, Job { slot: Slot(0), kind: Kind::Read, offset: read * 65_536, length: 65_536 });
                model.settle(now);
                loop {
                    now = model.next().expect("a read is in progress").max(now);
                    let over = model.take(now);
                    model.settle(now);
                    if over.is_some() {
                        break;
                    }
                }
            }
            now
        };
        assert!(last_of_ten("1MiB").as_nanos() * 2 < last_of_ten("0B").as_nanos());
    }
}
