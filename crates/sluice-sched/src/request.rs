//! What a VM asks of a device, as the scheduler sees it: no buffers, `Copy`, 56 bytes.

use crate::cost::Cost;
use crate::time::Instant;

/// The arrival sequence number at one gate: unique and increasing; ties are broken by it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash, Default)]
pub struct RequestId(pub u64);

/// Who is scheduled: a VM, as this gate knows it. Reused after the VM has gone and its last request completed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
// rule: gate.owner
pub struct OwnerId(pub u32);

impl OwnerId {
    /// The index into a table of owners.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A volume of an owner: the inner level. Numbered by the gate.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct VolumeId(pub u16);

/// What is to be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Kind {
    /// Read bytes.
    Read,
    /// Write bytes.
    Write,
    /// Make what was written and completed before durable. Covers no queued write and fences nothing.
    Flush,
    /// Give up the content of a range.
    Discard,
    /// Make a range read as zeroes.
    WriteZeroes,
}

impl Kind {
    /// Every kind, in the order of their numbers.
    pub const ALL: [Kind; 5] = [Kind::Read, Kind::Write, Kind::Flush, Kind::Discard, Kind::WriteZeroes];

    /// The word used in output.
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

/// Properties of a request beside its kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub struct Flags(u8);

impl Flags {
    /// None.
    pub const NONE: Flags = Flags(0);
    /// Somebody waits for it: every read, and a write that is flagged so.
    pub const SYNC: Flags = Flags(1);
    /// Work that may wait for everybody else.
    pub const BACKGROUND: Flags = Flags(2);
    /// A piece of a request that the gate split; set by the gate alone.
    pub const PIECE: Flags = Flags(4);
    /// `rho` and `delta` were counted by a dmClock client; without it the request knows of no other server.
    pub const TRACKED: Flags = Flags(8);
    /// Stands for one or several requests that the gate may merge further; set by the gate alone.
    pub const MERGED: Flags = Flags(16);
    /// Was dispatched by a scheduler that is gone; set by the gate alone.
    pub const PREVIOUS_SCHEDULER: Flags = Flags(32);
    /// A write that is durable when it completes; no scheduler cares, but it is not merged with one that is not.
    pub const FORCED: Flags = Flags(64);

    /// Whether all of `other` are set.
    #[must_use]
    pub const fn contains(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }

    /// Both.
    #[must_use]
    pub const fn with(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }

    /// Those that are not in `other`.
    #[must_use]
    pub const fn without(self, other: Flags) -> Flags {
        Flags(self.0 & !other.0)
    }
}

/// By which right a request was dispatched.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
#[repr(u8)]
pub enum Phase {
    /// The scheduler knows no phases, or it has not been dispatched yet.
    #[default]
    None,
    /// To meet a reservation (the constraint-based phase of \[mclock\] 3).
    Reservation,
    /// As a part of what was left over (the weight-based phase of \[mclock\] 3).
    Weight,
}

/// What a request waited for, mainly, between arrival and dispatch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
#[repr(u8)]
pub enum Wait {
    /// It was dispatched in the turn in which it came.
    #[default]
    None,
    /// Its owner's (or volume's) own limit.
    OwnLimit,
    /// Others' turn: its owner had used up its share for now.
    Share,
    /// A slot of the device.
    Device,
    /// The batch of another owner.
    Batch,
}

/// One request in a scheduler's hands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// Arrival sequence number.
    pub id: RequestId,
    /// When it came.
    pub arrival: Instant,
    /// Where on the device it begins, in bytes; for a file its physical address as far as it is known.
    pub offset: u64,
    /// Length in bytes; 0 for a flush.
    pub length: u32,
    /// In normalised requests.
    pub cost: Cost,
    /// Whose it is.
    pub owner: OwnerId,
    /// The caller's handle (of buffers and the like); the scheduler never reads it.
    pub token: u32,
    /// \[mclock\] 3.2: requests of the owner served to meet reservations at other servers since its previous request here.
    pub rho: u32,
    /// \[mclock\] 3.2: requests of the owner served at other servers since its previous request here.
    pub delta: u32,
    /// The volume of the owner.
    pub volume: VolumeId,
    /// What is to be done.
    pub kind: Kind,
    /// Further properties.
    pub flags: Flags,
    /// Set at dispatch: by which right.
    pub phase: Phase,
    /// Set at dispatch: what it waited for.
    pub wait: Wait,
}

impl Request {
    /// The first byte behind it.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.offset.saturating_add(self.length as u64)
    }
}

/// What a scheduler is told when a dispatched request has left the device.
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
