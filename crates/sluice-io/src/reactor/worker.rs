//! Threads of devices, which serve one device after the other.
//!
//! A ring can be used only by the thread that enabled it, and a sealed process makes no other one ([`crate::backend::rings`]). So a thread whose
//! device has gone waits for the next device.

use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use crate::backend::rings;

/// Work for a device, which returns how its end is reported.
type Work = Box<dyn FnOnce() -> Report + Send>;
type Report = Box<dyn FnOnce() + Send>;

/// Threads without a device.
static IDLE: Mutex<Vec<Sender<Work>>> = Mutex::new(Vec::new());

/// What a thread does for a device.
pub(crate) struct Job<T> {
    /// A handle of a device may be shared between threads.
    result: Mutex<Receiver<T>>,
    /// Held by the thread while it works.
    running: Arc<()>,
}

impl<T: Send + 'static> Job<T> {
    /// Starts `work` on a thread that has no device, or else on a new one.
    pub(crate) fn start(name: &str, work: impl FnOnce() -> T + Send + 'static) -> io::Result<Job<T>> {
        let (sender, result) = channel();
        let running = Arc::new(());
        let own = Arc::clone(&running);
        // A name of a thread has at most 15 bytes.
        let name = format!("dev-{name}");
        let bytes: Vec<u8> = name.bytes().take(15).collect();
        let work: Work = Box::new(move || {
            let own = own;
            if let Ok(name) = std::ffi::CString::new(bytes) {
                let _ = rustix::thread::set_name(&name);
            }
            let result = work();
            Box::new(move || {
                drop(own);
                let _ = sender.send(result);
            })
        });
        let idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let left = match idle {
            Some(idle) => idle.send(work).err().map(|lost| lost.0),
            None => Some(work),
        };
        if let Some(work) = left {
            thread::Builder::new().name(name).spawn(move || run(work))?;
        }
        Ok(Job { result: Mutex::new(result), running })
    }

    /// Whether it has ended.
    pub(crate) fn has_ended(&self) -> bool {
        Arc::strong_count(&self.running) == 1
    }

    /// Waits for its end, and returns its result; `None` if it panicked.
    pub(crate) fn join(self) -> Option<T> {
        self.result.into_inner().ok()?.recv().ok()
    }
}

/// Works until the process ends.
fn run(mut work: Work) {
    loop {
        let report = work();
        // One that has lost its ring is of no use.
        if !rings::has_own() {
            return report();
        }
        let (sender, next) = channel();
        IDLE.lock().unwrap_or_else(PoisonError::into_inner).push(sender);
        // The next device may be started as soon as the end is reported.
        report();
        match next.recv() {
            Ok(next) => work = next,
            Err(_) => return,
        }
    }
}
