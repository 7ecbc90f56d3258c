//! Devices by name: what scenarios and the command line call, with parameters that can be changed one by one.
//!
//! Numbers of data sheets are marked so; what is typical of a class and stands nowhere is marked with an A in brackets.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use sluice_sched::Bytes;
use sluice_sched::params::{self, ParamError, ParamTable, Parameter};
use sluice_sched::units::ByteRate;

use super::Model;
use super::array::{Array, Layout};
use super::derived::{Derived, check_geometry};
use super::hdd::{Hdd, HddSpec, SeekCurve};
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
    derive: fn(&ParamTable) -> Result<Derived, ParamError>,
    build: fn(&Setting, &ParamTable) -> Result<Device, ParamError>,
}

impl DeviceSet {
    /// What follows from its parameters with these in place of defaults; no drive is made for that.
    ///
    /// # Errors
    /// No such parameter, or a drive that cannot be.
    pub fn derive(&self, overrides: &ParamTable) -> Result<Derived, ParamError> {
        (self.derive)(&with_defaults(self.parameters, overrides))
    }

    /// Makes it; `overrides` replaces defaults.
    ///
    /// # Errors
    /// As [`DeviceSet::derive`].
    pub fn build(&self, setting: &Setting, overrides: &ParamTable) -> Result<Device, ParamError> {
        (self.build)(setting, &with_defaults(self.parameters, overrides))
    }
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
    set.build(setting, overrides).map_err(|source| DeviceError::Parameter { set: set.name, source })
}

/// Every set.
pub const DEVICES: &[DeviceSet] = &[
    DeviceSet {
        name: "sata-7200-1tb",
        summary: "a SATA disk of 1 TB, about 2010: 78 random reads of 4 KiB per second, one at a time",
        source: "rates and average seek as in data sheets and reviews of its class; ends of the seek curve [A]",
        parameters: &SATA,
        derive: derive_disk,
        build: disk,
    },
    DeviceSet {
        name: "fc-15k-146",
        summary: "a Fibre Channel disk of 146 GB: 178 random reads of 4 KiB per second, one at a time",
        source: "[mclock] 3 says 200 to 250 IOPS of such disks; numbers typical of the class [A]",
        parameters: &FC,
        derive: derive_disk,
        build: disk,
    },
    DeviceSet {
        name: "sas-15k-450",
        summary: "a SAS disk of 450 GB: 181 random reads of 4 KiB per second, one at a time",
        source: "numbers typical of the class [A]",
        parameters: &SAS,
        derive: derive_disk,
        build: disk,
    },
    DeviceSet {
        name: "raid0-10x-fc-15k-146",
        summary: "stripes over ten disks of 146 GB: 1,470 to 2,060 random reads of 16 KiB per second, 32 at a time",
        source: "[mclock] 5.1: ten disks, about 1,600 IOPS",
        parameters: &array(FC, "\"raid0\"", "10"),
        derive: derive_raid,
        build: raid,
    },
    DeviceSet {
        name: "raid5-10x-fc-15k-146",
        summary: "stripes with parity over ten disks of 146 GB",
        source: "[mclock] 5.1: RAID-5 of ten disks",
        parameters: &array(FC, "\"raid5\"", "10"),
        derive: derive_raid,
        build: raid,
    },
    DeviceSet {
        name: "raid5-6x-fc-15k-146",
        summary: "stripes with parity over six disks of 146 GB: a node of dmClock's experiments",
        source: "[mclock] 5.2: RAID-5 of six disks, about 1,500 IOPS",
        parameters: &array(FC, "\"raid5\"", "6"),
        derive: derive_raid,
        build: raid,
    },
    DeviceSet {
        name: "raid0-4x-sata-7200-1tb",
        summary: "stripes over four SATA disks of 1 TB",
        source: "as its disks",
        parameters: &array(SATA, "\"raid0\"", "4"),
        derive: derive_raid,
        build: raid,
    },
    DeviceSet {
        name: "ssd-sata-400-consumer",
        summary: "a SATA SSD of 400 GB with 7 % spare area, two bits per cell, aged",
        source: "times, channels and pages are MQSim's defaults; spare area as in reviews of consumer drives",
        parameters: SSD,
        derive: derive_flash,
        build: flash,
    },
];

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
        parameter("bus", "a byte rate", bus, "Of the interface"),
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
const ARRAY: [&str; 5] = ["disks", "layout", "stripe", "cache", "cache_latency"];

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
    parameter("page_size", "a size", "\"8KiB\"", "What is read and programmed at once"),
    parameter("spare", "a part", "0.07", "Spare area, of what the host sees"),
    parameter("reserve", "blocks, 1 to 1000", "3", "[A] Free blocks of a plane below which it cleans up"),
    parameter("read", "a time", "\"75us\"", "Of a page"),
    parameter("program", "a time", "\"750us\"", "Of a page"),
    parameter("erase", "a time", "\"3800us\"", "Of a block"),
    parameter("channel_rate", "a byte rate", "\"333MB/s\"", "Of each"),
    parameter("bus", "a byte rate", "\"550MB/s\"", "Of the interface"),
    parameter("overhead", "a time", "\"10us\"", "[A] Of each command"),
    parameter("buffer", "a size", "\"32MiB\"", "[A] Writes that it takes before the flash does; 0B: none"),
    parameter(
        "state",
        "\"clean\" or \"aged\"",
        "\"aged\"",
        "aged: filled and overwritten before it begins; clean: nothing was ever written",
    ),
    parameter("aged_by", "times, 0 to 100", "2", "Its capacity in random pages, if it is aged"),
];

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
    bus: ByteRate,
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
        bus: rate(drive.bus),
        queue: drive.queue,
        segments: drive.segments,
        segment_bytes: drive.segment_size.0,
        write_cache: drive.write_cache.0,
    })
}

fn device(model: impl Model + 'static, capacity: u64) -> Device {
    Device { model: Box::new(model), capacity, notice: None }
}

fn derive_disk(table: &ParamTable) -> Result<Derived, ParamError> {
    Ok(Derived::of_disks(&spec(table)?, 1, 0))
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
    cache: Bytes,
    #[serde(with = "params::duration")]
    cache_latency: Duration,
}

fn read_raid(table: &ParamTable) -> Result<(Raid, HddSpec), ParamError> {
    let (array, drive): (ParamTable, ParamTable) =
        table.clone().into_iter().partition(|(name, _)| ARRAY.contains(&name.as_str()));
    let (raid, spec): (Raid, HddSpec) = (parse(&array)?, spec(&drive)?);
    let least = match raid.layout {
        Spread::Raid0 => 1,
        Spread::Raid5 => 3,
    };
    params::within("disks", raid.disks, least, 1024, "disks")?;
    if !raid.stripe.0.is_multiple_of(512) || raid.stripe.0 == 0 || raid.stripe.0 > 1 << 30 {
        return wrong("stripe must be a multiple of 512 B, up to 1 GiB");
    }
    Ok((raid, spec))
}

fn derived_of(raid: &Raid, spec: &HddSpec) -> Derived {
    Derived::of_disks(spec, u64::from(raid.disks), u64::from(matches!(raid.layout, Spread::Raid5)))
}

fn derive_raid(table: &ParamTable) -> Result<Derived, ParamError> {
    let (raid, spec) = read_raid(table)?;
    Ok(derived_of(&raid, &spec))
}

fn raid(_setting: &Setting, table: &ParamTable) -> Result<Device, ParamError> {
    let (raid, spec) = read_raid(table)?;
    let layout = match raid.layout {
        Spread::Raid0 => Layout::Raid0,
        Spread::Raid5 => Layout::Raid5,
    };
    let model = Array::new(layout, raid.disks as usize, raid.stripe.0, &spec);
    let model = model.with_cache(raid.cache.0, raid.cache_latency);
    Ok(device(model, derived_of(&raid, &spec).span))
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum State {
    Clean,
    Aged,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FlashDrive {
    channels: u32,
    dies: u32,
    planes: u32,
    blocks: u32,
    pages: u32,
    page_size: Bytes,
    spare: f64,
    reserve: u32,
    #[serde(with = "params::duration")]
    read: Duration,
    #[serde(with = "params::duration")]
    program: Duration,
    #[serde(with = "params::duration")]
    erase: Duration,
    channel_rate: ByteRate,
    bus: ByteRate,
    #[serde(with = "params::duration")]
    overhead: Duration,
    buffer: Bytes,
    state: State,
    aged_by: f64,
}

fn read_flash(table: &ParamTable) -> Result<(FlashDrive, SsdSpec), ParamError> {
    let drive: FlashDrive = parse(table)?;
    let parts = [("channels", drive.channels), ("dies", drive.dies), ("planes", drive.planes)];
    parts.into_iter().try_for_each(|(name, count)| params::within(name, count, 1, 256, "of them"))?;
    params::within("blocks", drive.blocks, 4, 1_000_000, "blocks")?;
    params::within("pages", drive.pages, 1, 65_535, "pages")?;
    params::within("reserve", drive.reserve, 1, 1000, "blocks")?;
    if !(512..=1 << 20).contains(&drive.page_size.0) || !drive.page_size.0.is_multiple_of(512) {
        return wrong("page_size must be a multiple of 512 B, up to 1 MiB");
    }
    if !(0.001..=10.0).contains(&drive.spare) || !(0.0..=100.0).contains(&drive.aged_by) {
        return wrong("spare must be from 0.001 to 10 of what the host sees, and aged_by from 0 to 100 times");
    }
    let geometry = Geometry {
        channels: drive.channels,
        dies: drive.dies,
        planes: drive.planes,
        blocks: drive.blocks,
        pages: drive.pages,
        page_bytes: drive.page_size.0 as u32,
        spare: drive.spare,
        reserve: drive.reserve,
    };
    check_geometry(&geometry)?;
    let spec = SsdSpec {
        geometry,
        read: drive.read,
        program: drive.program,
        erase: drive.erase,
        channel: rate(drive.channel_rate),
        bus: rate(drive.bus),
        overhead: drive.overhead,
        buffer: drive.buffer.0,
    };
    Ok((drive, spec))
}

fn derive_flash(table: &ParamTable) -> Result<Derived, ParamError> {
    let (drive, spec) = read_flash(table)?;
    Ok(Derived::of_flash(&spec, drive.state == State::Aged))
}

fn flash(setting: &Setting, table: &ParamTable) -> Result<Device, ParamError> {
    let (drive, spec) = read_flash(table)?;
    let capacity = spec.geometry.host_pages() * drive.page_size.0;
    let mut ssd = Ssd::new(spec).map_err(|error| ParamError(error.to_string()))?;
    let ageing = Ageing { seed: setting.seed, times: drive.aged_by };
    let notice = match &setting.states {
        _ if drive.state == State::Clean => None,
        Some(folder) => ssd.age_from(folder, ageing).map(|error| format!("{error}; the drive was aged anew")),
        None => {
            ssd.age(ageing.times, &mut stream(ageing.seed, "age"));
            None
        }
    };
    Ok(Device { model: Box::new(ssd), capacity, notice })
}

#[cfg(test)]
mod tests;
