//! Events: a promise was broken, or is kept again; a device stalled, or recovered; a user changed something; the daemon started.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::amount;
use crate::cause::Cause;
use crate::change::until_in_words;
use crate::object::ObjectId;
use crate::status::Failure;
use crate::words::words;

words! {
    /// Kinds of events.
    pub enum EventKind {
        /// A reservation that was asked for was not met.
        Reservation = "reservation",
        /// More requests than the percentile allows took longer than the latency target.
        Latency = "latency",
        /// A full device gives less than its stated capacity.
        Capacity = "capacity",
        /// The reservations on a device do not fit into what it gives.
        Overcommitted = "overcommitted",
        /// The stated time of requests at a device is below what it takes for one, so it gives less than it could.
        LatencyTooLow = "latency_too_low",
        /// Something keeps hosts from sharing a pool as it is stated.
        Pool = "pool",
        /// Requests are in flight and none completes.
        Stalled = "stalled",
        /// A device thread does not serve.
        Down = "down",
        /// A volume is not served, because its source has changed since it was last served.
        HeldBack = "held_back",
        /// A volume is not served, because its path or its device hangs; or an uplink or NIC, because its interface is missing.
        OutOfService = "out_of_service",
        /// The interface of an uplink is down.
        LinkDown = "link_down",
        /// A device thread has failed, and was restarted.
        Restarted = "restarted",
        /// Requests of the clients of a volume are refused.
        Refused = "refused",
        /// A queue of a volume or NIC takes no requests until its driver is reset.
        QueueStopped = "queue_stopped",
        /// Requests of a volume fail, because there is no space on the file system or device of its source.
        NoSpace = "no_space",
        /// Requests of a volume fail with another error of its disk, file system or interface.
        Errors = "errors",
        /// The source of a volume became shorter than the volume.
        SourceShortened = "source_shortened",
        /// The server that stores a volume is away, and requests wait for it or fail.
        ServerAway = "server_away",
        /// Sparse images may still grow by more than is free on their file system, and little is free.
        LowSpace = "low_space",
        /// A volume or NIC has no client, while its VM has others or had one when the daemon ended.
        ClientLost = "client_lost",
        /// Keys of a VM, volume, NIC or policy were changed.
        Changed = "changed",
        /// Changes made at run time were taken back.
        Reset = "reset",
        /// A change made at run time has ended.
        Expired = "expired",
        Attached = "attached",
        Detached = "detached",
        Resized = "resized",
        /// The host file was loaded again.
        Applied = "applied",
        /// A loss of writes was accepted.
        LossAccepted = "loss_accepted",
        /// The image of a volume was taken over from another client.
        TakenOver = "taken_over",
        /// A reload was refused.
        ReloadRefused = "reload_refused",
        /// A change was refused for lack of a role.
        RoleRefused = "role_refused",
        /// The daemon has started.
        Started = "started",
        /// It was stopped.
        Stopped = "stopped",
        /// It ended without a stop, as the next start has found.
        Killed = "killed",
    }
    else Unknown = "unknown"
}

impl EventKind {
    /// Whether its sentence ends with what to do.
    const fn has_remedy(self) -> bool {
        self.is_failing() || matches!(self, EventKind::LowSpace)
    }

    /// Whether it is about requests that fail.
    #[must_use]
    pub const fn is_failing(self) -> bool {
        matches!(self, Self::NoSpace | Self::Errors | Self::SourceShortened | Self::ServerAway)
    }

    /// Kinds of changes of what is in force, also by a start or end of the daemon: the kind `change` stands for them in questions.
    pub const CHANGES: [EventKind; 14] = [
        EventKind::Changed,
        EventKind::Reset,
        EventKind::Expired,
        EventKind::Attached,
        EventKind::Detached,
        EventKind::Resized,
        EventKind::Applied,
        EventKind::LossAccepted,
        EventKind::TakenOver,
        EventKind::ReloadRefused,
        EventKind::RoleRefused,
        EventKind::Started,
        EventKind::Stopped,
        EventKind::Killed,
    ];

    /// The kinds that a name in a question stands for: that of a kind, or `change`; none if there is no such kind.
    #[must_use]
    pub fn asked(name: &str) -> Vec<EventKind> {
        match name {
            "change" => EventKind::CHANGES.to_vec(),
            name => EventKind::ALL.into_iter().filter(|kind| kind.name() == name).collect(),
        }
    }

    /// Whether it is about a volume that is not served.
    #[must_use]
    pub const fn is_unserved(self) -> bool {
        matches!(self, EventKind::HeldBack | EventKind::OutOfService)
    }
}

words! {
    /// Units of the figures of an event.
    pub enum Unit {
        /// Normalised requests per second.
        Iops = "iops",
        BytesPerSecond = "bytes_per_second",
        /// On the wire of an uplink, with the 24 bytes around each frame.
        BitsPerSecond = "bits_per_second",
        /// Parts of all requests, in percent.
        Percent = "percent",
        Requests = "requests",
        Bytes = "bytes",
        Microseconds = "microseconds",
    }
    else Unknown = "unknown"
}

impl Unit {
    /// An amount with its unit, for people.
    #[must_use]
    pub fn show(self, value: f64) -> String {
        match self {
            Unit::Iops => format!("{:.0} iops", value.abs()),
            Unit::BytesPerSecond => amount::bandwidth(value),
            Unit::BitsPerSecond => amount::bits(value),
            Unit::Percent => format!("{:.1} %", value.abs()),
            Unit::Requests => amount::counted(value as u64, "request", "requests"),
            Unit::Bytes => amount::size(value as u64),
            Unit::Microseconds => amount::time(value),
            Unit::Unknown => format!("{:.0}", value.abs()),
        }
    }
}

words! {
    /// The right by which requests are served.
    pub enum Right { Reservation = "reservation", Weight = "weight", }
    else Other = "other"
}

/// Another VM on the device at that time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Neighbour {
    pub vm: String,
    /// Its service in normalised requests per second.
    pub iops: f64,
    /// Its part of the service of the device, in percent.
    pub percent: f64,
    /// The right by which most of it was served.
    pub by: Right,
}

/// Whether something began or ended, or happened at once. A phase that is not known is read as the last one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case", from = "String")]
pub enum Phase {
    #[default]
    Began,
    Ended,
    Happened,
}

impl From<String> for Phase {
    fn from(name: String) -> Phase {
        [Phase::Began, Phase::Ended].into_iter().find(|phase| phase.name() == name).unwrap_or(Phase::Happened)
    }
}

impl Phase {
    /// Name in machine-readable output.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Phase::Began => "began",
            Phase::Ended => "ended",
            Phase::Happened => "happened",
        }
    }
}

/// A change: the user who made it, and what it changed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Change {
    /// Name of the user who had logged in, or else of the process's user; the number if it has no name. A signal has no user.
    pub who: String,
    /// User of the process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// User who had logged in, if the host's kernel knows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub login_uid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<i32>,
    /// Role on the control socket: `observe`, `change`, `attach` or `admin`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// The command, or the signal; of a change that has ended, none.
    pub command: String,
    /// The object that has changed, such as `db1/root` or `policy/gold`; a device or uplink as `device NAME`. Empty for a reload as a whole.
    pub target: String,
    /// The values that were in force before, in words.
    pub before: String,
    pub after: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// How long it holds: `reset`, `restart`, a time, or `reload` for a change in a drop-in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<String>,
    /// Commands that undo it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub undo: Vec<String>,
}

impl Change {
    /// From what to what, by whom, how long, why, and how to undo it.
    fn in_words(&self, by: &str) -> String {
        let mut words = match (self.before.as_str(), self.after.as_str()) {
            ("", "") => String::new(),
            ("", after) => format!(": {after}"),
            (before, after) => format!(": {before} -> {after}"),
        };
        if !self.who.is_empty() {
            let role = self.role.as_ref().map_or(String::new(), |role| format!(" (role {role})"));
            words += &format!(", {by} {}{role}", self.who);
        }
        words.extend(self.until.iter().map(|until| format!(", {}", until_in_words(until))));
        words.extend(self.reason.iter().map(|reason| format!(", reason: {reason}")));
        match self.undo.as_slice() {
            [] => {}
            undo => words += &format!("; undo: {}", undo.join("; ")),
        }
        words
    }
}

words! {
    /// How the daemon ended, and with it an event that still held.
    pub enum DaemonEnd {
        /// It was stopped: the duration is exact.
        Stopped = "stopped",
        /// It was killed or has failed: the duration is at most some seconds longer.
        Killed = "killed",
    }
    else Unknown = "unknown"
}

/// An event.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Event {
    /// Number, once it is kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<u64>,
    /// Seconds since 1970.
    pub time: u64,
    pub kind: EventKind,
    pub phase: Phase,
    pub device: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vm: Option<String>,
    /// The volume, or `nic/NIC`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume: Option<String>,
    /// The main cause.
    pub cause: Cause,
    /// The promised or stated amount; for a latency the allowed part of late requests.
    pub wanted: f64,
    /// The actual amount; of an event that has ended the worst.
    pub got: f64,
    pub unit: Unit,
    /// Duration in seconds; 0 when it begins.
    pub seconds: u64,
    /// Set if it still held when the daemon ended, which is the end of what is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_by: Option<DaemonEnd>,
    /// VMs with most of the service at that time, largest first.
    pub neighbours: Vec<Neighbour>,
    /// Additional facts in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// Requests that have failed, if it is about them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<Failure>,
    /// If it is a change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub change: Option<Change>,
    /// The event in a sentence, in a reply or alert.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub text: String,
    /// In an alert: events of its class since the last one that were not sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub suppressed: Option<u64>,
}

/// Events that were asked for.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Events {
    pub version: u32,
    /// Oldest first.
    pub events: Vec<Event>,
    /// Whether there are more: later ones if the question was for those after one, otherwise earlier ones.
    pub more: bool,
    /// The number to ask after for what comes next.
    pub last: u64,
}

impl Event {
    /// The volume or NIC that it is about.
    #[must_use]
    pub fn object(&self) -> Option<ObjectId> {
        Some(ObjectId::of_vm(self.vm.as_deref()?, self.volume.as_deref()?))
    }

    /// The VM, its volume or the device that it is about.
    #[must_use]
    pub fn subject(&self) -> String {
        match (&self.vm, self.object()) {
            (_, Some(object)) => object.to_string(),
            (Some(vm), None) => vm.clone(),
            (None, None) => format!("device {}", self.device),
        }
    }

    /// The event in a sentence.
    #[must_use]
    pub fn in_words(&self) -> String {
        let (subject, wanted, got) = (self.subject(), self.unit.show(self.wanted), self.unit.show(self.got));
        let device = &self.device;
        let what = match self.kind {
            EventKind::Reservation => format!("{subject} got {got} of the {wanted} that it has reserved and asked for"),
            EventKind::Latency => {
                format!("{got} of the requests of {subject} took longer than its latency target; {wanted} are allowed")
            }
            EventKind::Capacity => {
                format!("Device {device} gives {got} while it is full; its stated capacity is {wanted}")
            }
            EventKind::Overcommitted => {
                format!("Reservations of {wanted} do not fit into the {got} that device {device} gives")
            }
            EventKind::LatencyTooLow => format!("Device {device} gives less than it could"),
            EventKind::Pool => return self.of_pool_in_words(),
            EventKind::Stalled => format!("Device {device} completes nothing, with {got} in flight"),
            EventKind::Down => format!("Device {device} does not serve"),
            EventKind::HeldBack => format!("Volume {subject} is held back"),
            EventKind::OutOfService => match self.object() {
                Some(object) => format!("{} {subject} is out of service", object.kind()),
                None if self.cause == Cause::Interface => format!("Uplink {device} is out of service"),
                None => format!("Device {device} is out of service"),
            },
            EventKind::LinkDown => format!("The interface of uplink {device} is down"),
            EventKind::Restarted => format!("The thread of device {device} has failed and was restarted"),
            EventKind::Refused => format!("Requests of {subject} are refused"),
            EventKind::QueueStopped => format!("A queue of {subject} has stopped until its driver is reset"),
            EventKind::NoSpace => format!("Requests of {subject} fail because there is no space"),
            EventKind::Errors => format!("Requests of {subject} fail"),
            EventKind::SourceShortened => {
                let what = if self.cause == Cause::DeviceShrunk { "has shrunk" } else { "was cut" };
                format!("Source of {subject} {what}: {}", shortened_in_words(self.wanted, self.got))
            }
            EventKind::ServerAway => format!("The server of {subject} is away"),
            EventKind::LowSpace => format!("Images of device {device} may outgrow their file system"),
            EventKind::ClientLost => format!("{subject} has lost its client"),
            _ if self.phase == Phase::Happened => self.happened_in_words(),
            _ => format!("{subject}: an event of a kind that is not known"),
        };
        let detail = self.detail.as_ref().map_or(String::new(), |detail| format!(" ({detail})"));
        match self.phase {
            Phase::Began
                if matches!(self.kind, EventKind::Reservation | EventKind::Latency | EventKind::OutOfService) =>
            {
                format!("{what}{detail}; cause: {}", self.cause.in_words())
            }
            Phase::Began if self.kind.has_remedy() => format!("{what}{detail}. {}", self.cause.advice()),
            Phase::Began => format!("{what}{detail}"),
            Phase::Happened => what,
            Phase::Ended => format!("{}{what}{detail}", self.end_in_words()),
        }
    }
}

impl Event {
    /// How it ended, and after what time.
    fn end_in_words(&self) -> String {
        let (when, or_more) = match self.ended_by {
            None => ("Over", ""),
            Some(DaemonEnd::Stopped) => ("Ended when the daemon stopped,", ""),
            Some(DaemonEnd::Killed | DaemonEnd::Unknown) => ("Ended when the daemon stopped,", " or more"),
        };
        format!("{when} after {}{or_more}: ", amount::span(self.seconds))
    }

    /// What was wrong in a pool, in a sentence.
    fn of_pool_in_words(&self) -> String {
        let end = if self.phase == Phase::Ended { self.end_in_words() } else { String::new() };
        format!("{end}Pool of device {}: {}", self.device, self.detail.as_deref().unwrap_or("a problem"))
    }

    /// Something that happened at once, in a sentence.
    fn happened_in_words(&self) -> String {
        let detail = self.detail.as_deref().unwrap_or_default();
        let subject = self.change.as_ref().map_or("", |change| &change.target);
        let what = match self.kind {
            EventKind::Changed => format!("{subject} was changed"),
            EventKind::Reset => format!("Changes of {subject} were taken back"),
            EventKind::Expired => format!("A change of {subject} has ended ({detail})"),
            EventKind::Attached => format!("{subject} was attached"),
            EventKind::Detached => format!("{subject} was detached"),
            EventKind::Resized => format!("{subject} was resized"),
            EventKind::LossAccepted => format!("The loss of writes of {subject} was accepted"),
            EventKind::TakenOver => format!("The image of {subject} was taken over from another client"),
            EventKind::Applied => format!("The host file was loaded: {detail}"),
            EventKind::ReloadRefused => format!("A reload was refused: {detail}"),
            EventKind::RoleRefused => {
                let command = self.change.as_ref().map_or("", |change| &change.command);
                format!("`{command}` was refused for lack of a role")
            }
            EventKind::Started => format!("The daemon has started: {detail}"),
            EventKind::Stopped => format!("The daemon was stopped: {detail}"),
            EventKind::Killed if detail.is_empty() => "The daemon ended without a stop, then or later".to_owned(),
            EventKind::Killed => format!("The daemon ended without a stop: {detail}"),
            _ => format!("{subject}: an event of a kind that is not known"),
        };
        let by = if self.kind == EventKind::Expired { "made by" } else { "by" };
        what + &self.change.as_ref().map_or(String::new(), |change| change.in_words(by))
    }
}

/// The end of a source inside its volume, in words.
#[must_use]
pub fn shortened_in_words(needs: f64, end: f64) -> String {
    format!("its source ends at byte {end:.0}, and the volume needs {needs:.0}: requests past the end fail")
}
