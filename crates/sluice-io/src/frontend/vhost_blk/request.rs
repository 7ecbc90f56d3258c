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

/// A request with a valid frame: the address of its status byte, and its contents or the error status.
pub(crate) struct Parsed {
    pub(crate) status: *mut u8,
    pub(crate) request: Result<ParsedRequest, Status>,
}

/// Parses a request, and removes header and status from the chain. The rest is data.
pub(crate) fn parse(chain: &mut Chain, info: &VolumeInfo) -> Result<Parsed, Malformed> {
    let header: [u8; 16] = chain.take_front().ok_or(Malformed::Frame)?;
    let status = chain.take_last_byte().ok_or(Malformed::Frame)?;
    let kind = u32::from_le_bytes(header[..4].try_into().expect("four bytes"));
    let sector = u64::from_le_bytes(header[8..].try_into().expect("eight bytes"));
    let request = match kind {
        IN => transfer(Kind::Read, sector, &chain.writable, info),
        OUT if info.read_only => Err(Status::IoError),
        OUT => transfer(Kind::Write, sector, &chain.readable, info),
        FLUSH => Ok(ParsedRequest::Device { kind: Kind::Flush, offset: 0, length: 0, no_hole: false }),
        GET_ID if total(&chain.writable) < ID_LEN as u64 => Err(Status::IoError),
        GET_ID => Ok(ParsedRequest::Id),
        DISCARD if info.trim => range(Kind::Discard, chain, info),
        WRITE_ZEROES if info.write_zeroes => range(Kind::WriteZeroes, chain, info),
        _ => Err(Status::Unsupported),
    };
    Ok(Parsed { status, request })
}

fn transfer(kind: Kind, sector: u64, data: &[Segment], info: &VolumeInfo) -> Result<ParsedRequest, Status> {
    let length = total(data);
    if length == 0 || length > u64::from(info.block_maximum) {
        return Err(Status::IoError);
    }
    within(kind, sector, length, false, info)
}

/// Parses the only segment of a discard or zeroing: 5.2.6.2, struct virtio_blk_discard_write_zeroes.
fn range(kind: Kind, chain: &mut Chain, info: &VolumeInfo) -> Result<ParsedRequest, Status> {
    if total(&chain.readable) != 16 {
        return Err(Status::Unsupported);
    }
    let segment: [u8; 16] = chain.take_front().ok_or(Status::IoError)?;
    let sector = u64::from_le_bytes(segment[..8].try_into().expect("eight bytes"));
    let sectors = u32::from_le_bytes(segment[8..12].try_into().expect("four bytes"));
    let flags = u32::from_le_bytes(segment[12..].try_into().expect("four bytes"));
    let may_unmap = flags & 1 != 0;
    if flags & !1 != 0 || kind == Kind::Discard && may_unmap {
        return Err(Status::Unsupported);
    }
    within(kind, sector, u64::from(sectors) * SECTOR, kind == Kind::WriteZeroes && !may_unmap, info)
}

fn within(kind: Kind, sector: u64, length: u64, no_hole: bool, info: &VolumeInfo) -> Result<ParsedRequest, Status> {
    let block = u64::from(info.block_minimum);
    let offset = sector.checked_mul(SECTOR).ok_or(Status::IoError)?;
    let end = offset.checked_add(length).ok_or(Status::IoError)?;
    let fits = end <= info.size_bytes && offset.is_multiple_of(block) && length.is_multiple_of(block);
    match u32::try_from(length) {
        Ok(length) if fits && length > 0 => Ok(ParsedRequest::Device { kind, offset, length, no_hole }),
        _ => Err(Status::IoError),
    }
}
