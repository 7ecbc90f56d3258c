//! The log of a delay's slots, written by a separate thread.
//!
//! The device thread must not wait for a file. It sends blocks of `BLOCK` bytes through a channel of `BLOCKS_MAX`. If
//! the file is slower than the log, the log fails with an error message and the device continues.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

/// Length of the blocks, in bytes.
const BLOCK: usize = 64 << 10;
/// Maximum number of blocks that wait for the file.
const BLOCKS_MAX: usize = 64;
/// Time limit for writing the rest of the log when it is dropped.
const END_MAX: Duration = Duration::from_secs(1);

/// The sender.
struct SlotLog {
    /// `None` when it is dropped.
    blocks: Option<SyncSender<Vec<u8>>>,
    /// Closed when the thread has ended; nothing is sent.
    ended: Receiver<()>,
}

/// Opens the file for appending. A pipe without a reader is an error; it is not waited for. May take as long as the
/// file system hangs, so the device thread gets the open file.
///
/// # Errors
/// If the file cannot be opened.
pub fn open(path: &Path) -> io::Result<File> {
    let file = File::options().create(true).append(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    let flags = rustix::fs::fcntl_getfl(&file)?;
    rustix::fs::fcntl_setfl(&file, flags - rustix::fs::OFlags::NONBLOCK)?;
    Ok(file)
}

/// Starts a log to this file. Data is written later, and an error of the file is reported by a later write.
///
/// # Errors
/// If the thread cannot be started.
pub(crate) fn start(file: impl Write + Send + 'static) -> io::Result<Box<dyn Write + Send>> {
    Ok(Box::new(BufWriter::with_capacity(BLOCK, SlotLog::start(file)?)))
}

impl SlotLog {
    fn start(mut file: impl Write + Send + 'static) -> io::Result<SlotLog> {
        let (blocks, written) = sync_channel::<Vec<u8>>(BLOCKS_MAX);
        let (end, ended) = sync_channel(0);
        thread::Builder::new().name("slot-log".to_owned()).spawn(move || {
            let _end: SyncSender<()> = end;
            while let Ok(block) = written.recv() {
                if let Err(error) = file.write_all(&block) {
                    // names nothing: the thread knows only its file, and ends.
                    return tracing::error!(%error, "Cannot write the slot log");
                }
            }
        })?;
        Ok(SlotLog { blocks: Some(blocks), ended })
    }
}

impl Write for SlotLog {
    fn write(&mut self, block: &[u8]) -> io::Result<usize> {
        let sent = self.blocks.as_ref().is_some_and(|blocks| blocks.try_send(block.to_vec()).is_ok());
        let behind = || io::Error::other("The disk of the file is too slow for the log");
        sent.then_some(block.len()).ok_or_else(behind)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for SlotLog {
    /// Waits for the thread, so that the file is complete when the device has ended.
    fn drop(&mut self) {
        self.blocks = None;
        let _ = self.ended.recv_timeout(END_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_accepts_nothing_fails_the_log_without_blocking() {
        let (reader, writer) = io::pipe().unwrap();
        let mut log = BufWriter::with_capacity(BLOCK, SlotLog::start(writer).unwrap());
        // The pipe and the channel hold 5 MiB at most.
        let failed = (0..8 << 10).find_map(|_| log.write_all(&[b'.'; 1024]).err());
        assert!(failed.unwrap().to_string().contains("too slow for the log"));
        drop(reader);
    }

    #[test]
    fn dropping_the_log_waits_for_the_written_data() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("slots.csv");
        let mut log = start(open(&path).unwrap()).unwrap();
        (0..100_000).for_each(|n| writeln!(log, "{}", n % 10).unwrap());
        drop(log);
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 200_000);
    }
}
