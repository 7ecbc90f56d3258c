//! Block traces in common formats, read row by row.
//!
//! Units are those of the format. If a format does not define them, the caller states them. An invalid row is an error
//! with its number and the expected format.

use std::collections::{BTreeMap, btree_map};
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::Path;

use sluice_sched::Kind;

mod alibaba;
mod blkparse;
mod blktrace;
mod disksim;
mod etw;
mod field;
mod fio;
mod msr;
mod oracle;
mod queued;
mod records;
mod select;
mod spc;
mod systor;
mod tencent;
mod vscsi;
pub mod write;

pub use disksim::{Measured, measured};
pub use queued::WITHOUT_DATA;
pub use select::{Failure, PastEnd, Select};

/// One request of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// Arrival in nanoseconds since the origin of the trace.
    pub at: u64,
    /// Device or volume, if the trace distinguishes them; numbered by the trace, or by first appearance.
    pub stream: u32,
    pub kind: Kind,
    /// Offset in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub length: u32,
}

impl Row {
    /// Whether it has neither bytes nor a flush. Such a request never reaches a device.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0 && self.kind != Kind::Flush
    }
}

/// Unit of a trace's times, if the format does not define it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeUnit {
    /// As DiskSim writes it, with decimals.
    Milliseconds,
    /// As MQSim's files have it.
    Nanoseconds,
}

/// What a trace has, in the order of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entry {
    Request(Row),
    /// An operation of this stream that no request can replay, with the name of its kind in the plural.
    Skipped(u32, &'static str),
}

impl From<Row> for Entry {
    fn from(row: Row) -> Self {
        Entry::Request(row)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Storage Performance Council: `ASU,LBA,bytes,R|W,seconds`, with optional further fields.
    Spc,
    /// MSR Cambridge: `timestamp,host,disk,Read|Write,offset,size,response`, times of 100 ns.
    Msr,
    /// SYSTOR '17: `timestamp,response,R|W,LUN,offset,size`, seconds.
    Systor,
    /// Alibaba: `device,R|W,offset,length,timestamp`, microseconds.
    Alibaba,
    /// Tencent: `timestamp,offset,size,0|1,volume`, seconds and sectors.
    Tencent,
    /// Event Tracing for Windows as text, with a header that names the columns.
    Etw,
    /// DiskSim ASCII: `time device sector sectors flags`; bit 0 of the flags reads.
    DiskSim(TimeUnit),
    /// DiskSim's measurements of drives: `R|W Hit|Miss sector sectors service gap`, microseconds; see [`measured`].
    DiskSimValidate,
    /// fio's I/O log, versions 2 and 3.
    Fio,
    /// Output of blkparse; rows of action Q.
    Blkparse,
    /// Records of blktrace, versions 7 and 8, either byte order; rows of action Q.
    Blktrace,
    /// Records of VMware's vscsiStats, versions 1 and 2, as CloudPhysics collected them.
    Vscsi,
    /// oracleGeneral, a format of cache simulators: times in whole seconds, and ids instead of offsets. Operations are
    /// not recorded, so all are reads. The offset of an id is the id times this number of bytes (512 if ids are
    /// sectors).
    OracleGeneral(u32),
}

/// An error that ends the reading of a trace.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// An invalid row.
    #[error("Row {row}: {found}; expected {expected}")]
    Row {
        /// Number of the line or record, from 1.
        row: u64,
        /// Contents of the row.
        found: String,
        /// Expected contents.
        expected: &'static str,
    },
    /// The file does not exist or cannot be opened.
    #[error("Cannot be opened: {source}")]
    Open {
        #[source]
        source: io::Error,
    },
    /// Reading the file failed.
    #[error("Row {row}: {source}")]
    Io {
        /// Number of the row.
        row: u64,
        #[source]
        source: io::Error,
    },
    /// A request longer than the volume.
    #[error("A request of the trace has {length} bytes, but the volume has only {volume}; use a larger volume")]
    TooLong {
        /// Length of the request.
        length: u32,
        /// Length of the volume.
        volume: u64,
    },
    /// A request after the end of the volume.
    #[error(
        "A request of the trace ends at byte {end}, but the volume has only {volume} bytes; use a larger volume, or \
         wrap offsets past its end"
    )]
    PastEnd {
        /// End of the request.
        end: u64,
        /// Length of the volume.
        volume: u64,
    },
}

/// Maximum length of a line.
const LINE_MAX: u64 = 64 << 10;
/// Maximum length of a request.
const LENGTH_MAX: u64 = 1 << 30;
/// Maximum number of devices in a trace.
const NAMES_MAX: usize = 65_536;

/// A text format. A line may contain no request (a header, a comment).
trait Lines<T = Row> {
    const EXPECTED: &'static str;

    /// Parses a line. `Err` with the defect.
    fn line(&mut self, line: &str) -> Result<Option<T>, String>;
}

/// Names of devices, numbered by first appearance.
#[derive(Default)]
struct Names<N>(BTreeMap<N, u32>);

impl<N: Ord> Names<N> {
    fn number(&mut self, name: N) -> Result<u32, String> {
        let next = self.0.len();
        match self.0.entry(name) {
            btree_map::Entry::Occupied(known) => Ok(*known.get()),
            btree_map::Entry::Vacant(_) if next == NAMES_MAX => Err(format!("one more device than {NAMES_MAX}")),
            btree_map::Entry::Vacant(new) => Ok(*new.insert(next as u32)),
        }
    }
}

/// Entries in the order of the file.
pub type Entries<'a> = Box<dyn Iterator<Item = Result<Entry, TraceError>> + 'a>;

/// Rows in the order of the file.
pub type Rows<'a> = Box<dyn Iterator<Item = Result<Row, TraceError>> + 'a>;

/// Opens a trace, which is read once for its contents and then for each run.
///
/// # Errors
/// If it cannot be opened, or is not a regular file: a pipe cannot be read twice, and a device has no end.
pub fn open(file: &Path) -> io::Result<BufReader<File>> {
    let metadata = std::fs::metadata(file)?;
    if metadata.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    if !metadata.is_file() {
        let what = "it is not a regular file but is read several times; write its data to a regular file and use that";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    }
    File::open(file).map(BufReader::new)
}

/// Reads the requests of a trace. What [`entries`] returns besides is skipped.
pub fn read<'a>(format: Format, input: impl BufRead + 'a) -> Rows<'a> {
    Box::new(entries(format, input).filter_map(|entry| match entry {
        Ok(Entry::Request(row)) => Some(Ok(row)),
        Ok(Entry::Skipped(..)) => None,
        Err(error) => Some(Err(error)),
    }))
}

/// Reads a trace, with the operations that cannot be replayed.
pub fn entries<'a>(format: Format, input: impl BufRead + 'a) -> Entries<'a> {
    match format {
        Format::Spc => rows(lines(input, spc::Spc)),
        Format::Msr => rows(lines(input, msr::Msr::default())),
        Format::Systor => rows(lines(input, systor::Systor)),
        Format::Alibaba => rows(lines(input, alibaba::Alibaba)),
        Format::Tencent => rows(lines(input, tencent::Tencent)),
        Format::Etw => rows(lines(input, etw::Etw::default())),
        Format::DiskSim(unit) => rows(lines(input, disksim::DiskSim(unit))),
        Format::Fio => lines(input, fio::Fio::default()),
        Format::Blkparse => split(lines(input, blkparse::Blkparse::default())),
        Format::Blktrace => split(blktrace::Records::new(input)),
        Format::DiskSimValidate => rows(disksim::rows(input)),
        Format::Vscsi => vscsi::entries(input),
        Format::OracleGeneral(unit) => records::read(input, oracle::OracleGeneral(unit)),
    }
}

/// Entries of a format whose rows are all requests.
fn rows<'a>(rows: impl Iterator<Item = Result<Row, TraceError>> + 'a) -> Entries<'a> {
    Box::new(rows.map(|row| row.map(Entry::Request)))
}

/// Entries of a format whose requests may flush first.
fn split<'a>(requests: impl Iterator<Item = Result<queued::Queued, TraceError>> + 'a) -> Entries<'a> {
    Box::new(requests.flat_map(|request| {
        let (entries, error) = match request {
            Ok(request) => (Some(request.entries()), None),
            Err(error) => (None, Some(Err(error))),
        };
        entries.into_iter().flatten().map(Ok).chain(error)
    }))
}

/// Description of a line that is not text: often the file is still compressed.
fn no_text(line: &[u8]) -> String {
    let packed: [(&[u8], &str); 3] = [(&[0x1f, 0x8b], "gzip"), (&records::ZSTD, "zstd"), (b"\xfd7zXZ", "xz")];
    match packed.into_iter().find(|(begins, _)| line.starts_with(begins)) {
        Some((_, by)) => format!("data compressed by {by}; decompress it first"),
        None => "bytes that are not text".to_owned(),
    }
}

fn lines<'a, T: 'a, L: Lines<T> + 'a>(
    mut input: impl BufRead + 'a,
    mut format: L,
) -> Box<dyn Iterator<Item = Result<T, TraceError>> + 'a> {
    let (mut number, mut line, mut ended) = (0u64, Vec::new(), false);
    Box::new(std::iter::from_fn(move || {
        while !ended {
            line.clear();
            number += 1;
            let read = io::Read::take(&mut input, LINE_MAX).read_until(b'\n', &mut line);
            let found = match read {
                Ok(0) => {
                    ended = true;
                    return None;
                }
                Ok(_) if line.len() as u64 == LINE_MAX => Err("a line of more than 64 KiB".to_owned()),
                Ok(_) => match std::str::from_utf8(&line) {
                    Ok(text) => format.line(text.trim_end_matches(['\n', '\r'])),
                    Err(_) => Err(no_text(&line)),
                },
                Err(source) => {
                    ended = true;
                    return Some(Err(TraceError::Io { row: number, source }));
                }
            };
            match found {
                Ok(None) => {}
                Ok(Some(row)) => return Some(Ok(row)),
                Err(found) => {
                    ended = true;
                    return Some(Err(TraceError::Row { row: number, found, expected: L::EXPECTED }));
                }
            }
        }
        None
    }))
}

#[cfg(test)]
mod tests;
