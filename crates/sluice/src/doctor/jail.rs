//! Whether the daemon can seal itself, and has.

use sluice_api::status::{LayerState, Status};
use sluice_daemon::findings::{Finding, Level};
use sluice_daemon::jail;

use super::Subject;
use crate::control::Request;
use crate::control::client::Daemon;

pub(super) const NAME: &str = "jail";

pub(super) fn run(subject: &Subject) -> Vec<Finding> {
    if !subject.is_live() {
        return Vec::new();
    }
    let mut found = jail::findings(subject.host.as_ref());
    // One that does not answer is no matter of the seal.
    if let Ok(status) = Daemon::at(None).get::<Status>(&Request::Status) {
        found.extend(of_daemon(&status));
    }
    found
}

fn of_daemon(status: &Status) -> Option<Finding> {
    let not_sealed = |text: String| Finding::new(Level::Warning, NAME, "the running daemon", text);
    let Some(jail) = &status.daemon.jail else {
        return Some(not_sealed("It is not sealed".to_owned()).fix("restart it, if it is older than this program"));
    };
    let missing = jail.layers_that(LayerState::Missing).join("; ");
    (!missing.is_empty())
        .then(|| not_sealed(format!("Layers of its seal are missing: {missing}")).fix("correct that, and restart it"))
}

#[cfg(test)]
mod tests {
    use sluice_api::status::{Jail, JailLayer};

    use super::*;

    #[test]
    fn a_daemon_that_is_not_sealed_is_found() {
        let mut status = Status::default();
        assert!(of_daemon(&status).is_some_and(|found| found.text.contains("not sealed")));
        let layer = |state| JailLayer { name: "landlock".to_owned(), state, reason: Some("no kernel".to_owned()) };
        let with = |state| Some(Jail { layers: vec![layer(state)], ..Jail::default() });
        status.daemon.jail = with(LayerState::InForce);
        assert!(of_daemon(&status).is_none());
        status.daemon.jail = with(LayerState::Missing);
        assert!(of_daemon(&status).is_some_and(|found| found.text.contains("landlock (no kernel)")));
    }
}
