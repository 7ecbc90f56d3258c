//! Alibaba's block traces: `device_id,opcode,offset,length,timestamp`; bytes and microseconds.

use super::field::{get, kind, length, number, scaled};
use super::{Lines, Row};

pub(super) struct Alibaba;

impl Lines for Alibaba {
    const EXPECTED: &'static str = "device,R|W,offset,length,timestamp (Alibaba)";

    fn line(&mut self, line: &str) -> Result<Option<Row>, String> {
        if line.trim().is_empty() || line.starts_with("device_id,") {
            return Ok(None);
        }
        let fields: Vec<&str> = line.split(',').collect();
        let stream = number(get(&fields, 0, "device")?, "device number")?;
        let kind = kind(get(&fields, 1, "opcode")?)?;
        let offset = number(get(&fields, 2, "offset")?, "offset in bytes")?;
        let bytes = number(get(&fields, 3, "length")?, "length in bytes")?;
        let micros = number(get(&fields, 4, "timestamp")?, "time in microseconds")?;
        let stream = u32::try_from(stream).map_err(|_| format!("{stream} is not a device number"))?;
        Ok(Some(Row { at: scaled(micros, 1000, "time")?, stream, kind, offset, length: length(bytes)? }))
    }
}
