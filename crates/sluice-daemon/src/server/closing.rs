//! Closing files and sockets, which may hang with a disk or a file system.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// Maximum time for closing the sources and sockets of removed volumes. A file system that hangs closes them later.
const CLOSE_MAX: Duration = Duration::from_millis(200);

/// Closes files in another thread, and removes the files of sockets. On a hung file system this takes as long as it
/// hangs.
pub(super) fn close<T: Send + 'static>(gone: Vec<T>) {
    Closing::start(gone).until(Instant::now() + CLOSE_MAX);
}

/// Files that a thread closes.
pub(super) struct Closing(Receiver<()>);

impl Closing {
    pub(super) fn start<T: Send + 'static>(gone: Vec<T>) -> Closing {
        let (closed, closing) = std::sync::mpsc::channel();
        if !gone.is_empty() {
            let closer = std::thread::Builder::new().name("close".to_owned());
            // Without a thread they are closed here.
            let _ = closer.spawn(move || {
                drop(gone);
                drop(closed);
            });
        }
        Closing(closing)
    }

    /// Waits until they are closed, or until `deadline`.
    pub(super) fn until(self, deadline: Instant) {
        let left = deadline.saturating_duration_since(Instant::now());
        if self.0.recv_timeout(left) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!("Removed volumes or sockets are still being closed: their file system does not respond");
        }
    }
}
