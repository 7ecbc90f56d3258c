//! `sluice report`: one archive for a ticket.
//!
//! A part is what a command of this program prints, run as an operator would run it. So the archive has nothing that they could not ask
//! for, and a part that fails or hangs costs the others nothing.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use serde_json::{Value, json};
use sluice_api::amount;
use sluice_config::secret::{self, without_urls};
use sluice_config::{dropins, load};
use sluice_console::progress::{Progress, Style};
use sluice_daemon::VERSION;
use sluice_daemon::failure::Failure;
use sluice_daemon::state::time::Time;

use crate::control::moment::Moment;
use crate::control::record::{HOST_FILE, Source};
use crate::output::{self, Format};

mod archive;
mod child;

use child::Printed;

/// Minimum length of a secret, in bytes.
const SECRET_MIN: usize = 8;

/// Write one archive for a ticket: what runs, what happened, and how this host is set up.
///
/// It contains, as text and as JSON, what these commands print: `status`, `get vms`, `volumes`, `devices`, `clients`, `policies` and
/// `overrides`, `events`, `metrics`, `check` and `doctor`, and for each VM `get history` and `why`; also the host file and its drop-ins
/// without secrets (webhooks keep only their host), and versions. While the daemon does not run, events, history and `why` come from its state
/// directory. README.txt in the archive lists the parts, and why one is missing. Only its owner may read the archive. Look through the host
/// file's comments before you send it.
#[derive(Args)]
pub(crate) struct Report {
    /// Host file.
    #[arg(default_value = HOST_FILE)]
    file: PathBuf,
    /// Length of the past to look at.
    #[arg(long, value_name = "TIME", default_value = "2h", allow_hyphen_values = true)]
    since: Moment,
    /// File to write, which must not exist. Default: sluice-report-HOST-TIME.tar.gz in this folder.
    #[arg(long, value_name = "FILE")]
    archive: Option<PathBuf>,
    #[command(flatten)]
    source: Source,
}

/// A command, what there is of it, and what it said on standard error.
#[derive(Debug, Serialize)]
struct Part {
    command: String,
    files: Vec<String>,
    /// Why it is missing, or warnings.
    message: Option<String>,
}

/// The parts so far.
#[derive(Default)]
struct Parts {
    list: Vec<Part>,
    files: Vec<(String, String)>,
    /// Values that the host file keeps secret.
    secrets: Vec<String>,
    /// Why the daemon is not asked any more.
    is_silent: Option<String>,
}

/// The tables of a command: with more columns if it has rows.
const TABLE: [&str; 2] = ["-o", "table"];
const WIDE: [&str; 2] = ["-o", "wide"];

impl Report {
    /// Length of the past that is told of.
    fn since(&self) -> Duration {
        let now = Time::now();
        now.from(Time(self.since.at(now)))
    }

    pub(crate) fn run(self, format: Format, quiet: bool) -> Result<(), Failure> {
        let (host, now) = (first_line("/proc/sys/kernel/hostname"), Time::of_clock().to_string().replace(':', ""));
        let name = format!("sluice-report-{}-{now}", archive::in_name(&host));
        let path = self.archive.clone().unwrap_or_else(|| PathBuf::from(format!("{name}.tar.gz")));
        if path.symlink_metadata().is_ok() {
            let error = format!("{} exists, and is not replaced; name another file with --archive", path.display());
            return Err(Failure::Refused(error));
        }
        let parts = self.collect(quiet);
        let readme = self.readme(&host, &parts);
        let files = [("README.txt".to_owned(), readme)].into_iter().chain(parts.files);
        let size = archive::write(&path, &name, files).map_err(|error| {
            Failure::Run(
                format!("Cannot write {}: {error}; name a file elsewhere with --archive", path.display()).into(),
            )
        })?;
        match format {
            Format::Json => output::json(&json!({
                "ok": true, "file": path, "size_bytes": size, "parts": parts.list,
            })),
            Format::Table => {
                output::line(&format!("{}: {}", path.display(), amount::size(size)));
                missing(&parts.list).iter().for_each(|line| output::line(line));
            }
        }
        Ok(())
    }

    fn collect(&self, quiet: bool) -> Parts {
        let mut parts = Parts::default();
        parts.add_host_files(&self.file);
        parts.add_versions();
        let file = self.file.as_os_str().to_owned();
        let is_down = self.source.is_down();
        // Of the file of the report, which need not be that of the package.
        let past = match is_down {
            true => vec!["--state".into(), self.source.state_of(&self.file).into()],
            false => self.source.daemon().arguments(),
        };
        let since = ["--since".into(), OsString::from(format!("{}s", self.since().as_secs()))];
        let daemon = self.source.daemon().arguments();
        let ask = |verb: &[&str], more: &[OsString]| -> Vec<OsString> {
            verb.iter().map(OsString::from).chain(more.iter().cloned()).collect()
        };
        parts.add("status", WIDE, &ask(&["status"], &daemon));
        for what in ["vms", "volumes", "devices", "clients", "policies"] {
            parts.add(what, WIDE, &ask(&["get", what], &daemon));
        }
        parts.add("overrides", WIDE, &ask(&["get", "overrides"], &past));
        let events = ask(&["events", "-n", "10000"], &[&since[..], &past].concat());
        parts.add("events", WIDE, &events);
        parts.add_text("metrics.prom", &ask(&["metrics"], &daemon));
        parts.add("check", TABLE, &ask(&["check"], std::slice::from_ref(&file)));
        parts.add("doctor", TABLE, &ask(&["doctor"], &[file]));
        let mut progress = Progress::new("Report", Style::Auto, quiet);
        let vms = self.vms(&parts);
        for (number, vm) in (1_u32..).zip(&vms) {
            let more = [&since[..], &past].concat();
            let folder = format!("vms/{}", archive::in_name(vm));
            parts.add(&format!("{folder}/history"), WIDE, &ask(&["get", "history", vm], &more));
            parts.add(&format!("{folder}/why"), TABLE, &ask(&["why", vm], &more));
            progress.show(f64::from(number) / vms.len() as f64);
        }
        progress.end();
        parts
    }

    /// The VMs that are served, have events, or, without a daemon, are in the host file.
    fn vms(&self, parts: &Parts) -> BTreeSet<String> {
        let named = |file: &str, key: &str| -> Option<BTreeSet<String>> {
            let (_, text) = parts.files.iter().find(|(name, _)| name == file)?;
            let rows: Value = serde_json::from_str(text).ok()?;
            let vm = |row: &Value| row["vm"].as_str().map(str::to_owned);
            Some(rows[key].as_array()?.iter().filter_map(vm).collect())
        };
        let of_file = || load(&self.file).map(|host| host.vms.keys().cloned().collect()).unwrap_or_default();
        let mut vms = named("vms.json", "vms").unwrap_or_else(of_file);
        vms.extend(named("events.json", "events").unwrap_or_default());
        vms
    }

    fn readme(&self, host: &str, parts: &Parts) -> String {
        let mut text = format!(
            "Report of Sluicegate on {host}, made at {} by sluice {VERSION}, about the last {}.\n\nWithout secrets: [left-out] \
             stands for them. The comments of the host file are as they are there.\n",
            Time::of_clock(),
            amount::time(1e6 * self.since().as_secs_f64())
        );
        for Part { command, files, message } in &parts.list {
            text += &format!("\n{command}\n");
            for file in files {
                text += &format!("    {file}\n");
            }
            let title = if files.is_empty() { "missing: " } else { "" };
            for line in message.iter().flat_map(|message| message.lines()) {
                text += &format!("    {title}{line}\n");
            }
        }
        text
    }
}

impl Parts {
    /// Adds what a command of this program prints, for people and as JSON.
    fn add(&mut self, name: &str, table: [&str; 2], command: &[OsString]) {
        self.add_forms(&[(&format!("{name}.txt"), &table), (&format!("{name}.json"), &["-o", "json"])], command);
    }

    fn add_text(&mut self, name: &str, command: &[OsString]) {
        self.add_forms(&[(name, &[])], command);
    }

    /// A command that fails prints nothing in a form for people, unless what it found is the failure.
    fn add_forms(&mut self, forms: &[(&str, &[&str])], command: &[OsString]) {
        let shown: Vec<_> = command.iter().map(|word| word.to_string_lossy()).collect();
        let shown = format!("sluice {}", shown.join(" "));
        let asks = !["check", "doctor"].iter().any(|verb| command[0] == *verb);
        let mut part = Part { command: shown, files: Vec::new(), message: self.is_silent.clone().filter(|_| asks) };
        if part.message.is_none() {
            self.print_forms(&mut part, forms, command, asks);
        }
        part.message = part.message.map(|message| self.without_secrets(&message));
        self.list.push(part);
    }

    fn print_forms(&mut self, part: &mut Part, forms: &[(&str, &[&str])], command: &[OsString], asks: bool) {
        for (file, form) in forms {
            let words = form.iter().map(OsString::from).chain(command.iter().cloned());
            let text = match child::run("/proc/self/exe", words) {
                Printed::Out { text, errors } => {
                    part.message = part.message.take().or(errors);
                    text
                }
                Printed::Hung(error) => {
                    if asks {
                        self.is_silent = Some(format!("not asked, because `{}` hung", part.command));
                    }
                    part.message = Some(error);
                    return;
                }
            };
            if text.is_empty() {
                part.message.get_or_insert("it printed nothing".to_owned());
                return;
            }
            part.files.push((*file).to_owned());
            self.files.push(((*file).to_owned(), self.without_secrets(&text)));
        }
    }

    fn without_secrets(&self, text: &str) -> String {
        // The value of a mistyped key may be a number or a word that stands everywhere.
        let secrets = self.secrets.iter().filter(|secret| secret.len() >= SECRET_MIN);
        without_urls(&secrets.fold(text.to_owned(), |text, secret| text.replace(secret, &secret::only_host(secret))))
    }

    /// Adds the host file and its drop-ins.
    fn add_host_files(&mut self, file: &Path) {
        let (all, error) = match dropins::files(file) {
            Ok(all) => (all, None),
            Err(error) => (vec![file.to_owned()], Some(error)),
        };
        for path in all {
            let redact = |text: String| {
                let missing = |error| format!("not TOML, so that its secrets are not known: {error}");
                secret::redact(&text).map_err(|error| missing(self.without_secrets(&error)))
            };
            let read = fs::read_to_string(&path).map_err(|error| error.to_string()).and_then(redact);
            let command = format!("{} without secrets", path.display());
            let (files, message) = match read {
                Ok(redacted) => {
                    self.secrets.extend(redacted.secrets);
                    let within = file.parent().and_then(|folder| path.strip_prefix(folder).ok());
                    let name = format!("host/{}", within.unwrap_or(&path).display());
                    self.files.push((name.clone(), redacted.text));
                    (vec![name], None)
                }
                Err(error) => (Vec::new(), Some(error)),
            };
            self.list.push(Part { command, files, message });
        }
        if let Some(error) = error {
            let command = format!("Drop-ins of {}", file.display());
            self.list.push(Part { command, files: Vec::new(), message: Some(error.to_string()) });
        }
    }

    /// Adds the versions of the programs and of the system. That of the daemon is in its metrics.
    fn add_versions(&mut self) {
        let version = |program: &str| match child::run(program, ["--version".into()]) {
            Printed::Out { text, .. } if !text.is_empty() => text.lines().next().map(str::to_owned),
            _ => None,
        };
        let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
        let system =
            release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME=")).map(|name| name.trim_matches('"'));
        let all = json!({
            "sluice": VERSION,
            "kernel": first_line("/proc/version"),
            "system": system,
            "qemu": version("qemu-system-x86_64"),
            "libvirt": version("libvirtd"),
        });
        let text = all
            .as_object()
            .into_iter()
            .flatten()
            .map(|(name, version)| format!("{name}: {}\n", version.as_str().unwrap_or("-")));
        let files = [("versions.txt", text.collect()), ("versions.json", format!("{all}\n"))];
        let names = files.iter().map(|(name, _)| (*name).to_owned()).collect();
        self.files.extend(files.map(|(name, text): (&str, String)| (name.to_owned(), text)));
        self.list.push(Part { command: "Versions".to_owned(), files: names, message: None });
    }
}

/// What is not in the archive, with a line for each reason.
fn missing(parts: &[Part]) -> Vec<String> {
    let mut by_reason: Vec<(&str, Vec<&str>)> = Vec::new();
    for Part { command, message, .. } in parts.iter().filter(|part| part.files.is_empty()) {
        let reason = message.as_deref().unwrap_or_default();
        match by_reason.iter_mut().find(|(known, _)| *known == reason) {
            Some((_, commands)) => commands.push(command),
            None => by_reason.push((reason, vec![command])),
        }
    }
    by_reason.iter().map(|(reason, commands)| format!("Not in it: {}: {reason}", commands.join(", "))).collect()
}

fn first_line(file: &str) -> String {
    let text = fs::read_to_string(file).unwrap_or_default();
    text.lines().next().unwrap_or_default().trim().to_owned()
}
