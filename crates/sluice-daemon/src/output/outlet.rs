//! An output queue of the daemon, and the thread that writes it to standard output or standard error.
//!
//! Standard error may be a pipe that is not read, or a file on a full disk. The daemon must neither wait for it nor
//! fail. So a text that does not fit into the queue, or cannot be written, is dropped and counted. The count is
//! printed before the next text that can be written. If a full disk cut a text, what follows begins on a new line.
//!
//! Example with a queue of 1 MiB: a pipe holds 64 KiB and its reader stops. 1 MiB more is queued here, and later
//! texts are dropped. When the reader resumes, it gets the queued texts, then "12 texts were lost here", then new
//! texts.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// Accepts texts without waiting, and writes them in order in its own thread.
pub(super) struct Outlet {
    shared: Arc<Shared>,
}

struct Shared {
    queue: Mutex<Queue>,
    filled: Condvar,
    emptied: Condvar,
}

struct Queue {
    texts: VecDeque<Vec<u8>>,
    /// Size of all queued texts, and the maximum.
    bytes: usize,
    bytes_max: usize,
    /// Number of texts dropped since the last one that was written.
    lost: u64,
    /// Whether a text is being written.
    writing: bool,
}

impl Outlet {
    /// Starts the thread. At most `bytes_max` bytes are queued for `sink`. `lost` returns the text that says how many were dropped.
    pub(super) fn start(
        name: &str,
        bytes_max: usize,
        lost: impl Fn(u64) -> Vec<u8> + Send + 'static,
        mut sink: impl Write + Send + 'static,
    ) -> io::Result<Outlet> {
        let queue = Queue { texts: VecDeque::new(), bytes: 0, bytes_max, lost: 0, writing: false };
        let shared = Arc::new(Shared { queue: Mutex::new(queue), filled: Condvar::new(), emptied: Condvar::new() });
        let own = Arc::clone(&shared);
        thread::Builder::new().name(name.to_owned()).spawn(move || own.write_all(&mut sink, lost))?;
        Ok(Outlet { shared })
    }

    /// Queues a text, or drops it if the queue is full.
    pub(super) fn put(&self, text: Vec<u8>) {
        let mut queue = self.shared.lock();
        if queue.bytes + text.len() > queue.bytes_max {
            queue.lost += 1;
            return;
        }
        queue.bytes += text.len();
        queue.texts.push_back(text);
        self.shared.filled.notify_one();
    }

    /// Returns the number of texts dropped since the last one that was written, plus the number of queued ones.
    pub(super) fn unwritten(&self) -> u64 {
        let queue = self.shared.lock();
        queue.lost + queue.texts.len() as u64 + u64::from(queue.writing)
    }

    /// Waits until everything is written, or until `timeout`.
    pub(super) fn flush(&self, timeout: Duration) {
        let queue = self.shared.lock();
        let busy = |queue: &mut Queue| queue.writing || !queue.texts.is_empty();
        drop(self.shared.emptied.wait_timeout_while(queue, timeout, busy));
    }
}

impl Shared {
    /// Ignores poisoning: each method leaves the fields consistent, so a panic under the lock breaks nothing.
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs the thread. It never ends, because the process must not wait for output that may never be read.
    fn write_all(&self, sink: &mut impl Write, lost_text: impl Fn(u64) -> Vec<u8>) {
        let mut is_cut = false;
        loop {
            let (text, lost) = self.take();
            let reported = lost == 0 || write(sink, &lost_text(lost), &mut is_cut);
            let written = reported && write(sink, &text, &mut is_cut);
            let mut queue = self.lock();
            queue.writing = false;
            if reported {
                queue.lost -= lost;
            }
            if !written {
                queue.lost += 1;
            }
            self.emptied.notify_all();
        }
    }

    fn take(&self) -> (Vec<u8>, u64) {
        let mut queue = self.lock();
        loop {
            if let Some(text) = queue.texts.pop_front() {
                queue.bytes -= text.len();
                queue.writing = true;
                return (text, queue.lost);
            }
            queue = self.filled.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Writes a text, after a line break if only a part of the last one was written. Returns whether it is written or not
/// wanted: a closed pipe loses nothing.
fn write(sink: &mut impl Write, text: &[u8], is_cut: &mut bool) -> bool {
    let is_closed = |error: io::Error| error.kind() == io::ErrorKind::BrokenPipe;
    let line_break: &[u8] = if *is_cut { b"\n" } else { b"" };
    for mut left in [line_break, text] {
        while !left.is_empty() {
            match sink.write(left) {
                Ok(0) => return false,
                Ok(length) => left = &left[length..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return is_closed(error),
            }
            *is_cut = !left.is_empty();
        }
    }
    sink.flush().map_or_else(is_closed, |()| true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::sync::mpsc::{Receiver, Sender, channel};

    const LONG: Duration = Duration::from_secs(60);

    fn lost(texts: u64) -> Vec<u8> {
        format!("{texts} texts were lost here\n").into_bytes()
    }

    /// Reports each write, and returns the result that the test chooses.
    struct ScriptedSink {
        writes: Sender<String>,
        answers: Receiver<bool>,
    }

    impl Write for ScriptedSink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.writes.send(String::from_utf8_lossy(bytes).into_owned());
            match self.answers.recv() {
                Ok(true) => Ok(bytes.len()),
                _ => Err(io::ErrorKind::StorageFull.into()),
            }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn dropped_texts_are_counted_and_the_count_is_written() {
        let ((writes, written), (answer, answers)) = (channel(), channel());
        let outlet = Outlet::start("test", 1024, lost, ScriptedSink { writes, answers }).unwrap();
        // The third text follows the count of the dropped ones, which is written only when writing succeeds.
        for (text, expected, ok) in [("a", "a", false), ("b", "1 texts were lost here\n", false)] {
            outlet.put(text.into());
            assert_eq!(written.recv_timeout(LONG).unwrap(), expected);
            answer.send(ok).unwrap();
            outlet.flush(LONG);
        }
        outlet.put("c".into());
        for expected in ["2 texts were lost here\n", "c"] {
            assert_eq!(written.recv_timeout(LONG).unwrap(), expected);
            answer.send(true).unwrap();
        }
        outlet.flush(LONG);
        outlet.put("d".into());
        assert_eq!(written.recv_timeout(LONG).unwrap(), "d");
    }

    /// A disk with room for some bytes.
    struct Disk {
        written: Vec<u8>,
        room: usize,
    }

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let length = bytes.len().min(self.room);
            self.room -= length;
            self.written.extend_from_slice(&bytes[..length]);
            if length == 0 { Err(io::ErrorKind::StorageFull.into()) } else { Ok(length) }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn the_text_after_one_that_a_full_disk_cut_was_on_its_line() {
        let (mut disk, mut is_cut) = (Disk { written: Vec::new(), room: 8 }, false);
        assert!(write(&mut disk, b"first\n", &mut is_cut));
        assert!(!write(&mut disk, b"second\n", &mut is_cut));
        assert!(!write(&mut disk, b"third\n", &mut is_cut));
        disk.room = 100;
        assert!(write(&mut disk, b"2 lost\n", &mut is_cut) && write(&mut disk, b"last\n", &mut is_cut));
        assert_eq!(String::from_utf8_lossy(&disk.written), "first\nse\n2 lost\nlast\n");
    }

    #[test]
    fn a_reader_that_does_not_read_delays_no_writer() {
        let (mut reader, writer) = io::pipe().unwrap();
        let outlet = Outlet::start("test", 100_000, lost, writer).unwrap();
        let line = [b'.'; 1000];
        // More than a pipe and the queue hold; `put` returns all the same.
        (0..1000).for_each(|_| outlet.put(line.to_vec()));
        outlet.put("\nlast".into());
        outlet.flush(Duration::ZERO);
        let (mut read, mut piece) = (Vec::new(), [0; 4096]);
        while !read.windows(14).any(|bytes| bytes == b"were lost here") {
            outlet.put("x".into());
            let len = reader.read(&mut piece).unwrap();
            read.extend_from_slice(&piece[..len]);
        }
    }

    #[test]
    fn texts_for_a_closed_pipe_do_not_count_as_lost() {
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        let outlet = Outlet::start("test", 1024, lost, writer).unwrap();
        outlet.put("a".into());
        outlet.flush(LONG);
        assert_eq!(outlet.unwritten(), 0);
    }
}
