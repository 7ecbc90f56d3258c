//! Events in a SQLite database of the state directory, `events.db`, which any SQLite program can read while the daemon does not run.
//! The daemon locks it: a database that programs share has a part that is mapped into memory, and a disk that fails under a
//! mapping, or a program that shortens the file, ends the process and so the disks of all VMs.
//!
//! It is bounded: the oldest events are deleted. A database that is damaged is moved aside, because events are no reason not to
//! serve. One that cannot be opened or written for another reason, for example on a full disk or while another program has locked
//! it, is left as it is and tried again with the next event; events of the meantime are in memory or in the log.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, OptionalExtension, params};
use sluice_api::VERSION;
use sluice_api::event::{Event, Events};

use crate::state::time::Time;

/// Name of the database.
const FILE: &str = "events.db";
/// Maximum number of events, about 50 MB.
const EVENTS_MAX: i64 = 100_000;
/// Events that are deleted at once.
const DELETED_AT_ONCE: i64 = 1000;
/// Maximum time to wait for another program that reads or writes the database.
const BUSY_MAX: Duration = Duration::from_secs(1);

const SCHEMA: &str = "
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
    PRAGMA user_version = 1;
";

const INSERT: &str =
    "INSERT INTO event (time, kind, phase, device, vm, volume, cause, text, json) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)";

/// The events to look for.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Filter<'a> {
    /// Seconds since 1970.
    pub(super) since: Option<u64>,
    /// Number of the last event that is known already: those after it, the oldest first. Without it, the latest ones.
    pub(super) after: Option<u64>,
    pub(super) vm: Option<&'a str>,
    pub(super) device: Option<&'a str>,
    pub(super) kind: Option<&'a str>,
    /// Maximum number of events.
    pub(super) limit: usize,
}

/// The events.
pub(super) struct Store {
    connection: Connection,
    /// The file to write to: that of `connection`, unless it could not be opened and `connection` is in memory.
    file: Option<PathBuf>,
    is_in_memory: bool,
    max: i64,
    /// Number of the last event of earlier runs of the daemon.
    before: i64,
    /// Whether the last write failed.
    fails: bool,
}

/// Why a database cannot be opened.
#[derive(Debug)]
enum OpenError {
    /// It is damaged, so it is of no use.
    Damaged(String),
    /// It may be of use later, or to another program.
    Unusable(String),
}

impl From<rusqlite::Error> for OpenError {
    fn from(error: rusqlite::Error) -> OpenError {
        if is_damage(&error) { OpenError::Damaged(error.to_string()) } else { OpenError::Unusable(error.to_string()) }
    }
}

fn is_damage(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase))
}

impl Store {
    /// Opens the database in a folder, or one in memory. One that cannot be opened now is tried again with each event.
    pub(super) fn open(folder: Option<PathBuf>) -> Store {
        let file = folder.map(|folder| folder.join(FILE));
        let opened = file.as_deref().and_then(|file| match open_or_replace(file) {
            Ok(connection) => Some(connection),
            Err(error) => {
                let file = file.display();
                tracing::error!(%file, error, "Cannot open the event database: keeping events in memory until it can be opened");
                None
            }
        });
        let is_in_memory = opened.is_none();
        let connection = opened.unwrap_or_else(in_memory);
        let before = last(&connection);
        end_earlier(&connection, Time::of_clock());
        Store { connection, file, is_in_memory, max: EVENTS_MAX, before, fails: false }
    }

    /// Corrects the times of the events of this run by `seconds`. Those of earlier runs stay: what the clock was then is not known.
    pub(super) fn clock_was_set(&mut self, seconds: i64) {
        let corrected = self
            .connection
            .execute("UPDATE event SET time = max(0, time + ?1) WHERE id > ?2", params![seconds, self.before]);
        if let Err(error) = corrected {
            tracing::error!(%error, seconds, "Times of events cannot be corrected after the clock was set");
        }
    }

    /// Adds an event. A failure is logged once, until a later event can be written.
    pub(super) fn add(&mut self, event: &Event) {
        self.leave_memory();
        let added = self.try_add(event).or_else(|error| {
            self.replace(error)?;
            self.try_add(event)
        });
        match added {
            Ok(()) if self.fails => {
                self.fails = false;
                tracing::info!("Events are written to the database again");
            }
            Ok(()) => {}
            Err(error) if !self.fails => {
                self.fails = true;
                tracing::error!(%error, "Cannot write events to the database: they are only in the log; check whether the disk of the state directory is full or read-only");
            }
            Err(_) => {}
        }
    }

    /// Moves the events in memory to the file, if it can be opened by now. So it does if the file was removed: its events are still
    /// there as long as it is open.
    fn leave_memory(&mut self) {
        let is_lost = |file: &&Path| self.is_in_memory || matches!(file.try_exists(), Ok(false));
        let Some(file) = self.file.as_deref().filter(is_lost) else { return };
        let Ok(connection) = open_or_replace(file) else { return };
        let before = last(&connection);
        end_earlier(&connection, Time::of_clock());
        let copied = copy(&self.connection, &connection);
        if let Err(error) = copied {
            return tracing::debug!(%error, "Events stay in memory");
        }
        tracing::info!(file = %file.display(), "Event database is open again: events from memory were written to it");
        (self.connection, self.is_in_memory, self.before) = (connection, false, before);
    }

    /// Begins a new file if the error says that this one is damaged. Otherwise returns the error.
    fn replace(&mut self, error: rusqlite::Error) -> rusqlite::Result<()> {
        let file = self.file.clone().filter(|_| is_damage(&error) && !self.is_in_memory);
        let Some(file) = file else { return Err(error) };
        // The damaged file is closed before it is moved.
        (self.connection, self.before) = (in_memory(), 0);
        match replaced(&file, &error.to_string()) {
            Ok(connection) => self.connection = connection,
            Err(_) => self.is_in_memory = true,
        }
        Ok(())
    }

    fn try_add(&mut self, event: &Event) -> rusqlite::Result<()> {
        self.connection.execute(
            INSERT,
            params![
                event.time as i64,
                event.kind.name(),
                event.phase.name(),
                event.device,
                event.vm,
                event.volume,
                event.cause.name(),
                event.in_words(),
                serde_json::to_string(event).expect("its keys are strings"),
            ],
        )?;
        let last = self.connection.last_insert_rowid();
        if last % DELETED_AT_ONCE == 0 {
            self.connection.execute("DELETE FROM event WHERE id <= ?", params![last - self.max])?;
        }
        Ok(())
    }

    /// Returns the events that match.
    pub(super) fn find(&self, filter: &Filter<'_>) -> rusqlite::Result<Events> {
        let last = self.last();
        let order = if filter.after.is_some() { "ASC" } else { "DESC" };
        let mut statement = self.connection.prepare(&format!(
            "SELECT id, time, text, json FROM event WHERE time >= ?1 AND id > ?2 AND (?3 IS NULL OR vm = ?3)
             AND (?4 IS NULL OR device = ?4) AND (?5 IS NULL OR kind = ?5) ORDER BY id {order} LIMIT ?6"
        ))?;
        let since = filter.since.unwrap_or(0) as i64;
        // A number that is not reached yet is one of a database that was replaced.
        let after =
            filter.after.and_then(|after| i64::try_from(after).ok()).filter(|after| *after <= last).unwrap_or(0);
        // One more than asked for tells whether there are more.
        let limit = i64::try_from(filter.limit).unwrap_or(i64::MAX).saturating_add(1);
        let rows = statement.query_map(params![since, after, filter.vm, filter.device, filter.kind, limit], |row| {
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
    pub(super) fn last(&self) -> i64 {
        last(&self.connection)
    }
}

/// Adds an end to each violation of an earlier run that has none, because the daemon was stopped or killed before it ended.
/// It lasted at least until the last event of that run; more is not known.
fn end_earlier(connection: &Connection, now: Time) {
    match try_end_earlier(connection, now) {
        Ok(0) => {}
        Ok(ended) => tracing::info!(
            ended,
            "Promises that were broken when the daemon stopped: their violations are recorded as ended"
        ),
        Err(error) => {
            tracing::error!(%error, "Cannot record the end of violations that lasted when the daemon stopped")
        }
    }
}

fn try_end_earlier(connection: &Connection, now: Time) -> rusqlite::Result<usize> {
    connection.execute(
        "WITH known (until) AS (SELECT max(time) FROM event)
         INSERT INTO event (time, kind, phase, device, vm, volume, cause, text, json)
         SELECT max(time, ?1), kind, 'ended', device, vm, volume, cause,
             'Ended when the daemon stopped, after ' || (until - time) || ' s or more: ' || text,
             json_set(json, '$.phase', 'ended', '$.seconds', until - time, '$.detail', 'the daemon stopped')
         FROM event, known WHERE phase = 'began' AND id IN (SELECT max(id) FROM event GROUP BY kind, device, vm, volume)
         ORDER BY id",
        params![now.0 as i64],
    )
}

fn last(connection: &Connection) -> i64 {
    let last = connection.query_row("SELECT max(id) FROM event", [], |row| row.get::<_, Option<i64>>(0));
    last.optional().ok().flatten().flatten().unwrap_or(0)
}

/// Whether a folder has a database.
pub(super) fn is_in(folder: Option<&Path>) -> bool {
    folder.is_some_and(|folder| folder.join(FILE).exists())
}

fn in_memory() -> Connection {
    Connection::open_in_memory().and_then(prepared).expect("a database in memory needs memory alone")
}

/// Opens a database. One that is damaged is moved aside, and a new one is made; any other is left as it is.
fn open_or_replace(path: &Path) -> Result<Connection, String> {
    match open(path) {
        Ok(connection) => Ok(connection),
        Err(OpenError::Unusable(error)) => Err(error),
        Err(OpenError::Damaged(error)) => replaced(path, &error),
    }
}

fn open(path: &Path) -> Result<Connection, OpenError> {
    let connection = Connection::open(path)?;
    connection.busy_timeout(BUSY_MAX)?;
    // Before the first access: so there is no index in shared memory, see above.
    connection.pragma_update(None, "locking_mode", "EXCLUSIVE")?;
    let version: i64 = connection.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    if version > 1 {
        let error = format!("its version {version} is of a newer program; update this one, or move the file away");
        return Err(OpenError::Unusable(error));
    }
    let check: String = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
    if check != "ok" {
        return Err(OpenError::Damaged(check));
    }
    Ok(prepared(connection)?)
}

fn prepared(connection: Connection) -> rusqlite::Result<Connection> {
    // A crash of the host may cost the last events, not the database.
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    connection.execute_batch(SCHEMA)?;
    Ok(connection)
}

/// Adds the events of one database to another, all or none.
fn copy(from: &Connection, to: &Connection) -> rusqlite::Result<()> {
    let all = to.unchecked_transaction()?;
    let mut statement =
        from.prepare("SELECT time, kind, phase, device, vm, volume, cause, text, json FROM event ORDER BY id")?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let values = (0..9).map(|column| row.get::<_, rusqlite::types::Value>(column));
        all.execute(INSERT, rusqlite::params_from_iter(values.collect::<rusqlite::Result<Vec<_>>>()?))?;
    }
    all.commit()
}

/// Moves a damaged database aside, and makes a new one.
fn replaced(path: &Path, error: &str) -> Result<Connection, String> {
    let (file, aside) = (path.display(), path.with_extension("db.corrupt"));
    let moved = std::fs::rename(path, &aside).map_err(|second| format!("{error}; it cannot be moved aside: {second}"));
    moved?;
    for side in ["db-wal", "db-shm"] {
        let _ = std::fs::remove_file(path.with_extension(side));
    }
    tracing::error!(%file, error, aside = %aside.display(), "Cannot read the event database: it was renamed, and a new one created");
    open(path).map_err(|error| match error {
        OpenError::Damaged(error) | OpenError::Unusable(error) => error,
    })
}

#[cfg(test)]
mod tests {
    use sluice_api::cause::Cause;
    use sluice_api::event::{EventKind, Phase, Unit};

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
            store.find(filter).unwrap().events.iter().map(|event| event.time).collect()
        };
        assert_eq!(times(&all()), [1, 2, 3, 4, 5]);
        assert_eq!(times(&Filter { vm: Some("odd"), since: Some(2), ..all() }), [3, 5]);
        assert_eq!(times(&Filter { limit: 2, ..all() }), [4, 5], "the latest");
        assert_eq!(times(&Filter { after: Some(3), kind: Some("reservation"), ..all() }), [4, 5]);
        assert_eq!(times(&Filter { kind: Some("latency"), ..all() }), [] as [u64; 0]);
        assert_eq!(store.last(), 5);
    }

    #[test]
    fn a_violation_that_lasted_when_the_daemon_stopped_never_ended() {
        let folder = tempfile::tempdir().unwrap();
        let mut store = Store::open(Some(folder.path().to_owned()));
        for (time, vm, phase) in [(1, "a", Phase::Began), (2, "b", Phase::Began), (3, "b", Phase::Ended)] {
            store.add(&Event { phase, ..event(time, vm) });
        }
        drop(store);
        let last = |store: &Store| store.find(&Filter { limit: 1, ..Filter::default() }).unwrap().events.remove(0);
        let store = Store::open(Some(folder.path().to_owned()));
        let end = last(&store);
        let expected = (Phase::Ended, Some("a"), EventKind::Reservation);
        assert_eq!((end.phase, end.vm.as_deref(), end.kind), expected);
        assert!(end.seconds == 2 && end.time > 1_000_000, "until the last event: {end:?}");
        assert!(end.text.starts_with("Ended when the daemon stopped, after 2 s or more: "), "{end:?}");
        assert_eq!(store.last(), 4, "b has ended already");
        drop(store);
        assert_eq!(Store::open(Some(folder.path().to_owned())).last(), 4, "it ends once");
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
            let found = store.find(&Filter { since: Some(now - 600), ..all() }).unwrap().events;
            assert_eq!(found.last().unwrap().time, now - 60, "it happened a minute ago");
            assert!(found.iter().all(|event| event.time <= 12_600));
            assert_eq!(store.find(&all()).unwrap().events[0].time, 1000, "what the clock was then is not known");
        }
    }

    #[test]
    fn the_oldest_events_are_deleted() {
        let mut store = Store { max: 1500, ..Store::open(None) };
        (1..=4000).for_each(|time| store.add(&event(time, "vm")));
        let kept = store.find(&all()).unwrap().events;
        assert_eq!((kept.len(), kept[0].time), (1500, 2501));
    }

    #[test]
    fn a_reader_that_asked_for_new_events_got_the_latest_thousand_and_not_the_others() {
        let mut store = Store::open(None);
        (1..=2500).for_each(|time| store.add(&event(time, if time % 5 == 0 { "fifth" } else { "vm" })));
        let all_after = |after: u64, vm: Option<&str>, limit: usize| {
            let (mut times, mut after) = (Vec::new(), after);
            loop {
                let page = store.find(&Filter { after: Some(after), vm, limit, ..Filter::default() }).unwrap();
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
        let latest = |limit| store.find(&Filter { limit, ..Filter::default() }).unwrap();
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
        assert_eq!(Store::open(Some(folder.path().to_owned())).last(), 1);
        assert_eq!(std::fs::read(file.with_extension("db.corrupt")).unwrap(), vec![0x5a; 8192]);
    }

    fn times(store: &Store) -> Vec<u64> {
        store.find(&all()).unwrap().events.iter().map(|event| event.time).collect()
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
        store.connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
        store.connection.execute_batch("PRAGMA shrink_memory").unwrap();
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
