//! The state directory: one daemon at a time, and a file that is either the old one or the new one.
//!
//! A new state is written to `state.json.new`, synced, and renamed over `state.json`; then the folder is synced. A crash
//! leaves one of both. A state that cannot be read stops the start: to go on without it would forget changes that were
//! confirmed, and serve a volume that was detached.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::Value;

use super::Saved;

/// Version of the file's format.
const VERSION: u64 = 1;
/// Name of the file.
const FILE: &str = "state.json";

/// A state directory that cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StateError {
    #[error("State directory {path}: {source}; make it, and let this user write there, or name another as [daemon] state", path = .path.display())]
    Folder { path: PathBuf, source: io::Error },
    #[error("State directory {path} is used by another daemon; stop it, or name another directory as [daemon] state", path = .0.display())]
    InUse(PathBuf),
    #[error("State file {path}: {source}", path = .path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error(
        "State file {path} is corrupt: {what}. Restore it from a backup, or move it away (mv {path} {path}.corrupt) and start again: \
         changes made at run time are then forgotten, and no volume's source is compared with the one that was last served",
        path = .path.display()
    )]
    Corrupt { path: PathBuf, what: String },
    #[error(
        "State file {path} has version {version}, and this program knows version {VERSION}; use the program that wrote it, or move \
         the file away (mv {path} {path}.other): changes made at run time are then forgotten",
        path = .path.display()
    )]
    Version { path: PathBuf, version: u64 },
}

/// A state directory, locked for this process.
#[derive(Debug)]
pub(crate) struct StateFolder {
    path: PathBuf,
    _lock: File,
}

/// The file as written.
#[derive(Serialize)]
struct Versioned<'a> {
    version: u64,
    #[serde(flatten)]
    saved: &'a Saved,
}

impl StateFolder {
    /// Locks the directory, which is made if its parent exists, and reads the state; a missing file is an empty state.
    ///
    /// # Errors
    /// [`StateError`].
    pub(crate) fn open(path: &Path) -> Result<(StateFolder, Saved), StateError> {
        let failed = |source| StateError::Folder { path: path.to_owned(), source };
        match DirBuilder::new().mode(0o700).create(path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(failed(error)),
            _ => {}
        }
        // Its own descriptor for reading: one for writing would keep the file system from becoming read-only.
        let lock = File::open(path).map_err(failed)?;
        lock.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => StateError::InUse(path.to_owned()),
            TryLockError::Error(error) => failed(error),
        })?;
        let folder = StateFolder { path: path.to_owned(), _lock: lock };
        let saved = folder.read()?;
        Ok((folder, saved))
    }

    /// Its path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    fn read(&self) -> Result<Saved, StateError> {
        let path = self.path.join(FILE);
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Saved::default()),
            Err(source) => return Err(StateError::Read { path, source }),
        };
        let corrupt = |what: String| StateError::Corrupt { path: path.clone(), what };
        let mut value: Value = serde_json::from_slice(&text).map_err(|error| corrupt(error.to_string()))?;
        let version = value.as_object_mut().and_then(|fields| fields.remove("version"));
        match version.as_ref().and_then(Value::as_u64) {
            None => Err(corrupt("it has no version".to_owned())),
            Some(VERSION) => serde_json::from_value(value).map_err(|error| corrupt(error.to_string())),
            Some(version) => Err(StateError::Version { path, version }),
        }
    }

    /// Replaces the state. When this returns `Ok`, it survives a crash.
    ///
    /// # Errors
    /// The file system refuses; the previous state is then still there, or this one if only the sync of the folder failed.
    pub(crate) fn write(&self, saved: &Saved) -> io::Result<()> {
        let mut text = serde_json::to_vec_pretty(&Versioned { version: VERSION, saved }).map_err(io::Error::other)?;
        text.push(b'\n');
        replace(&self.path.join(FILE), &text, 0o600)
    }
}

/// Replaces a file, or creates it: afterwards it has this text, also after a crash. A file that exists keeps its mode.
///
/// # Errors
/// The file system refuses; the file is then as it was, unless only the sync of its folder failed.
pub(crate) fn replace(path: &Path, text: &[u8], mode: u32) -> io::Result<()> {
    let folder = path.parent().ok_or_else(|| io::Error::other("the path names no file"))?;
    let mut name = path.file_name().ok_or_else(|| io::Error::other("the path names no file"))?.to_owned();
    name.push(".new");
    let new = folder.join(name);
    let written = write_synced(&new, text, mode, path).and_then(|()| fs::rename(&new, path));
    if let Err(error) = written {
        // What is left of it must not take the last space of a full disk.
        let _ = fs::remove_file(&new);
        return Err(error);
    }
    File::open(folder)?.sync_all()
}

fn write_synced(new: &Path, text: &[u8], mode: u32, old: &Path) -> io::Result<()> {
    let mut file = OpenOptions::new().create(true).truncate(true).write(true).mode(mode).open(new)?;
    if let Ok(known) = fs::metadata(old) {
        file.set_permissions(known.permissions())?;
    }
    file.write_all(text)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::super::overrides::testing::set;
    use super::*;

    fn saved() -> Saved {
        let mut saved = Saved::default();
        saved.overrides.add(set("db1", "limit", "5 iops"));
        saved
    }

    #[test]
    fn a_state_is_read_as_it_was_written() {
        let place = TempDir::new().unwrap();
        let path = place.path().join("state");
        let (folder, empty) = StateFolder::open(&path).unwrap();
        assert_eq!(empty, Saved::default());
        folder.write(&saved()).unwrap();
        assert!(
            matches!(StateFolder::open(&path), Err(StateError::InUse(_))),
            "two daemons would undo each other's changes"
        );
        drop(folder);
        assert_eq!(StateFolder::open(&path).unwrap().1, saved());
    }

    #[test]
    fn a_state_that_cannot_be_read_is_no_empty_state() {
        let place = TempDir::new().unwrap();
        let (folder, _) = StateFolder::open(place.path()).unwrap();
        folder.write(&saved()).unwrap();
        drop(folder);
        let file = place.path().join(FILE);
        let whole = fs::read_to_string(&file).unwrap();
        let texts = [
            String::new(),
            whole[..whole.len() / 2].to_owned(),
            whole.replace("overrides", "overwrites"),
            whole.replace("\"version\": 1,", ""),
            "[]".to_owned(),
        ];
        for text in texts {
            fs::write(&file, &text).unwrap();
            let error = StateFolder::open(place.path()).unwrap_err();
            assert!(matches!(error, StateError::Corrupt { .. }), "{text}: {error}");
            assert!(error.to_string().contains("mv "), "{error}");
            assert_eq!(fs::read_to_string(&file).unwrap(), text, "it is left for its owner");
        }
        fs::write(&file, whole.replace("\"version\": 1", "\"version\": 2")).unwrap();
        assert!(matches!(StateFolder::open(place.path()), Err(StateError::Version { version: 2, .. })));
    }

    #[test]
    fn a_write_that_fails_leaves_the_previous_state() {
        let place = TempDir::new().unwrap();
        let (folder, _) = StateFolder::open(place.path()).unwrap();
        folder.write(&saved()).unwrap();
        // A folder in place of the new file fails for root as well.
        fs::create_dir(place.path().join("state.json.new")).unwrap();
        assert!(folder.write(&Saved::default()).is_err());
        assert_eq!(folder.read().unwrap(), saved());
    }
}
