//! Flushes of one file share the next sync.
//!
//! A flush covers the writes that completed before it arrived. A sync that is already running may have looked at the file
//! before those writes. So a flush that arrives during a sync waits for the next one, which all waiting flushes share: many
//! VMs on one file cost one sync at a time. After a failed sync data may be lost, and the kernel reports this once. The
//! failure affects every volume on the file, including those that are opened later, until the loss is accepted or all
//! volumes are closed.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::backend::device_queue::OpIndex;
use crate::slab::{Slab, ids};
use crate::source::FileId;

ids! {
    /// A file or block device with open volumes.
    FileKey;
}

/// A flush: the operation of a thread of the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Flush {
    pub(crate) worker: u8,
    pub(crate) op: OpIndex,
}

/// What a thread tells another one about syncs of a file.
#[derive(Debug, Clone, Copy)]
pub(crate) enum SyncNote {
    /// A sync that the sender started has ended, and covers this flush.
    Ended { op: OpIndex, ok: bool },
    /// The next sync of a file is for this flush.
    Start(OpIndex),
}

#[derive(Debug)]
struct File {
    id: FileId,
    volumes: u32,
    failed: bool,
    /// Flushes that the running sync covers.
    running: Vec<Flush>,
    /// Flushes that the next sync will cover.
    waiting: Vec<Flush>,
}

#[derive(Debug, Default)]
struct Table {
    by_id: HashMap<FileId, FileKey>,
    files: Slab<FileKey, File>,
}

/// The files of a device, as one of its threads uses them. All threads have the same table: of two concurrent syncs of a
/// file only one would learn of a failure.
#[derive(Debug)]
pub(crate) struct Files {
    table: Arc<Mutex<Table>>,
    worker: u8,
}

impl Files {
    /// For the first thread of a device.
    pub(crate) fn new() -> Self {
        Files { table: Arc::default(), worker: 0 }
    }

    /// For another thread of the same device.
    pub(crate) fn of_worker(&self, worker: u8) -> Self {
        Files { table: Arc::clone(&self.table), worker }
    }

    pub(crate) fn worker(&self) -> u8 {
        self.worker
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a volume to a file. Calls `found` with whether writes to the file may be lost, while no thread can change
    /// that; it returns whether they may.
    pub(crate) fn open(&self, id: FileId, found: impl FnOnce(bool) -> bool) -> FileKey {
        let table = &mut *self.table();
        let new = || File { id, volumes: 0, failed: false, running: Vec::new(), waiting: Vec::new() };
        let key = *table.by_id.entry(id).or_insert_with(|| table.files.insert(new()));
        let file = &mut table.files[key];
        file.volumes += 1;
        file.failed = found(file.failed);
        key
    }

    /// Removes a volume from a file. With the last one the file and its failure are forgotten.
    pub(crate) fn close(&self, key: FileKey) {
        let table = &mut *self.table();
        let file = &mut table.files[key];
        file.volumes -= 1;
        if file.volumes == 0 {
            table.by_id.remove(&file.id);
            table.files.remove(key);
        }
    }

    /// Sets whether writes to the file may be lost. Calls `set` while no thread can change that.
    pub(crate) fn set_failed(&self, key: FileKey, failed: bool, set: impl FnOnce()) {
        let table = &mut *self.table();
        table.files[key].failed = failed;
        set();
    }

    /// Adds a flush. Returns whether the caller has to start a sync, which covers this flush.
    pub(crate) fn flush(&self, key: FileKey, op: OpIndex) -> bool {
        let flush = Flush { worker: self.worker, op };
        let file = &mut self.table().files[key];
        if file.running.is_empty() {
            file.running.push(flush);
            return true;
        }
        file.waiting.push(flush);
        false
    }

    /// Records the end of the running sync, and appends the flushes that have completed to `completed`. Returns one of
    /// the waiting flushes if a new sync must start for them.
    pub(crate) fn synced(&self, key: FileKey, ok: bool, completed: &mut Vec<Flush>) -> Option<Flush> {
        let file = &mut self.table().files[key];
        completed.append(&mut file.running);
        if !ok {
            file.failed = true;
            completed.append(&mut file.waiting);
            return None;
        }
        std::mem::swap(&mut file.running, &mut file.waiting);
        file.running.first().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(files: &Files, id: FileId) -> FileKey {
        files.open(id, |failed| failed)
    }

    fn is_failed(files: &Files, key: FileKey) -> bool {
        files.table().files[key].failed
    }

    fn own(op: u32) -> Flush {
        Flush { worker: 0, op: OpIndex(op) }
    }

    #[test]
    fn flushes_share_a_sync_that_has_not_started() {
        let files = Files::new();
        let file = open(&files, FileId { dev: 1, ino: 2 });
        assert_eq!(open(&files, FileId { dev: 1, ino: 2 }), file);
        assert!(files.flush(file, OpIndex(0)));
        assert!(!files.flush(file, OpIndex(1)));
        assert!(!files.flush(file, OpIndex(2)));
        let mut completed = Vec::new();
        assert_eq!(files.synced(file, true, &mut completed), Some(own(1)));
        assert_eq!(completed, [own(0)]);
        completed.clear();
        assert_eq!(files.synced(file, true, &mut completed), None);
        assert_eq!(completed, [own(1), own(2)]);
    }

    #[test]
    fn a_file_with_a_failed_sync_fails_until_the_loss_is_accepted_or_all_volumes_are_closed() {
        let files = Files::new();
        let id = FileId { dev: 1, ino: 2 };
        let (file, _second) = (open(&files, id), open(&files, id));
        assert!(files.flush(file, OpIndex(0)));
        assert!(!files.flush(file, OpIndex(1)));
        let mut completed = Vec::new();
        assert_eq!(files.synced(file, false, &mut completed), None);
        assert_eq!(completed, [own(0), own(1)]);
        assert!(is_failed(&files, file));
        files.close(file);
        let again = open(&files, id);
        assert!(is_failed(&files, again));
        files.set_failed(again, false, || ());
        assert!(!is_failed(&files, again));
        files.set_failed(again, true, || ());
        files.close(file);
        files.close(file);
        let reopened = open(&files, id);
        assert!(!is_failed(&files, reopened));
    }

    #[test]
    fn closed_files_leave_no_entries() {
        let files = Files::new();
        let stays = open(&files, FileId { dev: 1, ino: 1 });
        for ino in 2..1000 {
            let file = open(&files, FileId { dev: 1, ino });
            assert!(file != stays && files.flush(file, OpIndex(0)));
            files.synced(file, true, &mut Vec::new());
            files.close(file);
        }
        let table = files.table();
        assert_eq!((table.by_id.len(), table.files.len()), (1, 1));
    }

    #[test]
    fn threads_share_a_sync_and_a_flush_during_it_waits_for_the_next() {
        let first = Files::new();
        let second = first.of_worker(1);
        let file = open(&first, FileId { dev: 1, ino: 2 });
        assert!(first.flush(file, OpIndex(7)) && !second.flush(file, OpIndex(7)));
        let mut completed = Vec::new();
        let other = Flush { worker: 1, op: OpIndex(7) };
        assert_eq!(first.synced(file, true, &mut completed), Some(other), "the second starts the next sync");
        assert!(!first.flush(file, OpIndex(8)));
        completed.clear();
        assert_eq!((second.synced(file, false, &mut completed), &completed[..]), (None, &[other, own(8)][..]));
        assert!(is_failed(&first, file));
    }
}
