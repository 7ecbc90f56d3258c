//! Sleeping until a device answers on any of many queues.
//!
//! The eventfds are watched for edges: each ring of the device wakes once, and nobody has to read the counter. So a
//! sleep costs one system call, however many queues there are.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{Timespec, epoll};

use super::queue::Queue;

/// Most wake-ups that are taken at once; others come with the next call.
const EVENTS_MAX: usize = 64;

/// Queues to sleep on.
#[derive(Debug)]
pub struct Waiter {
    epoll: OwnedFd,
}

impl Waiter {
    /// Without queues.
    ///
    /// # Errors
    /// What the system says.
    pub fn new() -> io::Result<Waiter> {
        Ok(Waiter { epoll: epoll::create(epoll::CreateFlags::CLOEXEC)? })
    }

    /// Watches a queue too, as `token`.
    ///
    /// # Errors
    /// What the system says.
    pub fn add(&self, queue: &Queue, token: u64) -> io::Result<()> {
        let edges = epoll::EventFlags::IN | epoll::EventFlags::ET;
        Ok(epoll::add(&self.epoll, queue.call(), epoll::EventData::new_u64(token), edges)?)
    }

    /// Sleeps until a device rings or `patience` ends; the tokens of the queues that were rung are put behind `rung`.
    /// Every queue must have been armed and found empty before: see [`Queue::arm`].
    ///
    /// # Errors
    /// What the system says.
    pub fn wait(&self, patience: Option<Duration>, rung: &mut Vec<u64>) -> io::Result<()> {
        let time = patience.map(|time| Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() });
        let mut events =
            [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }; EVENTS_MAX];
        let count = match epoll::wait(&self.epoll, &mut events, time.as_ref()) {
            Ok(count) => count,
            Err(rustix::io::Errno::INTR) => 0,
            Err(error) => return Err(error.into()),
        };
        rung.extend(events[..count].iter().map(|event| event.data.u64()));
        Ok(())
    }
}
