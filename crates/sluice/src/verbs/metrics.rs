//! `sluice metrics`

use std::fs::{File, Permissions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use clap::Args;
use clap::ValueEnum;
use rustix::fs::{AtFlags, FileType, statat};
use sluice_daemon::failure::Failure;
use sluice_io::path_walk::{self, Trust, WalkError, Walked};

use crate::control::client::Daemon;
use crate::control::{MetricsFormat, Request};

/// Print the daemon's metrics for Prometheus, or write them for node_exporter.
///
/// The metrics are those of the endpoint `daemon.metrics` of the host file. The command works without that endpoint too.
///
/// With --textfile they go to a file for the textfile collector of Prometheus' node exporter. The file is replaced as a
/// whole, so a reader never sees a part of it; its name must end in .prom. Run the command regularly, for example each 15
/// seconds by a timer of systemd.
#[derive(Args)]
pub(crate) struct Metrics {
    /// File to write, for example /var/lib/prometheus/node-exporter/sluice.prom. Everyone may read it.
    #[arg(long, value_name = "FILE", conflicts_with = "format")]
    textfile: Option<PathBuf>,
    /// Format of the text.
    #[arg(long, value_enum, default_value = "prometheus")]
    format: Text,
    #[command(flatten)]
    daemon: Daemon,
}

/// Formats of the text.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Text {
    /// The text format 0.0.4 of Prometheus.
    Prometheus,
    /// OpenMetrics 1.0.
    Openmetrics,
}

impl Metrics {
    pub(crate) fn run(self) -> Result<(), Failure> {
        if let Some(file) = &self.textfile {
            check(file)?;
        }
        let format = match self.format {
            Text::Prometheus => MetricsFormat::Prometheus,
            Text::Openmetrics => MetricsFormat::OpenMetrics,
        };
        let reply: sluice_api::list::Metrics = self.daemon.get(&Request::Metrics { format })?;
        let Some(text) = &reply.text else {
            return Err(Failure::Run("The daemon's reply has no metrics; use `sluice` of the daemon's version".into()));
        };
        let Some(file) = &self.textfile else { return Ok(io::stdout().lock().write_all(text.as_bytes())?) };
        write(file, text)
    }
}

/// The collector reads files of this name only, so another one would never be seen.
fn check(file: &Path) -> Result<(), Failure> {
    let is_right = file.extension().is_some_and(|extension| extension == "prom");
    let wrong =
        || format!("{}: the textfile collector reads only files whose names end in .prom; rename it", file.display());
    if is_right { Ok(()) } else { Err(Failure::Run(wrong().into())) }
}

/// Replaces a file as a whole. The new one has a hidden name of another ending until it is complete.
///
/// The command often runs as root, and other users may write the folder. So links that they can change are not followed, and only
/// a file is replaced that belongs to this user or to root.
fn write(file: &Path, text: &str) -> Result<(), Failure> {
    let rejected = |reason: String| Failure::Run(format!("{}: {reason}", file.display()).into());
    let failed = |error: io::Error| {
        let help = "is its folder there, and may this user write there?";
        Failure::Run(format!("Cannot write {}: {error}; {help}", file.display()).into())
    };
    let path = std::path::absolute(file).map_err(failed)?;
    let trust = Trust::daemon();
    let walked = path_walk::to_folder(&path, &trust).map_err(|error| match error {
        WalkError::System(errno) => failed(errno.into()),
        WalkError::Link { link, by } => {
            let link = link.display();
            rejected(format!("{link} is a symbolic link that {by} can change; state the folder that it leads to"))
        }
    })?;
    check_old(&walked, &trust).map_err(rejected)?;
    let folder = PathBuf::from(format!("/proc/self/fd/{}", walked.folder.as_raw_fd()));
    let replace = || -> io::Result<()> {
        let mut new = tempfile::Builder::new().prefix(".sluice-").suffix(".tmp").tempfile_in(&folder)?;
        new.write_all(text.as_bytes())?;
        let as_file: &File = new.as_file();
        as_file.set_permissions(Permissions::from_mode(0o644))?;
        new.persist(folder.join(&walked.name)).map_err(|error| error.error)?;
        Ok(())
    };
    replace().map_err(failed)
}

/// Checks what the new file would replace. Returns why it must stay.
fn check_old(walked: &Walked, trust: &Trust) -> Result<(), String> {
    let remedy = "so it is not replaced; remove it or state another name";
    match statat(&walked.folder, &walked.name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(old) if FileType::from_raw_mode(old.st_mode) != FileType::RegularFile => {
            Err(format!("it is not a regular file, {remedy}"))
        }
        Ok(old) if !trust.user(old.st_uid) => Err(format!("it belongs to user {}, {remedy}", old.st_uid)),
        // Otherwise the write has the same error.
        Ok(_) | Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{chown, symlink};

    use super::*;

    /// Returns the message with which a textfile is rejected.
    fn rejected(file: &Path) -> String {
        match write(file, "new") {
            Err(Failure::Run(error)) => error.to_string(),
            _ => panic!("{} was written", file.display()),
        }
    }

    #[test]
    fn a_textfile_was_written_to_where_another_users_link_led() {
        let place = tempfile::tempdir().unwrap();
        let [private, open] = ["private", "open"].map(|name| place.path().join(name));
        for folder in [&private, &open] {
            fs::create_dir(folder).unwrap();
        }
        fs::set_permissions(&open, Permissions::from_mode(0o777)).unwrap();
        let foreign = private.join("a.prom");
        fs::write(&foreign, "foreign").unwrap();
        symlink(&private, open.join("folder")).unwrap();
        symlink(&foreign, open.join("a.prom")).unwrap();
        let message = rejected(&open.join("folder/a.prom"));
        assert!(message.contains("open/folder is a symbolic link that every user can change"), "{message}");
        assert!(rejected(&open.join("a.prom")).contains("not a regular file"));
        assert_eq!(fs::read_to_string(&foreign).unwrap(), "foreign");
        let count = |folder: &Path| fs::read_dir(folder).unwrap().count();
        assert_eq!((count(&private), count(&open)), (1, 2));
    }

    #[test]
    fn a_textfile_replaced_a_file_of_another_user() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("a.prom");
        fs::write(&file, "foreign").unwrap();
        assert!(write(&file, "own").is_ok());
        assert_eq!(fs::read_to_string(&file).unwrap(), "own");
        chown(&file, Some(4711), None).unwrap();
        assert!(rejected(&file).contains("belongs to user 4711"));
        assert_eq!(fs::read_to_string(&file).unwrap(), "own");
    }
}
