//! Arguments of changes: `KEY=VALUE` with the values of the host file, and how long a change lasts.

use std::time::Duration;

use clap::Args;
use sluice_api::request::{How, Term};
use sluice_daemon::state::time::{Time, length};
use sluice_sched::units::parse_duration;

use super::moment;

/// Duration of a change, and its reason. Without an option: until the file's value changes, or `sluice reset`.
#[derive(Args)]
pub(crate) struct Lasting {
    /// The change ends when the daemon is stopped; it survives a crash.
    #[arg(long, conflicts_with_all = ["time", "until", "persist"])]
    until_restart: bool,
    /// The change ends after this time, for example 10m, 2h or 7days, also if the daemon does not run then.
    #[arg(long = "for", value_name = "TIME", value_parser = time, conflicts_with = "persist", allow_hyphen_values = true)]
    time: Option<Duration>,
    /// The change ends at this time, for example 23:10, "tomorrow 08:00" or 2026-11-28T22:10:00Z, also if the daemon does not run then.
    #[arg(long, value_name = "TIME", value_parser = moment::to_come, conflicts_with_all = ["time", "persist"])]
    until: Option<Time>,
    /// Writes the change into the drop-in `NAME.d/zz-sluice.toml` next to the host file `NAME.toml`, instead of the state
    /// directory; comments in it are kept.
    #[arg(long)]
    persist: bool,
    /// Replaces an earlier change of the same key that would end (--for, --until, --until-restart) by this one, which does not. Without it, such a
    /// change is refused.
    #[arg(long, conflicts_with_all = ["until_restart", "time", "until"])]
    permanent: bool,
    #[command(flatten)]
    reason: Reason,
    /// Closes or replaces this VM or volume (db1 or db1/root) although clients are connected to it.
    #[arg(long, value_name = "NAME")]
    force: Vec<String>,
}

/// Why a change is made.
#[derive(Args)]
pub(crate) struct Reason {
    /// Why; shown by `sluice get overrides` and in the log.
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
}

impl Lasting {
    pub(crate) fn how(self) -> How {
        let term = match (self.until_restart, self.time, self.until, self.persist) {
            (true, ..) => Term::UntilRestart,
            (_, Some(time), ..) => Term::Seconds(time.as_secs() + u64::from(time.subsec_nanos() > 0)),
            (_, _, Some(Time(end)), _) => Term::Until(end),
            (.., true) => Term::Persist,
            _ => Term::Always,
        };
        How { term, reason: self.reason.reason, force: self.force, permanent: self.permanent }
    }
}

fn time(text: &str) -> Result<Duration, String> {
    let time = parse_duration(text).or_else(|_| length(text))?;
    if time.is_zero() { Err("write a time above zero, for example 10m".to_owned()) } else { Ok(time) }
}

/// One assignment. Dots separate the names of tables: `export.socket=/run/a.sock`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Assignment {
    path: Vec<String>,
    value: toml::Value,
}

/// Parses an assignment, for clap.
pub(crate) fn parse(text: &str) -> Result<Assignment, String> {
    let advice = "write KEY=VALUE as in the host file, for example limit=\"500 iops\" or export.socket=/run/a.sock";
    let (key, value) = text.split_once('=').ok_or_else(|| advice.to_owned())?;
    let path: Vec<String> = key.trim().split('.').map(str::to_owned).collect();
    if path.iter().any(String::is_empty) {
        return Err(advice.to_owned());
    }
    Ok(Assignment { path, value: read_value(value.trim()) })
}

/// Returns a TOML value if the text is one, otherwise the text as a string. So only the shell needs quotes.
fn read_value(text: &str) -> toml::Value {
    let table: Result<toml::Table, _> = format!("value = {text}").parse();
    let value = table.ok().filter(|table| table.len() == 1).and_then(|mut table| table.remove("value"));
    value.unwrap_or_else(|| toml::Value::String(text.to_owned()))
}

/// Returns the table of all assignments. A key that is given twice, or as a value and as a table, is an error.
pub(crate) fn table(assignments: Vec<Assignment>) -> Result<toml::Table, String> {
    let mut root = toml::Table::new();
    for Assignment { path, value } in assignments {
        let name = path.join(".");
        let (last, above) = path.split_last().expect("a path has an element");
        let mut table = &mut root;
        for key in above {
            let inner = table.entry(key.clone()).or_insert_with(|| toml::Value::Table(toml::Table::new()));
            table = inner.as_table_mut().ok_or_else(|| format!("{name}: {key} already has a value"))?;
        }
        if table.insert(last.clone(), value).is_some() {
            return Err(format!("{name} is given twice; leave one of them out"));
        }
    }
    Ok(root)
}

/// Separates the assignments that begin with `vm.`, without this prefix, from the others.
pub(crate) fn of_vm(assignments: Vec<Assignment>) -> (Vec<Assignment>, Vec<Assignment>) {
    let (mut vm, others): (Vec<_>, Vec<_>) =
        assignments.into_iter().partition(|assignment| assignment.path.len() > 1 && assignment.path[0] == "vm");
    vm.iter_mut().for_each(|assignment| drop(assignment.path.remove(0)));
    (vm, others)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_parsed_like_those_of_the_host_file() {
        let read = |texts: &[&str]| table(texts.iter().map(|text| parse(text).unwrap()).collect());
        let made = read(&["limit=500 iops", "weight=300", "read_only=true", "export.socket=/run/a b,c.sock"]).unwrap();
        let same = "limit = \"500 iops\"\nweight = 300\nread_only = true\nexport = { socket = \"/run/a b,c.sock\" }";
        assert_eq!(made, same.parse().unwrap());
        assert_eq!(read(&["latency={ p99 = \"5ms\" }"]).unwrap(), "latency = { p99 = \"5ms\" }".parse().unwrap());
        assert_eq!(read(&["a=1\nb = 2"]).unwrap().len(), 1);
        assert_eq!(read(&["a=1", "a=2"]), Err("a is given twice; leave one of them out".to_owned()));
        assert_eq!(read(&["a=1", "a.b=2"]), Err("a.b: a already has a value".to_owned()));
        assert!(parse("weight").is_err() && parse(".a=1").is_err() && parse("=1").is_err());
    }

    #[test]
    fn a_change_for_a_time_without_its_unit_was_advised_to_last_for_milliseconds() {
        let millis = |text| time(text).map(|time| time.as_millis());
        assert_eq!(millis("10"), Err("10 has no unit; write for example 10m, 10h or 10days".to_owned()));
        let other = Err("it is not a length of time; write for example 30m, 1h or 2days".to_owned());
        assert_eq!([millis("soon"), millis("10M"), millis("-5m"), millis("")], [(); 4].map(|()| other.clone()));
        assert_eq!((millis("2days"), millis("1.5h")), (Ok(172_800_000), Ok(5_400_000)));
        assert!(millis("0s").is_err());
    }

    #[test]
    fn keys_with_the_prefix_vm_are_separated() {
        let read = |texts: &[&str]| texts.iter().map(|text| parse(text).unwrap()).collect::<Vec<_>>();
        let (vm, others) = of_vm(read(&["vm.weight=3", "device=d", "vm=4"]));
        assert_eq!((vm, others), (read(&["weight=3"]), read(&["device=d", "vm=4"])));
    }
}
