//! Encoders of replies, and the decoder of block status extents.

use super::constants::{
    CHUNK_HEADER_LEN, EXTENT_LEN, PAYLOAD_LEN_MAX, READ_DATA_CHUNK_LEN, SIMPLE_REPLY_LEN, SIMPLE_REPLY_MAGIC,
    STRING_LEN_MAX, chunk,
};
use super::{ChunkHeader, Errno, u32_at};

/// An extent of a block status reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Length in bytes, from the end of the previous extent.
    pub length: u32,
    /// Bits of [`super::allocation`].
    pub flags: u32,
}

/// Returns a simple reply. The data of a successful read follows it.
#[inline]
pub fn simple_reply(cookie: u64, result: Result<(), Errno>) -> [u8; SIMPLE_REPLY_LEN] {
    let errno = result.map_or_else(Errno::to_wire, |()| 0);
    let mut bytes = [0; SIMPLE_REPLY_LEN];
    bytes[0..4].copy_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
    bytes[4..8].copy_from_slice(&errno.to_be_bytes());
    bytes[8..16].copy_from_slice(&cookie.to_be_bytes());
    bytes
}

/// Returns the structured reply of a successful read without its data: `data_len_bytes` bytes must follow.
///
/// # Panics
/// If `data_len_bytes` exceeds [`PAYLOAD_LEN_MAX`], which `transmission::check` does not allow.
#[inline]
pub fn read_data_chunk(cookie: u64, offset: u64, data_len_bytes: u32) -> [u8; READ_DATA_CHUNK_LEN] {
    assert!(data_len_bytes <= PAYLOAD_LEN_MAX, "a checked read is not longer than that");
    let header = ChunkHeader { flags: chunk::DONE, kind: chunk::OFFSET_DATA, cookie, length: 8 + data_len_bytes };
    let mut bytes = [0; READ_DATA_CHUNK_LEN];
    bytes[..CHUNK_HEADER_LEN].copy_from_slice(&header.encode());
    bytes[CHUNK_HEADER_LEN..].copy_from_slice(&offset.to_be_bytes());
    bytes
}

/// Returns the structured reply of a read that found only zeroes. No data follows.
#[inline]
pub fn offset_hole_chunk(cookie: u64, offset: u64, len_bytes: u32) -> [u8; CHUNK_HEADER_LEN + 12] {
    let header = ChunkHeader { flags: chunk::DONE, kind: chunk::OFFSET_HOLE, cookie, length: 12 };
    let mut bytes = [0; CHUNK_HEADER_LEN + 12];
    bytes[..20].copy_from_slice(&header.encode());
    bytes[20..28].copy_from_slice(&offset.to_be_bytes());
    bytes[28..].copy_from_slice(&len_bytes.to_be_bytes());
    bytes
}

/// Returns the structured reply of a success without data.
#[inline]
pub fn none_chunk(cookie: u64) -> [u8; CHUNK_HEADER_LEN] {
    ChunkHeader { flags: chunk::DONE, kind: chunk::NONE, cookie, length: 0 }.encode()
}

/// Appends the structured reply of a failure. A message longer than [`STRING_LEN_MAX`] bytes is cut at a character
/// boundary.
pub fn error_chunk(out: &mut Vec<u8>, cookie: u64, errno: Errno, message: &str) {
    let message = &message[..message.floor_char_boundary(STRING_LEN_MAX)];
    let length = 6 + message.len() as u32;
    out.extend_from_slice(&ChunkHeader { flags: chunk::DONE, kind: chunk::ERROR, cookie, length }.encode());
    out.extend_from_slice(&errno.to_wire().to_be_bytes());
    out.extend_from_slice(&(message.len() as u16).to_be_bytes());
    out.extend_from_slice(message.as_bytes());
}

/// Appends an error reply in the negotiated form. A simple reply has no room for the message.
pub fn error_reply(out: &mut Vec<u8>, structured_replies: bool, cookie: u64, errno: Errno, message: &str) {
    if structured_replies {
        error_chunk(out, cookie, errno, message);
    } else {
        out.extend_from_slice(&simple_reply(cookie, Err(errno)));
    }
}

/// Appends the structured reply of a block status request, for one context.
///
/// # Panics
/// If there are no extents (the protocol requires one), or more than fit into [`PAYLOAD_LEN_MAX`] bytes.
pub fn block_status_chunk(
    out: &mut Vec<u8>,
    cookie: u64,
    context_id: u32,
    extents: impl ExactSizeIterator<Item = Extent>,
) {
    let payload_len_max = PAYLOAD_LEN_MAX as usize;
    assert!((1..payload_len_max / EXTENT_LEN).contains(&extents.len()), "the caller bounds the extents");
    let length = 4 + (extents.len() * EXTENT_LEN) as u32;
    out.extend_from_slice(&ChunkHeader { flags: chunk::DONE, kind: chunk::BLOCK_STATUS, cookie, length }.encode());
    out.extend_from_slice(&context_id.to_be_bytes());
    for extent in extents {
        out.extend_from_slice(&extent.length.to_be_bytes());
        out.extend_from_slice(&extent.flags.to_be_bytes());
    }
}

/// Returns the extents of a block status chunk (its payload after the context id). A remainder of less than
/// [`EXTENT_LEN`] bytes is ignored.
pub fn extents(payload: &[u8]) -> impl Iterator<Item = Extent> + '_ {
    let (whole, _rest) = payload.as_chunks::<EXTENT_LEN>();
    whole.iter().map(|bytes| Extent { length: u32_at(bytes, 0), flags: u32_at(bytes, 4) })
}
