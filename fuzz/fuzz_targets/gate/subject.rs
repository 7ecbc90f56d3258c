//! Which scheduler runs, with which parameters, and what it promises.

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

/// When a scheduler may let requests wait although a slot is free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waits {
    /// While at least this many requests are in flight; 0: as many as the device takes.
    Depth(u64),
    /// For limits, and for reservations of VMs without weight. `inside`: volumes have policies of their own.
    Tags { inside: bool },
    /// For byte limits. `or_depth`: also while at least this many requests are in flight.
    Windows { or_depth: u64 },
    /// For this many nanoseconds at most.
    AtMost(u64),
    /// The same, or as long as the longest latency target of a VM.
    Deadlines(u64),
    /// By rules of its own.
    Somehow,
}

/// Which limits hold in every window of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limits {
    None,
    /// In requests and in bytes, those of volumes too: rate x time + burst + the largest request.
    Buckets,
    /// In bytes: this many windows of this many nanoseconds may be used back to back, and one more for a large request.
    Windows {
        nanos: u64,
        windows: u128,
    },
}

/// What is left over is shared by weight, in batches of this many requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shares {
    pub batch: u64,
    /// Each request counts 1.
    pub by_request: bool,
    /// VMs have an idle credit.
    pub with_credit: bool,
}

/// Which requests are dispatched in the order of their arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// None.
    Any,
    /// Those of a volume.
    Volume,
    /// All.
    All,
}

/// What a scheduler promises with its parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Promise {
    pub order: Order,
    pub waits: Waits,
    pub limits: Limits,
    pub shares: Option<Shares>,
}

impl Subject {
    /// mClock as a product with its default parameters.
    pub fn product() -> Self {
        Subject { descriptor: &schedulers::mclock::DESCRIPTOR, params: ParamTable::new() }
    }

    /// Chooses a scheduler, half of the time that of the product, and states about a quarter of its parameters. A parameter that
    /// it does not accept is left out.
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

    /// `rotational` is what the scheduler knows of its device.
    pub fn promise(&self, rotational: bool) -> Promise {
        let contract = Promise { order: Order::Any, waits: Waits::Somehow, limits: Limits::None, shares: None };
        let in_order = Promise { order: Order::Volume, ..contract };
        let at_most =
            |names: &[&str]| names.iter().map(|name| self.nanos(name)).max().unwrap_or(0) + self.nanos("tick");
        // A clock that ticks shows the end of a window up to a tick early.
        let windows = if self.nanos("tick") > 0 { 3 } else { 2 };
        let windows = Limits::Windows { nanos: self.nanos("interval"), windows };
        match self.descriptor.name {
            "noop" => Promise { order: Order::All, waits: Waits::Depth(u64::MAX), ..contract },
            "deadline" => Promise { waits: Waits::Depth(u64::MAX), ..contract },
            "sfqd" => {
                let shares = Shares { batch: 1, by_request: self.word("charge") == "request", with_credit: false };
                Promise { waits: Waits::Depth(self.integer("depth")), shares: Some(shares), ..in_order }
            }
            // As published, the limit of mClock is exceeded after a stall.
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

    /// A parameter as text: as stated, or its default.
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

    /// A parameter that is a time; 0 for one that is not stated and has no default.
    pub fn nanos(&self, name: &str) -> u64 {
        parse_duration(&self.word(name)).map_or(0, |time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl core::fmt::Display for Subject {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} {:?}", self.descriptor.name, self.params)
    }
}

/// A value of the parameter's kind: an end of its range, or one that is often used or strange and may lie outside.
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
