//! Sleeps until a device completes requests on any of many queues.
//!
//! The eventfds are watched edge-triggered: each call of the device wakes once, and the counter need not be read. So
//! a sleep costs one system call for any number of queues.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{Timespec, epoll};

use super::queue::Queue;

/// Maximum number of events taken with one call. The rest follow with the next call.
const EVENTS_MAX: usize = 64;

/// A set of queues to wait for.
#[derive(Debug)]
pub struct Waiter {
    epoll: OwnedFd,
}

impl Waiter {
    /// Creates an empty set.
    ///
    /// # Errors
    /// The error of a system call.
    pub fn new() -> io::Result<Waiter> {
        Ok(Waiter { epoll: epoll::create(epoll::CreateFlags::CLOEXEC)? })
    }

    /// Adds a queue, identified by `token`.
    ///
    /// # Errors
    /// The error of a system call.
    pub fn add(&self, queue: &Queue, token: u64) -> io::Result<()> {
        let edges = epoll::EventFlags::IN | epoll::EventFlags::ET;
        Ok(epoll::add(&self.epoll, queue.call(), epoll::EventData::new_u64(token), edges)?)
    }

    /// Sleeps until a device calls, or until `timeout`. Appends the tokens of the called queues to `rung`. Every
    /// queue must have been armed and found empty before: see [`Queue::arm`].
    ///
    /// # Errors
    /// The error of a system call.
    pub fn wait(&self, timeout: Option<Duration>, rung: &mut Vec<u64>) -> io::Result<()> {
        let time = timeout.map(|time| Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() });
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
