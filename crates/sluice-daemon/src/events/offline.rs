//! The record of a daemon that does not run: events and the past, read from its state directory by all who may read there.
//!
//! Nothing is written, also not by root, so the next start finds what the last daemon left. A daemon that was killed leaves a write-ahead
//! log with its last writes. SQLite reads it with an index in memory if the database is opened exclusively, and without locks because the file may
//! be out of reach for writing. That is safe as long as no daemon uses the folder, which its lock tells.

use std::path::{Path, PathBuf};

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};
use sluice_api::event::{Event, EventKind, Events};

use super::database::FILE;
use super::{DEFAULT_LIMIT, answer, cut_off, past};
use crate::control::{Code, Reply, Request};
use crate::explain::why::Question;
use crate::state::folder;
use crate::state::time::Time;

/// The record in a state directory.
pub struct Record {
    connection: Connection,
    /// Ends of the events that the end of the daemon has cut off, and that end.
    ends: Vec<Event>,
}

/// Why there is no record to read.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    #[error("No record of events in {path}; name the `state` of [daemon] with --state DIR", path = .0.display())]
    Missing(PathBuf),
    #[error("A daemon uses the state directory {path}; ask it, without --state", path = .0.display())]
    InUse(PathBuf),
    #[error("Cannot read {path}: {error}{remedy}", path = .path.display())]
    Unreadable { path: PathBuf, error: String, remedy: &'static str },
}

impl Record {
    /// Opens the record in a state directory.
    ///
    /// # Errors
    /// [`RecordError`].
    pub fn open(folder: &Path) -> Result<Record, RecordError> {
        let path = folder.join(FILE);
        let failed = |error: String| RecordError::Unreadable { path: path.clone(), error, remedy: "" };
        match path.try_exists() {
            Ok(true) => {}
            Ok(false) => return Err(RecordError::Missing(folder.to_owned())),
            Err(error) => return Err(denied(&path, &error)),
        }
        // A pipe would never end.
        if !path.is_file() {
            return Err(failed("it is not a file".to_owned()));
        }
        if folder::is_used(folder).map_err(|error| denied(&path, &error))? {
            return Err(RecordError::InUse(folder.to_owned()));
        }
        // An error of SQLite says less of permissions.
        std::fs::File::open(&path).map_err(|error| denied(&path, &error))?;
        let connection = open(&path).map_err(|error| failed(error.to_string()))?;
        let ends = cut_off::all_ends(&connection).map_err(|error| failed(error.to_string()))?;
        Ok(Record { connection, ends })
    }

    /// Time of the last record in seconds since 1970; `None` if there is none.
    #[must_use]
    pub fn last(&self) -> Option<u64> {
        cut_off::known_until(&self.connection).max(super::history::last(&self.connection))
    }

    /// Answers a question about events or the past.
    #[must_use]
    pub fn answer(&self, request: &Request) -> Reply {
        match request {
            Request::Events { .. } => self.with_ends(answer(Some(&self.connection), request), request),
            Request::History { vm, volume, .. } => {
                let name = volume.as_ref().map_or_else(|| vm.clone(), |volume| format!("{vm}/{volume}"));
                let nothing = Reply::failed(Code::NotFound, format!("Nothing is known of {name}"));
                past(Some(&self.connection), request, Err(nothing))
            }
            Request::Why { vm, since } => self.why(vm, *since),
            _ => Reply::failed(Code::Refused, "The daemon does not run"),
        }
    }

    /// What was of a VM. Nothing of it is so now.
    fn why(&self, vm: &str, since: Option<u64>) -> Reply {
        let mut question = Question::new(vm, since, Time::now().0, None);
        while let Some(request) = question.needs() {
            let reply = self.with_ends(answer(Some(&self.connection), &request), &request);
            let Ok(Some(events)) = reply.read() else { return reply };
            question.take(events);
        }
        question.answer().map_or_else(|unknown| Reply::failed(Code::NotFound, unknown), |why| Reply::with(&why))
    }

    /// Adds the ends of what was cut off to the last events.
    fn with_ends(&self, reply: Reply, request: &Request) -> Reply {
        let Request::Events { since, until, after, vm, device, kind, limit } = request else { return reply };
        let kinds = kind.as_deref().map(EventKind::asked);
        let Ok(Some(mut found)) = reply.read::<Events>() else { return reply };
        if after.is_some() && found.more {
            return reply;
        }
        let is_asked = |end: &&Event| {
            (since.unwrap_or(0)..=until.unwrap_or(u64::MAX)).contains(&end.time)
                && (vm.is_none() || *vm == end.vm)
                && device.as_ref().is_none_or(|device| *device == end.device)
                && kinds.as_ref().is_none_or(|kinds| kinds.contains(&end.kind))
        };
        let ends = self.ends.iter().filter(is_asked);
        found.events.extend(ends.map(|end| Event { text: end.in_words(), ..end.clone() }));
        let most = limit.unwrap_or(DEFAULT_LIMIT);
        if after.is_none() && found.events.len() > most {
            found.events.drain(..found.events.len() - most);
            found.more = true;
        }
        Reply::with(&found)
    }
}

fn denied(path: &Path, error: &std::io::Error) -> RecordError {
    let is_denied = error.kind() == std::io::ErrorKind::PermissionDenied;
    let remedy = if is_denied { "; become its owner, or root" } else { "" };
    RecordError::Unreadable { path: path.to_owned(), error: error.to_string(), remedy }
}

fn open(path: &Path) -> rusqlite::Result<Connection> {
    let log = path.with_extension("db-wal");
    let has_log = log.metadata().is_ok_and(|log| log.len() > 0);
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    if !has_log {
        // Of a clean stop. As a file that may change, SQLite would make a log for it.
        let name = path.to_string_lossy().replace('%', "%25").replace('?', "%3f").replace('#', "%23");
        let flags = flags | OpenFlags::SQLITE_OPEN_URI;
        return Connection::open_with_flags(format!("file:{name}?immutable=1"), flags);
    }
    let connection = Connection::open_with_flags_and_vfs(path, flags, c"unix-none")?;
    connection.pragma_update(None, "locking_mode", "EXCLUSIVE")?;
    // The log stays as it is.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    Ok(connection)
}

#[cfg(test)]
mod tests {
    use sluice_api::event::Phase;

    use super::super::store::Store;
    use super::*;

    fn asked(after: Option<u64>) -> Request {
        Request::Events { since: None, until: None, after, vm: None, device: None, kind: None, limit: None }
    }

    fn events(folder: &Path) -> Vec<(u64, Phase, u64)> {
        let reply = Record::open(folder).unwrap().answer(&asked(Some(0)));
        let found: Events = reply.read().unwrap().unwrap();
        let found = found.events.iter().filter(|event| event.phase != Phase::Happened);
        found.map(|event| (event.time, event.phase, event.seconds)).collect()
    }

    fn files(folder: &Path) -> Vec<(std::ffi::OsString, Vec<u8>)> {
        let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let mut all: Vec<_> =
            entries.map(|path| (path.file_name().unwrap().to_owned(), std::fs::read(&path).unwrap())).collect();
        all.sort();
        all
    }

    fn event(time: u64) -> Event {
        Event { time, kind: EventKind::Reservation, vm: Some("db".to_owned()), ..Event::default() }
    }

    #[test]
    fn a_log_that_a_kill_left_is_read_and_left_as_it_is() {
        let (folder, copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let mut store = Store::open(Some(folder.path().to_owned()));
        store.add(&event(1000));
        store.beat(1720);
        // The files of a daemon that is killed now.
        files(folder.path()).iter().for_each(|(name, bytes)| std::fs::write(copy.path().join(name), bytes).unwrap());
        assert!(copy.path().join("events.db-wal").metadata().unwrap().len() > 0);
        let before = files(copy.path());
        assert_eq!(events(copy.path()), [(1000, Phase::Began, 0), (1720, Phase::Ended, 720)]);
        assert_eq!(Record::open(copy.path()).unwrap().last(), Some(1720));
        assert!(files(copy.path()) == before, "nothing is written");
        let store = Store::open(Some(copy.path().to_owned()));
        drop(store);
        assert_eq!(
            events(copy.path()),
            [(1000, Phase::Began, 0), (1720, Phase::Ended, 720)],
            "the start finds the same"
        );
    }

    #[test]
    fn the_record_of_a_daemon_that_was_stopped_is_read_and_left_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let mut store = Store::open(Some(folder.path().to_owned()));
        store.add(&event(1000));
        store.end(&[], 1100, Some("SIGTERM".to_owned()));
        let before = files(folder.path());
        assert_eq!(events(folder.path()), [(1000, Phase::Began, 0), (1100, Phase::Ended, 100)]);
        assert!(files(folder.path()) == before, "nothing is written");
    }

    #[test]
    fn a_folder_without_a_record_or_with_a_daemon_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        assert!(matches!(Record::open(folder.path()), Err(RecordError::Missing(_))));
        let _daemon = crate::state::folder::StateFolder::open(folder.path()).unwrap();
        drop(Store::open(Some(folder.path().to_owned())));
        assert!(matches!(Record::open(folder.path()), Err(RecordError::InUse(_))));
    }
}
