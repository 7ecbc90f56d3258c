//! The line to a guest's first process: it receives scripts, and returns exit statuses and output (see `init.sh`).

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use super::base64;

/// Result of a script.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) status: i32,
    /// Standard output and standard error, interleaved.
    pub(crate) text: String,
}

impl Answer {
    /// Returns the output, if the script succeeded.
    #[track_caller]
    pub(crate) fn ok(self) -> String {
        assert_eq!(self.status, 0, "{}", self.text);
        self.text
    }
}

/// A script that was started; a reboot ends it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Job {
    id: u32,
    boot: u32,
}

/// The host's end of the line.
pub(crate) struct Control {
    writer: RefCell<UnixStream>,
    lines: Receiver<String>,
    answers: RefCell<BTreeMap<u32, Answer>>,
    started: Cell<u32>,
    /// Number of boots of the guest, and number of those that a test has waited for.
    boots: Cell<u32>,
    noted: Cell<u32>,
}

/// Why the awaited event will not occur.
#[derive(Debug)]
pub(crate) enum Lost {
    /// The guest has ended.
    Ended,
    /// The guest has rebooted; its scripts have ended.
    Rebooted,
    TimedOut,
}

impl Control {
    pub(crate) fn new(stream: UnixStream) -> Control {
        let (sender, lines) = channel();
        let reader = stream.try_clone().unwrap();
        std::thread::spawn(move || super::forward_lines(reader, &sender));
        Control {
            writer: RefCell::new(stream),
            lines,
            answers: RefCell::default(),
            started: Cell::new(0),
            boots: Cell::new(0),
            noted: Cell::new(0),
        }
    }

    /// Waits until the guest has booted once more.
    pub(crate) fn ready(&self, bound: Duration) -> Result<(), Lost> {
        let deadline = Instant::now() + bound;
        while self.boots.get() == self.noted.get() {
            self.next(deadline)?;
        }
        self.noted.set(self.noted.get() + 1);
        Ok(())
    }

    pub(crate) fn start(&self, script: &str) -> Job {
        let id = self.started.get() + 1;
        self.started.set(id);
        let line = format!("{id} {}\n", base64::encode(script.as_bytes()));
        self.writer.borrow_mut().write_all(line.as_bytes()).expect("the guest is there");
        Job { id, boot: self.noted.get() }
    }

    pub(crate) fn finish(&self, job: Job, bound: Duration) -> Result<Answer, Lost> {
        let deadline = Instant::now() + bound;
        loop {
            if let Some(answer) = self.answers.borrow_mut().remove(&job.id) {
                return Ok(answer);
            }
            if self.boots.get() > job.boot {
                return Err(Lost::Rebooted);
            }
            self.next(deadline)?;
        }
    }

    fn next(&self, deadline: Instant) -> Result<(), Lost> {
        let left = deadline.saturating_duration_since(Instant::now());
        let line = self.lines.recv_timeout(left).map_err(|error| match error {
            RecvTimeoutError::Timeout => Lost::TimedOut,
            RecvTimeoutError::Disconnected => Lost::Ended,
        })?;
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["ready", _uptime] => self.boots.set(self.boots.get() + 1),
            ["done", id, status, ref text @ ..] => self.note_answer(id, status, text.first().unwrap_or(&"")),
            // Empty, or truncated by a reset.
            _ => {}
        }
        Ok(())
    }

    fn note_answer(&self, id: &str, status: &str, text: &str) {
        let (Ok(id), Ok(status), Some(text)) = (id.parse(), status.parse(), base64::decode(text)) else { return };
        let text = String::from_utf8_lossy(&text).into_owned();
        self.answers.borrow_mut().insert(id, Answer { status, text });
    }
}
