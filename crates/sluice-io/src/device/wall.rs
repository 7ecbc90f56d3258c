//! The panic wall: a device thread that fails ends its connections and starts anew; the others go on.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::Sender;
use std::thread::JoinHandle;
use std::time::Duration;

use sluice_sched::Gate;

use crate::delay::Delay;
use crate::device::mailbox::{Inbox, Mailbox};
use crate::device::slow;
use crate::device::spec::{DeviceSpec, Snapshot};
use crate::device::turn::Loop;
use crate::device::work::Backend;
use crate::ring::Ring;
use crate::slot_log;

/// The life of a device thread. Says on `started` whether it could begin; returns what it did until its end.
pub(super) fn run(
    spec: &DeviceSpec,
    mailbox: &Mailbox,
    inbox: &Inbox,
    started: &Sender<io::Result<()>>,
) -> Option<Snapshot> {
    sharpen_timers();
    let (mut state, mut helper) = match build(spec, mailbox, 0) {
        Ok(built) => {
            let _ = started.send(Ok(()));
            built
        }
        Err(error) => {
            let _ = started.send(Err(error));
            return None;
        }
    };
    loop {
        let end = catch_unwind(AssertUnwindSafe(|| state.run(inbox)));
        let edits = state.describe();
        let restarts = state.restarts + 1;
        let device = &spec.name;
        match end {
            Ok(Ok(())) => {
                let last = state.snapshot();
                bury(state, mailbox, helper);
                return Some(last);
            }
            Ok(Err(error)) => tracing::error!(device, %error, "Ring failed: device is started anew"),
            Err(_) => tracing::error!(device, "Device thread panicked: its connections end, it is started anew"),
        }
        bury(state, mailbox, helper);
        (state, helper) = match rebuild(spec, mailbox, restarts, edits) {
            Ok(built) => built,
            Err(error) => {
                tracing::error!(device, %error, "Device cannot be started anew and stays down");
                return None;
            }
        };
        // What came between the last look and the end has been rung for, and is not read yet.
        mailbox.ring();
    }
}

/// Wake-ups at the nanosecond, not at the 50 us that threads have by default.
fn sharpen_timers() {
    // SAFETY: the call takes plain numbers and concerns this thread alone.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1 as libc::c_ulong) };
}

fn build(spec: &DeviceSpec, mailbox: &Mailbox, restarts: u64) -> io::Result<(Loop, JoinHandle<()>)> {
    let scheduler = spec.scheduler.build().map_err(io::Error::other)?;
    let delay = match &spec.delay {
        None => None,
        Some(delay) => {
            let log = spec.delay_log.as_deref().map(slot_log::open).transpose()?;
            Some(Delay::new(*delay, log)?)
        }
    };
    let (questions, helper) = slow::start(&spec.name, restarts, mailbox.clone())?;
    let backend = Backend::new(Ring::new()?, delay, spec.gate.depth, questions);
    let gate = Gate::new(scheduler, spec.gate);
    Ok((Loop::new(spec.name.clone(), gate, backend, restarts), helper))
}

fn rebuild(
    spec: &DeviceSpec,
    mailbox: &Mailbox,
    restarts: u64,
    edits: Vec<crate::device::Edit>,
) -> io::Result<(Loop, JoinHandle<()>)> {
    let (mut state, helper) = build(spec, mailbox, restarts)?;
    let now = state.clock.now();
    state.apply(now, edits).map_err(io::Error::other)?;
    Ok((state, helper))
}

/// Gives up a loop's memory only when the kernel and the helper have let go of it.
fn bury(mut state: Loop, mailbox: &Mailbox, helper: JoinHandle<()>) {
    state.shut_all_down();
    let mut events = Vec::new();
    let mut waited = 0;
    while state.backend.ring.in_kernel() > 0 {
        mailbox.ring();
        if let Err(error) = state.backend.ring.turn(Some(Duration::from_secs(1)), &mut events) {
            tracing::error!(%error, "Ring cannot be emptied: its memory is kept");
            std::mem::forget(state);
            return;
        }
        events.clear();
        waited += 1;
        if waited % 30 == 0 {
            tracing::warn!(left = state.backend.ring.in_kernel(), "Waiting for the kernel to finish requests");
        }
    }
    drop(state);
    let _ = helper.join();
}
