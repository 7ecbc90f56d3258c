//! The scheduler under test, its parameters and its guarantees.

use sluice_sched::params::{ParamTable, Parameter, Range, Value};
use sluice_sched::scheduler::{Descriptor, Facts, Scheduler};
use sluice_sched::schedulers;
use sluice_sched::units::parse_duration;

use super::input::Input;

/// A scheduler with parameters that it accepts.
#[derive(Clone)]
pub struct Subject {
    pub descriptor: &'static Descriptor,
    pub params: ParamTable,
}

/// Conditions in which a scheduler may leave a slot free although requests are queued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waits {
    /// At least this many requests are in flight; 0 stands for the device's depth.
    Depth(u64),
    /// Waits for limits, and for reservations of VMs without weight. `inside`: volumes have their own policies.
    Tags { inside: bool },
    /// Waits for byte limits. `or_depth`: also while at least this many requests are in flight.
    Windows { or_depth: u64 },
    /// Waits at most this many nanoseconds.
    AtMost(u64),
    /// As `AtMost`, or up to the longest latency target of a VM.
    Deadlines(u64),
    /// Its own rules, which are not checked.
    Somehow,
}

/// Limits that hold in every window of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limits {
    None,
    /// Limits in requests and in bytes, also of volumes: rate x time + burst + the largest request.
    Buckets,
    /// Limits in bytes: the credits of this many windows of this many nanoseconds may be used back to back, and one
    /// more for a large request.
    Windows {
        nanos: u64,
        windows: u128,
    },
}

/// Spare capacity is shared by weight, in batches of this many requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shares {
    pub batch: u64,
    /// Whether each request counts 1.
    pub by_request: bool,
    /// Whether VMs have an idle credit.
    pub with_credit: bool,
}

/// Requests that are dispatched in the order of arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    Any,
    /// Those of each volume.
    Volume,
    All,
}

/// Guarantees of a scheduler with its parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Promise {
    pub order: Order,
    pub waits: Waits,
    pub limits: Limits,
    pub shares: Option<Shares>,
}

impl Subject {
    /// Returns mClock in product mode with its default parameters.
    pub fn product() -> Self {
        Subject { descriptor: &schedulers::mclock::DESCRIPTOR, params: ParamTable::new() }
    }

    /// Chooses a scheduler, half of the time mClock in product mode, and sets about a quarter of its parameters. A
    /// parameter that it rejects is left out.
    pub fn read(input: &mut Input<'_>) -> Self {
        let place = input.below(2 * schedulers::ALL.len());
        let mut subject = Subject::product();
        subject.descriptor = schedulers::ALL.get(place).unwrap_or(&subject.descriptor);
        if !input.one_in(2) {
            return subject;
        }
        for parameter in subject.descriptor.parameters {
            if !input.one_in(4) {
                continue;
            }
            let Some(value) = value(input, parameter) else { continue };
            subject.params.insert(parameter.name.to_owned(), value);
            if subject.descriptor.build(&Facts::default(), &subject.params).is_err() {
                subject.params.remove(parameter.name);
            }
        }
        subject
    }

    pub fn build(&self, facts: &Facts) -> Box<dyn Scheduler> {
        self.descriptor.build(facts, &self.params).expect("parameters that were accepted before")
    }

    /// Returns the guarantees; `rotational` is the property of the device.
    pub fn promise(&self, rotational: bool) -> Promise {
        let contract = Promise { order: Order::Any, waits: Waits::Somehow, limits: Limits::None, shares: None };
        let in_order = Promise { order: Order::Volume, ..contract };
        let at_most =
            |names: &[&str]| names.iter().map(|name| self.nanos(name)).max().unwrap_or(0) + self.nanos("tick");
        // A clock with ticks shows the end of a window up to a tick early.
        let windows = if self.nanos("tick") > 0 { 3 } else { 2 };
        let windows = Limits::Windows { nanos: self.nanos("interval"), windows };
        match self.descriptor.name {
            "noop" => Promise { order: Order::All, waits: Waits::Depth(u64::MAX), ..contract },
            "deadline" => Promise { waits: Waits::Depth(u64::MAX), ..contract },
            "sfqd" => {
                let shares = Shares { batch: 1, by_request: self.word("charge") == "request", with_credit: false };
                Promise { waits: Waits::Depth(self.integer("depth")), shares: Some(shares), ..in_order }
            }
            // The published mClock exceeds its limit after a stall.
            "mclock" if self.word("mode") == "paper" => Promise { waits: Waits::Tags { inside: false }, ..in_order },
            "mclock" => {
                let batch = match (self.integer("batch"), rotational) {
                    (0, true) => 8,
                    (stated, _) => stated.max(1),
                };
                let shares = Some(Shares { batch, by_request: false, with_credit: true });
                Promise { waits: Waits::Tags { inside: true }, limits: Limits::Buckets, shares, ..in_order }
            }
            "netback" => {
                Promise { waits: Waits::Windows { or_depth: self.integer("pending") }, limits: windows, ..in_order }
            }
            // The turn of a VM may be held for it.
            "wrr" if self.word("hold") == "true" => Promise { limits: windows, ..in_order },
            "wrr" => Promise { waits: Waits::Windows { or_depth: u64::MAX }, limits: windows, ..in_order },
            "edf-credit" => Promise { waits: Waits::AtMost(self.nanos("grace")), ..contract },
            "anticipatory" => Promise { waits: Waits::AtMost(at_most(&["antic_expire"])), ..contract },
            "cfq" | "mcfq" => {
                let names = ["slice_idle", "slice_idle_seeky", "group_idle", "idle_class_delay"];
                Promise { waits: Waits::AtMost(at_most(&names)), ..contract }
            }
            "flubber" => {
                let names = ["latency", "background_latency", "max_wait", "grace"];
                Promise { waits: Waits::Deadlines(at_most(&names)), ..contract }
            }
            _ => contract,
        }
    }

    /// Returns a parameter as text: the stated value, or the default.
    pub fn word(&self, name: &str) -> String {
        match self.params.get(name) {
            Some(Value::Text(text)) => text.clone(),
            Some(Value::Bool(value)) => value.to_string(),
            Some(Value::Integer(value)) => value.to_string(),
            Some(Value::Float(value)) => value.to_string(),
            None => {
                let known = self.descriptor.parameters.iter().find(|parameter| parameter.name == name);
                known.map_or("", |parameter| parameter.default).trim_matches('"').to_owned()
            }
        }
    }

    pub fn integer(&self, name: &str) -> u64 {
        self.word(name).parse().expect("a whole number")
    }

    /// Returns a parameter that is a time; 0 if it is not stated and has no default.
    pub fn nanos(&self, name: &str) -> u64 {
        parse_duration(&self.word(name)).map_or(0, |time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl core::fmt::Display for Subject {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} {:?}", self.descriptor.name, self.params)
    }
}

/// Returns a value of the parameter's kind: an end of its range, a usual value, or an unusual one, which may be out
/// of range.
fn value(input: &mut Input<'_>, parameter: &Parameter) -> Option<Value> {
    let which = input.byte();
    if let (Some(ends), 0..=63) = (parameter.range.ends(), which) {
        return Some(ends[usize::from(which & 1)].clone());
    }
    let which = usize::from(which);
    let text = |texts: &[&str]| Some(Value::Text(texts[which % texts.len()].to_owned()));
    match parameter.range {
        Range::Any => None,
        Range::Words(words) => text(words),
        Range::Flag => Some(Value::Bool(which & 1 == 1)),
        Range::Number(least, most) => Some(Value::Integer((i64::from(least) + (which as i64 & 31)).min(most.into()))),
        Range::Time(..) => text(&["1ms", "0s", "1ns", "1us", "4ms", "6ms", "50ms", "333ms", "1s", "10s", "1h"]),
        Range::Size(..) => text(&["4KiB", "0B", "1B", "512B", "44KiB", "1MiB", "4MiB", "1GiB"]),
        Range::Rate(..) => text(&["100MB/s", "1KiB/s", "1GiB/s", "1TiB/s"]),
        Range::Percent(..) => text(&["2%", "0%", "0.01%", "10%", "50%", "100%"]),
    }
}
