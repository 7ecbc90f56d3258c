//! oracleGeneral, which cache simulators read: records of 24 bytes, the lowest byte of a number first.
//!
//! `u32 seconds, u64 id, u32 bytes, i64 next access`, without padding, as libCacheSim documents it. It does not say what was
//! done with an object, nor where that lies: all is read, and the caller says how many bytes lie from one id to the next.

use sluice_sched::Kind;

use super::Row;
use super::field::{length, scaled};
use super::records::{Record, number};

pub(super) struct OracleGeneral(pub(super) u32);

impl Record for OracleGeneral {
    const EXPECTED: &'static str = "records of 24 bytes: seconds, id, size, next access (oracleGeneral)";

    fn size(&self) -> usize {
        24
    }

    fn record(&mut self, bytes: &[u8]) -> Result<Option<Row>, String> {
        let at = number(bytes, 0, 4) * 1_000_000_000;
        let offset = scaled(number(bytes, 4, 8), u64::from(self.0), "id")?;
        Ok(Some(Row { at, stream: 0, kind: Kind::Read, offset, length: length(number(bytes, 12, 4))? }))
    }
}
