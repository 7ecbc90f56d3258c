//! Flushes of one file share a sync that has not started yet.
//!
//! A flush covers the writes that completed before it arrived. A sync that runs already may have looked at the file
//! before those writes, so a flush that comes meanwhile waits for the next one, together with all others that do: many
//! VMs on one file cost one sync at a time. A failed sync may have thrown data away, and the kernel reports it once:
//! from then on the file is failed for every volume on it, until it is opened again.

use std::collections::HashMap;

use sluice_sched::gate::Slot;

use crate::source::FileId;

/// The file of a volume, as the device loop numbers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileIndex(u32);

#[derive(Debug, Default)]
struct File {
    volumes: u32,
    failed: bool,
    running: Vec<Slot>,
    waiting: Vec<Slot>,
}

/// The files of a device.
#[derive(Debug, Default)]
pub struct Files {
    by_id: HashMap<FileId, u32>,
    files: Vec<File>,
}

impl Files {
    /// A volume on the file `id` has been opened.
    pub fn open(&mut self, id: FileId) -> FileIndex {
        let next = self.files.len() as u32;
        let index = *self.by_id.entry(id).or_insert(next);
        if index == next {
            self.files.push(File::default());
        }
        let file = &mut self.files[index as usize];
        if file.volumes == 0 {
            file.failed = false;
        }
        file.volumes += 1;
        FileIndex(index)
    }

    /// A volume on it has been closed. With the last one its failure is forgotten.
    pub fn close(&mut self, file: FileIndex) {
        self.files[file.0 as usize].volumes -= 1;
    }

    /// Whether a sync has failed since it was opened.
    #[must_use]
    pub fn is_failed(&self, file: FileIndex) -> bool {
        self.files[file.0 as usize].failed
    }

    /// What was to be durable may be lost: the file is failed until it is opened again.
    pub fn fail(&mut self, file: FileIndex) {
        self.files[file.0 as usize].failed = true;
    }

    /// The files that are open and failed.
    #[must_use]
    pub fn failed(&self) -> Vec<FileId> {
        let open = |index: &u32| self.files[*index as usize].volumes > 0 && self.files[*index as usize].failed;
        self.by_id.iter().filter(|(_, index)| open(index)).map(|(id, _)| *id).collect()
    }

    /// These files failed under the same descriptions before this table was made.
    pub fn inherit(&mut self, failed: &[FileId]) {
        for id in failed {
            if let Some(index) = self.by_id.get(id) {
                self.files[*index as usize].failed = true;
            }
        }
    }

    /// A flush of `slot` arrives. `true`: start a sync now, it covers this flush.
    pub fn flush(&mut self, file: FileIndex, slot: Slot) -> bool {
        let file = &mut self.files[file.0 as usize];
        if file.running.is_empty() {
            file.running.push(slot);
            return true;
        }
        file.waiting.push(slot);
        false
    }

    /// The sync that runs is over. Appends the flushes that it covers to `over`; returns one of those that wait if a
    /// new sync must start for them.
    pub fn synced(&mut self, file: FileIndex, ok: bool, over: &mut Vec<Slot>) -> Option<Slot> {
        let file = &mut self.files[file.0 as usize];
        over.append(&mut file.running);
        if !ok {
            file.failed = true;
            over.append(&mut file.waiting);
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
        assert!(files.flush(file, Slot(0)));
        assert!(!files.flush(file, Slot(1)));
        assert!(!files.flush(file, Slot(2)));
        let mut over = Vec::new();
        assert_eq!(files.synced(file, true, &mut over), Some(Slot(1)));
        assert_eq!(over, [Slot(0)]);
        over.clear();
        assert_eq!(files.synced(file, true, &mut over), None);
        assert_eq!(over, [Slot(1), Slot(2)]);
    }

    #[test]
    fn a_failed_sync_fails_the_file_until_it_is_opened_again() {
        let mut files = Files::default();
        let id = FileId { dev: 1, ino: 2 };
        let (file, _second) = (files.open(id), files.open(id));
        assert!(files.flush(file, Slot(0)));
        assert!(!files.flush(file, Slot(1)));
        let mut over = Vec::new();
        assert_eq!(files.synced(file, false, &mut over), None);
        assert_eq!(over, [Slot(0), Slot(1)]);
        assert!(files.is_failed(file));
        files.close(file);
        let again = files.open(id);
        assert!(files.is_failed(again));
        files.close(file);
        files.close(file);
        let anew = files.open(id);
        assert!(!files.is_failed(anew));
        files.fail(anew);
        assert!(files.is_failed(anew));
        // A table that is made anew over files that stay open.
        let (mut after, other) = (Files::default(), FileId { dev: 1, ino: 3 });
        let (same, sound) = (after.open(id), after.open(other));
        after.inherit(&files.failed());
        assert!(after.is_failed(same) && !after.is_failed(sound));
        files.close(anew);
        assert_eq!(files.failed(), []);
    }
}
