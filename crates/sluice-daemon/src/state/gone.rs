//! Why overrides end, for the log and for those who reload.

use sluice_api::change::{self, Plan};

use super::overrides::{Override, Overrides};

/// Why an override is gone.
#[derive(Debug, Clone, PartialEq)]
pub enum Gone {
    /// The file's value has changed, to this.
    Yielded { now: String },
    /// It was a detach, and what was attached over it has yielded to the file.
    Replaced,
    /// Its VM, volume or policy is not there any more.
    Orphaned,
    /// The file has the same now, as was asked for.
    InFile,
    /// Its time is over, and this is in force.
    Expired { now: String },
    /// The daemon was stopped, and this is in force from its next start on.
    Stopped { now: String },
}

impl Gone {
    /// For people and programs. `hidden`: the file's value, which is in force again.
    pub fn in_words(&self, hidden: &str) -> String {
        match self {
            Gone::Yielded { now } if now == hidden => "what the file says of it has changed".to_owned(),
            Gone::Yielded { now } => format!("the file's value has changed from {hidden} to {now}"),
            Gone::Replaced => "what was attached in its place has yielded to the file".to_owned(),
            Gone::Orphaned => "its VM, volume or policy is no longer in the file".to_owned(),
            Gone::InFile => "it is now part of the file".to_owned(),
            Gone::Expired { now } => format!("its time is over; {now} is in force again"),
            Gone::Stopped { .. } => "it was made with --until-restart".to_owned(),
        }
    }
}

/// Those that stay in force with a host file, those that stay set aside, and those that end with it and why, for `sluice apply`.
pub fn with_file(kept: &Overrides, gone: &[(Override, Gone)]) -> Plan {
    let ended = gone.iter().map(|(old, why)| {
        let why = Some(why.in_words(&old.hidden()));
        change::Override { why, ..old.described(None) }
    });
    Plan {
        overrides: kept.in_force().map(|known| known.described(None)).collect(),
        overrides_set_aside: kept.aside().map(|known| known.described(None)).collect(),
        overrides_ended: ended.collect(),
        ..Plan::default()
    }
}

/// Writes a line for each override that is gone.
pub fn report_gone(gone: &[(Override, Gone)]) {
    for (old, why) in gone {
        let (name, value, hidden) = (old.name(), old.value(), old.hidden());
        match why {
            Gone::Yielded { now } => {
                tracing::warn!(name, value, before = hidden, now, "Override dropped: the file's value has changed");
            }
            Gone::Replaced => {
                tracing::warn!(name, value, "Override dropped: what was attached in its place has yielded to the file");
            }
            Gone::Orphaned => {
                tracing::warn!(name, value, "Override dropped: its VM, volume or policy is no longer in the file")
            }
            Gone::InFile => tracing::info!(name, value, "Override dropped: it is now part of the file"),
            Gone::Expired { now } => tracing::info!(name, value, now, "Override expired"),
            Gone::Stopped { now } => {
                tracing::info!(name, value, now, "Override ended: it was made with --until-restart")
            }
        }
    }
}
