//! A recorded trace: its file, its format, and its replay.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use sluice_sched::Kind;

use crate::traces::{self, Entry, Failure, Format, PastEnd, Select, TimeUnit, TraceError};
use crate::workloads::{Replay, ReplayTiming};

/// Formats by name.
pub const FORMATS: &[(&str, Format)] = &[
    ("spc", Format::Spc),
    ("msr", Format::Msr),
    ("systor", Format::Systor),
    ("alibaba", Format::Alibaba),
    ("tencent", Format::Tencent),
    ("etw", Format::Etw),
    ("disksim", Format::DiskSim(TimeUnit::Milliseconds)),
    ("disksim-ns", Format::DiskSim(TimeUnit::Nanoseconds)),
    ("disksim-validate", Format::DiskSimValidate),
    ("fio", Format::Fio),
    ("blkparse", Format::Blkparse),
    ("blktrace", Format::Blktrace),
    ("vscsi", Format::Vscsi),
    // In most such traces ids are sectors.
    ("oracle-general", Format::OracleGeneral(512)),
];

/// A trace and its replay.
#[derive(Debug, Clone)]
pub struct Trace {
    pub file: PathBuf,
    pub format: Format,
    /// Timing of its requests.
    pub timing: ReplayTiming,
    /// The stream to replay; `None` for all.
    pub stream: Option<u32>,
    /// Whether requests after the end of the volume wrap around.
    pub wrap: bool,
    /// Contents of the trace.
    pub scan: Scan,
}

/// Contents of a trace.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Scan {
    /// Number of requests.
    pub rows: u64,
    /// Number of reads.
    pub reads: u64,
    /// Bytes of all.
    pub bytes: u64,
    /// End of the last byte.
    pub end: u64,
    /// Length of the longest request in bytes.
    pub longest: u64,
    /// Time from the first to the last request in nanoseconds.
    pub span: u64,
    /// Digest of all rows.
    pub digest: u64,
    /// Number of operations that cannot be replayed, by their kind.
    pub skipped: BTreeMap<&'static str, u64>,
}

impl Scan {
    /// Reads the whole trace.
    ///
    /// # Errors
    /// If the file cannot be opened, or has an invalid row.
    pub fn read(file: &Path, format: Format, stream: Option<u32>) -> Result<Scan, TraceError> {
        let opened = traces::open(file).map_err(|source| TraceError::Open { source })?;
        let (mut scan, mut first) = (Scan { digest: 0xcbf2_9ce4_8422_2325, ..Scan::default() }, None);
        let is_other = |of: u32| stream.is_some_and(|stream| of != stream);
        for entry in traces::entries(format, opened) {
            let row = match entry? {
                Entry::Request(row) if is_other(row.stream) => continue,
                Entry::Request(row) if !row.is_empty() => row,
                Entry::Request(_) => {
                    scan.skip(traces::WITHOUT_DATA);
                    continue;
                }
                Entry::Skipped(of, what) => {
                    if !is_other(of) {
                        scan.skip(what);
                    }
                    continue;
                }
            };
            let first = *first.get_or_insert(row.at);
            scan.rows += 1;
            scan.reads += u64::from(row.kind == Kind::Read);
            scan.bytes += u64::from(row.length);
            scan.end = scan.end.max(row.offset.saturating_add(u64::from(row.length)));
            scan.longest = scan.longest.max(u64::from(row.length));
            scan.span = scan.span.max(row.at.saturating_sub(first));
            for number in [row.at, row.offset, u64::from(row.length), row.kind as u64] {
                scan.digest = (scan.digest ^ number).wrapping_mul(0x0100_0000_01b3);
            }
        }
        Ok(scan)
    }

    fn skip(&mut self, what: &'static str) {
        *self.skipped.entry(what).or_default() += 1;
    }

    /// Returns a sentence on the operations that are not replayed; `None` if all are.
    #[must_use]
    pub fn not_replayed(&self) -> Option<String> {
        let counts: Vec<String> = self.skipped.iter().map(|(what, count)| format!("{what}: {count}")).collect();
        (!counts.is_empty()).then(|| format!("it has operations that are not replayed ({})", counts.join(", ")))
    }
}

impl Trace {
    /// The workload of a thread with a volume of this size. Later errors are stored in its failure.
    pub(super) fn replay(&self, volume: u64) -> io::Result<(Replay<Select<'static>>, Failure)> {
        let past_end = if self.wrap { PastEnd::Wrap } else { PastEnd::Refuse };
        let rows = Select::new(traces::read(self.format, traces::open(&self.file)?), self.stream, volume, past_end);
        let failure = rows.failure();
        Ok((Replay::new(rows, self.timing, sluice_sched::Instant::ZERO), failure))
    }
}
