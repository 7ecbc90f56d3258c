//! Output of blkparse in its default format: `maj,min cpu sequence seconds pid action RWBS sector + sectors [process]`.
//! Only rows of action Q (queued) are requests; the summary at the end is skipped.

use sluice_sched::Kind;

use super::field::{decimal, get, length, number, scaled, shown};
use super::{Lines, Names, Row};

/// Streams are devices, numbered by first appearance.
#[derive(Default)]
pub(super) struct Blkparse {
    devices: Names<String>,
}

/// Kind of request by its letters: reads, writes, discards, separate flushes.
fn kind(rwbs: &str) -> Result<Option<Kind>, String> {
    match rwbs.trim_start_matches('F').bytes().next() {
        Some(b'R') => Ok(Some(Kind::Read)),
        Some(b'W') => Ok(Some(Kind::Write)),
        Some(b'D') => Ok(Some(Kind::Discard)),
        Some(b'N') => Ok(None),
        _ if rwbs.starts_with('F') => Ok(Some(Kind::Flush)),
        _ => Err(format!("{} is neither a read nor a write", shown(rwbs))),
    }
}

impl Lines for Blkparse {
    const EXPECTED: &'static str = "maj,min cpu sequence seconds pid action RWBS sector + sectors [process] (blkparse)";

    fn line(&mut self, line: &str) -> Result<Option<Row>, String> {
        let fields: Vec<&str> = line.split_whitespace().collect();
        // Lines of the summary do not start with a device.
        let is_event = fields.first().is_some_and(|first| first.contains(',')) && fields.len() > 6;
        if !is_event || fields[5] != "Q" {
            return Ok(None);
        }
        let at = decimal(fields[3], 9, "time in seconds")?;
        let Some(kind) = kind(fields[6])? else { return Ok(None) };
        let stream = self.devices.number(fields[0].to_owned())?;
        if kind == Kind::Flush && fields.get(8) != Some(&"+") {
            return Ok(Some(Row { at, stream, kind, offset: 0, length: 0 }));
        }
        let sector = number(get(&fields, 7, "sector")?, "sector")?;
        let sectors = number(get(&fields, 9, "size")?, "size in sectors")?;
        let bytes = scaled(sectors, 512, "size")?;
        Ok(Some(Row { at, stream, kind, offset: scaled(sector, 512, "sector")?, length: length(bytes)? }))
    }
}
