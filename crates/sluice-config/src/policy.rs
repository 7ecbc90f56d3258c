//! Policies: the fields of each table, and how inner tables override named policies.

use std::sync::Arc;
use std::time::Duration;

use sluice_sched::admission::reservation_for;
use sluice_sched::policy::{Class, Field, LatencyTarget, PriorityClass, TimedBurst};
use sluice_sched::units::StatedIops;
use sluice_sched::{ByteRate, Limit, Percent, Policy, Reservation, Weight};

use crate::quantity::{Rate, parse_rate, parse_weight};
use crate::reader::{Reader, Stated, number_of};
use crate::source::Span;
use crate::tree::Value;

/// Policy fields of one table, or of several that override each other.
#[derive(Debug, Clone, Default)]
pub struct Part {
    pub(crate) reservation: Option<Stated<Rates>>,
    pub(crate) limit: Option<Stated<Rates>>,
    pub(crate) read_limit: Option<Stated<Rates>>,
    pub(crate) write_limit: Option<Stated<Rates>>,
    pub(crate) weight: Option<Stated<Option<Weight>>>,
    pub(crate) burst: Option<Stated<Burst>>,
    pub(crate) idle_credit: Option<Stated<u32>>,
    pub(crate) class: Option<Stated<Class>>,
    pub(crate) priority_class: Option<Stated<PriorityClass>>,
    pub(crate) priority_level: Option<Stated<u32>>,
    pub(crate) latency: Option<Stated<Option<LatencyTarget>>>,
    pub(crate) allow_unenforced: Option<Stated<bool>>,
    /// Whether it has an error, so that consequences are not reported.
    pub broken: bool,
}

/// Rates of requests and of bytes, one or both.
#[derive(Debug, Clone, Default)]
pub(crate) struct Rates {
    pub(crate) iops: Option<(StatedIops, Span)>,
    pub(crate) bytes: Option<ByteRate>,
}

impl Rates {
    fn limit(&self) -> Limit {
        Limit { iops: self.iops.map(|(stated, _)| stated.iops), bytes: self.bytes }
    }
}

/// Both forms of a burst.
#[derive(Debug, Clone)]
pub(crate) enum Burst {
    Requests(u32),
    Timed(Rates, Duration),
}

impl Part {
    /// The policy fields of a table.
    pub fn read(reader: &Reader<'_>) -> Part {
        let before = reader.report.errors();
        let part = Part {
            reservation: read_reservation(reader).map(|rates| reader.stated("reservation", rates)),
            limit: read_limit(reader, "limit"),
            read_limit: read_limit(reader, "read_limit"),
            write_limit: read_limit(reader, "write_limit"),
            weight: read_weight(reader).map(|weight| reader.stated("weight", weight)),
            burst: read_burst(reader).map(|burst| reader.stated("burst", burst)),
            idle_credit: reader.small("idle_credit").map(|credit| reader.stated("idle_credit", credit)),
            class: reader.word("class").map(|class| reader.stated("class", class_of(class))),
            priority_class: reader
                .word("priority_class")
                .map(|class| reader.stated("priority_class", priority_class_of(class))),
            priority_level: reader.small("priority_level").map(|level| reader.stated("priority_level", level)),
            latency: read_latency(reader).map(|target| reader.stated("latency", target)),
            allow_unenforced: reader.bool("allow_unenforced").map(|allow| reader.stated("allow_unenforced", allow)),
            broken: false,
        };
        Part { broken: reader.report.errors() > before, ..part }
    }

    /// This, overridden by the fields of `over`.
    pub fn overlaid(&self, over: Part) -> Part {
        let base = self.clone();
        Part {
            reservation: over.reservation.or(base.reservation),
            limit: over.limit.or(base.limit),
            read_limit: over.read_limit.or(base.read_limit),
            write_limit: over.write_limit.or(base.write_limit),
            weight: over.weight.or(base.weight),
            burst: over.burst.or(base.burst),
            idle_credit: over.idle_credit.or(base.idle_credit),
            class: over.class.or(base.class),
            priority_class: over.priority_class.or(base.priority_class),
            priority_level: over.priority_level.or(base.priority_level),
            latency: over.latency.or(base.latency),
            allow_unenforced: over.allow_unenforced.or(base.allow_unenforced),
            broken: over.broken || base.broken,
        }
    }

    /// The resulting policy; the sizes after an `@` are checked against each device separately.
    pub fn policy(&self) -> Policy {
        let default = Policy::default();
        let limit =
            |stated: &Option<Stated<Rates>>| stated.as_ref().map_or(Limit::default(), |stated| stated.value.limit());
        let Limit { iops, bytes } = limit(&self.reservation);
        let (burst, timed_burst) = match self.burst.as_ref().map(|stated| &stated.value) {
            None => (None, None),
            Some(Burst::Requests(requests)) => (Some(*requests), None),
            Some(Burst::Timed(rates, length)) => (None, Some(TimedBurst { rate: rates.limit(), length: *length })),
        };
        Policy {
            reservation: Reservation { iops, bytes },
            limit: limit(&self.limit),
            read_limit: limit(&self.read_limit),
            write_limit: limit(&self.write_limit),
            weight: self.weight.as_ref().map_or(default.weight, |stated| stated.value),
            burst,
            timed_burst,
            idle_credit: self.idle_credit.as_ref().map_or(default.idle_credit, |stated| stated.value),
            latency: self.latency.as_ref().and_then(|stated| stated.value),
            class: self.class.as_ref().map_or(default.class, |stated| stated.value),
            priority_class: self.priority_class.as_ref().map_or(default.priority_class, |stated| stated.value),
            priority_level: self.priority_level.as_ref().map_or(default.priority_level, |stated| stated.value as u8),
        }
    }

    /// Whether fields that no scheduler enforces are accepted.
    pub(crate) fn allows_unenforced(&self) -> bool {
        self.allow_unenforced.as_ref().is_some_and(|stated| stated.value)
    }

    /// Whether any field is stated.
    pub fn states_anything(&self) -> bool {
        self.allow_unenforced.is_some() || Field::ALL.into_iter().any(|field| self.span_of(field).is_some())
    }

    /// Span of a field, and the table that it belongs to.
    pub(crate) fn span_of(&self, field: Field) -> Option<(Span, Arc<str>)> {
        match field {
            Field::Reservation => self.reservation.as_ref().map(Stated::place),
            Field::Limit => self.limit.as_ref().map(Stated::place),
            Field::ReadLimit => self.read_limit.as_ref().map(Stated::place),
            Field::WriteLimit => self.write_limit.as_ref().map(Stated::place),
            Field::Weight => self.weight.as_ref().map(Stated::place),
            Field::Burst => self.burst.as_ref().map(Stated::place),
            Field::IdleCredit => self.idle_credit.as_ref().map(Stated::place),
            Field::Latency => self.latency.as_ref().map(Stated::place),
            Field::Class => self.class.as_ref().map(Stated::place),
            Field::PriorityClass => self.priority_class.as_ref().map(Stated::place),
            Field::PriorityLevel => self.priority_level.as_ref().map(Stated::place),
        }
    }

    /// All rates of requests, with their keys and the tables that they belong to.
    pub(crate) fn stated_iops(&self) -> impl Iterator<Item = (&'static str, &Arc<str>, StatedIops, Span)> {
        let rates = [
            ("reservation", &self.reservation),
            ("limit", &self.limit),
            ("read_limit", &self.read_limit),
            ("write_limit", &self.write_limit),
        ];
        let rates = rates.into_iter().filter_map(|(key, stated)| {
            let stated = stated.as_ref()?;
            Some((key, &stated.whose, &stated.value))
        });
        let burst = self.burst.as_ref().and_then(|stated| match &stated.value {
            Burst::Timed(rates, _) => Some(("burst.rate", &stated.whose, rates)),
            Burst::Requests(_) => None,
        });
        rates.chain(burst).filter_map(|(key, whose, rates)| {
            let (iops, span) = rates.iops?;
            Some((key, whose, iops, span))
        })
    }
}

fn priority_class_of(word: &str) -> PriorityClass {
    match word {
        "real-time" => PriorityClass::RealTime,
        "idle" => PriorityClass::Idle,
        _ => PriorityClass::BestEffort,
    }
}

fn class_of(word: &str) -> Class {
    if word == "background" { Class::Background } else { Class::Foreground }
}

/// A rate stated directly as the value of `key`.
fn read_rate(reader: &Reader<'_>, key: &str) -> Option<Rates> {
    match parse_rate(reader.text(key)?) {
        Ok(Rate::Requests(iops)) => Some(Rates { iops: Some((iops, reader.at(key))), bytes: None }),
        Ok(Rate::Bytes(bytes)) => Some(Rates { iops: None, bytes: Some(bytes) }),
        Err(misread) => {
            reader.refuse_misread(key, misread);
            None
        }
    }
}

fn read_reservation(reader: &Reader<'_>) -> Option<Rates> {
    const KEY: &str = "reservation";
    match &reader.node(KEY)?.value {
        Value::Table(_) => read_reservation_table(&reader.table(KEY)?),
        Value::Text(text) if text == "none" => Some(Rates::default()),
        value if is_zero(value) => {
            reader.refuse(KEY, "0 is not a reservation", "for no reservation write \"none\", or remove the key");
            None
        }
        _ => read_rate(reader, KEY),
    }
}

fn read_reservation_table(reader: &Reader<'_>) -> Option<Rates> {
    let iops = reader.iops("iops").map(|iops| (iops, reader.at("iops")));
    let bytes = reader.byte_rate("bytes");
    let stated = |key| reader.node(key).is_some();
    if !stated("outstanding") && !stated("latency") {
        if !stated("iops") && !stated("bytes") {
            reader.missing("iops", ", and so is bytes");
        }
        return Some(Rates { iops, bytes });
    }
    if stated("iops") {
        let hint = "keep either iops, or outstanding and latency, from which iops is calculated";
        reader.refuse("iops", "the rate is stated twice", hint);
        return None;
    }
    for key in ["outstanding", "latency"].into_iter().filter(|key| !stated(key)) {
        reader.missing(key, "; the rate is calculated from outstanding and latency together");
    }
    let (outstanding, latency) = (reader.small("outstanding"), reader.time("latency"));
    let iops = StatedIops { iops: reservation_for(outstanding?, latency?), size: None };
    Some(Rates { iops: Some((iops, reader.span)), bytes })
}

fn read_limit(reader: &Reader<'_>, key: &str) -> Option<Stated<Rates>> {
    let rates = match &reader.node(key)?.value {
        Value::Table(_) => {
            let table = reader.table(key)?;
            let iops = limited(&table, "iops").and_then(|()| table.iops("iops")).map(|iops| (iops, table.at("iops")));
            let bytes = limited(&table, "bytes").and_then(|()| table.byte_rate("bytes"));
            Rates { iops, bytes }
        }
        Value::Text(text) if text == "unlimited" => Rates::default(),
        _ => limited(reader, key).and_then(|()| read_rate(reader, key))?,
    };
    Some(reader.stated(key, rates))
}

/// The CPU time that a policy or a VM allows, if that is stated; `Some(None)`: any.
pub(crate) fn read_cpu_limit(reader: &Reader<'_>) -> Option<Option<Percent>> {
    const KEY: &str = "cpu_limit";
    match &reader.node(KEY)?.value {
        Value::Text(text) if text == "unlimited" => Some(None),
        _ => limited(reader, KEY).and_then(|()| reader.percent(KEY)).map(Some),
    }
}

fn read_burst(reader: &Reader<'_>) -> Option<Burst> {
    const KEY: &str = "burst";
    let Value::Table(_) = &reader.node(KEY)?.value else { return reader.small(KEY).map(Burst::Requests) };
    let table = reader.table(KEY)?;
    for key in ["rate", "for"].into_iter().filter(|key| table.node(key).is_none()) {
        table.missing(key, "; a burst has a rate and a time");
    }
    let length = table.time("for");
    let rates = match &table.node("rate")?.value {
        Value::Table(_) => {
            let rates = table.table("rate")?;
            let iops = rates.iops("iops").map(|iops| (iops, rates.at("iops")));
            let bytes = rates.byte_rate("bytes");
            if iops.is_none() && bytes.is_none() {
                rates.missing("iops", ", and so is bytes");
            }
            Rates { iops, bytes }
        }
        _ => read_rate(&table, "rate")?,
    };
    Some(Burst::Timed(rates, length?))
}

/// Whether a limit is stated under `key`: neither `unlimited`, nor 0 or `none`, which are rejected.
pub(crate) fn limited(reader: &Reader<'_>, key: &str) -> Option<()> {
    let word = match &reader.node(key)?.value {
        Value::Text(text) if text == "unlimited" => return None,
        Value::Text(text) if text == "none" => "'none'",
        value if is_zero(value) => "0",
        _ => return Some(()),
    };
    reader.refuse(key, format!("{word} is not a limit"), "for no limit write \"unlimited\"");
    None
}

/// Whether it is 0, with or without a unit.
pub(crate) fn is_zero(value: &Value) -> bool {
    let number = match value {
        Value::Text(text) => {
            text.trim().split(|c: char| !c.is_ascii_digit() && c != '.').next().unwrap_or("").parse().ok()
        }
        other => number_of(other),
    };
    number == Some(0.0)
}

pub(crate) fn read_weight(reader: &Reader<'_>) -> Option<Option<Weight>> {
    const KEY: &str = "weight";
    let node = reader.node(KEY)?;
    match (&node.value, number_of(&node.value)) {
        (Value::Text(text), _) if text == "none" => Some(None),
        (_, Some(number)) => match parse_weight(number) {
            Ok(weight) => Some(Some(weight)),
            Err(misread) => {
                reader.refuse_misread(KEY, misread);
                None
            }
        },
        _ => {
            reader.wrong_kind(KEY, node);
            None
        }
    }
}

fn read_latency(reader: &Reader<'_>) -> Option<Option<LatencyTarget>> {
    const KEY: &str = "latency";
    let node = reader.node(KEY)?;
    let table = match &node.value {
        Value::Text(text) if text == "none" => return Some(None),
        Value::Text(_) => {
            reader.wrong_kind(KEY, node);
            return None;
        }
        _ => reader.table(KEY)?,
    };
    let reads_only = table.bool("reads_only").unwrap_or(false);
    if table.node("p99").is_none() {
        table.missing("p99", "");
    }
    Some(Some(LatencyTarget { p99: table.time("p99")?, reads_only }))
}
