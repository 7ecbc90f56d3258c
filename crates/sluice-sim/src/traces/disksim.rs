//! DiskSim ASCII: `time device sector sectors flags`, separated by blanks. The unit of time is not part of the format.
//! Also the measurements of drives with which DiskSim is validated: `R|W Hit|Miss sector sectors service gap`, in
//! microseconds; the next request arrived `gap` after the completion of this one.

use std::io::BufRead;
use std::time::Duration;

use sluice_sched::Kind;

use super::field::{decimal, get, hexadecimal, kind, length, number, scaled, shown};
use super::{Lines, Row, Rows, TimeUnit, TraceError, lines};

pub(super) struct DiskSim(pub(super) TimeUnit);

impl Lines for DiskSim {
    const EXPECTED: &'static str = "time device sector sectors flags (DiskSim ASCII)";

    fn line(&mut self, line: &str) -> Result<Option<Row>, String> {
        if line.trim().is_empty() {
            return Ok(None);
        }
        let fields: Vec<&str> = line.split_whitespace().collect();
        let time = get(&fields, 0, "time")?;
        let at = match self.0 {
            TimeUnit::Milliseconds => decimal(time, 6, "time in milliseconds")?,
            TimeUnit::Nanoseconds => number(time, "time in nanoseconds")?,
        };
        let stream = number(get(&fields, 1, "device")?, "device number")?;
        let sector = number(get(&fields, 2, "sector")?, "sector")?;
        let sectors = number(get(&fields, 3, "size")?, "size in sectors")?;
        let flags = hexadecimal(get(&fields, 4, "flags")?, "flags")?;
        let kind = if flags & 1 == 1 { Kind::Read } else { Kind::Write };
        let stream = u32::try_from(stream).map_err(|_| format!("{stream} is not a device number"))?;
        let bytes = scaled(sectors, 512, "size")?;
        Ok(Some(Row { at, stream, kind, offset: scaled(sector, 512, "sector")?, length: length(bytes)? }))
    }
}

/// A request with its measured service time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Measured {
    /// The request; its time is the sum of the service times and gaps before it.
    pub row: Row,
    pub service: Duration,
    /// Time from its completion to the next request.
    pub gap: Duration,
}

/// Reads DiskSim's measurements of a drive.
pub fn measured<'a>(input: impl BufRead + 'a) -> Box<dyn Iterator<Item = Result<Measured, TraceError>> + 'a> {
    lines(input, Validate::default())
}

/// The requests without measurements.
pub(super) fn rows<'a>(input: impl BufRead + 'a) -> Rows<'a> {
    Box::new(measured(input).map(|measured| measured.map(|measured| measured.row)))
}

#[derive(Default)]
struct Validate {
    /// Arrival of the next request, in nanoseconds.
    at: u64,
}

impl Lines<Measured> for Validate {
    const EXPECTED: &'static str = "R|W Hit|Miss sector sectors service gap (DiskSim's measurements)";

    fn line(&mut self, line: &str) -> Result<Option<Measured>, String> {
        if line.trim().is_empty() {
            return Ok(None);
        }
        let fields: Vec<&str> = line.split_whitespace().collect();
        let kind = kind(get(&fields, 0, "operation")?)?;
        let hit = get(&fields, 1, "hit or miss")?;
        if !["Hit", "Miss"].contains(&hit) {
            return Err(format!("{} is neither Hit nor Miss", shown(hit)));
        }
        let sector = number(get(&fields, 2, "sector")?, "sector")?;
        let sectors = number(get(&fields, 3, "size")?, "size in sectors")?;
        let service = decimal(get(&fields, 4, "service time")?, 3, "time in microseconds")?;
        let gap = decimal(get(&fields, 5, "gap")?, 3, "time in microseconds")?;
        let (offset, length) = (scaled(sector, 512, "sector")?, length(scaled(sectors, 512, "size")?)?);
        let row = Row { at: self.at, stream: 0, kind, offset, length };
        let next = self.at.checked_add(service).and_then(|at| at.checked_add(gap));
        self.at = next.ok_or("a time that is too large to count")?;
        Ok(Some(Measured { row, service: Duration::from_nanos(service), gap: Duration::from_nanos(gap) }))
    }
}
