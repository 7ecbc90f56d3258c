//! The SQLite database of the state directory, `events.db`: opened, moved aside if it is damaged, and replaced by one in memory while it
//! cannot be opened. Any SQLite program can read it while the daemon does not run.
//!
//! The daemon locks it: a database that programs share has a part that is mapped into memory, and a disk that fails under a
//! mapping, or a program that shortens the file, ends the process and so the disks of all VMs.
//!
//! A database that is damaged is moved aside, because a record is no reason not to serve. One that cannot be opened or written for
//! another reason, for example on a full disk or while another program has locked it, is left as it is and tried again with the
//! next write; what is written in the meantime is in memory or lost.
//!
//! Tables are only ever added, so that an older program finds those that it knows, and the version stays the same.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, ffi};

use super::{cut_off, earlier, history, store};

/// Name of the database.
pub(super) const FILE: &str = "events.db";
/// Maximum time to wait for another program that reads or writes the database.
const BUSY_MAX: Duration = Duration::from_secs(1);
/// Bytes that the record leaves free in the state directory, for changes: a change that cannot be written is refused.
const RESERVE: u64 = 1 << 20;
const NO_ROOM: &str = "less than 1 MiB is free in the state directory, which is kept for changes";
/// Version of the database.
const VERSION: i64 = 1;

/// Statements that create its tables.
const SCHEMAS: [&str; 4] = [store::SCHEMA, cut_off::SCHEMA, history::SCHEMA, earlier::SCHEMA];

/// The database.
pub(super) struct Database {
    connection: Connection,
    /// The file to write to: that of `connection`, unless it could not be opened and `connection` is in memory.
    file: Option<PathBuf>,
    is_in_memory: bool,
    /// Number of the last event of earlier runs of the daemon.
    before: i64,
    /// Why the file could not be opened, or the last write failed.
    trouble: Option<String>,
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

impl Database {
    /// Opens the database in a folder, or one in memory. One that cannot be opened now is tried again with each write.
    pub(super) fn open(folder: Option<PathBuf>) -> Database {
        let file = folder.map(|folder| folder.join(FILE));
        let mut trouble = None;
        let opened = file.as_deref().and_then(|file| match open_or_replace(file) {
            Ok(connection) => Some(connection),
            Err(error) => {
                let file = file.display();
                tracing::error!(%file, error, "Cannot open the event database: keeping events in memory until it can be opened");
                trouble = Some(format!("{file} cannot be opened: {error}"));
                None
            }
        });
        let is_in_memory = opened.is_none();
        let connection = opened.unwrap_or_else(in_memory);
        cut_off::end(&connection);
        let before = store::last(&connection);
        Database { connection, file, is_in_memory, before, trouble }
    }

    pub(super) fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Number of the last event of earlier runs of the daemon, whose times are not corrected when the clock is set: what it was then is
    /// not known.
    pub(super) fn before(&self) -> i64 {
        self.before
    }

    /// Whether there is no file to write to, at least for now.
    pub(super) fn is_in_memory(&self) -> bool {
        self.is_in_memory
    }

    /// The folder of the file.
    pub(super) fn folder(&self) -> Option<&Path> {
        self.file.as_deref().and_then(Path::parent)
    }

    /// Writes, all or nothing. A failure is logged once, until something can be written again.
    pub(super) fn write(&mut self, write: impl Fn(&Connection) -> rusqlite::Result<()>) {
        let is_in_place = self.find_place();
        let in_one = |connection: &Connection| {
            let all = connection.unchecked_transaction()?;
            write(connection)?;
            all.commit()
        };
        let has_room = self.is_in_memory || self.file.as_deref().is_none_or(has_room);
        let written = match has_room {
            true => in_one(&self.connection).or_else(|error| {
                self.replace(error)?;
                in_one(&self.connection)
            }),
            false => Err(rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_FULL), Some(NO_ROOM.to_owned()))),
        };
        match written {
            Ok(()) if !is_in_place || self.is_in_memory => {}
            Ok(()) if self.trouble.take().is_some() => {
                tracing::info!("Events and history are written to the database again");
            }
            Ok(()) => {}
            Err(error) => {
                if self.trouble.replace(format!("it cannot be written: {error}")).is_some() {
                    return;
                }
                tracing::error!(%error, "Cannot write to the event database: events are only in the log, and the history has a gap; check whether the disk of the state directory is full or read-only");
            }
        }
    }

    /// Why the file could not be opened, or the last write failed.
    pub(super) fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }

    /// Moves the rows in memory to the file, if it can be opened by now. If the file was removed, its rows are moved to a new one: they
    /// exist as long as the old one is open. Returns whether the rows are where they belong.
    fn find_place(&mut self) -> bool {
        let is_lost = |file: &&Path| self.is_in_memory || matches!(file.try_exists(), Ok(false));
        let Some(file) = self.file.as_deref().filter(is_lost) else { return true };
        let connection = match open_or_replace(file) {
            Ok(connection) => connection,
            Err(error) => {
                self.trouble = Some(format!("{} cannot be opened: {error}", file.display()));
                return false;
            }
        };
        cut_off::end(&connection);
        let before = store::last(&connection);
        let copied = connection.unchecked_transaction().and_then(|all| {
            store::copy(&self.connection, &all)?;
            cut_off::copy(&self.connection, &all)?;
            history::copy(&self.connection, &all)?;
            earlier::copy(&self.connection, &all)?;
            all.commit()
        });
        if let Err(error) = copied {
            tracing::debug!(%error, "Events stay in memory");
            return false;
        }
        tracing::info!(file = %file.display(), "Event database is open again: events from memory were written to it");
        (self.connection, self.is_in_memory, self.before, self.trouble) = (connection, false, before, None);
        true
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
}

/// Whether a folder has a database.
pub(super) fn is_in(folder: Option<&Path>) -> bool {
    folder.is_some_and(|folder| folder.join(FILE).exists())
}

fn in_memory() -> Connection {
    Connection::open_in_memory().and_then(prepared).expect("a database in memory needs memory alone")
}

/// Whether as many bytes are free on the file system of a folder; also if that cannot be told.
pub(super) fn has_free(folder: &Path, bytes: u64) -> bool {
    rustix::fs::statvfs(folder).map_or(true, |space| space.f_bavail.saturating_mul(space.f_frsize) >= bytes)
}

/// Whether what is free suffices for the database beside the state.
fn has_room(path: &Path) -> bool {
    path.parent().is_none_or(|folder| has_free(folder, RESERVE))
}

/// Opens a database. One that is damaged is moved aside, and a new one is made; any other is left as it is.
fn open_or_replace(path: &Path) -> Result<Connection, String> {
    if !has_room(path) && matches!(path.try_exists(), Ok(false)) {
        return Err(NO_ROOM.to_owned());
    }
    match open(path) {
        Ok(connection) => Ok(connection),
        Err(OpenError::Unusable(error)) => Err(error),
        Err(OpenError::Damaged(error)) => replaced(path, &error),
    }
}

fn open(path: &Path) -> Result<Connection, OpenError> {
    if path.exists() && !path.is_file() {
        return Err(OpenError::Unusable("it is not a file; move it away".to_owned()));
    }
    let connection = Connection::open(path)?;
    connection.busy_timeout(BUSY_MAX)?;
    // Before the first access: so there is no index in shared memory, see above.
    connection.pragma_update(None, "locking_mode", "EXCLUSIVE")?;
    let version: i64 = connection.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    if version > VERSION {
        let error = format!("its version {version} is of a newer program; update this one, or move the file away");
        return Err(OpenError::Unusable(error));
    }
    let connection = prepared(connection)?;
    let check: String = connection.query_row("PRAGMA quick_check(event)", [], |row| row.get(0))?;
    if check == "ok" { Ok(connection) } else { Err(OpenError::Damaged(check)) }
}

pub(super) fn prepared(connection: Connection) -> rusqlite::Result<Connection> {
    // A crash of the host may cost the last events, not the database.
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    SCHEMAS.iter().try_for_each(|schema| connection.execute_batch(schema))?;
    connection.pragma_update(None, "user_version", VERSION)?;
    Ok(connection)
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
