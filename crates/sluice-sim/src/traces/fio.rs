//! fio's I/O log. Version 2: `file action [offset length]`, where `wait` delays the following actions by `offset`
//! microseconds. Version 3: `timestamp file action [offset length]`, in microseconds since the start (as fio 3.33
//! writes it).

use sluice_sched::Kind;

use super::field::{get, length, number, scaled, shown};
use super::{Lines, Names, Row};

/// Streams are files, numbered by first appearance.
#[derive(Default)]
pub(super) struct Fio {
    version: Option<u8>,
    files: Names<String>,
    /// Sum of waits in version 2, in nanoseconds.
    waited: u64,
}

impl Lines for Fio {
    const EXPECTED: &'static str =
        "'fio version 2 iolog' or 'fio version 3 iolog', then [timestamp] file action [offset length]";

    fn line(&mut self, line: &str) -> Result<Option<Row>, String> {
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
                let micros = number(get(&fields, 2, "time")?, "time in microseconds")?;
                let nanos = scaled(micros, 1000, "time")?;
                self.waited = self.waited.checked_add(nanos).ok_or("a waiting time that is too large to count")?;
                return Ok(None);
            }
            "read" => Kind::Read,
            "write" => Kind::Write,
            "trim" => Kind::Discard,
            "sync" | "datasync" => Kind::Flush,
            other => return Err(format!("{} is not an action", shown(other))),
        };
        let stream = self.files.number(file.to_owned())?;
        let (offset, bytes) = match kind {
            Kind::Flush => (0, 0),
            _ => (number(get(&fields, 2, "offset")?, "offset")?, number(get(&fields, 3, "length")?, "length")?),
        };
        Ok(Some(Row { at, stream, kind, offset, length: length(bytes)? }))
    }
}
