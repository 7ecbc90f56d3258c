//! Flash drives, new and aged.

use std::time::Duration;

use serde::Deserialize;
use sluice_sched::params::{self, ParamError, ParamTable, Parameter, Range};
use sluice_sched::scheduler::DeviceClass;
use sluice_sched::{ByteRate, Bytes};

use super::{BuildContext, Derived, ModelKind, parameter, ranged};
use crate::devices::Model;
use crate::devices::derived::check_geometry;
use crate::devices::ssd::{Ageing, Geometry, Ssd, SsdSpec, States};
use crate::random::stream;

const PARAMETERS: &[Parameter] = &[
    ranged("channels", "number", Range::Number(1, 64), "8", "Channels"),
    ranged("dies", "number", Range::Number(1, 64), "1", "Dies per channel"),
    ranged("planes", "number", Range::Number(1, 64), "1", "Planes per die"),
    ranged("blocks", "number", Range::Number(4, 1 << 24), "1024", "Blocks per plane"),
    ranged("pages", "number", Range::Number(1, 65535), "128", "Pages per block"),
    ranged("page_size", "a size", Range::Size(512, 64 << 10), "\"8KiB\"", "Page size"),
    ranged(
        "spare",
        "number",
        Range::Decimal(0.01, 2.0),
        "0.07",
        "Spare area, as a fraction of the size that the host sees",
    ),
    ranged(
        "reserve",
        "number",
        Range::Number(1, 1024),
        "3",
        "Number of free blocks in a plane below which it collects garbage",
    ),
    parameter("read", "a time", "\"75us\"", "Time to read a page into the plane's register"),
    parameter("program", "a time", "\"750us\"", "Time to program a page"),
    parameter("erase", "a time", "\"3.8ms\"", "Time to erase a block"),
    parameter("channel_rate", "a rate of bytes", "\"333MB/s\"", "Transfer rate of each channel"),
    parameter("bus", "a rate of bytes", "\"550MB/s\"", "Transfer rate of the interface"),
    parameter("overhead", "a time", "\"15us\"", "Additional time of each command"),
    parameter("buffer", "a size", "\"0B\"", "Size of the buffer that takes writes before the flash does; 0B: none"),
    ranged(
        "state",
        "word",
        Range::Words(&["clean", "aged"]),
        "\"clean\"",
        "clean: nothing has been written; aged: all pages were written, then overwritten at random",
    ),
    ranged(
        "aged_by",
        "number",
        Range::Decimal(0.0, 100.0),
        "2.0",
        "Amount of random writes that age the drive, as a multiple of its capacity",
    ),
];

pub(super) const KINDS: &[ModelKind] = &[ModelKind {
    name: "ssd",
    summary: "A flash drive with a page-mapped translation layer and garbage collection",
    device_class: DeviceClass::Disk,
    parameters: &[PARAMETERS],
    derive: |table| read(table).map(|drive| Derived::of_flash(&drive.spec(), drive.state == State::Aged)),
    build: |table, context, states| read(table)?.build(context, states),
}];

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum State {
    Clean,
    Aged,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Drive {
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

fn read(table: &ParamTable) -> Result<Drive, ParamError> {
    let drive: Drive = params::read(PARAMETERS, table)?;
    check_geometry(&drive.geometry())?;
    Ok(drive)
}

impl Drive {
    fn geometry(&self) -> Geometry {
        Geometry {
            channels: self.channels,
            dies: self.dies,
            planes: self.planes,
            blocks: self.blocks,
            pages: self.pages,
            page_bytes: self.page_size.0 as u32,
            spare: self.spare,
            reserve: self.reserve,
        }
    }

    fn spec(&self) -> SsdSpec {
        SsdSpec {
            geometry: self.geometry(),
            read: self.read,
            program: self.program,
            erase: self.erase,
            channel: self.channel_rate.bytes_per_second() as f64,
            bus: self.bus.bytes_per_second() as f64,
            overhead: self.overhead,
            buffer: self.buffer.0,
        }
    }

    fn build(&self, context: &BuildContext, states: Option<&States>) -> Result<Box<dyn Model>, ParamError> {
        let mut ssd = Ssd::new(self.spec()).map_err(|error| ParamError(error.to_string()))?;
        if self.state == State::Aged {
            let random = stream(context.seed, &format!("{} age", context.name));
            let ageing = Ageing { random, times: self.aged_by };
            match states {
                Some(states) => states.age(&mut ssd, &ageing),
                None => ssd.age(ageing.times, &mut ageing.random.clone()),
            }
        }
        Ok(Box::new(ssd))
    }
}
