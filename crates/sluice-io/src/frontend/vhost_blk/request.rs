//! Requests of a virtio block device: VIRTIO 1.3, 5.2.6. The driver may divide header, data and status into descriptors
//! in any way (2.7.4).

use sluice_sched::Kind;

use crate::virtio::chain::{Chain, Malformed};
use crate::virtio::segment::{Segment, total};
use crate::volume::VolumeInfo;

/// Length of a sector in bytes, whatever the block size.
const SECTOR: u64 = 512;
/// Length of the reply to GET_ID in bytes.
pub(crate) const ID_LEN: usize = 20;

const IN: u32 = 0;
const OUT: u32 = 1;
const FLUSH: u32 = 4;
const GET_ID: u32 = 8;
const DISCARD: u32 = 11;
const WRITE_ZEROES: u32 = 13;

/// Status byte of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Status {
    Ok = 0,
    IoError = 1,
    Unsupported = 2,
}

/// A valid request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ParsedRequest {
    /// For the device.
    Device {
        kind: Kind,
        /// Offset from the start of the volume, in bytes.
        offset: u64,
        /// Length in bytes.
        length: u32,
        /// Whether zeroing must keep the range allocated.
        no_hole: bool,
    },
    /// The serial number of the volume.
    Id,
}

/// A request that is not carried out: its status, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) status: Status,
    pub(crate) reason: &'static str,
}

fn invalid(reason: &'static str) -> Refusal {
    Refusal { status: Status::IoError, reason }
}

fn unsupported(reason: &'static str) -> Refusal {
    Refusal { status: Status::Unsupported, reason }
}

/// A request with a valid frame: the address of its status byte, and its contents or why it is refused.
pub(crate) struct Parsed {
    pub(crate) status: *mut u8,
    pub(crate) request: Result<ParsedRequest, Refusal>,
}

/// Parses a request, and removes header and status from the chain. The rest is data.
pub(crate) fn parse(chain: &mut Chain, info: &VolumeInfo) -> Result<Parsed, Malformed> {
    let header: [u8; 16] = chain.take_front().ok_or(Malformed::Frame)?;
    let status = chain.take_last_byte().ok_or(Malformed::Frame)?;
    let kind = u32::from_le_bytes(header[..4].try_into().expect("four bytes"));
    let sector = u64::from_le_bytes(header[8..].try_into().expect("eight bytes"));
    let request = match kind {
        IN => transfer(Kind::Read, sector, &chain.writable, info),
        OUT if info.read_only => Err(invalid("a write to a read-only volume")),
        OUT => transfer(Kind::Write, sector, &chain.readable, info),
        FLUSH => Ok(ParsedRequest::Device { kind: Kind::Flush, offset: 0, length: 0, no_hole: false }),
        GET_ID if total(&chain.writable) < ID_LEN as u64 => {
            Err(invalid("a request for the name with less than 20 bytes for it"))
        }
        GET_ID => Ok(ParsedRequest::Id),
        DISCARD if info.trim => range(Kind::Discard, chain, info),
        WRITE_ZEROES if info.write_zeroes => range(Kind::WriteZeroes, chain, info),
        _ => Err(unsupported("a request of a type that the volume does not offer")),
    };
    Ok(Parsed { status, request })
}

/// Parses a read or write. Its length has no maximum below that of a chain: a driver need not accept the features that state one.
fn transfer(kind: Kind, sector: u64, data: &[Segment], info: &VolumeInfo) -> Result<ParsedRequest, Refusal> {
    within(kind, sector, total(data), false, info)
}

/// Parses the only segment of a discard or zeroing: 5.2.6.2, struct virtio_blk_discard_write_zeroes.
fn range(kind: Kind, chain: &mut Chain, info: &VolumeInfo) -> Result<ParsedRequest, Refusal> {
    let segment: [u8; 16] = match total(&chain.readable) {
        16 => chain.take_front().ok_or(invalid("a discard or zeroing without a range"))?,
        _ => return Err(unsupported("a discard or zeroing of other than one range")),
    };
    let sector = u64::from_le_bytes(segment[..8].try_into().expect("eight bytes"));
    let sectors = u32::from_le_bytes(segment[8..12].try_into().expect("four bytes"));
    let flags = u32::from_le_bytes(segment[12..].try_into().expect("four bytes"));
    let may_unmap = flags & 1 != 0;
    if flags & !1 != 0 || kind == Kind::Discard && may_unmap {
        return Err(unsupported("a discard or zeroing with an unknown flag"));
    }
    within(kind, sector, u64::from(sectors) * SECTOR, kind == Kind::WriteZeroes && !may_unmap, info)
}

fn within(kind: Kind, sector: u64, length: u64, no_hole: bool, info: &VolumeInfo) -> Result<ParsedRequest, Refusal> {
    let block = u64::from(info.block_minimum);
    let offset = sector.saturating_mul(SECTOR);
    if length == 0 {
        return Err(invalid("a request of length 0"));
    }
    if offset.saturating_add(length) > info.size_bytes {
        return Err(invalid("a range past the end of the volume"));
    }
    if !offset.is_multiple_of(block) || !length.is_multiple_of(block) {
        return Err(invalid("a range that is not a multiple of the block size"));
    }
    let length = u32::try_from(length).map_err(|_| invalid("a request of 4 GiB or more"))?;
    Ok(ParsedRequest::Device { kind, offset, length, no_hole })
}
