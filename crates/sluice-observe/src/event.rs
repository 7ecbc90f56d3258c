//! Events: a promise was broken, or is kept again; a device stalled, or recovered.

use serde::Serialize;

use crate::cause::Cause;
use crate::failing::{self, FailureStatus};

/// Kinds of events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    /// A reservation that was asked for was not met.
    Reservation,
    /// More requests than the percentile allows took longer than the latency target.
    Latency,
    /// A full device gives less than its stated capacity.
    Capacity,
    /// The reservations on a device do not fit into what it gives.
    Overcommitted,
    /// Requests are in flight and none completes.
    Stalled,
    /// A device thread does not serve.
    Down,
    /// A volume is not served, because its source has changed since it was last served.
    HeldBack,
    /// A volume is not served, because its path or its device hangs; or an uplink or NIC, because its interface is missing.
    OutOfService,
    /// The interface of an uplink is down.
    LinkDown,
    /// A device thread has failed, and was restarted.
    Restarted,
    /// Requests of the clients of a volume are refused.
    Refused,
    /// A queue of a volume or NIC takes no requests until its driver is reset.
    QueueStopped,
    /// Requests of a volume fail, because there is no space on the file system or device of its source.
    NoSpace,
    /// Requests of a volume fail with another error of its disk, file system or interface.
    Errors,
    /// The source of a volume became shorter than the volume.
    SourceShortened,
    /// Sparse images may still grow by more than is free on their file system, and little is free.
    LowSpace,
}

impl EventKind {
    pub const ALL: [EventKind; 16] = [
        EventKind::Reservation,
        EventKind::Latency,
        EventKind::Capacity,
        EventKind::Overcommitted,
        EventKind::Stalled,
        EventKind::Down,
        EventKind::HeldBack,
        EventKind::OutOfService,
        EventKind::LinkDown,
        EventKind::Restarted,
        EventKind::Refused,
        EventKind::QueueStopped,
        EventKind::NoSpace,
        EventKind::Errors,
        EventKind::SourceShortened,
        EventKind::LowSpace,
    ];

    /// Whether its sentence ends with what to do.
    const fn has_remedy(self) -> bool {
        matches!(self, EventKind::NoSpace | EventKind::Errors | EventKind::SourceShortened | EventKind::LowSpace)
    }

    /// Name in machine-readable output.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            EventKind::Reservation => "reservation",
            EventKind::Latency => "latency",
            EventKind::Capacity => "capacity",
            EventKind::Overcommitted => "overcommitted",
            EventKind::Stalled => "stalled",
            EventKind::Down => "down",
            EventKind::HeldBack => "held_back",
            EventKind::OutOfService => "out_of_service",
            EventKind::LinkDown => "link_down",
            EventKind::Restarted => "restarted",
            EventKind::Refused => "refused",
            EventKind::QueueStopped => "queue_stopped",
            EventKind::NoSpace => "no_space",
            EventKind::Errors => "errors",
            EventKind::SourceShortened => "source_shortened",
            EventKind::LowSpace => "low_space",
        }
    }
}

/// Units of the figures of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Normalised requests per second.
    Iops,
    BytesPerSecond,
    /// On the wire of an uplink, with the 24 bytes around each frame.
    BitsPerSecond,
    /// Parts of all requests, in percent.
    Percent,
    Requests,
    Bytes,
}

impl Unit {
    /// An amount with its unit, for people.
    #[must_use]
    pub fn show(self, amount: f64) -> String {
        match self {
            Unit::Iops => format!("{amount:.0} iops"),
            Unit::BytesPerSecond => format!("{:.1} MiB/s", amount / 1_048_576.0),
            Unit::BitsPerSecond if amount >= 999.5e6 => format!("{:.2} Gbit/s", amount / 1e9),
            Unit::BitsPerSecond => format!("{:.1} Mbit/s", amount / 1e6),
            Unit::Percent => format!("{amount:.1} %"),
            Unit::Requests => format!("{amount:.0} requests"),
            Unit::Bytes => format!("{amount:.0} bytes"),
        }
    }
}

/// Another VM on the device at that time.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Neighbour {
    pub vm: String,
    /// Its service in normalised requests per second.
    pub iops: f64,
    /// Its part of the service of the device, in percent.
    pub percent: f64,
    /// The right by which most of it was served: `reservation`, `weight` or `other`.
    pub by: &'static str,
}

/// Whether something began or ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    Began,
    Ended,
}

/// An event.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Event {
    /// Seconds since 1970.
    pub time: u64,
    pub kind: EventKind,
    pub phase: Phase,
    pub device: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vm: Option<String>,
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
    /// VMs with most of the service at that time, largest first.
    pub neighbours: Vec<Neighbour>,
    /// Additional facts in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// Requests that have failed, if it is about them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<FailureStatus>,
}

impl Event {
    /// The VM, its volume or the device that it is about.
    #[must_use]
    pub fn subject(&self) -> String {
        match (&self.vm, &self.volume) {
            (Some(vm), Some(volume)) => format!("{vm}/{volume}"),
            (Some(vm), None) => vm.clone(),
            (None, _) => format!("device {}", self.device),
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
            EventKind::Stalled => format!("Device {device} completes nothing, with {got} in flight"),
            EventKind::Down => format!("Device {device} does not serve"),
            EventKind::HeldBack => format!("Volume {subject} is held back"),
            EventKind::OutOfService => match &self.volume {
                Some(nic) if nic.starts_with("nic/") => format!("NIC {subject} is out of service"),
                Some(_) => format!("Volume {subject} is out of service"),
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
                format!("Source of {subject} {what}: {}", failing::shortened_in_words(self.wanted, self.got))
            }
            EventKind::LowSpace => format!("Images of device {device} may outgrow their file system"),
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
            Phase::Ended => format!("Over after {} s: {what}{detail}", self.seconds),
        }
    }
}
