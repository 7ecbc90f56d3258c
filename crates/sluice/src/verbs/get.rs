//! `sluice get`

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde::Serialize;
use serde_json::Value;
use sluice_api::change::{self, Override};
use sluice_api::list::{self, DeviceHistory, Point, Step};
use sluice_api::status::{Status, Vm, Volume};
use sluice_daemon::failure::Failure;
use sluice_daemon::state::folder::StateFolder;
use sluice_daemon::state::time::Time;

use crate::control::Request;
use crate::control::client::Daemon;
use crate::control::moment::{Moment, period};
use crate::control::record::Source;
use crate::output::rows::{self, Form};
use crate::output::{self, watch};
use crate::show;

/// For how long each second is kept, and by default each minute.
const SECONDS: Duration = Duration::from_mins(15);
const MINUTES: Duration = Duration::from_hours(7 * 24);
/// For how long minutes are listed by default.
const DAY: Duration = Duration::from_hours(24);

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

/// List the past of a VM, volume or NIC: seconds of the last 15 minutes, minutes of the last 7 days, quarters of an hour before.
///
/// Without options it lists seconds, and with --since the shortest intervals that are kept for so long. Intervals without requests are
/// left out. BUSIEST is the busiest minute of a quarter of an hour, in normalised iops, or for NICs in Mbit/s. Minutes and quarters
/// survive restarts if the daemon has a state directory, and are read there while it does not run; `history` in `[daemon]` of the host file says for how long.
#[derive(Args)]
struct History {
    /// VM, VM/VOLUME or VM/nic/NIC.
    target: String,
    /// Minutes, by default of the last 24 hours.
    #[arg(long, conflicts_with = "quarter_hours")]
    minutes: bool,
    /// Quarters of an hour, by default all that are kept.
    #[arg(long)]
    quarter_hours: bool,
    /// Only intervals since then: 2h, 08:00, "yesterday 08:00", today, or a date.
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    since: Option<Moment>,
    /// Only intervals until then.
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    until: Option<Moment>,
    #[command(flatten)]
    watch: watch::Watch,
    #[command(flatten)]
    source: Source,
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
                let status: Status = daemon.get(&Request::Status)?;
                let volumes = status.vms.into_iter().flat_map(|vm| vm.volumes).collect();
                named(volumes, &names, |Volume { vm, volume, .. }| of_volume(vm, volume))
            }),
            What::Devices(Devices { names, asked }) => asked.print(form, "devices", show::devices::table, |daemon| {
                let status: Status = daemon.get(&Request::Status)?;
                named(status.devices, &names, |device| vec![device.device.clone()])
            }),
            What::Clients(Clients { names, asked }) => {
                asked.print(
                    form,
                    "clients",
                    |rows, _| show::clients::table(rows),
                    |daemon| {
                        let list::Clients { mut clients, silent_devices, .. } = daemon.get(&Request::Clients)?;
                        for device in silent_devices {
                            output::message(format_args!(
                                "warning: device {device} does not respond: its clients are not listed"
                            ));
                        }
                        if !names.is_empty() {
                            // No client is no error, and a name that nothing has is one.
                            let all: list::Names = daemon.get(&Request::Names)?;
                            let volumes = all.vms.into_iter().flat_map(|vm| vm.volumes).collect();
                            named(volumes, &names, |list::VolumeName { vm, volume, .. }| of_volume(vm, volume))?;
                        }
                        clients.retain(|client| matches(&of_volume(&client.vm, &client.volume), &names));
                        Ok(clients)
                    },
                )
            }
            What::Policies(Policies { names, asked }) => {
                asked.print(form, "policies", show::policies::table, |daemon| {
                    let all: list::Policies = daemon.get(&Request::Policies)?;
                    named(all.policies, &names, |row| vec![row.policy_name.clone()])
                })
            }
            What::History(history) => history.watch.run(form, || {
                let reply: list::History = history.source.get(&history.request())?;
                let points: Vec<Point> = reply.history.into_iter().flat_map(points).collect();
                Ok(shown(form, "history", &points, &|rows, _| show::history::table(rows)))
            }),
            What::Overrides(overrides) => overrides.run(form),
        }
    }
}

impl History {
    fn request(&self) -> Request {
        let (vm, volume) = match self.target.split_once('/') {
            Some((vm, volume)) => (vm.to_owned(), Some(volume.to_owned())),
            None => (self.target.clone(), None),
        };
        let now = Time::now();
        let (since, until) = period(self.since, self.until, now);
        let step = match since.map(|since| now.from(Time(since))) {
            _ if self.minutes => Step::Minute,
            _ if self.quarter_hours => Step::QuarterHour,
            Some(length) if length > MINUTES => Step::QuarterHour,
            Some(length) if length > SECONDS => Step::Minute,
            _ => Step::Second,
        };
        let since = since.or((step == Step::Minute).then(|| Moment::Ago(DAY).at(now)));
        Request::History { vm, volume, step: Some(step), since, until }
    }
}

impl Vms {
    fn run(self, form: Form) -> Result<(), Failure> {
        let Vms { names, asked } = self;
        asked.print(form, "vms", show::vms::table, |daemon| {
            let status: Status = daemon.get(&Request::Status)?;
            named(status.vms, &names, |vm: &Vm| vec![vm.vm.clone()])
        })
    }
}

impl Asked {
    /// Prints the rows that `rows` returns.
    fn print<R: Serialize>(
        &self,
        form: Form,
        key: &str,
        table: impl Fn(&[R], bool) -> String,
        rows: impl Fn(&Daemon) -> Result<Vec<R>, Failure>,
    ) -> Result<(), Failure> {
        self.watch.run(form, || rows(&self.daemon).map(|rows| shown(form, key, &rows, &table)))
    }
}

fn shown<R: Serialize>(form: Form, key: &str, rows: &[R], table: &impl Fn(&[R], bool) -> String) -> String {
    match form {
        Form::Table | Form::Wide if rows.is_empty() => match key {
            "vms" => "There are no VMs.",
            "volumes" => "There are no volumes or NICs.",
            "devices" => "There are no devices or uplinks.",
            "clients" => "No client is connected.",
            "policies" => "There are no named policies.",
            "history" => "It asked for nothing in that time.",
            "overrides" => "Nothing differs from the files.",
            _ => "There is none.",
        }
        .to_owned(),
        Form::Table => table(rows, false),
        Form::Wide => table(rows, true),
        Form::Json | Form::Jsonl | Form::Csv => rows::of_programs(form, key, rows),
    }
}

/// The names of a volume for a pattern: that of its VM, and its own.
fn of_volume(vm: &str, volume: &str) -> Vec<String> {
    vec![vm.to_owned(), format!("{vm}/{volume}")]
}

/// Keeps the objects with one of `wanted` names. A name that no object has is an error.
fn named<R>(objects: Vec<R>, wanted: &[String], names: impl Fn(&R) -> Vec<String>) -> Result<Vec<R>, Failure> {
    let is_unknown =
        |pattern: &&String| !objects.iter().any(|object| matches(&names(object), std::slice::from_ref(pattern)));
    if let Some(unknown) = wanted.iter().find(is_unknown) {
        // A VM has a row for each device.
        let mut known: Vec<String> = objects.iter().filter_map(|object| names(object).pop()).collect();
        known.sort();
        known.dedup();
        known.truncate(10);
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

/// The points of a device, each with the device.
fn points(of: DeviceHistory) -> impl Iterator<Item = Point> {
    let points = of.seconds.into_iter().chain(of.minutes).chain(of.quarter_hours);
    points.map(move |point| Point { device: Some(of.device.clone()), ..point })
}

impl Overrides {
    fn run(self, form: Form) -> Result<(), Failure> {
        let overrides: Vec<Override> = match self.state {
            Some(folder) => {
                let (_folder, saved) = StateFolder::open_existing(&folder)?;
                saved.overrides.iter().map(|known| known.described(None)).collect()
            }
            None => self.daemon.get::<change::Overrides>(&Request::GetOverrides)?.overrides,
        };
        output::line(&shown(form, "overrides", &overrides, &|rows, _| overrides_table(rows)));
        Ok(())
    }
}

fn overrides_table(overrides: &[Override]) -> String {
    let mut table = output::table(&["NAME", "FILE", "IN FORCE", "WHO", "WHEN", "UNTIL", "WHY"]);
    let text = |value: &Value| match value {
        Value::Null => show::NOTHING.to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    for known in overrides {
        let Override { name, file_in_words, uid, gid, pid, at, until, reason, .. } = known.clone();
        let who = format!("uid {uid}, gid {gid}, pid {}", show::shown(pid, |pid| pid.to_string()));
        let value = text(&known.value);
        let in_force = match known.set_aside {
            true => format!("- ({value} is set aside: the file does not allow it)"),
            false => value,
        };
        let reason = show::shown(reason, |reason| reason);
        table.add_row([name, file_in_words, in_force, who, at, until, reason]);
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
