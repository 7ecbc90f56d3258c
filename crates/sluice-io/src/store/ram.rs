//! Volumes in the memory of the daemon. Their data ends with the device thread.

use sluice_sched::Instant;

use crate::store::file::jobs::Jobs;
use crate::store::*;

static INFO: StoreInfo =
    StoreInfo { memory: Some(1), buffered: false, bridged: None, zeroing: (Zeroing::Cheap, Zeroing::Cheap) };

#[derive(Default)]
pub(crate) struct Ram {
    volumes: Vec<Vec<u8>>,
    done: Vec<OpIndex>,
}

impl Store for Ram {
    fn info(&self, _volume: StoreRef) -> &StoreInfo {
        &INFO
    }

    fn start(&mut self, _context: &mut Context<'_>, op: &Op<'_>) {
        let bytes = &mut self.volumes[op.volume.index as usize][op.offset as usize..][..op.length as usize];
        match op.what {
            What::Read => op.memory.fill(bytes),
            What::Write => op.memory.copy_to(bytes),
            What::Zero { .. } => bytes.fill(0),
            What::Discard | What::Flush => {}
        }
        self.done.push(op.index);
    }

    fn next_done(&mut self, _now: Instant) -> Option<(OpIndex, Done)> {
        Some((self.done.pop()?, Done::Ok))
    }

    fn has_done(&self) -> bool {
        !self.done.is_empty()
    }
}

impl Volumes for Ram {
    fn close(&mut self, volume: u32, _jobs: &Jobs) {
        self.volumes[volume as usize] = Vec::new();
    }

    fn describe(&self, volume: u32) -> StoreSpec {
        StoreSpec::Ram(self.volumes[volume as usize].len())
    }
}

impl Open for Ram {
    type Spec = usize;

    fn new(_kind: StoreNumber) -> Self {
        Ram::default()
    }

    fn open(&mut self, _now: Instant, _label: Label, size: usize) -> u32 {
        self.volumes.push(vec![0; size]);
        self.volumes.len() as u32 - 1
    }

    fn replace(&mut self, volume: u32, size: usize) {
        self.volumes[volume as usize].resize(size, 0);
    }
}

impl Memory {
    fn segments(self, length: usize) -> Vec<(*mut u8, usize)> {
        match self {
            Memory::None => Vec::new(),
            Memory::One(start) => vec![(start, length)],
            // SAFETY: the list stays until the operation has ended.
            Memory::Pieces(first, count) => unsafe { std::slice::from_raw_parts(first, count as usize) }
                .iter()
                .map(|piece| (piece.iov_base.cast(), piece.iov_len))
                .collect(),
        }
    }

    fn fill(self, mut bytes: &[u8]) {
        for (start, len) in self.segments(bytes.len()) {
            // SAFETY: the memory stays until the operation has ended, and is not ours.
            unsafe { start.copy_from_nonoverlapping(bytes.as_ptr(), len) };
            bytes = &bytes[len..];
        }
    }

    fn copy_to(self, mut bytes: &mut [u8]) {
        for (start, len) in self.segments(bytes.len()) {
            // SAFETY: the memory stays until the operation has ended, and is not ours.
            unsafe { start.copy_to_nonoverlapping(bytes.as_mut_ptr(), len) };
            bytes = &mut bytes[len..];
        }
    }
}
