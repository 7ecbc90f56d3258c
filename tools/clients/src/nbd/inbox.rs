//! Receive buffer. Replies are parsed in place.
//!
//! The buffer is filled by large reads and emptied reply by reply. Data of a read that the caller does not keep are
//! dropped as they arrive, so they never need to fit. Data that the caller keeps must be contiguous, so the buffer
//! grows to the longest read submitted. They are copied only if a server splits one read into several chunks.

use std::mem;
use std::ops::Range;

use super::slots::{Kind, Slot, Slots};
use super::{ClientError, Reply};
use sluice_io::nbd::wire::{
    CHUNK_HEADER_LEN, CHUNK_MAGIC, ChunkHeader, EXTENT_LEN, Errno, PAYLOAD_LEN_MAX, READ_DATA_CHUNK_LEN,
    SIMPLE_REPLY_LEN, SIMPLE_REPLY_MAGIC, chunk, u32_at, u64_at,
};

/// Size of the buffer: enough for 60 replies of 4 KiB, and small enough for an L2 cache.
const BUFFER_LEN: usize = 256 << 10;

/// Received bytes and the state of the parser.
#[derive(Debug)]
pub(super) struct Inbox {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    structured: bool,
    keep_data: bool,
    /// Number of bytes to drop on arrival.
    skip: usize,
    /// The slot whose reply is complete when these bytes have arrived.
    skip_ends: Option<u32>,
}

/// Result of one parsing step.
enum Step {
    /// More bytes must arrive first.
    Incomplete,
    /// A part of a reply was parsed.
    Consumed,
    /// The reply of this slot is complete. The range is that of its data, if they arrived in one chunk.
    Finished(u32, Range<usize>),
}

/// Data of a read, in the chunk or simple reply at the start of the buffer.
struct Data {
    slot: u32,
    head_len: usize,
    offset: u64,
    len: u32,
    done: bool,
}

impl Inbox {
    pub(super) fn new(structured: bool, keep_data: bool) -> Inbox {
        let buffer = vec![0; BUFFER_LEN];
        Inbox { buffer, start: 0, end: 0, structured, keep_data, skip: 0, skip_ends: None }
    }

    /// Makes room for the reply to a read of `len` bytes.
    pub(super) fn expect_read(&mut self, len: u32) {
        let needed = READ_DATA_CHUNK_LEN + len.min(PAYLOAD_LEN_MAX) as usize;
        if self.keep_data && needed > self.buffer.len() {
            self.buffer.resize(needed, 0);
        }
    }

    /// Returns the free part of the buffer; never empty.
    pub(super) fn space(&mut self) -> &mut [u8] {
        if self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        &mut self.buffer[self.end..]
    }

    /// Records that `len` bytes were written to [`Inbox::space`].
    pub(super) fn filled(&mut self, len: usize) {
        self.end += len;
    }

    /// Passes all complete replies to `on_reply` and returns their number.
    pub(super) fn drain(
        &mut self,
        slots: &mut Slots,
        on_reply: &mut impl FnMut(Reply<'_>),
    ) -> Result<usize, ClientError> {
        let mut replies = 0;
        loop {
            match self.step(slots)? {
                Step::Incomplete => return Ok(replies),
                Step::Consumed => {}
                Step::Finished(slot, data) => {
                    self.finish(slots, slot, data, on_reply)?;
                    replies += 1;
                }
            }
        }
    }

    fn step(&mut self, slots: &mut Slots) -> Result<Step, ClientError> {
        if self.skip > 0 {
            return Ok(self.drop_unwanted());
        }
        let bytes = &self.buffer[self.start..self.end];
        if bytes.len() < SIMPLE_REPLY_LEN {
            return Ok(Step::Incomplete);
        }
        match u32_at(bytes, 0) {
            SIMPLE_REPLY_MAGIC => self.simple(slots),
            CHUNK_MAGIC if self.structured => match bytes.first_chunk().map(ChunkHeader::parse) {
                Some(Ok(header)) => self.chunk(header, slots),
                Some(Err(_)) => unreachable!("the magic was just compared"),
                None => Ok(Step::Incomplete),
            },
            _ => Err(broken("a reply has an unknown magic")),
        }
    }

    fn drop_unwanted(&mut self) -> Step {
        let len = self.skip.min(self.end - self.start);
        self.start += len;
        self.skip -= len;
        if self.skip > 0 {
            return Step::Incomplete;
        }
        self.skip_ends.take().map_or(Step::Consumed, |slot| Step::Finished(slot, 0..0))
    }

    fn simple(&mut self, slots: &mut Slots) -> Result<Step, ClientError> {
        let bytes = &self.buffer[self.start..self.end];
        let errno = Errno::from_wire(u32_at(bytes, 4));
        let (index, slot) = slots.find(u64_at(bytes, 8))?;
        let unfit = match slot.kind {
            Kind::Read => self.structured,
            Kind::BlockStatus => errno.is_none(),
            Kind::Plain => false,
        };
        if unfit {
            return Err(broken("a simple reply was sent instead of a structured one"));
        }
        slot.errno = errno;
        if errno.is_none() && slot.kind == Kind::Read {
            let (offset, len) = (slot.offset, slot.len);
            return self.data(Data { slot: index, head_len: SIMPLE_REPLY_LEN, offset, len, done: true }, slots);
        }
        self.start += SIMPLE_REPLY_LEN;
        Ok(Step::Finished(index, 0..0))
    }

    fn chunk(&mut self, header: ChunkHeader, slots: &mut Slots) -> Result<Step, ClientError> {
        let bytes = &self.buffer[self.start..self.end];
        let done = header.flags & chunk::DONE != 0;
        let (index, slot) = slots.find(header.cookie)?;
        if header.kind == chunk::OFFSET_DATA && slot.kind == Kind::Read && header.length > 8 {
            if bytes.len() < READ_DATA_CHUNK_LEN {
                return Ok(Step::Incomplete);
            }
            let (offset, len) = (u64_at(bytes, CHUNK_HEADER_LEN), header.length - 8);
            return self.data(Data { slot: index, head_len: READ_DATA_CHUNK_LEN, offset, len, done }, slots);
        }
        // All other chunks are short, so they are parsed when they are complete.
        let len = CHUNK_HEADER_LEN + header.length as usize;
        if len > self.buffer.len() {
            return Err(broken("a chunk is longer than any requested length"));
        }
        if len > bytes.len() {
            return Ok(Step::Incomplete);
        }
        let extents = take_short_chunk(slot, header.kind, &bytes[CHUNK_HEADER_LEN..len], self.keep_data)?;
        let payload_at = self.start + CHUNK_HEADER_LEN;
        self.start += len;
        if !done {
            slot.gathered.extend_from_slice(&self.buffer[payload_at..][extents]);
            return Ok(Step::Consumed);
        }
        Ok(Step::Finished(index, payload_at + extents.start..payload_at + extents.end))
    }

    fn data(&mut self, data: Data, slots: &mut Slots) -> Result<Step, ClientError> {
        let slot = slots.slot(data.slot);
        let (available, total) = (self.end - self.start, data.head_len + data.len as usize);
        if self.keep_data && available < total && total <= self.buffer.len() {
            return Ok(Step::Incomplete);
        }
        // These bytes are consumed below, so `claim` counts them only once.
        let at = claim(slot, data.offset, data.len)?;
        if available < total {
            self.skip = total;
            self.skip_ends = data.done.then_some(data.slot);
            return Ok(Step::Consumed);
        }
        let range = self.start + data.head_len..self.start + total;
        self.start += total;
        if self.keep_data && data.done && data.len == slot.len {
            return Ok(Step::Finished(data.slot, range));
        }
        if self.keep_data {
            gather(slot, at, data.len).copy_from_slice(&self.buffer[range]);
        }
        Ok(if data.done { Step::Finished(data.slot, 0..0) } else { Step::Consumed })
    }

    fn finish(
        &self,
        slots: &mut Slots,
        index: u32,
        data: Range<usize>,
        on_reply: &mut impl FnMut(Reply<'_>),
    ) -> Result<(), ClientError> {
        let slot = slots.slot(index);
        let (cookie, errno) = (slot.cookie, slot.errno);
        let missing = match slot.kind {
            Kind::Read => slot.received != slot.len,
            Kind::BlockStatus => slot.gathered.is_empty() && data.is_empty(),
            Kind::Plain => false,
        };
        if missing && errno.is_none() {
            return Err(broken("a successful reply lacks some of the requested data"));
        }
        let mut gathered = mem::take(&mut slot.gathered);
        slots.release(index);
        let data = match errno {
            Some(_) => &[],
            None if gathered.is_empty() => &self.buffer[data],
            None => {
                gathered.extend_from_slice(&self.buffer[data]);
                gathered.as_slice()
            }
        };
        on_reply(Reply { cookie, result: errno.map_or(Ok(()), Err), data });
        Ok(())
    }
}

/// Handles a complete chunk. Returns the range of the extents in its payload, if it has any.
fn take_short_chunk(slot: &mut Slot, kind: u16, payload: &[u8], keep_data: bool) -> Result<Range<usize>, ClientError> {
    match (kind, slot.kind) {
        (chunk::NONE, _) if payload.is_empty() => {}
        (chunk::OFFSET_HOLE, Kind::Read) if payload.len() == 12 => {
            let len = u32_at(payload, 8);
            let at = claim(slot, u64_at(payload, 0), len)?;
            if keep_data {
                gather(slot, at, len).fill(0);
            }
        }
        (chunk::BLOCK_STATUS, Kind::BlockStatus)
            if payload.len() > 4 && (payload.len() - 4).is_multiple_of(EXTENT_LEN) =>
        {
            return Ok(4..payload.len());
        }
        (kind, _) if kind & chunk::ERROR_BIT != 0 && payload.len() >= 6 => {
            let errno = Errno::from_wire(u32_at(payload, 0)).unwrap_or(Errno::Einval);
            slot.errno.get_or_insert(errno);
        }
        _ => return Err(broken("a chunk does not match its request")),
    }
    Ok(0..0)
}

/// Counts data of a read as received. Returns their position in the read.
fn claim(slot: &mut Slot, offset: u64, len: u32) -> Result<usize, ClientError> {
    let inside = |at: &u64| at.checked_add(u64::from(len)).is_some_and(|end| end <= u64::from(slot.len));
    let at = offset.checked_sub(slot.offset).filter(inside);
    let received = slot.received.checked_add(len).filter(|received| *received <= slot.len);
    match (at, received) {
        (Some(at), Some(received)) => {
            slot.received = received;
            Ok(at as usize)
        }
        _ => Err(broken("data lie outside the requested range")),
    }
}

/// Returns the buffer for `len` bytes at position `at` of a read that arrives in several chunks. [`claim`] has
/// checked both.
fn gather(slot: &mut Slot, at: usize, len: u32) -> &mut [u8] {
    slot.gathered.resize(slot.len as usize, 0);
    &mut slot.gathered[at..at + len as usize]
}

fn broken(what: &'static str) -> ClientError {
    ClientError::Protocol { what }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_io::nbd::wire::{
        self, Extent, block_status_chunk, error_chunk, none_chunk, offset_hole_chunk, read_data_chunk, simple_reply,
    };

    type Outcome = Result<Vec<(u64, Result<(), Errno>, Vec<u8>)>, ClientError>;

    /// Feeds `bytes` in blocks of `piece` bytes and returns the replies.
    fn feed(inbox: &mut Inbox, slots: &mut Slots, bytes: &[u8], piece: usize) -> Outcome {
        let mut replies = Vec::new();
        for part in bytes.chunks(piece) {
            inbox.space()[..part.len()].copy_from_slice(part);
            inbox.filled(part.len());
            inbox.drain(slots, &mut |reply| replies.push((reply.cookie, reply.result, reply.data.to_vec())))?;
        }
        Ok(replies)
    }

    fn chunk_of(kind: u16, done: bool, cookie: u64, payload: &[&[u8]]) -> Vec<u8> {
        let payload = payload.concat();
        let length = payload.len() as u32;
        let header = ChunkHeader { flags: u16::from(done), kind, cookie, length };
        [header.encode().as_slice(), &payload].concat()
    }

    #[test]
    fn simple_replies_in_pieces_of_any_size() {
        for keep_data in [false, true] {
            for piece in [1, 2, 7, 16, 17, 100, 4096] {
                let (mut inbox, mut slots) = (Inbox::new(false, keep_data), Slots::default());
                let read = slots.insert(1, Kind::Read, 0, 100).expect("room");
                let write = slots.insert(2, Kind::Plain, 0, 100).expect("room");
                let failed = slots.insert(3, Kind::Read, 0, 100).expect("room");
                let bytes = [
                    simple_reply(write, Ok(())).as_slice(),
                    &simple_reply(read, Ok(())),
                    &[9; 100],
                    &simple_reply(failed, Err(Errno::Eio)),
                ]
                .concat();
                let data = if keep_data { vec![9; 100] } else { vec![] };
                let expected = vec![(2, Ok(()), vec![]), (1, Ok(()), data), (3, Err(Errno::Eio), vec![])];
                assert_eq!(feed(&mut inbox, &mut slots, &bytes, piece).expect("a good stream"), expected);
                assert_eq!(slots.in_flight(), 0);
            }
        }
    }

    #[test]
    fn a_read_in_several_chunks_is_put_together() {
        for keep_data in [false, true] {
            for piece in [1, 13, 28, 4096] {
                let (mut inbox, mut slots) = (Inbox::new(true, keep_data), Slots::default());
                let read = slots.insert(5, Kind::Read, 1000, 10).expect("room");
                let bytes = [
                    chunk_of(chunk::OFFSET_DATA, false, read, &[&1008u64.to_be_bytes(), &[2; 2]]),
                    chunk_of(chunk::OFFSET_HOLE, false, read, &[&1003u64.to_be_bytes(), &5u32.to_be_bytes()]),
                    chunk_of(chunk::OFFSET_DATA, false, read, &[&1000u64.to_be_bytes(), &[1; 3]]),
                    none_chunk(read).to_vec(),
                ]
                .concat();
                let data = if keep_data { vec![1, 1, 1, 0, 0, 0, 0, 0, 2, 2] } else { vec![] };
                let replies = feed(&mut inbox, &mut slots, &bytes, piece).expect("a good stream");
                assert_eq!(replies, [(5, Ok(()), data)], "pieces of {piece}");
            }
        }
    }

    #[test]
    fn whole_chunks_errors_holes_and_extents() {
        let (mut inbox, mut slots) = (Inbox::new(true, true), Slots::default());
        let read = slots.insert(1, Kind::Read, 64, 4).expect("room");
        let hole = slots.insert(2, Kind::Read, 0, 3).expect("room");
        let failed = slots.insert(3, Kind::Read, 0, 512).expect("room");
        let status = slots.insert(4, Kind::BlockStatus, 0, 512).expect("room");
        let mut bytes = [read_data_chunk(read, 64, 4).as_slice(), b"data", &offset_hole_chunk(hole, 0, 3)].concat();
        error_chunk(&mut bytes, failed, Errno::Enomem, "No memory");
        block_status_chunk(&mut bytes, status, 1, std::iter::once(Extent { length: 512, flags: 3 }));
        let replies = feed(&mut inbox, &mut slots, &bytes, 11).expect("a good stream");
        let extent = vec![0, 0, 2, 0, 0, 0, 0, 3];
        assert_eq!(
            replies,
            [
                (1, Ok(()), b"data".to_vec()),
                (2, Ok(()), vec![0; 3]),
                (3, Err(Errno::Enomem), vec![]),
                (4, Ok(()), extent),
            ]
        );
    }

    #[test]
    fn a_protocol_violation_is_an_error() {
        let at = |offset: u64| offset.to_be_bytes();
        type Bad<'a> = (&'static str, &'a dyn Fn(u64) -> Vec<u8>);
        let cases: [Bad<'_>; 11] = [
            ("a wrong magic", &|_| vec![0x55; 16]),
            ("an unknown cookie", &|read| none_chunk(read + 1).to_vec()),
            ("a simple reply", &|read| simple_reply(read, Ok(())).to_vec()),
            ("no data", &|read| none_chunk(read).to_vec()),
            ("too few data", &|read| chunk_of(chunk::OFFSET_DATA, true, read, &[&at(100), &[0; 9]])),
            ("too many data", &|read| chunk_of(chunk::OFFSET_DATA, true, read, &[&at(100), &[0; 11]])),
            ("data before", &|read| chunk_of(chunk::OFFSET_DATA, true, read, &[&at(99), &[0; 10]])),
            ("data far behind", &|read| chunk_of(chunk::OFFSET_DATA, true, read, &[&at(u64::MAX), &[0; 10]])),
            ("extents", &|read| chunk_of(chunk::BLOCK_STATUS, true, read, &[&[0; 12]])),
            ("a long chunk", &|read| {
                ChunkHeader { flags: 1, kind: chunk::ERROR, cookie: read, length: u32::MAX }.encode().to_vec()
            }),
            ("an unknown kind", &|read| chunk_of(77, true, read, &[])),
        ];
        for (what, bytes) in cases {
            for keep_data in [false, true] {
                let (mut inbox, mut slots) = (Inbox::new(true, keep_data), Slots::default());
                let read = slots.insert(1, Kind::Read, 100, 10).expect("room");
                let outcome = feed(&mut inbox, &mut slots, &bytes(read), 4096);
                assert!(matches!(outcome, Err(ClientError::Protocol { .. })), "{what}: {outcome:?}");
            }
        }
    }

    #[test]
    fn data_at_the_highest_offset_do_not_wrap() {
        let (mut inbox, mut slots) = (Inbox::new(true, true), Slots::default());
        let read = slots.insert(1, Kind::Read, 0, 10).expect("room");
        let bytes = chunk_of(chunk::OFFSET_DATA, true, read, &[&u64::MAX.to_be_bytes(), &[0; 10]]);
        assert!(feed(&mut inbox, &mut slots, &bytes, 4096).is_err());
    }

    #[test]
    fn a_long_read_grows_the_buffer_only_when_it_is_kept() {
        for (keep_data, longer) in [(false, false), (true, true)] {
            let mut inbox = Inbox::new(true, keep_data);
            inbox.expect_read(wire::PAYLOAD_LEN_MAX);
            assert_eq!(inbox.space().len() > wire::PAYLOAD_LEN_MAX as usize, longer);
        }
    }
}
