//! The folder of results, which is written completely or not at all.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use sluice_sim::scenario::States;

use sluice_daemon::failure::Failure;

/// Prefix of the names of unfinished files and folders.
pub(crate) const UNFINISHED: &str = ".unfinished-";

/// A folder that is being written. It gets its name when it is complete, so nothing incomplete is ever found under
/// that name.
pub(crate) struct Folder {
    making: tempfile::TempDir,
    /// A lock. While it is held, no other program removes the folder as left over.
    _held: Option<File>,
    name: PathBuf,
    /// The file that only complete results have.
    mark: &'static str,
}

impl Folder {
    /// Starts to write results that will be at `name`. An existing folder must be empty or hold earlier results: a
    /// file `mark`.
    pub(crate) fn new(name: &Path, mark: &'static str) -> Result<Self, Failure> {
        let is_ours = name.join(mark).exists() || fs::read_dir(name).is_ok_and(|mut entries| entries.next().is_none());
        if name.exists() && !is_ours {
            let text = format!(
                "{} exists and has no {mark}, so it is not an earlier result; name another folder",
                name.display()
            );
            return Err(Failure::Refused(text));
        }
        let above = above(name);
        can_be_written("--out", &above)?;
        let prefix = prefix(name);
        remove_left_over(&above, &prefix);
        let making = tempfile::Builder::new()
            .prefix(&prefix)
            .tempdir_in(&above)
            .map_err(|error| cannot("write into", &above, &error))?;
        // Without support for locks none is taken, and left-over folders stay.
        let held = hold(making.path()).ok();
        Ok(Folder { making, _held: held, name: name.to_owned(), mark })
    }

    /// Returns the path of the folder while it is written.
    pub(crate) fn path(&self) -> &Path {
        self.making.path()
    }

    /// Writes a file.
    pub(crate) fn write(&self, name: &str, text: &str) -> Result<(), Failure> {
        let path = self.path().join(name);
        fs::write(&path, text).map_err(|error| cannot("write", &path, &error))
    }

    /// Renames the complete folder to its name, and removes an earlier one.
    pub(crate) fn finish(self) -> Result<(), Failure> {
        assert!(self.path().join(self.mark).exists(), "finished results are marked");
        if self.name.exists() {
            // Two renames: a program that is killed between them leaves no folder of that name, and never an
            // incomplete one.
            let old = tempfile::Builder::new().prefix(&prefix(&self.name)).tempdir_in(above(&self.name))?;
            fs::rename(&self.name, old.path().join("results"))
                .map_err(|error| cannot("replace", &self.name, &error))?;
        }
        let made = self.making.keep();
        readable(&made)?;
        fs::rename(&made, &self.name).map_err(|error| cannot("make", &self.name, &error))
    }
}

/// Creates a folder that an option names, and a file in it, which is removed again.
pub(crate) fn can_be_written(option: &str, folder: &Path) -> Result<(), Failure> {
    let tried = fs::create_dir_all(folder).and_then(|()| tempfile::tempfile_in(folder));
    tried.map(drop).map_err(|error| {
        Failure::Refused(format!(
            "Cannot write into {} ({error}); name a folder with {option} that can be made or written",
            folder.display()
        ))
    })
}

/// Returns the prefix of the temporary names for a folder.
fn prefix(of: &Path) -> String {
    format!("{UNFINISHED}{}-", of.file_name().unwrap_or_default().to_string_lossy())
}

/// Removes files and folders with this prefix that a killed program left. Those of a running program stay: it holds a
/// lock.
pub(crate) fn remove_left_over(folder: &Path, prefix: &str) {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix)) {
        let path = entry.path();
        if hold(&path).is_ok() {
            // A file that cannot be removed does no harm.
            let _ = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        }
    }
}

/// Locks an unfinished file or folder.
fn hold(path: &Path) -> std::io::Result<File> {
    let file = File::open(path)?;
    file.try_lock()?;
    Ok(file)
}

/// Creates the cache folder for the states of aged drives.
pub(crate) fn states(folder: PathBuf) -> Result<States, Failure> {
    fs::create_dir_all(&folder).map_err(|error| cannot("make", &folder, &error))?;
    remove_left_over(&folder, UNFINISHED);
    Ok(States::new(folder))
}

/// Prints warnings about states that could not be read or written.
pub(crate) fn warn_unusable(states: Option<&States>) {
    for what in states.into_iter().flat_map(States::take_refused) {
        sluice_daemon::output::message(format_args!("warning: {what}"));
    }
}

/// Writes a file completely or not at all.
pub(crate) fn write_whole(path: &Path, text: &str) -> Result<(), Failure> {
    let above = above(path);
    let mut file = tempfile::NamedTempFile::with_prefix_in(UNFINISHED, &above)
        .map_err(|error| cannot("write into", &above, &error))?;
    let _held = file.as_file().try_lock();
    file.write_all(text.as_bytes())?;
    readable(file.path())?;
    file.persist(path).map_err(|error| cannot("write", path, &error.error))?;
    Ok(())
}

/// Makes a result readable for other users, unlike other temporary files.
fn readable(path: &Path) -> Result<(), Failure> {
    use std::os::unix::fs::PermissionsExt;
    let mode = if path.is_dir() { 0o755 } else { 0o644 };
    Ok(fs::set_permissions(path, fs::Permissions::from_mode(mode))?)
}

fn above(path: &Path) -> PathBuf {
    path.parent().filter(|above| !above.as_os_str().is_empty()).map_or_else(|| PathBuf::from("."), Path::to_owned)
}

/// Returns the error of a system call on a file.
pub(crate) fn cannot(what: &str, path: &Path, error: &std::io::Error) -> Failure {
    Failure::Run(format!("Cannot {what} {}: {error}", path.display()).into())
}
