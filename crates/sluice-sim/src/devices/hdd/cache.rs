//! Read cache of a drive: segments, one of which grows while the head stays on it.

/// A range of the disk in memory.
#[derive(Debug, Clone, Copy)]
struct Segment {
    start: f64,
    end: f64,
    rate: f64,
}

/// Result of a look-up of a read.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Found {
    All,
    /// The read continues at the end of the growing segment: `missing` bytes will follow at this rate.
    Start {
        missing: u64,
        rate: f64,
    },
    Nothing,
}

/// Changes caused by a new segment.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moved {
    /// The range that does not grow any more.
    pub(super) stays: Option<(f64, f64)>,
    /// Whether a segment was evicted.
    pub(super) gone: bool,
}

/// Segments, the most recent first.
#[derive(Debug)]
pub(super) struct Cache {
    segments: Vec<Segment>,
    most: usize,
    bytes: f64,
    /// Since when the first segment grows.
    growing: Option<f64>,
    /// End of the requested part: the drive reads ahead by the size of a segment, and evicts the bytes before it.
    asked: f64,
}

impl Cache {
    pub(super) fn new(segments: u32, bytes: u64) -> Self {
        Cache { segments: Vec::new(), most: segments as usize, bytes: bytes as f64, growing: None, asked: 0.0 }
    }

    /// Extends the growing segment to now.
    pub(super) fn read_on(&mut self, now: f64) {
        if let (Some(since), Some(segment)) = (&mut self.growing, self.segments.first_mut()) {
            let most = segment.end.max(self.asked + self.bytes);
            segment.end = (segment.end + segment.rate * (now - *since).max(0.0)).min(most);
            segment.start = segment.start.max(segment.end - self.bytes);
            *since = now;
        }
    }

    /// Whether one segment contains the whole range.
    pub(super) fn has(&self, offset: u64, length: u64) -> bool {
        let (start, end) = (offset as f64, (offset + length) as f64);
        // Usually none does, and testing all without a branch is faster.
        let of_one = |segment: &Segment| (segment.start <= start) & (end <= segment.end);
        self.segments.iter().fold(false, |has, segment| has | of_one(segment))
    }

    pub(super) fn find(&self, offset: u64, length: u64) -> Found {
        if self.has(offset, length) {
            return Found::All;
        }
        let (begins, (start, end)) = (offset as f64, self.growing());
        match self.segments.first() {
            Some(segment) if start <= begins && begins <= end => {
                Found::Start { missing: ((offset + length) as f64 - end) as u64, rate: segment.rate }
            }
            _ => Found::Nothing,
        }
    }

    /// A read that a segment contains; the drive reads ahead of it in the growing one.
    pub(super) fn hit(&mut self, offset: u64, length: u64) {
        let (start, end) = self.growing();
        if start <= offset as f64 && (offset + length) as f64 <= end {
            self.asked = self.asked.max((offset + length) as f64);
        }
    }

    /// Extends the first segment to the end of this read, which completes at `until`.
    pub(super) fn extend(&mut self, offset: u64, length: u64, until: f64) {
        if let Some(segment) = self.segments.first_mut() {
            segment.end = (offset + length) as f64;
            segment.start = segment.start.max(segment.end - self.bytes);
            (self.growing, self.asked) = (Some(until), segment.end);
        }
    }

    /// Range of the growing segment; empty if none grows.
    #[inline]
    pub(super) fn growing(&self) -> (f64, f64) {
        let grows = self.growing.and_then(|_| self.segments.first());
        grows.map_or((0.0, -1.0), |segment| (segment.start, segment.end))
    }

    /// Starts a segment with a read that completes at `until`, after which the head reads ahead. Returns the range of
    /// the segment that grew before, and whether one was evicted.
    pub(super) fn begin(&mut self, offset: u64, length: u64, rate: f64, until: f64) -> Moved {
        if self.most == 0 {
            return Moved { stays: None, gone: false };
        }
        let stays = self.segments.first().map(|segment| (segment.start, segment.end));
        let gone = self.segments.len() == self.most;
        self.segments.truncate(self.most - 1);
        let end = (offset + length) as f64;
        self.segments.insert(0, Segment { start: (offset as f64).max(end - self.bytes), end, rate });
        (self.growing, self.asked) = (Some(until), end);
        Moved { stays, gone }
    }

    /// The head leaves. Returns the range of the segment that grew until then.
    pub(super) fn stop(&mut self) -> Moved {
        let grew = self.growing.take().and_then(|_| self.segments.first());
        Moved { stays: grew.map(|segment| (segment.start, segment.end)), gone: false }
    }

    /// Invalidates these bytes; returns whether the cache had any of them.
    pub(super) fn forget(&mut self, offset: u64, length: u64) -> bool {
        let (start, end, before) = (offset as f64, (offset + length) as f64, self.segments.len());
        let others = |segment: &Segment| segment.end <= start || end <= segment.start;
        if !self.segments.first().is_some_and(others) {
            self.growing = None;
        }
        self.segments.retain(others);
        self.segments.len() < before
    }
}
