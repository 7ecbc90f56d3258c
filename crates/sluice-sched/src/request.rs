//! A request as the scheduler sees it: `Copy`, without buffers, 56 bytes.

use crate::cost::Cost;
use crate::time::Instant;

/// Arrival sequence number at one gate: unique and increasing. Ties are broken by it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash, Default)]
pub struct RequestId(pub u64);

/// Number of a VM at this gate. Reused after the VM was removed and its last request completed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
// rule: gate.owner
pub struct OwnerId(pub u32);

impl OwnerId {
    /// Index into a table of owners.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Number of a volume of an owner (the inner level), assigned by the gate.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct VolumeId(pub u16);

/// Kind of operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Kind {
    Read,
    Write,
    /// Makes writes durable that completed before the flush arrived. Covers no queued write and orders nothing.
    Flush,
    /// Declares the contents of a range as no longer needed.
    Discard,
    /// Makes a range read as zeroes.
    WriteZeroes,
}

/// Class of requests that a limit of reads or of writes counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u8)]
pub enum Direction {
    Read,
    /// Everything that is no read. A flush is among them: it is what a VM waits for after it wrote.
    Write,
}

impl Direction {
    pub const ALL: [Direction; 2] = [Direction::Read, Direction::Write];

    #[must_use]
    pub const fn other(self) -> Direction {
        match self {
            Direction::Read => Direction::Write,
            Direction::Write => Direction::Read,
        }
    }
}

impl Kind {
    /// The limit that counts it, of reads or of writes.
    #[must_use]
    pub const fn direction(self) -> Direction {
        match self {
            Kind::Read => Direction::Read,
            Kind::Write | Kind::Flush | Kind::Discard | Kind::WriteZeroes => Direction::Write,
        }
    }

    /// Every kind, in the order of its numbers.
    pub const ALL: [Kind; 5] = [Kind::Read, Kind::Write, Kind::Flush, Kind::Discard, Kind::WriteZeroes];

    /// Name in output.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Read => "read",
            Kind::Write => "write",
            Kind::Flush => "flush",
            Kind::Discard => "discard",
            Kind::WriteZeroes => "write_zeroes",
        }
    }
}

/// Properties of a request in addition to its kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub struct Flags(u8);

impl Flags {
    /// No flag.
    pub const NONE: Flags = Flags(0);
    /// A client waits for the request: set for every read, and for writes that are flagged so.
    pub const SYNC: Flags = Flags(1);
    /// Work that may be delayed in favour of all other work.
    pub const BACKGROUND: Flags = Flags(2);
    /// A piece of a request that the gate has split; set by the gate only.
    pub const PIECE: Flags = Flags(4);
    /// `rho` and `delta` come from a dmClock client. Without this flag the request reports no other server.
    pub const TRACKED: Flags = Flags(8);
    /// Represents one or more requests, and the gate may merge further ones into it; set by the gate only.
    pub const MERGED: Flags = Flags(16);
    /// Dispatched by a scheduler that has been replaced; set by the gate only.
    pub const PREVIOUS_SCHEDULER: Flags = Flags(32);
    /// A write that is durable when it completes. Schedulers ignore the flag, but the gate does not merge such a write
    /// with others.
    pub const FORCED: Flags = Flags(64);

    /// Whether all flags of `other` are set.
    #[must_use]
    pub const fn contains(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }

    /// Union of both.
    #[must_use]
    pub const fn with(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }

    /// Flags that are not in `other`.
    #[must_use]
    pub const fn without(self, other: Flags) -> Flags {
        Flags(self.0 & !other.0)
    }
}

/// Phase of mClock in which a request was dispatched.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
#[repr(u8)]
pub enum Phase {
    /// Not dispatched yet, or the scheduler has no phases.
    #[default]
    None,
    /// To meet a reservation: the constraint-based phase of \[mclock\] 3.
    Reservation,
    /// As a share of the spare capacity: the weight-based phase of \[mclock\] 3.
    Weight,
}

/// Main reason for the time between arrival and dispatch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
#[repr(u8)]
pub enum Wait {
    /// None: dispatched in the iteration in which it arrived.
    #[default]
    None,
    /// The limit of its owner or volume.
    OwnLimit,
    /// Shares: its owner had used up its share for the moment.
    Share,
    /// The device: no slot was free.
    Device,
    /// A locality batch of another owner.
    Batch,
    /// The scheduler left a slot free because it expected a better request: anticipation, idle windows.
    Anticipation,
}

impl Wait {
    /// Every reason, in the order of its numbers.
    pub const ALL: [Wait; 6] = [Wait::None, Wait::OwnLimit, Wait::Share, Wait::Device, Wait::Batch, Wait::Anticipation];

    /// Name in output.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Wait::None => "nothing",
            Wait::OwnLimit => "own_limit",
            Wait::Share => "share",
            Wait::Device => "device",
            Wait::Batch => "batch",
            Wait::Anticipation => "anticipation",
        }
    }
}

/// One request as a scheduler holds it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// Arrival sequence number.
    pub id: RequestId,
    /// Time of arrival.
    pub arrival: Instant,
    /// Offset on the device in bytes; for a file its physical offset, as far as it is known.
    pub offset: u64,
    /// Length in bytes; 0 for a flush.
    pub length: u32,
    /// Cost in normalised requests.
    pub cost: Cost,
    pub owner: OwnerId,
    /// Handle of the caller, for example of its buffers. The scheduler never reads it.
    pub token: u32,
    /// \[mclock\] 3.2: the owner's requests that other servers served for its reservation since its previous request
    /// here.
    pub rho: u32,
    /// \[mclock\] 3.2: the owner's requests that other servers served since its previous request here.
    pub delta: u32,
    pub volume: VolumeId,
    pub kind: Kind,
    pub flags: Flags,
    /// Phase of the dispatch; set at dispatch.
    pub phase: Phase,
    /// Reason for waiting; set at dispatch.
    pub wait: Wait,
}

impl Request {
    /// First byte after the request.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.offset.saturating_add(self.length as u64)
    }
}

/// Notification to the scheduler that a dispatched request has completed at the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// The request as it was dispatched.
    pub request: Request,
    /// When it was dispatched.
    pub dispatched: Instant,
    /// Whether it succeeded.
    pub ok: bool,
}

const _: () = assert!(size_of::<Request>() <= 56, "a queued request with its link must fit into 64 bytes");
