//! A bounded queue of small records from one thread to another, without a lock.
//!
//! The position of the writer is written by it alone, and that of the reader by the reader, so neither ever waits for the
//! other. Each is stored once for several records, because each store takes a cache line away from the other thread's CPU. The ends are values, so there is one writer and one reader. The ends at the gate are
//! behind its lock, which passes them from one thread to the next.

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Its own cache line, so that the ends do not slow each other down.
#[repr(align(128))]
struct Position(AtomicUsize);

struct Lane<T> {
    /// As many as a power of two.
    entries: Box<[UnsafeCell<MaybeUninit<T>>]>,
    /// Number of records that were read, and written, since the start.
    read: Position,
    written: Position,
}

// SAFETY: an entry is accessed by the writer alone until `written` has passed it, and by the reader alone from then until
// `read` has passed it; both positions are stored with `Release` and loaded with `Acquire` by the other end.
unsafe impl<T: Send> Sync for Lane<T> {}
// SAFETY: it owns its records, which may move to another thread.
unsafe impl<T: Send> Send for Lane<T> {}

/// The end that writes.
pub(crate) struct Writer<T> {
    lane: Arc<Lane<T>>,
    /// Number of records that were written, including those that are not published yet.
    written: usize,
    published: usize,
    /// The position of the reader as it was last seen.
    read: usize,
}

/// The end that reads.
pub(crate) struct Reader<T> {
    lane: Arc<Lane<T>>,
    /// Number of records that were read.
    read: usize,
    /// Up to where entries are free again, as the writer knows.
    released: usize,
    /// The position of the writer as it was last seen.
    written: usize,
}

/// Creates a lane for at most `length` records, a power of two. They are `Copy`, so that those left in it need no end.
pub(crate) fn lane<T: Copy + Send>(length: usize) -> (Writer<T>, Reader<T>) {
    assert!(length.is_power_of_two(), "positions are reduced by a mask");
    let entries = (0..length).map(|_| UnsafeCell::new(MaybeUninit::uninit())).collect();
    let start = || Position(AtomicUsize::new(0));
    let lane = Arc::new(Lane { entries, read: start(), written: start() });
    let writer = Writer { lane: Arc::clone(&lane), written: 0, published: 0, read: 0 };
    (writer, Reader { lane, read: 0, released: 0, written: 0 })
}

impl<T: Copy + Send> Writer<T> {
    /// Writes a record, which the reader sees after [`Writer::publish`]. Returns `false` if there is no room.
    pub(crate) fn push(&mut self, record: T) -> bool {
        let lane = &*self.lane;
        if self.written.wrapping_sub(self.read) == lane.entries.len() {
            self.read = lane.read.0.load(Ordering::Acquire);
            if self.written.wrapping_sub(self.read) == lane.entries.len() {
                return false;
            }
        }
        let entry = lane.entries[self.written & (lane.entries.len() - 1)].get();
        // SAFETY: the reader has passed this entry, and reads it again only after the store in `publish`.
        unsafe { (*entry).write(record) };
        self.written = self.written.wrapping_add(1);
        true
    }

    /// Shows the reader what was written: one store for all records.
    pub(crate) fn publish(&mut self) {
        if self.published != self.written {
            self.lane.written.0.store(self.written, Ordering::Release);
            self.published = self.written;
        }
    }

    /// Whether everything that was written has been read.
    pub(crate) fn is_read(&self) -> bool {
        self.lane.read.0.load(Ordering::Relaxed) == self.written
    }
}

impl<T: Copy + Send> Reader<T> {
    /// Reads the next record. If there is none, the writer may use the entries of those that were read.
    pub(crate) fn pop(&mut self) -> Option<T> {
        let lane = &*self.lane;
        if self.read == self.written {
            self.written = lane.written.0.load(Ordering::Acquire);
            if self.read == self.written {
                if self.released != self.read {
                    lane.read.0.store(self.read, Ordering::Release);
                    self.released = self.read;
                }
                return None;
            }
        }
        // SAFETY: the writer has initialised this entry, and writes it again only after the store above.
        let record = unsafe { (*lane.entries[self.read & (lane.entries.len() - 1)].get()).assume_init_read() };
        self.read = self.read.wrapping_add(1);
        Some(record)
    }

    /// Whether nothing can be read.
    pub(crate) fn is_empty(&self) -> bool {
        self.read == self.lane.written.0.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_lane_takes_no_more_and_keeps_the_order() {
        let (mut writer, mut reader) = lane(4);
        assert!((0..3).all(|number| writer.push(number)));
        assert!(reader.is_empty() && reader.pop().is_none() && !writer.is_read(), "nothing is published");
        writer.publish();
        assert!(writer.push(3) && !writer.push(4));
        assert_eq!((reader.pop(), writer.push(4)), (Some(0), false), "its entry is free when the reader finds no more");
        assert_eq!(std::iter::from_fn(|| reader.pop()).collect::<Vec<_>>(), [1, 2]);
        assert!((4..7).all(|number| writer.push(number)) && !writer.push(7));
        writer.publish();
        assert_eq!(std::iter::from_fn(|| reader.pop()).collect::<Vec<_>>(), [3, 4, 5, 6]);
        assert!(writer.is_read() && reader.is_empty());
    }

    #[test]
    fn each_record_of_another_thread_arrives_once_and_in_order() {
        let (mut writer, mut reader) = lane(8);
        let sender = std::thread::spawn(move || {
            for number in 0..100_000u64 {
                while !writer.push([number, !number]) {
                    writer.publish();
                    std::thread::yield_now();
                }
                if number % 3 == 0 {
                    writer.publish();
                }
            }
            writer.publish();
        });
        for expected in 0..100_000u64 {
            let record = loop {
                match reader.pop() {
                    Some(record) => break record,
                    None => std::thread::yield_now(),
                }
            };
            assert_eq!(record, [expected, !expected]);
        }
        sender.join().unwrap();
        assert!(reader.is_empty());
    }
}
