//! Space: file systems on which sparse images may grow by more than is free.

use super::Subject;
use sluice_daemon::findings::Finding;
use sluice_daemon::space;

pub(super) const NAME: &str = "space";

pub(super) fn run(subject: &Subject) -> Vec<Finding> {
    subject.host.as_ref().filter(|_| subject.is_live()).map_or_else(Vec::new, space::findings)
}
