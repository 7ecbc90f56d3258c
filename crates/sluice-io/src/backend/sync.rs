//! Flushes of one file share a sync that has not started yet.
//!
//! A flush covers the writes that completed before it arrived. A sync that runs already may have looked at the file
//! before those writes, so a flush that comes meanwhile waits for the next one, together with all others that do: many
//! VMs on one file cost one sync at a time. A failed sync may have thrown data away, and the kernel reports it once: it
//! concerns every volume on the file, also those that are opened later, until the loss is accepted or all have been closed.

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
    free: Vec<u32>,
}

impl Files {
    /// A volume on the file `id` has been opened.
    pub fn open(&mut self, id: FileId) -> FileIndex {
        let index = *self.by_id.entry(id).or_insert_with(|| {
            self.free.pop().unwrap_or_else(|| {
                self.files.push(File::default());
                (self.files.len() - 1) as u32
            })
        });
        self.files[index as usize].volumes += 1;
        FileIndex(index)
    }

    /// A volume on it has been closed. With the last one the file is forgotten, and its failure.
    pub fn close(&mut self, file: FileIndex) {
        let known = &mut self.files[file.0 as usize];
        known.volumes -= 1;
        if known.volumes == 0 {
            *known = File::default();
            self.by_id.retain(|_, index| *index != file.0);
            self.free.push(file.0);
        }
    }

    /// Whether what was written to it may be lost.
    #[must_use]
    pub fn is_failed(&self, file: FileIndex) -> bool {
        self.files[file.0 as usize].failed
    }

    /// Says whether what was written to it may be lost.
    pub fn set_failed(&mut self, file: FileIndex, failed: bool) {
        self.files[file.0 as usize].failed = failed;
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
    fn a_failed_sync_fails_the_file_until_it_is_accepted_or_all_have_left() {
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
        files.set_failed(again, false);
        assert!(!files.is_failed(again));
        files.set_failed(again, true);
        files.close(file);
        files.close(file);
        let anew = files.open(id);
        assert!(!files.is_failed(anew));
    }

    #[test]
    fn files_that_come_and_go_leave_nothing_behind() {
        let mut files = Files::default();
        let stays = files.open(FileId { dev: 1, ino: 1 });
        for ino in 2..1000 {
            let file = files.open(FileId { dev: 1, ino });
            assert!(file != stays && files.flush(file, Slot(0)));
            files.synced(file, true, &mut Vec::new());
            files.close(file);
        }
        assert_eq!((files.by_id.len(), files.files.len()), (1, 2));
    }
}
