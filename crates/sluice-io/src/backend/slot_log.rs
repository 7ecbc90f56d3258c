//! The file of a delay device's slots, written by a thread of its own.
//!
//! The device thread must not wait for a file. It leaves pieces of `PIECE` bytes in a channel of `PIECES_MAX`; if the
//! file does not take them as fast as they come, the log fails, which is said, and the device goes on.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

/// Lines are handed over in pieces of so many bytes.
const PIECE: usize = 64 << 10;
/// Pieces that wait for the file.
const PIECES_MAX: usize = 64;
/// How long the end of the log waits for the file.
const END_MAX: Duration = Duration::from_secs(1);

/// The sending side.
struct SlotLog {
    /// `None` when it ends.
    pieces: Option<SyncSender<Vec<u8>>>,
    /// Nothing comes here but its end.
    ended: Receiver<()>,
}

/// Opens the file to append to it; a pipe that nobody reads is refused, and not waited for. May take as long as its file system
/// hangs, so the device thread gets the open file.
///
/// # Errors
/// If the file cannot be opened.
pub fn open(path: &Path) -> io::Result<File> {
    let file = File::options().create(true).append(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    let flags = rustix::fs::fcntl_getfl(&file)?;
    rustix::fs::fcntl_setfl(&file, flags - rustix::fs::OFlags::NONBLOCK)?;
    Ok(file)
}

/// A log that goes to this file. What is written goes there later; an error of the file is reported by a later write.
///
/// # Errors
/// If there is no thread.
pub(crate) fn start(file: impl Write + Send + 'static) -> io::Result<Box<dyn Write + Send>> {
    Ok(Box::new(BufWriter::with_capacity(PIECE, SlotLog::start(file)?)))
}

impl SlotLog {
    fn start(mut file: impl Write + Send + 'static) -> io::Result<SlotLog> {
        let (pieces, written) = sync_channel::<Vec<u8>>(PIECES_MAX);
        let (end, ended) = sync_channel(0);
        thread::Builder::new().name("slot-log".to_owned()).spawn(move || {
            let _end: SyncSender<()> = end;
            while let Ok(piece) = written.recv() {
                if let Err(error) = file.write_all(&piece) {
                    // names nothing: the thread knows only its file, and ends.
                    return tracing::error!(%error, "Cannot write the slot log");
                }
            }
        })?;
        Ok(SlotLog { pieces: Some(pieces), ended })
    }
}

impl Write for SlotLog {
    fn write(&mut self, piece: &[u8]) -> io::Result<usize> {
        let sent = self.pieces.as_ref().is_some_and(|pieces| pieces.try_send(piece.to_vec()).is_ok());
        let behind = || io::Error::other("The file does not take lines as fast as they come");
        sent.then_some(piece.len()).ok_or_else(behind)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for SlotLog {
    /// Whoever reads the file after the device has ended finds all of it.
    fn drop(&mut self) {
        self.pieces = None;
        let _ = self.ended.recv_timeout(END_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_takes_nothing_fails_the_log_and_makes_nobody_wait() {
        let (reader, writer) = io::pipe().unwrap();
        let mut log = BufWriter::with_capacity(PIECE, SlotLog::start(writer).unwrap());
        // The pipe and the channel take 5 MiB at most.
        let failed = (0..8 << 10).find_map(|_| log.write_all(&[b'.'; 1024]).err());
        assert!(failed.unwrap().to_string().contains("as fast as they come"));
        drop(reader);
    }

    #[test]
    fn its_end_waits_for_what_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("slots.csv");
        let mut log = start(open(&path).unwrap()).unwrap();
        (0..100_000).for_each(|n| writeln!(log, "{}", n % 10).unwrap());
        drop(log);
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 200_000);
    }
}
