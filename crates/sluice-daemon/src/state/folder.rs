//! The state directory: one daemon at a time, and a file that is either the old one or the new one.
//!
//! A new state is written to `state.json.new`, synced, and renamed over `state.json`; then the folder is synced. A crash
//! leaves one of both.
//!
//! A damaged state is no empty state: to take it for one would serve a volume that was detached, or another file than before. A
//! start keeps the file as `state.json.damaged`. Each part has a checksum, so what is not damaged is kept. Volumes
//! whose entry is lost are held back, and changes made at run time that are lost are named in the log as far as they can be read. A
//! file that cannot be read at all, because of a bad sector for example, is a damaged one of which nothing is known. So is what is no
//! regular file, and one that is longer than any state: it is not opened, because a pipe would keep the start waiting for a writer.
//!
//! A state of an older version stays there as `state.json.vN` when the first one of this version is written, in place of those
//! of still older versions. A program that reads version N at most takes it back with [`StateFolder::restore`].

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::fs::{CWD, FileType, OFlags, RenameFlags, renameat_with};
use rustix::io::Errno;
use sluice_io::folder_access;
use sluice_io::path_walk::{self, Stranger, Trust, WalkError};

use super::Saved;
use super::format::{Unreadable, VERSION, salvaged, sealed, unsealed, version_of};

/// Number of further attempts to lock the directory, and the pause before each: a second in all.
const LOOKS_MAX: u32 = 20;
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// Maximum length of the file, which is neither read nor written if it is longer. 10,000 volumes take about 3 MB.
const BYTES_MAX: u64 = 64 << 20;
/// Number of attempts to open a file that a daemon replaces meanwhile.
const OPENS_MAX: u32 = 100;
/// Name of the file.
const FILE: &str = "state.json";
/// Name under which a damaged file is kept.
const DAMAGED: &str = "state.json.damaged";

/// A state directory that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    #[error("State directory {path}: {error}; create it, and let this user write there, or name another as [daemon] state", path = .path.display())]
    Folder { path: PathBuf, error: io::Error },
    #[error("State directory {path} is used by another daemon; stop it, or name another directory as [daemon] state", path = .0.display())]
    InUse(PathBuf),
    #[error(
        "State directory {path}: {by} can change {place}; remove its write permission there, or name another directory as [daemon] \
         state", path = .path.display(), place = .place.display()
    )]
    Exposed {
        path: PathBuf,
        /// A folder or link that untrusted users can change.
        place: PathBuf,
        by: String,
    },
    #[error(
        "State file {path} cannot be read: {error}; let this user read it, or restore it from a backup", path = .path.display()
    )]
    Read { path: PathBuf, error: io::Error },
    #[error(
        "State file {path} is corrupt: {what}. Restore it from a backup; or start without --strict, which keeps what is not \
         damaged and holds the other volumes back; or move it away (mv {path} {path}.corrupt) and start again: changes made at run time are \
         then forgotten, and no volume's source is compared with the one that was last served",
        path = .path.display()
    )]
    Corrupt { path: PathBuf, what: String },
    #[error(
        "State file {path} has version {version}, and this program knows versions up to {VERSION}; use the program that wrote it, take \
         back the state from before it with `sluice state restore --state {folder}`, or move the file away (mv {path} {path}.other): changes made at \
         run time are then forgotten",
        path = .path.display(), folder = .path.parent().unwrap_or(.path).display()
    )]
    Version { path: PathBuf, version: u64 },
    #[error(
        "State directory {path} has no state of an older version to restore: its state is the one from before the upgrade, or no program \
         of an older version has used it; if [daemon] state names another directory, add --state FOLDER",
        path = .0.display()
    )]
    NotKept(PathBuf),
    #[error(
        "State file {path} does not exist, so there is none to replace; to use a kept state, rename it ({path}.vN) to {path}; if \
         [daemon] state names another directory, add --state FOLDER",
        path = .0.display()
    )]
    NoFile(PathBuf),
    #[error("State directory {path} does not exist; name the one of [daemon] state with --state FOLDER", path = .0.display())]
    Missing(PathBuf),
}

impl StateError {
    fn of(path: &Path, error: Unreadable) -> StateError {
        let path = path.to_owned();
        match error {
            Unreadable::Corrupt(what) => StateError::Corrupt { path, what },
            Unreadable::Version(version) => StateError::Version { path, version },
        }
    }

    /// Whether the file is damaged, and not only out of reach of this user or this program.
    fn is_damage(&self) -> bool {
        match self {
            StateError::Corrupt { .. } => true,
            StateError::Read { error, .. } => error.kind() != io::ErrorKind::PermissionDenied,
            _ => false,
        }
    }
}

/// A state directory, locked for this process.
#[derive(Debug)]
pub struct StateFolder {
    path: PathBuf,
    _lock: File,
    /// Version of the file; 0 if there is none, or if it was not read.
    version: AtomicU64,
}

/// A state whose file may be damaged.
#[derive(Debug, Default)]
pub struct Damaged {
    /// What is known of it: the parts that are not damaged.
    pub saved: Saved,
    /// Names of the changes made at run time that are lost, as far as they can be read.
    pub lost: Vec<String>,
    /// Why the rest is not; `None`: the file is not damaged.
    pub error: Option<StateError>,
}

/// Name of a kept state of an older version.
fn kept(version: u64) -> String {
    format!("{FILE}.v{version}")
}

/// Reads a state file; `None` if there is none. Opens only a regular file.
fn text_of(path: &Path) -> Result<Option<Vec<u8>>, StateError> {
    let failed = |error: io::Error| StateError::Read { path: path.to_owned(), error };
    let corrupt = |what: String| StateError::Corrupt { path: path.to_owned(), what };
    let too_long = |bytes: u64| corrupt(format!("it is {bytes} bytes long, and a state at most {BYTES_MAX}"));
    let absolute = std::path::absolute(path).map_err(failed)?;
    let mut opens = 0;
    let file = loop {
        let found = match path_walk::to_file(&absolute, &Trust::daemon()) {
            Ok(found) => found,
            Err(WalkError::System(Errno::NOENT)) => return Ok(None),
            Err(WalkError::System(errno)) => return Err(failed(errno.into())),
            Err(WalkError::Link { link, by }) => return Err(exposed(path, link, by)),
        };
        if let Some(kind) = irregular(FileType::from_raw_mode(found.stat().st_mode)) {
            return Err(corrupt(format!("it is {kind}, and no regular file")));
        }
        let bytes = u64::try_from(found.stat().st_size).unwrap_or(u64::MAX);
        if bytes > BYTES_MAX {
            return Err(too_long(bytes));
        }
        opens += 1;
        match found.open(OFlags::RDONLY) {
            Err(Errno::STALE) if opens < OPENS_MAX => {}
            opened => break File::from(opened.map_err(|errno| failed(errno.into()))?),
        }
    };
    let mut text = Vec::new();
    let bytes = file.take(BYTES_MAX + 1).read_to_end(&mut text).map_err(failed)? as u64;
    if bytes > BYTES_MAX { Err(too_long(bytes)) } else { Ok(Some(text)) }
}

/// Returns the name of a kind of file, unless it is regular.
fn irregular(kind: FileType) -> Option<&'static str> {
    match kind {
        FileType::RegularFile => None,
        FileType::Directory => Some("a folder"),
        FileType::Fifo => Some("a pipe"),
        FileType::Socket => Some("a socket"),
        FileType::CharacterDevice => Some("a character device"),
        FileType::BlockDevice => Some("a block device"),
        _ => Some("a special file"),
    }
}

fn exposed(path: &Path, place: PathBuf, by: Stranger) -> StateError {
    StateError::Exposed { path: path.to_owned(), place, by: by.to_string() }
}

/// Whether a daemon uses a state directory.
///
/// # Errors
/// The directory cannot be opened.
pub fn is_used(path: &Path) -> io::Result<bool> {
    Ok(matches!(open_folder(path)?.try_lock_shared(), Err(TryLockError::WouldBlock)))
}

fn refuse_missing(path: &Path) -> Result<(), StateError> {
    match path.metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(StateError::Missing(path.to_owned())),
        _ => Ok(()),
    }
}

impl StateFolder {
    /// Locks the directory, which is made if its parent exists, and reads the state; a missing file is an empty state.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn open(path: &Path) -> Result<(StateFolder, Saved), StateError> {
        let folder = StateFolder::lock(path)?;
        let saved = folder.read()?;
        Ok((folder, saved))
    }

    /// As [`StateFolder::open`], but makes no directory: for verbs that read or change what a daemon has left.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn open_existing(path: &Path) -> Result<(StateFolder, Saved), StateError> {
        refuse_missing(path)?;
        StateFolder::open(path)
    }

    /// Replaces a state by the one of the version before it that was kept. The newer one is kept under a name that no later
    /// restore takes for an older state. Either program may do it: the one that wrote the newer state, or the one that is to read
    /// the older. Returns the versions of both, the newer one first.
    ///
    /// # Errors
    /// [`StateError`]; then nothing has changed.
    pub fn restore(path: &Path) -> Result<(u64, u64), StateError> {
        refuse_missing(path)?;
        let folder = StateFolder::lock(path)?;
        let file = path.join(FILE);
        if !file.exists() {
            return Err(StateError::NoFile(file));
        }
        let version = match folder.read() {
            Err(StateError::Version { version, .. }) => version,
            read => read.map(|_| folder.version.load(Ordering::Relaxed))?,
        };
        let older = (1..version.min(VERSION + 1)).rev().find(|older| path.join(kept(*older)).exists());
        // A state of an older version is already the one to go back to.
        let older = older.filter(|_| version >= VERSION).ok_or_else(|| StateError::NotKept(path.to_owned()))?;
        let read = |path: &Path| text_of(path)?.ok_or_else(|| StateError::NoFile(path.to_owned()));
        let kept_file = path.join(kept(older));
        let newer_text = read(&file)?;
        unsealed(&read(&kept_file)?).map_err(|error| StateError::of(&kept_file, error))?;
        let failed = |error| StateError::Folder { path: path.to_owned(), error };
        replace(&path.join(kept(version) + ".replaced"), &newer_text, 0o600).map_err(failed)?;
        // Renamed and not copied: another restore goes back no further.
        fs::rename(&kept_file, &file).and_then(|()| open_folder(path)?.sync_all()).map_err(failed)?;
        Ok((version, older))
    }

    /// Locks the directory, which is made if its parent exists.
    fn lock(path: &Path) -> Result<StateFolder, StateError> {
        let failed = |error| StateError::Folder { path: path.to_owned(), error };
        refuse_exposed(path)?;
        match DirBuilder::new().mode(0o700).create(path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(failed(error)),
            _ => {}
        }
        refuse_exposed(&path.join(FILE))?;
        // Its own descriptor for reading: one for writing would keep the file system from becoming read-only.
        let lock = open_folder(path).map_err(failed)?;
        let mut looks = 0;
        while let Err(error) = lock.try_lock() {
            match error {
                // `sluice check --host` and `sluice get --state` hold the lock for a moment.
                TryLockError::WouldBlock if looks < LOOKS_MAX => std::thread::sleep(LOOK_AGAIN),
                TryLockError::WouldBlock => return Err(StateError::InUse(path.to_owned())),
                TryLockError::Error(error) => return Err(failed(error)),
            }
            looks += 1;
        }
        Ok(StateFolder { path: path.to_owned(), _lock: lock, version: AtomicU64::new(0) })
    }

    /// As [`StateFolder::open`], but a damaged file is set aside, and what is not damaged is returned.
    ///
    /// # Errors
    /// [`StateError`], except damage.
    pub fn open_damaged(path: &Path) -> Result<(StateFolder, Damaged), StateError> {
        let folder = StateFolder::lock(path)?;
        let damaged = folder.salvage()?;
        if damaged.error.is_some()
            && let Err(error) = set_aside(path)
        {
            let path = path.display().to_string();
            tracing::warn!(path, %error, "The damaged state file cannot be kept: the next change replaces it");
        }
        Ok((folder, damaged))
    }

    /// Reads the state, or what is not damaged of it.
    fn salvage(&self) -> Result<Damaged, StateError> {
        match self.read() {
            Ok(saved) => Ok(Damaged { saved, ..Damaged::default() }),
            Err(error) if error.is_damage() => {
                let text = text_of(&self.path.join(FILE)).ok().flatten().unwrap_or_default();
                let (saved, lost) = salvaged(&text);
                Ok(Damaged { saved, lost, error: Some(error) })
            }
            Err(error) => Err(error),
        }
    }

    /// Reads the state, or what is not damaged of it, without keeping a lock, and returns whether a daemon uses it. Makes nothing, and checks that this user could
    /// write there.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn look(path: &Path) -> Result<(Damaged, bool), StateError> {
        let failed = |error| StateError::Folder { path: path.to_owned(), error };
        refuse_exposed(path)?;
        let lock = match open_folder(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let parent = path.parent().ok_or(error).map_err(failed)?;
                tempfile::tempdir_in(parent).map_err(failed)?;
                return Ok((Damaged::default(), false));
            }
            opened => opened.map_err(failed)?,
        };
        refuse_exposed(&path.join(FILE))?;
        let is_used = matches!(lock.try_lock_shared(), Err(TryLockError::WouldBlock));
        let folder = StateFolder { path: path.to_owned(), _lock: lock, version: AtomicU64::new(0) };
        let damaged = folder.salvage()?;
        tempfile::tempfile_in(path).map_err(failed)?;
        Ok((damaged, is_used))
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn read(&self) -> Result<Saved, StateError> {
        let path = self.path.join(FILE);
        let Some(text) = text_of(&path)? else { return Ok(Saved::default()) };
        let saved = unsealed(&text).map_err(|error| StateError::of(&path, error))?;
        self.version.store(version_of(&text).unwrap_or(0), Ordering::Relaxed);
        Ok(saved)
    }

    /// Replaces the state. When this returns `Ok`, it survives a crash.
    ///
    /// # Errors
    /// The file system refuses; the previous state is then still there, or this one if only the sync of the folder failed.
    pub fn write(&self, saved: &Saved) -> io::Result<()> {
        let text = sealed(saved).map_err(io::Error::other)?;
        if text.len() as u64 > BYTES_MAX {
            return Err(io::Error::other(format!(
                "it would be {} bytes long, and may be at most {BYTES_MAX}",
                text.len()
            )));
        }
        let file = self.path.join(FILE);
        let before = self.version.load(Ordering::Relaxed);
        if (1..VERSION).contains(&before) {
            let old = text_of(&file).map_err(io::Error::other)?.ok_or(io::ErrorKind::NotFound)?;
            replace(&self.path.join(kept(before)), &old, 0o600)?;
            for older in (1..before).map(|older| self.path.join(kept(older))).filter(|older| older.exists()) {
                fs::remove_file(older)?;
            }
        }
        replace(&file, &text, 0o600)?;
        self.version.store(VERSION, Ordering::Relaxed);
        Ok(())
    }
}

/// Keeps a damaged file under another name, without the space of a copy. It stays in place until another state replaces it, so a crash
/// does not make it an empty state. A folder, which no file replaces, changes places with an empty file, which is a damaged state as well.
fn set_aside(path: &Path) -> io::Result<()> {
    let (file, aside) = (path.join(FILE), path.join(DAMAGED));
    let removed = fs::remove_file(&aside).or_else(|error| fs::remove_dir(&aside).map_err(|_| error));
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ if file.symlink_metadata()?.is_dir() => {
            OpenOptions::new().create_new(true).write(true).mode(0o600).open(&aside)?;
            Ok(renameat_with(CWD, &aside, CWD, &file, RenameFlags::EXCHANGE)?)
        }
        _ => fs::hard_link(file, aside),
    }
}

/// Rejects a path whose folders other users may change: they could replace the state, or have another file overwritten.
fn refuse_exposed(path: &Path) -> Result<(), StateError> {
    let failed = |error| StateError::Folder { path: path.to_owned(), error };
    let path = std::path::absolute(path).map_err(failed)?;
    let found = match path_walk::to_folder(&path, &Trust::daemon()) {
        Ok(walked) => walked.exposed.map(|exposed| (exposed.folder, exposed.by)),
        Err(WalkError::Link { link, by }) => Some((link, by)),
        // It is looked at again when it is used.
        Err(WalkError::System(_)) => None,
    };
    found.map_or(Ok(()), |(place, by)| Err(exposed(&path, place, by)))
}

/// Opens a folder. Does not wait for a pipe that is in its place.
fn open_folder(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(OFlags::DIRECTORY.bits() as i32).open(path)
}

/// Replaces a file, or creates it: afterwards it has this text, also after a crash. A file that exists keeps its mode and its
/// access control list.
///
/// # Errors
/// The file system refuses; the file is then as it was, unless only the sync of its folder failed.
pub fn replace(path: &Path, text: &[u8], mode: u32) -> io::Result<()> {
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
    // What a crash has left there is not written to: it may be a link to another file.
    match fs::remove_file(new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().create_new(true).write(true).mode(mode).open(new)?;
    if let Some(known) = fs::metadata(old).ok().filter(fs::Metadata::is_file) {
        file.set_permissions(known.permissions())?;
        // Without its list the mode alone would give the group what the list gives to others.
        folder_access::copy_list(old, &file)?;
    }
    file.write_all(text)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tempfile::TempDir;

    use super::super::Served;
    use super::super::format::{Sealed, checksum};
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
            whole.replace("\"version\": 3,", ""),
            whole.replace("5 iops", "7 iops"),
            whole.replace("\"checksum\": \"", "\"checksum\": \"0"),
            "[]".to_owned(),
        ];
        for text in texts {
            fs::write(&file, &text).unwrap();
            let error = StateFolder::open(place.path()).unwrap_err();
            assert!(matches!(error, StateError::Corrupt { .. }), "{text}: {error}");
            assert!(error.to_string().contains("mv "), "{error}");
            assert_eq!(fs::read_to_string(&file).unwrap(), text, "it is left for its owner");
        }
        let state = r#"{"more":1}"#;
        let newer = format!(r#"{{"version":4,"checksum":"{}","parts":{{}},"state":{state}}}"#, checksum(state));
        fs::write(&file, &newer).unwrap();
        assert!(matches!(StateFolder::open_damaged(place.path()), Err(StateError::Version { version: 4, .. })));
        fs::write(&file, newer.replace("more", "less")).unwrap();
        assert!(matches!(StateFolder::open(place.path()), Err(StateError::Corrupt { .. })));
    }

    #[test]
    fn a_state_without_a_checksum_is_of_an_older_version_and_is_read() {
        let place = TempDir::new().unwrap();
        let mut old = serde_json::to_value(saved()).unwrap();
        old["version"] = 1.into();
        fs::write(place.path().join(FILE), old.to_string()).unwrap();
        let (folder, read) = StateFolder::open(place.path()).unwrap();
        assert_eq!(read, saved());
        folder.write(&read).unwrap();
        let text = fs::read_to_string(place.path().join(FILE)).unwrap();
        assert!(text.contains("\"version\": 3") && folder.read().unwrap() == saved(), "{text}");
    }

    #[test]
    fn a_state_without_block_sizes_is_of_an_older_version_and_is_read() {
        let place = TempDir::new().unwrap();
        let written = r#"{
  "version": 2,
  "checksum": "CHECKSUM",
  "state": {"overrides":[],"exports":{"db1/root":{"source":"/srv/a","identity":"inode 7","offset":0,"size":4096,"gone":false}}}
}
"#;
        let Sealed { state, .. } = serde_json::from_str(written).unwrap();
        fs::write(place.path().join(FILE), written.replace("CHECKSUM", &checksum(state.get()))).unwrap();
        let (_, read) = StateFolder::open(place.path()).unwrap();
        assert_eq!(read.exports["db1/root"].block_size, None);
    }

    #[test]
    fn a_state_that_a_newer_program_wrote_was_lost_to_the_older_one() {
        let place = TempDir::new().unwrap();
        let file = place.path().join(FILE);
        // As a program of version 1 left it.
        let mut old = serde_json::to_value(saved()).unwrap();
        old["version"] = 1.into();
        fs::write(&file, old.to_string()).unwrap();
        let (folder, _) = StateFolder::open(place.path()).unwrap();
        assert!(matches!(StateFolder::restore(place.path()), Err(StateError::InUse(_))), "a daemon runs");
        folder.write(&Saved::default()).unwrap();
        folder.write(&Saved::default()).unwrap();
        drop(folder);
        assert_eq!(fs::read_to_string(place.path().join("state.json.v1")).unwrap(), old.to_string());
        // By the program that has written the newer state.
        assert_eq!(StateFolder::restore(place.path()).unwrap(), (VERSION, 1));
        assert_eq!(fs::read_to_string(&file).unwrap(), old.to_string());
        assert!(matches!(StateFolder::restore(place.path()), Err(StateError::NotKept(_))));
        // As a program after this one leaves it.
        let newer = "{ \"version\": 99, \"more\": 1 }";
        fs::write(&file, newer).unwrap();
        fs::write(place.path().join("state.json.v1"), old.to_string()).unwrap();
        assert!(StateFolder::open(place.path()).unwrap_err().to_string().contains("sluice state restore"));
        assert_eq!(StateFolder::restore(place.path()).unwrap(), (99, 1));
        assert_eq!(StateFolder::open(place.path()).unwrap().1, saved());
        assert_eq!(fs::read_to_string(place.path().join("state.json.v99.replaced")).unwrap(), newer);
        fs::write(&file, newer).unwrap();
        assert!(matches!(StateFolder::restore(place.path()), Err(StateError::NotKept(_))), "once only");
        assert_eq!(fs::read_to_string(&file).unwrap(), newer);
        fs::remove_file(&file).unwrap();
        assert!(matches!(StateFolder::restore(place.path()), Err(StateError::NoFile(_))));
    }

    #[test]
    fn a_restore_went_back_further_than_the_upgrade() {
        let place = TempDir::new().unwrap();
        let (file, kept) = (place.path().join(FILE), |version: u64| place.path().join(kept(version)));
        let state = serde_json::to_string(&Saved::default()).unwrap();
        let second = format!(r#"{{"version":2,"checksum":"{}","state":{state}}}"#, checksum(&state));
        fs::write(kept(1), r#"{"version":1,"overrides":[],"exports":{}}"#).unwrap();
        fs::write(&file, &second).unwrap();
        assert!(matches!(StateFolder::restore(place.path()), Err(StateError::NotKept(_))), "it was not written yet");
        let (folder, _) = StateFolder::open(place.path()).unwrap();
        folder.write(&saved()).unwrap();
        drop(folder);
        assert!(kept(2).exists() && !kept(1).exists());
        assert_eq!(StateFolder::restore(place.path()).unwrap(), (3, 2));
        assert!(matches!(StateFolder::restore(place.path()), Err(StateError::NotKept(_))));
        assert_eq!(fs::read_to_string(&file).unwrap(), second);
    }

    #[test]
    fn a_state_that_the_disk_does_not_read_or_keep_stopped_the_start() {
        let place = TempDir::new().unwrap();
        let file = place.path().join(FILE);
        fs::create_dir(&file).unwrap();
        let (folder, damaged) = StateFolder::open_damaged(place.path()).unwrap();
        assert!(matches!(damaged.error, Some(StateError::Corrupt { .. })), "a folder in place of the file");
        assert_eq!(damaged.saved, Saved::default());
        assert!(
            place.path().join(DAMAGED).is_dir() && folder.read().is_err(),
            "a crash does not make it an empty state"
        );
        folder.write(&saved()).unwrap();
        drop(folder);
        let flipped = fs::read_to_string(&file).unwrap().replace("\"version\": 3", "\"version\": 7");
        fs::write(&file, &flipped).unwrap();
        // A folder with a file in place of the copy fails for root as well.
        fs::write(place.path().join(DAMAGED).join("file"), "").unwrap();
        let (_, damaged) = StateFolder::open_damaged(place.path()).unwrap();
        assert!(matches!(damaged.error, Some(StateError::Corrupt { .. })), "a flipped bit of the version");
        assert_eq!(damaged.saved, saved(), "its parts are right");
    }

    #[test]
    fn a_pipe_in_place_of_the_directory_was_waited_for() {
        let place = TempDir::new().unwrap();
        let path = place.path().join("state");
        let mode = rustix::fs::Mode::RWXU;
        rustix::fs::mknodat(CWD, &path, FileType::Fifo, mode, 0).unwrap();
        for refused in [StateFolder::open(&path).map(drop), StateFolder::look(&path).map(drop)] {
            assert!(refused.unwrap_err().to_string().contains("Not a directory"));
        }
    }

    #[test]
    fn a_state_that_could_not_be_read_again_was_written() {
        let place = TempDir::new().unwrap();
        let (folder, _) = StateFolder::open(place.path()).unwrap();
        let mut long = saved();
        let reason = "x".repeat(BYTES_MAX as usize);
        long.overrides.add(set("db1", "weight", &reason));
        let error = folder.write(&long).unwrap_err();
        assert!(error.to_string().contains("may be at most 67108864"), "{error}");
        fs::File::create(place.path().join(FILE)).unwrap().set_len(BYTES_MAX + 1).unwrap();
        let error = folder.read().unwrap_err();
        assert!(error.to_string().contains("it is 67108865 bytes long"), "{error}");
    }

    #[test]
    fn a_volume_whose_entry_is_damaged_was_never_served() {
        let place = TempDir::new().unwrap();
        let (folder, _) = StateFolder::open(place.path()).unwrap();
        let mut whole = Saved::default();
        let identity = Some("inode 7".to_owned());
        let served = Served { source: "/srv/a".into(), identity, offset: 0, size: 4096, block_size: None, gone: false };
        let named = |name: &str| (name.to_owned(), served.clone());
        Arc::make_mut(&mut whole.exports).extend([named("db1/data"), named("db1/logs"), named("db1/root")]);
        whole.unknown.insert("db2/root".to_owned());
        folder.write(&whole).unwrap();
        let file = place.path().join(FILE);
        let text = fs::read_to_string(&file).unwrap().replacen("db1/data", "db1/daxa", 1);
        fs::write(&file, text.replace("\"db1/logs\":{\"source\":\"/srv/a\"", "\"db1/logs\":{\"source\":\"/srv/b\""))
            .unwrap();
        let Damaged { saved, .. } = folder.salvage().unwrap();
        assert_eq!(saved.exports.keys().collect::<Vec<_>>(), ["db1/root"]);
        let unknown: Vec<&str> = saved.unknown.iter().map(String::as_str).collect();
        assert_eq!(unknown, ["db1/data", "db1/daxa", "db1/logs", "db2/root"]);
    }

    #[test]
    fn a_flipped_bit_in_a_number_was_believed() {
        let place = TempDir::new().unwrap();
        let (folder, _) = StateFolder::open(place.path()).unwrap();
        let mut whole = saved();
        let (source, identity) = ("/srv/a".into(), Some("inode 7".to_owned()));
        Arc::make_mut(&mut whole.exports).insert(
            "db1/root".to_owned(),
            Served { source, identity, offset: 0, size: 4096, block_size: Some(512), gone: false },
        );
        folder.write(&whole).unwrap();
        let file = place.path().join(FILE);
        let text = fs::read(&file).unwrap();
        let mut believed = 0;
        for (at, bit) in (0..text.len()).flat_map(|at| (0..8).map(move |bit| (at, bit))) {
            let mut damaged = text.clone();
            damaged[at] ^= 1 << bit;
            fs::write(&file, &damaged).unwrap();
            if let Ok(read) = folder.read() {
                assert_eq!(read, whole, "bit {bit} of byte {at}: {}", String::from_utf8_lossy(&damaged));
                believed += 1;
            }
        }
        assert!(believed < 100, "white space between the keys of the file alone: {believed}");
    }

    #[test]
    fn a_link_in_place_of_the_new_state_had_another_file_overwritten() {
        let place = TempDir::new().unwrap();
        let (folder, _) = StateFolder::open(&place.path().join("state")).unwrap();
        let other = place.path().join("other");
        fs::write(&other, "another user's").unwrap();
        std::os::unix::fs::symlink(&other, place.path().join("state/state.json.new")).unwrap();
        folder.write(&saved()).unwrap();
        assert_eq!(fs::read_to_string(&other).unwrap(), "another user's");
        assert_eq!(folder.read().unwrap(), saved());
        assert!(!place.path().join("state/state.json").is_symlink());
    }

    #[test]
    fn a_folder_that_others_may_write_was_accepted() {
        use std::os::unix::fs::PermissionsExt;
        let place = TempDir::new().unwrap();
        let open = |mode: u32| {
            fs::set_permissions(place.path(), fs::Permissions::from_mode(mode)).unwrap();
            (
                StateFolder::open(&place.path().join("state")).map(drop),
                StateFolder::look(&place.path().join("state")).map(drop),
            )
        };
        let (opened, looked) = open(0o777);
        for refused in [opened, looked] {
            let refused = refused.unwrap_err();
            assert!(matches!(refused, StateError::Exposed { .. }), "{refused}");
            assert!(refused.to_string().contains("remove its write permission"), "{refused}");
        }
        assert!(!place.path().join("state").exists());
        open(0o700).0.unwrap();
        fs::set_permissions(place.path().join("state"), fs::Permissions::from_mode(0o773)).unwrap();
        assert!(matches!(open(0o700).0, Err(StateError::Exposed { .. })));
        fs::set_permissions(place.path().join("state"), fs::Permissions::from_mode(0o755)).unwrap();
        open(0o700).0.unwrap();
        folder_access::testing::let_write(&place.path().join("state"), 4711);
        let refused = open(0o700).0.unwrap_err();
        assert!(refused.to_string().contains("user 4711 can change"), "{refused}");
    }

    #[test]
    fn a_replaced_file_gave_its_group_what_its_list_gave_to_one_user() {
        let place = TempDir::new().unwrap();
        let file = place.path().join("host.toml");
        fs::write(&file, "old").unwrap();
        folder_access::testing::let_write(&file, 4711);
        let list = || {
            let mut value = vec![0; 1024];
            let len = rustix::fs::getxattr(&file, "system.posix_acl_access", value.as_mut_slice()).unwrap();
            value[..len].to_vec()
        };
        let before = list();
        replace(&file, b"new", 0o644).unwrap();
        assert_eq!((fs::read_to_string(&file).unwrap().as_str(), list()), ("new", before));
    }

    #[test]
    fn damaged_bytes_are_an_error_or_a_state_and_never_a_panic() {
        let place = TempDir::new().unwrap();
        let (folder, _) = StateFolder::open(place.path()).unwrap();
        let mut whole = saved();
        let served = Served {
            source: "/srv/a".into(),
            identity: Some("inode 7".to_owned()),
            offset: 0,
            size: 4096,
            block_size: Some(512),
            gone: false,
        };
        Arc::make_mut(&mut whole.exports).insert("db1/root".to_owned(), served);
        folder.write(&whole).unwrap();
        let file = place.path().join(FILE);
        let text = fs::read(&file).unwrap();
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut random = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % below
        };
        let mut refused = 0;
        for _ in 0..2000 {
            let mut damaged = text.clone();
            for _ in 0..=random(4) {
                let at = random(damaged.len());
                match random(3) {
                    0 => damaged[at] ^= 1 << random(8),
                    1 => damaged.truncate(at.max(1)),
                    _ => damaged[at..].fill(0),
                }
            }
            fs::write(&file, &damaged).unwrap();
            match folder.read() {
                Ok(read) => drop(read.overrides.changes()),
                Err(error) => {
                    refused += 1;
                    assert!(error.to_string().contains("state.json"), "{error}");
                }
            }
        }
        assert!(refused > 1000, "{refused}");
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
