//! Checks between a request header and the scheduler: whether a request is allowed, and its meaning.
//!
//! [`check`] is a pure function of the header, the volume and the negotiated options. It returns an [`Operation`] whose
//! range is aligned and within the volume, so that it needs no further checks, or a [`Refusal`] with the reply and the
//! number of payload bytes to skip.
//!
//! Rules, in the order in which they are applied:
//!
//! | request | reply |
//! |---|---|
//! | disconnect | always obeyed |
//! | write of more than 64 MiB, or more than twice what the client may send | fatal: close |
//! | unknown command, or one that the export does not offer | `EINVAL` |
//! | changing command on a read-only export | `EPERM` |
//! | flag that the command does not have, or that is not offered | `EINVAL` |
//! | flush with a range | `EINVAL` |
//! | length 0, offset or length not a multiple of the minimum block size | `EINVAL` |
//! | past the end (also if offset + length would wrap around) | `ENOSPC` for write and zeroing, otherwise `EINVAL` |
//! | payload above the maximum block size | `EOVERFLOW` for read, `EINVAL` for write |
//!
//! Example: on a 1 MiB export with 512-byte blocks, a write of 1024 bytes at 1047552 passes. At 1048064 it is refused
//! with `ENOSPC` and 1024 bytes to skip.
//!
//! The maximum block size limits payloads only: a trim or zeroing of 4 GiB is one request, as the protocol recommends,
//! and is split later. The flag `FUA` is accepted on every command if it is offered, as the protocol requires. It has
//! an effect only on operations with a field for it.

use super::handshake::Negotiated;
use super::wire::{Command, Errno, PAYLOAD_LEN_ASSUMED, PAYLOAD_LEN_MAX, RequestHeader, command_flag};
use crate::volume::VolumeInfo;

/// A request that may go to the scheduler. Offsets and lengths are in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Reply with `len` bytes of data.
    Read { offset: u64, len: u32 },
    /// `len` bytes follow the header.
    Write {
        offset: u64,
        len: u32,
        /// Reply only when the data is durable.
        fua: bool,
    },
    /// Make completed writes durable.
    Flush,
    /// The contents of the range are not needed any more.
    Trim {
        offset: u64,
        /// Up to 4 GiB.
        len: u32,
        /// Reply only when the operation is durable.
        fua: bool,
    },
    /// The range must read as zeroes.
    WriteZeroes {
        offset: u64,
        /// Up to 4 GiB.
        len: u32,
        /// Reply only when the operation is durable.
        fua: bool,
        /// The range must stay allocated.
        no_hole: bool,
        /// Reply `ENOTSUP`, quickly and without a change, if this would be as slow as writing.
        fast: bool,
    },
    /// Reply which parts of the range are allocated.
    BlockStatus {
        offset: u64,
        /// Up to 4 GiB.
        len: u32,
        /// Reply with one extent that does not exceed the range; otherwise with one or more, of which the last may
        /// exceed it.
        req_one: bool,
    },
    /// Complete the requests in flight and close; there is no reply.
    Disconnect,
}

impl Operation {
    /// Returns the number of bytes of data in the request or its reply.
    pub fn data_len(self) -> u32 {
        match self {
            Operation::Read { len, .. } | Operation::Write { len, .. } => len,
            _ => 0,
        }
    }
}

/// A request that gets an error reply without reaching the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    /// Error of the reply.
    pub errno: Errno,
    /// Message for the reply and the log.
    pub message: &'static str,
    /// Payload bytes after the header that must be skipped before the next header.
    pub payload_to_skip: u32,
    /// Whether the connection is closed instead; then nothing needs to be skipped.
    pub fatal: bool,
}

/// Checks a request.
///
/// # Errors
/// [`Refusal`]: send the error, or close the connection if it is fatal.
#[inline]
pub fn check(header: &RequestHeader, info: &VolumeInfo, negotiated: &Negotiated) -> Result<Operation, Refusal> {
    let command = header.kind();
    let refusal = |(errno, message)| Refusal {
        errno,
        message,
        payload_to_skip: if command == Command::Write { header.length } else { 0 },
        fatal: false,
    };
    if command == Command::Disconnect {
        return Ok(Operation::Disconnect);
    }
    if command == Command::Write && header.length > skippable_len_max(info, negotiated) {
        let (errno, message) = (Errno::Einval, "The write is far longer than the maximum block size");
        return Err(Refusal { errno, message, payload_to_skip: 0, fatal: true });
    }
    check_offered(command, info, negotiated).map_err(refusal)?;
    check_flags(header, info, negotiated).map_err(refusal)?;
    check_range(header, info).map_err(refusal)?;
    Ok(operation(header))
}

type Reason = (Errno, &'static str);

/// Returns the maximum payload of a refused write that is skipped to keep the connection, in bytes. A client that does
/// not know the block sizes may send what the protocol allows it to assume.
fn skippable_len_max(info: &VolumeInfo, negotiated: &Negotiated) -> u32 {
    let twice = info.block_maximum.saturating_mul(2);
    let known = if negotiated.block_size_requested { twice } else { twice.max(PAYLOAD_LEN_ASSUMED) };
    known.min(PAYLOAD_LEN_MAX)
}

fn check_offered(command: Command, info: &VolumeInfo, negotiated: &Negotiated) -> Result<(), Reason> {
    let (offered, changes) = match command {
        Command::Read | Command::Disconnect => (true, false),
        Command::Write => (true, true),
        Command::Flush => (info.flush, false),
        Command::Trim => (info.trim, true),
        Command::WriteZeroes => (info.write_zeroes, true),
        Command::BlockStatus => (negotiated.base_allocation.is_some(), false),
        Command::Cache | Command::Other(_) => (false, false),
    };
    if changes && info.read_only {
        return Err((Errno::Eperm, "The export is read-only"));
    }
    if !offered {
        return Err((Errno::Einval, "The command is not offered on this export"));
    }
    Ok(())
}

fn check_flags(header: &RequestHeader, info: &VolumeInfo, negotiated: &Negotiated) -> Result<(), Reason> {
    let flag = |offered: bool, bit: u16| if offered { bit } else { 0 };
    let own = match header.kind() {
        Command::Read => flag(negotiated.structured_replies, command_flag::DF),
        Command::WriteZeroes => command_flag::NO_HOLE | flag(info.fast_zero, command_flag::FAST_ZERO),
        Command::BlockStatus => command_flag::REQ_ONE,
        _ => 0,
    };
    if header.flags & !(own | flag(info.fua, command_flag::FUA)) != 0 {
        return Err((Errno::Einval, "A flag of the request is not offered for its command"));
    }
    Ok(())
}

fn check_range(header: &RequestHeader, info: &VolumeInfo) -> Result<(), Reason> {
    let (command, offset, len) = (header.kind(), header.offset, header.length);
    if command == Command::Flush {
        let whole = offset == 0 && len == 0;
        return if whole { Ok(()) } else { Err((Errno::Einval, "A flush takes no offset and no length")) };
    }
    if len == 0 {
        return Err((Errno::Einval, "The length is 0"));
    }
    // The minimum is a power of two, so a bit mask finds values that are not a multiple of it.
    let misaligned = (offset | u64::from(len)) & u64::from(info.block_minimum.wrapping_sub(1));
    if misaligned != 0 {
        return Err((Errno::Einval, "The offset or the length is not a multiple of the minimum block size"));
    }
    if offset.checked_add(u64::from(len)).is_none_or(|end| end > info.size_bytes) {
        let grows = matches!(command, Command::Write | Command::WriteZeroes);
        let errno = if grows { Errno::Enospc } else { Errno::Einval };
        return Err((errno, "The range is past the end of the export"));
    }
    match command {
        Command::Read if len > info.block_maximum => {
            Err((Errno::Eoverflow, "The read is longer than the maximum block size"))
        }
        Command::Write if len > info.block_maximum => {
            Err((Errno::Einval, "The write is longer than the maximum block size"))
        }
        _ => Ok(()),
    }
}

/// Returns the operation of a request that passed all checks.
fn operation(header: &RequestHeader) -> Operation {
    let (offset, len) = (header.offset, header.length);
    let has = |bit: u16| header.flags & bit != 0;
    let fua = has(command_flag::FUA);
    match header.kind() {
        Command::Read => Operation::Read { offset, len },
        Command::Write => Operation::Write { offset, len, fua },
        Command::Flush => Operation::Flush,
        Command::Trim => Operation::Trim { offset, len, fua },
        Command::WriteZeroes => {
            let (no_hole, fast) = (has(command_flag::NO_HOLE), has(command_flag::FAST_ZERO));
            Operation::WriteZeroes { offset, len, fua, no_hole, fast }
        }
        Command::BlockStatus => Operation::BlockStatus { offset, len, req_one: has(command_flag::REQ_ONE) },
        Command::Disconnect => Operation::Disconnect,
        Command::Cache | Command::Other(_) => unreachable!("check_offered refuses these"),
    }
}

#[cfg(test)]
mod tests;
