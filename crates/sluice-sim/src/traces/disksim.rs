//! DiskSim ASCII: `time device sector sectors flags`, blanks between. The unit of the time is not part of the format.

use sluice_sched::Kind;

use super::field::{decimal, get, hexadecimal, length, number, scaled};
use super::{Lines, Row, TimeUnit};

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
        let stream = u32::try_from(stream).map_err(|_| format!("{stream} is no device number"))?;
        let bytes = scaled(sectors, 512, "size")?;
        Ok(Some(Row { at, stream, kind, offset: scaled(sector, 512, "sector")?, length: length(bytes)? }))
    }
}
