//! What a start makes of the state: the same for `sluice serve` and `sluice check --host`.

use sluice_config::{Diagnostics, Files, Host};

use super::Saved;
use super::folder::{Damaged, StateError};
use super::overrides::{Gone, Override};
use super::time::Time;

/// A state as it is laid over the host file at a start.
pub struct Restored {
    pub saved: Saved,
    /// Changes that have ended meanwhile.
    pub gone: Vec<(Override, Gone)>,
    /// Names of the changes that were lost with a damaged state.
    pub lost: Vec<String>,
    /// Why the state is damaged, if it is.
    pub damage: Option<StateError>,
    /// The files with the changes in force.
    pub host: Result<Host, Diagnostics>,
}

impl Restored {
    /// Ends changes whose time is over and those that yield to the files, and sets those aside that the files do not allow. A strict
    /// start sets none aside, so its host file may be wrong. `step` is called before each step that may take long.
    pub fn of(state: Damaged, files: &Files, strict: bool, step: impl Fn()) -> Restored {
        let Damaged { mut saved, lost, error: damage } = state;
        saved.overrides.correct_clock(Time::now());
        // A VM that uses what was attached for a time may be about to reconnect.
        let mut gone = saved.overrides.expire(Time::now(), Override::is_attach);
        gone.extend(saved.overrides.settle(files));
        match strict {
            true => saved.overrides.restore(),
            false => drop(saved.overrides.fit(files, &step)),
        }
        step();
        let host = files.changed(&saved.overrides.changes());
        if let (Some(_), Ok(host)) = (&damage, &host) {
            saved.forget_unknown(host);
        }
        Restored { saved, gone, lost, damage, host }
    }
}
