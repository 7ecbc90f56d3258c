//! Load on vhost-user-blk devices: closed loops of random reads on any number of queues in one thread.
//!
//! One thread drives all queues, so that on two CPUs the server has the other one for itself. It polls busy queues,
//! and sleeps on eventfds when none has a completion. It kicks the device when the device requests it. The clock is
//! read once per iteration and not once per request, so a latency is exact to one iteration.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use sluice_client::vhost::{Client, ClientError, ClientOptions, Completion, Queue, Request, Waiter};

use super::super::load::Outcome;

/// Maximum time to a completion.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Number of iterations between two looks at the eventfds, while some queue always has completions.
const GLANCE: u32 = 16;

/// One front end of a load.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub(crate) socket: PathBuf,
    pub(crate) queues: u16,
    /// Number of requests that each queue keeps in flight.
    pub(crate) depth: u16,
    /// Length of a read, in bytes.
    pub(crate) block: u32,
    /// Poll for completions and never sleep. The device is asked not to interrupt.
    pub(crate) poll: bool,
}

/// Front ends under load.
pub(crate) struct Load {
    /// The connections, which must stay open.
    _clients: Vec<Client>,
    loops: Vec<Loop>,
    /// Poll and never sleep.
    poll: bool,
    /// Indices of the queues that are polled; the others are armed.
    polled: Vec<usize>,
    waiter: Waiter,
    rung: Vec<u64>,
    turns: u32,
    now: Instant,
    random: u64,
    outcomes: Vec<Outcome>,
}

/// One queue.
struct Loop {
    queue: Queue,
    client: usize,
    block: u32,
    blocks: u64,
    /// Submission time of each slot's request.
    sent: Vec<Instant>,
    answered: Vec<Completion>,
}

impl Load {
    /// Connects, and submits the first requests.
    pub(crate) fn start(targets: &[Target]) -> Result<Load, ClientError> {
        let (mut clients, mut loops) = (Vec::new(), Vec::new());
        for (index, target) in targets.iter().enumerate() {
            let (client, own) = connect(target, index)?;
            clients.push(client);
            loops.extend(own);
        }
        Load::of(clients, loops, targets)
    }

    /// As [`Load::start`] for one front end, with a separate load for each queue, to be run by concurrent threads.
    pub(crate) fn start_apart(target: &Target) -> Result<Vec<Load>, ClientError> {
        let (client, loops) = connect(target, 0)?;
        let mut clients = vec![client];
        loops
            .into_iter()
            .map(|own| Load::of(std::mem::take(&mut clients), vec![own], std::slice::from_ref(target)))
            .collect()
    }

    /// Runs all loads concurrently, each in its thread. Returns the outcome of their front end, with the latencies of
    /// its first queue.
    pub(crate) fn run_apart(loads: &mut [Load], time: Duration) -> Result<Outcome, ClientError> {
        let outcomes: Vec<Outcome> = std::thread::scope(|scope| {
            let threads: Vec<_> = loads.iter_mut().map(|load| scope.spawn(|| load.run(time))).collect();
            let joined = threads.into_iter().map(|thread| thread.join().expect("no thread panics"));
            joined.map(|outcomes| Ok(outcomes?.remove(0))).collect::<Result<_, ClientError>>()
        })?;
        let requests = outcomes.iter().map(|outcome| outcome.requests).sum();
        Ok(Outcome { requests, ..outcomes.into_iter().next().expect("there is a queue") })
    }

    fn of(clients: Vec<Client>, loops: Vec<Loop>, targets: &[Target]) -> Result<Load, ClientError> {
        let waiter = Waiter::new().map_err(ClientError::Connect)?;
        for (index, each) in loops.iter().enumerate() {
            waiter.add(&each.queue, index as u64).map_err(ClientError::Connect)?;
        }
        let mut load = Load {
            _clients: clients,
            polled: (0..loops.len()).collect(),
            loops,
            waiter,
            rung: Vec::new(),
            turns: 0,
            now: Instant::now(),
            random: 0x9e37_79b9_7f4a_7c15,
            outcomes: vec![Outcome::default(); targets.len()],
            poll: targets.iter().any(|target| target.poll),
        };
        if load.poll {
            // Once is enough: the requested index is not reached again until the ring's index wraps around.
            load.loops.iter().for_each(|each| each.queue.disarm());
        }
        for index in 0..load.loops.len() {
            for slot in 0..load.loops[index].sent.len() as u16 {
                load.submit(index, slot)?;
            }
            load.loops[index].queue.publish()?;
        }
        Ok(load)
    }

    /// Runs for about `time`. Returns the results of each front end.
    pub(crate) fn run(&mut self, time: Duration) -> Result<Vec<Outcome>, ClientError> {
        let begin = Instant::now();
        self.outcomes.iter_mut().for_each(|outcome| *outcome = Outcome::default());
        while self.now.saturating_duration_since(begin) < time {
            if !self.iterate()? {
                self.sleep()?;
            }
        }
        let seconds = self.now.duration_since(begin).as_secs_f64();
        let outcomes = self.outcomes.iter_mut().map(|outcome| Outcome { seconds, ..std::mem::take(outcome) });
        Ok(outcomes.collect())
    }

    /// Takes the last completions and disconnects.
    pub(crate) fn finish(mut self) -> Result<(), ClientError> {
        self.pause()
    }

    /// Takes the last completions and submits no more.
    pub(crate) fn pause(&mut self) -> Result<(), ClientError> {
        let begin = Instant::now();
        for each in &mut self.loops {
            while each.queue.in_flight() > 0 {
                if each.queue.reap(&mut each.answered)? == 0 && each.queue.arm() {
                    self.waiter.wait(Some(TIMEOUT), &mut self.rung).map_err(ClientError::Io)?;
                }
                if begin.elapsed() > TIMEOUT {
                    return Err(ClientError::Io(std::io::ErrorKind::TimedOut.into()));
                }
            }
        }
        Ok(())
    }

    /// Takes the completions of the polled queues, and submits again. Returns `false` if there were none.
    fn iterate(&mut self) -> Result<bool, ClientError> {
        let mut any = false;
        for &index in &self.polled {
            let each = &mut self.loops[index];
            any |= each.queue.reap(&mut each.answered)? > 0;
        }
        self.now = Instant::now();
        if !any {
            return Ok(false);
        }
        for at in 0..self.polled.len() {
            let index = self.polled[at];
            let mut answered = std::mem::take(&mut self.loops[index].answered);
            for answer in &answered {
                self.note(index, *answer)?;
                self.submit(index, answer.slot)?;
            }
            answered.clear();
            let each = &mut self.loops[index];
            each.answered = answered;
            each.queue.publish()?;
        }
        self.turns += 1;
        if self.turns.is_multiple_of(GLANCE) && self.polled.len() < self.loops.len() {
            self.wake(Duration::ZERO)?;
        }
        Ok(true)
    }

    /// Sleeps until some queue has a completion.
    fn sleep(&mut self) -> Result<(), ClientError> {
        if self.poll {
            std::hint::spin_loop();
            return Ok(());
        }
        let loops = &self.loops;
        self.polled.retain(|index| !loops[*index].queue.arm());
        if self.polled.is_empty() {
            self.wake(TIMEOUT)?;
            if self.polled.is_empty() {
                return Err(ClientError::Io(std::io::ErrorKind::TimedOut.into()));
            }
        }
        Ok(())
    }

    /// Adds the queues that were called to the polled ones.
    fn wake(&mut self, timeout: Duration) -> Result<(), ClientError> {
        self.rung.clear();
        self.waiter.wait(Some(timeout), &mut self.rung).map_err(ClientError::Io)?;
        for token in &self.rung {
            if !self.polled.contains(&(*token as usize)) {
                self.polled.push(*token as usize);
            }
        }
        Ok(())
    }

    #[inline]
    fn note(&mut self, index: usize, answer: Completion) -> Result<(), ClientError> {
        if answer.status != 0 {
            return Err(ClientError::Status { status: answer.status });
        }
        let each = &self.loops[index];
        let latency = self.now.saturating_duration_since(each.sent[usize::from(answer.slot)]);
        let outcome = &mut self.outcomes[each.client];
        outcome.requests += 1;
        outcome.latency.add(latency.as_nanos() as u64);
        Ok(())
    }

    #[inline]
    fn submit(&mut self, index: usize, slot: u16) -> Result<(), ClientError> {
        // xorshift64
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let each = &mut self.loops[index];
        each.sent[usize::from(slot)] = self.now;
        let offset = self.random % each.blocks * u64::from(each.block);
        each.queue.submit(slot, Request::Read { offset, len: each.block })
    }
}

/// Connects a front end. Returns also its queues.
fn connect(target: &Target, index: usize) -> Result<(Client, Vec<Loop>), ClientError> {
    let mut client = Client::connect(&target.socket, &options(target))?;
    let blocks = client.config().size_bytes() / u64::from(target.block);
    let now = Instant::now();
    let own = |queue| {
        let sent = vec![now; target.depth.into()];
        Loop { queue, client: index, block: target.block, blocks, sent, answered: Vec::new() }
    };
    let loops = client.take_queues().into_iter().map(own).collect();
    Ok((client, loops))
}

fn options(target: &Target) -> ClientOptions {
    ClientOptions {
        queues: target.queues,
        // Enough entries for chains of three, if the device does not support indirect descriptors.
        queue_size: (target.depth * 3).next_power_of_two().max(128),
        slots: target.depth,
        data_len_max: target.block as usize,
        timeout: TIMEOUT,
        ..ClientOptions::default()
    }
}
