//! The server's half of the fixed newstyle handshake, as a state machine without I/O.
//!
//! [`super::negotiate`] reads exactly what [`Handshake`] requires and sends exactly what it returns, so the rules can
//! be tested and fuzzed on plain byte slices:
//!
//! 1. send [`GREETING`];
//! 2. read 4 bytes, pass them to [`Handshake::client_flags`];
//! 3. read 16 bytes, pass them to [`Handshake::option_header`], which returns the length of the payload;
//! 4. read the payload, pass it to [`Handshake::option`], send what it appended; repeat from 3 until it returns a
//!    [`Negotiated`]: after that the client uses the transmission protocol.
//!
//! Bounds: an option has at most [`OPTION_LEN_MAX`] bytes, a connection at most [`OPTIONS_MAX`] options, a string at
//! most 4096 bytes. If one of the first two is exceeded the connection is closed, because such a client is broken or
//! hostile. A longer string is answered with `ERR_TOO_BIG`. The caller must limit the time.
//!
//! A client that does not request the block sizes may send misaligned requests, which are then refused one by one. The
//! protocol would allow to refuse the client immediately (`ERR_BLOCK_SIZE_REQD`). We do not, because many clients never
//! request them and yet send only aligned requests.

use std::future::{Future, ready};
use std::io;

use super::export::{Export, transmission_flags};
use super::gateway::proof::Key;
use super::gateway::{Admission, Hello, Known, OPTION_HELLO, OPTION_PROOF};
use super::options::{InfoRequest, MetaRequest, OptionError, export_name};
use super::wire::{
    BASE_ALLOCATION, INIT_MAGIC, OPTION_MAGIC, OPTION_REPLY_MAGIC, handshake_flag, info, option, option_reply, u16_at,
    u32_at, u64_at,
};
use crate::volume::VolumeInfo;

/// Maximum length of an option's payload, in bytes.
pub const OPTION_LEN_MAX: u32 = 64 << 10;
/// Maximum number of options of a connection.
pub const OPTIONS_MAX: u32 = 256;
/// Id of `base:allocation` on every connection.
pub const BASE_ALLOCATION_ID: u32 = 1;
/// Length of the header of an option, in bytes.
pub const OPTION_HEADER_LEN: usize = 16;

/// First message of a server: two magics and its flags (fixed newstyle, no zeroes).
pub const GREETING: [u8; 18] = greeting();

/// The exports that a client may request. The client chooses the export of the last call of [`Exports::find`], so that
/// its size and flags are those that the client has received.
pub trait Exports {
    /// Returns all exports.
    fn list(&self) -> Vec<Listed>;

    /// Returns the export of that name, which is never empty. Its volume must pass [`VolumeInfo::validate`].
    fn find(&self, name: &str) -> Option<Export>;

    /// Answers a gateway that asks for the export of the last call of [`Exports::find`].
    ///
    /// # Errors
    /// Why it may not come, for it; `None` if this server has no gateways.
    fn challenge(&self, hello: &Hello) -> Result<Admission, Option<String>> {
        let _ = hello;
        Err(None)
    }

    /// Makes a gateway that has proven that it has this key the one of the export's VM.
    ///
    /// # Errors
    /// Why it may not come, for it.
    fn admit(&self, hello: &Hello, key: &Key) -> impl Future<Output = Result<(), String>> + Send {
        let _ = (hello, key);
        ready(Ok(()))
    }
}

/// An entry of the list of exports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Name, at most 4096 bytes.
    pub name: String,
    /// Description for people, at most 4096 bytes; may be empty.
    pub description: String,
}

/// Result of the handshake.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Negotiated {
    /// Name of the chosen export; never empty, even if the client requested the default export.
    pub export: String,
    /// Whether reads, block status and their errors are answered in chunks.
    pub structured_replies: bool,
    /// Id of the context `base:allocation`, if the client selected it for this export.
    pub base_allocation: Option<u32>,
    /// Whether the client requested the block sizes, and thereby promised to respect them.
    pub block_size_requested: bool,
    /// The gateway, if the client is one. Then there are no structured replies.
    pub gateway: Option<Known>,
}

/// Why a connection ends before transmission.
#[derive(Debug, thiserror::Error)]
pub enum NegotiateError {
    /// The client sent `ABORT`, which is not an error.
    #[error("The client ended the handshake")]
    Aborted,
    /// The connection was closed. Probes that only check whether a server listens do that.
    #[error("The client closed the connection before sending {awaited}")]
    Closed {
        /// The message that did not arrive.
        awaited: &'static str,
    },
    /// `EXPORT_NAME` came without TLS; this option has no error reply.
    #[error("The client does not start TLS, which this address requires")]
    TlsRequired,
    /// TLS failed.
    #[error("TLS failed: {0}")]
    Tls(String),
    /// The connection failed.
    #[error("The connection failed during the handshake")]
    Io(#[source] io::Error),
    /// The client sent unknown flags.
    #[error("The client sent unknown handshake flags {flags:#x}")]
    UnknownFlags {
        /// All flags of the client.
        flags: u32,
    },
    /// An option has a wrong magic: the peer is not an NBD client, or the stream is out of sync.
    #[error("The client sent magic {magic:#018x} at the head of an option")]
    BadMagic {
        /// The received magic.
        magic: u64,
    },
    /// An option is longer than [`OPTION_LEN_MAX`].
    #[error("The client sent option {option} with {len_bytes} bytes, more than {OPTION_LEN_MAX}")]
    OptionTooLong {
        /// Code of the option.
        option: u32,
        /// Length that the client stated.
        len_bytes: u32,
    },
    /// More than [`OPTIONS_MAX`] options.
    #[error("The client sent more than {OPTIONS_MAX} options")]
    TooManyOptions,
    /// A client that does not support error replies may only send `EXPORT_NAME`.
    #[error("The client sent option {option} without the flag for fixed newstyle")]
    NotFixedNewstyle {
        /// Code of the option.
        option: u32,
    },
    /// `EXPORT_NAME` requested an export that does not exist; this option has no error reply.
    #[error("The client requested the export {name:?}, which does not exist")]
    UnknownExport { name: String },
    /// `EXPORT_NAME` contained an invalid name; this option has no error reply.
    #[error("The client requested an export by an invalid name")]
    BadExportName(#[source] OptionError),
}

/// Header of an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OptionHeader {
    /// Code of the option; see [`option`].
    pub code: u32,
    /// Length of the payload, at most [`OPTION_LEN_MAX`].
    pub len_bytes: u32,
}

/// Whether a connection is encrypted, or is to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tls {
    /// It is not, and need not be.
    No,
    /// It must be, before anything else.
    Required,
    /// It is.
    Done,
}

/// The result of an option.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// The next option follows.
    Next,
    /// [`Exports::admit`] follows, and then the answer to the proof.
    Admit,
    /// TLS follows, and then another [`Handshake::after_tls`].
    StartTls,
    /// The client has chosen an export.
    Chosen(Negotiated),
}

/// How far a gateway has come.
#[derive(Debug)]
enum Gateway {
    No,
    /// It knows the challenge.
    Asked(Box<(Hello, Admission)>),
    /// It has proven its key.
    Proven(Box<(Hello, Admission)>, Known),
    /// It may choose the export of that name.
    Known(Box<Known>, String),
}

/// A handshake.
#[derive(Debug)]
pub struct Handshake<'a, E: ?Sized> {
    exports: &'a E,
    tls: Tls,
    fixed_newstyle: bool,
    no_zeroes: bool,
    structured_replies: bool,
    /// The export for which `base:allocation` is selected.
    context_of: Option<String>,
    gateway: Gateway,
    options: u32,
}

impl<'a, E: Exports + ?Sized> Handshake<'a, E> {
    /// Creates a handshake, before the client has sent anything.
    pub fn new(exports: &'a E, tls: Tls) -> Handshake<'a, E> {
        Handshake {
            exports,
            tls,
            fixed_newstyle: false,
            no_zeroes: false,
            structured_replies: false,
            context_of: None,
            gateway: Gateway::No,
            options: 0,
        }
    }

    /// Creates the handshake that follows TLS. What the client has asked for before is forgotten, as the protocol requires.
    #[must_use]
    pub fn after_tls(self) -> Handshake<'a, E> {
        let Handshake { exports, fixed_newstyle, no_zeroes, options, .. } = self;
        Handshake { fixed_newstyle, no_zeroes, options, ..Handshake::new(exports, Tls::Done) }
    }

    /// Handles the client's flags, the first thing that it sends.
    ///
    /// # Errors
    /// [`NegotiateError::UnknownFlags`].
    pub fn client_flags(&mut self, bytes: [u8; 4]) -> Result<(), NegotiateError> {
        let flags = u32::from_be_bytes(bytes);
        let fixed_newstyle = u32::from(handshake_flag::FIXED_NEWSTYLE);
        let no_zeroes = u32::from(handshake_flag::NO_ZEROES);
        if flags & !(fixed_newstyle | no_zeroes) != 0 {
            return Err(NegotiateError::UnknownFlags { flags });
        }
        self.fixed_newstyle = flags & fixed_newstyle != 0;
        self.no_zeroes = flags & no_zeroes != 0;
        Ok(())
    }

    /// Handles the header of an option, and returns the length of its payload.
    ///
    /// # Errors
    /// [`NegotiateError::BadMagic`], [`NegotiateError::TooManyOptions`], [`NegotiateError::NotFixedNewstyle`],
    /// [`NegotiateError::OptionTooLong`]: close the connection, there is nothing to send.
    pub fn option_header(&mut self, bytes: &[u8; OPTION_HEADER_LEN]) -> Result<OptionHeader, NegotiateError> {
        let magic = u64_at(bytes, 0);
        let (option, len_bytes) = (u32_at(bytes, 8), u32_at(bytes, 12));
        if magic != OPTION_MAGIC {
            return Err(NegotiateError::BadMagic { magic });
        }
        self.options += 1;
        if self.options > OPTIONS_MAX {
            return Err(NegotiateError::TooManyOptions);
        }
        if !self.fixed_newstyle && option != option::EXPORT_NAME {
            return Err(NegotiateError::NotFixedNewstyle { option });
        }
        if len_bytes > OPTION_LEN_MAX {
            return Err(NegotiateError::OptionTooLong { option, len_bytes });
        }
        Ok(OptionHeader { code: option, len_bytes })
    }

    /// Handles an option and appends the reply to `out`.
    ///
    /// # Errors
    /// [`NegotiateError::Aborted`], [`NegotiateError::UnknownExport`], [`NegotiateError::BadExportName`]: send `out` if
    /// it is not empty, then close the connection.
    pub fn option(&mut self, code: u32, payload: &[u8], out: &mut Vec<u8>) -> Result<Step, NegotiateError> {
        match code {
            option::STARTTLS => return Ok(self.start_tls(payload, out)),
            option::EXPORT_NAME if self.tls == Tls::Required => return Err(NegotiateError::TlsRequired),
            option::EXPORT_NAME => return self.export_name(payload, out).map(Step::Chosen),
            option::ABORT => {
                reply(out, code, option_reply::ACK, &[]);
                return Err(NegotiateError::Aborted);
            }
            _ if self.tls == Tls::Required => refuse(out, code, option_reply::ERR_TLS_REQD, "This server wants TLS"),
            option::GO => return Ok(self.info(code, payload, out).map_or(Step::Next, Step::Chosen)),
            option::INFO => _ = self.info(code, payload, out),
            option::LIST => self.list(payload, out),
            option::STRUCTURED_REPLY => self.structured_reply(payload, out),
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => self.meta_context(code, payload, out),
            OPTION_HELLO => self.hello(payload, out),
            OPTION_PROOF => return Ok(self.proof(payload, out)),
            _ => refuse(out, code, option_reply::ERR_UNSUP, "This server does not offer that option"),
        }
        Ok(Step::Next)
    }

    fn start_tls(&self, payload: &[u8], out: &mut Vec<u8>) -> Step {
        let (kind, message) = match self.tls {
            Tls::No => (option_reply::ERR_UNSUP, "This socket has no TLS"),
            _ if !payload.is_empty() => (option_reply::ERR_INVALID, "The option takes no payload"),
            Tls::Done => (option_reply::ERR_INVALID, "The connection is encrypted already"),
            Tls::Required => {
                reply(out, option::STARTTLS, option_reply::ACK, &[]);
                return Step::StartTls;
            }
        };
        refuse(out, option::STARTTLS, kind, message);
        Step::Next
    }

    fn export_name(&self, payload: &[u8], out: &mut Vec<u8>) -> Result<Negotiated, NegotiateError> {
        let name = export_name(payload).map_err(NegotiateError::BadExportName)?;
        let export = self.resolve(name).filter(|export| self.may_choose(export));
        let export = export.ok_or_else(|| NegotiateError::UnknownExport { name: name.to_owned() })?;
        out.extend_from_slice(&export.info.size_bytes.to_be_bytes());
        out.extend_from_slice(&transmission_flags(&export.info, self.structured_replies).to_be_bytes());
        if !self.no_zeroes {
            out.extend_from_slice(&[0; 124]);
        }
        Ok(self.negotiated(export, false))
    }

    fn list(&self, payload: &[u8], out: &mut Vec<u8>) {
        if !payload.is_empty() {
            return refuse(out, option::LIST, option_reply::ERR_INVALID, "The option takes no payload");
        }
        for Listed { name, description } in self.exports.list() {
            let name_len = (name.len() as u32).to_be_bytes();
            reply(out, option::LIST, option_reply::SERVER, &[&name_len, name.as_bytes(), description.as_bytes()]);
        }
        reply(out, option::LIST, option_reply::ACK, &[]);
    }

    fn structured_reply(&mut self, payload: &[u8], out: &mut Vec<u8>) {
        let code = option::STRUCTURED_REPLY;
        if !payload.is_empty() {
            return refuse(out, code, option_reply::ERR_INVALID, "The option takes no payload");
        }
        if !matches!(self.gateway, Gateway::No) {
            return refuse(out, code, option_reply::ERR_INVALID, "A gateway gets simple replies");
        }
        self.structured_replies = true;
        reply(out, code, option_reply::ACK, &[]);
    }

    /// Handles `INFO` or `GO`, which have the same payload and reply. Only `GO` ends the handshake.
    fn info(&self, code: u32, payload: &[u8], out: &mut Vec<u8>) -> Option<Negotiated> {
        let request = match InfoRequest::parse(payload) {
            Ok(request) => request,
            Err(error) => {
                refuse_payload(out, code, error);
                return None;
            }
        };
        let Some(export) = self.resolve(request.export) else {
            refuse(out, code, option_reply::ERR_UNKNOWN, "There is no such export");
            return None;
        };
        if !self.may_choose(&export) {
            refuse(out, code, option_reply::ERR_INVALID, "A gateway proves its key for the export that it chooses");
            return None;
        }
        self.describe(&export, &request, code, out);
        reply(out, code, option_reply::ACK, &[]);
        Some(self.negotiated(export, request.block_size))
    }

    /// Whether the client may choose an export: a gateway only the one for which it has proven its key.
    fn may_choose(&self, export: &Export) -> bool {
        match &self.gateway {
            Gateway::No => true,
            Gateway::Asked(_) | Gateway::Proven(..) => false,
            Gateway::Known(_, name) => *name == export.name,
        }
    }

    fn describe(&self, export: &Export, request: &InfoRequest<'_>, code: u32, out: &mut Vec<u8>) {
        let mut send = |kind: u16, parts: [&[u8]; 3]| {
            let [first, second, third] = parts;
            reply(out, code, option_reply::INFO, &[&kind.to_be_bytes(), first, second, third]);
        };
        let flags = transmission_flags(&export.info, self.structured_replies).to_be_bytes();
        send(info::EXPORT, [&export.info.size_bytes.to_be_bytes(), &flags, &[]]);
        if request.name {
            send(info::NAME, [export.name.as_bytes(), &[], &[]]);
        }
        if request.description && !export.description.is_empty() {
            send(info::DESCRIPTION, [export.description.as_bytes(), &[], &[]]);
        }
        let VolumeInfo { block_minimum, block_preferred, block_maximum, .. } = export.info;
        let sizes = [block_minimum, block_preferred, block_maximum].map(u32::to_be_bytes);
        send(info::BLOCK_SIZE, [&sizes[0], &sizes[1], &sizes[2]]);
    }

    fn meta_context(&mut self, code: u32, payload: &[u8], out: &mut Vec<u8>) {
        let set = code == option::SET_META_CONTEXT;
        if set {
            // A new selection replaces the previous one, even if it fails.
            self.context_of = None;
        }
        if !self.structured_replies {
            let message = "Request structured replies first";
            return refuse(out, code, option_reply::ERR_INVALID, message);
        }
        let request = match MetaRequest::parse(payload) {
            Ok(request) => request,
            Err(error) => return refuse_payload(out, code, error),
        };
        let Some(export) = self.resolve(request.export) else {
            return refuse(out, code, option_reply::ERR_UNKNOWN, "There is no such export");
        };
        // The wildcard and the empty query are only for listing: a selection must name a context.
        let listed = !set && (request.no_query || request.base_wildcard);
        if request.base_allocation || listed {
            // An id in a list has no meaning and should be 0.
            let id = if set { BASE_ALLOCATION_ID } else { 0 };
            reply(out, code, option_reply::META_CONTEXT, &[&id.to_be_bytes(), BASE_ALLOCATION.as_bytes()]);
            if set {
                self.context_of = Some(export.name);
            }
        }
        reply(out, code, option_reply::ACK, &[]);
    }

    /// Returns the export of that name. The empty name stands for the only export, if there is exactly one.
    fn resolve(&self, name: &str) -> Option<Export> {
        if !name.is_empty() {
            return self.exports.find(name);
        }
        match self.exports.list().as_slice() {
            [only] => self.exports.find(&only.name),
            _ => None,
        }
    }

    fn negotiated(&self, export: Export, block_size_requested: bool) -> Negotiated {
        let selected = self.context_of.as_ref() == Some(&export.name);
        Negotiated {
            export: export.name,
            structured_replies: self.structured_replies,
            base_allocation: selected.then_some(BASE_ALLOCATION_ID),
            block_size_requested,
            gateway: if let Gateway::Known(known, _) = &self.gateway { Some((**known).clone()) } else { None },
        }
    }
}

const fn greeting() -> [u8; 18] {
    let (init, option) = (INIT_MAGIC.to_be_bytes(), OPTION_MAGIC.to_be_bytes());
    let flags = (handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES).to_be_bytes();
    let mut bytes = [0; 18];
    let mut at = 0;
    while at < 8 {
        bytes[at] = init[at];
        bytes[8 + at] = option[at];
        at += 1;
    }
    bytes[16] = flags[0];
    bytes[17] = flags[1];
    bytes
}

/// Appends an option reply whose payload consists of `parts`.
fn reply(out: &mut Vec<u8>, code: u32, kind: u32, parts: &[&[u8]]) {
    let len_bytes: usize = parts.iter().map(|part| part.len()).sum();
    out.extend_from_slice(&OPTION_REPLY_MAGIC.to_be_bytes());
    out.extend_from_slice(&code.to_be_bytes());
    out.extend_from_slice(&kind.to_be_bytes());
    out.extend_from_slice(&(len_bytes as u32).to_be_bytes());
    for part in parts {
        out.extend_from_slice(part);
    }
}

fn refuse(out: &mut Vec<u8>, code: u32, kind: u32, message: &str) {
    reply(out, code, kind, &[message.as_bytes()]);
}

fn refuse_payload(out: &mut Vec<u8>, code: u32, error: OptionError) {
    let kind = match error {
        OptionError::StringTooLong => option_reply::ERR_TOO_BIG,
        _ => option_reply::ERR_INVALID,
    };
    refuse(out, code, kind, &error.to_string());
}

/// Header of an option reply, for clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OptionReplyHeader {
    /// The option to which it replies.
    pub option: u32,
    /// One of [`option_reply`].
    pub kind: u32,
    /// Length of the payload.
    pub len_bytes: u32,
}

impl OptionReplyHeader {
    /// Length on the wire, in bytes.
    pub const LEN: usize = 20;

    /// Parses the header of an option reply; `None` if its magic is wrong.
    pub fn parse(bytes: &[u8; OptionReplyHeader::LEN]) -> Option<OptionReplyHeader> {
        (u64_at(bytes, 0) == OPTION_REPLY_MAGIC).then(|| OptionReplyHeader {
            option: u32_at(bytes, 8),
            kind: u32_at(bytes, 12),
            len_bytes: u32_at(bytes, 16),
        })
    }
}

/// Returns the flags in a server's greeting; `None` if it is not the greeting of a newstyle server.
pub fn parse_greeting(bytes: &[u8; 18]) -> Option<u16> {
    (u64_at(bytes, 0) == INIT_MAGIC && u64_at(bytes, 8) == OPTION_MAGIC).then(|| u16_at(bytes, 16))
}

mod gateway;
#[cfg(test)]
mod tests;
