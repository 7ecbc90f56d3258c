//! Faults that put one object out of service instead of rejecting the whole change.

use std::io;

use sluice_io::endpoint::ListenError;
use sluice_io::source::SourceError;

/// Which faults put what they concern out of service, so that the others are served without it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Tolerance {
    /// Never: the whole change is rejected.
    #[default]
    Never,
    /// If a path hangs, or requests of a dead process hold the bytes of a volume: a strict start.
    NoResponse,
    /// All of them: a start, a retry, and what is out of service already.
    Anything,
}

impl Tolerance {
    pub(super) fn covers(self, fault: &impl Fault) -> bool {
        match self {
            Tolerance::Never => false,
            Tolerance::NoResponse => fault.is_no_response(),
            Tolerance::Anything => true,
        }
    }
}

/// An error that a [`Tolerance`] may cover.
pub(super) trait Fault {
    /// Whether a path hangs, or requests of a dead process hold its bytes.
    fn is_no_response(&self) -> bool;
}

impl Fault for SourceError {
    fn is_no_response(&self) -> bool {
        self.is_left_behind() || matches!(self, SourceError::Silent { .. })
    }
}

impl Fault for ListenError {
    fn is_no_response(&self) -> bool {
        matches!(self, ListenError::Silent { .. })
    }
}

impl Fault for io::Error {
    fn is_no_response(&self) -> bool {
        false
    }
}
