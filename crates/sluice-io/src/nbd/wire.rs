//! Bytes on the wire: the numbers of the NBD protocol, the request header, and encoders for replies.
//!
//! Everything here is a pure function from bytes to values or back, so the device loop, the client, the
//! tests and the fuzzers share one reading of the protocol. All integers are big-endian. Names follow the
//! protocol document, with its prefix (`NBD_OPT_`, `NBD_CMD_FLAG_`, ...) turned into a module.
//!
//! Replies come in two forms. A *simple* reply is 16 bytes, followed by the data of a read. A
//! *structured* reply is one or more chunks of 20 bytes plus payload, the last of which carries
//! [`chunk::DONE`]. Once structured replies are negotiated, reads and block status use them;
//! other commands may use either form, and we answer them with the shorter simple one.
//!
//! Example: a successful 4096-byte read at offset 8192, structured, is 28 bytes from
//! [`read_data_chunk`] (20 header, 8 offset; its length field says 4104) and then the data.

/// First eight bytes that a server sends: `NBDMAGIC`.
pub const INIT_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// `IHAVEOPT`: second magic of a newstyle server, and the head of every option from the client.
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// Head of every option reply from the server.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// Head of a request in transmission.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// Head of a simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// Head of a structured reply chunk.
pub const CHUNK_MAGIC: u32 = 0x668e_33ef;

/// Longest string (export name, description, message, context name) that the protocol allows, in bytes.
pub const STRING_LEN_MAX: usize = 4096;
/// Longest payload of a read or write that this implementation takes, in bytes.
pub const PAYLOAD_LEN_MAX: u32 = crate::volume::BLOCK_MAXIMUM_MAX;
/// Payload, in bytes, that a client may assume to be allowed when no block sizes were negotiated.
pub const PAYLOAD_LEN_ASSUMED: u32 = 32 << 20;
/// Name of the one metadata context that we offer.
pub const BASE_ALLOCATION: &str = "base:allocation";

/// Handshake flags; the client's flags use the same two bits.
pub mod handshake_flag {
    /// Fixed newstyle: options may be answered with errors.
    pub const FIXED_NEWSTYLE: u16 = 1 << 0;
    /// Leave out the 124 zero bytes after the answer to `EXPORT_NAME`.
    pub const NO_ZEROES: u16 = 1 << 1;
}

/// Options that a client sends during the handshake.
pub mod option {
    /// Choose an export, the old way: no error reply possible.
    pub const EXPORT_NAME: u32 = 1;
    /// End the handshake.
    pub const ABORT: u32 = 2;
    /// List the exports.
    pub const LIST: u32 = 3;
    /// Start TLS.
    pub const STARTTLS: u32 = 5;
    /// Ask about an export.
    pub const INFO: u32 = 6;
    /// Ask about an export and enter transmission.
    pub const GO: u32 = 7;
    /// Use structured replies.
    pub const STRUCTURED_REPLY: u32 = 8;
    /// List the metadata contexts of an export.
    pub const LIST_META_CONTEXT: u32 = 9;
    /// Select metadata contexts of an export.
    pub const SET_META_CONTEXT: u32 = 10;
    /// Use extended headers.
    pub const EXTENDED_HEADERS: u32 = 11;
}

/// Kinds of option reply; errors have the top bit set.
pub mod option_reply {
    /// Done, no more replies to this option.
    pub const ACK: u32 = 1;
    /// One export of the list.
    pub const SERVER: u32 = 2;
    /// One piece of information about an export.
    pub const INFO: u32 = 3;
    /// One metadata context.
    pub const META_CONTEXT: u32 = 4;
    /// Set in every error reply.
    pub const ERROR_BIT: u32 = 1 << 31;
    /// The option is not known or not offered.
    pub const ERR_UNSUP: u32 = ERROR_BIT | 1;
    /// Forbidden by the server's policy.
    pub const ERR_POLICY: u32 = ERROR_BIT | 2;
    /// The option was sent malformed or out of order.
    pub const ERR_INVALID: u32 = ERROR_BIT | 3;
    /// No such export.
    pub const ERR_UNKNOWN: u32 = ERROR_BIT | 6;
    /// Block sizes must be asked for first; we never send it.
    pub const ERR_BLOCK_SIZE_REQD: u32 = ERROR_BIT | 8;
    /// The option, or its answer, is too big.
    pub const ERR_TOO_BIG: u32 = ERROR_BIT | 9;
}

/// Kinds of information in an `INFO` reply.
pub mod info {
    /// Size and transmission flags.
    pub const EXPORT: u16 = 0;
    /// Canonical name.
    pub const NAME: u16 = 1;
    /// Description for people.
    pub const DESCRIPTION: u16 = 2;
    /// Minimum, preferred and maximum block size.
    pub const BLOCK_SIZE: u16 = 3;
}

/// Transmission flags: what an export offers.
pub mod transmission_flag {
    /// Always set.
    pub const HAS_FLAGS: u16 = 1 << 0;
    /// Writes, trims and zeroing are refused.
    pub const READ_ONLY: u16 = 1 << 1;
    /// `FLUSH` is offered.
    pub const SEND_FLUSH: u16 = 1 << 2;
    /// The flag `FUA` is offered.
    pub const SEND_FUA: u16 = 1 << 3;
    /// A rotating disk: the client should sort its requests.
    pub const ROTATIONAL: u16 = 1 << 4;
    /// `TRIM` is offered.
    pub const SEND_TRIM: u16 = 1 << 5;
    /// `WRITE_ZEROES` is offered.
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    /// The flag `DF` is offered (only with structured replies).
    pub const SEND_DF: u16 = 1 << 7;
    /// A flush on one connection covers completed writes of all.
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    /// `CACHE` is offered.
    pub const SEND_CACHE: u16 = 1 << 10;
    /// The flag `FAST_ZERO` is offered.
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// Flags of a request.
pub mod command_flag {
    /// Answer only when the data are on stable storage.
    pub const FUA: u16 = 1 << 0;
    /// Zeroing must not leave a hole.
    pub const NO_HOLE: u16 = 1 << 1;
    /// Do not fragment the reply to a read.
    pub const DF: u16 = 1 << 2;
    /// One extent is enough as block status.
    pub const REQ_ONE: u16 = 1 << 3;
    /// Zeroing must fail when it is not faster than writing zeroes.
    pub const FAST_ZERO: u16 = 1 << 4;
}

/// Structured reply chunks: flags and kinds.
pub mod chunk {
    /// Flag: last chunk of this reply.
    pub const DONE: u16 = 1 << 0;
    /// No payload.
    pub const NONE: u16 = 0;
    /// Offset (8 bytes) and data of a read.
    pub const OFFSET_DATA: u16 = 1;
    /// Offset (8 bytes) and length (4 bytes) of zeroes in a read.
    pub const OFFSET_HOLE: u16 = 2;
    /// Context id (4 bytes) and extents (8 bytes each).
    pub const BLOCK_STATUS: u16 = 5;
    /// Set in every kind that reports an error.
    pub const ERROR_BIT: u16 = 1 << 15;
    /// Errno (4 bytes), message length (2 bytes), message.
    pub const ERROR: u16 = ERROR_BIT | 1;
    /// As [`ERROR`], then the offset (8 bytes) of the failure.
    pub const ERROR_OFFSET: u16 = ERROR_BIT | 2;
}

/// Flags of an extent in the context `base:allocation`; 0 means allocated data.
pub mod allocation {
    /// Nothing is allocated there.
    pub const HOLE: u32 = 1 << 0;
    /// Reads as zeroes.
    pub const ZERO: u32 = 1 << 1;
}

/// Length of a simple reply header, in bytes.
pub const SIMPLE_REPLY_LEN: usize = 16;
/// Length of a structured chunk header, in bytes.
pub const CHUNK_HEADER_LEN: usize = 20;
/// Length of a read's chunk header with its offset, in bytes.
pub const READ_DATA_CHUNK_LEN: usize = CHUNK_HEADER_LEN + 8;
/// Length of one extent in a block status chunk, in bytes.
pub const EXTENT_LEN: usize = 8;

/// What makes a header unreadable. The stream cannot be followed after it: close the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The first four bytes are not the expected magic.
    #[error("The peer sent magic {got:#010x} instead of {expected:#010x}")]
    BadMagic {
        /// What it should have been.
        expected: u32,
        /// What came.
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
    /// No space left, or a write beyond the end.
    Enospc = 28,
    /// Too large to answer.
    Eoverflow = 75,
    /// Not supported (a fast zero that would not be fast).
    Enotsup = 95,
    /// The server is shutting down.
    Eshutdown = 108,
}

impl Errno {
    /// The protocol's value for a Linux errno; what the protocol does not know becomes [`Errno::Eio`].
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

    /// Reads an error value from a reply: `None` for success. The protocol says to take a value
    /// that one does not know for `EINVAL`.
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

    /// The value on the wire.
    pub fn to_wire(self) -> u32 {
        self as u32
    }
}

/// Kind of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// Read data.
    Read,
    /// Write the data that follow the header.
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
    /// Ask which parts of a range are allocated.
    BlockStatus,
    /// Anything else, as it was on the wire.
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
    /// Opaque to the server, comes back in the reply.
    pub cookie: u64,
    /// Start, in bytes.
    pub offset: u64,
    /// Length, in bytes.
    pub length: u32,
}

impl RequestHeader {
    /// Length on the wire, in bytes.
    pub const LEN: usize = 28;

    /// Reads a header.
    ///
    /// # Errors
    /// [`WireError::BadMagic`]: the stream is out of step, close the connection.
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

    /// The command, told apart.
    #[inline]
    pub fn kind(&self) -> Command {
        Command::from(self.command)
    }

    /// The header as it goes on the wire.
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
    /// Bytes of payload that follow.
    pub length: u32,
}

impl ChunkHeader {
    /// Reads a chunk header.
    ///
    /// # Errors
    /// [`WireError::BadMagic`]: the stream is out of step, close the connection.
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

    /// The header as it goes on the wire.
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

/// One piece of a block status answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Length, in bytes, from the end of the extent before it.
    pub length: u32,
    /// Bits of [`allocation`].
    pub flags: u32,
}

/// A simple reply; the data of a successful read follow it.
#[inline]
pub fn simple_reply(cookie: u64, result: Result<(), Errno>) -> [u8; SIMPLE_REPLY_LEN] {
    let errno = result.map_or_else(Errno::to_wire, |()| 0);
    let mut bytes = [0; SIMPLE_REPLY_LEN];
    bytes[0..4].copy_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
    bytes[4..8].copy_from_slice(&errno.to_be_bytes());
    bytes[8..16].copy_from_slice(&cookie.to_be_bytes());
    bytes
}

/// The whole structured reply of a successful read, up to its data: `data_len_bytes` bytes must follow.
///
/// # Panics
/// When `data_len_bytes` exceeds [`PAYLOAD_LEN_MAX`]; [`super::transmission::check`] lets no such read pass.
#[inline]
pub fn read_data_chunk(cookie: u64, offset: u64, data_len_bytes: u32) -> [u8; READ_DATA_CHUNK_LEN] {
    assert!(data_len_bytes <= PAYLOAD_LEN_MAX, "a checked read is not longer than that");
    let header = ChunkHeader { flags: chunk::DONE, kind: chunk::OFFSET_DATA, cookie, length: 8 + data_len_bytes };
    let mut bytes = [0; READ_DATA_CHUNK_LEN];
    bytes[..CHUNK_HEADER_LEN].copy_from_slice(&header.encode());
    bytes[CHUNK_HEADER_LEN..].copy_from_slice(&offset.to_be_bytes());
    bytes
}

/// The whole structured reply of a read that found only zeroes: no data follow.
#[inline]
pub fn offset_hole_chunk(cookie: u64, offset: u64, len_bytes: u32) -> [u8; CHUNK_HEADER_LEN + 12] {
    let header = ChunkHeader { flags: chunk::DONE, kind: chunk::OFFSET_HOLE, cookie, length: 12 };
    let mut bytes = [0; CHUNK_HEADER_LEN + 12];
    bytes[..20].copy_from_slice(&header.encode());
    bytes[20..28].copy_from_slice(&offset.to_be_bytes());
    bytes[28..].copy_from_slice(&len_bytes.to_be_bytes());
    bytes
}

/// The whole structured reply of a success without data.
#[inline]
pub fn none_chunk(cookie: u64) -> [u8; CHUNK_HEADER_LEN] {
    ChunkHeader { flags: chunk::DONE, kind: chunk::NONE, cookie, length: 0 }.encode()
}

/// Appends the whole structured reply of a failure. A message longer than
/// [`STRING_LEN_MAX`] bytes is cut at a character's boundary.
pub fn error_chunk(out: &mut Vec<u8>, cookie: u64, errno: Errno, message: &str) {
    let message = &message[..message.floor_char_boundary(STRING_LEN_MAX)];
    let length = 6 + message.len() as u32;
    out.extend_from_slice(&ChunkHeader { flags: chunk::DONE, kind: chunk::ERROR, cookie, length }.encode());
    out.extend_from_slice(&errno.to_wire().to_be_bytes());
    out.extend_from_slice(&(message.len() as u16).to_be_bytes());
    out.extend_from_slice(message.as_bytes());
}

/// Appends a failure in the form that the client negotiated. A simple reply has no room for the message.
pub fn error_reply(out: &mut Vec<u8>, structured_replies: bool, cookie: u64, errno: Errno, message: &str) {
    if structured_replies {
        error_chunk(out, cookie, errno, message);
    } else {
        out.extend_from_slice(&simple_reply(cookie, Err(errno)));
    }
}

/// Appends the whole structured reply of a block status request, for one context.
///
/// # Panics
/// When there are no extents, or more than fit [`PAYLOAD_LEN_MAX`] bytes: the protocol wants at least one.
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

/// Reads the extents of a block status chunk (its payload after the context id). A rest of less
/// than [`EXTENT_LEN`] bytes is ignored.
pub fn extents(payload: &[u8]) -> impl Iterator<Item = Extent> + '_ {
    let (whole, _rest) = payload.as_chunks::<EXTENT_LEN>();
    whole.iter().map(|bytes| Extent { length: u32_at(bytes, 0), flags: u32_at(bytes, 4) })
}

/// The big-endian `u16` at `at`, which the caller knows to be inside.
#[inline]
pub fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// The big-endian `u32` at `at`, which the caller knows to be inside.
#[inline]
pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(*bytes[at..].first_chunk().expect("the caller checked the length"))
}

/// The big-endian `u64` at `at`, which the caller knows to be inside.
#[inline]
pub fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(*bytes[at..].first_chunk().expect("the caller checked the length"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_header_is_laid_out_as_the_protocol_says() {
        let header =
            RequestHeader { flags: 0x0102, command: 6, cookie: 0x1122_3344_5566_7788, offset: 0x99, length: 7 };
        let bytes = header.encode();
        let expected: [u8; 28] = [
            0x25, 0x60, 0x95, 0x13, 1, 2, 0, 6, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0, 0, 0, 0, 0, 0, 0,
            0x99, 0, 0, 0, 7,
        ];
        assert_eq!(bytes, expected);
        assert_eq!(RequestHeader::parse(&bytes), Ok(header));
        assert_eq!(header.kind(), Command::WriteZeroes);
    }

    #[test]
    fn each_wrong_magic_byte_is_refused() {
        let good = RequestHeader { flags: 0, command: 0, cookie: 0, offset: 0, length: 0 }.encode();
        for at in 0..4 {
            let mut bad = good;
            bad[at] ^= 0x40;
            assert!(matches!(RequestHeader::parse(&bad), Err(WireError::BadMagic { expected: REQUEST_MAGIC, .. })));
        }
        assert!(ChunkHeader::parse(&[0; 20]).is_err());
    }

    #[test]
    fn commands_map_both_ways() {
        for raw in 0..=300u16 {
            assert_eq!(u16::from(Command::from(raw)), raw);
            assert_eq!(matches!(Command::from(raw), Command::Other(_)), raw > 7);
        }
    }

    #[test]
    fn errno_from_os() {
        let table = [
            (libc::EPERM, Errno::Eperm),
            (libc::EROFS, Errno::Eperm),
            (libc::EIO, Errno::Eio),
            (libc::ENOMEM, Errno::Enomem),
            (libc::EINVAL, Errno::Einval),
            (libc::ENOSPC, Errno::Enospc),
            (libc::EFBIG, Errno::Enospc),
            (libc::EDQUOT, Errno::Enospc),
            (libc::EOVERFLOW, Errno::Eoverflow),
            (libc::ENOTSUP, Errno::Enotsup),
            (libc::ESHUTDOWN, Errno::Eshutdown),
            (libc::ENODEV, Errno::Eio),
            (0, Errno::Eio),
            (-5, Errno::Eio),
        ];
        for (os, errno) in table {
            assert_eq!(Errno::from_os(os), errno, "errno {os}");
            assert_eq!(Errno::from_wire(errno.to_wire()), Some(errno));
        }
        assert_eq!(Errno::from_wire(0), None);
        assert_eq!(Errno::from_wire(9999), Some(Errno::Einval));
    }

    #[test]
    fn simple_replies() {
        assert_eq!(simple_reply(1, Ok(())), [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!(simple_reply(1, Err(Errno::Enospc))[4..8], [0, 0, 0, 28]);
    }

    #[test]
    fn chunks_of_a_read() {
        let bytes = read_data_chunk(5, 8192, 4096);
        let header = ChunkHeader::parse(bytes.first_chunk().expect("28 bytes")).expect("good magic");
        assert_eq!(header, ChunkHeader { flags: chunk::DONE, kind: chunk::OFFSET_DATA, cookie: 5, length: 4104 });
        assert_eq!(u64_at(&bytes, 20), 8192);

        let bytes = offset_hole_chunk(5, 8192, 4096);
        let header = ChunkHeader::parse(bytes.first_chunk().expect("32 bytes")).expect("good magic");
        assert_eq!((header.kind, header.length), (chunk::OFFSET_HOLE, 12));
        assert_eq!((u64_at(&bytes, 20), u32_at(&bytes, 28)), (8192, 4096));

        let header = ChunkHeader::parse(&none_chunk(9)).expect("good magic");
        assert_eq!(header, ChunkHeader { flags: chunk::DONE, kind: chunk::NONE, cookie: 9, length: 0 });
    }

    #[test]
    fn error_chunk_carries_its_message_and_cuts_it_at_a_character() {
        let mut out = Vec::new();
        error_chunk(&mut out, 3, Errno::Eperm, "Read-only");
        let header = ChunkHeader::parse(out.first_chunk().expect("a header")).expect("good magic");
        assert_eq!((header.kind, header.length), (chunk::ERROR, 15));
        assert_eq!((u32_at(&out, 20), u16_at(&out, 24), &out[26..]), (1, 9, &b"Read-only"[..]));

        out.clear();
        error_chunk(&mut out, 3, Errno::Eio, &"é".repeat(3000));
        assert_eq!(u16_at(&out, 24), 4096);
        out.clear();
        error_chunk(&mut out, 3, Errno::Eio, &format!("x{}", "é".repeat(3000)));
        assert_eq!((u16_at(&out, 24), out.len()), (4095, 26 + 4095));
    }

    #[test]
    fn error_reply_has_the_negotiated_form() {
        let mut out = Vec::new();
        error_reply(&mut out, false, 3, Errno::Eio, "No");
        assert_eq!(out, simple_reply(3, Err(Errno::Eio)));
        out.clear();
        error_reply(&mut out, true, 3, Errno::Eio, "No");
        assert_eq!(out.len(), 28);
    }

    #[test]
    fn block_status_maps_both_ways() {
        let wanted =
            [Extent { length: 4096, flags: 0 }, Extent { length: 8192, flags: allocation::HOLE | allocation::ZERO }];
        let mut out = Vec::new();
        block_status_chunk(&mut out, 7, 1, wanted.iter().copied());
        let header = ChunkHeader::parse(out.first_chunk().expect("a header")).expect("good magic");
        assert_eq!((header.kind, header.length), (chunk::BLOCK_STATUS, 20));
        assert_eq!(u32_at(&out, 20), 1);
        assert_eq!(extents(&out[24..]).collect::<Vec<_>>(), wanted);
    }
}
