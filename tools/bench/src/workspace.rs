//! The folder of the repository.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the root of the repository, which has the folder of this crate.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("this crate is in the repository").to_path_buf()
}

/// Returns a command for the running cargo, in the root.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    command
}
