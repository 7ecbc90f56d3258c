//! The network half of policies: the fields of each `net` table, and how inner tables override named policies.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use sluice_sched::policy::{Field, LatencyTarget};
use sluice_sched::{ByteRate, CostModel, Limit, Policy, Reservation, Weight};

use crate::model::{NetPolicy, Receive};
use crate::policy::{is_zero, limited, read_weight};
use crate::quantity::parse_weight;
use crate::reader::{Reader, Stated};
use crate::source::Span;
use crate::tree::Value;

/// Fields of one table, or of several that override each other.
#[derive(Debug, Clone, Default)]
pub(crate) struct NetPart {
    reservation: Option<Stated<Option<ByteRate>>>,
    limit: Option<Stated<Option<ByteRate>>>,
    weight: Option<Stated<Option<Weight>>>,
    burst: Option<Stated<Duration>>,
    latency: Option<Stated<Option<Duration>>>,
    allow_unenforced: Option<Stated<bool>>,
    receive_limit: Option<Stated<Option<ByteRate>>>,
    receive_weight: Option<Stated<Weight>>,
    /// Whether it has an error, so that consequences are not reported.
    pub(crate) broken: bool,
}

impl NetPart {
    /// The fields of a table.
    pub(crate) fn read(reader: &Reader<'_>) -> NetPart {
        let before = reader.report.errors();
        let receive = reader.table("receive");
        let part = NetPart {
            reservation: read_reservation(reader),
            limit: read_limit(reader),
            weight: read_weight(reader).map(|weight| reader.stated("weight", weight)),
            burst: reader.time("burst").map(|burst| reader.stated("burst", burst)),
            latency: read_latency(reader).map(|target| reader.stated("latency", target)),
            allow_unenforced: reader.bool("allow_unenforced").map(|allow| reader.stated("allow_unenforced", allow)),
            receive_limit: receive.as_ref().and_then(read_limit),
            receive_weight: receive.as_ref().and_then(read_receive_weight),
            broken: false,
        };
        NetPart { broken: reader.report.errors() > before, ..part }
    }

    /// The table `net` of a VM or a named policy.
    pub(crate) fn read_table(reader: &Reader<'_>) -> NetPart {
        let before = reader.report.errors();
        let part = reader.table("net").map(|table| NetPart::read(&table)).unwrap_or_default();
        NetPart { broken: reader.report.errors() > before, ..part }
    }

    /// This, overridden by the fields of `over`.
    fn overlaid(&self, over: NetPart) -> NetPart {
        let base = self.clone();
        NetPart {
            reservation: over.reservation.or(base.reservation),
            limit: over.limit.or(base.limit),
            weight: over.weight.or(base.weight),
            burst: over.burst.or(base.burst),
            latency: over.latency.or(base.latency),
            allow_unenforced: over.allow_unenforced.or(base.allow_unenforced),
            receive_limit: over.receive_limit.or(base.receive_limit),
            receive_weight: over.receive_weight.or(base.receive_weight),
            broken: over.broken || base.broken,
        }
    }

    /// The resulting policy.
    pub(crate) fn policy(&self) -> NetPolicy {
        fn value<T: Copy>(stated: &Option<Stated<T>>) -> Option<T> {
            stated.as_ref().map(|stated| stated.value)
        }
        let (limit, burst) = (value(&self.limit).flatten(), value(&self.burst));
        let transmit = Policy {
            reservation: Reservation { iops: None, bytes: value(&self.reservation).flatten() },
            limit: Limit { iops: None, bytes: limit },
            weight: value(&self.weight).unwrap_or(Policy::default().weight),
            burst: limit.zip(burst).map(|(limit, burst)| frames_of(limit, burst)),
            latency: value(&self.latency).flatten().map(|p99| LatencyTarget { p99, reads_only: false }),
            ..Policy::default()
        };
        let receive = Receive { limit: value(&self.receive_limit).flatten(), weight: value(&self.receive_weight) };
        NetPolicy { transmit, burst, receive }
    }

    /// Whether it states a limit for receiving, or that there is none.
    pub(crate) fn limits_receive(&self) -> bool {
        self.receive_limit.is_some()
    }

    /// Whether fields that no scheduler enforces are accepted.
    pub(crate) fn allows_unenforced(&self) -> bool {
        self.allow_unenforced.as_ref().is_some_and(|stated| stated.value)
    }

    /// Whether any field is stated.
    fn states_anything(&self) -> bool {
        let receives = self.receive_limit.is_some() || self.receive_weight.is_some();
        receives || self.allow_unenforced.is_some() || Field::ALL.into_iter().any(|field| self.span_of(field).is_some())
    }

    /// Span of a field, and the table that it belongs to.
    pub(crate) fn span_of(&self, field: Field) -> Option<(Span, Arc<str>)> {
        match field {
            Field::Reservation => self.reservation.as_ref().map(Stated::place),
            Field::Limit => self.limit.as_ref().map(Stated::place),
            Field::Weight => self.weight.as_ref().map(Stated::place),
            Field::Burst => self.burst.as_ref().map(Stated::place),
            Field::Latency => self.latency.as_ref().map(Stated::place),
            Field::ReadLimit
            | Field::WriteLimit
            | Field::IdleCredit
            | Field::Class
            | Field::PriorityClass
            | Field::PriorityLevel => None,
        }
    }
}

/// The network half of the named policy overridden by the table's own fields, and whether there are any. A NIC has them among
/// its other keys.
pub(crate) fn read_net_policy(reader: &Reader<'_>, policies: &BTreeMap<String, NetPart>) -> (NetPart, bool) {
    let has_policy = reader.node("policy").is_some();
    let named = reader.known("policy", policies);
    overlay(NetPart::read(reader), named.and_then(|name| policies.get(name)), has_policy)
}

/// The same for a VM, which has them in its table `net`. Its `policy` is checked with those of its disks.
pub(crate) fn read_net_table(reader: &Reader<'_>, policies: &BTreeMap<String, NetPart>) -> (NetPart, bool) {
    let name = match reader.node("policy").map(|node| &node.value) {
        Some(Value::Text(name)) => Some(name.as_str()),
        _ => None,
    };
    let has_policy = reader.node("policy").is_some();
    overlay(NetPart::read_table(reader), name.and_then(|name| policies.get(name)), has_policy)
}

fn overlay(own: NetPart, base: Option<&NetPart>, has_policy: bool) -> (NetPart, bool) {
    let has_own = own.broken || own.states_anything();
    match base {
        Some(base) => (base.overlaid(own), has_own),
        // An unknown name is reported; missing fields must not be reported again.
        None => (NetPart { broken: own.broken || has_policy, ..own }, has_own),
    }
}

/// A burst in full frames: one, and those of the time at this rate. Saturates; the check of the policy rejects too many.
fn frames_of(limit: ByteRate, burst: Duration) -> u32 {
    let frame = u128::from(CostModel::frames().reference_size().0);
    let bytes = (u128::from(limit.bytes_per_second()) * burst.as_nanos()).div_ceil(1_000_000_000);
    u32::try_from(bytes.div_ceil(frame)).unwrap_or(u32::MAX).saturating_add(1)
}

fn read_reservation(reader: &Reader<'_>) -> Option<Stated<Option<ByteRate>>> {
    const KEY: &str = "reservation";
    let rate = match &reader.node(KEY)?.value {
        Value::Text(text) if text == "none" => None,
        value if is_zero(value) => {
            reader.refuse(KEY, "0 is not a reservation", "for no reservation write \"none\", or remove the key");
            return None;
        }
        _ => Some(read_rate(reader, KEY)?),
    };
    Some(reader.stated(KEY, rate))
}

fn read_limit(reader: &Reader<'_>) -> Option<Stated<Option<ByteRate>>> {
    const KEY: &str = "limit";
    let rate = match &reader.node(KEY)?.value {
        Value::Text(text) if text == "unlimited" => None,
        _ => Some(limited(reader, KEY).and_then(|()| read_rate(reader, KEY))?),
    };
    Some(reader.stated(KEY, rate))
}

/// A rate in bits or bytes. Rates as of disks are rejected with the reason.
fn read_rate(reader: &Reader<'_>, key: &str) -> Option<ByteRate> {
    let counts_requests = match &reader.node(key)?.value {
        Value::Text(text) => text.contains("iops") || text.contains('@'),
        Value::Table(table) => table.entries.contains_key("iops"),
        _ => false,
    };
    if counts_requests {
        let hint = "write a bit rate, for example \"200Mbit/s\"";
        reader.refuse(key, "a rate of requests, but the size of frames varies and the link carries bits", hint);
        return None;
    }
    reader.link_rate(key)
}

fn read_latency(reader: &Reader<'_>) -> Option<Option<Duration>> {
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
    if table.node("p99").is_none() {
        table.missing("p99", "");
    }
    table.time("p99").map(Some)
}

fn read_receive_weight(reader: &Reader<'_>) -> Option<Stated<Weight>> {
    const KEY: &str = "weight";
    let weight = parse_weight(reader.decimal(KEY)?).map_err(|misread| reader.refuse_misread(KEY, misread)).ok()?;
    Some(reader.stated(KEY, weight))
}
