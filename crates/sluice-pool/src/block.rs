//! What hosts write where they meet: a header, and blocks of 4 KiB that each have one writer.
//!
//! A block is a line with its kind, version, checksum and length, then JSON, then zeroes. So a person reads it with `head`, any program
//! with a JSON library, and one that was written in part is recognized.
//!
//! ```text
//!     0         1 to 64            65 to 192
//!     header    usage of host n    two claims of each host, written alternately
//! ```
//!
//! A place has blocks for 64 hosts however many its pool has, so that hosts can be added.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::dues::Curve;

/// Size of a block in bytes.
pub const SIZE: usize = 4096;
/// The largest number of hosts.
pub const HOSTS_MAX: u8 = 64;

const MAGIC: &str = "sluicegate-pool";
const VERSION: u32 = 1;

/// Number of a host in its pool, from 1.
pub type Host = u8;

/// A record that stands in a block.
pub trait Record: Serialize + DeserializeOwned {
    /// Its name in the block.
    const KIND: &str;
}

/// The first block, which `sluice pool create` writes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// A random number, which every other block repeats.
    pub pool: u64,
    /// Hosts have the numbers 1 to this one.
    pub hosts: u8,
    /// Capacity of the pool in thousandths of a normalised request per second.
    pub milli_iops: u64,
    /// Size in bytes of a request that counts as one.
    pub request_bytes: u64,
}

/// What a host tells the others in each period.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    pub pool: u64,
    pub host: Host,
    /// A random number of this run of the daemon.
    pub epoch: u64,
    /// Number of the period.
    pub sequence: u64,
    /// How much may be in flight in the whole pool, as this host has computed it, in raw cost.
    pub window: u64,
    /// Whether requests waited for room in its window.
    pub held_back: bool,
    /// `window` as it was in the period. What completed belongs to that one: with the present one, the windows of a pool swing, as a host
    /// learns of others' times a period or two later.
    pub in_force: u64,
    /// Raw cost that completed in the period, per second.
    pub cost: u64,
    /// Mean time of it at the device in nanoseconds, weighted by cost; 0 if nothing completed.
    pub latency: u64,
    pub dues: Curve,
}

/// What the VMs of a host have reserved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    pub pool: u64,
    pub host: Host,
    pub epoch: u64,
    /// Counts the claims of this host; of its two, the one with the larger number holds.
    pub sequence: u64,
    /// Raw cost per second that is reserved.
    pub reserved: u64,
    /// What was reserved before it, which holds if it was only tried.
    pub before: u64,
    /// Whether it is only tried: a claim that does not fit is withdrawn.
    pub tried: bool,
    /// Name of the host, for people.
    pub name: String,
    /// Number of VMs that reserve.
    pub vms: u32,
}

impl Header {
    /// Whether it stands in these blocks of a place.
    #[must_use]
    pub fn is_in(&self, blocks: &[u8]) -> bool {
        blocks.get(..SIZE).is_some_and(|first| decode::<Header>(first).as_ref() == Ok(self))
    }
}

impl Claim {
    /// Raw cost per second that was confirmed.
    #[must_use]
    pub fn confirmed(&self) -> u64 {
        if self.tried { self.before } else { self.reserved }
    }
}

impl Record for Header {
    const KIND: &str = "header";
}

impl Record for Usage {
    const KIND: &str = "usage";
}

impl Record for Claim {
    const KIND: &str = "claim";
}

/// Why a block says nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// It was never written.
    #[error("is empty")]
    Empty,
    /// It is not of this product, of another kind or of another pool.
    #[error("is not a block of this pool")]
    Foreign,
    /// Another version of this product wrote it.
    #[error("has version {0}, and this program knows {VERSION}")]
    Version(u32),
    /// A part of it is missing.
    #[error("was written in part")]
    Torn,
}

/// Returns the block of a record.
///
/// # Panics
/// If the record is longer than a block: none of these is.
#[must_use]
pub fn encode<R: Record>(record: &R) -> [u8; SIZE] {
    let text = serde_json::to_string(record).expect("numbers and a name are JSON");
    let (sum, length) = (crc32fast::hash(text.as_bytes()), text.len());
    let whole = format!("{MAGIC} {} {VERSION} {sum:08x} {length}\n{text}\n", R::KIND);
    let mut block = [0; SIZE];
    block[..whole.len()].copy_from_slice(whole.as_bytes());
    block
}

/// Reads a block.
///
/// # Errors
/// The reason for which it says nothing.
pub fn decode<R: Record>(block: &[u8]) -> Result<R, Unreadable> {
    if block.iter().all(|byte| *byte == 0) {
        return Err(Unreadable::Empty);
    }
    let line_end = block.iter().position(|byte| *byte == b'\n').ok_or(Unreadable::Foreign)?;
    let line = std::str::from_utf8(&block[..line_end]).map_err(|_| Unreadable::Foreign)?;
    let mut words = line.split(' ');
    if words.next() != Some(MAGIC) || words.next() != Some(R::KIND) {
        return Err(Unreadable::Foreign);
    }
    let version = words.next().and_then(|word| word.parse().ok()).ok_or(Unreadable::Torn)?;
    if version != VERSION {
        return Err(Unreadable::Version(version));
    }
    let sum = words.next().and_then(|word| u32::from_str_radix(word, 16).ok()).ok_or(Unreadable::Torn)?;
    let length: usize = words.next().and_then(|word| word.parse().ok()).ok_or(Unreadable::Torn)?;
    let text = block[line_end + 1..].get(..length).ok_or(Unreadable::Torn)?;
    if crc32fast::hash(text) != sum {
        return Err(Unreadable::Torn);
    }
    serde_json::from_slice(text).map_err(|_| Unreadable::Foreign)
}

/// Number of blocks of a place.
pub const BLOCKS: usize = 1 + 3 * HOSTS_MAX as usize;

/// Index of the usage block of a host.
#[must_use]
pub const fn usage_of(host: Host) -> usize {
    host as usize
}

/// Index of the first of the two claims of a host.
#[must_use]
pub const fn claims_of(host: Host) -> usize {
    1 + HOSTS_MAX as usize + 2 * (host as usize - 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn usage(number: u64) -> Usage {
        let dues = Curve::from_steps(core::array::from_fn(|step| number.saturating_mul(step as u64)));
        let held_back = number.is_multiple_of(2);
        let (pool, epoch) = (u64::MAX, number ^ 77);
        Usage {
            pool,
            host: 64,
            epoch,
            sequence: number,
            window: number,
            held_back,
            in_force: number,
            cost: number,
            latency: number,
            dues,
        }
    }

    proptest! {
        #[test]
        fn a_block_is_read_as_it_was_written(number in any::<u64>()) {
            prop_assert_eq!(decode::<Usage>(&encode(&usage(number))), Ok(usage(number)));
        }

        #[test]
        fn a_block_that_was_written_in_part_is_not_read(old in any::<u64>(), new in any::<u64>(), sectors in 1_usize..8) {
            let mut torn = encode(&usage(old));
            torn[..512 * sectors].copy_from_slice(&encode(&usage(new))[..512 * sectors]);
            // A record that fits into the first sectors is whole.
            let read = decode::<Usage>(&torn);
            prop_assert!([Ok(usage(old)), Ok(usage(new)), Err(Unreadable::Torn)].contains(&read), "{:?}", read);
        }

        #[test]
        fn garbage_is_not_read(bytes in prop::collection::vec(any::<u8>(), 0..SIZE)) {
            prop_assert!(decode::<Usage>(&bytes).is_err());
        }
    }

    #[test]
    fn the_reason_is_told() {
        assert_eq!(decode::<Header>(&[0; SIZE]), Err(Unreadable::Empty));
        assert_eq!(decode::<Header>(&encode(&usage(1))), Err(Unreadable::Foreign));
        let newer = String::from_utf8(encode(&usage(1)).to_vec()).unwrap().replace(" usage 1 ", " usage 2 ");
        assert_eq!(decode::<Usage>(newer.as_bytes()), Err(Unreadable::Version(2)));
    }

    #[test]
    fn no_two_blocks_overlap() {
        let mut used = vec![0];
        for host in 1..=HOSTS_MAX {
            let claims = claims_of(host);
            used.extend([usage_of(host), claims, claims + 1]);
        }
        used.sort_unstable();
        assert_eq!(used, (0..BLOCKS).collect::<Vec<_>>());
    }
}
