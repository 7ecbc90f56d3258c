//! Retries of what is out of service.
//!
//! Volumes, NICs and sockets that are out of service are retried each second, each by a separate helper, at most [`RETRIES_MAX`] for
//! one device. One gets no further helper until its last one has returned. The interfaces of uplinks and NICs are looked at.

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::{Duration, Instant};

use sluice_api::object::ObjectId;

use super::change::{Kind, begin};
use super::helpers::Purpose;
use super::shared::Shared;

/// Interval between retries.
const RETRY_EVERY: Duration = Duration::from_secs(1);
/// Maximum number of helpers that retry volumes of one device; its other volumes wait.
const RETRIES_MAX: usize = 4;

/// What is to be retried.
pub(super) struct Retries {
    /// Time of the next retry of all.
    at: Instant,
    /// In order.
    waiting: VecDeque<ObjectId>,
}

impl Retries {
    pub(super) fn new() -> Retries {
        Retries { at: Instant::now(), waiting: VecDeque::new() }
    }

    /// Returns the time of the next retry, if there is something to retry.
    pub(super) fn next(&self, shared: &Shared) -> Option<Instant> {
        let server = &shared.in_force.borrow().server;
        (server.absent().out_of_service().next().is_some() || server.has_links()).then_some(self.at)
    }

    /// Retries what is due.
    pub(super) fn run(&mut self, shared: &Rc<Shared>) {
        let now = Instant::now();
        if now >= self.at {
            self.at = now + RETRY_EVERY;
            let server = &mut shared.in_force.borrow_mut().server;
            // A change that is being saved may have opened interfaces.
            if shared.keeper.try_lock().is_ok() {
                server.look_at_links();
            }
            let due = server.absent().out_of_service().map(|(name, _)| name);
            let due: Vec<_> = due.filter(|name| !self.waiting.contains(name)).cloned().collect();
            self.waiting.extend(due);
        }
        for name in std::mem::take(&mut self.waiting) {
            let (mut retrying, server) = (shared.helpers.retrying(), &shared.in_force.borrow().server);
            retrying.extend(shared.tasks.pending.borrow().values().filter_map(Purpose::retried).cloned());
            let device = server.device_of(&name);
            let is_out = server.absent().is_out(&name) && !server.is_down(device);
            if !is_out || retrying.contains(&name) {
                continue;
            }
            match retrying.iter().filter(|retried| server.device_of(retried) == device).count() {
                RETRIES_MAX.. => self.waiting.push_back(name),
                _ => begin(shared, Kind::Retry(name), None),
            }
        }
    }
}
