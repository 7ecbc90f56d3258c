//! The repository's folder and its files.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the repository root. It is known at compile time, because this crate is in the repository, so a task works
/// from any folder.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("this crate is a folder of the workspace").to_path_buf()
}

/// Returns a command for the running cargo, in the repository root.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    command
}

/// Returns the files that a commit could contain, relative to the root and sorted: those that git tracks, and new
/// ones that are not ignored, so that an error is found before the commit.
pub(crate) fn files() -> Result<Vec<String>, String> {
    let listing = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output()
        .map_err(|error| format!("Cannot start git ({error}); install it, because the file list comes from it"))?;
    if !listing.status.success() {
        let reason = String::from_utf8_lossy(&listing.stderr);
        return Err(format!("`git ls-files` failed, run this in a git checkout: {}", reason.trim()));
    }
    let listing = String::from_utf8(listing.stdout).map_err(|_| "A file name is not UTF-8; rename it".to_string())?;
    let mut files: Vec<String> =
        listing.split_terminator('\0').filter(|path| is_plain_file(&root().join(path))).map(str::to_string).collect();
    files.sort();
    files.dedup();
    Ok(files)
}

/// Whether the file exists and is not a symbolic link. A deleted file stays listed until its deletion is committed,
/// and a link's target is listed itself.
fn is_plain_file(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|metadata| metadata.is_file())
}
