//! What of a trace becomes one VM's: its rows, within its volume.
//!
//! A trace of several devices becomes several VMs when each of them reads it and takes one stream. A replay wants rows and
//! no errors: the first error ends them, and is kept for whoever runs the simulation to ask for.

use std::cell::RefCell;
use std::rc::Rc;

use super::{Row, Rows, TraceError};

/// What happens with a request that lies beyond the end of the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PastEnd {
    /// The trace ends there with an error.
    Refuse,
    /// It lies as far beyond the start as it would beyond the end.
    Wrap,
}

/// Why rows ended early, if they did.
#[derive(Debug, Clone, Default)]
pub struct Failure(Rc<RefCell<Option<TraceError>>>);

impl Failure {
    /// The error, once.
    #[must_use]
    pub fn take(&self) -> Option<TraceError> {
        self.0.borrow_mut().take()
    }
}

/// Rows of one stream, or of all, within a volume. Those that ask for nothing are left out.
pub struct Select<'a> {
    rows: Rows<'a>,
    stream: Option<u32>,
    volume: u64,
    past_end: PastEnd,
    failure: Failure,
}

impl<'a> Select<'a> {
    /// Of `rows` those of `stream`, or all without one, for a volume of so many bytes.
    #[must_use]
    pub fn new(rows: Rows<'a>, stream: Option<u32>, volume: u64, past_end: PastEnd) -> Self {
        Select { rows, stream, volume, past_end, failure: Failure::default() }
    }

    /// Where the error will be.
    #[must_use]
    pub fn failure(&self) -> Failure {
        self.failure.clone()
    }

    fn fit(&self, row: Row) -> Result<Row, TraceError> {
        let end = row.offset.saturating_add(u64::from(row.length));
        if end <= self.volume {
            return Ok(row);
        }
        let room = self.volume.checked_sub(u64::from(row.length)).map(|room| room / 512 * 512);
        match (self.past_end, room) {
            (PastEnd::Refuse, _) => Err(TraceError::PastEnd { end, volume: self.volume }),
            (PastEnd::Wrap, None) => Err(TraceError::TooLong { length: row.length, volume: self.volume }),
            (PastEnd::Wrap, Some(room)) => Ok(Row { offset: row.offset.checked_rem(room).unwrap_or(0), ..row }),
        }
    }
}

impl Iterator for Select<'_> {
    type Item = Row;

    fn next(&mut self) -> Option<Row> {
        loop {
            let fitted = match self.rows.next()? {
                Ok(row) if self.stream.is_some_and(|stream| stream != row.stream) => continue,
                Ok(row) if row.is_empty() => continue,
                Ok(row) => self.fit(row),
                Err(error) => Err(error),
            };
            match fitted {
                Ok(row) => return Some(row),
                Err(error) => {
                    *self.failure.0.borrow_mut() = Some(error);
                    self.rows = Box::new(std::iter::empty());
                    return None;
                }
            }
        }
    }
}
