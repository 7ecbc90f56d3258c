//! Event Tracing for Windows as text: `BeginHeader`, a line for each kind of event with its columns, `EndHeader`, then
//! events. Offsets and sizes are hexadecimal bytes, times microseconds. The header gives the columns, since only some
//! files have a CPU column. Flushes (`DiskFlush`) have no offset and no size. Events of other kinds are not requests.

use sluice_sched::Kind;

use super::field::{get, hexadecimal, length, number, scaled};
use super::{Lines, Row};

#[derive(Default)]
pub(super) struct Etw {
    /// Whether the header has ended.
    began: bool,
    /// For reads, writes and flushes.
    columns: [Option<Columns>; 3],
}

/// Columns of the values.
#[derive(Clone, Copy)]
struct Columns {
    time: usize,
    /// Offset and size; `None`: a flush.
    data: Option<(usize, usize)>,
    disk: usize,
}

fn columns(kind: Kind, fields: &[&str]) -> Result<Columns, String> {
    let find = |name: &str| {
        let found = fields.iter().position(|field| field.trim().eq_ignore_ascii_case(name));
        found.ok_or_else(|| format!("a header without column {name}"))
    };
    let data = if kind == Kind::Flush { None } else { Some((find("ByteOffset")?, find("IOSize")?)) };
    Ok(Columns { time: find("TimeStamp")?, data, disk: find("DiskNum")? })
}

fn event(name: &str) -> Option<(usize, Kind)> {
    match name.trim() {
        "DiskRead" => Some((0, Kind::Read)),
        "DiskWrite" => Some((1, Kind::Write)),
        "DiskFlush" => Some((2, Kind::Flush)),
        _ => None,
    }
}

impl Lines for Etw {
    const EXPECTED: &'static str = "BeginHeader, columns of DiskRead and DiskWrite, EndHeader, then rows with these \
                                    columns (Event Tracing for Windows)";

    fn line(&mut self, line: &str) -> Result<Option<Row>, String> {
        let fields: Vec<&str> = line.split(',').collect();
        let Some((index, kind)) = event(fields[0]) else {
            self.began |= line.trim() == "EndHeader";
            return Ok(None);
        };
        if !self.began {
            self.columns[index] = Some(columns(kind, &fields)?);
            return Ok(None);
        }
        let columns = self.columns[index].ok_or("an event whose columns are not in the header")?;
        let micros = number(get(&fields, columns.time, "TimeStamp")?, "time in microseconds")?;
        let (offset, bytes) = match columns.data {
            None => (0, 0),
            Some((offset, size)) => (
                hexadecimal(get(&fields, offset, "ByteOffset")?, "offset in bytes")?,
                hexadecimal(get(&fields, size, "IOSize")?, "size in bytes")?,
            ),
        };
        let stream = number(get(&fields, columns.disk, "DiskNum")?, "disk number")?;
        let stream = u32::try_from(stream).map_err(|_| format!("{stream} is not a disk number"))?;
        Ok(Some(Row { at: scaled(micros, 1000, "time")?, stream, kind, offset, length: length(bytes)? }))
    }
}
