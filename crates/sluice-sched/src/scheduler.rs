//! Interface between a gate and its scheduler.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::admission::Capacity;
use crate::cost::{Cost, CostModel};
use crate::gate::{GateSettings, RemoteService};
use crate::guarantees::Guarantees;
use crate::params::{self, ParamError, ParamTable, Parameter, Value};
use crate::policy::{Field, Policy, PolicyError};
use crate::request::{Completion, OwnerId, Request, VolumeId};
use crate::standing::Standing;
use crate::time::Instant;
use crate::tracker::Form;
use crate::units::{Bytes, Percent};

/// Result of [`Scheduler::dispatch`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
// rule: gate.four-answers
pub enum Decision {
    /// Submit this request now.
    Dispatch(Request),
    /// Requests are queued, but none may be dispatched before this instant, which is in the future.
    WaitUntil(Instant),
    /// Requests are queued, but none may be dispatched before a request in flight completes.
    WaitCompletion,
    /// Nothing is queued.
    Idle,
}

/// Change of owners, volumes, policies or depth. The gate has added every `owner` and `volume` named here, except in
/// `AddOwner` and `AddVolume`, and has checked every `policy`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Change {
    /// Adds an owner without volumes.
    AddOwner {
        /// Unused number, chosen by the gate.
        owner: OwnerId,
        policy: Policy,
    },
    /// Sets the policy of an owner, also for its queued requests.
    SetOwner { owner: OwnerId, policy: Policy },
    /// Removes an owner. It has no queued requests, since the gate has cancelled them.
    RemoveOwner { owner: OwnerId },
    /// Adds a volume to an owner.
    AddVolume {
        owner: OwnerId,
        /// Unused number, chosen by the gate.
        volume: VolumeId,
        /// Policy of the inner level; `Policy::default()` if the host file states none.
        policy: Policy,
    },
    /// Sets the policy of a volume, also for its queued requests.
    SetVolume { owner: OwnerId, volume: VolumeId, policy: Policy },
    /// Removes a volume. It has no queued requests.
    RemoveVolume { owner: OwnerId, volume: VolumeId },
    /// Sets what is known of the device.
    Device {
        /// Queue depth.
        depth: u32,
        /// Bytes that take it as long as a request of cost 1, see [`DeviceInfo::request_bytes`].
        request_bytes: Bytes,
    },
}

/// A rejected change. Nothing has changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The volumes reserve more than their VM.
    #[error(
        "Volumes of one VM reserve {volumes} together, but the VM only {vm}; raise the VM's reservation or lower \
         theirs"
    )]
    VolumesOverReserve {
        /// The rate, formatted.
        volumes: String,
        /// Reservation of the VM, formatted.
        vm: String,
    },
    /// The scheduler counts bytes, and the rate is in requests.
    #[error(
        "{scheduler} supports a {} only in bytes per second, but this one is {rate}; state it in bytes per second",
        .field.name()
    )]
    CountsBytes {
        /// Name of the scheduler.
        scheduler: &'static str,
        /// `reservation` or `limit`.
        field: Field,
        /// Sum of the volumes, formatted.
        rate: String,
    },
    #[error("No owner {} at this gate", .0.0)]
    UnknownOwner(OwnerId),
    #[error("No volume {} of owner {} at this gate", .1.0, .0.0)]
    UnknownVolume(OwnerId, VolumeId),
    /// A documented bound is reached.
    #[error("Gate is full: {0}")]
    Full(&'static str),
}

impl Change {
    /// The policy in the change, if there is one.
    #[must_use]
    pub const fn policy(&self) -> Option<&Policy> {
        match self {
            Change::AddOwner { policy, .. }
            | Change::SetOwner { policy, .. }
            | Change::AddVolume { policy, .. }
            | Change::SetVolume { policy, .. } => Some(policy),
            Change::RemoveOwner { .. } | Change::RemoveVolume { .. } | Change::Device { .. } => None,
        }
    }
}

/// An owner or one of its volumes, for example those whose requests a cancellation covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// All requests of an owner.
    Owner(OwnerId),
    /// The requests of one volume.
    Volume(OwnerId, VolumeId),
}

impl Scope {
    /// Whether `request` is covered.
    #[must_use]
    pub fn contains(&self, request: &Request) -> bool {
        match *self {
            Scope::Owner(owner) => request.owner == owner,
            Scope::Volume(owner, volume) => request.owner == owner && request.volume == volume,
        }
    }

    #[must_use]
    pub fn owner(&self) -> OwnerId {
        match *self {
            Scope::Owner(owner) | Scope::Volume(owner, _) => owner,
        }
    }
}

/// State of a scheduler, for output.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct State {
    /// Queued requests.
    pub queued: u64,
    /// Requests dispatched and not completed.
    pub in_flight: u64,
    /// Virtual time, if the scheduler has one.
    pub virtual_time: Option<u64>,
    /// By owner number.
    pub owners: BTreeMap<u32, OwnerState>,
}

/// State of one owner.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct OwnerState {
    /// Queued requests.
    pub queued: u64,
    /// When the reservation makes the next request due, in nanoseconds of the caller's clock.
    pub reservation_due_ns: Option<u64>,
    /// When the limit allows the next request, in nanoseconds of the caller's clock.
    pub limit_passes_ns: Option<u64>,
    /// Share tag in virtual time: the smallest is served first in the weight phase.
    pub share_tag: Option<u64>,
}

/// The scheduling policy of one gate: a state machine without clock, threads or I/O.
///
/// After one or more other calls the gate calls `dispatch` until it returns no request or the device has no free slot.
/// Example: depth 2, three queued requests. `dispatch` returns two requests; the third follows after the next
/// `complete`.
///
/// The gate guarantees that `now` never decreases, that owners and volumes are added before they are used, and that a
/// request is completed exactly once, after it was dispatched.
pub trait Scheduler: Send {
    /// Queues a request that has arrived.
    fn insert(&mut self, now: Instant, request: Request);

    /// Counts service that a VM got at other servers since its previous request here, as its client reports it. Called
    /// before the request is inserted, so a scheduler need not store the report with the request. The default does
    /// nothing: most schedulers know one server only. \[mclock\] 3.2.
    fn add_remote_service(&mut self, now: Instant, owner: OwnerId, remote: &RemoteService) {
        let _ = (now, owner, remote);
    }

    /// Replaces a queued request by `grown`, which results from a merge with a later request: same number, larger
    /// extent and cost. The request has the flag [`Flags::MERGED`](crate::Flags::MERGED), and its token is its number
    /// among the gate's merged requests, by which the scheduler finds it in constant time. It keeps its position in the
    /// queue and its expiry, which is the earlier of the two. Returns `false`, and changes nothing, if the request is
    /// not queued here or the scheduler does not merge it so.
    fn grow(&mut self, now: Instant, grown: Request) -> bool;

    /// Selects the request for a free slot.
    fn dispatch(&mut self, now: Instant) -> Decision;

    /// Notes that a dispatched request has completed at the device.
    fn complete(&mut self, now: Instant, completion: &Completion);

    /// Applies a change, also to queued requests.
    fn configure(&mut self, now: Instant, change: Change) -> Result<(), ChangeError>;

    /// Removes queued requests without serving them, and appends them to `removed` in arrival order per volume.
    fn cancel(&mut self, now: Instant, scope: Scope, removed: &mut Vec<Request>);

    /// Returns the state for output.
    fn inspect(&self, now: Instant) -> State;

    /// Returns the standing of an owner or a volume, for the scheduler that replaces this one. It has every rate of the policy
    /// that this scheduler enforces, in units of service, and nothing else. The default is empty, for a scheduler that enforces
    /// neither limits nor reservations.
    fn standing(&self, now: Instant, scope: Scope) -> Standing {
        let _ = (now, scope);
        Standing::default()
    }

    /// Continues an owner or a volume where it stood under the scheduler that this one replaces. Called once for each, an
    /// owner before its volumes, after their queued requests were inserted and before any is dispatched. What is not known,
    /// or not enforced here, stays as it is after `AddOwner` and `AddVolume`. Of a limit at most the burst that this
    /// scheduler allows is taken. The default ignores it.
    fn resume(&mut self, now: Instant, scope: Scope, standing: &Standing) {
        let _ = (now, scope, standing);
    }
}

/// Properties of a device that a scheduler may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Queue depth.
    pub depth: u32,
    /// Whether adjacent requests are much cheaper than distant ones.
    pub rotational: bool,
    /// Cost of requests.
    pub cost: CostModel,
    /// Size of the largest read or write that is submitted unsplit.
    pub piece_max: Bytes,
    /// Bytes that take the device as long as a request of cost 1: its bandwidth divided by its capacity. The reference
    /// size if one of them is not stated.
    pub request_bytes: Bytes,
    pub device_class: DeviceClass,
}

impl Default for DeviceInfo {
    fn default() -> Self {
        let settings = GateSettings::default();
        DeviceInfo {
            depth: settings.depth,
            rotational: false,
            cost: settings.cost,
            piece_max: settings.transfer_max,
            request_bytes: settings.cost.reference_size(),
            device_class: settings.device_class,
        }
    }
}

impl DeviceInfo {
    /// Properties for the scheduler of a gate with these settings, in front of a device of this capacity.
    #[must_use]
    pub fn of(settings: &GateSettings, rotational: bool, capacity: &Capacity) -> Self {
        let request_bytes = capacity.request_bytes().unwrap_or(settings.cost.reference_size());
        let GateSettings { depth, cost, transfer_max: piece_max, device_class, .. } = *settings;
        DeviceInfo { depth, rotational, cost, piece_max, request_bytes, device_class }
    }

    /// Cost of the largest read or write that is submitted unsplit, whichever is more.
    #[must_use]
    pub fn piece_cost(&self) -> Cost {
        self.cost.cost_max(u32::try_from(self.piece_max.0).unwrap_or(u32::MAX))
    }
}

/// Kind of device that a scheduler is made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DeviceClass {
    /// Disks: requests have an offset.
    #[default]
    Disk,
    /// Network interfaces: requests are frames that VMs send, with their length on the wire.
    Network,
}

impl DeviceClass {
    /// Name in output.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            DeviceClass::Disk => "disk",
            DeviceClass::Network => "network",
        }
    }

    /// Whether rates may be stated in requests per second. A packet may have any size, so rates of network interfaces
    /// are in bytes per second.
    #[must_use]
    pub const fn counts_requests(self) -> bool {
        matches!(self, DeviceClass::Disk)
    }
}

/// Makes a scheduler for a device from its parameters.
pub type Build = fn(&DeviceInfo, &ParamTable) -> Result<Box<dyn Scheduler>, ParamError>;

/// Description of a scheduler in addition to its code; one per scheduler, in the scheduler's file.
pub struct Descriptor {
    /// Name in the host file.
    pub name: &'static str,
    /// Summary in one line.
    pub summary: &'static str,
    /// Its method, in a paragraph.
    pub idea: &'static str,
    /// When to choose it.
    pub when: &'static str,
    /// Publication or system that it is based on.
    pub source: &'static str,
    /// Policy fields that it enforces, and how it maps each.
    pub enforces: &'static [(Field, &'static str)],
    /// Whether a volume may have its own policy inside its VM's. Otherwise the volumes of a VM share its queue.
    pub volumes: bool,
    /// Fields of `enforces` that depend on a parameter: field, parameter, and the values with which it is enforced.
    pub depends: &'static [(Field, &'static str, &'static [&'static str])],
    /// Kinds of devices that it is for.
    pub device_classes: &'static [DeviceClass],
    /// Whether the gate merges adjacent requests, unless the device's configuration says otherwise.
    pub merging: bool,
    /// Minimum part of the device that is divided by weight while a VM without a reservation has requests queued, with
    /// these parameters. Admission control leaves it free. Zero for schedulers without such a minimum.
    pub weight_floor: fn(&ParamTable) -> Percent,
    /// Form in which it uses service at other servers, with these parameters; `None` if it does not.
    pub remote: fn(&ParamTable) -> Option<Form>,
    /// Guarantees that tests check, on this device with these parameters.
    pub guarantees: fn(&DeviceInfo, &ParamTable) -> Guarantees,
    pub advice: Advice,
    pub parameters: &'static [Parameter],
    /// Makes a scheduler. [`Descriptor::build`] checks the ranges of the parameters first.
    pub build: Build,
}

/// Data that `sluice advise` uses in addition to measurements.
#[derive(Debug, Clone, Copy)]
pub struct Advice {
    /// Ranks among schedulers that measurements cannot distinguish; the smallest is preferred.
    pub rank_in_guest: u8,
    /// On the host of one VM.
    pub rank_for_one: u8,
    /// On the host of several VMs.
    pub rank_for_several: u8,
    /// Why it is never advised in a guest.
    pub never_in_guest: Option<&'static str>,
    /// Parameters in a guest, where each process is an owner: name and value.
    pub guest_params: &'static [(&'static str, &'static str)],
    /// Schedulers of today's Linux that this one is the nearest model of in a guest: name, and how near.
    pub stands_for: &'static [(&'static str, &'static str)],
}

impl Advice {
    /// Rank of a scheduler without a preference.
    pub const LAST: u8 = u8::MAX;

    /// No preference.
    pub const BASE: Advice = Advice {
        rank_in_guest: Advice::LAST,
        rank_for_one: Advice::LAST,
        rank_for_several: Advice::LAST,
        never_in_guest: None,
        guest_params: &[],
        stands_for: &[],
    };
}

impl Descriptor {
    /// A disk scheduler without name that enforces nothing, guarantees only the contract and has no parameters: what a
    /// scheduler need not state. It does not build.
    pub const BASE: Descriptor = Descriptor {
        name: "",
        summary: "",
        idea: "",
        when: "",
        source: "",
        enforces: &[],
        volumes: false,
        depends: &[],
        device_classes: &[DeviceClass::Disk],
        merging: false,
        weight_floor: |_| Percent::ZERO,
        remote: |_| None,
        guarantees: |_, _| Guarantees::BASE,
        advice: Advice::BASE,
        parameters: &[],
        build: |_, _| Err(ParamError(String::new())),
    };

    /// Makes a scheduler for a device.
    ///
    /// # Errors
    /// If a parameter is unknown, has an invalid value, or is outside its range.
    pub fn build(&self, info: &DeviceInfo, table: &ParamTable) -> Result<Box<dyn Scheduler>, ParamError> {
        params::check(self.parameters, table)?;
        (self.build)(info, table)
    }

    /// Whether the scheduler enforces `field`.
    #[must_use]
    pub fn enforces(&self, field: Field) -> bool {
        self.enforces.iter().any(|(enforced, _)| *enforced == field)
    }

    /// Whether it is for devices of this kind.
    #[must_use]
    pub fn is_for(&self, device_class: DeviceClass) -> bool {
        self.device_classes.contains(&device_class)
    }

    /// The kinds of devices that it is for, in a sentence for the manual.
    #[must_use]
    pub fn about_classes(&self) -> &'static str {
        match (self.is_for(DeviceClass::Disk), self.is_for(DeviceClass::Network)) {
            (true, false) => "It is for disks.",
            (false, true) => "It is for network interfaces; a disk device rejects it.",
            _ => "It is for disks and for network interfaces.",
        }
    }

    /// Rejects a rate in a unit that the scheduler does not count on devices of this kind. Accepted rates are enforced in
    /// their unit.
    ///
    /// # Errors
    /// If the policy states a reservation or a limit in requests, and the device is a network interface.
    // rule: gate.units
    pub fn check_units(&self, policy: &Policy, device_class: DeviceClass) -> Result<(), ChangeError> {
        let rates = [
            (Field::Reservation, policy.reservation.iops),
            (Field::Limit, policy.limit.iops),
            (Field::ReadLimit, policy.read_limit.iops),
            (Field::WriteLimit, policy.write_limit.iops),
            (Field::Burst, policy.timed_burst.and_then(|burst| burst.rate.iops)),
        ];
        let stated = rates.into_iter().find_map(|(field, rate)| Some((field, rate?)));
        match stated {
            Some((field, rate)) if !device_class.counts_requests() => {
                Err(ChangeError::CountsBytes { scheduler: self.name, field, rate: rate.to_string() })
            }
            _ => Ok(()),
        }
    }

    /// Treatment of the volumes of a VM, in a sentence for the manual.
    #[must_use]
    pub fn about_volumes(&self) -> &'static str {
        match self.volumes {
            true => "A volume may have its own policy within that of its VM.",
            false => "The volumes of a VM share its queue; a volume with its own policy is rejected.",
        }
    }

    /// Whether the scheduler enforces `field` of a volume inside a VM.
    #[must_use]
    pub fn enforces_inside(&self, field: Field) -> bool {
        self.volumes && self.enforces(field)
    }

    /// Whether the scheduler enforces `field` of a volume inside a VM with these parameters.
    #[must_use]
    pub fn enforces_inside_with(&self, field: Field, params: &ParamTable) -> bool {
        self.volumes && self.enforces_with(field, params)
    }

    /// Whether the scheduler enforces `field` with these parameters.
    #[must_use]
    pub fn enforces_with(&self, field: Field, params: &ParamTable) -> bool {
        let mut needs = self.depends.iter().filter(|(of, _, _)| *of == field);
        self.enforces(field) && needs.all(|(_, name, words)| words.contains(&self.word(name, params)))
    }

    /// Value of a parameter that is a word: as stated, or its default.
    fn word<'a>(&self, name: &str, params: &'a ParamTable) -> &'a str {
        let default = self.parameters.iter().find(|known| known.name == name).map_or("", |known| known.default);
        match params.get(name) {
            Some(Value::Text(word)) => word,
            _ => default.trim_matches('"'),
        }
    }
}

/// Descriptors are equal if their names are.
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
