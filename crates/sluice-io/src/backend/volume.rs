//! A volume of a device thread.

use std::sync::Arc;
use std::time::Duration;

use sluice_sched::gate::GateStats;
use sluice_sched::{Instant, Kind, Policy, VolumeId};

use crate::backend::client_faults::ClientFaults;
use crate::backend::occupancy::Outstanding;
use crate::backend::request::{Body, IoRequest};
use crate::backend::sync::{FileKey, Files};
use crate::slab::{Id as _, VmId, VolumeKey};
use crate::source::faults::LOOK_EVERY;
use crate::source::{Capabilities, ExtentMap, FaultReport, Loss, Source};
use crate::volume::{Store, VolumeGeneration, VolumeInfo, VolumeSpec};

/// Minimum interval between two updates of the extent map of a volume whose blocks have moved.
const REMAP_EVERY: Duration = Duration::from_secs(5);

/// The next operation of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    Transfer,
    PunchHole,
    ZeroRange,
    WriteZeroes,
    Discard,
    Nothing,
    Sync,
}

/// A volume of the device thread.
pub(crate) struct Volume {
    pub(crate) name: String,
    pub(crate) generation: VolumeGeneration,
    pub(crate) vm: VmId,
    /// The VM's name, for log lines.
    pub(crate) vm_name: String,
    pub(crate) id: VolumeId,
    pub(crate) policy: Policy,
    pub(crate) info: VolumeInfo,
    pub(crate) store: VolumeStore,
    /// Clients of all frontends (NBD connections, VMMs), until nothing of them refers to the volume.
    pub(crate) clients: u32,
    /// Clients that are connected.
    open_clients: u32,
    /// The part of its VM's window that it occupies.
    pub(crate) outstanding: Outstanding,
    /// Submissions at the device.
    pub(crate) in_flight: u32,
    /// Submissions of disconnected clients. New clients wait for them.
    abandoned_in_flight: u32,
    pub(crate) leaving: bool,
    /// Whether new clients are refused, because it is about to be removed.
    refuses_clients: bool,
    pub(crate) faults: ClientFaults,
    pub(crate) mapped: Instant,
    /// Last look at the size of its file.
    looked: Instant,
    /// Its statistics in the last snapshot, if they were not those of its VM.
    pub(crate) copied_stats: Option<Arc<GateStats>>,
}

/// The store of its data, with the open source.
pub(crate) enum VolumeStore {
    Null,
    File { source: Arc<Source>, extents: Option<ExtentMap>, file: FileKey, can: Capabilities },
}

impl VolumeStore {
    pub(crate) fn open(store: Store, files: &mut Files) -> Self {
        match store {
            Store::Null => VolumeStore::Null,
            Store::File { source, extents } => {
                // A loss persists when the thread restarts, and when another volume on the file is opened.
                let file = files.open(source.id());
                if files.is_failed(file) {
                    source.set_loss(Loss::OfFile);
                }
                files.set_failed(file, source.loss() == Loss::OfFile);
                let can = source.capabilities();
                VolumeStore::File { source, extents, file, can }
            }
        }
    }
}

/// Names of a volume at the gate and in the tables.
pub(crate) struct Names {
    pub(crate) vm: VmId,
    pub(crate) vm_name: String,
    pub(crate) id: VolumeId,
}

impl Volume {
    pub(crate) fn new(
        now: Instant,
        names: Names,
        spec: (String, VolumeGeneration, Policy, VolumeInfo),
        store: VolumeStore,
    ) -> Self {
        let (Names { vm, vm_name, id }, (name, generation, policy, info)) = (names, spec);
        Volume {
            name,
            generation,
            vm,
            vm_name,
            id,
            policy,
            info,
            store,
            clients: 0,
            open_clients: 0,
            outstanding: Outstanding::default(),
            in_flight: 0,
            abandoned_in_flight: 0,
            leaving: false,
            refuses_clients: false,
            faults: ClientFaults::default(),
            mapped: now,
            looked: now,
            copied_stats: None,
        }
    }

    /// Returns the number of clients that are connected.
    pub(crate) fn open_clients(&self) -> u32 {
        self.open_clients
    }

    /// Counts a client. Returns `false` if its clients are refused.
    pub(crate) fn open_client(&mut self) -> bool {
        self.open_clients += u32::from(!self.refuses_clients);
        !self.refuses_clients
    }

    pub(crate) fn close_client(&mut self) {
        self.open_clients -= 1;
    }

    pub(crate) fn refuses_clients(&self) -> bool {
        self.refuses_clients
    }

    /// Refuses new clients, unless it has some. Returns whether it has none.
    pub(crate) fn refuse_if_unused(&mut self) -> bool {
        self.refuses_clients |= self.open_clients == 0;
        self.open_clients == 0
    }

    pub(crate) fn accept_clients(&mut self) {
        self.refuses_clients = false;
    }

    /// Counts submissions in flight of a client that has disconnected.
    pub(crate) fn abandon(&mut self, submissions: u32) {
        self.abandoned_in_flight += submissions;
    }

    /// Records that one of them has ended. Returns whether it was the last one.
    pub(crate) fn abandoned_ended(&mut self) -> bool {
        self.abandoned_in_flight -= 1;
        self.abandoned_in_flight == 0
    }

    /// Whether new clients must wait for submissions of disconnected ones.
    pub(crate) fn has_abandoned(&self) -> bool {
        self.abandoned_in_flight > 0
    }

    /// Returns what is needed to add it again.
    pub(crate) fn describe(&self) -> VolumeSpec {
        let store = match &self.store {
            VolumeStore::Null => Store::Null,
            VolumeStore::File { source, extents, .. } => {
                Store::File { source: Arc::clone(source), extents: extents.clone() }
            }
        };
        let (name, info) = (self.name.clone(), self.info.clone());
        VolumeSpec { name, generation: self.generation, policy: self.policy, store, info }
    }

    /// Returns the address of a byte of the volume on the device. Volumes without a known address are far apart.
    pub(crate) fn address(&self, number: VolumeKey, offset: u64) -> u64 {
        let apart = u64::from(number.index()) << 44;
        match &self.store {
            VolumeStore::Null => apart + offset,
            VolumeStore::File { extents: Some(extents), .. } => extents.physical(offset).unwrap_or(apart + offset),
            VolumeStore::File { source, .. } => apart + source.range().offset + offset,
        }
    }

    /// Refuses a request that cannot be carried out: one past the end of the volume, which a frontend should have
    /// refused, or zeroing that is only requested if it is fast.
    pub(crate) fn refuse_impossible(&self, io: &mut IoRequest) {
        let Some(kind) = io.body.kind() else { return };
        let has_range = kind != Kind::Flush;
        let changes = matches!(kind, Kind::Write | Kind::Discard | Kind::WriteZeroes);
        let end = io.offset.saturating_add(u64::from(io.length));
        if has_range && end > self.info.size_bytes || changes && self.info.read_only {
            io.refuse(libc::EIO);
        } else if let Body::Zero { no_hole, fast: true } = io.body
            && self.zeroing(no_hole).1 == Kind::Write
        {
            io.refuse(libc::EOPNOTSUPP);
        }
    }

    /// Looks where its file ends before a submission of this kind, if the last look is too long ago for it; see
    /// [`faults`](crate::source::faults).
    pub(crate) fn look_at_end(&mut self, now: Instant, kind: Kind) {
        let VolumeStore::File { source, .. } = &self.store else { return };
        let is_due = match kind {
            Kind::Read | Kind::Flush => false,
            Kind::Write => now.since(self.looked) >= LOOK_EVERY,
            Kind::Discard | Kind::WriteZeroes => true,
        };
        if is_due && source.has_size_at_hand() {
            self.looked = now;
            // A file system that does not answer fails the request itself.
            let _ = source.look_at_sizes();
        }
    }

    /// Counts a request that has ended at the device, with this error or 0.
    pub(crate) fn count_end(&self, kind: Kind, errno: i32) {
        if let VolumeStore::File { source, .. } = &self.store {
            match errno {
                0 => source.count_success(kind),
                _ => source.count_failure(kind, errno),
            }
        }
    }

    /// Returns the faults of its source.
    pub(crate) fn faults(&self) -> FaultReport {
        match &self.store {
            VolumeStore::Null => FaultReport::default(),
            VolumeStore::File { source, .. } => source.faults(),
        }
    }

    /// Whether it stores nothing.
    pub(crate) fn is_null(&self) -> bool {
        matches!(self.store, VolumeStore::Null)
    }

    /// Whether an operation makes itself durable. Otherwise a sync follows it.
    pub(crate) fn carries_sync(&self, step: Step, io: &IoRequest) -> bool {
        let forces = matches!(&self.store, VolumeStore::File { source, .. } if source.forces_writes());
        let writes = step == Step::WriteZeroes || step == Step::Transfer && matches!(io.body, Body::Write);
        forces && writes && io.forced
    }

    /// Whether its writes go through the host's page cache.
    pub(crate) fn is_buffered(&self) -> bool {
        matches!(&self.store, VolumeStore::File { source, .. } if source.is_buffered())
    }

    /// Records that a write of `length` bytes at `offset` has completed. Returns whether the extent map should be
    /// updated.
    pub(crate) fn wrote(&mut self, now: Instant, offset: u64, length: u32) -> bool {
        let VolumeStore::File { extents: Some(extents), .. } = &mut self.store else { return false };
        extents.note_write(offset, u64::from(length));
        let due = extents.is_stale() && now.since(self.mapped) >= REMAP_EVERY;
        if due {
            self.mapped = now;
        }
        due
    }
}
