//! Overrides that are in force although their time is over.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Interval between attempts to end what is over and in use.
const IN_USE_EVERY: Duration = Duration::from_secs(2);
/// Interval between attempts to end what is over and whose end was refused.
const REFUSED_EVERY: Duration = Duration::from_secs(10);
/// Time after a start in which clients reconnect to what was attached for a time that is over now.
const RECONNECT_MAX: Duration = Duration::from_secs(30);

/// Overrides that are in force although their time is over, by name.
#[derive(Default)]
pub struct Overdue(pub(super) BTreeMap<String, Kept>);

pub(super) struct Kept {
    pub(super) why: Why,
    /// Time of the next attempt to end it.
    pub(super) again: Instant,
}

/// Why an override is in force although its time is over.
#[derive(PartialEq)]
pub(super) enum Why {
    /// Its end would close a volume in use.
    InUse,
    /// Its end was refused, with this error.
    Refused(String),
}

impl Overdue {
    /// After a start: leaves what is over in force until its clients have had time to reconnect.
    pub(super) fn at_start(over: impl Iterator<Item = String>) -> Overdue {
        let again = Instant::now() + RECONNECT_MAX;
        Overdue(over.map(|name| (name, Kept { why: Why::InUse, again })).collect())
    }

    /// Returns why it is in force, for `sluice get overrides`.
    pub fn in_words(&self, name: &str) -> Option<&'static str> {
        self.0.get(name).map(|kept| match kept.why {
            Why::InUse => "kept while its volume is in use",
            Why::Refused(_) => "cannot end yet, see the log",
        })
    }

    /// Leaves an override in force for now. Returns whether this is new, or the reason is.
    pub(super) fn keep(&mut self, name: &str, why: Why) -> bool {
        let every = if why == Why::InUse { IN_USE_EVERY } else { REFUSED_EVERY };
        let is_new = self.0.get(name).is_none_or(|known| known.why != why);
        self.0.insert(name.to_owned(), Kept { why, again: Instant::now() + every });
        is_new
    }
}
