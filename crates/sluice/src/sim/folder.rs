//! Where results are written: whole or not at all.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use sluice_sim::scenario::States;

use crate::failure::Failure;

/// How names of what is not finished begin.
pub(crate) const UNFINISHED: &str = ".unfinished-";

/// A folder in the making. It gets its name when everything is in it; before, whoever looks finds nothing under that name.
pub(crate) struct Folder {
    making: tempfile::TempDir,
    /// As long as it is open, nobody takes the folder for one that was left over.
    _held: Option<File>,
    name: PathBuf,
    /// The file that only finished results have.
    mark: &'static str,
}

impl Folder {
    /// Results that will be at `name`. What is there already must be earlier results: it holds `mark`, or nothing.
    pub(crate) fn new(name: &Path, mark: &'static str) -> Result<Self, Failure> {
        let is_ours = name.join(mark).exists() || fs::read_dir(name).is_ok_and(|mut entries| entries.next().is_none());
        if name.exists() && !is_ours {
            let text =
                format!("{} is there and has no {mark}: it is no earlier result; name another folder", name.display());
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
        // Where there are no locks, nobody gets one, and what is left over stays.
        let held = hold(making.path()).ok();
        Ok(Folder { making, _held: held, name: name.to_owned(), mark })
    }

    /// Where to write meanwhile.
    pub(crate) fn path(&self) -> &Path {
        self.making.path()
    }

    /// One file.
    pub(crate) fn write(&self, name: &str, text: &str) -> Result<(), Failure> {
        let path = self.path().join(name);
        fs::write(&path, text).map_err(|error| cannot("write", &path, &error))
    }

    /// Everything is there: it takes its name, in place of what had it.
    pub(crate) fn finish(self) -> Result<(), Failure> {
        assert!(self.path().join(self.mark).exists(), "finished results are marked");
        if self.name.exists() {
            // Two renames: who is killed between them leaves no folder of that name, and never half of one.
            let old = tempfile::Builder::new().prefix(&prefix(&self.name)).tempdir_in(above(&self.name))?;
            fs::rename(&self.name, old.path().join("results"))
                .map_err(|error| cannot("replace", &self.name, &error))?;
        }
        let made = self.making.keep();
        readable(&made)?;
        fs::rename(&made, &self.name).map_err(|error| cannot("make", &self.name, &error))
    }
}

/// Makes a folder that an option names, and a file in it that goes away again.
pub(crate) fn can_be_written(option: &str, folder: &Path) -> Result<(), Failure> {
    let tried = fs::create_dir_all(folder).and_then(|()| tempfile::tempfile_in(folder));
    tried.map(drop).map_err(|error| {
        Failure::Refused(format!(
            "Cannot write into {} ({error}); name a folder with {option} that can be made or written",
            folder.display()
        ))
    })
}

/// How the names of all begin that is made on the way to a folder.
fn prefix(of: &Path) -> String {
    format!("{UNFINISHED}{}-", of.file_name().unwrap_or_default().to_string_lossy())
}

/// Removes what a program that was killed has left in a folder under names that begin so. What somebody still works on
/// stays: who works holds a lock, and who is killed holds none.
pub(crate) fn remove_left_over(folder: &Path, prefix: &str) {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix)) {
        let path = entry.path();
        if hold(&path).is_ok() {
            // What cannot be removed is in nobody's way.
            let _ = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        }
    }
}

/// Takes the lock of a file or folder in the making.
fn hold(path: &Path) -> std::io::Result<File> {
    let file = File::open(path)?;
    file.try_lock()?;
    Ok(file)
}

/// The folder for states of aged drives, made if it is not there.
pub(crate) fn states(folder: PathBuf) -> Result<States, Failure> {
    fs::create_dir_all(&folder).map_err(|error| cannot("make", &folder, &error))?;
    remove_left_over(&folder, UNFINISHED);
    Ok(States::new(folder))
}

/// Says which states could not be used or kept.
pub(crate) fn say_refused(states: Option<&States>) {
    for what in states.into_iter().flat_map(States::take_refused) {
        crate::output::say(format_args!("warning: {what}"));
    }
}

/// Writes a file so that it is there whole or not at all.
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

/// Results are for others to read too, unlike other temporary files.
fn readable(path: &Path) -> Result<(), Failure> {
    use std::os::unix::fs::PermissionsExt;
    let mode = if path.is_dir() { 0o755 } else { 0o644 };
    Ok(fs::set_permissions(path, fs::Permissions::from_mode(mode))?)
}

fn above(path: &Path) -> PathBuf {
    path.parent().filter(|above| !above.as_os_str().is_empty()).map_or_else(|| PathBuf::from("."), Path::to_owned)
}

/// What the system says of a file, with the file.
pub(crate) fn cannot(what: &str, path: &Path, error: &std::io::Error) -> Failure {
    Failure::Run(format!("Cannot {what} {}: {error}", path.display()).into())
}
