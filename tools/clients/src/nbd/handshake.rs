//! The client's half of the handshake: structured replies and `base:allocation` if requested, then `GO`.

use std::io::{self, Read, Write};

use super::{ClientError, ClientOptions};
use sluice_io::nbd::handshake::{OPTION_LEN_MAX, OptionReplyHeader, parse_greeting};
use sluice_io::nbd::wire::{
    BASE_ALLOCATION, OPTION_MAGIC, handshake_flag, info, option, option_reply, u16_at, u32_at, u64_at,
};

/// Maximum number of replies to one option; a server that sends more is rejected.
const REPLIES_MAX: usize = 1024;

/// Options and export properties that client and server have negotiated.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Session {
    pub(super) size_bytes: u64,
    pub(super) flags: u16,
    pub(super) block_sizes: Option<[u32; 3]>,
    pub(super) structured_replies: bool,
    pub(super) base_allocation: Option<u32>,
}

/// Runs the handshake on a blocking stream and stops at the first byte of the transmission phase.
pub(super) fn run<S: Read + Write>(
    stream: &mut S,
    export: &str,
    options: &ClientOptions,
) -> Result<Session, ClientError> {
    let mut session = Session::default();
    greet(stream)?;
    if options.structured_replies {
        session.structured_replies = offered(ask(stream, option::STRUCTURED_REPLY, &[], |_, _| Ok(())))?;
    }
    let name = [&(export.len() as u32).to_be_bytes(), export.as_bytes()].concat();
    if options.base_allocation && session.structured_replies {
        session.base_allocation = select_base_allocation(stream, &name)?;
    }
    go(stream, &name, &mut session)?;
    Ok(session)
}

fn greet<S: Read + Write>(stream: &mut S) -> Result<(), ClientError> {
    let mut greeting = [0; 18];
    read(stream, &mut greeting)?;
    let flags = parse_greeting(&greeting).ok_or(broken("the greeting is not that of a newstyle server"))?;
    if flags & handshake_flag::FIXED_NEWSTYLE == 0 {
        return Err(broken("it does not support the fixed newstyle handshake"));
    }
    let answer = flags & (handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES);
    stream.write_all(&u32::from(answer).to_be_bytes()).map_err(ClientError::Io)
}

/// Returns `None` if the server supports the option but not the context.
fn select_base_allocation<S: Read + Write>(stream: &mut S, name: &[u8]) -> Result<Option<u32>, ClientError> {
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

fn go<S: Read + Write>(stream: &mut S, name: &[u8], session: &mut Session) -> Result<(), ClientError> {
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
    mut on_reply: impl FnMut(u32, &[u8]) -> Result<(), ClientError>,
) -> Result<(), ClientError> {
    let (magic, len) = (OPTION_MAGIC.to_be_bytes(), (payload.len() as u32).to_be_bytes());
    let message = [magic.as_slice(), &code.to_be_bytes(), &len, payload].concat();
    stream.write_all(&message).map_err(ClientError::Io)?;
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
                let message = String::from_utf8_lossy(&payload).into_owned();
                return Err(ClientError::Refused { option: code, kind, message });
            }
            kind => on_reply(kind, &payload)?,
        }
    }
    Err(broken("an option has too many replies"))
}

/// Returns `false` if the server refused an option that the client can do without.
fn offered(answer: Result<(), ClientError>) -> Result<bool, ClientError> {
    match answer {
        Ok(()) => Ok(true),
        Err(ClientError::Refused { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

fn read<S: Read>(stream: &mut S, bytes: &mut [u8]) -> Result<(), ClientError> {
    stream.read_exact(bytes).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => ClientError::Closed,
        _ => ClientError::Io(error),
    })
}

fn broken(what: &'static str) -> ClientError {
    ClientError::Protocol { what }
}
