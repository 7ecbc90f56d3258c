//! fio's I/O log. Version 2: `file action [offset length]`; version 3: `timestamp file action [offset length]`, in
//! microseconds since the start (as fio 3.33 writes it).
//!
//! `wait` in version 2 is read as fio 3.33 replays it: the following actions start that number of milliseconds
//! after the start of the job. fio's manual says otherwise, microseconds since the last action.

use sluice_sched::Kind;

use super::field::{get, length, number, scaled, shown};
use super::{Entry, Lines, Names, Row};

/// Streams are files, numbered by first appearance.
#[derive(Default)]
pub(super) struct Fio {
    version: Option<u8>,
    files: Names<String>,
    /// Version 2: latest of the waits, in nanoseconds.
    waited: u64,
}

impl Lines<Entry> for Fio {
    const EXPECTED: &'static str =
        "'fio version 2 iolog' or 'fio version 3 iolog', then [timestamp] file action [offset length]";

    fn line(&mut self, line: &str) -> Result<Option<Entry>, String> {
        let Some(version) = self.version else {
            self.version = match line.trim() {
                "fio version 2 iolog" => Some(2),
                "fio version 3 iolog" => Some(3),
                other => return Err(shown(other)),
            };
            return Ok(None);
        };
        let mut fields: Vec<&str> = line.split_whitespace().collect();
        if fields.is_empty() {
            return Ok(None);
        }
        let mut at = self.waited;
        if version == 3 {
            at = scaled(number(fields.remove(0), "time in microseconds")?, 1000, "time")?;
        }
        let file = get(&fields, 0, "file")?;
        let kind = match get(&fields, 1, "action")? {
            "add" | "open" | "close" => return Ok(None),
            "wait" => {
                let millis = number(get(&fields, 2, "time")?, "time in milliseconds")?;
                self.waited = self.waited.max(scaled(millis, 1_000_000, "time")?);
                return Ok(None);
            }
            "read" => Kind::Read,
            "write" => Kind::Write,
            "trim" => Kind::Discard,
            "sync" | "datasync" => Kind::Flush,
            "sync_file_range" => {
                return Ok(Some(Entry::Skipped(self.files.number(file.to_owned())?, "calls of sync_file_range")));
            }
            other => return Err(format!("{} is not an action", shown(other))),
        };
        let stream = self.files.number(file.to_owned())?;
        let (offset, bytes) = match kind {
            Kind::Flush => (0, 0),
            _ => (number(get(&fields, 2, "offset")?, "offset")?, number(get(&fields, 3, "length")?, "length")?),
        };
        Ok(Some(Row { at, stream, kind, offset, length: length(bytes)? }.into()))
    }
}
