//! Load on vhost-user-blk devices: closed loops of random reads on any number of queues, by one thread.
//!
//! One thread drives all queues, so that on two processors the server has the other one for itself. It looks at queues
//! that are busy, and sleeps on eventfds when none has an answer; the device is rung when it asks for it. Times are read
//! once per turn and not once per request: a latency is exact to one turn.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use sluice_client::vhost::{Client, ClientError, ClientOptions, Completion, Queue, Request, Waiter};

use super::super::load::Outcome;

/// How long any answer may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often the eventfds are looked at while some queue always has answers, in turns.
const GLANCE: u32 = 16;

/// A front end's part of a load.
#[derive(Debug, Clone)]
pub(super) struct Target {
    pub(super) socket: PathBuf,
    pub(super) queues: u16,
    /// Requests that each queue keeps in flight.
    pub(super) depth: u16,
    /// Bytes per read.
    pub(super) block: u32,
    /// Look for answers without end and never sleep; the device is asked not to ring.
    pub(super) poll: bool,
}

/// Front ends under load.
pub(super) struct Load {
    /// The connections, which only have to stay.
    _clients: Vec<Client>,
    loops: Vec<Loop>,
    /// Never sleep.
    poll: bool,
    /// Which queues are looked at; the others are armed.
    awake: Vec<usize>,
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
    /// When each slot's request was made.
    sent: Vec<Instant>,
    answered: Vec<Completion>,
}

impl Load {
    /// Connects and fills the queues.
    pub(super) fn start(targets: &[Target]) -> Result<Load, ClientError> {
        let (mut clients, mut loops) = (Vec::new(), Vec::new());
        for (index, target) in targets.iter().enumerate() {
            let (client, own) = connect(target, index)?;
            clients.push(client);
            loops.extend(own);
        }
        Load::of(clients, loops, targets)
    }

    /// The same for one front end, but a load of its own for each queue: to be run by threads side by side.
    pub(super) fn start_apart(target: &Target) -> Result<Vec<Load>, ClientError> {
        let (client, loops) = connect(target, 0)?;
        let mut clients = vec![client];
        loops
            .into_iter()
            .map(|own| Load::of(std::mem::take(&mut clients), vec![own], std::slice::from_ref(target)))
            .collect()
    }

    /// Runs all of them at once, a thread each; their one front end's outcome, with the latencies of its first queue.
    pub(super) fn run_apart(loads: &mut [Load], time: Duration) -> Result<Outcome, ClientError> {
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
            awake: (0..loops.len()).collect(),
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
            // Once is enough: the index that it asks for is not reached again but by going round.
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

    /// Runs for about `time`; returns what each front end got answered in it.
    pub(super) fn run(&mut self, time: Duration) -> Result<Vec<Outcome>, ClientError> {
        let begin = Instant::now();
        self.outcomes.iter_mut().for_each(|outcome| *outcome = Outcome::default());
        while self.now.saturating_duration_since(begin) < time {
            if !self.turn()? {
                self.sleep()?;
            }
        }
        let seconds = self.now.duration_since(begin).as_secs_f64();
        let outcomes = self.outcomes.iter_mut().map(|outcome| Outcome { seconds, ..std::mem::take(outcome) });
        Ok(outcomes.collect())
    }

    /// Takes the last answers, and leaves.
    pub(super) fn finish(mut self) -> Result<(), ClientError> {
        self.pause()
    }

    /// Takes the last answers, and asks for nothing more.
    pub(super) fn pause(&mut self) -> Result<(), ClientError> {
        let begin = Instant::now();
        for each in &mut self.loops {
            while each.queue.in_flight() > 0 {
                if each.queue.reap(&mut each.answered)? == 0 && each.queue.arm() {
                    self.waiter.wait(Some(PATIENCE), &mut self.rung).map_err(ClientError::Io)?;
                }
                if begin.elapsed() > PATIENCE {
                    return Err(ClientError::Io(std::io::ErrorKind::TimedOut.into()));
                }
            }
        }
        Ok(())
    }

    /// Takes what the queues that are awake have, and asks anew; false if there was nothing.
    fn turn(&mut self) -> Result<bool, ClientError> {
        let mut any = false;
        for &index in &self.awake {
            let each = &mut self.loops[index];
            any |= each.queue.reap(&mut each.answered)? > 0;
        }
        self.now = Instant::now();
        if !any {
            return Ok(false);
        }
        for at in 0..self.awake.len() {
            let index = self.awake[at];
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
        if self.turns.is_multiple_of(GLANCE) && self.awake.len() < self.loops.len() {
            self.wake(Duration::ZERO)?;
        }
        Ok(true)
    }

    /// Sleeps until some queue has an answer.
    fn sleep(&mut self) -> Result<(), ClientError> {
        if self.poll {
            std::hint::spin_loop();
            return Ok(());
        }
        let loops = &self.loops;
        self.awake.retain(|index| !loops[*index].queue.arm());
        if self.awake.is_empty() {
            self.wake(PATIENCE)?;
            if self.awake.is_empty() {
                return Err(ClientError::Io(std::io::ErrorKind::TimedOut.into()));
            }
        }
        Ok(())
    }

    /// Adds the queues that were rung to those that are awake.
    fn wake(&mut self, patience: Duration) -> Result<(), ClientError> {
        self.rung.clear();
        self.waiter.wait(Some(patience), &mut self.rung).map_err(ClientError::Io)?;
        for token in &self.rung {
            if !self.awake.contains(&(*token as usize)) {
                self.awake.push(*token as usize);
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

/// Connects a front end; its queues.
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
        // Room for chains of three where the device does not take indirect ones.
        queue_size: (target.depth * 3).next_power_of_two().max(128),
        slots: target.depth,
        data_len_max: target.block as usize,
        patience: PATIENCE,
        ..ClientOptions::default()
    }
}
