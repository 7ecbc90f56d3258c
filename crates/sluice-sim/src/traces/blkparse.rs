//! Output of blkparse in its default format: `maj,min cpu sequence seconds pid action RWBS sector + sectors [process]`.
//! Only rows of action Q (queued) are requests; the summary at the end is skipped. A request without sectors has no
//! `sector + sectors`: `FWS [process]` is an empty flush.

use sluice_sched::Kind;

use super::field::{decimal, get, length, number, scaled, shown};
use super::queued::{PASSTHROUGH, Queued, Rest, UNKNOWN, WITHOUT_DATA, ZONE};
use super::{Lines, Names};

/// Streams are devices, numbered by first appearance.
#[derive(Default)]
pub(super) struct Blkparse {
    devices: Names<String>,
}

/// Reads the letters of a request: whether it flushes first, and its kind. The letters after that (`S`, `M`, and `F` for a
/// write that is durable when it completes) change nothing here.
fn kind(rwbs: &str) -> Result<(bool, Result<Kind, &'static str>), String> {
    if !rwbs.bytes().all(|letter| letter.is_ascii_uppercase()) {
        return Err(format!("{} is not the kind of a request", shown(rwbs)));
    }
    let after = rwbs.trim_start_matches('F');
    let kind = match after.bytes().next() {
        Some(b'R') => Ok(Kind::Read),
        Some(b'W') => Ok(Kind::Write),
        Some(b'D') => Ok(Kind::Discard),
        Some(b'Z') => Err(ZONE),
        _ => Err(UNKNOWN),
    };
    Ok((after.len() < rwbs.len(), kind))
}

/// Whether these are the fields of an event: lines of the summary do not start with a device.
fn is_event(fields: &[&str]) -> bool {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    fields.first().and_then(|first| first.split_once(',')).is_some_and(|(major, minor)| digits(major) && digits(minor))
}

impl Lines<Queued> for Blkparse {
    const EXPECTED: &'static str = "maj,min cpu sequence seconds pid action RWBS sector + sectors [process] (blkparse)";

    fn line(&mut self, line: &str) -> Result<Option<Queued>, String> {
        let fields: Vec<&str> = line.split_whitespace().collect();
        if !is_event(&fields) || get(&fields, 5, "action")? != "Q" {
            return Ok(None);
        }
        let at = decimal(fields[3], 9, "time in seconds")?;
        let (flushes, kind) = kind(get(&fields, 6, "RWBS")?)?;
        let stream = self.devices.number(fields[0].to_owned())?;
        let rest = match (kind, fields.get(8) == Some(&"+")) {
            (Ok(kind), true) => {
                let sector = number(get(&fields, 7, "sector")?, "sector")?;
                let sectors = number(get(&fields, 9, "size")?, "size in sectors")?;
                Rest::Data(kind, scaled(sector, 512, "sector")?, length(scaled(sectors, 512, "size")?)?)
            }
            (Err(what @ ZONE), _) => Rest::Skipped(what),
            (_, false) if flushes => Rest::Nothing,
            // The bytes of a command, and perhaps the command, are in front of the process.
            (_, false) if fields.get(7).is_some_and(|next| !next.starts_with('[')) => Rest::Skipped(PASSTHROUGH),
            (Ok(_), false) => Rest::Skipped(WITHOUT_DATA),
            (Err(what), _) => Rest::Skipped(what),
        };
        Ok(Some(Queued { at, stream, flushes, rest }))
    }
}
