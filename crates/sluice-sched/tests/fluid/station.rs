//! A device with one queue and several servers, with the speed that its plan states.

use sluice_sched::gate::Submission;

use super::chance::Chance;
use super::plan::Cloud;

/// Nanoseconds of a second.
pub const SECOND: u64 = 1_000_000_000;

/// One request.
#[derive(Debug, Clone, Copy)]
struct Job {
    slot: u32,
    /// In 1/65,536 of a normalised request.
    cost: u32,
}

#[derive(Debug)]
pub struct Station {
    servers: u32,
    busy: u32,
    waiting: std::collections::VecDeque<Job>,
    /// Nanoseconds of service for a cost of 1/65,536; 0 if `fixed` applies.
    nanos_per_raw: f64,
    fixed: f64,
    exponential: bool,
    chance: Chance,
    /// No request starts or completes before this instant.
    pub stalled_until: u64,
    /// Costs of all requests whose service has started, in 1/65,536.
    pub work_raw: u64,
    /// The same as nanoseconds of service.
    pub work_ns: u64,
}

impl Station {
    pub fn new(cloud: &Cloud, chance: Chance) -> Station {
        let each = cloud.capacity / cloud.nodes as f64;
        let by_cost = f64::from(cloud.servers) * SECOND as f64 / each / 65_536.0;
        Station {
            servers: cloud.servers,
            busy: 0,
            waiting: std::collections::VecDeque::new(),
            nanos_per_raw: if cloud.service.fixed_ns.is_some() { 0.0 } else { by_cost },
            fixed: cloud.service.fixed_ns.unwrap_or(0) as f64,
            exponential: cloud.service.exponential,
            chance,
            stalled_until: 0,
            work_raw: 0,
            work_ns: 0,
        }
    }

    /// Number of idle servers.
    pub fn idle(&self) -> u32 {
        self.servers - self.busy
    }

    pub fn take(&mut self, submission: &Submission) {
        self.waiting.push_back(Job { slot: submission.slot.0, cost: submission.request.cost.raw() });
    }

    /// Frees the server of a completed request.
    pub fn complete(&mut self) {
        self.busy -= 1;
    }

    /// Starts the next request if a server is free. Returns its slot and its completion time.
    pub fn begin(&mut self, now: u64) -> Option<(u32, u64)> {
        if self.busy == self.servers {
            return None;
        }
        let job = self.waiting.pop_front()?;
        self.busy += 1;
        let mean = self.fixed + self.nanos_per_raw * f64::from(job.cost);
        let nanos = if self.exponential { mean * self.chance.exponential() } else { mean };
        let nanos = (nanos.round() as u64).max(1);
        self.work_raw += u64::from(job.cost);
        self.work_ns += nanos;
        Some((job.slot, now.max(self.stalled_until) + nanos))
    }
}
