//! Volumes that another server exports over NBD.
//!
//! | file | contents |
//! |---|---|
//! | `mod` | the volumes: opening, closing |
//! | `link` | the way of an operation with a connection and without one: what is lost with one, and when there is another |
//! | `connection` | one connection: what is sent, and what arrives |
//!
//! ```text
//!     start(Op) --> waiting --SendMsg--> server --Recv--> answered --> next_done()
//!                      ^         lost: reads      |
//!                      '--------------------------'  others end with EIO
//! ```
//!
//! Each volume has one connection, and at most one send and one receive of it are in the ring. The data of writes are sent from where they
//! are. Operations that the server has not got wait for the next connection.

mod connection;
mod link;

use std::collections::VecDeque;
use std::sync::Arc;

use sluice_sched::{Instant, Kind};

use crate::backend::tag::Tag;
use crate::device::deadline_timer::DeadlineTimer;
use crate::nbd::wire::{Command, command_flag, transmission_flag};
use crate::slab::{Id as _, Slab, ids};
use crate::source::remote::Remote;
use crate::source::{FaultReport, Loss, Source};
use crate::store::file::jobs::Jobs;
use crate::store::{
    Blocks, Context, Done, Label, Memory, Op, OpIndex, Open, Store, StoreEvent, StoreInfo, StoreNumber, StoreRef,
    StoreSpec, Volumes, What, Zeroing,
};
use connection::Connection;
use link::{Dials, Link};

ids! {
    /// A volume of this store.
    RemoteKey;
    /// A connection of a volume.
    ConnectionKey;
}

/// An operation of the ring that sends, receives, or ends a pause.
const SEND: u8 = 0;
const RECEIVE: u8 = 1;
const TICK: u8 = 2;

struct Volume {
    label: Label,
    source: Arc<Source<Remote>>,
    info: StoreInfo,
    link: Link,
    /// Operations that the server has not got, in order.
    waiting: VecDeque<OpIndex>,
    /// Why it could not be connected to, as it was logged last.
    why: String,
}

/// An operation that has not ended.
#[derive(Clone, Copy)]
struct Running {
    volume: RemoteKey,
    command: Command,
    flags: u16,
    offset: u64,
    length: u32,
    memory: Memory,
    /// Whether a flush must follow.
    flushes: bool,
    place: Place,
    /// The number of confirmed changes when a flush was sent.
    covers: u64,
}

/// The place of an operation on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Waiting,
    /// On this connection, with this cookie.
    Sent(ConnectionKey, u64),
    Answered,
}

/// All volumes of other servers of a device thread.
pub(crate) struct RemoteStore {
    kind: StoreNumber,
    volumes: Slab<RemoteKey, Volume>,
    connections: Slab<ConnectionKey, Connection>,
    /// By [`OpIndex`].
    running: Vec<Option<Running>>,
    done: Vec<(OpIndex, Done)>,
    /// Number of requests that were sent, for their cookies.
    sent: u32,
    dials: Dials,
    /// Fires while something may have to be given up or tried again.
    tick: DeadlineTimer,
}

impl Store for RemoteStore {
    fn info(&self, volume: StoreRef) -> &StoreInfo {
        &self.volumes[self.volumes.id_at(volume.index)].info
    }

    fn start(&mut self, context: &mut Context<'_>, op: &Op<'_>) {
        let key = self.volumes.id_at(op.volume.index);
        let at = op.index.0 as usize;
        if at >= self.running.len() {
            self.running.resize(at + 1, None);
        }
        let Some(running) = self.volumes[key].running(key, op) else {
            return self.done.push((op.index, Done::Ok));
        };
        self.running[at] = Some(running);
        self.enqueue(context, op.index);
    }

    fn event(&mut self, context: &mut Context<'_>, event: StoreEvent, result: i32) {
        match event.operation {
            SEND => self.sent(context, self.connections.id_at(event.index), result),
            RECEIVE => self.received(context, self.connections.id_at(event.index), result),
            _ => self.ticked(context),
        }
    }

    fn next_done(&mut self, _now: Instant) -> Option<(OpIndex, Done)> {
        self.done.pop()
    }
}

impl Open for RemoteStore {
    type Spec = Arc<Source<Remote>>;

    fn new(kind: StoreNumber) -> Self {
        let tick = Tag::Store(StoreEvent { kind, operation: TICK, index: 0 });
        RemoteStore {
            kind,
            volumes: Slab::default(),
            connections: Slab::default(),
            running: Vec::new(),
            done: Vec::new(),
            sent: 0,
            dials: Dials::default(),
            tick: DeadlineTimer::new(tick),
        }
    }

    fn open(&mut self, _now: Instant, label: Label, source: Arc<Source<Remote>>) -> u32 {
        let link = Link::New(source.kind().take_first());
        let zeroing = match source.kind().offers(transmission_flag::SEND_WRITE_ZEROES) {
            true => Zeroing::LikeWrite,
            false => Zeroing::No,
        };
        let info = StoreInfo {
            memory: Some(1),
            buffered: false,
            bridged: source.bridged_block().map(|size| Blocks { size, claims: source.claims().clone() }),
            zeroing: (zeroing, zeroing),
        };
        let waiting = VecDeque::new();
        let why = String::new();
        self.volumes.insert(Volume { label, source, info, link, waiting, why }).index()
    }

    fn replace(&mut self, volume: u32, source: Arc<Source<Remote>>) {
        let key = self.volumes.id_at(volume);
        self.volumes[key].source = source;
    }
}

impl Volumes for RemoteStore {
    fn close(&mut self, volume: u32, _jobs: &Jobs) {
        let Volume { link, .. } = self.volumes.remove(self.volumes.id_at(volume));
        if let Link::Up(connection) = link {
            self.connections[connection].leave();
            self.forget_if_quiet(connection);
        }
    }

    fn describe(&self, volume: u32) -> StoreSpec {
        StoreSpec::Remote(Arc::clone(&self.volumes[self.volumes.id_at(volume)].source))
    }

    fn count_end(&self, volume: u32, kind: Kind, errno: i32) {
        let source = &self.volumes[self.volumes.id_at(volume)].source;
        match errno {
            0 => source.count_success(kind),
            _ => source.tally_failure(kind, errno),
        }
    }

    fn faults(&self, volume: u32) -> FaultReport {
        let Volume { source, link, .. } = &self.volumes[self.volumes.id_at(volume)];
        let away_since = if let Link::Away { since } = link { Some(*since) } else { None };
        FaultReport { away_since, ..source.failures() }
    }

    fn accept_loss(&mut self, volume: u32) {
        let key = self.volumes.id_at(volume);
        let source = &self.volumes[key].source;
        source.kind().unforced().flushed(source.kind().unforced().confirmed());
        source.set_loss(Loss::None);
    }
}

impl Volume {
    /// Returns an operation as the server carries it out; `None` if there is nothing to do for it.
    fn running(&self, key: RemoteKey, op: &Op<'_>) -> Option<Running> {
        let offers = |flag| self.source.kind().offers(flag);
        let command = match op.what {
            What::Read => Command::Read,
            What::Write => Command::Write,
            What::Zero { .. } => Command::WriteZeroes,
            What::Discard if offers(transmission_flag::SEND_TRIM) => Command::Trim,
            What::Discard if op.forced => return self.flush(key),
            What::Discard => return None,
            What::Flush => return self.flush(key),
        };
        let is_forced = op.forced && command != Command::Read;
        let carries = is_forced && offers(transmission_flag::SEND_FUA);
        let no_hole = matches!(op.what, What::Zero { no_hole: true });
        Some(Running {
            volume: key,
            command,
            flags: if carries { command_flag::FUA } else { 0 } | if no_hole { command_flag::NO_HOLE } else { 0 },
            offset: op.offset,
            length: op.length,
            memory: op.memory,
            flushes: is_forced && !carries && offers(transmission_flag::SEND_FLUSH),
            place: Place::Waiting,
            covers: 0,
        })
    }

    fn flush(&self, key: RemoteKey) -> Option<Running> {
        self.source.kind().offers(transmission_flag::SEND_FLUSH).then(|| Running::flush(key))
    }
}

impl Running {
    fn flush(volume: RemoteKey) -> Running {
        let (offset, length, memory, place) = (0, 0, Memory::None, Place::Waiting);
        Running { volume, command: Command::Flush, flags: 0, offset, length, memory, flushes: false, place, covers: 0 }
    }
}
