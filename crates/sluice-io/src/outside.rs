//! What a sealed process cannot do itself, and another one does for it.

use std::path::Path;
use std::sync::OnceLock;

use crate::source::Seen;

/// Another process that looks names up and connects.
pub trait Outside: Send + Sync {
    /// The number of a user.
    fn user(&self, name: &str) -> Option<u32>;
    /// The number of a group.
    fn group(&self, name: &str) -> Option<u32>;
    /// The name of a user.
    fn name_of(&self, uid: u32) -> Option<String>;
    /// Whether a process listens at a socket.
    fn listens(&self, path: &Path) -> bool;
    /// Which process locks a file, as fdinfo shows it, from a byte on.
    fn holder(&self, file: &str, start: u64) -> Seen;
}

static OUTSIDE: OnceLock<Box<dyn Outside>> = OnceLock::new();

/// Sets the process that does it from now on.
pub fn set(outside: Box<dyn Outside>) {
    let _ = OUTSIDE.set(outside);
}

pub(crate) fn get() -> Option<&'static dyn Outside> {
    OUTSIDE.get().map(|outside| &**outside)
}
