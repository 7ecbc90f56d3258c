//! The other side: a verb asks the daemon.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use super::{Code, Reply, Request};
use crate::failure::Failure;
use crate::output::{self, Format};

/// Where the daemon is.
#[derive(Args)]
pub(crate) struct Daemon {
    /// The daemon's control socket, as its host file names it.
    #[arg(long, value_name = "PATH", env = "SLUICE_SOCKET", default_value = "/run/sluice/control.sock")]
    socket: PathBuf,
}

impl Daemon {
    /// Asks, and prints what was before and what is now.
    pub(crate) fn ask(&self, request: &Request, format: Format) -> Result<(), Failure> {
        let reply = self.converse(request).map_err(|error| {
            let path = self.socket.display();
            Failure::Unreachable(format!(
                "No daemon at {path}: {error}; start it with `control = \"{path}\"` in [daemon], or name its socket \
                 with --socket"
            ))
        })?;
        if !reply.ok {
            return Err(refused(reply));
        }
        match format {
            Format::Json => output::json(&json!({ "ok": true, "before": reply.before, "after": reply.after })),
            Format::Table => print(&reply),
        }
        Ok(())
    }

    fn converse(&self, request: &Request) -> std::io::Result<Reply> {
        let mut stream = UnixStream::connect(&self.socket)?;
        let mut text = serde_json::to_string(request).map_err(std::io::Error::other)?;
        text.push('\n');
        stream.write_all(text.as_bytes())?;
        let mut line = String::new();
        if BufReader::new(stream).read_line(&mut line)? == 0 {
            return Err(std::io::Error::other("it ended before it answered"));
        }
        serde_json::from_str(&line).map_err(std::io::Error::other)
    }
}

fn refused(reply: Reply) -> Failure {
    let text = reply.error.unwrap_or_default();
    let text = text.strip_prefix("error: ").map_or(text.clone(), str::to_owned);
    match reply.code {
        Some(Code::NotFound) => Failure::NotFound(text),
        Some(Code::Refused | Code::Exists) => Failure::Refused(text),
        Some(Code::Invalid) | None => Failure::Run(text.into()),
    }
}

fn print(reply: &Reply) {
    let show = |value: &serde_json::Value| if value.is_null() { "not there".to_owned() } else { value.to_string() };
    output::line(&format!("before: {}", show(&reply.before)));
    output::line(&format!("after:  {}", show(&reply.after)));
}
