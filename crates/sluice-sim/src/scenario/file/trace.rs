//! `[trace.NAME]`: the file, and its contents.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::scenario::trace::{FORMATS, Scan, Trace};
use crate::traces::Format;
use crate::workloads::ReplayTiming;

use sluice_config::reader::Reader;

/// Contents of each scanned file, or its error. A sweep uses the same files often.
#[derive(Debug, Default)]
pub(super) struct Scans(RefCell<BTreeMap<Looked, Result<Scan, String>>>);

/// File, format and stream.
type Looked = (PathBuf, String, Option<u32>);

impl Scans {
    fn of(&self, file: &Path, word: &str, format: Format, stream: Option<u32>) -> Result<Scan, String> {
        let read = || Scan::read(file, format, stream).map_err(|error| text(&error));
        let key = (file.to_owned(), word.to_owned(), stream);
        self.0.borrow_mut().entry(key).or_insert_with(read).clone()
    }
}

/// Text of an error with its cause.
fn text(error: &dyn std::error::Error) -> String {
    // These errors contain their causes.
    error.to_string()
}

/// Parses a trace; `None` if it has an error.
pub(super) fn read(reader: &Reader<'_>, folder: &Path, scans: &Scans) -> Option<Trace> {
    for key in ["file", "format"].into_iter().filter(|key| reader.node(key).is_none()) {
        reader.missing(key, "");
    }
    let (stream, wrap) = (reader.small("stream"), reader.bool("wrap").unwrap_or(false));
    let timing = read_timing(reader);
    let (file, word) = (folder.join(reader.text("file")?), reader.word("format")?);
    let (_, format) = FORMATS.iter().find(|(name, _)| *name == word)?;
    match scans.of(&file, word, *format, stream) {
        Ok(scan) if scan.rows > 0 => {
            if let Some(skipped) = scan.not_replayed() {
                let message = format!("{}: file: {skipped}", reader.whose);
                reader.report.warn(reader.at("file"), message, None);
            }
            Some(Trace { file, format: *format, timing: timing?, stream, wrap, scan })
        }
        Ok(scan) => {
            let hint = "use another file, or another stream of it";
            let skipped = scan.not_replayed().map_or(String::new(), |skipped| format!("; {skipped}"));
            reader.refuse("file", format!("it has no requests{skipped}"), hint);
            None
        }
        Err(error) => {
            reader.refuse("file", format!("{}: {error}", file.display()), "correct file or format");
            None
        }
    }
}

fn read_timing(reader: &Reader<'_>) -> Option<ReplayTiming> {
    let (scale, outstanding) = (reader.decimal("scale"), reader.small("outstanding"));
    let closed = reader.word("pace") == Some("closed");
    let (other, needs) = if closed { ("scale", "open") } else { ("outstanding", "closed") };
    if reader.node(other).is_some() {
        reader.refuse(
            other,
            format!("it is only for pace \"{needs}\""),
            format!("remove it, or write pace = \"{needs}\""),
        );
        return None;
    }
    Some(if closed { ReplayTiming::Closed(outstanding.unwrap_or(1)) } else { ReplayTiming::Open(scale.unwrap_or(1.0)) })
}
