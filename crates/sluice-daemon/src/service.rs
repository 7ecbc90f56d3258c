//! The service manager: readiness, status and watchdog, as systemd's notification protocol has them.
//!
//! The watchdog is fed only if every thread that VMs depend on responds. The control thread sends a probe to the thread that
//! makes changes, and that one to the device threads. Each answers from its loop, and the control thread feeds the watchdog when
//! it has the answers:
//!
//! ```text
//! systemd <--WATCHDOG=1-- [control] --probe--> [changes] --probe--> [dev-nvme0]
//!                             ^------- report -----'  ^------ pulse -----'
//! ```
//!
//! Example with `WatchdogSec=30s`: probes are sent every 5 s. A device thread that has not answered for 15 s is stuck. From then
//! on the watchdog is not fed, and systemd restarts the daemon at most 30 s later. Without a service manager the same probes find
//! stuck threads and stalled disks for the log.

use std::time::{Duration, Instant};

use sd_notify::NotifyState;
use tokio::sync::oneshot::Receiver;
use tokio::sync::oneshot::error::TryRecvError;
use tokio::time::{Interval, MissedTickBehavior, interval};

use crate::control::changer::Changer;
use crate::control::changer::watch::Report;

/// Time between probes, at most.
const EVERY: Duration = Duration::from_secs(5);
/// Time without an answer after which a thread is stuck, without a watchdog.
const LIMIT: Duration = Duration::from_secs(15);
/// Time that the end of the daemon may take in addition to the drain.
const END_MAX: Duration = Duration::from_secs(5);

/// The daemon's side of the protocol.
pub struct Service {
    ticks: Interval,
    limit: Duration,
    is_watched: bool,
    /// The probe that has no answer yet, and when it was sent.
    asked: Option<(Instant, Receiver<Report>)>,
    status: String,
    is_stuck: bool,
}

impl Service {
    /// As the service manager asks for in the environment. Must be called within a tokio runtime.
    pub fn of_environment() -> Service {
        let watchdog = sd_notify::watchdog_enabled().filter(|time| !time.is_zero());
        let limit = watchdog.map_or(LIMIT, |time| time / 2);
        let mut ticks = interval((limit / 3).min(EVERY));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Service { ticks, limit, is_watched: watchdog.is_some(), asked: None, status: String::new(), is_stuck: false }
    }

    /// Reports that every socket listens.
    pub fn ready(&mut self, status: String) {
        notify(&[NotifyState::Ready, NotifyState::Status(&status)]);
        self.status = status;
    }

    /// Reports that the daemon ends, and how long that may take.
    pub fn stopping(&self, drain_timeout: Duration) {
        let most = u32::try_from((drain_timeout + END_MAX).as_micros()).unwrap_or(u32::MAX);
        notify(&[
            NotifyState::Stopping,
            NotifyState::ExtendTimeoutUsec(most),
            NotifyState::Status("Completing the requests already received"),
        ]);
    }

    /// Waits until it is time for the next [`Service::beat`].
    pub async fn tick(&mut self) {
        self.ticks.tick().await;
    }

    /// Feeds the watchdog if the last probe was answered and no thread is stuck, and sends the next one.
    pub fn beat(&mut self, changer: &Changer) {
        if self.take_answer() {
            self.asked = Some((Instant::now(), changer.probe(self.limit)));
        }
    }

    /// Takes the answer to the last probe. Returns whether there is none to wait for.
    fn take_answer(&mut self) -> bool {
        let Some((since, answer)) = &mut self.asked else { return true };
        match answer.try_recv() {
            Ok(report) => {
                self.answered(report);
                true
            }
            // A thread that has ended does not answer either.
            Err(TryRecvError::Empty | TryRecvError::Closed) => {
                let since = since.elapsed();
                self.no_answer(since);
                false
            }
        }
    }

    fn no_answer(&mut self, since: Duration) {
        if since >= self.limit && !self.is_stuck {
            self.is_stuck = true;
            tracing::error!("The thread that applies changes does not respond: the watchdog is not fed");
            self.set_status("The thread that applies changes does not respond".to_owned());
        }
    }

    fn answered(&mut self, report: Report) {
        if self.is_stuck {
            self.is_stuck = false;
            tracing::info!("The thread that applies changes responds again");
        }
        self.set_status(report.status);
        if self.is_watched && report.stuck.is_empty() {
            notify(&[NotifyState::Watchdog]);
        }
    }

    /// Reports the state in a line, if it has changed.
    pub fn set_status(&mut self, status: String) {
        if self.status != status {
            notify(&[NotifyState::Status(&status)]);
            self.status = status;
        }
    }
}

/// Sends a message to the service manager, if there is one.
fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = crate::notify::notify(states, &[]) {
        tracing::warn!(%error, "Cannot notify the service manager");
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    #[test]
    fn a_thread_that_had_ended_was_not_reported() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let mut service = runtime.block_on(async { Service::of_environment() });
        let (reply, answer) = oneshot::channel();
        service.asked = Some((Instant::now(), answer));
        assert!(!service.take_answer() && !service.is_stuck, "it may still answer");
        drop(reply);
        service.limit = Duration::ZERO;
        assert!(!service.take_answer() && service.is_stuck);
        let (reply, answer) = oneshot::channel();
        service.asked = Some((Instant::now(), answer));
        reply.send(Report { stuck: Vec::new(), status: "serving".to_owned() }).unwrap();
        assert!(service.take_answer() && !service.is_stuck);
        assert_eq!(service.status, "serving");
    }
}
