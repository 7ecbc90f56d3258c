//! `sluice get`

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::control::Request;
use crate::control::client::Daemon;
use crate::output::rows::{self, Form};
use crate::output::{self, watch};
use crate::show::{self, list};
use sluice_daemon::failure::Failure;
use sluice_daemon::state::folder::StateFolder;

/// List what the running daemon serves, with promises and figures.
#[derive(Args)]
pub(crate) struct Get {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    Vms(Vms),
    Volumes(Volumes),
    Devices(Devices),
    Clients(Clients),
    Policies(Policies),
    History(History),
    Overrides(Overrides),
}

/// List VMs: what was promised to each, and what it gets.
///
/// One row for each VM and device. IOPS are normalised requests per second (large requests count as several), MIB/S, P50 and P99
/// are those of the last 10 s; P50 and P99 run from the arrival of a request to its completion. PROMISES says whether the
/// reservation and the latency target are kept; HELD BY why the VM does not get more.
#[derive(Args)]
struct Vms {
    /// Only these VMs; `*` stands for any text.
    #[arg(value_name = "VM")]
    names: Vec<String>,
    #[command(flatten)]
    asked: Asked,
}

/// List volumes: what was promised to each, and what it gets.
#[derive(Args)]
struct Volumes {
    /// Only these volumes, as VM/VOLUME or VM; `*` stands for any text.
    #[arg(value_name = "VOLUME")]
    names: Vec<String>,
    #[command(flatten)]
    asked: Asked,
}

/// List devices: load, capacity, and what is wrong.
///
/// FULL is the part of the last 10 s without a free slot. MEASURED is what the device gave while it was full, and CAPACITY compares
/// that with what the host file states.
#[derive(Args)]
struct Devices {
    /// Only these devices; `*` stands for any text.
    #[arg(value_name = "DEVICE")]
    names: Vec<String>,
    #[command(flatten)]
    asked: Asked,
}

/// List the connected clients: NBD connections and VMMs.
#[derive(Args)]
struct Clients {
    /// Only those of these volumes, as VM/VOLUME or VM; `*` stands for any text.
    #[arg(value_name = "VOLUME")]
    names: Vec<String>,
    #[command(flatten)]
    asked: Asked,
}

/// List named policies: what each states, who holds it, and what its VMs reserve on each device.
///
/// One row for each policy and device. RESERVED is the sum of the reservations of the VMs there that hold it, and PART is theirs of the
/// device. A VM that states a reservation of its own counts with that one; reservations of volumes are parts of those of their VMs.
#[derive(Args)]
struct Policies {
    /// Only these policies; `*` stands for any text.
    #[arg(value_name = "POLICY")]
    names: Vec<String>,
    #[command(flatten)]
    asked: Asked,
}

/// List the past of a VM or volume: each second of the last 15 minutes, or each minute of the last 24 hours.
///
/// Intervals without requests are left out.
#[derive(Args)]
struct History {
    /// VM or VM/VOLUME.
    target: String,
    /// Minutes of the last 24 hours, instead of seconds.
    #[arg(long)]
    minutes: bool,
    #[command(flatten)]
    asked: Asked,
}

#[derive(Args)]
struct Asked {
    #[command(flatten)]
    watch: watch::Watch,
    #[command(flatten)]
    daemon: Daemon,
}

/// List the changes made at run time, which differ from the files.
///
/// Each line has the name for `sluice reset`, the file's value that is hidden, the value in force, who made the change (user,
/// group and process), when and why, and the time at which it ends at the latest.
#[derive(Args)]
struct Overrides {
    /// Reads the state directory of a daemon that does not run.
    #[arg(long, value_name = "FOLDER", conflicts_with = "socket")]
    state: Option<PathBuf>,
    #[command(flatten)]
    daemon: Daemon,
}

impl Get {
    pub(crate) fn run(self, form: Form) -> Result<(), Failure> {
        match self.what {
            What::Vms(vms) => vms.run(form),
            What::Volumes(Volumes { names, asked }) => asked.print(form, "volumes", show::vms::volumes, |daemon| {
                let vms = part(daemon.get(&Request::Status)?, "vms");
                let volumes = vms.into_iter().flat_map(|vm| part(vm, "volumes")).collect();
                named(volumes, &names, volume)
            }),
            What::Devices(Devices { names, asked }) => asked.print(form, "devices", show::devices::table, |daemon| {
                let devices = part(daemon.get(&Request::Status)?, "devices");
                named(devices, &names, |device| vec![field(device, "device")])
            }),
            What::Clients(Clients { names, asked }) => {
                asked.print(
                    form,
                    "clients",
                    |rows, _| show::clients::table(rows),
                    |daemon| {
                        let clients = daemon.get(&Request::Clients)?;
                        for device in list(&clients["silent_devices"]) {
                            let device = show::text(device);
                            output::message(format_args!(
                                "warning: device {device} does not respond: its clients are not listed"
                            ));
                        }
                        let all = part(clients, "clients");
                        // No client is no error, as long as no name is asked for that cannot be.
                        Ok(all.into_iter().filter(|client| matches(&volume(client), &names)).collect())
                    },
                )
            }
            What::Policies(Policies { names, asked }) => {
                asked.print(form, "policies", show::policies::table, |daemon| {
                    let all = part(daemon.get(&Request::Policies)?, "policies");
                    named(all, &names, |row| vec![field(row, "policy_name")])
                })
            }
            What::History(History { target, minutes, asked }) => {
                let (vm, volume) = match target.split_once('/') {
                    Some((vm, volume)) => (vm.to_owned(), Some(volume.to_owned())),
                    None => (target, None),
                };
                let request = Request::History { vm, volume };
                asked.print(
                    form,
                    "history",
                    |rows, _| show::history::table(rows),
                    |daemon| {
                        let history = daemon.get(&request)?;
                        Ok(points(&history, if minutes { "minutes" } else { "seconds" }))
                    },
                )
            }
            What::Overrides(overrides) => overrides.run(form),
        }
    }
}

impl Vms {
    fn run(self, form: Form) -> Result<(), Failure> {
        let Vms { names, asked } = self;
        if form == Form::Json && names.is_empty() {
            return asked.watch.run(form, || unchanged(&asked.daemon, &Request::Status, "vms"));
        }
        asked.print(form, "vms", show::vms::table, |daemon| {
            named(part(daemon.get(&Request::Status)?, "vms"), &names, vm)
        })
    }
}

impl Asked {
    /// Prints the rows that `rows` returns.
    fn print(
        &self,
        form: Form,
        key: &str,
        table: impl Fn(&[Value], bool) -> String,
        rows: impl Fn(&Daemon) -> Result<Vec<Value>, Failure>,
    ) -> Result<(), Failure> {
        self.watch.run(form, || rows(&self.daemon).map(|rows| shown(form, key, rows, &table)))
    }
}

fn shown(form: Form, key: &str, rows: Vec<Value>, table: &impl Fn(&[Value], bool) -> String) -> String {
    match form {
        Form::Table => table(&rows, false),
        Form::Wide => table(&rows, true),
        Form::Json => {
            // `json!` would copy them.
            let mut all = json!({ "ok": true, "version": 1 });
            all[key] = Value::Array(rows);
            all.to_string()
        }
        Form::Jsonl => rows.iter().map(Value::to_string).collect::<Vec<_>>().join("\n"),
        Form::Csv => rows::csv(&rows),
    }
}

/// Returns a list of a reply as JSON, without converting its rows: on a large host that would take longer than all else.
fn unchanged(daemon: &Daemon, request: &Request, key: &str) -> Result<String, Failure> {
    let reply: BTreeMap<String, Box<RawValue>> = daemon.read(request)?;
    let rows = reply.get(key).map_or("[]", |rows| rows.get());
    Ok(format!("{{\"ok\":true,\"version\":1,\"{key}\":{rows}}}"))
}

/// Takes a list out of a reply.
fn part(mut reply: Value, key: &str) -> Vec<Value> {
    match reply.get_mut(key).map(Value::take) {
        Some(Value::Array(rows)) => rows,
        _ => Vec::new(),
    }
}

fn field(object: &Value, key: &str) -> String {
    show::text(&object[key]).to_owned()
}

/// The names of a VM for a pattern.
fn vm(vm: &Value) -> Vec<String> {
    vec![field(vm, "vm")]
}

/// The names of a volume for a pattern: its own, and that of its VM.
fn volume(volume: &Value) -> Vec<String> {
    vec![field(volume, "vm"), format!("{}/{}", field(volume, "vm"), field(volume, "volume"))]
}

/// Keeps the objects with one of `wanted` names. A name that no object has is an error.
fn named(objects: Vec<Value>, wanted: &[String], names: impl Fn(&Value) -> Vec<String>) -> Result<Vec<Value>, Failure> {
    let is_unknown =
        |pattern: &&String| !objects.iter().any(|object| matches(&names(object), std::slice::from_ref(pattern)));
    if let Some(unknown) = wanted.iter().find(is_unknown) {
        let known: Vec<String> = objects.iter().take(10).filter_map(|object| names(object).pop()).collect();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        return Err(Failure::NotFound(format!("There is no {unknown}; there are {known}")));
    }
    Ok(objects.into_iter().filter(|object| matches(&names(object), wanted)).collect())
}

/// Whether one of the names matches one of the patterns, or there are no patterns.
fn matches(names: &[String], patterns: &[String]) -> bool {
    patterns.is_empty() || patterns.iter().any(|pattern| names.iter().any(|name| is_match(pattern, name)))
}

/// Whether a name matches a pattern, in which `*` stands for any text.
fn is_match(pattern: &str, name: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(name) = name.strip_prefix(start) else { return false };
    (0..=name.len()).filter(|at| name.is_char_boundary(*at)).any(|at| is_match(rest, &name[at..]))
}

/// The points of all devices, with the device.
fn points(history: &Value, key: &str) -> Vec<Value> {
    let of = |device: &Value| {
        let name = device["device"].clone();
        let points = list(&device[key]).iter().map(move |point| {
            let mut point = point.clone();
            point["device"] = name.clone();
            point
        });
        points.collect::<Vec<_>>()
    };
    list(&history["history"]).iter().flat_map(of).collect()
}

impl Overrides {
    fn run(self, form: Form) -> Result<(), Failure> {
        let overrides = match self.state {
            Some(folder) => {
                let (_folder, saved) = StateFolder::open_existing(&folder)?;
                saved.overrides.iter().map(|known| known.to_json(None)).collect()
            }
            None => part(self.daemon.get(&Request::GetOverrides)?, "overrides"),
        };
        output::line(&shown(form, "overrides", overrides, &|rows, _| overrides_table(rows)));
        Ok(())
    }
}

fn overrides_table(overrides: &[Value]) -> String {
    let mut table = output::table(&["NAME", "FILE", "IN FORCE", "WHO", "WHEN", "UNTIL", "WHY"]);
    let text = |value: &Value| match value {
        Value::Null => show::NOTHING.to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    for known in overrides {
        let who = format!("uid {}, gid {}, pid {}", known["uid"], known["gid"], text(&known["pid"]));
        let in_force = match known["set_aside"] == true {
            true => format!("- ({} is set aside: the file does not allow it)", text(&known["value"])),
            false => text(&known["value"]),
        };
        let cell = |key: &str| text(&known[key]);
        let (name, file) = (cell("name"), cell("file_in_words"));
        table.add_row([name, file, in_force, who, cell("at"), cell("until"), cell("reason")]);
    }
    table.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_text() {
        for (pattern, name) in [("web*", "web1"), ("*", ""), ("w*b*", "web"), ("*/root", "db/root"), ("db", "db")] {
            assert!(is_match(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [("web*", "aweb"), ("db", "db1"), ("*/root", "db/data"), ("a*a", "a")] {
            assert!(!is_match(pattern, name), "{pattern} {name}");
        }
    }
}
