//! The numbers of the protocol, with its prefixes (`NBD_OPT_`, `NBD_CMD_FLAG_`, ...) turned into modules.

/// First eight bytes that a server sends: `NBDMAGIC`.
pub const INIT_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// `IHAVEOPT`: second magic of a newstyle server, and the start of every option from the client.
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// Start of every option reply from the server.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// Start of a request in transmission.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// Start of a simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// Start of a structured reply chunk.
pub const CHUNK_MAGIC: u32 = 0x668e_33ef;

/// Maximum length of a string (export name, description, message, context name), in bytes.
pub const STRING_LEN_MAX: usize = 4096;
/// Maximum payload of a read or write that this implementation accepts, in bytes.
pub const PAYLOAD_LEN_MAX: u32 = crate::volume::BLOCK_MAXIMUM_MAX;
/// Payload, in bytes, that a client may assume to be allowed if no block sizes were negotiated.
pub const PAYLOAD_LEN_ASSUMED: u32 = 32 << 20;
/// Name of the only metadata context that is offered.
pub const BASE_ALLOCATION: &str = "base:allocation";

/// Handshake flags; the client's flags use the same two bits.
pub mod handshake_flag {
    /// Fixed newstyle: options may get error replies.
    pub const FIXED_NEWSTYLE: u16 = 1 << 0;
    /// Leave out the 124 zero bytes after the reply to `EXPORT_NAME`.
    pub const NO_ZEROES: u16 = 1 << 1;
}

/// Options that a client sends during the handshake.
pub mod option {
    /// Choose an export, without an error reply.
    pub const EXPORT_NAME: u32 = 1;
    /// End the handshake.
    pub const ABORT: u32 = 2;
    /// List the exports.
    pub const LIST: u32 = 3;
    /// Start TLS.
    pub const STARTTLS: u32 = 5;
    /// Query an export.
    pub const INFO: u32 = 6;
    /// Query an export and enter transmission.
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
    /// TLS must be started first.
    pub const ERR_TLS_REQD: u32 = ERROR_BIT | 5;
    /// No such export.
    pub const ERR_UNKNOWN: u32 = ERROR_BIT | 6;
    /// Block sizes must be requested first; we never send it.
    pub const ERR_BLOCK_SIZE_REQD: u32 = ERROR_BIT | 8;
    /// The option or its reply is too big.
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
    /// Reply only when the data is on stable storage.
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
