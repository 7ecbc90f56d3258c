//! The table of events. It is bounded: the oldest ones are deleted.

use std::collections::BTreeSet;
use std::path::PathBuf;

use rusqlite::{Connection, OptionalExtension, params};
use sluice_api::VERSION;
use sluice_api::event::{DaemonEnd, Event, EventKind, Events, Phase};
use sluice_api::object::ObjectId;
use sluice_observe::interval::Minute;

use super::database::Database;
use super::history::{self, Keep};
use super::{cut_off, earlier};
use crate::state::time::Time;

/// Maximum number of events, about 50 MB.
const EVENTS_MAX: i64 = 100_000;
/// Events that are deleted at once.
const DELETED_AT_ONCE: i64 = 1000;

pub(super) const SCHEMA: &str = "
    CREATE TABLE IF NOT EXISTS event (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        time INTEGER NOT NULL,
        kind TEXT NOT NULL,
        phase TEXT NOT NULL,
        device TEXT NOT NULL,
        vm TEXT,
        volume TEXT,
        cause TEXT NOT NULL,
        text TEXT NOT NULL,
        json TEXT NOT NULL
    );
    CREATE INDEX IF NOT EXISTS event_by_time ON event (time);
    CREATE INDEX IF NOT EXISTS event_by_vm ON event (vm, time);
";

const INSERT: &str =
    "INSERT INTO event (time, kind, phase, device, vm, volume, cause, text, json) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)";

/// Deletes the oldest, but not what tells the next start whether this run was stopped.
const DELETE: &str = "DELETE FROM event WHERE id <= ?
    AND id IS NOT (SELECT max(id) FROM event WHERE kind IN ('started', 'stopped', 'killed'))";

/// The events to look for.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Filter<'a> {
    /// Seconds since 1970.
    pub(super) since: Option<u64>,
    pub(super) until: Option<u64>,
    /// Number of the last event that is known already: those after it, the oldest first. Without it, the latest ones.
    pub(super) after: Option<u64>,
    pub(super) vm: Option<&'a str>,
    pub(super) device: Option<&'a str>,
    pub(super) kind: Option<&'a str>,
    /// Maximum number of events.
    pub(super) limit: usize,
}

/// Kind and object of an event: its begin and its end have the same.
type About = (EventKind, String, Option<String>, Option<String>);

fn about(event: &Event) -> About {
    (event.kind, event.device.clone(), event.vm.clone(), event.volume.clone())
}

/// The events.
pub(super) struct Store {
    database: Database,
    max: i64,
    /// Events of this run that have begun and not ended.
    open: BTreeSet<About>,
    /// When it was opened, in seconds since 1970 by the clock of now.
    opened: u64,
    /// Whether the past is not kept, for lack of space.
    lacks_space: bool,
}

impl Store {
    /// Opens the database in a folder, or one in memory.
    pub(super) fn open(folder: Option<PathBuf>) -> Store {
        Store {
            database: Database::open(folder),
            max: EVENTS_MAX,
            open: BTreeSet::new(),
            opened: Time::of_clock().0,
            lacks_space: false,
        }
    }

    pub(super) fn connection(&self) -> &Connection {
        self.database.connection()
    }

    /// Why events or the history are not kept.
    pub(super) fn trouble(&self) -> Option<&str> {
        let history = "less than 64 MiB is free in the state directory, so that no history is kept";
        self.database.trouble().or_else(|| self.lacks_space.then_some(history))
    }

    /// Corrects the times of the events of this run by `seconds`. Those of earlier runs stay: what the clock was then is not known.
    pub(super) fn clock_was_set(&mut self, seconds: i64) {
        let (before, opened) = (self.database.before(), self.opened);
        self.database.write(|connection| {
            connection.execute("UPDATE event SET time = max(0, time + ?1) WHERE id > ?2", params![seconds, before])?;
            cut_off::correct(connection, seconds)?;
            history::correct(connection, opened, seconds)
        });
        self.opened = self.opened.saturating_add_signed(seconds);
    }

    /// Adds minutes of the past, unless little space is free: the state and events come first.
    pub(super) fn keep(&mut self, minutes: &[Minute], keep: &Keep) {
        let lacks_space = self.database.folder().is_some_and(history::lacks_space);
        if self.lacks_space != lacks_space {
            self.lacks_space = lacks_space;
            match lacks_space {
                true => tracing::error!("History is not kept: less than 64 MiB is free in the state directory"),
                false => tracing::info!("History is kept again"),
            }
        }
        if !lacks_space {
            let keep = if self.database.is_in_memory() { &Keep::IN_MEMORY } else { keep };
            self.database.write(|connection| history::add(connection, minutes, keep));
        }
    }

    /// Adds an event.
    pub(super) fn add(&mut self, event: &Event) {
        match event.phase {
            Phase::Began => drop(self.open.insert(about(event))),
            Phase::Ended => drop(self.open.remove(&about(event))),
            Phase::Happened => {}
        }
        let max = self.max;
        self.database.write(|connection| {
            insert(connection, event)?;
            let last = connection.last_insert_rowid();
            if last % DELETED_AT_ONCE == 0 {
                connection.execute(DELETE, params![last - max])?;
            }
            Ok(())
        });
    }

    /// Notes that what has begun holds at this time, in seconds since 1970.
    pub(super) fn beat(&mut self, time: u64) {
        if !self.open.is_empty() {
            self.database.write(|connection| cut_off::beat(connection, time));
        }
    }

    /// Keeps what has a client.
    pub(super) fn keep_clients(&mut self, clients: &BTreeSet<ObjectId>) {
        self.database.write(|connection| earlier::keep(connection, clients));
    }

    /// Adds `ends`, then an end of each further event that has begun and not ended, and at last that of the daemon, and closes the database.
    pub(super) fn end(mut self, ends: &[Event], time: u64, why: Option<String>) {
        let kind = if why.is_some() { EventKind::Stopped } else { EventKind::Killed };
        let detail = why.or_else(|| Some("it has failed; see its log".to_owned()));
        let (time_now, phase) = (Time::of_clock().0.max(time), Phase::Happened);
        let stop = Event { time: time_now, kind, phase, detail, ..Event::default() };
        self.database.write(|connection| {
            ends.iter().try_for_each(|event| insert(connection, event))?;
            let mut others = cut_off::ends(cut_off::open(connection)?, time, DaemonEnd::Stopped);
            others.try_for_each(|event| insert(connection, &event))?;
            insert(connection, &stop)
        });
    }
}

/// Adds an event.
pub(super) fn insert(connection: &Connection, event: &Event) -> rusqlite::Result<()> {
    let json = serde_json::to_string(event).expect("its keys are strings");
    let (kind, phase, cause) = (event.kind.name(), event.phase.name(), event.cause.name());
    let Event { time, device, vm, volume, .. } = event;
    connection
        .execute(INSERT, params![*time as i64, kind, phase, device, vm, volume, cause, event.in_words(), json])
        .map(drop)
}

/// Returns the events that match.
pub(super) fn find(connection: &Connection, filter: &Filter<'_>) -> rusqlite::Result<Events> {
    let last = last(connection);
    let order = if filter.after.is_some() { "ASC" } else { "DESC" };
    let mut statement = connection.prepare(&format!(
        "SELECT id, time, text, json FROM event WHERE time >= ?1 AND id > ?2 AND (?3 IS NULL OR vm = ?3)
         AND (?4 IS NULL OR device = ?4) AND (?5 IS NULL OR kind IN (SELECT value FROM json_each(?5))) AND time <= ?6
         ORDER BY id {order} LIMIT ?7"
    ))?;
    let kinds: Option<Vec<&str>> =
        filter.kind.map(|kind| EventKind::asked(kind).into_iter().map(EventKind::name).collect());
    let kinds = kinds.map(|kinds| serde_json::to_string(&kinds).expect("they are strings"));
    let until = filter.until.and_then(|until| i64::try_from(until).ok()).unwrap_or(i64::MAX);
    let since = filter.since.unwrap_or(0) as i64;
    // A number that is not reached yet is one of a database that was replaced.
    let after = filter.after.and_then(|after| i64::try_from(after).ok()).filter(|after| *after <= last).unwrap_or(0);
    // One more than asked for tells whether there are more.
    let limit = i64::try_from(filter.limit).unwrap_or(i64::MAX).saturating_add(1);
    let rows = statement.query_map(params![since, after, filter.vm, filter.device, kinds, until, limit], |row| {
        Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?, row.get::<_, String>(2)?, row.get::<_, String>(3)?))
    })?;
    let mut events = Vec::new();
    for row in rows {
        let (id, time, text, json) = row?;
        let event: Event = serde_json::from_str(&json).unwrap_or_default();
        events.push(Event { id: Some(id as u64), time: time as u64, text, ..event });
    }
    let more = events.len() > filter.limit;
    events.truncate(filter.limit);
    if filter.after.is_none() {
        events.reverse();
        return Ok(Events { version: VERSION, events, more, last: last as u64 });
    }
    let page_ends = events.last().and_then(|event| event.id).unwrap_or(after as u64);
    Ok(Events { version: VERSION, events, more, last: if more { page_ends } else { last as u64 } })
}

/// Number of the last event; 0 without any.
pub(super) fn last(connection: &Connection) -> i64 {
    let last = connection.query_row("SELECT max(id) FROM event", [], |row| row.get::<_, Option<i64>>(0));
    last.optional().ok().flatten().flatten().unwrap_or(0)
}

/// Adds the events of one database to another.
pub(super) fn copy(from: &Connection, to: &Connection) -> rusqlite::Result<()> {
    let mut statement =
        from.prepare("SELECT time, kind, phase, device, vm, volume, cause, text, json FROM event ORDER BY id")?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let values = (0..9).map(|column| row.get::<_, rusqlite::types::Value>(column));
        to.execute(INSERT, rusqlite::params_from_iter(values.collect::<rusqlite::Result<Vec<_>>>()?))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use sluice_api::cause::Cause;
    use sluice_api::event::{EventKind, Phase, Unit};

    use super::super::database::{FILE, prepared};
    use std::path::Path;

    use super::*;

    fn event(time: u64, vm: &str) -> Event {
        Event {
            time,
            kind: EventKind::Reservation,
            phase: Phase::Ended,
            device: "disk".to_owned(),
            vm: Some(vm.to_owned()),
            cause: Cause::Device,
            wanted: 100.0,
            got: 50.0,
            unit: Unit::Iops,
            ..Event::default()
        }
    }

    fn all() -> Filter<'static> {
        Filter { limit: 1_000_000, ..Filter::default() }
    }

    #[test]
    fn events_outlast_the_daemon_and_are_found_by_vm_and_time() {
        let folder = tempfile::tempdir().unwrap();
        let mut store = Store::open(Some(folder.path().to_owned()));
        (1..=5).for_each(|time| store.add(&event(time, if time % 2 == 0 { "even" } else { "odd" })));
        drop(store);
        let store = Store::open(Some(folder.path().to_owned()));
        let times = |filter: &Filter<'_>| -> Vec<u64> {
            find(store.connection(), filter).unwrap().events.iter().map(|event| event.time).collect()
        };
        assert_eq!(times(&all()), [1, 2, 3, 4, 5]);
        assert_eq!(times(&Filter { vm: Some("odd"), since: Some(2), ..all() }), [3, 5]);
        assert_eq!(times(&Filter { limit: 2, ..all() }), [4, 5], "the latest");
        assert_eq!(times(&Filter { after: Some(3), kind: Some("reservation"), ..all() }), [4, 5]);
        assert_eq!(times(&Filter { kind: Some("latency"), ..all() }), [] as [u64; 0]);
        assert_eq!(last(store.connection()), 5);
    }

    #[test]
    fn a_violation_that_lasted_when_the_daemon_stopped_never_ended() {
        let folder = tempfile::tempdir().unwrap();
        let mut store = Store::open(Some(folder.path().to_owned()));
        for (time, vm, phase) in [(1, "a", Phase::Began), (2, "b", Phase::Began), (3, "b", Phase::Ended)] {
            store.add(&Event { phase, ..event(time, vm) });
        }
        drop(store);
        let latest = |store: &Store| {
            find(store.connection(), &Filter { limit: 1, ..Filter::default() }).unwrap().events.remove(0)
        };
        let store = Store::open(Some(folder.path().to_owned()));
        let end = latest(&store);
        let expected = (Phase::Ended, Some("a"), EventKind::Reservation);
        assert_eq!((end.phase, end.vm.as_deref(), end.kind), expected);
        assert_eq!((end.seconds, end.time, end.ended_by), (2, 3, Some(DaemonEnd::Killed)), "until the last event");
        assert!(end.text.starts_with("Ended when the daemon stopped, after 2 s or more: "), "{end:?}");
        assert_eq!(last(store.connection()), 4, "b has ended already");
        drop(store);
        assert_eq!(last(Store::open(Some(folder.path().to_owned())).connection()), 4, "it ends once");
    }

    /// A promise to `a` is broken from 1000 on, and a store that has written so every 5 s until 1720.
    fn broken_for_twelve_minutes(folder: &Path) -> Store {
        let mut store = Store::open(Some(folder.to_owned()));
        store.add(&Event { phase: Phase::Began, ..event(1000, "a") });
        (1000..=1720).step_by(5).for_each(|time| store.beat(time));
        store
    }

    fn ends(store: &Store) -> Vec<(u64, u64, Option<DaemonEnd>)> {
        let found = find(store.connection(), &all()).unwrap().events.into_iter();
        found.filter(|event| event.phase == Phase::Ended).map(|end| (end.time, end.seconds, end.ended_by)).collect()
    }

    #[test]
    fn a_promise_that_was_broken_for_twelve_minutes_before_a_kill_was_broken_for_no_time() {
        let folder = tempfile::tempdir().unwrap();
        drop(broken_for_twelve_minutes(folder.path()));
        let mut store = Store::open(Some(folder.path().to_owned()));
        let first = (1720, 720, Some(DaemonEnd::Killed));
        assert_eq!(ends(&store), [first]);
        // It begins again, and the daemon is killed before it writes that it holds: the note of the first run says nothing of it.
        store.add(&Event { phase: Phase::Began, ..event(1700, "a") });
        drop(store);
        for _ in 0..3 {
            let again = (1700, 0, Some(DaemonEnd::Killed));
            assert_eq!(ends(&Store::open(Some(folder.path().to_owned()))), [first, again]);
        }
    }

    #[test]
    fn a_stop_writes_true_durations_also_of_events_whose_reporter_has_not_ended_them() {
        let folder = tempfile::tempdir().unwrap();
        let mut store = broken_for_twelve_minutes(folder.path());
        store.add(&Event { phase: Phase::Began, ..event(1600, "b") });
        let end = Event { seconds: 723, ended_by: Some(DaemonEnd::Stopped), ..event(1722, "a") };
        store.end(&[end], 1722, Some("SIGTERM".to_owned()));
        assert!(!folder.path().join("events.db-wal").exists(), "what was written is in one file");
        let store = Store::open(Some(folder.path().to_owned()));
        let stopped = Some(DaemonEnd::Stopped);
        assert_eq!(ends(&store), [(1722, 723, stopped), (1722, 122, stopped)]);
        let text = &find(store.connection(), &all()).unwrap().events[2].text;
        assert!(text.starts_with("Ended when the daemon stopped, after 12 min 3 s: "), "{text}");
    }

    #[test]
    fn a_clock_that_was_set_while_a_promise_was_broken_changed_the_duration() {
        for by in [3600, -600] {
            let folder = tempfile::tempdir().unwrap();
            let mut store = broken_for_twelve_minutes(folder.path());
            store.clock_was_set(by);
            drop(store);
            let until = 1720_u64.saturating_add_signed(by);
            let store = Store::open(Some(folder.path().to_owned()));
            assert_eq!(ends(&store), [(until, 720, Some(DaemonEnd::Killed))]);
        }
    }

    #[test]
    fn what_holds_while_the_database_is_in_memory_is_ended_too() {
        let folder = tempfile::tempdir().unwrap();
        drop(broken_for_twelve_minutes(folder.path()));
        let other = Connection::open(folder.path().join(FILE)).unwrap();
        other.execute_batch("PRAGMA locking_mode = EXCLUSIVE; BEGIN EXCLUSIVE").unwrap();
        let mut store = Store::open(Some(folder.path().to_owned()));
        store.add(&Event { phase: Phase::Began, ..event(2000, "b") });
        store.beat(2030);
        drop(other);
        store.beat(2035);
        drop(store);
        let store = Store::open(Some(folder.path().to_owned()));
        let killed = Some(DaemonEnd::Killed);
        assert_eq!(ends(&store), [(1720, 720, killed), (2035, 35, killed)]);
    }

    #[test]
    fn a_clock_that_was_set_hid_events_from_since_and_moved_others_into_the_future() {
        let folder = tempfile::tempdir().unwrap();
        let mut store = Store::open(Some(folder.path().to_owned()));
        store.add(&event(1000, "earlier run"));
        drop(store);
        for by in [3600, -3600] {
            let mut store = Store::open(Some(folder.path().to_owned()));
            store.add(&event(9_000, "vm"));
            store.clock_was_set(by);
            let now = 9_060_u64.saturating_add_signed(by);
            let found = find(store.connection(), &Filter { since: Some(now - 600), ..all() }).unwrap().events;
            assert_eq!(found.last().unwrap().time, now - 60, "it happened a minute ago");
            assert!(found.iter().all(|event| event.time <= 12_600));
            assert_eq!(
                find(store.connection(), &all()).unwrap().events[0].time,
                1000,
                "what the clock was then is not known"
            );
        }
    }

    #[test]
    fn the_oldest_events_are_deleted() {
        let mut store = Store { max: 1500, ..Store::open(None) };
        (1..=4000).for_each(|time| store.add(&event(time, "vm")));
        let kept = find(store.connection(), &all()).unwrap().events;
        assert_eq!((kept.len(), kept[0].time), (1500, 2501));
    }

    #[test]
    fn a_reader_that_asked_for_new_events_got_the_latest_thousand_and_not_the_others() {
        let mut store = Store::open(None);
        (1..=2500).for_each(|time| store.add(&event(time, if time % 5 == 0 { "fifth" } else { "vm" })));
        let all_after = |after: u64, vm: Option<&str>, limit: usize| {
            let (mut times, mut after) = (Vec::new(), after);
            loop {
                let page =
                    find(store.connection(), &Filter { after: Some(after), vm, limit, ..Filter::default() }).unwrap();
                times.extend(page.events.iter().map(|event| event.time));
                after = page.last;
                if !page.more {
                    return (times, after);
                }
            }
        };
        assert_eq!(all_after(100, None, 1000), ((101..=2500).collect(), 2500));
        assert_eq!(all_after(0, Some("fifth"), 100), ((1..=500).map(|fifth| fifth * 5).collect(), 2500));
        assert_eq!(all_after(2500, None, 10), (vec![], 2500));
        assert_eq!(all_after(9000, None, 2500).0.len(), 2500, "the number is of a database that was replaced");
        let latest = |limit| find(store.connection(), &Filter { limit, ..Filter::default() }).unwrap();
        assert!(latest(2499).more && !latest(2500).more);
        assert_eq!((latest(1000).events[0].time, latest(1000).last), (1501, 2500));
    }

    #[test]
    fn a_corrupt_file_is_moved_aside_and_events_are_kept_in_a_new_one() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(FILE);
        std::fs::write(&file, vec![0x5a; 8192]).unwrap();
        let mut store = Store::open(Some(folder.path().to_owned()));
        store.add(&event(1, "vm"));
        drop(store);
        assert_eq!(last(Store::open(Some(folder.path().to_owned())).connection()), 1);
        assert_eq!(std::fs::read(file.with_extension("db.corrupt")).unwrap(), vec![0x5a; 8192]);
    }

    fn times(store: &Store) -> Vec<u64> {
        find(store.connection(), &all()).unwrap().events.iter().map(|event| event.time).collect()
    }

    #[test]
    fn a_database_that_another_program_had_locked_was_moved_aside() {
        let folder = tempfile::tempdir().unwrap();
        let open = || Store::open(Some(folder.path().to_owned()));
        open().add(&event(1, "vm"));
        let other = Connection::open(folder.path().join(FILE)).unwrap();
        other.execute_batch("PRAGMA locking_mode = EXCLUSIVE; BEGIN EXCLUSIVE").unwrap();
        let mut store = open();
        store.add(&event(2, "vm"));
        assert_eq!(times(&store), [2], "it is in memory meanwhile");
        drop(other);
        store.add(&event(3, "vm"));
        assert_eq!(times(&store), [1, 2, 3]);
        drop(store);
        assert_eq!(times(&open()), [1, 2, 3]);
        assert!(!folder.path().join("events.db.corrupt").exists());
    }

    #[test]
    fn a_database_of_a_newer_program_was_moved_aside() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(FILE);
        Store::open(Some(folder.path().to_owned())).add(&event(1, "vm"));
        Connection::open(&file).unwrap().pragma_update(None, "user_version", 2).unwrap();
        let mut store = Store::open(Some(folder.path().to_owned()));
        store.add(&event(2, "vm"));
        assert_eq!(times(&store), [2]);
        let count = Connection::open(&file).unwrap().query_row("SELECT count(*) FROM event", [], |row| row.get(0));
        assert_eq!(count, Ok(1));
    }

    #[test]
    fn a_file_that_was_damaged_while_the_daemon_ran_took_no_further_event() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(FILE);
        let mut store = Store::open(Some(folder.path().to_owned()));
        store.add(&event(1, "vm"));
        store.connection().query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
        store.connection().execute_batch("PRAGMA shrink_memory").unwrap();
        let damaged = std::fs::File::options().write(true).open(&file).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&damaged, &[0x5a; 16384], 0).unwrap();
        (2..=3).for_each(|time| store.add(&event(time, "vm")));
        drop(store);
        assert_eq!(times(&Store::open(Some(folder.path().to_owned()))), [2, 3]);
        assert!(file.with_extension("db.corrupt").exists());
    }

    #[test]
    fn a_database_had_a_part_in_shared_memory_with_which_a_failing_disk_ended_the_daemon() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(FILE);
        // Made by a version that shared it.
        Connection::open(&file).and_then(prepared).unwrap();
        let mut store = Store::open(Some(folder.path().to_owned()));
        store.add(&event(1, "vm"));
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        assert!(!maps.contains(&*folder.path().to_string_lossy()), "nothing of it is mapped: {maps}");
        assert_eq!(times(&store), [1]);
    }

    #[test]
    fn events_went_into_a_removed_file_until_the_daemon_ended() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(FILE);
        let mut store = Store::open(Some(folder.path().to_owned()));
        store.add(&event(1, "vm"));
        std::fs::remove_file(&file).unwrap();
        store.add(&event(2, "vm"));
        drop(store);
        assert_eq!(times(&Store::open(Some(folder.path().to_owned()))), [1, 2]);
    }
}
