//! The in-flight log: which requests a queue has taken and not returned, in memory that outlives the daemon.

/// The part of one queue.
#[derive(Debug)]
pub struct QueueLog;

impl QueueLog {
    /// Settles what was being returned when its writer died; `used` is the ring's index. Returns the heads of requests
    /// that were taken and not returned, oldest first.
    pub fn recover(&mut self, used: u16) -> Vec<u16> {
        let _ = used;
        Vec::new()
    }

    /// A request has been taken from the ring.
    pub fn taken(&mut self, head: u16) {
        let _ = head;
    }

    /// A request is about to be put into the used ring.
    pub fn returning(&mut self, head: u16) {
        let _ = head;
    }

    /// It has been put there; `used` is the ring's index behind it.
    pub fn returned(&mut self, head: u16, used: u16) {
        let _ = (head, used);
    }
}
