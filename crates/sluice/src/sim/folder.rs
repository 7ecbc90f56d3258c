//! Where results are written: whole or not at all.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::failure::Failure;

/// A folder in the making. It gets its name when everything is in it; before, whoever looks finds nothing under that name.
pub(crate) struct Folder {
    making: tempfile::TempDir,
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
        fs::create_dir_all(&above).map_err(|error| cannot("make", &above, &error))?;
        let making = tempfile::Builder::new()
            .prefix(".unfinished-")
            .tempdir_in(&above)
            .map_err(|error| cannot("write into", &above, &error))?;
        Ok(Folder { making, name: name.to_owned(), mark })
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
            let old = tempfile::Builder::new().prefix(".old-").tempdir_in(above(&self.name))?;
            fs::rename(&self.name, old.path().join("results"))
                .map_err(|error| cannot("replace", &self.name, &error))?;
        }
        let made = self.making.keep();
        readable(&made)?;
        fs::rename(&made, &self.name).map_err(|error| cannot("make", &self.name, &error))
    }
}

/// Writes a file so that it is there whole or not at all.
pub(crate) fn write_whole(path: &Path, text: &str) -> Result<(), Failure> {
    let above = above(path);
    let mut file = tempfile::NamedTempFile::with_prefix_in(".unfinished-", &above)
        .map_err(|error| cannot("write into", &above, &error))?;
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
