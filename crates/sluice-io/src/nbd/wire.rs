//! Bytes on the wire: the numbers of the NBD protocol, the request header, and encoders for replies.
//!
//! Everything here is a pure function from bytes to values or back, so that the device loop, the client, the tests and
//! the fuzzers interpret the protocol in the same way. All integers are big-endian. Names are those of the protocol
//! document.
//!
//! Replies have two forms. A *simple* reply is 16 bytes, followed by the data of a read. A *structured* reply is one or
//! more chunks of 20 bytes plus payload, of which the last has [`chunk::DONE`]. Once structured replies are negotiated,
//! reads and block status use them. Other commands may use either form, and we use the shorter simple one.
//!
//! Example: a successful structured read of 4096 bytes at offset 8192 is 28 bytes from [`read_data_chunk`] (20 header,
//! 8 offset; its length field is 4104), followed by the data.

mod constants;
mod replies;

pub use constants::*;
pub use replies::*;

/// Why a header cannot be parsed. The stream is out of sync, so the connection must be closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The first four bytes are not the expected magic.
    #[error("The peer sent magic {got:#010x} instead of {expected:#010x}")]
    BadMagic {
        /// The expected magic.
        expected: u32,
        /// The received magic.
        got: u32,
    },
}

/// Error values of the protocol. They equal Linux' errno values of the same name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Errno {
    /// Not permitted (read-only export).
    Eperm = 1,
    /// Input/output error.
    Eio = 5,
    /// Out of memory.
    Enomem = 12,
    /// Invalid argument.
    Einval = 22,
    /// No space left, or a write past the end.
    Enospc = 28,
    /// Too large for a reply.
    Eoverflow = 75,
    /// Not supported (a fast zero that would not be fast).
    Enotsup = 95,
    /// The server is shutting down.
    Eshutdown = 108,
}

impl Errno {
    /// Returns the protocol's value for a Linux errno; [`Errno::Eio`] if there is none.
    pub fn from_os(errno: i32) -> Errno {
        match errno {
            libc::EPERM | libc::EROFS => Errno::Eperm,
            libc::ENOMEM => Errno::Enomem,
            libc::EINVAL => Errno::Einval,
            libc::ENOSPC | libc::EFBIG | libc::EDQUOT => Errno::Enospc,
            libc::EOVERFLOW => Errno::Eoverflow,
            libc::ENOTSUP => Errno::Enotsup,
            libc::ESHUTDOWN => Errno::Eshutdown,
            _ => Errno::Eio,
        }
    }

    /// Parses the error value of a reply; `None` for success. As the protocol requires, an unknown value is taken for
    /// `EINVAL`.
    pub fn from_wire(value: u32) -> Option<Errno> {
        Some(match value {
            0 => return None,
            1 => Errno::Eperm,
            5 => Errno::Eio,
            12 => Errno::Enomem,
            28 => Errno::Enospc,
            75 => Errno::Eoverflow,
            95 => Errno::Enotsup,
            108 => Errno::Eshutdown,
            _ => Errno::Einval,
        })
    }

    /// Returns the value on the wire.
    pub fn to_wire(self) -> u32 {
        self as u32
    }
}

/// Kind of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// Read data.
    Read,
    /// Write the data that follows the header.
    Write,
    /// Close the connection; there is no reply.
    Disconnect,
    /// Make completed writes durable.
    Flush,
    /// Discard a range.
    Trim,
    /// Read ahead into a cache.
    Cache,
    /// Zero a range.
    WriteZeroes,
    /// Query which parts of a range are allocated.
    BlockStatus,
    /// Any other command.
    Other(u16),
}

impl From<u16> for Command {
    fn from(raw: u16) -> Command {
        match raw {
            0 => Command::Read,
            1 => Command::Write,
            2 => Command::Disconnect,
            3 => Command::Flush,
            4 => Command::Trim,
            5 => Command::Cache,
            6 => Command::WriteZeroes,
            7 => Command::BlockStatus,
            other => Command::Other(other),
        }
    }
}

impl From<Command> for u16 {
    fn from(command: Command) -> u16 {
        match command {
            Command::Read => 0,
            Command::Write => 1,
            Command::Disconnect => 2,
            Command::Flush => 3,
            Command::Trim => 4,
            Command::Cache => 5,
            Command::WriteZeroes => 6,
            Command::BlockStatus => 7,
            Command::Other(raw) => raw,
        }
    }
}

/// The 28 bytes before every request in transmission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestHeader {
    /// Bits of [`command_flag`].
    pub flags: u16,
    /// Raw command; see [`RequestHeader::kind`].
    pub command: u16,
    /// Opaque to the server; returned in the reply.
    pub cookie: u64,
    /// Start, in bytes.
    pub offset: u64,
    /// Length, in bytes.
    pub length: u32,
}

impl RequestHeader {
    /// Length on the wire, in bytes.
    pub const LEN: usize = 28;

    /// Parses a header.
    ///
    /// # Errors
    /// [`WireError::BadMagic`]: the stream is out of sync, close the connection.
    #[inline]
    pub fn parse(bytes: &[u8; RequestHeader::LEN]) -> Result<RequestHeader, WireError> {
        let got = u32_at(bytes, 0);
        if got != REQUEST_MAGIC {
            return Err(WireError::BadMagic { expected: REQUEST_MAGIC, got });
        }
        Ok(RequestHeader {
            flags: u16_at(bytes, 4),
            command: u16_at(bytes, 6),
            cookie: u64_at(bytes, 8),
            offset: u64_at(bytes, 16),
            length: u32_at(bytes, 24),
        })
    }

    /// Returns the command.
    #[inline]
    pub fn kind(&self) -> Command {
        Command::from(self.command)
    }

    /// Returns the header as bytes.
    #[inline]
    pub fn encode(&self) -> [u8; RequestHeader::LEN] {
        let mut bytes = [0; RequestHeader::LEN];
        bytes[0..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
        bytes[4..6].copy_from_slice(&self.flags.to_be_bytes());
        bytes[6..8].copy_from_slice(&self.command.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.offset.to_be_bytes());
        bytes[24..28].copy_from_slice(&self.length.to_be_bytes());
        bytes
    }
}

/// Header of a structured reply chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkHeader {
    /// Bits: [`chunk::DONE`].
    pub flags: u16,
    /// One of the kinds in [`chunk`].
    pub kind: u16,
    /// The request's cookie.
    pub cookie: u64,
    /// Length of the payload.
    pub length: u32,
}

impl ChunkHeader {
    /// Parses a chunk header.
    ///
    /// # Errors
    /// [`WireError::BadMagic`]: the stream is out of sync, close the connection.
    #[inline]
    pub fn parse(bytes: &[u8; CHUNK_HEADER_LEN]) -> Result<ChunkHeader, WireError> {
        let got = u32_at(bytes, 0);
        if got != CHUNK_MAGIC {
            return Err(WireError::BadMagic { expected: CHUNK_MAGIC, got });
        }
        Ok(ChunkHeader {
            flags: u16_at(bytes, 4),
            kind: u16_at(bytes, 6),
            cookie: u64_at(bytes, 8),
            length: u32_at(bytes, 16),
        })
    }

    /// Returns the header as bytes.
    #[inline]
    pub fn encode(&self) -> [u8; CHUNK_HEADER_LEN] {
        let mut bytes = [0; CHUNK_HEADER_LEN];
        bytes[0..4].copy_from_slice(&CHUNK_MAGIC.to_be_bytes());
        bytes[4..6].copy_from_slice(&self.flags.to_be_bytes());
        bytes[6..8].copy_from_slice(&self.kind.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        bytes[16..20].copy_from_slice(&self.length.to_be_bytes());
        bytes
    }
}

/// Returns the big-endian `u16` at `at`.
///
/// # Panics
/// If the slice is too short; so do the next two.
#[inline]
pub fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// Returns the big-endian `u32` at `at`.
#[inline]
pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(*bytes[at..].first_chunk().expect("the caller checked the length"))
}

/// Returns the big-endian `u64` at `at`.
#[inline]
pub fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(*bytes[at..].first_chunk().expect("the caller checked the length"))
}

#[cfg(test)]
mod tests;
