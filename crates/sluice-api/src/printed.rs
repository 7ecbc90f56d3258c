//! The lines of JSON that the daemon prints on standard output.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::list::Wait;
use crate::object::ObjectId;
use crate::status::{Health, NotServed, Operation};

/// A line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Line {
    /// The daemon serves.
    Ready(Serving),
    /// Counts since the start of each device thread, when they are asked for and at the exit.
    Accounts(Accounts),
}

/// Numbers of what the daemon serves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Serving {
    pub devices: usize,
    pub vms: usize,
    pub volumes: usize,
    pub uplinks: usize,
    pub nics: usize,
    /// Volumes and NICs of the host file that are not served.
    pub out_of_service: usize,
    pub held_back: usize,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Accounts {
    pub devices: Vec<Device>,
    pub guest_sockets: Vec<GuestSocket>,
    pub out_of_service: Vec<ObjectId>,
    pub held_back: Vec<NotServed>,
    pub connections_max: u32,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Device {
    pub device: String,
    pub health: Health,
    pub queued: u64,
    pub in_flight: u64,
    pub connections: u64,
    /// Iterations of its loop.
    pub turns: u64,
    pub restarts: u64,
    pub stale_messages: u64,
    pub vms: Vec<Vm>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Vm {
    pub vm: String,
    pub completed: BTreeMap<Operation, u64>,
    pub completed_normalised: f64,
    pub bytes: u64,
    pub failed: u64,
    pub cancelled: u64,
    pub refused: u64,
    pub protocol_errors: u64,
    pub outstanding: u32,
    /// Volumes whose writes fail, because data may be lost.
    pub writes_fail: BTreeSet<String>,
    pub dispatched: Dispatched,
    /// Requests by the main reason for which they waited.
    pub waited_for: BTreeMap<Wait, u64>,
    pub queue_us: Percentiles,
    pub service_us: Percentiles,
}

/// Dispatched requests, by the right.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dispatched {
    pub reservation: u64,
    pub weight: u64,
    pub other: u64,
}

/// Null without requests.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Percentiles {
    pub p50: Option<f64>,
    pub p99: Option<f64>,
}

/// Counts of a vhost-user socket since it was opened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestSocket {
    pub vm: String,
    /// The volume, or `nic/NIC`.
    pub volume: String,
    pub socket: String,
    /// VMMs that were served.
    pub sessions: u64,
    /// Connections that were closed immediately.
    pub turned_away: u64,
    /// Messages that were rejected.
    pub refusals: u64,
    /// Sessions that ended because the VMM violated the protocol.
    pub faults: u64,
    /// Notifications of a new size.
    pub config_changes: u64,
    /// Requests recovered from the in-flight log.
    pub taken_over: u64,
}
