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
}

impl Cache {
    pub(super) fn new(segments: u32, bytes: u64) -> Self {
        Cache { segments: Vec::new(), most: segments as usize, bytes: bytes as f64, growing: None }
    }

    /// The drive has read on until now.
    pub(super) fn read_on(&mut self, now: f64) {
        if let (Some(since), Some(segment)) = (&mut self.growing, self.segments.first_mut()) {
            let most = segment.start.max(segment.end - self.bytes) + self.bytes;
            segment.end = (segment.end + segment.rate * (now - *since).max(0.0)).min(most);
            *since = now;
        }
    }

    pub(super) fn has_start(&self, offset: u64) -> bool {
        let offset = offset as f64;
        self.segments.iter().any(|segment| segment.start <= offset && offset <= segment.end)
    }

    pub(super) fn find(&mut self, offset: u64, length: u64) -> Found {
        let (start, end) = (offset as f64, (offset + length) as f64);
        let found = self.segments.iter().position(|segment| segment.start <= start && start <= segment.end);
        let Some(index) = found else { return Found::Nothing };
        let segment = self.segments[index];
        if end <= segment.end {
            return Found::All;
        }
        if index == 0 && self.growing.is_some() {
            return Found::Start { missing: (end - segment.end) as u64, rate: segment.rate };
        }
        Found::Nothing
    }

    /// The first segment now reaches to the end of this read, which is over at `until`.
    pub(super) fn extend(&mut self, offset: u64, length: u64, until: f64) {
        if let Some(segment) = self.segments.first_mut() {
            segment.end = (offset + length) as f64;
            segment.start = segment.start.max(segment.end - self.bytes);
            self.growing = Some(until);
        }
    }

    /// From where to where the latest segment goes; a stretch without bytes if there is none.
    #[inline]
    pub(super) fn growing(&self) -> (f64, f64) {
        self.segments.first().map_or((0.0, -1.0), |segment| (segment.start, segment.end))
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
        self.growing = Some(until);
        Moved { stays, gone }
    }

    /// The head is somewhere else now.
    pub(super) fn stop(&mut self) {
        self.growing = None;
    }

    /// These bytes are others now: whether it had any of them.
    pub(super) fn forget(&mut self, offset: u64, length: u64) -> bool {
        let (start, end, before) = (offset as f64, (offset + length) as f64, self.segments.len());
        self.segments.retain(|segment| segment.end <= start || end <= segment.start);
        self.segments.len() < before
    }
}
