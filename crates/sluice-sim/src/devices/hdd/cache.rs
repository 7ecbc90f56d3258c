//! The read cache of a drive: segments, one of which grows while the head stays where it is.

/// A stretch of the disk in memory.
#[derive(Debug, Clone, Copy)]
struct Segment {
    start: f64,
    end: f64,
    rate: f64,
}

/// What the cache has of a read.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Found {
    All,
    /// The read goes on where the segment that grows ends: so many bytes are still to come, at this rate.
    Start {
        missing: u64,
        rate: f64,
    },
    Nothing,
}

/// What a new segment has changed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moved {
    /// The stretch that does not grow any more.
    pub(super) stays: Option<(f64, f64)>,
    /// A segment was given up.
    pub(super) gone: bool,
}

/// Segments, the latest first.
#[derive(Debug)]
pub(super) struct Cache {
    segments: Vec<Segment>,
    most: usize,
    bytes: f64,
    /// Since when the first segment grows.
    growing: Option<f64>,
    /// How far of it has been asked for: the drive reads on for as many bytes as a segment has, and what lies before makes room.
    asked: f64,
}

impl Cache {
    pub(super) fn new(segments: u32, bytes: u64) -> Self {
        Cache { segments: Vec::new(), most: segments as usize, bytes: bytes as f64, growing: None, asked: 0.0 }
    }

    /// The drive has read on until now.
    pub(super) fn read_on(&mut self, now: f64) {
        if let (Some(since), Some(segment)) = (&mut self.growing, self.segments.first_mut()) {
            let most = segment.end.max(self.asked + self.bytes);
            segment.end = (segment.end + segment.rate * (now - *since).max(0.0)).min(most);
            segment.start = segment.start.max(segment.end - self.bytes);
            *since = now;
        }
    }

    /// Whether one segment has all of it.
    pub(super) fn has(&self, offset: u64, length: u64) -> bool {
        let (start, end) = (offset as f64, (offset + length) as f64);
        // Most often none has, and to ask all of them without a branch is quicker.
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

    /// A read that one segment has; of the one that grows the drive reads on behind it.
    pub(super) fn hit(&mut self, offset: u64, length: u64) {
        let (start, end) = self.growing();
        if start <= offset as f64 && (offset + length) as f64 <= end {
            self.asked = self.asked.max((offset + length) as f64);
        }
    }

    /// The first segment now reaches to the end of this read, which is over at `until`.
    pub(super) fn extend(&mut self, offset: u64, length: u64, until: f64) {
        if let Some(segment) = self.segments.first_mut() {
            segment.end = (offset + length) as f64;
            segment.start = segment.start.max(segment.end - self.bytes);
            (self.growing, self.asked) = (Some(until), segment.end);
        }
    }

    /// From where to where the segment goes that grows; a stretch without bytes if none does.
    #[inline]
    pub(super) fn growing(&self) -> (f64, f64) {
        let grows = self.growing.and_then(|_| self.segments.first());
        grows.map_or((0.0, -1.0), |segment| (segment.start, segment.end))
    }

    /// A read from the disk, over at `until`; the head reads on from there. The stretch of the segment that grew before, and
    /// whether one was given up for it.
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

    /// The head is somewhere else now. The stretch of the segment that grew until then.
    pub(super) fn stop(&mut self) -> Moved {
        let grew = self.growing.take().and_then(|_| self.segments.first());
        Moved { stays: grew.map(|segment| (segment.start, segment.end)), gone: false }
    }

    /// These bytes are others now: whether it had any of them.
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
