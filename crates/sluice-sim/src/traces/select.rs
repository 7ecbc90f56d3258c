//! Selection of a trace's rows for one VM, within its volume.
//!
//! A trace of several devices becomes several VMs: each of them reads it and takes one stream. A replay needs rows
//! without errors, so the first error ends them and is stored for the caller of the simulation.

use std::cell::RefCell;
use std::rc::Rc;

use super::{Row, Rows, TraceError};

/// Handling of a request after the end of the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PastEnd {
    /// The trace ends with an error.
    Refuse,
    /// The request wraps around to the start.
    Wrap,
}

/// The error that ended the rows, if any.
#[derive(Debug, Clone, Default)]
pub struct Failure(Rc<RefCell<Option<TraceError>>>);

impl Failure {
    /// Returns the error once.
    #[must_use]
    pub fn take(&self) -> Option<TraceError> {
        self.0.borrow_mut().take()
    }
}

/// Rows of one stream, or of all, within a volume. Rows without a request are skipped.
pub struct Select<'a> {
    rows: Rows<'a>,
    stream: Option<u32>,
    volume: u64,
    past_end: PastEnd,
    failure: Failure,
}

impl<'a> Select<'a> {
    /// The rows of `stream`, or all rows without one, for a volume of this size.
    #[must_use]
    pub fn new(rows: Rows<'a>, stream: Option<u32>, volume: u64, past_end: PastEnd) -> Self {
        Select { rows, stream, volume, past_end, failure: Failure::default() }
    }

    /// Cell in which an error will be stored.
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
