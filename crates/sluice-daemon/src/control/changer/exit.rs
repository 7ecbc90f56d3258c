//! The last writes before the daemon exits: the state for the next start, and what has to be taken back.

use std::collections::BTreeSet;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use super::helpers::hangs;
use super::making::Saving;
use super::{Event, Kind, Thread};
use crate::state::keeper::Job;
use crate::state::overrides::report_gone;

/// Maximum time for the last writes.
const LAST_WRITE_MAX: Duration = Duration::from_secs(1);

impl Thread {
    /// Writes the state for the next start. A change that is being saved is not made, so it must not stay in the state.
    pub(super) fn end(&mut self, is_stop: bool, inbox: &Receiver<Event>) {
        let mut unmade = self.hung_save;
        if let Some(Saving { number, change: Some((attempt, _, prepared)), .. }) = self.saving.take() {
            drop(prepared);
            // The next start ends what is over.
            if !matches!(attempt.kind, Kind::Expire(_)) {
                self.refuse(attempt, "The daemon is exiting");
            }
            (unmade, self.on_disk) = (Some(number), None);
        }
        if is_stop {
            report_gone(&self.state.saved.stop(&self.state.files));
        }
        let last = self.to_write(&self.state.saved).map(|saved| {
            self.next += 1;
            self.keeper.run(Job { number: self.next, saved: Some(saved), ..Job::default() });
            self.next
        });
        if let Err(error) = self.await_last_writes(unmade, last, inbox) {
            tracing::error!(
                error,
                "Cannot write the state at exit: after the restart, changes made with --until-restart may still \
                 be in force, and a drop-in may still have a refused change made with --persist"
            );
        }
    }

    /// Waits for the job of a change that is not made, which is taken back, and for the last one.
    fn await_last_writes(
        &mut self,
        unmade: Option<u64>,
        last: Option<u64>,
        inbox: &Receiver<Event>,
    ) -> Result<(), String> {
        let mut awaited: BTreeSet<u64> = unmade.into_iter().chain(last).collect();
        let deadline = Instant::now() + LAST_WRITE_MAX;
        while !awaited.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            let event = inbox.recv_timeout(left).map_err(|_| {
                let folder = self.keeper.folder().map_or_else(|| self.file.with_extension("d"), Clone::clone);
                hangs(&folder, LAST_WRITE_MAX)
            })?;
            match event {
                Event::Saved(number, result) if awaited.remove(&number) => match result {
                    Ok(undo) => awaited.extend(self.put_back(undo)),
                    Err(error) if last == Some(number) => return Err(error),
                    Err(_) => {}
                },
                _ => {}
            }
        }
        Ok(())
    }
}
