//! A decision thread: it owns the gate, and the workers post to it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use super::rig::{Decider, Exchange, Grant, Record};

/// Fruitless looks after which the thread yields its CPU.
const LOOKS_MAX: u32 = 64;

/// What a worker and the decision thread share.
#[derive(Default)]
struct Channel {
    records: Mutex<Vec<Record>>,
    grants: Mutex<Vec<Grant>>,
}

/// The end of one worker.
struct Worker(Arc<Channel>);

/// The decision thread.
pub(super) struct DecisionThread {
    ends: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

/// Starts a decision thread for some workers.
pub(super) fn share(decider: Decider, workers: usize) -> (Vec<Box<dyn Exchange>>, DecisionThread) {
    let channels: Vec<Arc<Channel>> = (0..workers).map(|_| Arc::default()).collect();
    let ends = Arc::new(AtomicBool::new(false));
    let (own, is_ended) = (channels.clone(), Arc::clone(&ends));
    let thread = thread::spawn(move || serve(decider, &own, &is_ended));
    let workers = channels.into_iter().map(|channel| Box::new(Worker(channel)) as Box<dyn Exchange>);
    (workers.collect(), DecisionThread { ends, thread })
}

impl DecisionThread {
    pub(super) fn end(self) {
        self.ends.store(true, Ordering::Relaxed);
        self.thread.join().expect("the decision thread does not panic");
    }
}

impl Exchange for Worker {
    fn exchange(&mut self, records: &mut Vec<Record>, grants: &mut Vec<Grant>) {
        if !records.is_empty() {
            self.0.records.lock().expect("no thread panics").append(records);
        }
        grants.append(&mut self.0.grants.lock().expect("no thread panics"));
    }
}

fn serve(mut decider: Decider, channels: &[Arc<Channel>], ends: &AtomicBool) {
    let mut records = Vec::new();
    let mut grants = vec![Vec::new(); channels.len()];
    let mut looks = 0;
    while !ends.load(Ordering::Relaxed) {
        channels.iter().for_each(|channel| records.append(&mut channel.records.lock().expect("no thread panics")));
        looks = if records.is_empty() { looks + 1 } else { 0 };
        if looks == LOOKS_MAX {
            looks = 0;
            thread::yield_now();
        }
        if records.is_empty() {
            continue;
        }
        let now = decider.now();
        records.drain(..).for_each(|record| decider.take(now, record));
        for grant in decider.decide(now).collect::<Vec<_>>() {
            grants[decider.worker_of(grant.token)].push(grant);
        }
        for (channel, grants) in channels.iter().zip(&mut grants).filter(|(_, grants)| !grants.is_empty()) {
            channel.grants.lock().expect("no thread panics").append(grants);
        }
    }
}
