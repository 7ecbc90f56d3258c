//! The client of the control socket: a verb sends a request to the daemon, over HTTP as any other program.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::de::DeserializeOwned;
use serde_json::Value;
use sluice_api::change::{Change, ChangeResult, Changed, Holds, Override, Settings, until_in_words};
use sluice_api::fields;
use sluice_api::http::{self, Failed};
use sluice_api::list::Names;
use sluice_api::policy::Policy;
use sluice_api::problem::Kind;
use sluice_api::request::{Reply, Request};
use sluice_config::CONTROL_SOCKET;
use sluice_config::changes::Object;

use crate::show;
use sluice_daemon::failure::Failure;

use crate::output::{self, Format};

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

    /// The path of its control socket.
    pub(crate) fn path(&self) -> PathBuf {
        self.socket.clone().unwrap_or_else(default_socket)
    }

    /// The arguments that name it to another command.
    pub(crate) fn arguments(&self) -> Vec<OsString> {
        self.socket.iter().flat_map(|socket| ["--socket".into(), socket.into()]).collect()
    }

    /// Sends the request, and prints the previous and the new state.
    pub(crate) fn ask(&self, request: &Request, format: Format) -> Result<(), Failure> {
        let result = self.changed(request)?;
        match format {
            Format::Json => output::json(&result),
            Format::Table => {
                output::line(&report(&result));
                holds(&result.changed.holds).iter().for_each(|line| output::line(line));
                result.changed.warnings.iter().for_each(output::message);
            }
        }
        Ok(())
    }

    /// Sends the request, and returns what was asked for.
    pub(crate) fn get<R: DeserializeOwned + Default>(&self, request: &Request) -> Result<R, Failure> {
        self.send(request).map(|reply| reply.result.unwrap_or_default())
    }

    /// Sends a change, and returns what it changed, in words.
    pub(crate) fn change(&self, request: &Request) -> Result<String, Failure> {
        let result = self.changed(request)?;
        let lines = [report(&result)].into_iter().chain(holds(&result.changed.holds)).chain(result.changed.warnings);
        Ok(lines.collect::<Vec<_>>().join("\n"))
    }

    fn changed(&self, request: &Request) -> Result<ChangeResult, Failure> {
        let Reply { before, after, result, .. } = self.send::<Changed>(request)?;
        Ok(ChangeResult { ok: true, before, after, changed: result.unwrap_or_default() })
    }

    /// Whether the default socket is asked, and nothing listens there.
    pub(crate) fn is_absent_at_default(&self) -> bool {
        let connected = || UnixStream::connect(default_socket()).map_err(|error| error.kind());
        self.socket.is_none() && matches!(connected(), Err(ErrorKind::NotFound | ErrorKind::ConnectionRefused))
    }

    /// Refuses a request about what cannot be its object.
    fn check(&self, request: &Request) -> Result<(), Failure> {
        let Some(target) = request.target() else { return Ok(()) };
        let refused = |error: String| Err(Failure::Run(error.into()));
        let object = target.parse::<Object>().map_err(|error| Failure::Run(error.into()))?;
        let of_image =
            matches!(request, Request::Resize { .. } | Request::Takeover { .. } | Request::AcceptLoss { .. });
        match object {
            Object::Policy(_) if !matches!(request, Request::Set { .. } | Request::Keys { .. }) => {
                return Err(Failure::NotFound(format!("{target} is a named policy, which only `sluice set` changes")));
            }
            Object::Target(nic) if of_image && nic.as_nic().is_some() => {
                return refused(format!("{target} is a NIC, which has no image and no size; name a volume"));
            }
            _ if target.contains('/') => return Ok(()),
            _ => {}
        }
        match request {
            Request::Attach { .. } => {
                refused(format!("'{target}' is a VM; write VM/VOLUME, for example {target}/data"))
            }
            Request::Resize { .. } | Request::Takeover { .. } => {
                let Names { vms, .. } = self.get(&Request::Names)?;
                let Some(vm) = vms.into_iter().find(|vm| vm.vm == target) else {
                    return Err(Failure::NotFound(format!("There is no VM {target}; `sluice get vms` lists them")));
                };
                let names: Vec<String> = vm.volumes.into_iter().map(|volume| volume.volume).collect();
                refused(format!("{target} is a VM; name one of its volumes: {}", names.join(", ")))
            }
            _ => Ok(()),
        }
    }

    fn send<R: DeserializeOwned>(&self, request: &Request) -> Result<Reply<R>, Failure> {
        self.check(request)?;
        let socket = self.path();
        http::ask(&socket, request).map_err(|failed| failure(&socket, failed))
    }
}

/// The failure of a request that has no answer.
fn failure(socket: &Path, failed: Failed) -> Failure {
    let path = socket.display();
    Failure::Unreachable(match failed {
        Failed::Refused(problem) => return refused(problem.kind(), problem.text.unwrap_or(problem.detail)),
        Failed::Connect(error) if error.kind() == ErrorKind::PermissionDenied => format!(
            "Cannot connect to {path}: {error}; only its owner and its group may connect: become root, or \
             a member of the group (usermod -a -G sluice USER, then log in again)"
        ),
        Failed::Connect(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => {
            format!(
                "No daemon at {path}: {error}; start it (`systemctl start sluice`, or `sluice serve FILE`), or name the \
             `control` of its host file with --socket"
            )
        }
        Failed::Connect(error) => format!("Cannot connect to {path}: {error}"),
        Failed::Broken(error) => format!(
            "The daemon at {path} has not answered: {error}; repeat the command, and see its log if this happens again"
        ),
        Failed::NoHttp => {
            format!("The daemon at {path} is of an older version, which does not answer this: restart it")
        }
    })
}

fn default_socket() -> PathBuf {
    std::env::var_os("SLUICE_SOCKET").map_or_else(|| PathBuf::from(CONTROL_SOCKET), PathBuf::from)
}

/// The failure of a request that was refused for this reason.
pub(super) fn refused(kind: Option<Kind>, text: String) -> Failure {
    let text = text.strip_prefix("error: ").map_or(text.clone(), str::to_owned);
    match kind {
        Some(Kind::NotFound) => Failure::NotFound(text),
        Some(Kind::Refused | Kind::Exists | Kind::Changed | Kind::Forbidden) => Failure::Refused(text),
        _ => Failure::Run(text.into()),
    }
}

/// Text for a field that is not set.
const NOTHING: &str = "-";

/// Returns the changes of several VMs or volumes as text.
fn report_many(changed: &[Change]) -> String {
    let mut table = output::table(&["NAME", "KEY", "BEFORE", "NOW"]);
    for one in changed {
        let name = one.name.as_str();
        let before = shown(one.before.as_ref());
        let was = |key: &str| before.iter().find(|(known, _)| known == key).map_or(NOTHING, |(_, was)| was.as_str());
        let after = shown(one.after.as_ref());
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
fn report(ChangeResult { before, after, changed, .. }: &ChangeResult) -> String {
    if let Some(changed) = &changed.changed {
        return report_many(changed);
    }
    let (before, after) = (shown(before.as_ref()), shown(after.as_ref()));
    let undone = changed.taken_back.as_ref();
    if let Some(undone) = undone.filter(|undone| !undone.is_empty() && before.is_empty() && after.is_empty()) {
        return format!("Undone: {}", undone.join(", "));
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

/// Returns how long a change holds, what it has replaced, and how to undo it, in sentences.
fn holds(Holds { until, undo, replaced, afterwards, .. }: &Holds) -> Vec<String> {
    let Some(until) = until else { return Vec::new() };
    let was = |old: &Override| {
        let value = old.value.as_str().map_or_else(|| old.value.to_string(), str::to_owned);
        let reason = old.reason.as_ref().map_or(String::new(), |reason| format!(", reason: {reason}"));
        format!("Replaced: {} = {value} ({}{reason})", old.name, until_in_words(&old.until))
    };
    let mut lines: Vec<String> = replaced.iter().map(was).collect();
    let then = afterwards.iter().map(|(name, value)| format!("{name} = {value}")).collect::<Vec<_>>().join(", ");
    let then = if then.is_empty() { then } else { format!("; then {then}") };
    lines.push(format!("Holds {}{then}", until_in_words(until)));
    lines.extend(undo.iter().map(|command| format!("Undo: {command}")));
    lines
}

/// Returns the fields of a VM or a volume that are set, as names and values.
fn shown(settings: Option<&Settings>) -> Vec<(String, String)> {
    // A priority that nobody has set tells nothing.
    let usual = sluice_sched::Policy::default().priority_level;
    let defaults = fields(&Policy { priority_level: usual, ..Policy::default() });
    let is_default = |field: &(String, Value)| field.0.starts_with("priority_") && defaults.contains(field);
    let fields = settings.map_or_else(Vec::new, fields).into_iter().filter(|field| !is_default(field));
    fields.map(|(key, value)| show::field(key, &value)).collect()
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use sluice_api::change::{VmSettings, VolumeSettings};
    use sluice_api::policy::{Class, Policy};
    use sluice_api::request::How;

    use super::*;

    fn result(before: Option<Settings>, after: Option<Settings>) -> ChangeResult {
        ChangeResult { ok: true, before, after, ..ChangeResult::default() }
    }

    fn lines(result: &ChangeResult) -> Vec<String> {
        report(result).lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
    }

    #[test]
    fn a_daemon_that_rejected_a_client_without_reading_its_request_was_said_not_to_run() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("control");
        let request = |length: usize| {
            let keys = toml::Table::from_iter([("serial".to_owned(), "x".repeat(length).into())]);
            Request::Set { target: "a".to_owned(), keys, reset: Vec::new(), how: How::default() }
        };
        let ask = |reply: &'static str| {
            let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
            let daemon = std::thread::spawn(move || {
                let mut client = listener.accept().unwrap().0;
                client.read_exact(&mut [0]).unwrap();
                client.write_all(reply.as_bytes()).unwrap();
            });
            let error = Daemon::at(Some(socket.clone())).get::<Changed>(&request(60_000)).unwrap_err().into_text();
            daemon.join().unwrap();
            std::fs::remove_file(&socket).unwrap();
            error
        };
        let rejected = ask(
            "HTTP/1.1 409 Conflict\r\ncontent-length: 46\r\n\r\n{\"code\":\"refused\",\"detail\":\"Too many clients\"}",
        );
        assert_eq!(rejected, "Too many clients");
        let long = Daemon::at(Some(socket.clone()));
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let long = long.get::<Changed>(&request(70_000)).unwrap_err().into_text();
        assert!(long.contains("longer than 65536 bytes"), "{long}");
        std::fs::remove_file(&socket).unwrap();
        let silent = ask("");
        let older = ask("{\"ok\":false,\"code\":\"invalid\"}\n");
        assert!(older.contains("is of an older version, which does not answer this: restart it"), "{older}");
        assert!(silent.contains("has not answered") && !silent.contains("No daemon"), "{silent}");
        let nobody = Daemon::at(Some(socket)).get::<Changed>(&Request::Status).unwrap_err().into_text();
        assert!(nobody.contains("No daemon at") && nobody.contains("systemctl start sluice"), "{nobody}");
    }

    #[test]
    fn a_reply_is_shown_as_the_changed_fields() {
        let vm = |limit_iops, class| {
            let policy = Policy { limit_iops, class, weight: Some(100.0), ..Policy::default() };
            let volumes = vec!["a".to_owned(), "b".to_owned()];
            Some(Settings::Vm(Box::new(VmSettings { policy, volumes, ..VmSettings::default() })))
        };
        let changed = result(vm(None, Class::Foreground), vm(Some(500.0), Class::Background));
        assert_eq!(lines(&changed), ["KEY BEFORE NOW", "class foreground background", "limit_iops - 500"]);
        let same = result(vm(None, Class::Foreground), vm(None, Class::Foreground));
        assert_eq!(lines(&same), ["Done; its policy, size and source are unchanged"]);
        let volume = VolumeSettings {
            device: "disk".to_owned(),
            size_bytes: Some(42_949_672_960),
            policy: Policy { weight: Some(0.5), ..Policy::default() },
            ..VolumeSettings::default()
        };
        let new = lines(&result(None, Some(Settings::Volume(Box::new(volume)))));
        for line in ["KEY NOW", "device disk", "weight 0.5", "size 40 GiB"] {
            assert!(new.iter().any(|shown| shown == line), "{line}: {new:?}");
        }
        assert!(!new.iter().any(|shown| shown.starts_with("burst")), "it is not set: {new:?}");
        assert_eq!(lines(&result(vm(None, Class::Foreground), None)), ["No longer served"]);
        let mut several = result(None, None);
        several.changed.taken_back = Some(vec!["a/limit".to_owned(), "b".to_owned()]);
        assert_eq!(lines(&several), ["Undone: a/limit, b"]);
    }
}
