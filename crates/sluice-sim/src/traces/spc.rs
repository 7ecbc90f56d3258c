//! SPC: `ASU,LBA,bytes,R|W,seconds[,…]`. Blocks of 512 bytes.

use super::field::{decimal, get, kind, length, number, scaled};
use super::{Lines, Row};

pub(super) struct Spc;

impl Lines for Spc {
    const EXPECTED: &'static str = "ASU,LBA,bytes,R|W,seconds (SPC)";

    fn line(&mut self, line: &str) -> Result<Option<Row>, String> {
        if line.trim().is_empty() {
            return Ok(None);
        }
        let fields: Vec<&str> = line.split(',').collect();
        let stream = number(get(&fields, 0, "ASU")?, "ASU")?;
        let block = number(get(&fields, 1, "LBA")?, "LBA")?;
        let bytes = number(get(&fields, 2, "size")?, "size in bytes")?;
        let kind = kind(get(&fields, 3, "operation")?)?;
        let at = decimal(get(&fields, 4, "time")?, 9, "time in seconds")?;
        let stream = u32::try_from(stream).map_err(|_| format!("{stream} is not an ASU"))?;
        Ok(Some(Row { at, stream, kind, offset: scaled(block, 512, "LBA")?, length: length(bytes)? }))
    }
}
