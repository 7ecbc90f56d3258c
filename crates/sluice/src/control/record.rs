//! Questions about the past: to the daemon, or, if it does not run, to what it has left in its state directory.

use std::cell::OnceCell;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::de::DeserializeOwned;
use sluice_api::request::Request;
use sluice_daemon::events::offline::Record;
use sluice_daemon::failure::Failure;
use sluice_daemon::preflight;
use sluice_daemon::state::time::Time;

use super::client::{self, Daemon};
use crate::output;

/// Host file of the package, whose `state` names the state directory.
pub(crate) const HOST_FILE: &str = "/etc/sluice/sluice.toml";

/// Where a record is read.
#[derive(Clone, Args)]
pub(crate) struct Source {
    #[command(flatten)]
    daemon: Daemon,
    /// State directory of a daemon that does not run. Default, if the daemon at the default socket does not run: `state` in
    /// /etc/sluice/sluice.toml, or $STATE_DIRECTORY, or /var/lib/sluice.
    #[arg(long, value_name = "FOLDER", conflicts_with = "socket")]
    state: Option<PathBuf>,
    /// The record, once the daemon was found not to run.
    #[arg(skip)]
    record: OnceCell<Opened>,
}

/// A record that is open; a clone opens it again.
#[derive(Default)]
struct Opened(Option<Record>);

impl Clone for Opened {
    fn clone(&self) -> Opened {
        Opened(None)
    }
}

impl Source {
    /// The daemon.
    pub(crate) fn daemon(&self) -> &Daemon {
        &self.daemon
    }

    /// Whether the daemon does not run, or its state directory was named, which it then must not use.
    pub(crate) fn is_down(&self) -> bool {
        self.state.is_some() || self.daemon.is_absent_at_default()
    }

    /// The state directory that was named, or that of a host file.
    pub(crate) fn state_of(&self, file: &Path) -> PathBuf {
        self.state.clone().unwrap_or_else(|| preflight::state_folder(file))
    }

    /// Whether the answers come from a state directory.
    pub(crate) fn is_offline(&self) -> bool {
        self.record.get().is_some()
    }

    /// Asks, and returns what was asked for.
    pub(crate) fn get<R: DeserializeOwned + Default>(&self, request: &Request) -> Result<R, Failure> {
        if let Some(folder) = &self.state {
            return self.read(folder, request);
        }
        match self.daemon.get(request) {
            Err(failure) if self.daemon.is_absent_at_default() => {
                let folder = preflight::state_folder(Path::new(HOST_FILE));
                let Err(error) = self.open(&folder) else { return self.read(&folder, request) };
                Err(Failure::Unreachable(format!("{}. {error}", failure.into_text())))
            }
            answered => answered,
        }
    }

    fn open(&self, folder: &Path) -> Result<(), String> {
        if self.record.get().is_some() {
            return Ok(());
        }
        let record = Record::open(folder).map_err(|error| error.to_string())?;
        let last = record.last().map_or_else(|| "it is empty".to_owned(), |last| format!("it ends at {}", Time(last)));
        output::message(format_args!("The daemon does not run: this is its record in {}; {last}", folder.display()));
        let _ = self.record.set(Opened(Some(record)));
        Ok(())
    }

    fn read<R: DeserializeOwned + Default>(&self, folder: &Path, request: &Request) -> Result<R, Failure> {
        self.open(folder).map_err(|error| Failure::Run(error.into()))?;
        let record = self.record.get().and_then(|opened| opened.0.as_ref()).expect("it was opened");
        let reply = record.answer(request);
        if !reply.ok {
            return Err(client::refused(reply.code.map(Into::into), reply.error.unwrap_or_default()));
        }
        let read = reply.read().map_err(|error| Failure::Run(error.to_string().into()))?;
        Ok(read.unwrap_or_default())
    }
}
