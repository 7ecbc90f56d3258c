//! The client of the control socket: a verb sends a request to the daemon.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};

use super::{Code, Reply, Request};
use crate::failure::Failure;
use crate::output::{self, Format};

/// The daemon to connect to.
#[derive(Args)]
pub(crate) struct Daemon {
    /// The daemon's control socket, as its host file names it.
    #[arg(long, value_name = "PATH", env = "SLUICE_SOCKET", default_value = "/run/sluice/control.sock")]
    socket: PathBuf,
}

impl Daemon {
    /// Sends the request, and prints the previous and the new state.
    pub(crate) fn ask(&self, request: &Request, format: Format) -> Result<(), Failure> {
        let reply = self.send(request)?;
        match format {
            Format::Json => {
                let mut json = json!({ "ok": true, "before": reply.before, "after": reply.after });
                if let Some(Value::Object(result)) = reply.result.map(|result| *result) {
                    json.as_object_mut().expect("it is one").extend(result);
                }
                output::json(&json);
            }
            Format::Table => output::line(&report(&reply)),
        }
        Ok(())
    }

    /// Sends the request, and returns what was asked for.
    pub(crate) fn get(&self, request: &Request) -> Result<Value, Failure> {
        self.send(request).map(|reply| reply.result.map_or(Value::Null, |result| *result))
    }

    fn send(&self, request: &Request) -> Result<Reply, Failure> {
        let reply = self.converse(request).map_err(|error| {
            let path = self.socket.display();
            Failure::Unreachable(format!(
                "No daemon at {path}: {error}; start it with `control = \"{path}\"` in [daemon], or name its socket \
                 with --socket"
            ))
        })?;
        if reply.ok { Ok(reply) } else { Err(refused(reply)) }
    }

    fn converse(&self, request: &Request) -> std::io::Result<Reply> {
        let mut stream = UnixStream::connect(&self.socket)?;
        let mut text = serde_json::to_string(request).map_err(std::io::Error::other)?;
        text.push('\n');
        stream.write_all(text.as_bytes())?;
        let mut line = String::new();
        if BufReader::new(stream).read_line(&mut line)? == 0 {
            return Err(std::io::Error::other("the daemon closed the connection before its reply"));
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
        Some(Code::Invalid | Code::Incomplete) | None => Failure::Run(text.into()),
    }
}

/// Text for a field that is not set.
const NOTHING: &str = "-";

/// Returns the reply as text: the new state, or the changes.
fn report(reply: &Reply) -> String {
    let (before, after) = (shown(&reply.before), shown(&reply.after));
    if after.is_empty() {
        return "No longer served".to_owned();
    }
    if before.is_empty() {
        let mut table = output::table(&["KEY", "NOW"]);
        table.add_rows(after.into_iter().filter(|(_, now)| now != NOTHING).map(|(key, now)| [key, now]));
        return table.to_string();
    }
    let was = |key: &str| before.iter().find(|(known, _)| known == key).map_or(NOTHING, |(_, was)| was.as_str());
    let different: Vec<_> = after.iter().filter(|(key, now)| was(key) != now).collect();
    if different.is_empty() {
        return "Done; its policy, size and source are unchanged".to_owned();
    }
    let mut table = output::table(&["KEY", "BEFORE", "NOW"]);
    table.add_rows(different.into_iter().map(|(key, now)| [key, was(key), now]));
    table.to_string()
}

/// Returns the fields of a VM or a volume that are set, as names and values.
fn shown(value: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| match value {
        Value::Null => NOTHING.to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(names) => names.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" "),
        Value::Number(number) => number.as_f64().map_or_else(|| number.to_string(), |number| number.to_string()),
        other => other.to_string(),
    };
    let all = value.as_object().into_iter().flatten();
    all.flat_map(|(key, value)| match value {
        Value::Object(inner) => inner.iter().map(|(key, value)| (key.clone(), text(value))).collect(),
        value => vec![(key.clone(), text(value))],
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(before: Value, after: Value) -> Reply {
        Reply { ok: true, code: None, error: None, result: None, before, after }
    }

    fn lines(reply: &Reply) -> Vec<String> {
        report(reply).lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
    }

    #[test]
    fn a_reply_is_shown_as_the_changed_fields() {
        let vm = |limit: Value, class: &str| json!({ "policy": { "limit_iops": limit, "class": class, "weight": 100.0 }, "volumes": ["a", "b"] });
        let changed = reply(vm(Value::Null, "foreground"), vm(500.0.into(), "background"));
        assert_eq!(lines(&changed), ["KEY BEFORE NOW", "class foreground background", "limit_iops - 500"]);
        let same = reply(vm(Value::Null, "foreground"), vm(Value::Null, "foreground"));
        assert_eq!(lines(&same), ["Done; its policy, size and source are unchanged"]);
        let new = reply(
            Value::Null,
            json!({ "device": "disk", "size_bytes": 42_949_672_960_u64, "policy": { "weight": 0.5, "burst": null } }),
        );
        assert_eq!(lines(&new), ["KEY NOW", "device disk", "weight 0.5", "size_bytes 42949672960"]);
        assert_eq!(lines(&reply(vm(Value::Null, "foreground"), Value::Null)), ["No longer served"]);
    }
}
