//! The connections of a socket: how many there are at a time, and which one makes room for another.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, oneshot};

/// The connections of all clients.
#[derive(Debug, Clone)]
pub struct Connections(Arc<Mutex<Table>>);

/// The most connections that there are at a time.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Of clients that have no special rights.
    pub clients: usize,
    /// Of those that have.
    pub admins: usize,
    /// Of each user that has none.
    pub of_user: usize,
}

#[derive(Debug)]
struct Table {
    limits: Limits,
    /// In the order in which they were accepted.
    connections: Vec<Connection>,
    accepted: u64,
}

#[derive(Debug)]
struct Connection {
    number: u64,
    uid: u32,
    is_admin: bool,
    /// Whether a request of it is being answered. Then it makes no room.
    is_asking: bool,
    /// Who makes room first.
    rank: Rank,
    /// Told when it must make room for another one.
    end: Arc<Notify>,
    /// Ends when it is closed.
    closed: oneshot::Receiver<Infallible>,
}

/// Which connections make room first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    /// It has asked for nothing.
    Silent,
    /// It has asked, and its answer may be on its way.
    Asked,
    /// Its client has rights.
    Known,
}

/// A connection, until it is dropped.
#[derive(Debug)]
pub struct Permit {
    connections: Connections,
    number: u64,
    end: Arc<Notify>,
    _open: oneshot::Sender<Infallible>,
}

impl Connections {
    pub fn new(limits: Limits) -> Connections {
        Connections(Arc::new(Mutex::new(Table { limits, connections: Vec::new(), accepted: 0 })))
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a connection. If the user or its class has as many as it may have, the oldest one of them that asks for nothing now
    /// makes room, and is closed when this returns: connections that come faster than they are closed would otherwise take the descriptors
    /// of VMs. `None` if all of them ask.
    pub async fn enter(&self, uid: u32, is_admin: bool) -> Option<Permit> {
        let (permit, ended) = self.lock().enter(self, uid, is_admin)?;
        for closed in ended {
            let _ = closed.await;
        }
        Some(permit)
    }
}

impl Table {
    fn enter(
        &mut self,
        of: &Connections,
        uid: u32,
        is_admin: bool,
    ) -> Option<(Permit, Vec<oneshot::Receiver<Infallible>>)> {
        let Limits { clients, admins, of_user } = self.limits;
        let mut ended = Vec::new();
        if !is_admin {
            ended.extend(self.make_room(of_user, |other| other.uid == uid)?);
        }
        let class_max = if is_admin { admins } else { clients };
        ended.extend(self.make_room(class_max, |other| other.is_admin == is_admin)?);
        self.accepted += 1;
        let (number, end) = (self.accepted, Arc::<Notify>::default());
        let (open, closed) = oneshot::channel();
        self.connections.push(Connection {
            number,
            uid,
            is_admin,
            is_asking: false,
            rank: Rank::Silent,
            end: Arc::clone(&end),
            closed,
        });
        Some((Permit { connections: of.clone(), number, end, _open: open }, ended))
    }

    /// Ends one of the connections that compete if there are too many; `None` if none of them may be ended.
    fn make_room(
        &mut self,
        max: usize,
        competes: impl Fn(&Connection) -> bool,
    ) -> Option<Option<oneshot::Receiver<Infallible>>> {
        if self.connections.iter().filter(|other| competes(other)).count() < max {
            return Some(None);
        }
        let idle = |other: &Connection| competes(other) && !other.is_asking;
        let all = self.connections.iter().enumerate().filter(|(_, other)| idle(other));
        let (oldest, _) = all.min_by_key(|(_, other)| other.rank)?;
        let ended = self.connections.remove(oldest);
        ended.end.notify_one();
        Some(Some(ended.closed))
    }
}

impl Permit {
    fn change(&self, change: impl FnOnce(&mut Connection)) {
        if let Some(own) = self.connections.lock().connections.iter_mut().find(|other| other.number == self.number) {
            change(own);
        }
    }

    /// Notes whether a request of the client is being answered: then it makes no room for others.
    pub fn set_asking(&self, asks: bool) {
        self.change(|own| {
            own.is_asking = asks;
            own.rank = own.rank.max(Rank::Asked);
        });
    }

    /// Notes that the client is one that has rights: then all others make room before it.
    pub fn set_known(&self) {
        self.change(|own| own.rank = Rank::Known);
    }

    /// Waits until the connection must make room for another one.
    pub async fn ended(&self) {
        self.end.notified().await;
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut table = self.connections.lock();
        table.connections.retain(|other| other.number != self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { clients: 32, admins: 64, of_user: 8 };

    impl Connections {
        /// The same, of which the connection that makes room is not closed.
        fn entered(&self, uid: u32, is_admin: bool) -> Option<Permit> {
            self.lock().enter(self, uid, is_admin).map(|(permit, _)| permit)
        }
    }

    #[test]
    fn one_user_took_the_connections_of_all_others() {
        let connections = Connections::new(LIMITS);
        let enter = |uid| connections.entered(uid, false);
        let mut first: Vec<_> = (0..LIMITS.of_user).map(|_| enter(1000).unwrap()).collect();
        let other = enter(1001).unwrap();
        let further = enter(1000).expect("the oldest of this user has sent nothing");
        let is_ended = |permit: &Permit| {
            let table = connections.0.lock().unwrap();
            table.connections.iter().all(|other| other.number != permit.number)
        };
        assert_eq!(first.iter().map(is_ended).filter(|ended| *ended).count(), 1);
        assert!(is_ended(&first[0]));
        first.iter().chain([&further]).for_each(|permit| permit.set_asking(true));
        assert!(enter(1000).is_none(), "all of its connections are used");
        first.pop();
        let held = enter(1000).expect("one of its connections has ended");
        held.set_asking(true);
        first[1].set_asking(false);
        assert!(enter(1000).is_some() && is_ended(&first[1]), "one of them has its answer");
        assert!(enter(0).is_some());
        drop((first, further, other, held));
        assert!(connections.0.lock().unwrap().connections.is_empty());
    }

    #[test]
    fn connections_of_strangers_took_those_of_one_who_has_rights() {
        let connections = Connections::new(Limits { clients: 0, admins: 3, of_user: 0 });
        let all: Vec<_> = (0..3).map(|_| connections.entered(0, true).unwrap()).collect();
        all[0].set_known();
        all[1].set_asking(true);
        let has = |at: usize| connections.lock().connections.iter().any(|one| one.number == all[at].number);
        let further = connections.entered(0, true).unwrap();
        assert_eq!([0, 1, 2].map(has), [true, true, false], "the third one asks for nothing, and is a stranger's");
        further.set_asking(true);
        assert!(connections.entered(0, true).is_some());
        assert!(!has(0), "there is no other");
    }

    #[test]
    fn silent_clients_ended_a_scrape_that_was_being_read() {
        let connections = Connections::new(Limits { clients: 0, admins: 3, of_user: 0 });
        let scrape = connections.entered(0, true).unwrap();
        scrape.set_asking(true);
        scrape.set_asking(false);
        let silent: Vec<_> = (0..100).map(|_| connections.entered(0, true).unwrap()).collect();
        let has = |permit: &Permit| connections.lock().connections.iter().any(|one| one.number == permit.number);
        assert!(has(&scrape), "its answer is on its way");
        silent.iter().rev().take(2).for_each(|permit| permit.set_asking(true));
        assert!(connections.entered(0, true).is_some() && !has(&scrape), "there is no other");
    }

    #[tokio::test]
    async fn connections_that_came_faster_than_they_were_closed_kept_their_descriptors() {
        let connections = Connections::new(Limits { clients: 0, admins: 16, of_user: 0 });
        let mut open = Vec::new();
        for _ in 0..1000 {
            let permit = connections.enter(0, true).await.unwrap();
            let is_open = Arc::new(());
            open.push(Arc::downgrade(&is_open));
            tokio::spawn(async move {
                permit.ended().await;
                drop((permit, is_open));
            });
            let count = open.iter().filter(|open| open.strong_count() > 0).count();
            assert!(count <= 16, "{count} connections are open");
        }
    }
}
