//! Events that the end of the daemon has cut off: they have begun, and their end was not written.
//!
//! A daemon that is stopped writes the ends itself. So that one that is killed loses little, the time of the last sample is written now and
//! then while anything holds, the heartbeat. What had not ended held until then, and at most some seconds longer.
//! Example: a promise is broken at 8:00:00, and the daemon is killed at 8:12:03. The last heartbeat is of 8:12:00, so the next start writes an
//! end "after 12 min or more", with that time.

use std::collections::BTreeMap;

use rusqlite::{Connection, OptionalExtension, params};
use sluice_api::event::{DaemonEnd, Event, Phase};

use super::{earlier, store};

/// At most one row.
pub(super) const SCHEMA: &str = "
    CREATE TABLE IF NOT EXISTS heartbeat (id INTEGER PRIMARY KEY CHECK (id = 0), time INTEGER NOT NULL);
";

/// Notes that what has begun holds at this time, in seconds since 1970.
pub(super) fn beat(connection: &Connection, time: u64) -> rusqlite::Result<()> {
    connection.execute("INSERT OR REPLACE INTO heartbeat VALUES (0, ?)", params![time as i64]).map(drop)
}

/// Corrects the heartbeat by `seconds`, as the times of events are.
pub(super) fn correct(connection: &Connection, seconds: i64) -> rusqlite::Result<()> {
    connection.execute("UPDATE heartbeat SET time = max(0, time + ?)", params![seconds]).map(drop)
}

/// Copies the heartbeat of one database to another.
pub(super) fn copy(from: &Connection, to: &Connection) -> rusqlite::Result<()> {
    last_beat(from).map_or(Ok(()), |time| beat(to, u64::try_from(time).unwrap_or(0)))
}

/// The heartbeat; `None` also in a database of a program that wrote none.
fn last_beat(connection: &Connection) -> Option<i64> {
    connection.query_row("SELECT time FROM heartbeat", [], |row| row.get(0)).ok()
}

/// The time in seconds since 1970 until which something is known of the run that wrote the last events; `None` without events.
pub(super) fn known_until(connection: &Connection) -> Option<u64> {
    let last = connection.query_row("SELECT time FROM event ORDER BY id DESC LIMIT 1", [], |row| row.get::<_, i64>(0));
    let last = last.optional().ok().flatten()?;
    u64::try_from(last_beat(connection).map_or(last, |beat| beat.max(last))).ok()
}

/// Returns the events that have not ended, oldest first. Several of one kind may hold for one object, as those of free space below two
/// thresholds do: an end is that of the one that began when it says.
pub(super) fn open(connection: &Connection) -> rusqlite::Result<Vec<Event>> {
    let mut statement = connection.prepare(
        "SELECT id, time, phase, kind || '/' || device || '/' || ifnull(vm, '') || '/' || ifnull(volume, ''), json FROM event
         WHERE phase IN ('began', 'ended') ORDER BY id",
    )?;
    let mut open: BTreeMap<String, Vec<(i64, Event)>> = BTreeMap::new();
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let (id, time, phase, about): (i64, i64, String, String) = (row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?);
        let of_kind = open.entry(about).or_default();
        if phase == "ended" && of_kind.len() < 2 {
            of_kind.clear();
            continue;
        }
        let event: Event = serde_json::from_str(row.get_ref(4)?.as_str()?).unwrap_or_default();
        let time = u64::try_from(time).unwrap_or(0);
        match phase.as_str() {
            "ended" => {
                let began = time.saturating_sub(event.seconds);
                let nearest = (0..of_kind.len()).min_by_key(|index| of_kind[*index].1.time.abs_diff(began));
                nearest.into_iter().for_each(|index| drop(of_kind.remove(index)));
            }
            _ => of_kind.push((id, Event { id: None, time, ..event })),
        }
    }
    let mut all: Vec<_> = open.into_values().flatten().collect();
    all.sort_by_key(|(id, _)| *id);
    Ok(all.into_iter().map(|(_, event)| event).collect())
}

/// The ends of events that have not ended, as of `until`, in seconds since 1970.
pub(super) fn ends(open: Vec<Event>, until: u64, by: DaemonEnd) -> impl Iterator<Item = Event> {
    open.into_iter().map(move |began| {
        let (time, seconds) = (until.max(began.time), until.saturating_sub(began.time));
        Event { time, seconds, phase: Phase::Ended, ended_by: Some(by), ..began }
    })
}

/// The ends of what an end without a stop has cut off, and that end.
pub(super) fn all_ends(connection: &Connection) -> rusqlite::Result<Vec<Event>> {
    let until = known_until(connection).unwrap_or(0);
    let ends = ends(open(connection)?, until, DaemonEnd::Killed);
    Ok(ends.chain(earlier::killed(connection)?).collect())
}

/// Ends what the end of an earlier run has cut off, and forgets its heartbeat: it says nothing of this run.
pub(super) fn end(connection: &Connection) {
    let end = || {
        let all = connection.unchecked_transaction()?;
        let ends = all_ends(connection)?;
        ends.iter().try_for_each(|event| store::insert(connection, event))?;
        connection.execute("DELETE FROM heartbeat", [])?;
        all.commit().map(|()| ends.len())
    };
    match end() {
        Ok(0) => {}
        Ok(ended) => tracing::info!(
            ended,
            "The last daemon was killed or has failed: that, and the end of what held then, is recorded"
        ),
        Err(error) => {
            tracing::error!(%error, "Cannot record the end of violations that lasted when the daemon stopped");
        }
    }
}

#[cfg(test)]
mod tests {
    use sluice_api::event::EventKind;

    use super::*;

    #[test]
    fn of_two_events_of_one_kind_and_device_only_one_got_an_end() {
        let connection = super::super::database::prepared(Connection::open_in_memory().unwrap()).unwrap();
        let event = |time, phase, seconds| Event {
            time,
            phase,
            seconds,
            kind: EventKind::LowSpace,
            device: "disk".to_owned(),
            ..Event::default()
        };
        let begins = || open(&connection).unwrap().iter().map(|event| event.time).collect::<Vec<_>>();
        for time in [100, 200] {
            store::insert(&connection, &event(time, Phase::Began, 0)).unwrap();
        }
        assert_eq!(begins(), [100, 200]);
        store::insert(&connection, &event(300, Phase::Ended, 200)).unwrap();
        assert_eq!(begins(), [200], "the one of 100 has ended after 200 s");
        store::insert(&connection, &event(310, Phase::Ended, 110)).unwrap();
        assert_eq!(begins(), [0; 0]);
    }
}
