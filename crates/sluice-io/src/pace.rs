//! Rate limits for what peers make the daemon do besides requests.
//!
//! `cpu_limit` bounds the work of a device thread for a VM. The work here is for connections and sessions, on the main thread, where
//! the other VMs' sessions and all commands wait for it. A [`Pace`] is one limit. [`PeerPaces`] are those of the peers of a socket that
//! many may connect to, each with a limit of its own.
//!
//! An event above the rate waits and does not fail. Events wait in the order in which they came. One that is given up while it waits
//! does not count.
//!
//! A peer that can become another one at will has a second, wider limit, which it shares with all that it could become: a process with
//! those of its user, an IPv6 address with its network, a loopback address with all of them. Of the processes or addresses that wait for
//! the wider limit, each waits with one event at a time, and those that connected often lately go after the others. So a process that connects
//! now and then is delayed by one connection of all loops.
//!
//! A VM with many volumes may have as many sockets. [`VmPaces`] limit the connections of a VM on a device, whichever way they come.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tokio::sync::{Mutex, MutexGuard};
use tokio::time::{Instant, sleep_until};

use crate::accept::Peer;

/// Maximum number of peers of a socket, or VMs of a device, that are remembered. Those that have not connected lately are forgotten first.
///
/// Example: a peer that connects once is remembered for 20 ms. So it takes 51,200 peers per second to reach it, more than a thread accepts.
const PEERS_MAX: usize = 1024;

/// Number of connections above which a peer lets others go first that share its wider limit: those of QEMU or `nbdcopy` for a disk.
const FEW: u32 = 16;
/// Time after which one of them is forgotten.
const FEW_EVERY: Duration = Duration::from_secs(1);

/// A rate limit. It counts across connections.
#[derive(Debug)]
pub(crate) struct Pace {
    /// Number of events without a delay.
    burst: u32,
    /// Time per event after that.
    interval: Duration,
    past: Mutex<Past>,
    /// Held by the one of those with many events lately that waits for its turn.
    many: Mutex<()>,
}

/// The events so far.
#[derive(Debug, Clone, Copy, Default)]
struct Past {
    /// When they would have occurred at a regular pace; `None` before the first.
    due: Option<Instant>,
    /// The same at one in [`FEW_EVERY`].
    few_until: Option<Instant>,
}

/// The right to one event. Dropping it gives it back.
pub(crate) struct Turn<'a> {
    past: MutexGuard<'a, Past>,
    interval: Duration,
}

impl Turn<'_> {
    /// Whether there were more than [`FEW`] events lately.
    fn has_many(&self) -> bool {
        self.past.few_until.is_some_and(|until| until > Instant::now() + FEW_EVERY * FEW)
    }

    /// Counts the event.
    fn take(mut self) {
        let now = Instant::now();
        let later = |due: Option<Instant>, interval| due.map_or(now, |due| due.max(now)) + interval;
        let few_until = later(self.past.few_until, FEW_EVERY).min(now + FEW_EVERY * 2 * FEW);
        *self.past = Past { due: Some(later(self.past.due, self.interval)), few_until: Some(few_until) };
    }
}

impl Pace {
    const fn new(burst: u32, interval: Duration) -> Self {
        Pace {
            burst,
            interval,
            past: Mutex::const_new(Past { due: None, few_until: None }),
            many: Mutex::const_new(()),
        }
    }

    /// Starts of rings: those of all rings of a VM that boots, and some more. For each start the device thread examines every
    /// request that waits in the ring, so a VMM that only starts rings must not keep it busy.
    ///
    /// Example: a ring with 128 waiting requests takes 0.1 ms to start. 32 starts per second are 0.3 % of a CPU.
    pub(crate) const fn of_ring_starts() -> Self {
        Pace::new(256, Duration::from_micros(31_250))
    }

    /// Messages: those of a VM that boots with many rings, several times over. QEMU sends two whenever a guest moves an interrupt.
    ///
    /// Example: a message takes 5 to 100 us, so 500 per second are at most 5 % of a CPU.
    pub(crate) const fn of_messages() -> Self {
        Pace::new(4096, Duration::from_millis(2))
    }

    /// Connections of VMMs. They connect again once or twice a second.
    ///
    /// Example: a session takes 0.2 ms to start and end, so 20 per second are 0.4 % of a CPU.
    pub(crate) const fn of_connections() -> Self {
        Pace::new(64, Duration::from_millis(50))
    }

    /// Connections of an NBD client: a program that opens 16 for each of 16 disks, and then connects again many times a second.
    ///
    /// Example: a connection takes 0.3 ms from its handshake to its end, so 50 per second are 1.5 % of a CPU.
    const fn of_clients() -> Self {
        Pace::new(256, Duration::from_millis(20))
    }

    /// Connections of all NBD clients that one tenant could be, and of those of a VM on a device.
    const fn of_tenants() -> Self {
        Pace::new(1024, Duration::from_millis(5))
    }

    /// Waits until another event may occur, and counts it.
    pub(crate) async fn wait(&self) {
        self.turn().await.take();
    }

    /// Waits until another event may occur. Others wait until it is counted or dropped.
    async fn turn(&self) -> Turn<'_> {
        let past = self.past.lock().await;
        let at = past.due.and_then(|due| due.checked_sub(self.interval * (self.burst - 1)));
        if let Some(at) = at.filter(|at| *at > Instant::now()) {
            sleep_until(at).await;
        }
        Turn { past, interval: self.interval }
    }

    /// Whether it would be the same without its past.
    fn is_idle(&self, now: Instant) -> bool {
        self.past.try_lock().is_ok_and(|past| past.due.is_none_or(|due| due <= now))
    }
}

/// One or more peers that share a rate limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Party {
    /// A process of this host, of a user.
    Process(u32, i32),
    /// A user of this host; `None` if the kernel does not report it.
    User(Option<u32>),
    /// A TCP address.
    Address(IpAddr),
    /// An IPv6 network: the first 64 bits of its addresses.
    Network(u64),
    /// All addresses of this host itself.
    Loopback,
}

impl Party {
    /// Returns the narrowest party that is known of a peer, if it has a limit of its own, and the one that it cannot leave.
    fn of(peer: Peer) -> (Option<Party>, Option<Party>) {
        match peer {
            Peer::Process { user, process } => {
                (user.zip(process).map(|(user, process)| Party::Process(user, process)), Some(Party::User(user)))
            }
            Peer::Address(address) => {
                let wide = match address {
                    address if address.is_loopback() => Some(Party::Loopback),
                    IpAddr::V6(address) => Some(Party::Network((address.to_bits() >> 64) as u64)),
                    IpAddr::V4(_) => None,
                };
                (Some(Party::Address(address)), wide)
            }
        }
    }

    fn pace(self) -> Pace {
        match self {
            Party::Process(..) | Party::Address(_) => Pace::of_clients(),
            Party::User(_) | Party::Network(_) | Party::Loopback => Pace::of_tenants(),
        }
    }
}

/// A bounded number of limits, by whose they are. One that is idle is as good as a new one, and is forgotten when there are many.
#[derive(Debug)]
struct Paces<K> {
    known: BTreeMap<K, Arc<Pace>>,
    /// The limit that all share for whom there is no room.
    others: Arc<Pace>,
}

impl<K> Default for Paces<K> {
    fn default() -> Self {
        Paces { known: BTreeMap::new(), others: Arc::new(Pace::of_tenants()) }
    }
}

impl<K: Ord + Clone> Paces<K> {
    fn of(&mut self, key: &K, new: impl FnOnce() -> Pace) -> Arc<Pace> {
        if let Some(known) = self.known.get(key) {
            return Arc::clone(known);
        }
        if self.known.len() >= PEERS_MAX {
            let now = Instant::now();
            self.known.retain(|_, pace| Arc::strong_count(pace) > 1 || !pace.is_idle(now));
            if self.known.len() >= PEERS_MAX {
                return Arc::clone(&self.others);
            }
        }
        let pace = Arc::new(new());
        self.known.insert(key.clone(), Arc::clone(&pace));
        pace
    }
}

/// The limits of the peers of one socket.
#[derive(Debug, Default)]
pub(crate) struct PeerPaces(Paces<Party>);

impl PeerPaces {
    /// Returns the limits of a peer.
    pub(crate) fn of(&mut self, peer: Peer) -> PeerPace {
        let (narrow, wide) = Party::of(peer);
        let mut pace = |party: Party| self.0.of(&party, || party.pace());
        PeerPace { narrow: narrow.map(&mut pace), wide: wide.map(&mut pace) }
    }
}

/// The limits of the VMs of a device, for all their sockets together.
#[derive(Debug, Clone, Default)]
pub(crate) struct VmPaces(Arc<std::sync::Mutex<Paces<String>>>);

impl VmPaces {
    /// Waits until a client of a VM may be connected, and counts it.
    pub(crate) async fn wait(&self, vm: &String) {
        let pace = self.0.lock().unwrap_or_else(PoisonError::into_inner).of(vm, Pace::of_tenants);
        pace.wait().await;
    }
}

/// The limits of one peer.
#[derive(Debug, Clone)]
pub(crate) struct PeerPace {
    narrow: Option<Arc<Pace>>,
    wide: Option<Arc<Pace>>,
}

impl PeerPace {
    /// Waits until the peer may connect, and counts the connection.
    pub(crate) async fn wait(&self) {
        // A narrower turn is kept while its peer waits for the wider one, so that each peer has one event in line there.
        let narrow = match &self.narrow {
            Some(pace) => Some(pace.turn().await),
            None => None,
        };
        // Both are the same if the table is full.
        let shared = self.narrow.as_ref().zip(self.wide.as_ref()).is_some_and(|(one, other)| Arc::ptr_eq(one, other));
        if let Some(pace) = self.wide.as_ref().filter(|_| !shared) {
            let _many = match &narrow {
                Some(turn) if turn.has_many() => Some(pace.many.lock().await),
                _ => None,
            };
            pace.wait().await;
        }
        narrow.into_iter().for_each(Turn::take);
    }
}

#[cfg(test)]
mod tests;
