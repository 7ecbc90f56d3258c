//! Supervisor of a device thread. When the thread panics or its ring fails, the supervisor closes its connections and
//! restarts it. Other devices are not affected.
//!
//! A thread that fails again soon after a restart is restarted after increasing pauses, and stays down after the last
//! one: a device that cannot serve must not look as if it did. Reading the state of a failed thread may fail too, so it
//! only happens inside `catch_unwind`.
//!
//! Example: a request that makes the thread panic is submitted again by its guest after each restart. The thread is
//! restarted immediately, then after 0.1, 0.2, 0.4, 0.8 and 1.6 s, and after the seventh failure the device is down.

use std::any::Any;
use std::io;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use crate::backend::rings;
use crate::reactor::actor::{Actor, Helper, Kept};
use crate::reactor::base::Ending;
use crate::reactor::event_loop::Reactor;
use crate::reactor::life::Life;
use crate::reactor::mailbox::{Inbox, Mailbox};
use crate::reactor::panics;
use crate::reactor::priority;
use crate::reactor::spec::{Health, Snapshot};

/// Pauses before the restarts of a thread that fails repeatedly.
const PAUSES: [Duration; 6] = [
    Duration::ZERO,
    Duration::from_millis(100),
    Duration::from_millis(200),
    Duration::from_millis(400),
    Duration::from_millis(800),
    Duration::from_millis(1600),
];
/// Running time after which a failure does not count as repeated.
const SOUND_AFTER: Duration = Duration::from_secs(60);

/// The reason why a device thread has ended.
enum End {
    /// It was stopped. Its last snapshot, unless reading it failed.
    Stopped(Option<Box<Snapshot>>),
    /// It has failed permanently.
    Down,
}

/// Runs a device thread until its end. Reports on `started` whether it could start; returns its last snapshot.
pub(crate) fn run<A: Actor>(
    spec: &A::Spec,
    mailbox: &Mailbox<A>,
    inbox: Inbox<A>,
    started: &Sender<io::Result<()>>,
    life: &Life,
) -> Option<Snapshot> {
    // The thread may have had another device.
    #[cfg(test)]
    crate::reactor::faults::refuse_restarts(0);
    set_timer_slack();
    priority::start(A::name(spec));
    let (state, helper) = match Reactor::build(spec, mailbox, 0) {
        Ok(built) => {
            let _ = started.send(Ok(()));
            built
        }
        Err(error) => {
            let _ = started.send(Err(error));
            return None;
        }
    };
    match catch_unwind(AssertUnwindSafe(|| supervise::<A>(spec, mailbox, inbox, (state, helper), life))) {
        Ok(End::Stopped(last)) => {
            life.set(Health::Ended);
            last.map(|last| *last)
        }
        Ok(End::Down) | Err(_) => {
            tracing::error!(device = A::name(spec), "Device is down: restart the daemon to serve its VMs again");
            life.go_down();
            None
        }
    }
}

fn supervise<A: Actor>(
    spec: &A::Spec,
    mailbox: &Mailbox<A>,
    mut inbox: Inbox<A>,
    built: (Reactor<A>, A::Helper),
    life: &Life,
) -> End {
    let mut backoff = Backoff::default();
    let device = A::name(spec);
    // Dropping a loop frees memory that the kernel may still write to. Only `drain_and_drop` may do that.
    let (mut state, mut helper) = (ManuallyDrop::new(built.0), built.1);
    loop {
        let began = Instant::now();
        let end = catch_unwind(AssertUnwindSafe(|| state.run(&mut inbox)));
        match end {
            Ok(Ok(())) => {
                let last = catch_unwind(AssertUnwindSafe(|| Box::new(state.snapshot()))).ok();
                drain_and_drop(device, state, mailbox, helper);
                return End::Stopped(last);
            }
            Ok(Err(error)) => report_error(device, &error, life, "Device thread failed: restarting it"),
            Err(payload) => report_panic(device, &*payload, life),
        }
        life.set(Health::Restarting);
        let kept = catch_unwind(AssertUnwindSafe(|| state.kept()));
        drain_and_drop(device, state, mailbox, helper);
        let Ok(kept) = kept else {
            tracing::error!(device, "Cannot read the state of the failed device thread");
            return End::Down;
        };
        let mut ran = began.elapsed();
        (state, helper) = loop {
            let Some(pause) = backoff.failed(ran) else {
                tracing::error!(
                    device,
                    failures = PAUSES.len() + 1,
                    "Device thread has failed too often: the device is down until the daemon is restarted"
                );
                return End::Down;
            };
            if kept.ending != Ending::No || inbox.waits_and_must_end(pause) {
                return End::Stopped(None);
            }
            life.set_restarts(kept.restarts);
            // A restart may fail because the host lacks memory, which may be available a moment later.
            match catch_unwind(AssertUnwindSafe(|| rebuild(spec, mailbox, &kept))) {
                Ok(Ok(rebuilt)) => break (ManuallyDrop::new(rebuilt.0), rebuilt.1),
                Ok(Err(error)) => report_error(device, &error, life, "Cannot restart the device thread"),
                Err(payload) => report_panic(device, &*payload, life),
            }
            ran = Duration::ZERO;
        };
        life.set(Health::Serving);
        // Messages that arrived between the last read and the failure have been signalled already, but not read.
        mailbox.wake();
    }
}

fn report_error(device: &str, error: &io::Error, life: &Life, what: &str) {
    tracing::error!(device, %error, "{what}");
    life.set_failure(error.to_string());
}

fn report_panic(device: &str, payload: &(dyn Any + Send), life: &Life) {
    let panic = panics::describe(payload);
    tracing::error!(device, panic, "Device thread panicked: closing its connections and restarting it");
    life.set_failure(panic);
}

/// Pause before a restart.
#[derive(Default)]
struct Backoff {
    /// Consecutive failures.
    failures: usize,
}

impl Backoff {
    /// Records a failure after a running time of `ran`. Returns the pause before the restart; `None` if the thread
    /// stays down.
    fn failed(&mut self, ran: Duration) -> Option<Duration> {
        if ran >= SOUND_AFTER {
            self.failures = 0;
        }
        let pause = PAUSES.get(self.failures).copied();
        self.failures += 1;
        pause
    }
}

/// Sets the precision of timers to 1 ns. The default of threads is 50 us.
pub(crate) fn set_timer_slack() {
    // SAFETY: the call takes plain numbers and affects only this thread.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1 as libc::c_ulong) };
}

/// If this fails, nothing has been submitted to the new ring, so it may be dropped.
fn rebuild<A: Actor>(spec: &A::Spec, mailbox: &Mailbox<A>, kept: &Kept<A>) -> io::Result<(Reactor<A>, A::Helper)> {
    #[cfg(test)]
    crate::reactor::faults::restart_is_allowed()?;
    let (mut state, helper) = Reactor::build(spec, mailbox, kept.restarts)?;
    state.take_over(kept).map_err(io::Error::other)?;
    Ok((state, helper))
}

/// Frees a loop's memory when the kernel refers to none of it any more. Returns when the helper changes nothing any
/// more.
pub(crate) fn drain_and_drop<A: Actor>(
    device: &str,
    mut state: ManuallyDrop<Reactor<A>>,
    mailbox: &Mailbox<A>,
    helper: impl Helper,
) {
    state.actor.shut_down();
    let mut events = Vec::new();
    let mut waited = 0;
    while !state.actor.ring().is_empty() {
        mailbox.wake();
        if let Err(error) = state.actor.ring().submit_and_wait(Some(Duration::from_secs(1)), &mut events) {
            tracing::error!(device, %error, "Cannot drain io_uring: its memory stays allocated");
            rings::lose();
            return helper.keep(device);
        }
        events.clear();
        waited += 1;
        if waited % 30 == 0 {
            tracing::warn!(device, left = state.actor.ring().in_kernel(), "Waiting for the kernel to finish requests");
        }
    }
    drop(ManuallyDrop::into_inner(state));
    helper.end(device);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_increase_to_a_maximum_and_start_again_after_a_long_run() {
        let mut backoff = Backoff::default();
        let mut pauses = |ran| std::iter::from_fn(|| backoff.failed(ran)).take(8).collect::<Vec<_>>();
        assert_eq!(pauses(Duration::ZERO), PAUSES);
        assert_eq!(pauses(Duration::from_secs(59)), []);
        assert_eq!(pauses(SOUND_AFTER), [Duration::ZERO; 8]);
        assert_eq!(pauses(Duration::from_secs(1)), PAUSES[1..]);
    }
}
