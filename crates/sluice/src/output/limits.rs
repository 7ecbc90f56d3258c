//! How many lines of the log one VM may cause: what tenants do decides what is logged of them, and their lines must not
//! drown those of others.
//!
//! Lines are counted by kind (the place in the code that logs them) and by what they name: a VM, else an endpoint, else a
//! device. [`BURST`] lines come at once, then one per [`EVERY`]. What is left out is counted, and every [`REPORT_EVERY`] a
//! line says how much that was.
//!
//! Example: a client sends 20,000 wrong handshakes per second to the socket of VM `a`. The log gets 32 lines at once, then
//! one per second, and every 5 seconds one that says "Lines left out" with `lines=99995`.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::layer::{Context, Layer};

/// Lines of one kind about one VM that come at once. A VM with 26 disks has as many VMMs that connect.
const BURST: u32 = 32;
/// After them there may be one in this time.
const EVERY: Duration = Duration::from_secs(1);
/// How often what was left out is said.
const REPORT_EVERY: Duration = Duration::from_secs(5);
/// Kinds and VMs that are counted for themselves; further ones are counted by kind alone.
const COUNTED_MAX: usize = 8192;

/// Lets lines through at the rate that is theirs.
#[derive(Clone, Default)]
pub(crate) struct Limits {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    counts: Mutex<BTreeMap<Key, Count>>,
    left_out: Condvar,
}

/// The place in the code, and what the line names.
type Key = (&'static str, String);

struct Count {
    /// When it would have been full again had its lines come one per [`EVERY`].
    full_at: Instant,
    left_out: u64,
    /// Of the first line that was left out.
    message: String,
}

/// Lines that were left out.
#[derive(Debug, PartialEq, Eq)]
struct LeftOut {
    about: String,
    message: String,
    lines: u64,
}

impl Limits {
    /// Starts a thread that says what was left out.
    pub(crate) fn start(self) -> std::io::Result<()> {
        thread::Builder::new().name("log-limits".to_owned()).spawn(move || {
            loop {
                self.wait();
                thread::sleep(REPORT_EVERY);
                self.report();
            }
        })?;
        Ok(())
    }

    /// Says what was left out since the last report.
    pub(crate) fn report(&self) {
        for LeftOut { about, message, lines } in self.take_left_out(Instant::now()) {
            tracing::warn!(about, first = message, lines, "Lines left out");
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Key, Count>> {
        self.shared.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Until something is left out.
    fn wait(&self) {
        let none = |counts: &mut BTreeMap<Key, Count>| counts.values().all(|count| count.left_out == 0);
        drop(self.shared.left_out.wait_while(self.lock(), none));
    }

    /// Whether a line may be logged now.
    fn admit(&self, now: Instant, place: &'static str, about: String, message: impl FnOnce() -> String) -> bool {
        let mut counts = self.lock();
        let mut key = (place, about);
        if counts.len() >= COUNTED_MAX && !counts.contains_key(&key) {
            // With the next report, those that have been silent are forgotten.
            key.1 = "others".to_owned();
        }
        let count = counts.entry(key).or_insert(Count { full_at: now, left_out: 0, message: String::new() });
        let full_at = count.full_at.max(now) + EVERY;
        if full_at <= now + EVERY * BURST {
            count.full_at = full_at;
            return true;
        }
        if count.left_out == 0 {
            count.message = message();
        }
        count.left_out += 1;
        if count.left_out == 1 {
            self.shared.left_out.notify_one();
        }
        false
    }

    fn take_left_out(&self, now: Instant) -> Vec<LeftOut> {
        let mut counts = self.lock();
        let mut left_out = Vec::new();
        for ((_, about), count) in counts.iter_mut().filter(|(_, count)| count.left_out > 0) {
            let (message, lines) = (std::mem::take(&mut count.message), std::mem::take(&mut count.left_out));
            left_out.push(LeftOut { about: about.clone(), message, lines });
        }
        counts.retain(|_, count| count.full_at > now);
        left_out
    }
}

impl<S: Subscriber> Layer<S> for Limits {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let mut named = Named::default();
        event.record(&mut named);
        let Named { about, message, .. } = named;
        // What this file says is bounded already.
        let own = event.metadata().target() == module_path!();
        own || self.admit(Instant::now(), event.metadata().name(), about, || message)
    }
}

/// What a line names, by rank: a VM above an endpoint above a device.
#[derive(Default)]
struct Named {
    rank: u8,
    about: String,
    message: String,
}

impl Visit for Named {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let rank = match field.name() {
            "message" => {
                self.message = format!("{value:?}");
                return;
            }
            "vm" => 3,
            "endpoint" => 2,
            "device" => 1,
            _ => return,
        };
        if rank > self.rank {
            (self.rank, self.about) = (rank, format!("{} {value:?}", field.name()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admit(limits: &Limits, now: Instant, about: &str) -> bool {
        limits.admit(now, "here", about.to_owned(), || format!("{about} did it"))
    }

    #[test]
    fn one_vms_flood_is_cut_and_counted_and_anothers_line_comes_through() {
        let (limits, now) = (Limits::default(), Instant::now());
        let admitted = (0..40_000).filter(|_| admit(&limits, now, "vm a")).count();
        assert_eq!(admitted, BURST as usize);
        assert!(admit(&limits, now, "vm b"));
        let lines = 40_000 - u64::from(BURST);
        let expected = LeftOut { about: "vm a".to_owned(), message: "vm a did it".to_owned(), lines };
        assert_eq!(limits.take_left_out(now), [expected]);
        assert_eq!(limits.take_left_out(now), [], "it is said once");
        // One more for each second that passes.
        assert!(!admit(&limits, now, "vm a"));
        let later = now + EVERY * 2;
        assert_eq!((0..10).filter(|_| admit(&limits, later, "vm a")).count(), 2);
    }

    #[test]
    fn names_without_end_are_counted_together() {
        let (limits, now) = (Limits::default(), Instant::now());
        let admitted = (0..COUNTED_MAX * 3).filter(|n| admit(&limits, now, &format!("vm {n}"))).count();
        assert_eq!(admitted, COUNTED_MAX + BURST as usize);
        assert!(limits.lock().len() <= COUNTED_MAX + 1);
        // When they have been silent there is room again.
        let later = now + EVERY * (BURST + 1);
        limits.take_left_out(later);
        assert!(limits.lock().is_empty() && admit(&limits, later, "vm 1"));
    }
}
