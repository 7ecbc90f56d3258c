//! The client's half of the handshake: structured replies and `base:allocation` if requested, then `GO`.

use std::io::{self, Read, Write};

use super::gateway::proof::{Key, Side, nonce};
use super::gateway::{Challenge, Hello, Known, OPTION_HELLO, OPTION_PROOF, REPLY_CHALLENGE, REPLY_CONFIRMED};
use super::handshake::{OPTION_LEN_MAX, OptionReplyHeader, parse_greeting};
use super::wire::{BASE_ALLOCATION, OPTION_MAGIC, handshake_flag, info, option, option_reply, u16_at, u32_at, u64_at};

/// Maximum number of replies to one option; a server that sends more is rejected.
const REPLIES_MAX: usize = 1024;

/// Maximum number of characters of a server's message that are told.
const MESSAGE_MAX: usize = 300;

/// Why a handshake has failed.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// The connection failed.
    #[error("The connection to the NBD server failed")]
    Io(#[source] io::Error),
    /// The server closed the connection.
    #[error("The NBD server closed the connection during the handshake")]
    Closed,
    /// The server refused an option.
    #[error("The NBD server refused option {option} with error {kind:#x}: {message}")]
    Refused {
        /// The option; see [`option`].
        option: u32,
        /// The error code; see [`option_reply`].
        kind: u32,
        /// The server's message, may be empty.
        message: String,
    },
    /// The server is another node than the one that is meant.
    #[error("The server is node {found:?}: state its name as node of the gateway, or another address")]
    OtherNode {
        /// What it says it is.
        found: String,
    },
    /// The server violated the protocol.
    #[error("The NBD server violated the protocol: {what}")]
    Protocol {
        /// The violation.
        what: &'static str,
    },
}

/// What a gateway states of itself.
#[derive(Debug, Clone, Copy)]
pub struct Gateway<'a> {
    /// Its name.
    pub name: &'a str,
    /// Name of the node that is to answer.
    pub node: &'a str,
    pub key: &'a Key,
    /// Since when it serves the VM; 0 tries the key alone. See [`Hello::epoch`].
    pub epoch: u64,
    pub vm: &'a str,
}

/// Optional parts of the protocol that a client requests.
#[derive(Debug, Clone, Copy, Default)]
pub struct Wanted<'a> {
    /// Structured replies. A server that does not support them is used without.
    pub structured_replies: bool,
    /// The context `base:allocation`. Needs structured replies.
    pub base_allocation: bool,
    /// The server is a node of ours, and gets to know this gateway. It must, then. Excludes structured replies.
    pub gateway: Option<Gateway<'a>>,
}

/// Options and export properties that client and server have negotiated.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Session {
    pub size_bytes: u64,
    /// Bits of [`transmission_flag`](super::wire::transmission_flag).
    pub flags: u16,
    /// Minimum, preferred and maximum block size in bytes, if the server states them.
    pub block_sizes: Option<[u32; 3]>,
    pub structured_replies: bool,
    /// Number of the context `base:allocation`.
    pub base_allocation: Option<u32>,
    pub gateway: Option<Known>,
}

impl Session {
    /// Whether the export has this transmission flag.
    #[must_use]
    pub fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }
}

/// Runs the handshake on a blocking stream and stops at the first byte of the transmission phase.
///
/// # Errors
/// The server refuses the export, breaks the protocol, or the connection fails.
pub fn run<S: Read + Write>(stream: &mut S, export: &str, options: Wanted<'_>) -> Result<Session, HandshakeError> {
    greet(stream)?;
    choose(stream, export, options)
}

/// Runs the beginning of a handshake, up to where TLS begins. [`choose`] follows over TLS.
///
/// # Errors
/// The server has no TLS, breaks the protocol, or the connection fails.
pub fn start_tls<S: Read + Write>(stream: &mut S) -> Result<(), HandshakeError> {
    greet(stream)?;
    ask(stream, option::STARTTLS, &[], |_, _| Ok(()))
}

/// Runs the rest of a handshake, and stops at the first byte of the transmission phase.
///
/// # Errors
/// As [`run`].
pub fn choose<S: Read + Write>(stream: &mut S, export: &str, options: Wanted<'_>) -> Result<Session, HandshakeError> {
    let mut session = Session::default();
    if options.structured_replies {
        session.structured_replies = offered(ask(stream, option::STRUCTURED_REPLY, &[], |_, _| Ok(())))?;
    }
    if let Some(gateway) = &options.gateway {
        session.gateway = Some(introduce(stream, export, gateway)?);
    }
    let name = [&(export.len() as u32).to_be_bytes(), export.as_bytes()].concat();
    if options.base_allocation && session.structured_replies {
        session.base_allocation = select_base_allocation(stream, &name)?;
    }
    go(stream, &name, &mut session)?;
    Ok(session)
}

fn greet<S: Read + Write>(stream: &mut S) -> Result<(), HandshakeError> {
    let mut greeting = [0; 18];
    read(stream, &mut greeting)?;
    let flags = parse_greeting(&greeting).ok_or(broken("the greeting is not that of a newstyle server"))?;
    if flags & handshake_flag::FIXED_NEWSTYLE == 0 {
        return Err(broken("it does not support the fixed newstyle handshake"));
    }
    let answer = flags & (handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES);
    stream.write_all(&u32::from(answer).to_be_bytes()).map_err(HandshakeError::Io)
}

/// Makes a gateway known to a node, and makes sure that it is the one that is meant.
fn introduce<S: Read + Write>(stream: &mut S, export: &str, gateway: &Gateway<'_>) -> Result<Known, HandshakeError> {
    let Gateway { name, node, key, epoch, vm } = *gateway;
    let nonce = nonce().map_err(HandshakeError::Io)?;
    let (gateway, export) = (name.to_owned(), export.to_owned());
    let hello = Hello { gateway, epoch, nonce, export, vms: vec![vm.to_owned()] };
    let mut challenge = None;
    ask(stream, OPTION_HELLO, &hello.encode(), |kind, payload| {
        let read = (kind == REPLY_CHALLENGE).then(|| Challenge::parse(payload).ok()).flatten();
        challenge = Some(read.ok_or(broken("its challenge is of another version"))?);
        Ok(())
    })?;
    let challenge = challenge.ok_or(broken("the challenge is missing"))?;
    if challenge.node != node {
        return Err(HandshakeError::OtherNode { found: challenge.node });
    }
    let mut is_proven = false;
    ask(stream, OPTION_PROOF, &key.prove(Side::Client, &hello, &challenge), |kind, payload| {
        is_proven |= kind == REPLY_CONFIRMED && key.verifies(payload, Side::Server, &hello, &challenge);
        Ok(())
    })?;
    if !is_proven {
        return Err(broken("it does not have the gateway's key"));
    }
    let Challenge { node, device, start, .. } = challenge;
    Ok(Known { gateway: hello.gateway, epoch, vm: (vm.to_owned(), 0), server: (node, device), start })
}

/// Returns `None` if the server supports the option but not the context.
fn select_base_allocation<S: Read + Write>(stream: &mut S, name: &[u8]) -> Result<Option<u32>, HandshakeError> {
    let query = [&1u32.to_be_bytes(), &(BASE_ALLOCATION.len() as u32).to_be_bytes(), BASE_ALLOCATION.as_bytes()];
    let payload = [name, &query.concat()].concat();
    let mut id = None;
    let answer = ask(stream, option::SET_META_CONTEXT, &payload, |kind, payload| {
        if kind == option_reply::META_CONTEXT && payload.get(4..) == Some(BASE_ALLOCATION.as_bytes()) {
            id = Some(u32_at(payload, 0));
        }
        Ok(())
    });
    Ok(if offered(answer)? { id } else { None })
}

fn go<S: Read + Write>(stream: &mut S, name: &[u8], session: &mut Session) -> Result<(), HandshakeError> {
    let requests = [1u16.to_be_bytes(), info::BLOCK_SIZE.to_be_bytes()].concat();
    let mut has_size = false;
    ask(stream, option::GO, &[name, &requests].concat(), |kind, payload| {
        if kind != option_reply::INFO || payload.len() < 2 {
            return Err(broken("a reply to GO is not an information reply"));
        }
        match (u16_at(payload, 0), payload.len()) {
            (info::EXPORT, 12) => {
                (session.size_bytes, session.flags) = (u64_at(payload, 2), u16_at(payload, 10));
                has_size = true;
            }
            (info::BLOCK_SIZE, 14) => session.block_sizes = Some([2, 6, 10].map(|at| u32_at(payload, at))),
            (info::EXPORT | info::BLOCK_SIZE, _) => return Err(broken("an information reply has a wrong length")),
            _ => {}
        }
        Ok(())
    })?;
    if has_size { Ok(()) } else { Err(broken("the size of the export is missing")) }
}

/// Sends an option and passes each reply before the final one to `on_reply`.
fn ask<S: Read + Write>(
    stream: &mut S,
    code: u32,
    payload: &[u8],
    mut on_reply: impl FnMut(u32, &[u8]) -> Result<(), HandshakeError>,
) -> Result<(), HandshakeError> {
    let (magic, len) = (OPTION_MAGIC.to_be_bytes(), (payload.len() as u32).to_be_bytes());
    let message = [magic.as_slice(), &code.to_be_bytes(), &len, payload].concat();
    stream.write_all(&message).map_err(HandshakeError::Io)?;
    for _ in 0..REPLIES_MAX {
        let mut header = [0; OptionReplyHeader::LEN];
        read(stream, &mut header)?;
        let header = OptionReplyHeader::parse(&header).ok_or(broken("an option reply has a wrong magic"))?;
        if header.option != code || header.len_bytes > OPTION_LEN_MAX {
            return Err(broken("an option reply is for another option"));
        }
        let mut payload = vec![0; header.len_bytes as usize];
        read(stream, &mut payload)?;
        match header.kind {
            option_reply::ACK => return Ok(()),
            kind if kind & option_reply::ERROR_BIT != 0 => {
                // A log line has room for as much.
                let message = String::from_utf8_lossy(&payload);
                let message = message.chars().filter(|c| !c.is_control()).take(MESSAGE_MAX).collect();
                return Err(HandshakeError::Refused { option: code, kind, message });
            }
            kind => on_reply(kind, &payload)?,
        }
    }
    Err(broken("an option has too many replies"))
}

/// Returns `false` if the server refused an option that the client can do without.
fn offered(answer: Result<(), HandshakeError>) -> Result<bool, HandshakeError> {
    match answer {
        Ok(()) => Ok(true),
        Err(HandshakeError::Refused { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

fn read<S: Read>(stream: &mut S, bytes: &mut [u8]) -> Result<(), HandshakeError> {
    stream.read_exact(bytes).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => HandshakeError::Closed,
        _ => HandshakeError::Io(error),
    })
}

fn broken(what: &'static str) -> HandshakeError {
    HandshakeError::Protocol { what }
}
