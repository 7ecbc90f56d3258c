//! Reads the host file again, on a helper thread.

use std::path::{Path, PathBuf};

use sluice_config::{Diagnostics, Files};

use crate::control::roles::{self, Roles};
use crate::control::socket::Group;
use crate::server::Progress;

/// Why files were not read.
pub(super) enum Unread {
    /// They have errors.
    Wrong(Diagnostics),
    /// They are not the daemon's.
    Other(String),
}

/// Reads the host file `file`, or `named`, which must be the same unless nothing is to change.
///
/// `group` owns the control socket.
pub(super) fn read(
    file: &Path,
    named: Option<(PathBuf, bool)>,
    group: Option<Group>,
    progress: &Progress,
) -> Result<Read, Unread> {
    progress.set(file);
    let (named, dry_run) = named.unwrap_or_else(|| (file.to_owned(), false));
    let is_same =
        || named == file || matches!((named.canonicalize(), file.canonicalize()), (Ok(one), Ok(other)) if one == other);
    if !dry_run && !is_same() {
        let (named, own) = (named.display(), file.display());
        let error = format!(
            "The daemon serves {own}, not {named}; change {own}, or use --dry-run to see what {named} would change"
        );
        return Err(Unread::Other(error));
    }
    let (files, host) = sluice_config::load_files(&named).map_err(Unread::Wrong)?;
    progress.set(Path::new(roles::LOOKUP));
    Ok(Read { files, roles: Roles::of(&host.daemon.access, group) })
}

/// The files, read again. They are right without changes at run time.
pub(super) struct Read {
    pub(super) files: Files,
    pub(super) roles: Roles,
}
