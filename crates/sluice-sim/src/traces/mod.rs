//! Block traces of others: read row by row, never whole.
//!
//! Units are the format's; where a format leaves them open the caller says them, and nothing is guessed. A row that is not
//! what the format says is an error with its number and what was expected.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
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
mod records;
mod select;
mod spc;
mod systor;
mod tencent;
mod vscsi;
pub mod write;

pub use disksim::{Measured, measured};
pub use select::{Failure, PastEnd, Select};

/// One request of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// When it came, in nanoseconds since whatever the trace counts from.
    pub at: u64,
    /// Whose it is, as far as the trace tells devices or volumes apart; numbered by the trace, or in order of appearance.
    pub stream: u32,
    /// What was to be done.
    pub kind: Kind,
    /// In bytes.
    pub offset: u64,
    /// In bytes.
    pub length: u32,
}

impl Row {
    /// Whether it asks for nothing: neither for bytes nor for a flush. No device ever sees such a request.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0 && self.kind != Kind::Flush
    }
}

/// The unit of a trace's times, where the format leaves it open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeUnit {
    /// As DiskSim writes it, with decimals.
    Milliseconds,
    /// As MQSim's files have it.
    Nanoseconds,
}

/// A format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Storage Performance Council: `ASU,LBA,bytes,R|W,seconds`, with optional fields behind.
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
    /// What blkparse prints; rows of action Q.
    Blkparse,
    /// What blktrace records, versions 7 and 8, either byte order; rows of action Q.
    Blktrace,
    /// What VMware's vscsiStats records, versions 1 and 2, as CloudPhysics collected it.
    Vscsi,
    /// oracleGeneral, a format of cache simulators: times in whole seconds, and ids in place of places. Says not what was
    /// done, so that all is read; an id lies at so many bytes times itself (512 where ids are sectors).
    OracleGeneral(u32),
}

/// Why a trace cannot be read on.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// A row that is none.
    #[error("Row {row}: {found}; expected {expected}")]
    Row {
        /// Its number, from 1: a line of a text, a record else.
        row: u64,
        /// What is there.
        found: String,
        /// What should be.
        expected: &'static str,
    },
    /// There is no such file, or none that can be read.
    #[error("Cannot be opened: {source}")]
    Open {
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The file cannot be read on.
    #[error("Row {row}: {source}")]
    Io {
        /// How far it was read.
        row: u64,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A request that is longer than the whole volume.
    #[error("A request of the trace has {length} bytes, but the volume has only {volume}; use a larger volume")]
    TooLong {
        /// Of the request.
        length: u32,
        /// Length of the volume.
        volume: u64,
    },
    /// A request that the volume has no room for.
    #[error(
        "A request of the trace ends at byte {end}, but the volume has only {volume} bytes; use a larger volume, or \
         wrap offsets past its end"
    )]
    PastEnd {
        /// Where the request ends.
        end: u64,
        /// Length of the volume.
        volume: u64,
    },
}

/// Longest line that is read.
const LINE_MAX: u64 = 64 << 10;
/// Longest single request: what a row's length may say.
const LENGTH_MAX: u64 = 1 << 30;
/// Most devices that a trace may name.
const NAMES_MAX: usize = 65_536;

/// A text format: what a line says. A line may say nothing (a header, a comment).
trait Lines<T = Row> {
    const EXPECTED: &'static str;

    /// `Err` with what is wrong.
    fn line(&mut self, line: &str) -> Result<Option<T>, String>;
}

/// Names of devices, numbered in the order in which they appear.
#[derive(Default)]
struct Names<N>(BTreeMap<N, u32>);

impl<N: Ord> Names<N> {
    fn number(&mut self, name: N) -> Result<u32, String> {
        let next = self.0.len();
        match self.0.entry(name) {
            Entry::Occupied(known) => Ok(*known.get()),
            Entry::Vacant(_) if next == NAMES_MAX => Err(format!("one more device than {NAMES_MAX}")),
            Entry::Vacant(new) => Ok(*new.insert(next as u32)),
        }
    }
}

/// Rows, as they come.
pub type Rows<'a> = Box<dyn Iterator<Item = Result<Row, TraceError>> + 'a>;

/// Opens a trace, which is read once to know what is in it and then for each run.
///
/// # Errors
/// It cannot be opened, or is no regular file: a pipe has nothing the second time, or waits for ever, and a device no end.
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

/// Reads a trace.
pub fn read<'a>(format: Format, input: impl BufRead + 'a) -> Rows<'a> {
    match format {
        Format::Spc => lines(input, spc::Spc),
        Format::Msr => lines(input, msr::Msr::default()),
        Format::Systor => lines(input, systor::Systor),
        Format::Alibaba => lines(input, alibaba::Alibaba),
        Format::Tencent => lines(input, tencent::Tencent),
        Format::Etw => lines(input, etw::Etw::default()),
        Format::DiskSim(unit) => lines(input, disksim::DiskSim(unit)),
        Format::Fio => lines(input, fio::Fio::default()),
        Format::Blkparse => lines(input, blkparse::Blkparse::default()),
        Format::Blktrace => Box::new(blktrace::Records::new(input)),
        Format::DiskSimValidate => disksim::rows(input),
        Format::Vscsi => vscsi::rows(input),
        Format::OracleGeneral(unit) => records::read(input, oracle::OracleGeneral(unit)),
    }
}

/// What a line is that is no text: most often the trace is as it was fetched.
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
