//! Tencent's block traces: `Timestamp,Offset,Size,IOType,VolumeID`; seconds, sectors of 512 bytes, 0 reads and 1 writes.

use sluice_sched::Kind;

use super::field::{decimal, get, length, number, scaled, shown};
use super::{Lines, Row};

pub(super) struct Tencent;

impl Lines for Tencent {
    const EXPECTED: &'static str = "timestamp,offset,size,0|1,volume (Tencent)";

    fn line(&mut self, line: &str) -> Result<Option<Row>, String> {
        if line.trim().is_empty() || line.starts_with("Timestamp,") {
            return Ok(None);
        }
        let fields: Vec<&str> = line.split(',').collect();
        let at = decimal(get(&fields, 0, "timestamp")?, 9, "time in seconds")?;
        let sector = number(get(&fields, 1, "offset")?, "offset in sectors")?;
        let sectors = number(get(&fields, 2, "size")?, "size in sectors")?;
        let kind = match get(&fields, 3, "type")? {
            "0" => Kind::Read,
            "1" => Kind::Write,
            other => return Err(format!("{} is neither 0 (read) nor 1 (write)", shown(other))),
        };
        let volume = number(get(&fields, 4, "volume")?, "volume number")?;
        let stream = u32::try_from(volume).map_err(|_| format!("{volume} is not a volume number"))?;
        let bytes = scaled(sectors, 512, "size")?;
        Ok(Some(Row { at, stream, kind, offset: scaled(sector, 512, "offset")?, length: length(bytes)? }))
    }
}
