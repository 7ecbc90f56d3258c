//! Write cache of a drive: writes that are not on the platter yet.

use std::collections::BTreeMap;

use sluice_sched::Kind;

use super::{Command, Job};

/// Sorted by offset.
#[derive(Debug)]
pub(super) struct Writes {
    /// By first byte.
    waiting: BTreeMap<u64, Command>,
    bytes: u64,
    most: u64,
}

impl Writes {
    /// A cache of `most` bytes; 0 is none.
    pub(super) fn new(most: u64) -> Self {
        Writes { waiting: BTreeMap::new(), bytes: 0, most }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Whether the cache is enabled.
    #[inline]
    pub(super) fn is_on(&self) -> bool {
        self.most > 0
    }

    /// Whether it can hold a write of this length at all.
    pub(super) fn takes(&self, length: u32) -> bool {
        u64::from(length) <= self.most
    }

    pub(super) fn has_room(&self, length: u32) -> bool {
        self.bytes + u64::from(length) <= self.most
    }

    /// Whether it serves a command without the medium.
    #[inline]
    pub(super) fn at_once(&self, job: &Job) -> bool {
        match job.kind {
            Kind::Write => self.has_room(job.length),
            Kind::Read => self.has(job),
            Kind::Flush | Kind::Discard | Kind::WriteZeroes => false,
        }
    }

    /// Whether one of the writes contains all bytes of a read.
    pub(super) fn has(&self, read: &Job) -> bool {
        if self.waiting.is_empty() {
            return false;
        }
        let before = self.waiting.range(..=read.offset).next_back();
        let end = read.offset + u64::from(read.length);
        before.is_some_and(|(start, command)| end <= start + u64::from(command.job.length))
    }

    /// Adds a write; it replaces one at the same offset that is not longer.
    pub(super) fn insert(&mut self, command: Command) {
        let known = self.waiting.get(&command.job.offset).map_or(0, |known| known.job.length);
        if command.job.length > known {
            self.bytes += u64::from(command.job.length - known);
            self.waiting.insert(command.job.offset, command);
        }
    }

    /// Removes the write with the position nearest to the arm, which is at `byte`.
    pub(super) fn nearest(&mut self, byte: u64, position: f64) -> Option<Command> {
        let below = self.waiting.range(..byte).next_back().map(|(start, command)| (*start, command.position));
        let above = self.waiting.range(byte..).next().map(|(start, command)| (*start, command.position));
        let (start, _) = match (below, above) {
            (Some(below), Some(above)) if position - below.1 <= above.1 - position => below,
            (_, Some(above)) => above,
            (below, None) => below?,
        };
        let command = self.waiting.remove(&start)?;
        self.bytes -= u64::from(command.job.length);
        Some(command)
    }
}
