//! Places for connections: how many a host has, and that nobody takes those of others.
//!
//! All sockets of a host share `nbd.connections_max` places. Whoever may connect to one socket can take all that is to be had
//! there, and must not shut out the clients of the others with that: as long as a socket has fewer than [`KEPT`] clients, what
//! it lacks is kept for it. That is never more than half of all places, so that a host with more sockets than places can
//! use them.
//!
//! Example: of 1024 places, with 10 sockets of which 9 are unused, the tenth gets 1024 - 9 x 2 = 1006.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Places kept for each socket: one for its VM, and one for that VM on its next host, or back after its connection broke,
/// while the first is not over.
pub const KEPT: u32 = 2;

/// The places of a host.
#[derive(Debug, Default)]
pub struct Seats {
    places: Mutex<Places>,
}

#[derive(Debug, Default)]
struct Places {
    max: u32,
    taken: u32,
    /// By socket: how many of them are taken there.
    rows: BTreeMap<u64, u32>,
    next_row: u64,
    /// What all sockets together lack of [`KEPT`].
    lacking: u32,
}

/// Why somebody gets no place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoSeat {
    /// All are taken.
    #[error("nbd.connections_max is reached")]
    Full,
    /// Those that are left are kept for others.
    #[error("remaining connections are reserved for other sockets; raise nbd.connections_max")]
    Kept,
}

impl Seats {
    /// So many from now on. Who sits stays, even if there are fewer.
    pub fn set_max(&self, max: u32) {
        self.places().max = max;
    }

    /// The places of one more socket.
    #[must_use]
    pub fn row(self: &Arc<Self>) -> Row {
        let mut places = self.places();
        let row = places.next_row;
        places.next_row += 1;
        places.rows.insert(row, 0);
        places.lacking += KEPT;
        Row { of: Arc::clone(self), row }
    }

    fn places(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The places of one socket. When it is dropped none is kept for it any more; who sits stays.
#[derive(Debug)]
pub struct Row {
    of: Arc<Seats>,
    row: u64,
}

impl Row {
    /// A place, if one is free for this socket; given back when it is dropped.
    ///
    /// # Errors
    /// [`NoSeat`].
    pub fn take(&self) -> Result<Seat, NoSeat> {
        let mut places = self.of.places();
        let Places { max, taken, lacking, .. } = *places;
        let here = places.rows.get_mut(&self.row).expect("a row is there until it is dropped");
        if taken >= max {
            return Err(NoSeat::Full);
        }
        if *here >= KEPT && taken + lacking.min(max / 2) >= max {
            return Err(NoSeat::Kept);
        }
        *here += 1;
        let lacked = *here <= KEPT;
        places.taken += 1;
        places.lacking -= u32::from(lacked);
        Ok(Seat { of: Arc::clone(&self.of), row: self.row })
    }
}

impl Drop for Row {
    fn drop(&mut self) {
        let mut places = self.of.places();
        let taken = places.rows.remove(&self.row).expect("a row is there until it is dropped");
        places.lacking -= KEPT.saturating_sub(taken);
    }
}

/// A taken place.
#[derive(Debug)]
pub struct Seat {
    of: Arc<Seats>,
    row: u64,
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut places = self.of.places();
        places.taken -= 1;
        let Some(here) = places.rows.get_mut(&self.row) else { return };
        *here -= 1;
        let lacks = *here < KEPT;
        places.lacking += u32::from(lacks);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seat_is_free_again_when_its_taker_has_gone() {
        let seats = Arc::new(Seats::default());
        let row = seats.row();
        assert_eq!(row.take().err(), Some(NoSeat::Full));
        seats.set_max(2);
        let (first, second) = (row.take(), row.take());
        assert!(first.is_ok() && second.is_ok() && row.take().is_err());
        drop(first);
        seats.set_max(1);
        assert_eq!(row.take().err(), Some(NoSeat::Full), "one sits, and there is one place now");
        drop(second);
        assert!(row.take().is_ok());
    }

    /// How many places a socket gets that takes all it can, beside so many that are not used.
    fn greedy(max: u32, unused: usize) -> usize {
        let seats = Arc::new(Seats::default());
        seats.set_max(max);
        let _others: Vec<Row> = (0..unused).map(|_| seats.row()).collect();
        let row = seats.row();
        let taken: Vec<Seat> = std::iter::from_fn(|| row.take().ok()).collect();
        taken.len()
    }

    #[test]
    fn what_a_socket_lacks_is_kept_for_it() {
        for (max, unused, gets) in
            [(1024, 0, 1024), (1024, 9, 1006), (1024, 5000, 512), (5, 1, 3), (3, 1, 2), (1, 9, 1)]
        {
            assert_eq!(greedy(max, unused), gets, "of {max} beside {unused}");
        }
    }

    #[test]
    fn what_is_kept_follows_who_comes_and_goes() {
        let seats = Arc::new(Seats::default());
        seats.set_max(8);
        let (greedy, other) = (seats.row(), seats.row());
        let mut taken: Vec<Seat> = std::iter::from_fn(|| greedy.take().ok()).collect();
        assert_eq!((taken.len(), greedy.take().err()), (6, Some(NoSeat::Kept)));
        let theirs = (other.take().unwrap(), other.take().unwrap());
        assert_eq!((greedy.take().err(), other.take().err()), (Some(NoSeat::Full), Some(NoSeat::Full)));
        drop(theirs);
        assert_eq!(greedy.take().err(), Some(NoSeat::Kept));
        drop(other);
        taken.extend(std::iter::from_fn(|| greedy.take().ok()));
        assert_eq!(taken.len(), 8, "a socket that has gone needs none");
        drop(greedy);
        taken.clear();
        assert_eq!(seats.row().take().map(|_| ()), Ok(()), "who sat at a socket that has gone gives his place back");
        let places = seats.places();
        assert_eq!((places.taken, places.lacking), (0, 0));
    }
}
