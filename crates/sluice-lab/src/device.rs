//! Device files: a model fitted to what a paper says of its device, with the reasons, frozen for all rows of that paper.
//!
//! Weights, reservations, limits, depths, slices, windows and seeds do not stand here: they are the papers'.

use std::time::Duration;

use serde::Deserialize;
use sluice_sim::devices::Model;
use sluice_sim::devices::array::{Array, Layout};
use sluice_sim::devices::hdd::{Hdd, HddSpec, SeekCurve};
use sluice_sim::devices::link::{Link, LinkParams};
use sluice_sim::devices::read_ahead::ReadAhead;
use sluice_sim::devices::servers::{Servers, ServiceTime};
use sluice_sim::devices::ssd::{Geometry, Ssd, SsdSpec};

use crate::band::BandPoint;
use crate::figure::LabError;

/// The files, by name.
const FILES: &[(&str, &str)] = &[
    ("mclock-array", include_str!("../devices/mclock-array.toml")),
    ("mclock-raid5", include_str!("../devices/mclock-raid5.toml")),
    ("mclock-oltp", include_str!("../devices/mclock-oltp.toml")),
    ("mclock-node", include_str!("../devices/mclock-node.toml")),
    ("flubber-sata", include_str!("../devices/flubber-sata.toml")),
    ("netback-link", include_str!("../devices/netback-link.toml")),
    ("mcfq-ssd", include_str!("../devices/mcfq-ssd.toml")),
    ("two-tier-sas", include_str!("../devices/two-tier-sas.toml")),
];

/// A device file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceFile {
    /// What it stands for.
    pub title: String,
    /// What the paper says of its device, and where.
    #[serde(rename = "fact")]
    pub facts: Vec<Fact>,
    /// What was chosen so that these come out, and what is typical of its class only.
    #[serde(rename = "choice")]
    pub choices: Vec<Choice>,
    /// How far one VM's disk reaches, in bytes, where the paper's device is shared by several.
    pub vm_span_bytes: Option<u64>,
    /// The model.
    pub model: ModelFile,
}

/// Something that a paper says.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fact {
    /// In words.
    pub says: String,
    /// Section, figure or table.
    pub place: String,
}

/// Something that we chose.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Choice {
    /// Which parameter.
    pub parameter: String,
    /// Why it has its value.
    pub why: String,
}

/// A model with its parameters.
#[derive(Debug, Clone, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum ModelFile {
    /// Several servers alike, each with exponential service times.
    Servers {
        /// How many.
        count: u32,
        /// Requests per second of all.
        iops: f64,
    },
    /// One or several drives of a kind.
    Drives {
        /// How many, and how bytes are spread.
        #[serde(default)]
        layout: LayoutFile,
        /// How many.
        #[serde(default = "one")]
        count: usize,
        /// Bytes of a stripe's unit.
        #[serde(default = "stripe")]
        unit_bytes: u64,
        /// Bytes of the controller's cache of writes; 0: none.
        #[serde(default)]
        cache_bytes: u64,
        /// What the controller keeps ahead of a sequential stream, in bytes; 0: nothing.
        #[serde(default)]
        read_ahead_bytes: u64,
        /// One of them.
        drive: DriveFile,
    },
    /// A network link behind a driver domain.
    Link(LinkFile),
    /// A flash drive.
    Ssd(SsdFile),
}

/// A flash drive with a page-mapped translation layer.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SsdFile {
    /// Channels, dies of a channel, planes of a die, blocks of a plane, pages of a block.
    pub geometry: [u32; 5],
    /// Bytes of a page.
    pub page_bytes: u32,
    /// Spare area, as a part of what the host sees.
    pub spare: f64,
    /// Free blocks of a plane below which it collects.
    pub reserve: u32,
    /// To read a page, to program one and to erase a block, in microseconds.
    pub times_us: [f64; 3],
    /// Of a channel, in bytes per second.
    pub channel: f64,
    /// Of the interface, in bytes per second.
    pub bus: f64,
    /// Of each command, in microseconds.
    pub overhead_us: f64,
    /// Bytes of a buffer that takes writes before the flash does; 0: none.
    pub buffer_bytes: u64,
    /// Of a drive that has been used: how often its capacity was written in random pages after it had been filled in order.
    pub aged_times: f64,
}

impl SsdFile {
    fn spec(&self, point: &BandPoint) -> SsdSpec {
        let [channels, dies, planes, blocks, pages] = self.geometry;
        let micros = |name: &str, us: f64| Duration::from_secs_f64(us * 1e-6 * point.factor(name));
        let [read, program, erase] = self.times_us;
        SsdSpec {
            geometry: Geometry {
                channels,
                dies,
                planes,
                blocks,
                pages,
                page_bytes: self.page_bytes,
                spare: self.spare * point.factor("spare"),
                reserve: self.reserve,
            },
            read: micros("page read", read),
            program: micros("page program", program),
            erase: micros("block erase", erase),
            channel: self.channel * point.factor("channel"),
            bus: self.bus,
            overhead: micros("overhead", self.overhead_us),
            buffer: self.buffer_bytes,
        }
    }

    /// A drive on which nothing has been written.
    ///
    /// # Errors
    /// If collecting garbage would be an artefact of its geometry.
    pub fn clean(&self, point: &BandPoint) -> Result<Ssd, LabError> {
        Ssd::new(self.spec(point)).map_err(|error| LabError::Refused(error.to_string()))
    }

    /// A drive that has been used.
    ///
    /// # Errors
    /// As [`SsdFile::clean`].
    pub fn aged(&self, point: &BandPoint) -> Result<Ssd, LabError> {
        let mut drive = self.clean(point)?;
        drive.age(self.aged_times, &mut point.stream("age"));
        Ok(drive)
    }

    /// Bytes that the host sees.
    fn bytes(&self) -> u64 {
        let geometry = self.spec(&BandPoint::NOMINAL).geometry;
        geometry.host_pages() * u64::from(geometry.page_bytes)
    }
}

/// How drives are put together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LayoutFile {
    /// A single one.
    #[default]
    Single,
    /// Stripes.
    Raid0,
    /// Stripes with parity.
    Raid5,
}

fn one() -> usize {
    1
}

fn stripe() -> u64 {
    64 << 10
}

/// A hard disk.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DriveFile {
    /// Bytes.
    pub capacity_bytes: u64,
    /// Turns per minute.
    pub rpm: u32,
    /// Track to track, average, full stroke, in milliseconds.
    pub seek_ms: [f64; 3],
    /// Outermost and innermost media rate, in bytes per second.
    pub rates: [f64; 2],
    /// Of each command, in microseconds.
    pub overhead_us: f64,
    /// Of the interface, in bytes per second.
    pub bus: f64,
    /// Commands that it sorts; 1: none.
    pub queue: u32,
    /// Cache segments of 1 MiB; 0: none.
    pub segments: u32,
    /// Bytes of its cache of writes; 0: none.
    #[serde(default)]
    pub write_cache_bytes: u64,
}

impl DriveFile {
    fn spec(&self, point: &BandPoint) -> HddSpec {
        let [track, average, full] = self.seek_ms.map(|ms| ms * 1e-3 * point.factor("seek"));
        let [outer, inner] = self.rates.map(|rate| rate * point.factor("rate"));
        HddSpec {
            capacity: self.capacity_bytes,
            rpm: (f64::from(self.rpm) * point.factor("rpm")).round() as u32,
            seek: SeekCurve::formula(track, average, full),
            rates: (outer, inner),
            overhead: Duration::from_secs_f64(self.overhead_us * 1e-6 * point.factor("overhead")),
            bus: self.bus,
            queue: self.queue,
            segments: self.segments,
            segment_bytes: 1 << 20,
            write_cache: self.write_cache_bytes,
        }
    }
}

/// A link, and what stands before it.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkFile {
    /// What the wire carries.
    pub bits_per_second: u64,
    /// Frames in the interface's queue.
    pub queue: u32,
    /// Tick of the driver domain's clock, in microseconds.
    pub tick_us: u64,
    /// What a packet costs a guest, in microseconds of CPU.
    pub guest_us: f64,
    /// What a packet costs the driver domain, in microseconds of CPU.
    pub packet_us: f64,
    /// How many times as much a disk request costs it.
    pub request_per_packet: f64,
    /// What a disk request takes at the disk, in microseconds.
    pub disk_us: f64,
    /// Frames of one flow on their way, at most.
    pub buffer: u32,
    /// How far the distances of a flow's datagrams vary, as a part of their mean.
    pub jitter: f64,
}

impl LinkFile {
    /// The same at a point of the band. The link's rate is known and stays.
    #[must_use]
    pub fn at(&self, point: &BandPoint) -> LinkFile {
        let scaled = |value: f64, name: &str| value * point.factor(name);
        LinkFile {
            bits_per_second: self.bits_per_second,
            queue: scaled(f64::from(self.queue), "queue").round() as u32,
            tick_us: scaled(self.tick_us as f64, "tick").round() as u64,
            guest_us: scaled(self.guest_us, "guest"),
            packet_us: scaled(self.packet_us, "packet"),
            request_per_packet: scaled(self.request_per_packet, "request per packet"),
            disk_us: scaled(self.disk_us, "disk"),
            buffer: scaled(f64::from(self.buffer), "buffer").round() as u32,
            jitter: scaled(self.jitter, "jitter"),
        }
    }

    /// The wire with its queue.
    #[must_use]
    pub fn params(&self) -> LinkParams {
        LinkParams { bits_per_second: self.bits_per_second, queue: self.queue, ..LinkParams::FAST_ETHERNET }
    }
}

impl DeviceFile {
    /// The file of that name.
    ///
    /// # Errors
    /// If there is none, or it is wrong.
    pub fn load(name: &str) -> Result<Self, LabError> {
        let wrong = |why: String| LabError::Device(name.to_owned(), why);
        let text = text(name).ok_or_else(|| wrong("there is no such file".into()))?;
        toml::from_str(text).map_err(|error| wrong(error.to_string()))
    }

    /// The model at a point of the band.
    #[must_use]
    pub fn model(&self, point: &BandPoint) -> Box<dyn Model> {
        match &self.model {
            ModelFile::Link(link) => Box::new(Link::new(link.at(point).params())),
            ModelFile::Servers { count, iops } => {
                let mean = f64::from(*count) / (iops * point.factor("iops"));
                let time = ServiceTime::Exponential(Duration::from_secs_f64(mean));
                Box::new(Servers::new(*count, time, point.stream("service")))
            }
            ModelFile::Drives { layout: LayoutFile::Single, drive, .. } => Box::new(Hdd::new(drive.spec(point))),
            ModelFile::Drives { layout, count, unit_bytes, cache_bytes, read_ahead_bytes, drive } => {
                let layout = if *layout == LayoutFile::Raid5 { Layout::Raid5 } else { Layout::Raid0 };
                let array = Array::new(layout, *count, *unit_bytes, &drive.spec(point));
                let overhead = Duration::from_secs_f64(drive.overhead_us * 1e-6 * point.factor("overhead"));
                let array = Box::new(array.with_cache(*cache_bytes, overhead));
                match *read_ahead_bytes {
                    0 => array,
                    ahead => Box::new(ReadAhead::new(array, ahead, *unit_bytes, self.bytes(), overhead)),
                }
            }
            ModelFile::Ssd(drive) => Box::new(drive.clean(point).expect("a test makes one of every file")),
        }
    }

    /// One of its drives, alone.
    ///
    /// # Errors
    /// If it has none.
    pub fn drive(&self, point: &BandPoint) -> Result<Box<dyn Model>, LabError> {
        match &self.model {
            ModelFile::Drives { drive, .. } => Ok(Box::new(Hdd::new(drive.spec(point)))),
            _ => Err(LabError::Device(self.title.clone(), "it has no drives".into())),
        }
    }

    /// The link with what stands before it, at a point of the band.
    ///
    /// # Errors
    /// If it is no link.
    pub fn link(&self, point: &BandPoint) -> Result<LinkFile, LabError> {
        match &self.model {
            ModelFile::Link(link) => Ok(link.at(point)),
            _ => Err(LabError::Device(self.title.clone(), "it is no link".into())),
        }
    }

    /// Where the disk of VM number `vm` begins, and its length: side by side.
    #[must_use]
    pub fn place(&self, vm: u64) -> (u64, u64) {
        let span = self.vm_span_bytes.unwrap_or(self.bytes());
        (vm * span % self.bytes().max(1), span)
    }

    /// Bytes that it offers; a link has none.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        match &self.model {
            ModelFile::Servers { .. } => 1 << 40,
            ModelFile::Link(_) => 0,
            ModelFile::Drives { layout, count, drive, .. } => {
                let data = if *layout == LayoutFile::Raid5 { count - 1 } else { *count };
                drive.capacity_bytes * data as u64
            }
            ModelFile::Ssd(drive) => drive.bytes(),
        }
    }
}

/// The text of a device file, for the report.
#[must_use]
pub fn text(name: &str) -> Option<&'static str> {
    FILES.iter().find(|(file, _)| *file == name).map(|(_, text)| *text)
}

/// A device that serves so many requests per second, one at a time.
#[must_use]
pub fn constant(iops: f64) -> Box<dyn Model> {
    let time = ServiceTime::Fixed(Duration::from_secs_f64(1.0 / iops));
    Box::new(Servers::new(1, time, sluice_sim::random::stream(0, "constant")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_is_read_and_gives_reasons() {
        for (name, _) in FILES {
            let file = DeviceFile::load(name).unwrap();
            assert!(!file.facts.is_empty() && !file.choices.is_empty(), "{name}");
            let link = matches!(file.model, ModelFile::Link(_));
            assert!(link || file.bytes() > 1 << 30, "{name}");
            assert!(file.model(&BandPoint::NOMINAL).next().is_none(), "{name} is idle at first");
        }
        assert!(DeviceFile::load("none").is_err());
    }

    #[test]
    fn a_links_rate_is_known_and_the_rest_is_varied() {
        assert!(DeviceFile::load("two-tier-sas").unwrap().link(&BandPoint::NOMINAL).is_err());
        let file = DeviceFile::load("netback-link").unwrap();
        let links: Vec<_> = BandPoint::band().map(|point| file.link(&point).unwrap()).collect();
        assert!(links.iter().all(|link| link.bits_per_second == 100_000_000));
        assert_eq!((links[0].queue, links[0].tick_us), (1000, 4000));
        let queues: std::collections::BTreeSet<_> = links.iter().map(|link| link.queue).collect();
        assert!(queues.len() == 21 && queues.iter().all(|queue| (700..=1300).contains(queue)), "{queues:?}");
    }

    #[test]
    fn every_point_of_the_band_has_a_flash_drive_that_does_not_fake_collection() {
        let ModelFile::Ssd(drive) = DeviceFile::load("mcfq-ssd").unwrap().model else { panic!("it is an SSD") };
        for point in BandPoint::band() {
            assert!(drive.clean(&point).is_ok(), "point {}", point.number());
        }
    }
}
