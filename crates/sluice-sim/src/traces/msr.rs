//! MSR Cambridge: `Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime`; times of 100 ns since 1601.

use super::field::{get, kind, length, number, scaled};
use super::{Lines, Names, Row};

/// Streams are pairs of host and disk, numbered by first appearance.
#[derive(Default)]
pub(super) struct Msr {
    disks: Names<String>,
    first: Option<u64>,
}

impl Lines for Msr {
    const EXPECTED: &'static str = "timestamp,host,disk,Read|Write,offset,size,response (MSR Cambridge)";

    fn line(&mut self, line: &str) -> Result<Option<Row>, String> {
        if line.trim().is_empty() {
            return Ok(None);
        }
        let fields: Vec<&str> = line.split(',').collect();
        let ticks = number(get(&fields, 0, "timestamp")?, "timestamp of 100 ns")?;
        let disk = format!("{},{}", get(&fields, 1, "host")?, number(get(&fields, 2, "disk")?, "disk number")?);
        let kind = kind(get(&fields, 3, "type")?)?;
        let offset = number(get(&fields, 4, "offset")?, "offset in bytes")?;
        let bytes = number(get(&fields, 5, "size")?, "size in bytes")?;
        // Nanoseconds since 1601 overflow, so times count from the first row.
        let first = *self.first.get_or_insert(ticks);
        let since = ticks.checked_sub(first).ok_or("a time before that of the first row")?;
        let stream = self.disks.number(disk)?;
        let at = scaled(since, 100, "time")?;
        Ok(Some(Row { at, stream, kind, offset, length: length(bytes)? }))
    }
}
