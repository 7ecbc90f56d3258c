//! Flat combining: the worker that gets the lock handles what all workers have posted.
//!
//! A worker posts its records to its own outbox and then tries the lock. If another worker has it, that one either drains the outbox
//! or finds, after it has unlocked, that something was posted, and tries again. So nothing that was posted waits for an event, and no
//! worker waits for the lock. A lone worker always gets it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use super::rig::{Decider, Exchange, Grant, Record};

/// What the workers share.
struct Shared {
    gate: Mutex<Combined>,
    /// Records of each worker that were not handled yet.
    outboxes: Vec<Mutex<Vec<Record>>>,
    /// Grants for each worker that it has not taken yet.
    inboxes: Vec<Mutex<Vec<Grant>>>,
    /// Whether records were posted since the last worker drained them.
    is_posted: AtomicBool,
}

/// The gate, with room for what goes through it.
struct Combined {
    decider: Decider,
    records: Vec<Record>,
    /// Grants of one decision, by worker.
    grants: Vec<Vec<Grant>>,
    #[cfg(test)]
    log: tests::Log,
}

/// The end of one worker.
struct Worker {
    shared: Arc<Shared>,
    number: usize,
}

/// Lets workers share a gate.
pub(super) fn share(decider: Decider, workers: usize) -> Vec<Box<dyn Exchange>> {
    let shared = Arc::new(Shared::new(decider, workers));
    let end = |number| Box::new(Worker { shared: Arc::clone(&shared), number }) as Box<dyn Exchange>;
    (0..workers).map(end).collect()
}

impl Shared {
    fn new(decider: Decider, workers: usize) -> Self {
        let combined = Combined {
            decider,
            records: Vec::new(),
            grants: vec![Vec::new(); workers],
            #[cfg(test)]
            log: tests::Log::default(),
        };
        Shared {
            gate: Mutex::new(combined),
            outboxes: (0..workers).map(|_| Mutex::default()).collect(),
            inboxes: (0..workers).map(|_| Mutex::default()).collect(),
            is_posted: AtomicBool::new(false),
        }
    }
}

impl Exchange for Worker {
    fn exchange(&mut self, records: &mut Vec<Record>, grants: &mut Vec<Grant>) {
        let shared = &*self.shared;
        if !records.is_empty() {
            lock(&shared.outboxes[self.number]).append(records);
            shared.is_posted.store(true, Ordering::SeqCst);
        }
        while shared.is_posted.load(Ordering::SeqCst) {
            let Ok(mut combined) = shared.gate.try_lock() else { break };
            combined.combine(shared);
        }
        grants.append(&mut lock(&shared.inboxes[self.number]));
    }
}

impl Combined {
    /// Handles what all workers have posted, and hands out what may go.
    fn combine(&mut self, shared: &Shared) {
        shared.is_posted.store(false, Ordering::SeqCst);
        let Combined { decider, records, grants, .. } = self;
        for outbox in &shared.outboxes {
            records.append(&mut lock(outbox));
        }
        let now = decider.now();
        #[cfg(test)]
        self.log.inputs.push((now, records.clone()));
        records.drain(..).for_each(|record| decider.take(now, record));
        for grant in decider.decide(now).collect::<Vec<_>>() {
            #[cfg(test)]
            self.log.grants.push(grant);
            grants[decider.worker_of(grant.token)].push(grant);
        }
        for (inbox, grants) in shared.inboxes.iter().zip(grants).filter(|(_, grants)| !grants.is_empty()) {
            lock(inbox).append(grants);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().expect("no worker panics")
}

#[cfg(test)]
mod tests {
    use super::super::rig::{self, DEPTH, Load};
    use super::*;
    use sluice_sched::Instant;

    /// What went into a gate, and what came out.
    #[derive(Default)]
    pub(super) struct Log {
        pub(super) inputs: Vec<(Instant, Vec<Record>)>,
        pub(super) grants: Vec<Grant>,
    }

    #[test]
    fn workers_that_share_a_gate_get_the_decisions_of_one_gate() {
        let load = Load { workers: 2, vms: 3, work_ns: 0, requests: 20_000 };
        let shared = Arc::new(Shared::new(Decider::new(load).unwrap(), load.workers));
        let ends = (0..2).map(|number| Box::new(Worker { shared: Arc::clone(&shared), number }) as Box<dyn Exchange>);
        rig::run(load, ends.collect(), || ());
        let combined = lock(&shared.gate);
        let (inputs, granted) = (&combined.log.inputs, &combined.log.grants);
        assert!(granted.len() >= load.requests, "no request was lost");
        let mut plain = Decider::new(load).unwrap();
        let mut again = Vec::new();
        for (now, records) in inputs {
            records.iter().for_each(|record| plain.take(*now, *record));
            again.extend(plain.decide(*now));
        }
        assert_eq!(again, *granted);
        let of_worker = |worker| granted.iter().filter(|grant| grant.token / DEPTH / 3 == worker).count();
        assert!(of_worker(0) > 0 && of_worker(1) > 0);
    }
}
