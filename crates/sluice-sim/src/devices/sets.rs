//! Devices by name: what scenarios and the command line call, with parameters that can be changed one by one.
//!
//! Numbers of data sheets are marked so; what is typical of a class and stands nowhere is marked with an A in brackets.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use sluice_sched::Bytes;
use sluice_sched::params::{self, ParamError, ParamTable, Parameter};
use sluice_sched::units::{ByteRate, Iops};

use super::Model;
use super::array::{Array, Layout};
use super::bucket::TokenBucket;
use super::hdd::{Hdd, HddSpec, SeekCurve};
use super::linear::{Coefficients, Linear};
use super::servers::{Servers, ServiceTime};
use super::ssd::{Ageing, Geometry, Ssd, SsdSpec};
use crate::named::{parameter, parse, with_defaults};
use crate::random::stream;

/// What is known of a set.
pub struct DeviceSet {
    /// What a scenario calls it.
    pub name: &'static str,
    /// What it is, in a line.
    pub summary: &'static str,
    /// Where its numbers are from.
    pub source: &'static str,
    /// What can be changed; the defaults are written as a scenario would write them.
    pub parameters: &'static [Parameter],
    build: fn(&Setting, &ParamTable) -> Result<Device, ParamError>,
}

/// What a device needs beside its parameters.
#[derive(Debug, Clone, Default)]
pub struct Setting {
    /// Of what is random in it.
    pub seed: u64,
    /// Where states of aged drives are kept; without one they are made each time.
    pub states: Option<PathBuf>,
}

/// A device.
pub struct Device {
    /// What it does.
    pub model: Box<dyn Model>,
    /// In bytes.
    pub capacity: u64,
    /// What should be said of how it was made: a state that could not be used.
    pub notice: Option<String>,
}

/// Why a device cannot be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// No such set.
    #[error("No device is called '{name}'; there are: {known}")]
    Unknown {
        /// What was asked for.
        name: String,
        /// All names.
        known: String,
    },
    /// A parameter that does not exist, or has a value that cannot be.
    #[error("Device {set}: {source}")]
    Parameter {
        /// Which one.
        set: &'static str,
        /// What is accepted.
        #[source]
        source: ParamError,
    },
}

/// Makes the device of this name; `overrides` replaces defaults.
///
/// # Errors
/// [`DeviceError`]: no such set or parameter, or a drive that cannot be.
pub fn build(name: &str, setting: &Setting, overrides: &ParamTable) -> Result<Device, DeviceError> {
    let Some(set) = DEVICES.iter().find(|set| set.name == name) else {
        let known: Vec<&str> = DEVICES.iter().map(|set| set.name).collect();
        return Err(DeviceError::Unknown { name: name.to_owned(), known: known.join(", ") });
    };
    let table = with_defaults(set.parameters, overrides);
    (set.build)(setting, &table).map_err(|source| DeviceError::Parameter { set: set.name, source })
}

/// Every set.
pub const DEVICES: &[DeviceSet] = &[
    DeviceSet {
        name: "sata-7200-1tb",
        summary: "a SATA disk of 1 TB, about 2010: 78 random reads of 4 KiB per second, one at a time",
        source: "rates and average seek as in data sheets and reviews of its class; ends of the seek curve [A]",
        parameters: &SATA,
        build: disk,
    },
    DeviceSet {
        name: "fc-15k-146",
        summary: "a Fibre Channel disk of 146 GB: 178 random reads of 4 KiB per second, one at a time",
        source: "[mclock] 3 says 200 to 250 IOPS of such disks; numbers typical of the class [A]",
        parameters: &FC,
        build: disk,
    },
    DeviceSet {
        name: "sas-15k-450",
        summary: "a SAS disk of 450 GB: 181 random reads of 4 KiB per second, one at a time",
        source: "numbers typical of the class [A]",
        parameters: &SAS,
        build: disk,
    },
    DeviceSet {
        name: "raid0-10x-fc-15k-146",
        summary: "stripes over ten disks of 146 GB: 1,470 to 2,060 random reads of 16 KiB per second, 32 at a time",
        source: "[mclock] 5.1: ten disks, about 1,600 IOPS",
        parameters: &array(FC, "\"raid0\"", "10"),
        build: raid,
    },
    DeviceSet {
        name: "raid5-10x-fc-15k-146",
        summary: "stripes with parity over ten disks of 146 GB",
        source: "[mclock] 5.1: RAID-5 of ten disks",
        parameters: &array(FC, "\"raid5\"", "10"),
        build: raid,
    },
    DeviceSet {
        name: "raid5-6x-fc-15k-146",
        summary: "stripes with parity over six disks of 146 GB: a node of dmClock's experiments",
        source: "[mclock] 5.2: RAID-5 of six disks, about 1,500 IOPS",
        parameters: &array(FC, "\"raid5\"", "6"),
        build: raid,
    },
    DeviceSet {
        name: "raid0-4x-sata-7200-1tb",
        summary: "stripes over four SATA disks of 1 TB",
        source: "as its disks",
        parameters: &array(SATA, "\"raid0\"", "4"),
        build: raid,
    },
    DeviceSet {
        name: "ssd-sata-400-consumer",
        summary: "a SATA SSD of 400 GB with 7 % spare area, two bits per cell, aged",
        source: "times, channels and pages are MQSim's defaults; spare area as in reviews of consumer drives",
        parameters: SSD,
        build: flash,
    },
    DeviceSet {
        name: "linear-hdd",
        summary: "iocost's linear model with the kernel's defaults for a hard disk",
        source: "Linux, iocost defaults HDD",
        parameters: &linear(["174019176", "41708", "370", "178075866", "42705", "378"]),
        build: modelled,
    },
    DeviceSet {
        name: "linear-ssd",
        summary: "iocost's linear model with the kernel's defaults for an SSD",
        source: "Linux, iocost defaults SSD_DFL",
        parameters: &linear(["488636629", "8932", "8518", "427891549", "28755", "21940"]),
        build: modelled,
    },
    DeviceSet {
        name: "constant-rate",
        summary: "every request takes the same time: the device of arithmetic",
        source: "as the delay of a device in the host file",
        parameters: &[
            parameter("time", "a time", "\"1ms\"", "Of each request"),
            parameter("servers", "requests, 1 to 65536", "1", "How many at a time"),
            CAPACITY,
        ],
        build: constant,
    },
    DeviceSet {
        name: "token-bucket",
        summary: "a rented disk: at once while there are tokens, then at its rate",
        source: "as clouds describe such disks; numbers [A]",
        parameters: &[
            parameter("rate", "a request rate", "\"3000 iops\"", "Tokens per second, one for a request"),
            parameter("burst", "requests, 1 to 1000000000", "3000", "Tokens at most; full at first"),
            CAPACITY,
        ],
        build: bucket,
    },
];

const CAPACITY: Parameter = parameter("capacity", "a size", "\"1TiB\"", "Of the device");

const SATA: [Parameter; 14] = drive(
    ["\"1TB\"", "7200", "\"800us\"", "\"8500us\"", "\"18ms\""],
    ["\"125MB/s\"", "\"62MB/s\"", "\"200us\"", "\"300MB/s\""],
);
const FC: [Parameter; 14] = drive(
    ["\"146GB\"", "15000", "\"300us\"", "\"3500us\"", "\"7500us\""],
    ["\"125MB/s\"", "\"75MB/s\"", "\"100us\"", "\"400MB/s\""],
);
const SAS: [Parameter; 14] = drive(
    ["\"450GB\"", "15000", "\"300us\"", "\"3400us\"", "\"7500us\""],
    ["\"200MB/s\"", "\"120MB/s\"", "\"100us\"", "\"600MB/s\""],
);

const fn drive(place: [&'static str; 5], rates: [&'static str; 4]) -> [Parameter; 14] {
    let [capacity, rpm, track, average, full] = place;
    let [outer, inner, overhead, bus] = rates;
    [
        parameter("capacity", "a size", capacity, "Of the disk"),
        parameter("rpm", "turns per minute, 1000 to 100000", rpm, "How fast it turns"),
        parameter("seek_track", "a time", track, "[A] Of the arm to the next track"),
        parameter("seek_average", "a time", average, "Over all pairs of bytes, as in its data sheet"),
        parameter("seek_full", "a time", full, "[A] From end to end"),
        parameter("seek_knee", "a part", "0.3333333333333333", "Of the stroke, from which on the arm moves evenly"),
        parameter("outer_rate", "a byte rate", outer, "Of the medium, outermost"),
        parameter("inner_rate", "a byte rate", inner, "Innermost"),
        parameter("overhead", "a time", overhead, "[A] Of each command"),
        parameter("bus_rate", "a byte rate", bus, "Of the interface"),
        parameter("queue", "commands, 1 to 256", "1", "That it holds and sorts"),
        parameter("segments", "0 to 1024", "16", "[A] Of its cache; 0: neither cache nor read-ahead"),
        parameter("segment_size", "a size", "\"1MiB\"", "[A] Of each"),
        parameter(
            "write_cache",
            "a size",
            "\"0B\"",
            "Writes that it takes before they are on the platter; 16MiB is typical",
        ),
    ]
}

/// Names of what an array has beside its drives.
const ARRAY: [&str; 5] = ["disks", "layout", "stripe", "controller_cache", "controller_latency"];

const fn array(drive: [Parameter; 14], layout: &'static str, disks: &'static str) -> [Parameter; 19] {
    let [a, b, c, d, e, f, g, h, i, j, k, l, m, n] = drive;
    let tail = [
        parameter(ARRAY[0], "1 to 1024; 3 or more for raid5", disks, "How many side by side"),
        parameter(ARRAY[1], "\"raid0\" or \"raid5\"", layout, "How bytes are spread"),
        parameter(ARRAY[2], "a size", "\"64KiB\"", "[A] In one piece on a disk"),
        parameter(ARRAY[3], "a size", "\"0B\"", "Writes that a controller with a battery takes; 0B: none"),
        parameter(ARRAY[4], "a time", "\"100us\"", "[A] Of a write that it takes"),
    ];
    let [o, p, q, r, s] = tail;
    [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s]
}

const SSD: &[Parameter] = &[
    parameter("channels", "1 to 256", "8", "Each with a rate of its own"),
    parameter("dies", "1 to 256", "4", "Of a channel"),
    parameter("planes", "1 to 256", "2", "Of a die"),
    parameter("blocks", "4 to 1000000", "3189", "Of a plane; 3189 make 400 GB"),
    parameter("pages", "1 to 65535", "256", "Of a block"),
    parameter("page", "a size", "\"8KiB\"", "What is read and programmed at once"),
    parameter("spare", "a part", "0.07", "Spare area, of what the host sees"),
    parameter("reserve", "blocks, 1 to 1000", "3", "[A] Free blocks of a plane below which it cleans up"),
    parameter("read", "a time", "\"75us\"", "Of a page"),
    parameter("program", "a time", "\"750us\"", "Of a page"),
    parameter("erase", "a time", "\"3800us\"", "Of a block"),
    parameter("channel_rate", "a byte rate", "\"333MB/s\"", "Of each"),
    parameter("bus_rate", "a byte rate", "\"550MB/s\"", "Of the interface"),
    parameter("overhead", "a time", "\"10us\"", "[A] Of each command"),
    parameter("buffer", "a size", "\"32MiB\"", "[A] Writes that it takes before the flash does; 0B: none"),
    parameter(
        "aged",
        "true or false",
        "true",
        "Filled and overwritten before it begins; else nothing was ever written",
    ),
    parameter("overwritten", "times, 0 to 100", "2", "Its capacity in random pages, if it is aged"),
];

const fn linear(numbers: [&'static str; 6]) -> [Parameter; 7] {
    let [a, b, c, d, e, f] = numbers;
    [
        parameter("rbps", "bytes per second", a, "Read in order"),
        parameter("rseqiops", "requests per second", b, "Reads of 4 KiB in order"),
        parameter("rrandiops", "requests per second", c, "Anywhere"),
        parameter("wbps", "bytes per second", d, "Written in order"),
        parameter("wseqiops", "requests per second", e, "Writes of 4 KiB in order"),
        parameter("wrandiops", "requests per second", f, "Anywhere"),
        CAPACITY,
    ]
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Drive {
    capacity: Bytes,
    rpm: u32,
    #[serde(with = "params::duration")]
    seek_track: Duration,
    #[serde(with = "params::duration")]
    seek_average: Duration,
    #[serde(with = "params::duration")]
    seek_full: Duration,
    seek_knee: f64,
    outer_rate: ByteRate,
    inner_rate: ByteRate,
    #[serde(with = "params::duration")]
    overhead: Duration,
    bus_rate: ByteRate,
    queue: u32,
    segments: u32,
    segment_size: Bytes,
    write_cache: Bytes,
}

fn wrong<T>(text: impl Into<String>) -> Result<T, ParamError> {
    Err(ParamError(text.into()))
}

fn rate(rate: ByteRate) -> f64 {
    rate.bytes_per_second() as f64
}

fn spec(table: &ParamTable) -> Result<HddSpec, ParamError> {
    let drive: Drive = parse(table)?;
    params::within("rpm", drive.rpm, 1000, 100_000, "turns per minute")?;
    params::within("queue", drive.queue, 1, 256, "commands")?;
    params::within("segments", drive.segments, 0, 1024, "segments")?;
    if drive.capacity.0 < 1 << 20 {
        return wrong("capacity must be 1 MiB or more");
    }
    if !(0.01..=0.99).contains(&drive.seek_knee) {
        return wrong(format!("seek_knee is {}; it must be from 0.01 to 0.99 of the stroke", drive.seek_knee));
    }
    if drive.seek_track >= drive.seek_average || drive.seek_average >= drive.seek_full {
        return wrong("seek_track must be below seek_average, and that below seek_full");
    }
    if drive.inner_rate > drive.outer_rate {
        return wrong("inner_rate must not be above outer_rate: outer tracks are longer");
    }
    let seconds = |time: Duration| time.as_secs_f64();
    Ok(HddSpec {
        capacity: drive.capacity.0,
        rpm: drive.rpm,
        seek: SeekCurve::Formula {
            track: seconds(drive.seek_track),
            average: seconds(drive.seek_average),
            full: seconds(drive.seek_full),
            knee: drive.seek_knee,
            scale: 1.0,
        },
        rates: (rate(drive.outer_rate), rate(drive.inner_rate)),
        overhead: drive.overhead,
        bus: rate(drive.bus_rate),
        queue: drive.queue,
        segments: drive.segments,
        segment_bytes: drive.segment_size.0,
        write_cache: drive.write_cache.0,
    })
}

fn device(model: impl Model + 'static, capacity: u64) -> Device {
    Device { model: Box::new(model), capacity, notice: None }
}

fn disk(_setting: &Setting, table: &ParamTable) -> Result<Device, ParamError> {
    let spec = spec(table)?;
    let capacity = spec.capacity;
    Ok(device(Hdd::new(spec), capacity))
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Spread {
    Raid0,
    Raid5,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Raid {
    disks: u32,
    layout: Spread,
    stripe: Bytes,
    controller_cache: Bytes,
    #[serde(with = "params::duration")]
    controller_latency: Duration,
}

fn raid(_setting: &Setting, table: &ParamTable) -> Result<Device, ParamError> {
    let (array, drive): (ParamTable, ParamTable) =
        table.clone().into_iter().partition(|(name, _)| ARRAY.contains(&name.as_str()));
    let (raid, spec): (Raid, HddSpec) = (parse(&array)?, spec(&drive)?);
    let (layout, least) = match raid.layout {
        Spread::Raid0 => (Layout::Raid0, 1),
        Spread::Raid5 => (Layout::Raid5, 3),
    };
    params::within("disks", raid.disks, least, 1024, "disks")?;
    if !raid.stripe.0.is_multiple_of(512) || raid.stripe.0 == 0 || raid.stripe.0 > 1 << 30 {
        return wrong("stripe must be a multiple of 512 B, up to 1 GiB");
    }
    let holding = u64::from(if layout == Layout::Raid5 { raid.disks - 1 } else { raid.disks });
    let model = Array::new(layout, raid.disks as usize, raid.stripe.0, &spec);
    let model = model.with_cache(raid.controller_cache.0, raid.controller_latency);
    Ok(device(model, spec.capacity * holding))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FlashDrive {
    channels: u32,
    dies: u32,
    planes: u32,
    blocks: u32,
    pages: u32,
    page: Bytes,
    spare: f64,
    reserve: u32,
    #[serde(with = "params::duration")]
    read: Duration,
    #[serde(with = "params::duration")]
    program: Duration,
    #[serde(with = "params::duration")]
    erase: Duration,
    channel_rate: ByteRate,
    bus_rate: ByteRate,
    #[serde(with = "params::duration")]
    overhead: Duration,
    buffer: Bytes,
    aged: bool,
    overwritten: f64,
}

fn flash(setting: &Setting, table: &ParamTable) -> Result<Device, ParamError> {
    let drive: FlashDrive = parse(table)?;
    let parts = [("channels", drive.channels), ("dies", drive.dies), ("planes", drive.planes)];
    parts.into_iter().try_for_each(|(name, count)| params::within(name, count, 1, 256, "of them"))?;
    params::within("blocks", drive.blocks, 4, 1_000_000, "blocks")?;
    params::within("pages", drive.pages, 1, 65_535, "pages")?;
    params::within("reserve", drive.reserve, 1, 1000, "blocks")?;
    if !(512..=1 << 20).contains(&drive.page.0) || !drive.page.0.is_multiple_of(512) {
        return wrong("page must be a multiple of 512 B, up to 1 MiB");
    }
    if !(0.001..=10.0).contains(&drive.spare) || !(0.0..=100.0).contains(&drive.overwritten) {
        return wrong("spare must be from 0.001 to 10 of what the host sees, and overwritten from 0 to 100 times");
    }
    let geometry = Geometry {
        channels: drive.channels,
        dies: drive.dies,
        planes: drive.planes,
        blocks: drive.blocks,
        pages: drive.pages,
        page_bytes: drive.page.0 as u32,
        spare: drive.spare,
        reserve: drive.reserve,
    };
    let mut ssd = Ssd::new(SsdSpec {
        geometry,
        read: drive.read,
        program: drive.program,
        erase: drive.erase,
        channel: rate(drive.channel_rate),
        bus: rate(drive.bus_rate),
        overhead: drive.overhead,
        buffer: drive.buffer.0,
    })
    .map_err(|error| ParamError(error.to_string()))?;
    let ageing = Ageing { seed: setting.seed, times: drive.overwritten };
    let notice = match &setting.states {
        _ if !drive.aged => None,
        Some(folder) => ssd.age_from(folder, ageing).map(|error| format!("{error}; the drive was aged anew")),
        None => {
            ssd.age(ageing.times, &mut stream(ageing.seed, "age"));
            None
        }
    };
    let capacity = geometry.host_pages() * drive.page.0;
    Ok(Device { model: Box::new(ssd), capacity, notice })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Modelled {
    rbps: u64,
    rseqiops: u64,
    rrandiops: u64,
    wbps: u64,
    wseqiops: u64,
    wrandiops: u64,
    capacity: Bytes,
}

fn modelled(_setting: &Setting, table: &ParamTable) -> Result<Device, ParamError> {
    let Modelled { rbps, rseqiops, rrandiops, wbps, wseqiops, wrandiops, capacity } = parse(table)?;
    let coefficients = Coefficients { rbps, rseqiops, rrandiops, wbps, wseqiops, wrandiops };
    // What a line could not say a table cannot either.
    let coefficients = coefficients.to_string().parse().map_err(|error| ParamError(format!("{error}")))?;
    Ok(device(Linear::new(&coefficients), capacity.0))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Constant {
    #[serde(with = "params::duration")]
    time: Duration,
    servers: u32,
    capacity: Bytes,
}

fn constant(setting: &Setting, table: &ParamTable) -> Result<Device, ParamError> {
    let Constant { time, servers, capacity } = parse(table)?;
    params::within("servers", servers, 1, 65_536, "requests")?;
    let random = stream(setting.seed, "constant-rate");
    Ok(device(Servers::new(servers, ServiceTime::Fixed(time), random), capacity.0))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Bucket {
    rate: Iops,
    burst: u32,
    capacity: Bytes,
}

fn bucket(_setting: &Setting, table: &ParamTable) -> Result<Device, ParamError> {
    let Bucket { rate, burst, capacity } = parse(table)?;
    params::within("burst", burst, 1, 1_000_000_000, "requests")?;
    Ok(device(TokenBucket::new(rate, burst), capacity.0))
}

#[cfg(test)]
mod tests;
