//! Flushes of one file share the next sync.
//!
//! A flush covers the writes that completed before it arrived. A sync that is already running may have looked at the file
//! before those writes. So a flush that arrives during a sync waits for the next one, which all waiting flushes share: many
//! VMs on one file cost one sync at a time. After a failed sync data may be lost, and the kernel reports this once. The
//! failure affects every volume on the file, including those that are opened later, until the loss is accepted or all
//! volumes are closed.

use std::collections::HashMap;

use crate::slab::{Slab, ids};
use crate::source::FileId;
use crate::store::OpIndex;

ids! {
    /// A file or block device with open volumes.
    FileKey;
}

#[derive(Debug)]
struct File {
    id: FileId,
    volumes: u32,
    failed: bool,
    /// Flushes that the running sync covers.
    running: Vec<OpIndex>,
    /// Flushes that the next sync will cover.
    waiting: Vec<OpIndex>,
}

/// The files of a device.
#[derive(Debug, Default)]
pub(crate) struct Files {
    by_id: HashMap<FileId, FileKey>,
    files: Slab<FileKey, File>,
}

impl Files {
    /// Adds a volume to a file.
    pub(crate) fn open(&mut self, id: FileId) -> FileKey {
        let new = || File { id, volumes: 0, failed: false, running: Vec::new(), waiting: Vec::new() };
        let key = *self.by_id.entry(id).or_insert_with(|| self.files.insert(new()));
        self.files[key].volumes += 1;
        key
    }

    /// Removes a volume from a file. With the last one the file and its failure are forgotten.
    pub(crate) fn close(&mut self, key: FileKey) {
        let file = &mut self.files[key];
        file.volumes -= 1;
        if file.volumes == 0 {
            self.by_id.remove(&file.id);
            self.files.remove(key);
        }
    }

    /// Whether writes to the file may be lost.
    pub(crate) fn is_failed(&self, key: FileKey) -> bool {
        self.files[key].failed
    }

    pub(crate) fn set_failed(&mut self, key: FileKey, failed: bool) {
        self.files[key].failed = failed;
    }

    /// Adds a flush. Returns whether the caller has to start a sync, which covers this flush.
    pub(crate) fn flush(&mut self, key: FileKey, op: OpIndex) -> bool {
        let file = &mut self.files[key];
        let is_first = file.running.is_empty();
        if is_first { &mut file.running } else { &mut file.waiting }.push(op);
        is_first
    }

    /// Records the end of the running sync, and appends the flushes that have completed to `completed`. Returns one of
    /// the waiting flushes if a new sync must start for them.
    pub(crate) fn synced(&mut self, key: FileKey, ok: bool, completed: &mut Vec<OpIndex>) -> Option<OpIndex> {
        let file = &mut self.files[key];
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

    #[test]
    fn flushes_share_a_sync_that_has_not_started() {
        let mut files = Files::default();
        let file = files.open(FileId { dev: 1, ino: 2 });
        assert_eq!(files.open(FileId { dev: 1, ino: 2 }), file);
        assert!(files.flush(file, OpIndex(0)));
        assert!(!files.flush(file, OpIndex(1)));
        assert!(!files.flush(file, OpIndex(2)));
        let mut completed = Vec::new();
        assert_eq!(files.synced(file, true, &mut completed), Some(OpIndex(1)));
        assert_eq!(completed, [OpIndex(0)]);
        completed.clear();
        assert_eq!(files.synced(file, true, &mut completed), None);
        assert_eq!(completed, [OpIndex(1), OpIndex(2)]);
    }

    #[test]
    fn a_file_with_a_failed_sync_fails_until_the_loss_is_accepted_or_all_volumes_are_closed() {
        let mut files = Files::default();
        let id = FileId { dev: 1, ino: 2 };
        let (file, _second) = (files.open(id), files.open(id));
        assert!(files.flush(file, OpIndex(0)));
        assert!(!files.flush(file, OpIndex(1)));
        let mut completed = Vec::new();
        assert_eq!(files.synced(file, false, &mut completed), None);
        assert_eq!(completed, [OpIndex(0), OpIndex(1)]);
        assert!(files.is_failed(file));
        files.close(file);
        let again = files.open(id);
        assert!(files.is_failed(again));
        files.set_failed(again, false);
        assert!(!files.is_failed(again));
        files.set_failed(again, true);
        files.close(file);
        files.close(file);
        let reopened = files.open(id);
        assert!(!files.is_failed(reopened));
    }

    #[test]
    fn closed_files_leave_no_entries() {
        let mut files = Files::default();
        let stays = files.open(FileId { dev: 1, ino: 1 });
        for ino in 2..1000 {
            let file = files.open(FileId { dev: 1, ino });
            assert!(file != stays && files.flush(file, OpIndex(0)));
            files.synced(file, true, &mut Vec::new());
            files.close(file);
        }
        assert_eq!((files.by_id.len(), files.files.len()), (1, 1));
    }
}
