//! The client of the control socket: a verb sends a request to the daemon.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use sluice_config::CONTROL_SOCKET;

use super::{Code, Reply, Request};
use crate::output::{self, Format};
use sluice_daemon::failure::Failure;

/// Bytes that are read at once: about what a socket holds. A reply about a large host has megabytes.
const READ_BYTES: usize = 256 << 10;

/// The daemon to connect to.
#[derive(Clone, Args)]
pub(crate) struct Daemon {
    /// The daemon's control socket, as its host file names it. Default: $SLUICE_SOCKET, or /run/sluice/control.sock.
    // Not read by clap, because a variable must not conflict with the option of a verb that needs no daemon.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

impl Daemon {
    /// The daemon at this socket, or at the default one.
    pub(crate) fn at(socket: Option<PathBuf>) -> Self {
        Daemon { socket }
    }

    /// Sends the request, and prints the previous and the new state.
    pub(crate) fn ask(&self, request: &Request, format: Format) -> Result<(), Failure> {
        let reply: Reply = self.send(request)?;
        match format {
            Format::Json => {
                let mut json = json!({ "ok": true, "before": reply.before, "after": reply.after });
                if let Some(Value::Object(result)) = reply.result.map(|result| *result) {
                    json.as_object_mut().expect("it is one").extend(result);
                }
                output::json(&json);
            }
            Format::Table => {
                output::line(&report(&reply));
                warnings(reply.result.as_deref()).for_each(output::message);
            }
        }
        Ok(())
    }

    /// Sends the request, and returns what was asked for.
    pub(crate) fn get(&self, request: &Request) -> Result<Value, Failure> {
        self.read(request)
    }

    /// As [`Daemon::get`], into a type.
    pub(crate) fn read<R: DeserializeOwned + Default>(&self, request: &Request) -> Result<R, Failure> {
        self.send(request).map(|reply| reply.result.map_or_else(R::default, |result| *result))
    }

    /// Sends a change, and returns what it changed, in words.
    pub(crate) fn change(&self, request: &Request) -> Result<String, Failure> {
        let reply: Reply = self.send(request)?;
        let lines = [report(&reply)].into_iter().chain(warnings(reply.result.as_deref()).map(str::to_owned));
        Ok(lines.collect::<Vec<_>>().join("\n"))
    }

    fn send<R: DeserializeOwned>(&self, request: &Request) -> Result<Reply<R>, Failure> {
        let own = || std::env::var_os("SLUICE_SOCKET").map_or_else(|| PathBuf::from(CONTROL_SOCKET), PathBuf::from);
        let socket = self.socket.clone().unwrap_or_else(own);
        let reply = converse(&socket, request).map_err(|error| {
            let path = socket.display();
            Failure::Unreachable(match error.kind() {
                std::io::ErrorKind::PermissionDenied => format!(
                    "Cannot connect to {path}: {error}; only its owner and its group may connect: become root, or \
                     a member of the group (usermod -a -G sluice USER, then log in again)"
                ),
                std::io::ErrorKind::NotFound | std::io::ErrorKind::ConnectionRefused => format!(
                    "No daemon at {path}: {error}; start it (`systemctl start sluice`, or `sluice serve FILE`), or name the \
                     `control` of its host file with --socket"
                ),
                _ => format!(
                    "The daemon at {path} has not answered: {error}; repeat the command, and see its log if this happens \
                     again"
                ),
            })
        })?;
        if reply.ok { Ok(reply) } else { Err(refused(reply)) }
    }
}

fn converse<R: DeserializeOwned>(socket: &Path, request: &Request) -> std::io::Result<Reply<R>> {
    let mut stream = UnixStream::connect(socket)?;
    let mut text = serde_json::to_string(request).map_err(std::io::Error::other)?;
    text.push('\n');
    // A daemon that rejects the client does not read its request.
    let sent = stream.write_all(text.as_bytes());
    let mut line = String::new();
    if BufReader::with_capacity(READ_BYTES, stream).read_line(&mut line)? == 0 {
        sent?;
        return Err(std::io::Error::other("it closed the connection before its reply"));
    }
    serde_json::from_str(&line).map_err(std::io::Error::other)
}

/// Warnings in the result of a change.
pub(crate) fn warnings(result: Option<&Value>) -> impl Iterator<Item = &str> {
    result.and_then(|result| result["warnings"].as_array()).into_iter().flatten().filter_map(Value::as_str)
}

fn refused<R>(reply: Reply<R>) -> Failure {
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

/// Returns the changes of several VMs or volumes as text.
fn report_many(changed: &[Value]) -> String {
    let mut table = output::table(&["NAME", "KEY", "BEFORE", "NOW"]);
    for one in changed {
        let name = one["name"].as_str().unwrap_or_default();
        let before = shown(&one["before"]);
        let was = |key: &str| before.iter().find(|(known, _)| known == key).map_or(NOTHING, |(_, was)| was.as_str());
        let after = shown(&one["after"]);
        let mut rows: Vec<_> =
            after.iter().filter(|(key, now)| was(key) != now).map(|(key, now)| [name, key, was(key), now]).collect();
        if rows.is_empty() {
            rows.push([name, "unchanged", NOTHING, NOTHING]);
        }
        table.add_rows(rows);
    }
    if changed.is_empty() { "Done; no VM or volume is changed".to_owned() } else { table.to_string() }
}

/// Returns the reply as text: the new state, or the changes.
fn report(reply: &Reply) -> String {
    let many = reply.result.as_ref().and_then(|result| result["changed"].as_array());
    if let Some(changed) = many {
        return report_many(changed);
    }
    let (before, after) = (shown(&reply.before), shown(&reply.after));
    let undone = reply.result.as_ref().and_then(|result| result["taken_back"].as_array());
    if let Some(undone) = undone.filter(|undone| !undone.is_empty() && before.is_empty() && after.is_empty()) {
        return format!("Undone: {}", undone.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(", "));
    }
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
        Reply { ok: true, code: None, error: None, result: None, before, after, line: None }
    }

    fn lines(reply: &Reply) -> Vec<String> {
        report(reply).lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
    }

    #[test]
    fn a_daemon_that_rejected_a_client_without_reading_its_request_was_said_not_to_run() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("control");
        let ask = |reply: &'static str| {
            let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
            let daemon = std::thread::spawn(move || listener.accept().unwrap().0.write_all(reply.as_bytes()).unwrap());
            // Longer than what the socket holds, so it cannot be sent before the daemon has closed the connection.
            let request = Request::History { vm: "x".repeat(4 << 20), volume: None };
            let error = Daemon::at(Some(socket.clone())).get(&request).unwrap_err().into_text();
            daemon.join().unwrap();
            std::fs::remove_file(&socket).unwrap();
            error
        };
        let rejected = ask("{\"ok\":false,\"code\":\"refused\",\"error\":\"Too many clients\"}\n");
        assert_eq!(rejected, "Too many clients");
        let silent = ask("");
        assert!(silent.contains("has not answered") && !silent.contains("No daemon"), "{silent}");
        let nobody = Daemon::at(Some(socket)).get(&Request::Status).unwrap_err().into_text();
        assert!(nobody.contains("No daemon at") && nobody.contains("systemctl start sluice"), "{nobody}");
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
        let mut several = reply(Value::Null, Value::Null);
        several.result = Some(Box::new(json!({ "taken_back": ["a/limit", "b"] })));
        assert_eq!(lines(&several), ["Undone: a/limit, b"]);
    }
}
