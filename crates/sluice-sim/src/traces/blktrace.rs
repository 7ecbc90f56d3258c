//! Records of blktrace, versions 7 and 8. A record is a header of 48 or 64 bytes and data; the magic number at its
//! start gives version and byte order. Only records of action Q (queued) are requests.

use std::io::{self, BufRead, ErrorKind, Read};

use sluice_sched::Kind;

use super::field::{length, scaled};
use super::queued::{PASSTHROUGH, Queued, Rest, UNKNOWN, ZONE};
use super::{Names, TraceError};

const MAGIC: u32 = 0x6561_7400;
const EXPECTED: &str = "records of blktrace, version 7 or 8";
/// The action is in the lower half, its category in the upper one.
const QUEUED: u64 = 1;
const READS: u64 = 1;
const WRITES: u64 = 1 << 1;
const FLUSHES: u64 = 1 << 2;
const PASSES: u64 = 1 << 9;
const NOTIFIES: u64 = 1 << 10;
const DISCARDS: u64 = 1 << 13;
/// Categories above these are of version 8 alone, and of zones.
const CATEGORIES: u32 = 16;

/// The records of a file.
pub(super) struct Records<R> {
    input: R,
    row: u64,
    ended: bool,
    /// Streams are devices, numbered by first appearance.
    devices: Names<u32>,
}

/// Numbers of one byte order.
#[derive(Clone, Copy)]
struct Bytes<'a>(&'a [u8], bool);

impl Bytes<'_> {
    fn number(self, at: usize, len: usize) -> u64 {
        let bytes = self.0[at..at + len].iter();
        let add = |sum: u64, byte: &u8| sum << 8 | u64::from(*byte);
        if self.1 { bytes.rev().fold(0, add) } else { bytes.fold(0, add) }
    }
}

/// Fields of a header.
struct Head {
    time: u64,
    sector: u64,
    bytes: u64,
    action: u64,
    device: u32,
    data: u64,
}

/// Returns what a request does apart from its flush.
fn rest(head: &Head, category: u64) -> Result<Rest, String> {
    let kind = match category {
        _ if category & PASSES != 0 => return Ok(Rest::Skipped(PASSTHROUGH)),
        _ if category >> CATEGORIES != 0 => return Ok(Rest::Skipped(ZONE)),
        _ if category & FLUSHES != 0 && head.bytes == 0 => return Ok(Rest::Nothing),
        _ if category & DISCARDS != 0 => Kind::Discard,
        _ if category & WRITES != 0 => Kind::Write,
        _ if category & READS != 0 => Kind::Read,
        _ => return Ok(Rest::Skipped(UNKNOWN)),
    };
    Ok(Rest::Data(kind, scaled(head.sector, 512, "sector")?, length(head.bytes)?))
}

impl<R: BufRead> Records<R> {
    pub(super) fn new(input: R) -> Self {
        Records { input, row: 0, ended: false, devices: Names::default() }
    }

    fn wrong<T>(&self, found: impl Into<String>) -> Result<T, TraceError> {
        Err(TraceError::Row { row: self.row, found: found.into(), expected: EXPECTED })
    }

    fn fill(&mut self, room: &mut [u8]) -> Result<(), TraceError> {
        match self.input.read_exact(room) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                self.wrong("the file ends in the middle of a record")
            }
            Err(source) => Err(TraceError::Io { row: self.row, source }),
        }
    }

    fn head(&mut self) -> Result<Option<Head>, TraceError> {
        match self.input.fill_buf() {
            Ok([]) => return Ok(None),
            Ok(_) => {}
            Err(source) => return Err(TraceError::Io { row: self.row, source }),
        }
        self.row += 1;
        let mut room = [0; 64];
        self.fill(&mut room[..4])?;
        let magic = u32::from_le_bytes([room[0], room[1], room[2], room[3]]);
        let (version, little) = match (magic ^ MAGIC, magic.swap_bytes() ^ MAGIC) {
            (version @ 7..=8, _) => (version, true),
            (_, version @ 7..=8) => (version, false),
            _ => return self.wrong(format!("a record that begins with {magic:#010x}")),
        };
        let len = if version == 7 { 48 } else { 64 };
        self.fill(&mut room[4..len])?;
        let bytes = Bytes(&room, little);
        let n = |at, len| bytes.number(at, len);
        let (action, device, data) = match version {
            7 => (n(28, 4), n(36, 4), n(46, 2)),
            // After the byte count: pid, then a wide action.
            _ => (n(32, 8), n(40, 4), n(50, 2)),
        };
        Ok(Some(Head { time: n(8, 8), sector: n(16, 8), bytes: n(24, 4), action, device: device as u32, data }))
    }

    fn next_row(&mut self) -> Result<Option<Queued>, TraceError> {
        while let Some(head) = self.head()? {
            let skipped = io::copy(&mut Read::take(&mut self.input, head.data), &mut io::sink());
            match skipped {
                Ok(skipped) if skipped == head.data => {}
                Ok(_) => return self.wrong("the file ends in the middle of a record's data"),
                Err(source) => return Err(TraceError::Io { row: self.row, source }),
            }
            let category = head.action >> 16;
            if head.action & 0xffff != QUEUED || category & NOTIFIES != 0 {
                continue;
            }
            let flushes = category & FLUSHES != 0;
            let numbered = self.devices.number(head.device);
            return match numbered.and_then(|stream| Ok((stream, rest(&head, category)?))) {
                Ok((stream, rest)) => Ok(Some(Queued { at: head.time, stream, flushes, rest })),
                Err(found) => self.wrong(found),
            };
        }
        Ok(None)
    }
}

impl<R: BufRead> Iterator for Records<R> {
    type Item = Result<Queued, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let row = self.next_row().transpose();
        self.ended = !matches!(row, Some(Ok(_)));
        row
    }
}
