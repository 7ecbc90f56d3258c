//! The interface between a gate and the policy that decides.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::admission::Capacity;
use crate::cost::{Cost, CostModel};
use crate::gate::{GateSettings, RemoteService};
use crate::params::{self, ParamError, ParamTable, Parameter, Value};
use crate::policy::{Field, Policy, PolicyError};
use crate::request::{Completion, Kind, OwnerId, Request, VolumeId};
use crate::time::Instant;
use crate::units::{Bytes, Percent};

/// What happens next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
// rule: gate.four-answers
pub enum Decision {
    /// This request goes to the device now.
    Dispatch(Request),
    /// Requests are queued, none may go before this instant, which lies in the future.
    WaitUntil(Instant),
    /// Requests are queued, none may go before something in flight completes.
    WaitCompletion,
    /// Nothing is queued.
    Idle,
}

/// A change of who is scheduled and how.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Change {
    /// A new owner, without volumes yet.
    AddOwner {
        /// Chosen by the gate; not in use.
        owner: OwnerId,
        /// Checked by the gate.
        policy: Policy,
    },
    /// Another policy for an owner; holds from now on, for what is queued too.
    SetOwner {
        /// Known.
        owner: OwnerId,
        /// Checked by the gate.
        policy: Policy,
    },
    /// An owner leaves; it has nothing queued (the gate cancelled it).
    RemoveOwner {
        /// Known.
        owner: OwnerId,
    },
    /// A new volume of an owner.
    AddVolume {
        /// Known.
        owner: OwnerId,
        /// Chosen by the gate; not in use.
        volume: VolumeId,
        /// The inner level's policy; `Policy::default()` where the host file says nothing.
        policy: Policy,
    },
    /// Another inner policy.
    SetVolume {
        /// Known.
        owner: OwnerId,
        /// Known.
        volume: VolumeId,
        /// Checked by the gate.
        policy: Policy,
    },
    /// A volume leaves; it has nothing queued.
    RemoveVolume {
        /// Known.
        owner: OwnerId,
        /// Known.
        volume: VolumeId,
    },
    /// The device takes another number of requests at once.
    Depth(u32),
}

/// A change that cannot be made; nothing has changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// The policy contradicts itself.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The inner reservations promise more than the VM has.
    #[error(
        "Volumes of one VM reserve {volumes} together, but the VM only {vm}; raise the VM's reservation or lower \
         theirs"
    )]
    VolumesOverReserve {
        /// As shown.
        volumes: String,
        /// As shown.
        vm: String,
    },
    /// The scheduler counts bytes, and this is a rate of requests.
    #[error(
        "{scheduler} supports a {} only in bytes per second, but this one is {rate}; state it in bytes per second",
        .field.name()
    )]
    CountsBytes {
        /// Its name.
        scheduler: &'static str,
        /// `reservation` or `limit`.
        field: Field,
        /// As shown.
        rate: String,
    },
    /// No such owner.
    #[error("No owner {} at this gate", .0.0)]
    UnknownOwner(OwnerId),
    /// No such volume.
    #[error("No volume {} of owner {} at this gate", .1.0, .0.0)]
    UnknownVolume(OwnerId, VolumeId),
    /// A stated bound is reached.
    #[error("Gate is full: {0}")]
    Full(&'static str),
}

impl Change {
    /// The policy that it states.
    #[must_use]
    pub const fn policy(&self) -> Option<&Policy> {
        match self {
            Change::AddOwner { policy, .. }
            | Change::SetOwner { policy, .. }
            | Change::AddVolume { policy, .. }
            | Change::SetVolume { policy, .. } => Some(policy),
            Change::RemoveOwner { .. } | Change::RemoveVolume { .. } | Change::Depth(_) => None,
        }
    }
}

/// Whose requests are meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// All of an owner.
    Owner(OwnerId),
    /// Those of one volume.
    Volume(OwnerId, VolumeId),
}

impl Scope {
    /// Whether `request` is meant.
    #[must_use]
    pub fn contains(&self, request: &Request) -> bool {
        match *self {
            Scope::Owner(owner) => request.owner == owner,
            Scope::Volume(owner, volume) => request.owner == owner && request.volume == volume,
        }
    }

    /// The owner.
    #[must_use]
    pub fn owner(&self) -> OwnerId {
        match *self {
            Scope::Owner(owner) | Scope::Volume(owner, _) => owner,
        }
    }
}

/// A scheduler's state, for people.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct State {
    /// Requests that wait.
    pub queued: u64,
    /// Requests dispatched and not completed.
    pub in_flight: u64,
    /// Virtual time, where there is one.
    pub virtual_time: Option<u64>,
    /// By owner number.
    pub owners: BTreeMap<u32, OwnerState>,
}

/// One owner's part of it.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct OwnerState {
    /// Requests that wait.
    pub queued: u64,
    /// When its reservation makes its next request due, in nanoseconds of the caller's clock.
    pub reservation_due_ns: Option<u64>,
    /// When its limit lets its next request pass, in nanoseconds of the caller's clock.
    pub limit_passes_ns: Option<u64>,
    /// Its place among those that share the rest, in virtual time.
    pub share_tag: Option<u64>,
}

/// The policy of one gate: a state machine without clock, threads or I/O.
///
/// The gate calls `dispatch` after every other call while the device has a free slot, until it gets no request.
/// `now` never decreases. What the gate promises: owners and volumes are added before they are used, a request is
/// completed once and only after it was dispatched.
pub trait Scheduler: Send {
    /// A request arrives.
    fn insert(&mut self, now: Instant, request: Request);

    /// The client of a VM with requests on several servers reports what the VM got at the others since its previous
    /// request to this one. Called before the request is inserted, so a scheduler need not keep it with the request.
    /// The default does nothing: most schedulers know of one server only. \[mclock\] 3.2.
    fn add_remote_service(&mut self, now: Instant, owner: OwnerId, volume: VolumeId, remote: &RemoteService) {
        let _ = (now, owner, volume, remote);
    }

    /// A queued request would become this one by a merge with a later one: same number, larger extent and cost. It carries
    /// others ([`Flags::CARRIER`](crate::Flags::CARRIER)), and its token, its number among the carriers of the gate, finds it
    /// in constant time. It keeps its place in line and its expiry, which is the earlier of the two. `false` if it cannot, because it is not queued
    /// any more or not merged so here; then nothing has changed.
    fn grow(&mut self, now: Instant, grown: Request) -> bool;

    /// A slot is free: which request takes it?
    fn dispatch(&mut self, now: Instant) -> Decision;

    /// A dispatched request has left the device.
    fn complete(&mut self, now: Instant, completion: &Completion);

    /// Owners, volumes or policies change; from now on, for what is queued too.
    fn configure(&mut self, now: Instant, change: Change) -> Result<(), ChangeError>;

    /// Queued requests leave without being served; they are appended to `removed` in arrival order per volume.
    fn cancel(&mut self, now: Instant, scope: Scope, removed: &mut Vec<Request>);

    /// What there is to see.
    fn inspect(&self, now: Instant) -> State;
}

/// What a scheduler may know of its device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    /// How many requests it takes at once.
    pub depth: u32,
    /// Whether neighbouring requests are much cheaper than distant ones.
    pub rotational: bool,
    /// What requests cost.
    pub cost: CostModel,
    /// The largest read or write that goes to the device as one.
    pub piece_max: Bytes,
    /// Bytes that take the device as long as a request of cost 1: its bandwidth divided by its capacity, or the
    /// reference size where one of them is not stated.
    pub request_bytes: Bytes,
}

impl Default for Facts {
    fn default() -> Self {
        let settings = GateSettings::default();
        Facts {
            depth: settings.depth,
            rotational: false,
            cost: settings.cost,
            piece_max: settings.transfer_max,
            request_bytes: settings.cost.reference_size(),
        }
    }
}

impl Facts {
    /// What the scheduler of a gate with these settings may know, in front of a device of this capacity.
    #[must_use]
    pub fn of(settings: &GateSettings, rotational: bool, capacity: &Capacity) -> Self {
        let request_bytes = capacity.request_bytes().unwrap_or(settings.cost.reference_size());
        let GateSettings { depth, cost, transfer_max: piece_max, .. } = *settings;
        Facts { depth, rotational, cost, piece_max, request_bytes }
    }

    /// What the largest read or write that goes to the device as one costs.
    #[must_use]
    pub fn piece_cost(&self) -> Cost {
        self.cost.cost(Kind::Write, u32::try_from(self.piece_max.0).unwrap_or(u32::MAX))
    }
}

/// What kind of device a scheduler is made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Medium {
    /// Disks: requests read and write places.
    Disk,
    /// Network interfaces: requests are packets that VMs send.
    Network,
}

impl Medium {
    /// The word used in output.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Medium::Disk => "disk",
            Medium::Network => "network",
        }
    }

    /// Whether rates may be stated in requests per second. On a network interface a request is a frame of any size, so
    /// rates are bytes per second there.
    #[must_use]
    pub const fn counts_requests(self) -> bool {
        matches!(self, Medium::Disk)
    }

    /// What it is for, in a sentence.
    #[must_use]
    pub const fn about(self) -> &'static str {
        match self {
            Medium::Disk => "It is for disks.",
            Medium::Network => "It is for network interfaces; a disk device rejects it.",
        }
    }
}

/// Makes a scheduler for a device, with parameters.
pub type Build = fn(&Facts, &ParamTable) -> Result<Box<dyn Scheduler>, ParamError>;

/// Everything that is known of a scheduler beside its code: one per scheduler, in the scheduler's own file.
pub struct Descriptor {
    /// Its name in the host file.
    pub name: &'static str,
    /// One line.
    pub summary: &'static str,
    /// How it works, in a paragraph.
    pub idea: &'static str,
    /// When to choose it.
    pub when: &'static str,
    /// Where it comes from.
    pub source: &'static str,
    /// Which policy fields it enforces, and how it maps each.
    pub enforces: &'static [(Field, &'static str)],
    /// Whether a volume may have a policy of its own inside its VM's; where not, a VM's volumes share its queue.
    pub volumes: bool,
    /// The parameter, and its words, with which volumes may have one, if not with all.
    pub volumes_depend: Option<(&'static str, &'static [&'static str])>,
    /// Fields of `enforces` that it enforces only while a parameter is one of these words: field, parameter, words.
    pub depends: &'static [(Field, &'static str, &'static [&'static str])],
    /// What it is for.
    pub medium: Medium,
    /// Whether neighbouring requests are merged before it, unless the device says otherwise.
    pub merging: bool,
    /// The part of the device that is divided by weight at least while a VM without a reservation waits, with these parameters;
    /// admission leaves it free. Zero for schedulers that keep none.
    pub weight_floor: fn(&ParamTable) -> Percent,
    /// Its parameters.
    pub parameters: &'static [Parameter],
    /// Makes one of parameters within their ranges; [`Descriptor::build`] checks them before.
    pub build: Build,
}

impl Descriptor {
    /// Makes a scheduler for a device.
    ///
    /// # Errors
    /// If a parameter does not exist, cannot have its value, or has one outside its range.
    pub fn build(&self, facts: &Facts, table: &ParamTable) -> Result<Box<dyn Scheduler>, ParamError> {
        params::check(self.parameters, table)?;
        (self.build)(facts, table)
    }

    /// Whether it enforces `field`.
    #[must_use]
    pub fn enforces(&self, field: Field) -> bool {
        self.enforces.iter().any(|(enforced, _)| *enforced == field)
    }

    /// Refuses a rate in a unit that is not counted: what a scheduler enforces it enforces in every unit that this accepts.
    ///
    /// # Errors
    /// If the policy states a reservation or a limit in requests, and this scheduler counts bytes alone.
    // rule: gate.units
    pub fn check_units(&self, policy: &Policy) -> Result<(), ChangeError> {
        let rates = [(Field::Reservation, policy.reservation.iops), (Field::Limit, policy.limit.iops)];
        let stated = rates.into_iter().find_map(|(field, rate)| Some((field, rate?)));
        match stated {
            Some((field, rate)) if !self.medium.counts_requests() => {
                Err(ChangeError::CountsBytes { scheduler: self.name, field, rate: rate.to_string() })
            }
            _ => Ok(()),
        }
    }

    /// What becomes of the volumes of a VM, in a sentence.
    #[must_use]
    pub fn about_volumes(&self) -> String {
        match (self.volumes, self.volumes_depend) {
            (true, None) => "A volume may have its own policy within that of its VM.".to_owned(),
            (true, Some((name, words))) => format!(
                "With {name} \"{}\" a volume may have its own policy within that of its VM. Otherwise the volumes of a \
                 VM share its queue, and a volume with its own policy is rejected.",
                words.join("\" or \"")
            ),
            (false, _) => "The volumes of a VM share its queue; a volume with its own policy is rejected.".to_owned(),
        }
    }

    /// Whether it enforces `field` of a volume inside a VM.
    #[must_use]
    pub fn enforces_inside(&self, field: Field) -> bool {
        self.volumes && self.enforces(field)
    }

    /// Whether it enforces `field` of a volume inside a VM with these parameters.
    #[must_use]
    pub fn enforces_inside_with(&self, field: Field, params: &ParamTable) -> bool {
        let given = self.volumes_depend.is_none_or(|(name, words)| words.contains(&self.word(name, params)));
        given && self.enforces_inside(field) && self.enforces_with(field, params)
    }

    /// Whether it enforces `field` with these parameters.
    #[must_use]
    pub fn enforces_with(&self, field: Field, params: &ParamTable) -> bool {
        let mut needs = self.depends.iter().filter(|(of, _, _)| *of == field);
        self.enforces(field) && needs.all(|(_, name, words)| words.contains(&self.word(name, params)))
    }

    /// What a parameter that is a word is: as stated, or its default.
    fn word<'a>(&self, name: &str, params: &'a ParamTable) -> &'a str {
        let default = self.parameters.iter().find(|known| known.name == name).map_or("", |known| known.default);
        match params.get(name) {
            Some(Value::Text(word)) => word,
            _ => default.trim_matches('"'),
        }
    }
}

/// A scheduler is known by its name.
impl PartialEq for Descriptor {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Descriptor {}

impl core::fmt::Debug for Descriptor {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Descriptor").field("name", &self.name).finish_non_exhaustive()
    }
}
