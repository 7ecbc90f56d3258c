//! Records of VMware's vscsiStats for a virtual disk, as collected by CloudPhysics: SCSI commands in little-endian
//! records of one size. The layout is the one that libCacheSim documents.
//!
//! | version | bytes | fields |
//! |---|---|---|
//! | 1 | 32 | serial 4, length 4, pieces of memory 4, command 2, version 2, sector 8, microseconds 8 |
//! | 2 | 40 | command 2, version 2, serial 4, length 4, pieces of memory 4, sector 8, microseconds 8, response time 8 |
//!
//! The upper byte of the version is 1 or 2; lengths are in bytes. The first record gives the version. Other
//! commands than reads, writes, zeroes and flushes cannot be replayed, among them UNMAP, whose ranges are not recorded.

use std::io::{BufRead, Cursor, Read};

use sluice_sched::Kind;

use super::field::{length, scaled};
use super::records::{self, Record, number};
use super::{Entries, Entry, Row, TraceError};

/// Offsets of a record's fields.
struct Vscsi {
    size: usize,
    version: u64,
    command_at: usize,
    version_at: usize,
    length_at: usize,
}

const FIRST: Vscsi = Vscsi { size: 32, version: 1, command_at: 12, version_at: 14, length_at: 4 };
const SECOND: Vscsi = Vscsi { size: 40, version: 2, command_at: 0, version_at: 2, length_at: 8 };

/// Reads a file of either version.
pub(super) fn entries<'a>(mut input: impl BufRead + 'a) -> Entries<'a> {
    let mut head = Vec::new();
    if let Err(source) = (&mut input).take(FIRST.size as u64).read_to_end(&mut head) {
        return Box::new(std::iter::once(Err(TraceError::Io { row: 1, source })));
    }
    let is = |layout: &Vscsi| head.len() == FIRST.size && layout.fits(&head);
    let layout = if !is(&FIRST) && is(&SECOND) { SECOND } else { FIRST };
    records::read(Cursor::new(head).chain(input), layout)
}

impl Vscsi {
    fn fits(&self, bytes: &[u8]) -> bool {
        number(bytes, self.version_at, 2) >> 8 == self.version
    }
}

/// Kind of a SCSI command. `Err` with the name of those that cannot be replayed.
fn kind(command: u64) -> Result<Kind, &'static str> {
    match command {
        0x08 | 0x28 | 0xa8 | 0x88 => Ok(Kind::Read),
        0x0a | 0x2a | 0xaa | 0x8a | 0x2e | 0xae | 0x8e => Ok(Kind::Write),
        0x35 | 0x91 => Ok(Kind::Flush),
        0x41 | 0x93 => Ok(Kind::WriteZeroes),
        0x42 => Err("UNMAP commands"),
        _ => Err("other SCSI commands"),
    }
}

impl Record for Vscsi {
    const EXPECTED: &'static str = "records of 32 or 40 bytes with version 1 or 2 (vscsiStats)";

    fn size(&self) -> usize {
        self.size
    }

    fn record(&mut self, bytes: &[u8]) -> Result<Option<Entry>, String> {
        if !self.fits(bytes) {
            return Err(format!("version {:#06x}", number(bytes, self.version_at, 2)));
        }
        let kind = match kind(number(bytes, self.command_at, 2)) {
            Ok(kind) => kind,
            Err(what) => return Ok(Some(Entry::Skipped(0, what))),
        };
        let at = scaled(number(bytes, 24, 8), 1000, "time")?;
        let (offset, length) = match kind {
            Kind::Flush => (0, 0),
            _ => (scaled(number(bytes, 16, 8), 512, "sector")?, length(number(bytes, self.length_at, 4))?),
        };
        Ok(Some(Row { at, stream: 0, kind, offset, length }.into()))
    }
}
