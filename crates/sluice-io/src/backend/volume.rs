//! A volume of a device thread.

use std::sync::Arc;

use sluice_sched::gate::GateStats;
use sluice_sched::{Kind, Policy, VolumeId};

use crate::backend::client_faults::ClientFaults;
use crate::backend::occupancy::Outstanding;
use crate::backend::request::{Body, IoRequest};
use crate::slab::VmId;
use crate::store::{StoreInfo, StoreRef, StoreSpec, Zeroing};
use crate::volume::{VolumeGeneration, VolumeInfo, VolumeSpec};

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
    /// Location of its data.
    pub(crate) store: StoreRef,
    /// Clients of all frontends (NBD connections, VMMs), until nothing of them refers to the volume.
    pub(crate) clients: u32,
    sessions: Sessions,
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
    /// Its statistics in the last snapshot, if they were not those of its VM.
    pub(crate) copied_stats: Option<Arc<GateStats>>,
}

/// Numbers of clients.
#[derive(Default)]
struct Sessions {
    /// Those that are connected.
    open: u32,
    /// Those that have ended their session in order, since the volume was opened.
    left: u64,
}

/// Names of a volume at the gate and in the tables.
pub(crate) struct Names {
    pub(crate) vm: VmId,
    pub(crate) vm_name: String,
    pub(crate) id: VolumeId,
}

impl Volume {
    pub(crate) fn new(names: Names, spec: (String, VolumeGeneration, Policy, VolumeInfo), store: StoreRef) -> Self {
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
            sessions: Sessions::default(),
            outstanding: Outstanding::default(),
            in_flight: 0,
            abandoned_in_flight: 0,
            leaving: false,
            refuses_clients: false,
            faults: ClientFaults::default(),
            copied_stats: None,
        }
    }

    /// Returns the number of clients that are connected.
    pub(crate) fn open_clients(&self) -> u32 {
        self.sessions.open
    }

    /// Counts a client. Returns `false` if its clients are refused.
    pub(crate) fn open_client(&mut self) -> bool {
        self.sessions.open += u32::from(!self.refuses_clients);
        !self.refuses_clients
    }

    /// Counts a client that has disconnected. `in_order`: it has ended its session itself.
    pub(crate) fn close_client(&mut self, in_order: bool) {
        self.sessions.open -= 1;
        self.sessions.left += u64::from(in_order);
    }

    /// Returns the number of clients that have ended their session in order.
    pub(crate) fn left_clients(&self) -> u64 {
        self.sessions.left
    }

    pub(crate) fn refuses_clients(&self) -> bool {
        self.refuses_clients
    }

    /// Refuses new clients, unless it has some. Returns whether it has none.
    pub(crate) fn refuse_if_unused(&mut self) -> bool {
        self.refuses_clients |= self.sessions.open == 0;
        self.sessions.open == 0
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

    /// Returns what is needed to add it again. `store`: what is needed to open its store again.
    pub(crate) fn describe(&self, store: StoreSpec) -> VolumeSpec {
        let (name, info) = (self.name.clone(), self.info.clone());
        VolumeSpec { name, generation: self.generation, policy: self.policy, store, info }
    }

    /// Refuses a request that cannot be carried out: one past the end of the volume, which a frontend should have
    /// refused, or zeroing that is only requested if it is fast.
    pub(crate) fn refuse_impossible(&self, store: &StoreInfo, io: &mut IoRequest) {
        let Some(kind) = io.body.kind() else { return };
        let has_range = kind != Kind::Flush;
        let changes = matches!(kind, Kind::Write | Kind::Discard | Kind::WriteZeroes);
        let end = io.offset.saturating_add(u64::from(io.length));
        if has_range && end > self.info.size_bytes || changes && self.info.read_only {
            io.refuse(libc::EIO);
        } else if let Body::Zero { no_hole, fast: true } = io.body
            && store.zeroing(no_hole) != Zeroing::Cheap
        {
            io.refuse(libc::EOPNOTSUPP);
        }
    }
}
