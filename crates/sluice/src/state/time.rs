//! Time of day. It is an argument everywhere else, so that tests can choose it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// A time of day, in whole seconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Time(pub(crate) u64);

impl Time {
    pub(crate) fn now() -> Time {
        Time(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()))
    }

    /// Time from `now` until this, in whole seconds; zero if it has passed.
    pub(crate) fn from(self, now: Time) -> Duration {
        Duration::from_secs(self.0.saturating_sub(now.0))
    }
}

impl core::fmt::Display for Time {
    /// For example `2026-11-23T03:05:00Z`.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let time = UNIX_EPOCH + Duration::from_secs(self.0.min(LAST));
        write!(f, "{}", humantime::format_rfc3339_seconds(time))
    }
}

/// The end of the year 9999, after which dates cannot be written.
const LAST: u64 = 253_402_300_799;
