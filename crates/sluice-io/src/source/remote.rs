//! An export of another NBD server as a source.
//!
//! The control plane connects first, so that a volume whose server is away is out of service like one whose file is missing. Later the
//! device thread asks a helper thread to connect again.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use sluice_sched::GateSettings;

use super::alignment::Alignment;
use super::claims::Claims;
use super::error::SourceError;
use super::facts::Facts;
use super::faults::Failures;
use super::loss::Mark;
use super::opened::Source;
use crate::nbd::client::Session;
use crate::nbd::gateway::StartId;
use crate::nbd::gateway::count::{Counted, VmCount};
use crate::nbd::wire::{PAYLOAD_LEN_ASSUMED, transmission_flag};
use crate::volume::BLOCK_MINIMUM_MAX;

/// Which requests are sent again after a lost connection. The server may have carried out each that it has not answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Resend {
    /// Reads are sent again. Others fail, because the server may still carry out the first one, after a later write to the same place.
    /// All fail if the server is away for too long.
    #[default]
    Reads,
    /// All are sent again, because the server ends the earlier session first. All fail if it is away for too long.
    Fenced,
    /// All are sent again, however long it takes.
    All,
}

/// A connection, and by what the server says that it has lost nothing.
pub(crate) type Reached = (OwnedFd, Option<StartId>);

/// How an export is reached. A helper thread calls it, and it may take seconds.
pub trait Dial: Send + Sync {
    /// Connects and does the handshake.
    ///
    /// # Errors
    /// Why not, for people.
    fn dial(&self) -> Result<(OwnedFd, Session), String>;

    /// The same to find out what the export is, by a connection that disturbs no other gateway. No requests are sent over it if the session
    /// says that this is one.
    ///
    /// # Errors
    /// Why not, for people.
    fn look(&self) -> Result<(OwnedFd, Session), String> {
        self.dial()
    }

    /// The counter of its VM over all servers, if the servers are told of it.
    fn count(&self) -> Option<Arc<VmCount>> {
        None
    }
}

/// An export, as the control plane states it.
pub struct RemoteSpec {
    /// The address with the export's name, for messages.
    pub name: String,
    pub read_only: bool,
    /// Block size of the guest's disk in bytes, if it is stated.
    pub block_size: Option<u32>,
    pub resend: Resend,
    pub dial: Box<dyn Dial>,
}

/// An export that was reached once.
pub struct Remote {
    session: Session,
    resend: Resend,
    dial: Box<dyn Dial>,
    /// The connection until a device thread takes it.
    first: Mutex<Option<OwnedFd>>,
    unforced: Unforced,
    /// The counter of its VM, and the number of its server there, if the server is told what others serve.
    counted: Option<(Arc<VmCount>, u32)>,
    /// By what the server says that it has lost nothing, since its device thread last looked.
    start: Mutex<Option<StartId>>,
}

/// Changes that the server has confirmed, and how many of them a flush has made durable. Its device thread counts them; they stay with the
/// source when that restarts.
#[derive(Debug, Default)]
pub(crate) struct Unforced {
    confirmed: AtomicU64,
    flushed: AtomicU64,
}

impl Unforced {
    pub(crate) fn confirm(&self) {
        self.confirmed.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn confirmed(&self) -> u64 {
        self.confirmed.load(Ordering::Relaxed)
    }

    /// Notes that the first `count` changes are durable.
    pub(crate) fn flushed(&self, count: u64) {
        self.flushed.fetch_max(count, Ordering::Relaxed);
    }

    /// Whether the server may lose changes that it has confirmed.
    pub(crate) fn is_any(&self) -> bool {
        self.confirmed() > self.flushed.load(Ordering::Relaxed)
    }
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Remote").field("session", &self.session).field("resend", &self.resend).finish_non_exhaustive()
    }
}

impl RemoteSpec {
    /// Connects. May take as long as the dial does.
    ///
    /// # Errors
    /// The server is not reached, or its export does not suit the volume.
    pub fn connect(self) -> Result<Source<Remote>, SourceError> {
        let RemoteSpec { name, read_only, block_size, resend, dial } = self;
        let failed = |why: String| SourceError::Remote { name: name.clone(), why };
        let (socket, session) = dial.look().map_err(failed)?;
        if session.has(transmission_flag::READ_ONLY) && !read_only {
            return Err(failed("the server exports it read-only: set read_only = true".to_owned()));
        }
        let [minimum, _, maximum] = session.block_sizes.unwrap_or([1, 1, PAYLOAD_LEN_ASSUMED]);
        if minimum > BLOCK_MINIMUM_MAX || !minimum.is_power_of_two() || session.size_bytes > i64::MAX as u64 {
            let size = session.size_bytes;
            return Err(failed(format!(
                "the server states a size of {size} bytes and blocks of {minimum}: both cannot be"
            )));
        }
        let longest = GateSettings::default().transfer_max.0;
        if u64::from(maximum) < longest {
            return Err(failed(format!(
                "the server takes at most {maximum} bytes at once: let it take at least {longest}"
            )));
        }
        let alignment = Alignment::new(1, minimum);
        let block_size = block_size.unwrap_or(alignment.offset);
        if !session.size_bytes.is_multiple_of(u64::from(block_size.max(alignment.offset))) {
            let (size, block) = (session.size_bytes, block_size.max(alignment.offset));
            return Err(failed(format!("its size of {size} bytes is not a multiple of {block}: resize the export")));
        }
        let facts = Facts {
            size_bytes: session.size_bytes,
            name,
            identity: None,
            alignment,
            block_size,
            read_only,
            lost: Mark::default(),
            failures: Arc::new(Failures::default()),
            claims: Claims::default(),
        };
        let counted = session.gateway.as_ref().zip(dial.count());
        let counted = counted.map(|(known, count)| (Arc::clone(&count), count.number(&known.server)));
        let start = Mutex::new(session.gateway.as_ref().map(|known| known.start));
        // A gateway comes with the first request: one that serves nobody takes no VM over.
        let first = Mutex::new(session.gateway.is_none().then_some(socket));
        let unforced = Unforced::default();
        Ok(Source { facts, kind: Remote { session, resend, dial, first, unforced, counted, start } })
    }
}

impl Remote {
    /// Connects again. Returns by what the server says that it has lost nothing, if it does.
    ///
    /// # Errors
    /// Why not, for people: also if the export has become another one.
    pub(crate) fn connect_again(&self) -> Result<Reached, String> {
        let (socket, now) = self.dial.dial()?;
        let before = &self.session;
        // It may have grown: what the guest has of it is the same.
        let server = |session: &Session| session.gateway.as_ref().map(|known| known.server.clone());
        let is_same =
            now.size_bytes >= before.size_bytes && now.flags == before.flags && server(&now) == server(before);
        match is_same && now.block_sizes == before.block_sizes {
            true => Ok((socket, now.gateway.map(|known| known.start))),
            false => Err(format!("the export is another one: it was {before:?}, and is {now:?}")),
        }
    }

    /// Takes the connection that was made when the source was opened.
    pub(crate) fn take_first(&self) -> Option<OwnedFd> {
        self.first.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    pub(crate) fn unforced(&self) -> &Unforced {
        &self.unforced
    }

    /// Takes what the server says of its start now. Returns whether it says that it has lost nothing since the last time.
    pub(crate) fn loses_nothing(&self, now: Option<StartId>) -> bool {
        let mut start = self.start.lock().unwrap_or_else(PoisonError::into_inner);
        now.is_some() && std::mem::replace(&mut *start, now) == now
    }

    /// Counts the requests of a connection; `None` if the server is not told of other servers.
    pub(crate) fn counted(&self) -> Option<Counted> {
        let start = *self.start.lock().unwrap_or_else(PoisonError::into_inner);
        self.counted.as_ref().map(|(count, server)| Counted::new(Arc::clone(count), *server, start))
    }

    pub(crate) fn resend(&self) -> Resend {
        self.resend
    }

    pub(crate) fn offers(&self, flag: u16) -> bool {
        self.session.has(flag)
    }
}
