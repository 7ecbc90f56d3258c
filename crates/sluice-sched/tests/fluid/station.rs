//! A device with one queue and several servers, as fast as its plan says.

use sluice_sched::gate::Submission;

use super::chance::Chance;
use super::plan::Cloud;

/// Nanoseconds of a second.
pub const SECOND: u64 = 1_000_000_000;

/// What the station knows of one request.
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
    /// Nanoseconds of a server for a cost of 1/65,536, or 0 where `fixed` says it.
    nanos_per_raw: f64,
    fixed: f64,
    exponential: bool,
    chance: Chance,
    /// Nothing begins and nothing ends before.
    pub stalled_until: u64,
    /// Service begun so far: costs in 1/65,536, and nanoseconds.
    pub work_raw: u64,
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

    /// Servers that have nothing to do.
    pub fn idle(&self) -> u32 {
        self.servers - self.busy
    }

    pub fn take(&mut self, submission: &Submission) {
        self.waiting.push_back(Job { slot: submission.slot.0, cost: submission.request.cost.raw() });
    }

    /// A request has left its server.
    pub fn leave(&mut self) {
        self.busy -= 1;
    }

    /// Begins the next request if a server is free. Returns its slot and when it ends.
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
