//! dmClock: what a gate knows of a VM whose requests go to several servers.
//!
//! The VM's client counts completions at the other servers and reports them with each request (see [`crate::tracker`]).
//! The report counts when the request arrives, not when it reaches the head of the queue. Otherwise a VM with a growing
//! backlog would be charged later and later.
//!
//! Example: a VM uses 8 servers, has a limit of 100 IOPS and a burst of 32. It may send 4 requests back to back to this
//! server. A report of 7 requests served at other servers advances its limit by 70 ms.
//!
//! Source: \[mclock\] 3.2 (dmClock).

use crate::cost::Cost;
use crate::gate::RemoteService;
use crate::scheduler::DeviceInfo;

use super::tags::Amount;

/// Reports of the client of one VM.
#[derive(Debug, Clone, Copy)]
pub(super) struct Remote {
    /// Number of servers that it uses, this one included.
    pub(super) servers: u32,
    /// Reported service at other servers since the VM was last served here, in raw cost units. Only the recent part of each
    /// report counts, see [`RemoteService::recent`].
    pub(super) since_served: u64,
    /// The VM's last request here. It stands for the size of requests at other servers, which reports do not contain.
    pub(super) piece: Amount,
    /// Requests that other servers may have started without a report of it, as the last report tells.
    pub(super) outstanding: u32,
}

impl Remote {
    /// The client of a VM, if the report names other servers.
    #[must_use]
    pub(super) fn reported(report: &RemoteService, info: &DeviceInfo) -> Option<Remote> {
        let uses_others = report.servers > 1 || report.delta > 0;
        let servers = report.servers.max(2);
        uses_others.then_some(Remote { servers, since_served: 0, piece: Amount::of_reference(info), outstanding: 0 })
    }

    /// Notes a dispatch of this amount here.
    pub(super) fn note_served(&mut self, amount: &Amount) {
        (self.since_served, self.piece) = (0, *amount);
    }

    /// The largest amount that other servers may have started without a report of it. Each has at most as many requests in
    /// flight as this one.
    // rule: mclock.remote-started
    pub(super) fn started(&self) -> Amount {
        let times = |one: u64| one.saturating_mul(self.outstanding.into());
        let Amount { cost, bytes, reserved_bytes } = self.piece;
        Amount { cost: times(cost), bytes: times(bytes), reserved_bytes: times(reserved_bytes) }
    }

    /// Notes the service that a report counts.
    // rule: mclock.share-floor
    pub(super) fn note(&mut self, report: &RemoteService, info: &DeviceInfo) {
        self.outstanding = report.outstanding.min(info.depth.saturating_mul(self.servers - 1));
        let recent = u64::from(report.recent.min(report.delta)) << Cost::SHIFT;
        self.since_served = self.since_served.saturating_add(recent);
    }
}

/// Amounts of a report: service in the reservation phase, and other service.
#[must_use]
// rule: mclock.product-counts
pub(super) fn amounts(report: &RemoteService, info: &DeviceInfo) -> (Amount, Amount) {
    let raw = |requests: u32| u64::from(requests) << Cost::SHIFT;
    let reserved = Amount::new(raw(report.rho), report.rho_bytes, info);
    let beyond_bytes = report.delta_bytes.saturating_sub(report.rho_bytes);
    let beyond = Amount::new(raw(report.delta.saturating_sub(report.rho)), beyond_bytes, info);
    (reserved, beyond)
}
