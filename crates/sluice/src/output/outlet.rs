//! Where the daemon's words leave the process: a queue, and a thread that writes it to standard output or standard error.
//!
//! Standard error may be a pipe that nobody reads or a file on a full disk. Whoever has something to say must neither wait
//! for it nor fail with it, so a text that finds no room in the queue, or that cannot be written, is lost and counted. The
//! count is written as soon as something can be written again.
//!
//! Example with room for 1 MiB: a pipe takes 64 KiB and stands still. 1 MiB more waits here; what comes then is lost. When
//! the pipe is read again, the reader gets what waited, then "12 texts were lost here", then what comes next.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// Takes texts without waiting, and writes them in order on a thread of its own.
pub(crate) struct Outlet {
    shared: Arc<Shared>,
}

struct Shared {
    queue: Mutex<Queue>,
    filled: Condvar,
    emptied: Condvar,
}

struct Queue {
    texts: VecDeque<Vec<u8>>,
    /// Of all texts together, and how many there may be.
    bytes: usize,
    bytes_max: usize,
    /// Texts lost since the last that was written.
    lost: u64,
    /// A text has been taken out and is being written.
    writing: bool,
}

impl Outlet {
    /// Starts the thread. `bytes_max` is how much may wait for `sink`.
    pub(crate) fn start(name: &str, bytes_max: usize, mut sink: impl Write + Send + 'static) -> io::Result<Outlet> {
        let queue = Queue { texts: VecDeque::new(), bytes: 0, bytes_max, lost: 0, writing: false };
        let shared = Arc::new(Shared { queue: Mutex::new(queue), filled: Condvar::new(), emptied: Condvar::new() });
        let own = Arc::clone(&shared);
        thread::Builder::new().name(name.to_owned()).spawn(move || own.write_all(&mut sink))?;
        Ok(Outlet { shared })
    }

    /// Leaves a text to be written; it is lost if too much waits already.
    pub(crate) fn put(&self, text: Vec<u8>) {
        let mut queue = self.shared.lock();
        if queue.bytes + text.len() > queue.bytes_max {
            queue.lost += 1;
            return;
        }
        queue.bytes += text.len();
        queue.texts.push_back(text);
        self.shared.filled.notify_one();
    }

    /// Texts that were lost since the last that was written, and those that wait.
    pub(crate) fn unwritten(&self) -> u64 {
        let queue = self.shared.lock();
        queue.lost + queue.texts.len() as u64 + u64::from(queue.writing)
    }

    /// Waits until everything has been written, but no longer than `patience`.
    pub(crate) fn flush(&self, patience: Duration) {
        let queue = self.shared.lock();
        let busy = |queue: &mut Queue| queue.writing || !queue.texts.is_empty();
        drop(self.shared.emptied.wait_timeout_while(queue, patience, busy));
    }
}

impl Shared {
    /// No invariant spans two fields for longer than a call, so a panic under the lock leaves nothing broken.
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The life of the thread: it has no end of its own, since the process must not wait for what may never be read.
    fn write_all(&self, sink: &mut impl Write) {
        loop {
            let (text, lost) = self.take();
            let said = lost == 0 || write(sink, format!("{lost} texts were lost here\n").as_bytes());
            let written = said && write(sink, &text);
            let mut queue = self.lock();
            queue.writing = false;
            if said {
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

/// Whether nothing is lost by it: what nobody wants any more, since he has closed his end of the pipe, is not.
fn write(sink: &mut impl Write, text: &[u8]) -> bool {
    match sink.write_all(text).and_then(|()| sink.flush()) {
        Ok(()) => true,
        Err(error) => error.kind() == io::ErrorKind::BrokenPipe,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::sync::mpsc::{Receiver, Sender, channel};

    const LONG: Duration = Duration::from_secs(60);

    /// Tells of each write before it answers as it is told to.
    struct Stubborn {
        writes: Sender<String>,
        answers: Receiver<bool>,
    }

    impl Write for Stubborn {
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
    fn texts_that_cannot_be_written_are_counted_and_the_count_is_written() {
        let ((writes, written), (answer, answers)) = (channel(), channel());
        let outlet = Outlet::start("test", 1024, Stubborn { writes, answers }).unwrap();
        // The third goes out behind the count of those before it, the count only when it can be written itself.
        for (text, asked, ok) in [("a", "a", false), ("b", "1 texts were lost here\n", false)] {
            outlet.put(text.into());
            assert_eq!(written.recv_timeout(LONG).unwrap(), asked);
            answer.send(ok).unwrap();
            outlet.flush(LONG);
        }
        outlet.put("c".into());
        for asked in ["2 texts were lost here\n", "c"] {
            assert_eq!(written.recv_timeout(LONG).unwrap(), asked);
            answer.send(true).unwrap();
        }
        outlet.flush(LONG);
        outlet.put("d".into());
        assert_eq!(written.recv_timeout(LONG).unwrap(), "d");
    }

    #[test]
    fn a_reader_that_does_not_read_makes_nobody_wait() {
        let (mut reader, writer) = io::pipe().unwrap();
        let outlet = Outlet::start("test", 100_000, writer).unwrap();
        let line = [b'.'; 1000];
        // More than a pipe and the queue hold: it comes back all the same.
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
    fn a_reader_who_has_left_has_lost_nothing() {
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        let outlet = Outlet::start("test", 1024, writer).unwrap();
        outlet.put("a".into());
        outlet.flush(LONG);
        assert_eq!(outlet.unwritten(), 0);
    }
}
