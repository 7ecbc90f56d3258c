//! Supervisor of a device thread. When the thread panics or its ring fails, the supervisor ends its connections and
//! restarts it. Other devices are not affected.
//!
//! A thread that fails again soon after a restart is restarted after ever longer pauses, and stays down after the last one:
//! a device that cannot serve must not look as if it did. Whatever reads the state of a thread that has failed may fail
//! too, so nothing of it runs outside of a `catch_unwind`.
//!
//! Example: a request that makes the thread panic is submitted again by its guest after each restart. The thread is
//! restarted at once, then after 0.1, 0.2, 0.4, 0.8 and 1.6 s, and after the seventh failure the device is down.

use std::io;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use sluice_sched::Gate;

use crate::backend::delay::Delay;
use crate::backend::disk::Backend;
use crate::backend::ring::Ring;
use crate::backend::slot_log;
use crate::device::blocking::{self, Helper};
use crate::device::core::{Core, Ending};
use crate::device::event_loop::Loop;
use crate::device::mailbox::{Inbox, Mailbox};
use crate::device::spec::{DeviceSpec, Edit, Health, Snapshot};

/// The pauses before the restarts of a thread that fails again and again.
const PAUSES: [Duration; 6] = [
    Duration::ZERO,
    Duration::from_millis(100),
    Duration::from_millis(200),
    Duration::from_millis(400),
    Duration::from_millis(800),
    Duration::from_millis(1600),
];
/// A thread that has run for so long does not fail again and again.
const SOUND_AFTER: Duration = Duration::from_secs(60);

/// What others can see of a device thread without asking it.
pub(crate) struct Life {
    health: AtomicU8,
    restarts: AtomicU64,
    /// Called when the device goes down.
    went_down: Box<dyn Fn() + Send + Sync>,
}

impl Life {
    pub(crate) fn new(went_down: Box<dyn Fn() + Send + Sync>) -> Self {
        Life { health: AtomicU8::new(Health::Serving as u8), restarts: AtomicU64::new(0), went_down }
    }

    pub(crate) fn health(&self) -> Health {
        let known = [Health::Serving, Health::Restarting, Health::Down, Health::Ended];
        let is = self.health.load(Ordering::Acquire);
        known.into_iter().find(|health| *health as u8 == is).expect("only these are stored")
    }

    /// Restarts so far.
    pub(crate) fn restarts(&self) -> u64 {
        self.restarts.load(Ordering::Relaxed)
    }

    fn set(&self, health: Health) {
        self.health.store(health as u8, Ordering::Release);
    }

    fn go_down(&self) {
        self.set(Health::Down);
        (self.went_down)();
    }
}

/// How a device thread has ended.
enum End {
    /// It was told to. What it did until then, unless it failed meanwhile.
    Asked(Option<Snapshot>),
    /// It has failed for good.
    Down,
}

/// The life of a device thread. Says on `started` whether it could begin; returns what it did until its end.
pub(crate) fn run(
    spec: &DeviceSpec,
    mailbox: &Mailbox,
    inbox: Inbox,
    started: &Sender<io::Result<()>>,
    life: &Life,
) -> Option<Snapshot> {
    set_timer_slack();
    let (state, helper) = match build(spec, mailbox, 0) {
        Ok(built) => {
            let _ = started.send(Ok(()));
            built
        }
        Err(error) => {
            let _ = started.send(Err(error));
            return None;
        }
    };
    match catch_unwind(AssertUnwindSafe(|| supervise(spec, mailbox, inbox, (state, helper), life))) {
        Ok(End::Asked(last)) => {
            life.set(Health::Ended);
            last
        }
        Ok(End::Down) | Err(_) => {
            tracing::error!(device = spec.name, "Device is down: restart the daemon to serve its volumes again");
            life.go_down();
            None
        }
    }
}

fn supervise(spec: &DeviceSpec, mailbox: &Mailbox, mut inbox: Inbox, built: (Loop, Helper), life: &Life) -> End {
    let mut backoff = Backoff::default();
    let device = &spec.name;
    // A loop that is dropped gives up memory that the kernel may still write to. Only `drain_and_drop` may do that.
    let (mut state, mut helper) = (ManuallyDrop::new(built.0), built.1);
    loop {
        let began = Instant::now();
        let end = catch_unwind(AssertUnwindSafe(|| state.run(&mut inbox)));
        match end {
            Ok(Ok(())) => {
                let last = catch_unwind(AssertUnwindSafe(|| state.snapshot())).ok();
                drain_and_drop(device, state, mailbox, helper);
                return End::Asked(last);
            }
            Ok(Err(error)) => tracing::error!(device, %error, "io_uring failed: restarting the device thread"),
            Err(_) => tracing::error!(device, "Device thread panicked: closing its connections and restarting it"),
        }
        life.set(Health::Restarting);
        let kept = catch_unwind(AssertUnwindSafe(|| Kept::of(&state)));
        drain_and_drop(device, state, mailbox, helper);
        let Ok(kept) = kept else {
            tracing::error!(device, "Cannot read the state of the failed device thread");
            return End::Down;
        };
        let mut ran = began.elapsed();
        (state, helper) = loop {
            let Some(pause) = backoff.failed(ran) else {
                tracing::error!(device, failures = PAUSES.len() + 1, "Device thread has failed too often");
                return End::Down;
            };
            if kept.ending != Ending::No || inbox.waits_and_must_end(pause) {
                return End::Asked(None);
            }
            life.restarts.store(kept.restarts, Ordering::Relaxed);
            // A restart may fail because the host lacks memory, which is over a moment later.
            match catch_unwind(AssertUnwindSafe(|| rebuild(spec, mailbox, &kept))) {
                Ok(Ok(rebuilt)) => break (ManuallyDrop::new(rebuilt.0), rebuilt.1),
                Ok(Err(error)) => tracing::error!(device, %error, "Cannot restart the device thread"),
                Err(_) => tracing::error!(device, "Device thread panicked during its restart"),
            }
            ran = Duration::ZERO;
        };
        life.set(Health::Serving);
        // What came between the last look and the end has been rung for, and is not read yet.
        mailbox.wake();
    }
}

/// How long to wait before a restart.
#[derive(Default)]
struct Backoff {
    /// Failures in a row.
    failures: usize,
}

impl Backoff {
    /// The thread has failed after it had run for so long. The pause before its restart; `None`: it stays down.
    fn failed(&mut self, ran: Duration) -> Option<Duration> {
        if ran >= SOUND_AFTER {
            self.failures = 0;
        }
        let pause = PAUSES.get(self.failures).copied();
        self.failures += 1;
        pause
    }
}

/// What of a thread that has failed goes on in the next one.
struct Kept {
    /// Their files are still open as they were, and what was lost is lost.
    edits: Vec<Edit>,
    stale_messages: u64,
    restarts: u64,
    ending: Ending,
}

impl Kept {
    fn of(state: &Loop) -> Self {
        Kept {
            edits: state.describe(),
            stale_messages: state.core.stale_messages,
            restarts: state.restarts + 1,
            ending: state.core.ending,
        }
    }
}

/// Wake-ups at the nanosecond, not at the 50 us that threads have by default.
fn set_timer_slack() {
    // SAFETY: the call takes plain numbers and concerns this thread alone.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1 as libc::c_ulong) };
}

fn build(spec: &DeviceSpec, mailbox: &Mailbox, restarts: u64) -> io::Result<(Loop, Helper)> {
    let scheduler = spec.scheduler.build().map_err(io::Error::other)?;
    let delay = match &spec.delay {
        None => None,
        Some(delay) => {
            let log = spec.delay_log.clone().map(slot_log::start).transpose()?;
            Some(Delay::new(*delay, log)?)
        }
    };
    let (questions, helper) = blocking::start(&spec.name, restarts, mailbox)?;
    let backend = Backend::new(Ring::new()?, spec.gate.depth, questions);
    let gate = Gate::new(scheduler, spec.gate);
    Ok((Loop::new(Core::new(spec.name.clone(), gate, backend, delay), restarts), helper))
}

/// Nothing has been submitted to the new ring when this fails, so it may be dropped.
fn rebuild(spec: &DeviceSpec, mailbox: &Mailbox, kept: &Kept) -> io::Result<(Loop, Helper)> {
    #[cfg(test)]
    crate::device::faults::restart_is_allowed()?;
    let (mut state, helper) = build(spec, mailbox, kept.restarts)?;
    let now = state.core.clock.now();
    state.apply(now, kept.edits.clone()).map_err(io::Error::other)?;
    state.core.stale_messages = kept.stale_messages;
    Ok((state, helper))
}

/// Gives up a loop's memory only when the kernel has let go of it, and returns only when the helper changes nothing any more.
fn drain_and_drop(device: &str, mut state: ManuallyDrop<Loop>, mailbox: &Mailbox, helper: Helper) {
    state.shut_all_down();
    let mut events = Vec::new();
    let mut waited = 0;
    while state.core.backend.ring.in_kernel() > 0 {
        mailbox.wake();
        if let Err(error) = state.core.backend.ring.submit_and_wait(Some(Duration::from_secs(1)), &mut events) {
            tracing::error!(device, %error, "Cannot drain io_uring: keeping its memory");
            return helper.forbid_discards(device);
        }
        events.clear();
        waited += 1;
        if waited % 30 == 0 {
            tracing::warn!(
                device,
                left = state.core.backend.ring.in_kernel(),
                "Waiting for the kernel to finish requests"
            );
        }
    }
    drop(ManuallyDrop::into_inner(state));
    helper.end(device);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_end_and_begin_again_after_a_time_of_health() {
        let mut backoff = Backoff::default();
        let mut pauses = |ran| std::iter::from_fn(|| backoff.failed(ran)).take(8).collect::<Vec<_>>();
        assert_eq!(pauses(Duration::ZERO), PAUSES);
        assert_eq!(pauses(Duration::from_secs(59)), []);
        assert_eq!(pauses(SOUND_AFTER), [Duration::ZERO; 8]);
        assert_eq!(pauses(Duration::from_secs(1)), PAUSES[1..]);
    }
}
