//! Writes states and drop-ins, one after another, on a thread of its own. A file system that hangs stops only this thread.
//!
//! What was written into a drop-in is taken back by the next job, unless its change has come into force ([`Keeper::keep`]). A
//! write that hangs is given up. Until it ends nothing else is written, and then it is not known what is on disk, so the state is
//! written again.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use tokio::sync::oneshot::{self, error::TryRecvError};
use tokio::time::timeout;

use super::Saved;
use super::dropin::{DropIn, Undo};
use super::folder::StateFolder;
use crate::server::ServerError;

/// A write that must be on disk before a change is in force.
#[derive(Default)]
struct Job {
    /// Whether the drop-in of the last job is put back first.
    takes_back: bool,
    /// Written first: a change that is in both must not be lost between them.
    dropin: Option<DropIn>,
    /// `None` if the state file is up to date.
    saved: Option<Saved>,
}

/// The error is the remedy.
type Written = Result<(), String>;

/// The handle of the thread, which ends with it after its last job. Who has it may make a change.
pub struct Keeper {
    jobs: Sender<(Job, oneshot::Sender<Written>)>,
    folder: Option<PathBuf>,
    /// The folder of the drop-ins.
    dropins: PathBuf,
    /// The state in the state directory; `None` if a failed write has left one or the other.
    on_disk: Option<Saved>,
    /// Whether the last drop-in is that of a change that is not in force.
    is_unmade: bool,
    /// The end of a write that hangs.
    hung: Option<oneshot::Receiver<Written>>,
}

impl Keeper {
    /// Starts the thread. Without a state directory, only drop-ins are written. `on_disk` is the state there.
    pub fn start(folder: Option<StateFolder>, dropins: PathBuf, on_disk: Saved) -> io::Result<Keeper> {
        let (jobs, inbox) = channel::<(Job, oneshot::Sender<Written>)>();
        let path = folder.as_ref().map(|folder| folder.path().to_owned());
        thread::Builder::new().name("state".to_owned()).spawn(move || {
            let mut last = None;
            for (job, done) in inbox {
                let _ = done.send(job.run(folder.as_ref(), &mut last));
            }
        })?;
        Ok(Keeper { jobs, folder: path, dropins, on_disk: Some(on_disk), is_unmade: false, hung: None })
    }

    /// The state directory.
    pub fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    /// Writes the drop-in of a change, and its state if the state directory has another one. Returns whether the state was
    /// written. It is given up after `limit`, or when the future is dropped.
    pub async fn save(&mut self, dropin: Option<DropIn>, saved: &Saved, limit: Duration) -> Result<bool, String> {
        let is_hung = self.hangs();
        let saved = Saved { overrides: saved.overrides.without_persisted(), ..saved.clone() };
        let saved = (self.folder.is_some() && self.on_disk.as_ref() != Some(&saved)).then_some(saved);
        if saved.is_none() && dropin.is_none() && !self.is_unmade {
            return Ok(false);
        }
        if is_hung {
            return Err(self.hung(limit));
        }
        // A write that fails may fail after the file was replaced.
        let before = if saved.is_some() { self.on_disk.take() } else { None };
        let has_dropin = dropin.is_some();
        let written = self.run(Job { takes_back: self.is_unmade, dropin, saved: saved.clone() });
        self.is_unmade = has_dropin;
        let Ok(Ok(written)) = timeout(limit, written).await else {
            self.on_disk = self.on_disk.take().or(before);
            self.hung = Some(self.run(Job { takes_back: true, ..Job::default() }));
            self.is_unmade = false;
            return Err(self.hung(limit));
        };
        if let Err(error) = written {
            self.is_unmade = false;
            return Err(error);
        }
        let is_saved = saved.is_some();
        self.on_disk = saved.or(self.on_disk.take());
        Ok(is_saved)
    }

    /// Notes that the change that was written is in force.
    pub fn keep(&mut self) {
        self.is_unmade = false;
    }

    /// Whether a write still hangs.
    pub fn hangs(&mut self) -> bool {
        let end = self.hung.as_mut().map(oneshot::Receiver::try_recv);
        if end.is_some_and(|end| end != Err(TryRecvError::Empty)) {
            (self.hung, self.on_disk) = (None, None);
        }
        self.hung.is_some()
    }

    /// Writes the state for the next start, also after the end of a write that hangs.
    pub async fn save_last(&mut self, saved: &Saved, limit: Duration) -> Result<bool, String> {
        let last = async {
            if let Some(end) = &mut self.hung {
                let _ = end.await;
                (self.hung, self.on_disk) = (None, None);
            }
            self.save(None, saved, limit).await
        };
        timeout(limit, last).await.unwrap_or_else(|_| Err(self.hung(limit)))
    }

    /// Returns the error of a write that hangs for this time.
    fn hung(&self, time: Duration) -> String {
        let path = self.folder.as_ref().unwrap_or(&self.dropins).clone();
        ServerError::Hangs { path, seconds: time.as_secs() }.to_string()
    }

    /// Without the thread there is no answer.
    fn run(&self, job: Job) -> oneshot::Receiver<Written> {
        let (done, written) = oneshot::channel();
        let _ = self.jobs.send((job, done));
        written
    }
}

impl Job {
    /// `last` is how to take back the drop-in of the last job.
    fn run(self, folder: Option<&StateFolder>, last: &mut Option<Undo>) -> Written {
        last.take().filter(|_| self.takes_back).into_iter().for_each(Undo::run);
        *last = self.dropin.as_ref().map(DropIn::write).transpose()?;
        let (Some(folder), Some(saved)) = (folder, &self.saved) else { return Ok(()) };
        folder.write(saved).map_err(|error| {
            last.take().into_iter().for_each(Undo::run);
            let path = folder.path().display();
            format!(
                "Cannot write the state directory {path}: {error}; free disk space there, or make it writable, and repeat the command"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rustix::fs::{CWD, FileType, Mode, mknodat};

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
            assert!(job.run(Some(&folder), &mut None).unwrap_err().contains("free disk space"));
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

    #[tokio::test]
    async fn the_state_of_a_refused_change_stayed_on_disk_after_its_write_had_hung() {
        let place = tempfile::tempdir().unwrap();
        let (folder, _) = StateFolder::open(&place.path().join("state")).unwrap();
        let part = Part::Set("a".parse().unwrap(), "weight = 3".parse().unwrap());
        let dropin = DropIn::of(&place.path().join("host.toml"), vec![part]);
        let (dropins, file) = (place.path().join("host.d"), dropin.file().to_owned());
        // A read of a pipe waits for a writer.
        fs::create_dir(&dropins).unwrap();
        mknodat(CWD, &file, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let (before, refused) = (Saved::default(), Saved { unknown: ["a/v".to_owned()].into(), ..Saved::default() });
        let mut keeper = Keeper::start(Some(folder), dropins, before.clone()).unwrap();
        let error = keeper.save(Some(dropin), &refused, Duration::from_millis(1)).await.unwrap_err();
        assert!(error.contains("has not responded"), "{error}");
        let long = Duration::from_secs(600);
        assert!(keeper.save(None, &refused, long).await.is_err(), "nothing is written until it ends");
        assert!(!keeper.save(None, &before, long).await.unwrap(), "what needs no write goes on");
        drop(fs::File::options().write(true).open(&file).unwrap());
        while keeper.hangs() {
            tokio::task::yield_now().await;
        }
        assert_eq!(fs::read_to_string(&file).unwrap(), "", "it is taken back");
        let state = || fs::read_to_string(place.path().join("state/state.json")).unwrap();
        assert!(state().contains("a/v"));
        assert!(keeper.save(None, &before, long).await.unwrap() && !state().contains("a/v"));
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
