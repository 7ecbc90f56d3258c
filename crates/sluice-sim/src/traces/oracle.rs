//! oracleGeneral, a format of cache simulators: little-endian records of 24 bytes.
//!
//! `u32 seconds, u64 id, u32 bytes, i64 next access`, without padding, as libCacheSim documents it. Operations and
//! offsets are not recorded: all requests are reads, and the caller states the number of bytes per id.

use sluice_sched::Kind;

use super::field::{length, scaled};
use super::records::{Record, number};
use super::{Entry, Row};

pub(super) struct OracleGeneral(pub(super) u32);

impl Record for OracleGeneral {
    const EXPECTED: &'static str = "records of 24 bytes: seconds, id, size, next access (oracleGeneral)";

    fn size(&self) -> usize {
        24
    }

    fn record(&mut self, bytes: &[u8]) -> Result<Option<Entry>, String> {
        let at = number(bytes, 0, 4) * 1_000_000_000;
        let offset = scaled(number(bytes, 4, 8), u64::from(self.0), "id")?;
        let length = length(number(bytes, 12, 4))?;
        Ok(Some(Row { at, stream: 0, kind: Kind::Read, offset, length }.into()))
    }
}
