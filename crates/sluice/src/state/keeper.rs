//! The thread that writes states and drop-ins, one after another. A file system that hangs stops only this thread.

use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{Sender, channel};
use std::thread;

use super::Saved;
use super::dropin::DropIn;
use super::folder::StateFolder;

/// A write that must be on disk before a change is in force.
pub(crate) struct Job {
    pub(crate) number: u64,
    /// Written first: a change that is in both must not be lost between them.
    pub(crate) dropin: Option<DropIn>,
    /// `None` if the state file is up to date.
    pub(crate) saved: Option<Saved>,
}

/// The handle of the thread, which ends with it after its last job.
pub(crate) struct Keeper {
    jobs: Sender<Job>,
    folder: Option<PathBuf>,
}

impl Keeper {
    /// Starts the thread. Without a folder, only drop-ins are written. `done` gets the number and the result of each job.
    pub(crate) fn start(
        folder: Option<StateFolder>,
        done: impl Fn(u64, Result<(), String>) + Send + 'static,
    ) -> io::Result<Keeper> {
        let (jobs, inbox) = channel::<Job>();
        let path = folder.as_ref().map(|folder| folder.path().to_owned());
        thread::Builder::new().name("state".to_owned()).spawn(move || {
            for job in inbox {
                done(job.number, job.run(folder.as_ref()));
            }
        })?;
        Ok(Keeper { jobs, folder: path })
    }

    /// The state directory.
    pub(crate) fn folder(&self) -> Option<&PathBuf> {
        self.folder.as_ref()
    }

    pub(crate) fn run(&self, job: Job) {
        // Without the thread there is no answer, and the change times out.
        let _ = self.jobs.send(job);
    }
}

impl Job {
    fn run(self, folder: Option<&StateFolder>) -> Result<(), String> {
        if let Some(dropin) = &self.dropin {
            dropin.write()?;
        }
        let (Some(folder), Some(saved)) = (folder, &self.saved) else { return Ok(()) };
        folder.write(saved).map_err(|error| {
            let path = folder.path().display();
            format!("Cannot write the state directory {path}: {error}; free disk space there, or make it writable, and repeat the command")
        })
    }
}
