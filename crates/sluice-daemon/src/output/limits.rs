//! Limits of log lines per VM. Tenants cause log lines, and the lines of one must not drown those of others.
//!
//! Lines are counted by kind (the call site that logs them) and by subject: a VM, otherwise an endpoint,
//! otherwise a device. [`BURST`] lines pass immediately, then one per [`EVERY`]. Suppressed lines are counted, and
//! reported every [`REPORT_EVERY`]. Lines about changes of the configuration are not counted ([`is_record`]).
//!
//! Example: a client sends 20,000 invalid handshakes per second to the socket of VM `a`. The log gets 32 lines
//! immediately, then one per second, and every 5 seconds a line "Log lines suppressed" with `lines=99995`.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::layer::{Context, Layer};

/// Maximum burst of lines of one kind about one VM. A VM with 26 disks has as many VMM connections.
const BURST: u32 = 32;
/// Interval between further lines.
const EVERY: Duration = Duration::from_secs(1);
/// Interval between reports of suppressed lines.
const REPORT_EVERY: Duration = Duration::from_secs(5);
/// Maximum number of separate counters; further kinds and subjects are counted by kind only.
const COUNTED_MAX: usize = 8192;

/// A log filter that limits the rate of lines.
#[derive(Clone, Default)]
pub(super) struct Limits {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    counts: Mutex<BTreeMap<Key, Count>>,
    left_out: Condvar,
}

/// The call site, and the subject of the line.
type Key = (&'static str, String);

struct Count {
    /// Time at which the whole burst is available again.
    full_at: Instant,
    left_out: u64,
    /// Message of the first suppressed line.
    message: String,
}

/// Suppressed lines.
#[derive(Debug, PartialEq, Eq)]
struct Suppressed {
    about: String,
    message: String,
    lines: u64,
}

impl Limits {
    /// Starts the thread that reports suppressed lines.
    pub(super) fn start(self) -> std::io::Result<()> {
        thread::Builder::new().name("log-limits".to_owned()).spawn(move || {
            loop {
                self.wait();
                thread::sleep(REPORT_EVERY);
                self.report();
            }
        })?;
        Ok(())
    }

    /// Reports the lines suppressed since the last report.
    pub(super) fn report(&self) {
        for Suppressed { about, message, lines } in self.take_suppressed(Instant::now()) {
            tracing::warn!(about, first = message, lines, "Log lines suppressed");
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Key, Count>> {
        self.shared.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a line is suppressed.
    fn wait(&self) {
        let none = |counts: &mut BTreeMap<Key, Count>| counts.values().all(|count| count.left_out == 0);
        drop(self.shared.left_out.wait_while(self.lock(), none));
    }

    /// Whether a line may be logged now.
    fn admit(&self, now: Instant, callsite: &'static str, about: String, message: impl FnOnce() -> String) -> bool {
        let mut counts = self.lock();
        let mut key = (callsite, about);
        if counts.len() >= COUNTED_MAX && !counts.contains_key(&key) {
            // The next report removes counters without recent lines.
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

    fn take_suppressed(&self, now: Instant) -> Vec<Suppressed> {
        let mut counts = self.lock();
        let mut left_out = Vec::new();
        for ((_, about), count) in counts.iter_mut().filter(|(_, count)| count.left_out > 0) {
            let (message, lines) = (std::mem::take(&mut count.message), std::mem::take(&mut count.left_out));
            left_out.push(Suppressed { about: about.clone(), message, lines });
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
        // The lines of this file are limited already.
        let own = event.metadata().target() == module_path!();
        own || is_record(event.metadata().target(), &about)
            || self.admit(Instant::now(), event.metadata().name(), about, || message)
    }
}

/// Whether a line is the record of a change. Those who may make changes cause it, not tenants, and nothing else says who has changed
/// what: `sluice set 'web*'` changes a thousand VMs at once, with a line for each.
fn is_record(target: &str, about: &str) -> bool {
    let modules = ["control::apply", "control::plan", "control::changer", "state"];
    let own = target.strip_prefix(concat!(env!("CARGO_CRATE_NAME"), "::"));
    about.is_empty() && own.is_some_and(|target| modules.iter().any(|module| target.starts_with(module)))
}

/// The subject of a line, by rank: a VM before an endpoint before a device.
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
    fn a_flood_of_one_vm_does_not_suppress_lines_of_another() {
        let (limits, now) = (Limits::default(), Instant::now());
        let admitted = (0..40_000).filter(|_| admit(&limits, now, "vm a")).count();
        assert_eq!(admitted, BURST as usize);
        assert!(admit(&limits, now, "vm b"));
        let lines = 40_000 - u64::from(BURST);
        let expected = Suppressed { about: "vm a".to_owned(), message: "vm a did it".to_owned(), lines };
        assert_eq!(limits.take_suppressed(now), [expected]);
        assert_eq!(limits.take_suppressed(now), [], "it is reported once");
        // One more for each second that passes.
        assert!(!admit(&limits, now, "vm a"));
        let later = now + EVERY * 2;
        assert_eq!((0..10).filter(|_| admit(&limits, later, "vm a")).count(), 2);
    }

    #[test]
    fn names_above_the_maximum_share_a_counter() {
        let (limits, now) = (Limits::default(), Instant::now());
        let admitted = (0..COUNTED_MAX * 3).filter(|n| admit(&limits, now, &format!("vm {n}"))).count();
        assert_eq!(admitted, COUNTED_MAX + BURST as usize);
        assert!(limits.lock().len() <= COUNTED_MAX + 1);
        // Without recent lines the counters are removed.
        let later = now + EVERY * (BURST + 1);
        limits.take_suppressed(later);
        assert!(limits.lock().is_empty() && admit(&limits, later, "vm 1"));
    }
}
