//! What earlier runs of the daemon have left: how they ended, and what had a client when the last one did.

use std::collections::BTreeSet;

use rusqlite::{Connection, OptionalExtension, params};
use sluice_api::event::{DaemonEnd, Event, EventKind, Phase};
use sluice_api::object::ObjectId;
use sluice_api::status::Restart;

use super::{cut_off, history};

/// Volumes and NICs that should have a client, and the start of the host for which that holds.
pub(super) const SCHEMA: &str = "CREATE TABLE IF NOT EXISTS client (object TEXT PRIMARY KEY) WITHOUT ROWID;";

/// Begins the row of the start of the host.
const BOOT: &str = "[boot] ";
/// Time in seconds before the start of which ends are told.
const ENDS_OF: u64 = 3600;

/// What earlier runs have left.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Earlier {
    /// Their ends in the last hour, oldest first.
    pub restarts: Vec<Restart>,
    /// What had a client at the end of the last one.
    pub clients: BTreeSet<ObjectId>,
}

impl Earlier {
    /// Reads it from the database, at `now` in seconds since 1970.
    pub(super) fn of(connection: &Connection, now: u64) -> rusqlite::Result<Earlier> {
        let mut ends = connection
            .prepare("SELECT time, kind FROM event WHERE kind IN ('stopped', 'killed') AND time >= ? ORDER BY id")?;
        let ends = ends.query_map(params![now.saturating_sub(ENDS_OF) as i64], |row| {
            let (time, kind): (i64, String) = (row.get(0)?, row.get(1)?);
            let is_stop = EventKind::named(&kind) == EventKind::Stopped;
            let ended_by = if is_stop { DaemonEnd::Stopped } else { DaemonEnd::Killed };
            Ok(Restart { time: time.max(0) as u64, ended_by })
        })?;
        let restarts = ends.collect::<Result<_, _>>()?;
        // No VMM outlasts the host.
        let rows = rows(connection)?;
        let of_this_boot = rows.iter().filter(|_| rows.iter().any(|row| *row == boot()));
        Ok(Earlier {
            restarts,
            clients: of_this_boot.filter(|row| !row.starts_with(BOOT)).filter_map(|row| row.parse().ok()).collect(),
        })
    }
}

/// Replaces what has a client.
pub(super) fn keep(connection: &Connection, clients: &BTreeSet<ObjectId>) -> rusqlite::Result<()> {
    connection.execute("DELETE FROM client", [])?;
    let mut insert = connection.prepare("INSERT OR IGNORE INTO client VALUES (?)")?;
    insert.execute([boot()])?;
    clients.iter().try_for_each(|object| insert.execute([object.to_string()]).map(drop))
}

/// The row of this start of the host: no object has such a name.
fn boot() -> String {
    format!("{BOOT}{}", std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim())
}

fn rows(connection: &Connection) -> rusqlite::Result<Vec<String>> {
    connection.prepare("SELECT object FROM client")?.query_map([], |row| row.get(0))?.collect()
}

/// Copies what has a client from one database to another.
pub(super) fn copy(from: &Connection, to: &Connection) -> rusqlite::Result<()> {
    let mut insert = to.prepare("INSERT OR IGNORE INTO client VALUES (?)")?;
    rows(from)?.iter().try_for_each(|row| insert.execute([row]).map(drop))
}

/// Returns the event of an end without a stop; `None` if the last run was stopped, or was of a program that does not tell.
pub(super) fn killed(connection: &Connection) -> rusqlite::Result<Option<Event>> {
    let last = "SELECT kind FROM event WHERE kind IN ('started', 'stopped', 'killed') ORDER BY id DESC LIMIT 1";
    let last = connection.query_row(last, [], |row| row.get::<_, String>(0)).optional()?;
    if last.is_none_or(|kind| EventKind::named(&kind) != EventKind::Started) {
        return Ok(None);
    }
    let time = cut_off::known_until(connection).max(history::last(connection)).unwrap_or(0);
    Ok(Some(Event { time, kind: EventKind::Killed, phase: Phase::Happened, ..Event::default() }))
}
