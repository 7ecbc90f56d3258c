//! How many connections there are. For a further one an idle one makes room: one without the cookie first, and of those the oldest.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;

/// Maximum number of connections.
const CONNECTIONS_MAX: usize = 96;

/// All connections.
#[derive(Debug, Clone, Default)]
pub(crate) struct Connections(Arc<Mutex<Table>>);

#[derive(Debug, Default)]
struct Table {
    /// In the order in which they were accepted.
    connections: Vec<Connection>,
    accepted: u64,
}

#[derive(Debug)]
struct Connection {
    number: u64,
    is_known: bool,
    /// Number of its requests that are being answered. A stream is not counted: its browser connects again.
    answering: usize,
    end: Arc<Notify>,
}

/// A connection, until it is dropped.
#[derive(Debug)]
pub(crate) struct Permit {
    connections: Connections,
    number: u64,
    end: Arc<Notify>,
}

/// Notes that a connection has sent the cookie.
#[derive(Debug, Clone)]
pub(crate) struct Known(Arc<Permit>);

/// A request that is being answered, until it is dropped.
#[derive(Debug)]
pub(crate) struct Answering(Arc<Permit>);

impl Connections {
    /// Adds a connection; `None` if there is no room, because a request is being answered on every one.
    pub(crate) fn enter(&self) -> Option<Permit> {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if table.connections.len() >= CONNECTIONS_MAX {
            let idle = |one: &Connection| one.answering == 0;
            let at = |wanted: &dyn Fn(&Connection) -> bool| table.connections.iter().position(wanted);
            let oldest = at(&|one| idle(one) && !one.is_known).or_else(|| at(&idle))?;
            table.connections.remove(oldest).end.notify_one();
        }
        table.accepted += 1;
        let (number, end) = (table.accepted, Arc::<Notify>::default());
        table.connections.push(Connection { number, is_known: false, answering: 0, end: Arc::clone(&end) });
        Some(Permit { connections: self.clone(), number, end })
    }
}

impl Permit {
    fn change(&self, change: impl FnOnce(&mut Connection)) {
        let mut table = self.connections.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = table.connections.iter_mut().find(|other| other.number == self.number) {
            change(own);
        }
    }

    /// Waits until the connection must make room.
    pub(crate) async fn ended(&self) {
        self.end.notified().await;
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut table = self.connections.0.lock().unwrap_or_else(PoisonError::into_inner);
        table.connections.retain(|other| other.number != self.number);
    }
}

impl Known {
    pub(crate) fn of(permit: &Arc<Permit>) -> Known {
        Known(Arc::clone(permit))
    }

    pub(crate) fn set(&self) {
        self.0.change(|own| own.is_known = true);
    }

    /// Notes that a request is being answered.
    pub(crate) fn answering(&self) -> Answering {
        self.0.change(|own| own.answering += 1);
        Answering(Arc::clone(&self.0))
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.change(|own| own.answering = own.answering.saturating_sub(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(connections: &Connections) -> usize {
        connections.0.lock().unwrap().connections.len()
    }

    #[test]
    fn idle_connections_make_room_those_without_a_cookie_first() {
        let connections = Connections::default();
        let all: Vec<_> = (0..CONNECTIONS_MAX).map(|_| Arc::new(connections.enter().unwrap())).collect();
        Known::of(&all[0]).set();
        let busy = Known::of(&all[1]).answering();
        let _another = connections.enter().unwrap();
        assert_eq!(count(&connections), CONNECTIONS_MAX);
        let has = |number: u64| connections.0.lock().unwrap().connections.iter().any(|one| one.number == number);
        assert!(has(1) && has(2) && !has(3), "the third made room: it was idle and not known");
        let _busy: Vec<_> = all.iter().map(|one| Known::of(one).answering()).collect();
        let _last = connections.enter().unwrap();
        let _others: Vec<_> = connections.enter().into_iter().collect();
        drop(busy);
        assert!(count(&connections) <= CONNECTIONS_MAX);
        drop(all);
    }
}
