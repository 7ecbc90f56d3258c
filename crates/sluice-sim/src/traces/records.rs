//! Binary formats with records of one size.

use std::io::{BufRead, ErrorKind};

use super::{Entries, Entry, TraceError};

/// First bytes of a file compressed by zstd.
pub(super) const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// Maximum size of a record.
const SIZE_MAX: usize = 64;

/// A binary format. A record may contain nothing.
pub(super) trait Record {
    const EXPECTED: &'static str;

    /// Size of a record in bytes.
    fn size(&self) -> usize;

    /// Parses a record. `Err` with the defect.
    fn record(&mut self, bytes: &[u8]) -> Result<Option<Entry>, String>;
}

/// Reads records one by one; the first error is the last item.
pub(super) fn read<'a, R: Record + 'a>(mut input: impl BufRead + 'a, mut format: R) -> Entries<'a> {
    let (mut number, mut ended) = (0, false);
    Box::new(std::iter::from_fn(move || {
        while !ended {
            number += 1;
            match next(&mut input, &mut format, number) {
                Ok(None) => ended = true,
                Ok(Some(None)) => {}
                Ok(Some(Some(entry))) => return Some(Ok(entry)),
                Err(error) => {
                    ended = true;
                    return Some(Err(error));
                }
            }
        }
        None
    }))
}

/// The next record; `None` at the end.
fn next<R: Record>(input: &mut impl BufRead, format: &mut R, row: u64) -> Result<Option<Option<Entry>>, TraceError> {
    let wrong = |found: &str| TraceError::Row { row, found: found.to_owned(), expected: R::EXPECTED };
    match input.fill_buf() {
        Ok([]) => return Ok(None),
        Ok(_) => {}
        Err(source) => return Err(TraceError::Io { row, source }),
    }
    let mut room = [0; SIZE_MAX];
    let bytes = &mut room[..format.size()];
    match input.read_exact(bytes) {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
            return Err(wrong("the file ends in the middle of a record"));
        }
        Err(source) => return Err(TraceError::Io { row, source }),
    }
    if row == 1 && bytes.starts_with(&ZSTD) {
        return Err(wrong("data compressed by zstd; decompress it first"));
    }
    format.record(bytes).map(Some).map_err(|found| wrong(&found))
}

/// A little-endian number of a record.
pub(super) fn number(bytes: &[u8], at: usize, len: usize) -> u64 {
    bytes[at..at + len].iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}
