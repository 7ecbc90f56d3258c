//! SYSTOR '17: `Timestamp,Response,IOType,LUN,Offset,Size`, seconds and bytes, with a header.

use super::field::{decimal, get, kind, length, number};
use super::{Lines, Row};

pub(super) struct Systor;

impl Lines for Systor {
    const EXPECTED: &'static str = "timestamp,response,R|W,LUN,offset,size (SYSTOR '17)";

    fn line(&mut self, line: &str) -> Result<Option<Row>, String> {
        if line.trim().is_empty() || line.starts_with("Timestamp,") {
            return Ok(None);
        }
        let fields: Vec<&str> = line.split(',').collect();
        let at = decimal(get(&fields, 0, "timestamp")?, 9, "time in seconds")?;
        let kind = kind(get(&fields, 2, "type")?)?;
        let stream = number(get(&fields, 3, "LUN")?, "LUN")?;
        let offset = number(get(&fields, 4, "offset")?, "offset in bytes")?;
        let bytes = number(get(&fields, 5, "size")?, "size in bytes")?;
        let stream = u32::try_from(stream).map_err(|_| format!("{stream} is not a LUN"))?;
        Ok(Some(Row { at, stream, kind, offset, length: length(bytes)? }))
    }
}
