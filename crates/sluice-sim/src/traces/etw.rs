//! Event Tracing for Windows as text: `BeginHeader`, a line for each kind of event with its columns, `EndHeader`, then
//! events. Offsets and sizes are hexadecimal bytes, times microseconds. The header gives the columns, since only some
//! files have a CPU column.

use sluice_sched::Kind;

use super::field::{get, hexadecimal, length, number, scaled};
use super::{Lines, Row};

#[derive(Default)]
pub(super) struct Etw {
    /// Whether the header has ended.
    began: bool,
    /// For reads and for writes.
    columns: [Option<Columns>; 2],
}

/// Columns of the values.
#[derive(Clone, Copy)]
struct Columns {
    time: usize,
    offset: usize,
    size: usize,
    disk: usize,
}

fn columns(fields: &[&str]) -> Result<Columns, String> {
    let find = |name: &str| {
        let found = fields.iter().position(|field| field.trim().eq_ignore_ascii_case(name));
        found.ok_or_else(|| format!("a header without column {name}"))
    };
    Ok(Columns { time: find("TimeStamp")?, offset: find("ByteOffset")?, size: find("IOSize")?, disk: find("DiskNum")? })
}

fn event(name: &str) -> Option<(usize, Kind)> {
    match name.trim() {
        "DiskRead" => Some((0, Kind::Read)),
        "DiskWrite" => Some((1, Kind::Write)),
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
            self.columns[index] = Some(columns(&fields)?);
            return Ok(None);
        }
        let columns = self.columns[index].ok_or("an event whose columns are not in the header")?;
        let micros = number(get(&fields, columns.time, "TimeStamp")?, "time in microseconds")?;
        let offset = hexadecimal(get(&fields, columns.offset, "ByteOffset")?, "offset in bytes")?;
        let bytes = hexadecimal(get(&fields, columns.size, "IOSize")?, "size in bytes")?;
        let stream = number(get(&fields, columns.disk, "DiskNum")?, "disk number")?;
        let stream = u32::try_from(stream).map_err(|_| format!("{stream} is not a disk number"))?;
        Ok(Some(Row { at: scaled(micros, 1000, "time")?, stream, kind, offset, length: length(bytes)? }))
    }
}
