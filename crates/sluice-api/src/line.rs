//! The socket: a connection has one request and one reply, each a line of JSON.
//!
//! Everything that depends on this form is here; both sides use it. A client waits for its reply. The daemon has a runtime, and
//! brings the lines itself.

use std::io::{self, BufRead, BufReader, ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde::de::DeserializeOwned;

use crate::request::{Code, Reply, Request, Written};

/// Maximum length of a request, in bytes.
pub const REQUEST_MAX: u64 = 1 << 20;
/// Bytes that are read at once: about what a socket holds. A reply about a large host has megabytes.
const READ_BYTES: usize = 256 << 10;

/// Maximum time without a byte of the reply to a question. The daemon waits a second for a device that does not respond.
pub(crate) const QUESTION_MAX: Duration = Duration::from_secs(30);
/// The same for a change, which waits 5 s for each path that hangs.
pub(crate) const CHANGE_MAX: Duration = Duration::from_mins(5);

/// Sends a request to the daemon at a socket, and waits for the reply.
///
/// # Errors
/// If there is no daemon, if it does not reply in 30 s (to a change in 5 min), if it closes the connection, or if its reply has another form.
pub fn ask<R: DeserializeOwned>(socket: &Path, request: &Request) -> io::Result<Reply<R>> {
    let mut stream = UnixStream::connect(socket)?;
    let limit = if request.is_question() { QUESTION_MAX } else { CHANGE_MAX };
    stream.set_read_timeout(Some(limit))?;
    let mut text = serde_json::to_string(request).map_err(io::Error::other)?;
    text.push('\n');
    // A daemon that rejects the client does not read its request.
    let sent = stream.write_all(text.as_bytes());
    let mut line = String::new();
    let read = BufReader::with_capacity(READ_BYTES, stream).read_line(&mut line).map_err(|error| match error.kind() {
        ErrorKind::WouldBlock => {
            let later = if request.is_question() { "" } else { "; it may still make the change" };
            io::Error::new(ErrorKind::TimedOut, format!("no reply in {} s{later}", limit.as_secs()))
        }
        _ => error,
    });
    if read? == 0 {
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
