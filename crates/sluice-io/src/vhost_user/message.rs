//! Messages of the control plane about the sessions of VMMs.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use tokio::sync::oneshot::Sender;

use crate::vhost_user::device_kind::Driver;
use crate::vhost_user::memory::Memory;
use crate::virtio::queue::{QueueSpec, SessionId};
use crate::volume::VolumeGeneration;

/// A message about a session. Both threads refer to the session by its id, whose generation no other session of this
/// process has. So a message for a session that has ended cannot reach the one that has its index now.
///
/// The sender waits for the reply. A dropped reply channel means that the session has ended.
pub(crate) enum SessionMessage {
    Open {
        vm: String,
        volume: String,
        generation: VolumeGeneration,
        /// Process of the VMM, for output.
        peer: String,
        permit: Box<dyn Send>,
        reply: Sender<Option<SessionId>>,
    },
    Change(SessionId, SessionChange),
}

/// A change of an open session, as described at [`crate::vhost_user::session_handle::SessionHandle`].
pub(crate) enum SessionChange {
    Start { queue: Box<QueueSpec>, memory: Arc<Memory>, driver: Driver, reply: Sender<Option<u16>> },
    StopQueue { index: u16, reply: Sender<u16> },
    Enable { index: u16, enabled: bool, reply: Sender<()> },
    SetCall { index: u16, call: Option<Arc<OwnedFd>>, reply: Sender<()> },
    SetMemory { memory: Arc<Memory>, reply: Sender<Option<u16>> },
    SetDriver { driver: Driver, reply: Sender<()> },
    Close { reply: Option<Sender<()>> },
}
