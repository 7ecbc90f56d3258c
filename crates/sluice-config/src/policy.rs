//! Policies: the fields of each table, and how inner tables override named policies.

use std::sync::Arc;

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
    /// The fields that are stated, each once, in order.
    fields: Vec<(Field, Stated<Setting>)>,
    allow_unenforced: Option<Stated<bool>>,
    /// Whether it has an error, so that consequences are not reported.
    pub broken: bool,
}

/// The value of a field as a table states it.
#[derive(Debug, Clone, Copy, Default)]
struct Setting {
    /// Only the field itself counts.
    policy: Policy,
    /// Its rate of requests, if it has one.
    iops: Option<(StatedIops, Span)>,
}

/// Rates of requests and of bytes, one or both.
#[derive(Debug, Clone, Copy, Default)]
struct Rates {
    iops: Option<(StatedIops, Span)>,
    bytes: Option<ByteRate>,
}

impl Rates {
    fn limit(&self) -> Limit {
        Limit { iops: self.iops.map(|(stated, _)| stated.iops), bytes: self.bytes }
    }
}

impl Setting {
    /// The value of a field in a table, if it is stated there.
    fn read(reader: &Reader<'_>, field: Field) -> Option<Setting> {
        let key = field.name();
        let mut setting = Setting::default();
        let Setting { policy, iops } = &mut setting;
        match field {
            Field::Reservation => {
                let rates = read_reservation(reader)?;
                let Limit { iops: requests, bytes } = rates.limit();
                (policy.reservation, *iops) = (Reservation { iops: requests, bytes }, rates.iops);
            }
            Field::Limit | Field::ReadLimit | Field::WriteLimit => {
                let rates = read_limit(reader, key)?;
                *iops = rates.iops;
                match field {
                    Field::ReadLimit => policy.read_limit = rates.limit(),
                    Field::WriteLimit => policy.write_limit = rates.limit(),
                    _ => policy.limit = rates.limit(),
                }
            }
            Field::Weight => policy.weight = read_weight(reader)?,
            Field::Burst => *iops = read_burst(reader, policy)?,
            Field::IdleCredit => policy.idle_credit = reader.small(key)?,
            Field::Latency => policy.latency = read_latency(reader)?,
            Field::Class => policy.class = class_of(reader.word(key)?),
            Field::PriorityClass => policy.priority_class = priority_class_of(reader.word(key)?),
            Field::PriorityLevel => policy.priority_level = reader.small(key)? as u8,
        }
        Some(setting)
    }
}

impl Part {
    /// The policy fields of a table.
    pub fn read(reader: &Reader<'_>) -> Part {
        let before = reader.report.errors();
        let read = |field: Field| Some((field, reader.stated(field.name(), Setting::read(reader, field)?)));
        let fields = Field::ALL.into_iter().filter_map(read).collect();
        let allow_unenforced = reader.bool("allow_unenforced").map(|allow| reader.stated("allow_unenforced", allow));
        Part { fields, allow_unenforced, broken: reader.report.errors() > before }
    }

    /// This, overridden by the fields of `over`.
    pub fn overlaid(&self, over: Part) -> Part {
        let stays = |(field, _): &&(Field, Stated<Setting>)| over.stated(*field).is_none();
        let mut fields: Vec<_> = self.fields.iter().filter(stays).cloned().collect();
        fields.extend(over.fields);
        fields.sort_by_key(|(field, _)| *field);
        let allow_unenforced = over.allow_unenforced.or_else(|| self.allow_unenforced.clone());
        Part { fields, allow_unenforced, broken: over.broken || self.broken }
    }

    /// The resulting policy; the sizes after an `@` are checked against each device separately.
    pub fn policy(&self) -> Policy {
        let mut policy = Policy::default();
        self.fields.iter().for_each(|(field, stated)| field.copy(&stated.value.policy, &mut policy));
        policy
    }

    /// Whether fields that no scheduler enforces are accepted.
    pub(crate) fn allows_unenforced(&self) -> bool {
        self.allow_unenforced.as_ref().is_some_and(|stated| stated.value)
    }

    /// Whether any field is stated.
    pub fn states_anything(&self) -> bool {
        self.allow_unenforced.is_some() || !self.fields.is_empty()
    }

    fn stated(&self, field: Field) -> Option<&Stated<Setting>> {
        self.fields.iter().find(|(known, _)| *known == field).map(|(_, stated)| stated)
    }

    /// Span of a field, and the table that it belongs to.
    pub(crate) fn span_of(&self, field: Field) -> Option<(Span, Arc<str>)> {
        self.stated(field).map(Stated::place)
    }

    /// All rates of requests, with their keys and the tables that they belong to.
    pub(crate) fn stated_iops(&self) -> impl Iterator<Item = (&'static str, &Arc<str>, StatedIops, Span)> {
        self.fields.iter().filter_map(|(field, stated)| {
            let (iops, span) = stated.value.iops?;
            let key = if *field == Field::Burst { "burst.rate" } else { field.name() };
            Some((key, &stated.whose, iops, span))
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

fn read_limit(reader: &Reader<'_>, key: &str) -> Option<Rates> {
    Some(match &reader.node(key)?.value {
        Value::Table(_) => {
            let table = reader.table(key)?;
            let iops = limited(&table, "iops").and_then(|()| table.iops("iops")).map(|iops| (iops, table.at("iops")));
            let bytes = limited(&table, "bytes").and_then(|()| table.byte_rate("bytes"));
            Rates { iops, bytes }
        }
        Value::Text(text) if text == "unlimited" => Rates::default(),
        _ => limited(reader, key).and_then(|()| read_rate(reader, key))?,
    })
}

/// The CPU time that a policy or a VM allows, if that is stated; `Some(None)`: any.
pub(crate) fn read_cpu_limit(reader: &Reader<'_>) -> Option<Option<Percent>> {
    const KEY: &str = "cpu_limit";
    match &reader.node(KEY)?.value {
        Value::Text(text) if text == "unlimited" => Some(None),
        _ => limited(reader, KEY).and_then(|()| reader.percent(KEY)).map(Some),
    }
}

/// Sets the burst, in requests or for a time. Returns its rate of requests, if it has one.
fn read_burst(reader: &Reader<'_>, policy: &mut Policy) -> Option<Option<(StatedIops, Span)>> {
    const KEY: &str = "burst";
    let Value::Table(_) = &reader.node(KEY)?.value else {
        policy.burst = Some(reader.small(KEY)?);
        return Some(None);
    };
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
    policy.timed_burst = Some(TimedBurst { rate: rates.limit(), length: length? });
    Some(rates.iops)
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
