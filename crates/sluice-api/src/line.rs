//! The socket: a connection has one request and one reply, each a line of JSON.
//!
//! Everything that depends on this form is here; both sides use it. A client waits for its reply. The daemon has a runtime, and
//! brings the lines itself.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use serde::de::DeserializeOwned;

use crate::request::{Code, Reply, Request, Written};

/// Maximum length of a request, in bytes.
pub const REQUEST_MAX: u64 = 1 << 20;
/// Bytes that are read at once: about what a socket holds. A reply about a large host has megabytes.
const READ_BYTES: usize = 256 << 10;

/// Sends a request to the daemon at a socket, and waits for the reply.
///
/// # Errors
/// If there is no daemon, if it closes the connection, or if its reply has another form.
pub fn ask<R: DeserializeOwned>(socket: &Path, request: &Request) -> io::Result<Reply<R>> {
    let mut stream = UnixStream::connect(socket)?;
    let mut text = serde_json::to_string(request).map_err(io::Error::other)?;
    text.push('\n');
    // A daemon that rejects the client does not read its request.
    let sent = stream.write_all(text.as_bytes());
    let mut line = String::new();
    if BufReader::with_capacity(READ_BYTES, stream).read_line(&mut line)? == 0 {
        sent?;
        return Err(io::Error::other("it closed the connection before its reply"));
    }
    serde_json::from_str(&line).map_err(io::Error::other)
}

/// Reads the line of a request.
///
/// # Errors
/// The reply to a line that is none.
pub fn read(line: &str) -> Result<Request, Written> {
    serde_json::from_str(line).map_err(|error| Reply::failed(Code::Invalid, format!("Invalid request: {error}")))
}

/// Writes the line of a reply.
///
/// # Panics
/// Never: all keys are strings.
#[must_use]
pub fn write(reply: &Written) -> String {
    let mut line = serde_json::to_string(reply).expect("its keys are strings");
    line.push('\n');
    line
}
