//! Device files: a model fitted to a paper's statements about its device, with the reasons, fixed for all rows of that
//! paper.
//!
//! Weights, reservations, limits, depths, slices, windows and seeds are not in these files: they are the papers'.

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
    /// Device that it models.
    pub title: String,
    /// Statements of the paper about its device, with their position.
    #[serde(rename = "fact")]
    pub facts: Vec<Fact>,
    /// Parameters chosen to match these, and values that are only typical of the device's class.
    #[serde(rename = "choice")]
    pub choices: Vec<Choice>,
    /// Size of one VM's disk in bytes, if the paper's device is shared by several.
    pub vm_span_bytes: Option<u64>,
    /// The model.
    pub model: ModelFile,
}

/// A statement of a paper.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fact {
    pub says: String,
    /// Section, figure or table.
    pub place: String,
}

/// A choice of ours.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Choice {
    pub parameter: String,
    /// Reason for its value.
    pub why: String,
}

/// A model with its parameters.
#[derive(Debug, Clone, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum ModelFile {
    /// Several identical servers with exponential service times.
    Servers {
        /// Number of servers.
        count: u32,
        /// Requests per second of all servers.
        iops: f64,
    },
    /// One or more drives of one kind.
    Drives {
        /// Layout of the bytes.
        #[serde(default)]
        layout: LayoutFile,
        /// Number of drives.
        #[serde(default = "one")]
        count: usize,
        /// Stripe unit in bytes.
        #[serde(default = "stripe")]
        unit_bytes: u64,
        /// Size of the controller's write cache in bytes; 0 is none.
        #[serde(default)]
        cache_bytes: u64,
        /// Bytes that the controller reads ahead for a sequential stream; 0 is none.
        #[serde(default)]
        read_ahead_bytes: u64,
        /// One of the drives.
        drive: DriveFile,
    },
    /// A network link with a driver domain.
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
    /// Spare area as a part of the size that the host sees.
    pub spare: f64,
    /// Number of free blocks of a plane below which it collects.
    pub reserve: u32,
    /// Time to read a page, to program one and to erase a block, in microseconds.
    pub times_us: [f64; 3],
    /// Rate of a channel, in bytes per second.
    pub channel: f64,
    /// Rate of the interface, in bytes per second.
    pub bus: f64,
    /// Additional time of each command, in microseconds.
    pub overhead_us: f64,
    /// Size in bytes of the buffer that takes writes before the flash; 0 is none.
    pub buffer_bytes: u64,
    /// For an aged drive: random writes after a sequential fill, as a multiple of its capacity.
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

    /// A new drive.
    ///
    /// # Errors
    /// If garbage collection would be an artefact of its geometry.
    pub fn clean(&self, point: &BandPoint) -> Result<Ssd, LabError> {
        Ssd::new(self.spec(point)).map_err(|error| LabError::Refused(error.to_string()))
    }

    /// An aged drive.
    ///
    /// # Errors
    /// As [`SsdFile::clean`].
    pub fn aged(&self, point: &BandPoint) -> Result<Ssd, LabError> {
        let mut drive = self.clean(point)?;
        drive.age(self.aged_times, &mut point.stream("age"));
        Ok(drive)
    }

    /// Size that the host sees in bytes.
    fn bytes(&self) -> u64 {
        let geometry = self.spec(&BandPoint::NOMINAL).geometry;
        geometry.host_pages() * u64::from(geometry.page_bytes)
    }
}

/// Layout of several drives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LayoutFile {
    /// A single drive.
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
    /// Size in bytes.
    pub capacity_bytes: u64,
    /// Revolutions per minute.
    pub rpm: u32,
    /// Track to track, average, full stroke, in milliseconds.
    pub seek_ms: [f64; 3],
    /// Outermost and innermost media rate, in bytes per second.
    pub rates: [f64; 2],
    /// Additional time of each command, in microseconds.
    pub overhead_us: f64,
    /// Rate of the interface, in bytes per second.
    pub bus: f64,
    /// Commands that it queues and sorts; 1 is none.
    pub queue: u32,
    /// Cache segments of 1 MiB; 0 is none.
    pub segments: u32,
    /// Size of its write cache in bytes; 0 is none.
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

/// A link, and the CPU times in front of it.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkFile {
    /// Rate of the wire.
    pub bits_per_second: u64,
    /// Frames in the interface's queue.
    pub queue: u32,
    /// Tick of the driver domain's clock, in microseconds.
    pub tick_us: u64,
    /// CPU time of a packet in a guest, in microseconds.
    pub guest_us: f64,
    /// CPU time of a packet in the driver domain, in microseconds.
    pub packet_us: f64,
    /// CPU time of a disk request there, as a multiple of that of a packet.
    pub request_per_packet: f64,
    /// Service time of a disk request at the disk, in microseconds.
    pub disk_us: f64,
    /// Maximum number of frames of one flow in flight.
    pub buffer: u32,
    /// Maximum deviation of the intervals of a flow's datagrams, as a part of their mean.
    pub jitter: f64,
}

impl LinkFile {
    /// The same at a point of the range. The link's rate is known and does not vary, and a kernel's tick is one of few.
    #[must_use]
    pub fn at(&self, point: &BandPoint) -> LinkFile {
        let scaled = |value: f64, name: &str| value * point.factor(name);
        LinkFile {
            bits_per_second: self.bits_per_second,
            queue: scaled(f64::from(self.queue), "queue").round() as u32,
            tick_us: self.tick_us,
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
    /// If it does not exist, or is invalid.
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

    /// The same drives as RAID-5, behind a write cache and a read-ahead of these sizes in bytes.
    #[must_use]
    pub fn as_raid5(mut self, cache: u64, read_ahead: u64) -> Self {
        if let ModelFile::Drives { layout, cache_bytes, read_ahead_bytes, .. } = &mut self.model {
            (*layout, *cache_bytes, *read_ahead_bytes) = (LayoutFile::Raid5, cache, read_ahead);
        }
        self
    }

    /// A single one of its drives.
    ///
    /// # Errors
    /// If it has no drives.
    pub fn drive(&self, point: &BandPoint) -> Result<Box<dyn Model>, LabError> {
        match &self.model {
            ModelFile::Drives { drive, .. } => Ok(Box::new(Hdd::new(drive.spec(point)))),
            _ => Err(LabError::Device(self.title.clone(), "it has no drives".into())),
        }
    }

    /// The link with its CPU times, at a point of the range.
    ///
    /// # Errors
    /// If the device is not a link.
    pub fn link(&self, point: &BandPoint) -> Result<LinkFile, LabError> {
        match &self.model {
            ModelFile::Link(link) => Ok(link.at(point)),
            _ => Err(LabError::Device(self.title.clone(), "it is no link".into())),
        }
    }

    /// Start and length of the disk of VM number `vm`; the disks are adjacent.
    #[must_use]
    pub fn place(&self, vm: u64) -> (u64, u64) {
        let span = self.vm_span_bytes.unwrap_or(self.bytes());
        (vm * span % self.bytes().max(1), span)
    }

    /// Size in bytes; a link has none.
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

/// 64-bit FNV-1a of a device file, in hexadecimal. It names the file that a result was measured with.
#[must_use]
pub fn hash(text: &str) -> String {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    format!("{:016x}", text.as_bytes().iter().fold(0xcbf2_9ce4_8422_2325, step))
}

/// A device that serves `iops` requests per second, one at a time.
#[must_use]
pub fn constant(iops: f64) -> Box<dyn Model> {
    let time = ServiceTime::Fixed(Duration::from_secs_f64(1.0 / iops));
    Box::new(Servers::new(1, time, sluice_sim::random::stream(0, "constant")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A change of a device file changes its line in `devices.txt`, which states the reason of the last change.
    #[test]
    fn no_device_file_changes_without_a_reason() {
        assert_eq!(hash("a"), "af63dc4c8601ec8c", "the published value");
        let known = include_str!("../tests/devices.txt");
        let lines: Vec<Vec<&str>> = known.lines().map(|line| line.splitn(3, ' ').collect()).collect();
        assert_eq!(lines.len(), FILES.len());
        for ((name, text), line) in FILES.iter().zip(&lines) {
            assert_eq!((line[0], line[1]), (*name, hash(text).as_str()), "give {name} its new hash, and the reason");
            assert!(line[2].len() > 10, "{name} has no reason");
        }
    }

    #[test]
    fn every_device_file_is_parsed_and_has_reasons() {
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
    fn the_band_varies_all_of_a_link_except_its_rate() {
        assert!(DeviceFile::load("two-tier-sas").unwrap().link(&BandPoint::NOMINAL).is_err());
        let file = DeviceFile::load("netback-link").unwrap();
        let links: Vec<_> = BandPoint::band().map(|point| file.link(&point).unwrap()).collect();
        assert!(links.iter().all(|link| link.bits_per_second == 100_000_000));
        assert!(links[0].queue == 1000 && links.iter().all(|link| link.tick_us == 4000));
        let queues: std::collections::BTreeSet<_> = links.iter().map(|link| link.queue).collect();
        assert!(queues.len() == 21 && queues.iter().all(|queue| (700..=1300).contains(queue)), "{queues:?}");
    }

    #[test]
    fn every_point_of_the_band_has_a_valid_flash_geometry() {
        let ModelFile::Ssd(drive) = DeviceFile::load("mcfq-ssd").unwrap().model else { panic!("it is an SSD") };
        for point in BandPoint::band() {
            assert!(drive.clean(&point).is_ok(), "point {}", point.number());
        }
    }
}
