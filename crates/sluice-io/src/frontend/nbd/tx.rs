//! Replies to an NBD client, sent one message at a time.

use std::time::Duration;

use sluice_sched::Instant;

use crate::frontend::nbd::rx::DATA_PER_MIB;
use crate::slab::IoId;

/// Memory that a sent batch keeps for the headers of the next one, in bytes; enough for hundreds of requests. Replies
/// to block status are among the headers and can take megabytes, which no window counts after they were sent.
const HEADERS_KEPT: usize = 16 << 10;
/// Time limit for reading a batch of replies, in addition to [`DATA_PER_MIB`]. It is longer than that for the data of a write, because
/// a hypervisor that is suspended for a moment reads nothing, and would see errors of its disk.
const REPLIES_MAX: Duration = Duration::from_secs(30);

/// Replies that are sent together.
pub(crate) struct Batch {
    pub(crate) ios: Vec<IoId>,
    pub(crate) headers: Vec<u8>,
    pub(crate) segments: Vec<libc::iovec>,
    pub(crate) first: usize,
    pub(crate) message: libc::msghdr,
}

impl Batch {
    fn new() -> Box<Self> {
        // SAFETY: a message header of zeroes is valid: no name, no segments, no control data.
        let message = unsafe { std::mem::zeroed() };
        let (ios, headers, segments) = (Vec::new(), Vec::new(), Vec::new());
        Box::new(Batch { ios, headers, segments, first: 0, message })
    }

    /// Empties it, and frees memory that only a large batch needs.
    fn clear(&mut self) {
        self.ios.clear();
        self.headers.clear();
        self.headers.shrink_to(HEADERS_KEPT);
        self.segments.clear();
        self.first = 0;
    }

    /// Records that `sent` bytes were sent. Returns whether some are left.
    pub(crate) fn advance(&mut self, mut sent: usize) -> bool {
        while let Some(segment) = self.segments.get_mut(self.first) {
            if sent < segment.iov_len {
                segment.iov_base = segment.iov_base.cast::<u8>().wrapping_add(sent).cast();
                segment.iov_len -= sent;
                return true;
            }
            sent -= segment.iov_len;
            self.first += 1;
        }
        false
    }
}

/// The message that is being sent.
enum Sending {
    /// Nothing. The batch that was sent last is kept for its memory.
    Nothing(Option<Box<Batch>>),
    /// A batch, with the deadline for reading it.
    Batch(Box<Batch>, Instant),
    /// The client has disconnected without reading its replies, which are dropped. Its requests are served.
    Deaf,
}

/// The sending half of a connection.
pub(crate) struct Tx {
    /// Requests whose replies are to be sent.
    pub(crate) replies: Vec<IoId>,
    sending: Sending,
    /// Whether it is in the list of connections with replies to send.
    pub(crate) listed: bool,
}

impl Tx {
    pub(crate) fn new() -> Self {
        Tx { replies: Vec::new(), sending: Sending::Nothing(None), listed: false }
    }

    pub(crate) fn is_deaf(&self) -> bool {
        matches!(self.sending, Sending::Deaf)
    }

    pub(crate) fn is_sending(&self) -> bool {
        matches!(self.sending, Sending::Batch(..))
    }

    /// Whether a batch can be sent now.
    pub(crate) fn may_send(&self) -> bool {
        matches!(self.sending, Sending::Nothing(_)) && !self.replies.is_empty()
    }

    /// Returns an empty batch.
    pub(crate) fn empty_batch(&mut self) -> Box<Batch> {
        let Sending::Nothing(spare) = &mut self.sending else { return Batch::new() };
        spare.take().unwrap_or_else(Batch::new)
    }

    /// Starts sending `bytes` of replies.
    pub(crate) fn start(&mut self, now: Instant, batch: Box<Batch>, bytes: u64) {
        self.sending = Sending::Batch(batch, now + REPLIES_MAX + DATA_PER_MIB * (bytes >> 20) as u32);
    }

    /// Returns the batch that is being sent.
    pub(crate) fn batch(&mut self) -> &mut Batch {
        let Sending::Batch(batch, _) = &mut self.sending else { unreachable!("a batch is being sent") };
        batch
    }

    /// Takes the requests of the batch that was sent, or cannot be sent.
    pub(crate) fn end(&mut self, ended: &mut Vec<IoId>) {
        match std::mem::replace(&mut self.sending, Sending::Nothing(None)) {
            Sending::Batch(mut batch, _) => {
                ended.append(&mut batch.ios);
                batch.clear();
                self.sending = Sending::Nothing(Some(batch));
            }
            other => self.sending = other,
        }
    }

    /// Drops all further replies. Returns the requests whose replies were to be sent.
    pub(crate) fn turn_deaf(&mut self) -> Vec<IoId> {
        self.sending = Sending::Deaf;
        std::mem::take(&mut self.replies)
    }

    /// Returns the deadline for reading the replies that are being sent.
    pub(crate) fn due(&self) -> Option<Instant> {
        if let Sending::Batch(_, due) = &self.sending { Some(*due) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_keeps_little_memory_for_the_next() {
        let mut batch = Batch::new();
        batch.headers.resize(4 << 20, 0);
        batch.clear();
        assert!(batch.headers.is_empty() && batch.headers.capacity() <= HEADERS_KEPT, "{}", batch.headers.capacity());
        batch.headers.resize(4096, 0);
        let place = batch.headers.as_ptr();
        batch.clear();
        batch.headers.resize(4096, 0);
        assert_eq!(batch.headers.as_ptr(), place, "the memory of usual replies is kept");
    }
}
