//! A wrapper that makes a store a device of known capacity: each request takes a stated time, and at most `parallel` run
//! concurrently. For tests and demonstrations.
//!
//! Model: `parallel` servers and one queue. A request starts when the first server is free and occupies it for its service
//! time, which comes from a distribution and, if a bandwidth is stated, from the request's size. The real operation runs at
//! the same time, and the request completes when both have ended. The servers run back to back in modelled time: a late
//! wake-up delays a completion, but costs no capacity while requests are queued.
//!
//! Example: 4 ms and 8 servers serve 2,000 requests per second, whatever the speed of the machine.
//!
//! The log of its slots (request, start, duration) shows afterwards which capacity there was.
//!
//! Instead of servers there may be a [`DeviceModel`], such as a hard disk, whose completion times depend on the order and the addresses of all
//! requests. It decides itself when each request ends. Its time is that of its completions, so that a late wake-up costs it nothing
//! while requests are queued at it.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use rand::RngExt;
use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::SeedableRng;
use sluice_sched::gate::Slot;
use sluice_sched::{ByteRate, Instant, Request};

use crate::store::{Context, Done, Op, OpIndex, Store, StoreEvent, StoreInfo, StoreRef};

/// Service time of a request, without the part that depends on its size.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ServiceTime {
    /// Constant.
    Fixed(Duration),
    /// Exponentially distributed with this mean.
    Exponential(Duration),
    /// Uniformly distributed between the two.
    Uniform(Duration, Duration),
}

/// Parameters of a delay.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DelaySpec {
    /// Service time of each request.
    pub time: ServiceTime,
    /// Number of servers.
    pub parallel: u32,
    /// If stated, size / bandwidth is added to each read and write.
    pub bandwidth: Option<ByteRate>,
    /// Seed of the random service times.
    pub seed: u64,
}

/// A modelled device whose completion times a delay waits for. It accepts every request immediately. The address of a request is the
/// offset in the volume's file.
pub trait DeviceModel {
    /// Submits the request of a slot of the gate.
    fn submit(&mut self, now: Instant, slot: Slot, request: &Request);

    /// Time of the next completion, if no request arrives before; `None` if there is none.
    fn next(&self) -> Option<Instant>;

    /// Removes a request that has completed by `at`, the time that [`DeviceModel::next`] returned.
    fn take(&mut self, at: Instant) -> Option<Slot>;
}

/// Makes a model, at the start of the device's thread and after each restart.
#[derive(Clone)]
pub struct ModelMaker(pub Arc<dyn Fn() -> Box<dyn DeviceModel> + Send + Sync>);

impl std::fmt::Debug for ModelMaker {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("ModelMaker")
    }
}

/// The modelled servers.
struct Servers {
    spec: DelaySpec,
    random: Pcg64Mcg,
    /// When each server is free, the first on top; ties by its number.
    free: BinaryHeap<Reverse<(u64, u32)>>,
    log: Option<Box<dyn Write + Send>>,
}

/// The modelled servers, and operations that completed at the store before they do in the model.
pub struct Delay {
    servers: Servers,
    /// When the modelled service of each slot of the gate ends.
    ends: Vec<Instant>,
    /// By [`OpIndex`]: the slot of an operation, and its result while it is held.
    ops: Vec<(Slot, Done)>,
    /// Completed operations, by the end of their modelled service.
    held: BinaryHeap<Reverse<(u64, u32)>>,
    /// Instead of the servers.
    model: Option<Box<dyn DeviceModel>>,
    /// Operations that completed at the store before the model has completed their slots: slot and operation, at most one for each slot
    /// of the gate.
    modelled: Vec<(Slot, OpIndex)>,
}

impl Delay {
    /// Creates a delay without requests. The log, if there is one, gets a line for each request.
    ///
    /// # Errors
    /// The error of writing the log's first line.
    pub fn new(spec: DelaySpec, log: Option<Box<dyn Write + Send>>) -> io::Result<Self> {
        Ok(Delay {
            servers: Servers::new(spec, log)?,
            ends: Vec::new(),
            ops: Vec::new(),
            held: BinaryHeap::new(),
            model: None,
            modelled: Vec::new(),
        })
    }

    /// Replaces the servers by a model.
    #[must_use]
    pub fn with_model(mut self, maker: Option<&ModelMaker>) -> Self {
        self.model = maker.map(|maker| maker.0());
        self
    }

    /// Whether a model replaces the servers.
    pub(crate) fn is_modelled(&self) -> bool {
        self.model.is_some()
    }

    /// Returns when the next held operation completes.
    fn next_wakeup(&self) -> Option<Instant> {
        let held = self.held.peek().map(|Reverse((end, _))| Instant::from_nanos(*end));
        let modelled = self.model.as_ref().and_then(|model| model.next());
        held.into_iter().chain(modelled).min()
    }

    /// Notes the ends of the slots that the model has completed by now.
    fn advance(&mut self, now: Instant) {
        while let Some(model) = &mut self.model
            && let Some(at) = model.next().filter(|at| *at <= now)
        {
            if let Some(slot) = model.take(at) {
                self.set_end(slot, at);
            }
        }
    }

    /// Starts the service of a slot's request. With a model its end is not known yet.
    fn start_slot(&mut self, now: Instant, slot: Slot, request: &Request) {
        self.advance(now);
        let end = match &mut self.model {
            None => self.servers.start(now, request),
            Some(model) => {
                model.submit(now, slot, request);
                Instant::MAX
            }
        };
        self.set_end(slot, end);
    }

    /// Starts an operation. The service of its slot starts with the first one.
    fn start(&mut self, now: Instant, op: &Op<'_>) {
        if let Some(request) = op.first {
            self.start_slot(now, op.slot, request);
        }
        let index = op.index.0 as usize;
        if self.ops.len() <= index {
            self.ops.resize(index + 1, (Slot(0), Done::Ok));
        }
        self.ops[index].0 = op.slot;
    }

    /// Takes an operation that has ended at the store. Returns `false` if it is held until the service of its slot ends.
    fn pass(&mut self, now: Instant, index: OpIndex, done: Done) -> bool {
        let (slot, result) = &mut self.ops[index.0 as usize];
        *result = done;
        let slot = *slot;
        let is_over = self.ends[slot.0 as usize] <= now;
        if !is_over {
            self.hold(slot, index);
        }
        is_over
    }

    /// Holds an operation that has completed at the store until the service of its slot ends.
    fn hold(&mut self, slot: Slot, index: OpIndex) {
        if self.model.is_some() {
            self.modelled.push((slot, index));
        } else {
            self.held.push(Reverse((self.ends[slot.0 as usize].as_nanos(), index.0)));
        }
    }

    /// Returns the next held operation whose modelled service has ended.
    fn pop(&mut self, now: Instant) -> Option<OpIndex> {
        if let Some(at) = self.modelled.iter().position(|(slot, _)| self.ends[slot.0 as usize] <= now) {
            return Some(self.modelled.remove(at).1);
        }
        let Reverse((end, index)) = *self.held.peek()?;
        if end > now.as_nanos() {
            return None;
        }
        self.held.pop();
        Some(OpIndex(index))
    }

    fn set_end(&mut self, slot: Slot, end: Instant) {
        let index = slot.0 as usize;
        if self.ends.len() <= index {
            self.ends.resize(index + 1, Instant::ZERO);
        }
        self.ends[index] = end;
    }
}

impl Servers {
    fn new(spec: DelaySpec, log: Option<Box<dyn Write + Send>>) -> io::Result<Self> {
        let free = (0..spec.parallel.max(1)).map(|server| Reverse((0, server))).collect();
        let mut servers = Servers { spec, random: Pcg64Mcg::seed_from_u64(spec.seed), free, log };
        if let Some(log) = &mut servers.log {
            writeln!(log, "dispatch_ns,start_ns,end_ns,server,id,owner,volume,kind,length_bytes,cost,phase")?;
        }
        Ok(servers)
    }

    fn service(&mut self, request: &Request) -> u64 {
        let nanos = |duration: Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let time = match self.spec.time {
            ServiceTime::Fixed(time) => nanos(time),
            ServiceTime::Exponential(mean) => {
                // The inverse of the distribution, at a number from 0 to below 1.
                let factor = -(1.0 - self.random.random::<f64>()).ln();
                (nanos(mean) as f64 * factor) as u64
            }
            ServiceTime::Uniform(low, high) => {
                let (low, high) = (nanos(low), nanos(high).max(nanos(low)));
                self.random.random_range(low..=high)
            }
        };
        let moves = matches!(request.kind, sluice_sched::Kind::Read | sluice_sched::Kind::Write);
        let transfer = match self.spec.bandwidth {
            Some(rate) if moves => u128::from(request.length) * 1_000_000_000 / u128::from(rate.bytes_per_second()),
            _ => 0,
        };
        time.saturating_add(u64::try_from(transfer).unwrap_or(u64::MAX))
    }

    /// Starts the modelled service of a request, and returns its end.
    fn start(&mut self, now: Instant, request: &Request) -> Instant {
        let service = self.service(request);
        let Reverse((free, server)) = self.free.pop().expect("there is at least one server");
        let start = free.max(now.as_nanos());
        let end = start.saturating_add(service);
        self.free.push(Reverse((end, server)));
        if let Some(log) = &mut self.log {
            let Request { id, owner, volume, kind, length, cost, phase, .. } = request;
            let line = writeln!(
                log,
                "{},{start},{end},{server},{},{},{},{},{length},{},{phase:?}",
                now.as_nanos(),
                id.0,
                owner.0,
                volume.0,
                kind.name(),
                cost.as_f64(),
            );
            if let Err(error) = line {
                // names nothing: it is logged once, and the slot log is closed.
                tracing::error!(%error, "Cannot write the slot log; free disk space and restart the daemon");
                self.log = None;
            }
        }
        Instant::from_nanos(end)
    }
}

/// A store with a delay, or without one.
pub(crate) struct Delayed<S> {
    pub(crate) delay: Option<Delay>,
    pub(crate) below: S,
}

impl<S: Store> Store for Delayed<S> {
    fn info(&self, volume: StoreRef) -> &StoreInfo {
        self.below.info(volume)
    }

    fn start(&mut self, context: &mut Context<'_>, op: &Op<'_>) {
        if let Some(delay) = &mut self.delay {
            delay.start(context.now, op);
        }
        self.below.start(context, op);
    }

    fn event(&mut self, context: &mut Context<'_>, event: StoreEvent, result: i32) {
        self.below.event(context, event, result);
    }

    fn next_done(&mut self, now: Instant) -> Option<(OpIndex, Done)> {
        let Some(delay) = &mut self.delay else { return self.below.next_done(now) };
        delay.advance(now);
        while let Some((index, done)) = self.below.next_done(now) {
            if delay.pass(now, index, done) {
                return Some((index, done));
            }
        }
        let index = delay.pop(now)?;
        Some((index, delay.ops[index.0 as usize].1))
    }

    fn next_wakeup(&self) -> Option<Instant> {
        let delay = self.delay.as_ref().and_then(Delay::next_wakeup);
        delay.into_iter().chain(self.below.next_wakeup()).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::tests::request;

    fn delay(time: ServiceTime, parallel: u32) -> Delay {
        Delay::new(DelaySpec { time, parallel, bandwidth: None, seed: 1 }, None).unwrap()
    }

    #[test]
    fn servers_run_back_to_back() {
        let mut delay = delay(ServiceTime::Fixed(Duration::from_millis(4)), 2);
        let ends: Vec<_> = (0..5).map(|_| delay.servers.start(Instant::from_millis(10), &request(4096))).collect();
        assert_eq!(ends, [14, 14, 18, 18, 22].map(Instant::from_millis));
        delay.set_end(Slot(1), ends[1]);
        delay.set_end(Slot(0), ends[0]);
        delay.hold(Slot(1), OpIndex(3));
        delay.hold(Slot(0), OpIndex(2));
        assert_eq!(delay.next_wakeup(), Some(Instant::from_millis(14)));
        assert_eq!(delay.pop(Instant::from_millis(13)), None);
        let late = Instant::from_millis(15);
        assert_eq!([delay.pop(late), delay.pop(late), delay.pop(late)], [Some(OpIndex(2)), Some(OpIndex(3)), None]);
    }

    /// Serves one request at a time in reverse order of arrival, 4 ms each.
    #[derive(Default)]
    struct LastFirst {
        queue: Vec<Slot>,
        serving: Option<(Instant, Slot)>,
    }

    impl LastFirst {
        fn serve(&mut self, now: Instant) {
            if self.serving.is_none() {
                self.serving = self.queue.pop().map(|slot| (now + Duration::from_millis(4), slot));
            }
        }
    }

    impl DeviceModel for LastFirst {
        fn submit(&mut self, now: Instant, slot: Slot, _request: &Request) {
            self.queue.push(slot);
            self.serve(now);
        }

        fn next(&self) -> Option<Instant> {
            self.serving.map(|(at, _)| at)
        }

        fn take(&mut self, at: Instant) -> Option<Slot> {
            let (_, slot) = self.serving.take()?;
            self.serve(at);
            Some(slot)
        }
    }

    #[test]
    fn a_model_decides_when_each_request_ends_and_loses_no_time_to_late_wake_ups() {
        let maker = ModelMaker(Arc::new(|| Box::new(LastFirst::default())));
        let mut delay = delay(ServiceTime::Fixed(Duration::ZERO), 1).with_model(Some(&maker));
        (0..3).for_each(|slot| delay.start_slot(Instant::from_millis(10), Slot(slot), &request(4096)));
        (0..3).for_each(|slot| delay.hold(Slot(slot), OpIndex(slot)));
        assert_eq!((delay.next_wakeup(), delay.pop(Instant::from_millis(13))), (Some(Instant::from_millis(14)), None));
        // The thread wakes up 1 ms late; the next request has started at 14 ms all the same.
        let late = Instant::from_millis(15);
        delay.advance(late);
        assert_eq!(
            (delay.pop(late), delay.pop(late), delay.next_wakeup()),
            (Some(OpIndex(0)), None, Some(Instant::from_millis(18)))
        );
        let end = Instant::from_millis(22);
        delay.advance(end);
        assert_eq!([delay.pop(end), delay.pop(end), delay.pop(end)], [Some(OpIndex(1)), Some(OpIndex(2)), None]);
        assert_eq!(delay.next_wakeup(), None);
    }

    #[test]
    fn service_time_follows_size_and_distribution() {
        let spec = DelaySpec {
            time: ServiceTime::Fixed(Duration::from_millis(5)),
            parallel: 1,
            bandwidth: Some(ByteRate::per_second(60_000_000)),
            seed: 1,
        };
        let mut sized = Delay::new(spec, None).unwrap();
        assert_eq!(sized.servers.start(Instant::ZERO, &request(300_000)), Instant::from_millis(10));
        let mut random = delay(ServiceTime::Exponential(Duration::from_millis(2)), 1);
        let last = (0..10_000).map(|_| random.servers.start(Instant::ZERO, &request(4096))).last().unwrap();
        let mean_ms = last.as_nanos() as f64 / 10_000.0 / 1e6;
        assert!((1.9..2.1).contains(&mean_ms), "{mean_ms}");
    }
}
