//! Hosts before one device that tell each other what they use, as the daemon does.
//!
//! They meet at an array of blocks, where reads and writes take time, may be lost, and may overtake each other; a write may come in part.
//!
//! ```text
//! end of a period: close the window's counts --> read all blocks --delay--> take them, write the own block --delay--> it stands there
//!                                                                           give the window its order
//! ```
//!
//! A host whose read is lost, or that is away, gives its window an order all the same.

use std::ops::Range;
use std::time::Duration;

use sluice_pool::block::{self, Header};
use sluice_pool::exchange::{self, Exchange};
use sluice_pool::{Aim, exchange::Settings};
use sluice_sched::Instant;
use sluice_sched::admission::Capacity;
use sluice_sched::slab::Slab;

use super::{Event, Simulation};
use crate::random::Stream;

/// Size of what a device writes whole.
const SECTOR: usize = 512;

/// What hosts state of their pool, and how the place is where they meet.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Meeting {
    pub capacity: Capacity,
    /// Size in bytes of a request that counts as one.
    pub request_bytes: u64,
    /// Time from which on the pool counts as full.
    pub latency: Duration,
    /// Mean time of a read or a write there.
    pub delay: Duration,
    /// Part of reads and writes that is lost.
    pub lost: f64,
    /// Part of writes of which only the first sectors arrive.
    pub torn: f64,
}

/// What is next in a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Step {
    /// A period of a host ends.
    End(u32),
    /// A read has ended.
    Read(u32),
    /// A write stands in its block.
    Write(u32),
}

/// Hosts that share a device.
pub(super) struct Pool {
    meeting: Meeting,
    first: usize,
    members: Vec<Member>,
    /// Header and usage blocks.
    place: Vec<u8>,
    reads: Slab<Read>,
    writes: Slab<Write>,
    random: Stream,
}

struct Member {
    exchange: Exchange,
    epoch: u64,
    /// Whether it can neither read nor write.
    is_away: bool,
    /// When its present read began.
    reading: Option<Instant>,
    /// Time that its last exchange took.
    trip: Duration,
    period: Duration,
}

struct Read {
    host: usize,
    epoch: u64,
    /// As the place was when it began; `None`: it is lost.
    blocks: Option<Vec<u8>>,
}

struct Write {
    host: usize,
    block: Vec<u8>,
}

impl Pool {
    fn new(first: usize, hosts: usize, meeting: Meeting, mut random: Stream) -> Self {
        let header = Header {
            pool: random.below(u64::MAX),
            hosts: hosts as u8,
            milli_iops: meeting.capacity.iops.map_or(0, sluice_sched::Iops::milli),
            request_bytes: meeting.request_bytes,
        };
        let mut place = vec![0; (1 + hosts) * block::SIZE];
        place[..block::SIZE].copy_from_slice(&block::encode(&header));
        let members = (0..hosts).map(|host| Member::new(Instant::ZERO, host, &meeting, &mut random)).collect();
        let (reads, writes) = (Slab::default(), Slab::default());
        Pool { meeting, first, members, place, reads, writes, random }
    }

    fn delay(&mut self) -> Duration {
        self.meeting.delay.mul_f64(self.random.exponential())
    }

    fn is_lost(&mut self, host: usize) -> bool {
        self.random.chance(self.meeting.lost) || self.members[host].is_away
    }

    /// Begins a read of the place; returns its number and when it ends.
    fn begin_read(&mut self, now: Instant, host: usize) -> (u32, Instant) {
        let blocks = if self.is_lost(host) { None } else { Some(self.place.clone()) };
        let member = &mut self.members[host];
        member.reading = Some(now);
        let number = self.reads.insert(Read { host, epoch: member.epoch, blocks });
        (number, now + self.delay())
    }

    /// Takes what was read, and begins to write. Returns the host, and the number of the write with when it ends.
    fn end_read(&mut self, now: Instant, number: u32) -> Option<(usize, Option<(u32, Instant)>)> {
        let Read { host, epoch, blocks } = self.reads.remove(number);
        let (host, blocks) = (*host, blocks.take());
        let member = &mut self.members[host];
        if *epoch != member.epoch {
            return None;
        }
        let began = member.reading.take().unwrap_or(now);
        if let Some(blocks) = blocks.filter(|_| !member.is_away) {
            member.exchange.read(now, &blocks, member.period);
        }
        let mut block = block::encode(member.exchange.usage()).to_vec();
        let delay = self.delay();
        self.members[host].trip = now.since(began) + delay;
        if self.is_lost(host) {
            return Some((host, None));
        }
        if self.random.chance(self.meeting.torn) {
            block.truncate(SECTOR * (1 + self.random.below((block::SIZE / SECTOR) as u64 - 1) as usize));
        }
        Some((host, Some((self.writes.insert(Write { host, block }), now + delay))))
    }

    fn end_write(&mut self, number: u32) {
        let Write { host, block } = self.writes.remove(number);
        let at = block::usage_of(*host as u8 + 1) * block::SIZE;
        self.place[at..at + block.len()].copy_from_slice(block);
    }
}

impl Member {
    fn new(now: Instant, host: usize, meeting: &Meeting, random: &mut Stream) -> Self {
        let Meeting { capacity, request_bytes, latency, .. } = *meeting;
        let settings = Settings { host: host as u8 + 1, capacity, request_bytes, latency };
        let epoch = random.below(u64::MAX);
        let exchange = Exchange::new(now, settings, epoch);
        let period = exchange.period(Duration::ZERO);
        Member { exchange, epoch, is_away: false, reading: None, trip: Duration::ZERO, period }
    }
}

impl Simulation {
    /// Nodes share their device as hosts of a pool, from the start on.
    ///
    /// # Panics
    /// If there are more of them than a pool has hosts, or no capacity is stated.
    pub fn share_pool(&mut self, nodes: Range<usize>, meeting: Meeting, random: Stream) {
        assert!(nodes.len() <= block::HOSTS_MAX.into(), "a pool has at most {} hosts", block::HOSTS_MAX);
        let mut pool = Pool::new(nodes.start, nodes.len(), meeting, random);
        let number = self.pools.len() as u32;
        for host in 0..nodes.len() {
            let phase = pool.members[host].period.mul_f64(pool.random.unit());
            self.enter(Instant::ZERO + phase, Event::Pool(number, Step::End(host as u32)));
        }
        self.pools.push(pool);
        nodes.for_each(|node| self.join_pool(node));
    }

    /// A host that starts is led by its pool from the start on.
    fn join_pool(&mut self, node: usize) {
        let (now, Some((pool, host))) = (self.now, self.pool_mut(node)) else { return };
        let meeting = pool.meeting;
        let member = &mut pool.members[host];
        let order = member.exchange.order(now, member.period);
        let rate = meeting.capacity.iops.expect("a pool has a capacity");
        self.nodes[node].set_aim(now, Aim::new(rate, meeting.latency));
        self.nodes[node].obey(now, order);
    }

    fn pool_mut(&mut self, node: usize) -> Option<(&mut Pool, usize)> {
        let pool = self.pools.iter_mut().find(|pool| (pool.first..pool.first + pool.members.len()).contains(&node))?;
        let host = node - pool.first;
        Some((pool, host))
    }

    /// What the host at a node knows of its pool, if it has one.
    #[must_use]
    pub fn pool_of(&self, node: usize) -> Option<exchange::State> {
        let pool = self.pools.iter().find(|pool| (pool.first..pool.first + pool.members.len()).contains(&node))?;
        let member = &pool.members[node - pool.first];
        Some(member.exchange.state(self.now, member.period))
    }

    /// From now on a host can, or cannot, read and write where the hosts meet.
    pub(super) fn set_away(&mut self, node: usize, is_away: bool) {
        if let Some((pool, host)) = self.pool_mut(node) {
            pool.members[host].is_away = is_away;
        }
    }

    /// A host returns after a failure: its daemon starts.
    pub(super) fn rejoin_pool(&mut self, node: usize) {
        let now = self.now;
        if let Some((pool, host)) = self.pool_mut(node) {
            let is_away = pool.members[host].is_away;
            pool.members[host] = Member { is_away, ..Member::new(now, host, &pool.meeting, &mut pool.random) };
            self.join_pool(node);
        }
    }

    pub(super) fn step_pool(&mut self, number: u32, step: Step) {
        let now = self.now;
        let pool = &mut self.pools[number as usize];
        match step {
            Step::End(host) => self.end_pool_period(number, host as usize),
            Step::Read(read) => {
                let Some((host, write)) = pool.end_read(now, read) else { return };
                if !self.nodes[pool.first + host].alive {
                    return;
                }
                if let Some((write, at)) = write {
                    self.enter(at, Event::Pool(number, Step::Write(write)));
                }
                self.order_window(number, host);
            }
            Step::Write(write) => pool.end_write(write),
        }
    }

    fn end_pool_period(&mut self, number: u32, host: usize) {
        let now = self.now;
        let pool = &mut self.pools[number as usize];
        let (node, member) = (&mut self.nodes[pool.first + host], &mut pool.members[host]);
        member.period = member.exchange.period(member.trip);
        let next = now + member.period;
        if node.alive {
            if let Some(report) = node.close_period(now) {
                member.exchange.end_period(now, &report);
            }
            if member.reading.is_none() {
                let (read, at) = pool.begin_read(now, host);
                self.enter(at, Event::Pool(number, Step::Read(read)));
            } else {
                self.order_window(number, host);
            }
        }
        self.enter(next, Event::Pool(number, Step::End(host as u32)));
    }

    fn order_window(&mut self, number: u32, host: usize) {
        let pool = &mut self.pools[number as usize];
        let member = &mut pool.members[host];
        let order = member.exchange.order(self.now, member.period);
        self.nodes[pool.first + host].obey(self.now, order);
    }
}
