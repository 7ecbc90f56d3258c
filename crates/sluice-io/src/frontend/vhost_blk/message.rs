//! What the control plane tells a device thread of the VMMs on it.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::oneshot::Sender;

use crate::vhost_user::device_session::{Driver, QueueSpec};
use crate::vhost_user::memory::Memory;

/// A session of a VMM as both threads know it: where its device thread keeps it, and a generation that no other session of
/// this process has, whichever device it is on and however often that was restarted. The place is reused, the generation
/// never, so a message of a session that has ended cannot reach the one that came after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SessionHandle {
    pub(crate) index: u32,
    pub(crate) generation: u64,
}

impl SessionHandle {
    /// A session at `index` of the table of sessions, with a new generation.
    pub(crate) fn new(index: u32) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        SessionHandle { index, generation: NEXT.fetch_add(1, Ordering::Relaxed) }
    }
}

/// A message; its sender waits for the reply. A reply that is dropped says that the session has ended.
pub(crate) enum SessionMessage {
    Open { vm: String, volume: String, permit: Box<dyn Send>, reply: Sender<Option<SessionHandle>> },
    Change(SessionHandle, SessionChange),
}

/// What becomes of an open session. See [`crate::vhost_user::device_session::Session`] for what each means.
pub(crate) enum SessionChange {
    Start { queue: Box<QueueSpec>, memory: Arc<Memory>, driver: Driver, reply: Sender<Option<u16>> },
    StopQueue { index: u16, reply: Sender<u16> },
    Enable { index: u16, enabled: bool, reply: Sender<()> },
    SetCall { index: u16, call: Option<Arc<OwnedFd>>, reply: Sender<()> },
    SetMemory { memory: Arc<Memory>, reply: Sender<Option<u16>> },
    SetDriver { driver: Driver, reply: Sender<()> },
    Close { reply: Option<Sender<()>> },
}
