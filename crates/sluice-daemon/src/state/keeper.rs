//! The thread that writes states and drop-ins, one after another. A file system that hangs stops only this thread.

use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{Sender, channel};
use std::thread;

use super::Saved;
use super::dropin::{DropIn, Undo};
use super::folder::StateFolder;

/// What was written, and how to take back what is not the state.
pub type Written = Result<Option<Undo>, String>;

/// A write that must be on disk before a change is in force.
#[derive(Default)]
pub struct Job {
    pub number: u64,
    /// Taken back first: its change was written, and could not be made.
    pub undo: Option<Undo>,
    /// Written first: a change that is in both must not be lost between them.
    pub dropin: Option<DropIn>,
    /// `None` if the state file is up to date.
    pub saved: Option<Saved>,
}

/// The handle of the thread, which ends with it after its last job.
pub struct Keeper {
    jobs: Sender<Job>,
    folder: Option<PathBuf>,
}

impl Keeper {
    /// Starts the thread. Without a folder, only drop-ins are written. `done` gets the number and the result of each job.
    pub fn start(folder: Option<StateFolder>, done: impl Fn(u64, Written) + Send + 'static) -> io::Result<Keeper> {
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
    pub fn folder(&self) -> Option<&PathBuf> {
        self.folder.as_ref()
    }

    pub fn run(&self, job: Job) {
        // Without the thread there is no answer, and the change times out.
        let _ = self.jobs.send(job);
    }
}

impl Job {
    fn run(self, folder: Option<&StateFolder>) -> Written {
        self.undo.into_iter().for_each(Undo::run);
        let undo = self.dropin.as_ref().map(DropIn::write).transpose()?;
        let (Some(folder), Some(saved)) = (folder, &self.saved) else { return Ok(undo) };
        match folder.write(saved) {
            Ok(()) => Ok(undo),
            Err(error) => {
                undo.into_iter().for_each(Undo::run);
                let path = folder.path().display();
                Err(format!(
                    "Cannot write the state directory {path}: {error}; free disk space there, or make it writable, and repeat the command"
                ))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::dropin::Part;
    use super::*;

    #[test]
    fn a_refused_change_stayed_in_the_drop_in_if_the_state_could_not_be_written() {
        let place = tempfile::tempdir().unwrap();
        let (folder, _) = StateFolder::open(&place.path().join("state")).unwrap();
        // A folder in place of the new file fails for root as well.
        fs::create_dir(place.path().join("state/state.json.new")).unwrap();
        let (host, dropins) = (place.path().join("host.toml"), place.path().join("host.d"));
        let refused = || {
            let part = Part::Set("a".parse().unwrap(), "weight = 3".parse().unwrap());
            let dropin = Some(DropIn::of(&host, vec![part]));
            let job = Job { dropin, saved: Some(Saved::default()), ..Job::default() };
            assert!(job.run(Some(&folder)).unwrap_err().contains("free disk space"));
        };
        refused();
        assert!(!dropins.exists(), "nor is there a folder for it");
        fs::create_dir(&dropins).unwrap();
        refused();
        assert_eq!(fs::read_dir(&dropins).unwrap().count(), 0);
        let file = dropins.join("zz-sluice.toml");
        fs::write(&file, "# Ours\n[vm.a]\nweight = 2\n").unwrap();
        refused();
        assert_eq!(fs::read_to_string(&file).unwrap(), "# Ours\n[vm.a]\nweight = 2\n");
    }

    #[test]
    fn a_drop_in_that_was_edited_meanwhile_is_not_put_back() {
        let place = tempfile::tempdir().unwrap();
        let part = Part::Set("a".parse().unwrap(), "weight = 3".parse().unwrap());
        let dropin = DropIn::of(&place.path().join("host.toml"), vec![part]);
        let undo = dropin.write().unwrap();
        fs::write(dropin.file(), "# Another's\n").unwrap();
        undo.run();
        assert_eq!(fs::read_to_string(dropin.file()).unwrap(), "# Another's\n");
    }
}
