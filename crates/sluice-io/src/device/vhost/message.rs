//! What the control plane tells a device thread of the VMMs on it.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use tokio::sync::oneshot::Sender;

use crate::vhost::door::{Driver, QueueSpec};
use crate::vhost::memory::Memory;

/// A change; its sender waits for the reply. See [`crate::vhost::door::Session`] for what each means.
pub(crate) enum SessionMessage {
    Open { vm: String, volume: String, seat: Box<dyn Send>, reply: Sender<Option<u32>> },
    Start { session: u32, queue: Box<QueueSpec>, memory: Arc<Memory>, driver: Driver, reply: Sender<Option<u16>> },
    StopQueue { session: u32, index: u16, reply: Sender<u16> },
    Enable { session: u32, index: u16, enabled: bool, reply: Sender<()> },
    SetCall { session: u32, index: u16, call: Option<OwnedFd>, reply: Sender<()> },
    SetMemory { session: u32, memory: Arc<Memory>, reply: Sender<Option<u16>> },
    SetDriver { session: u32, driver: Driver, reply: Sender<()> },
    Close { session: u32, reply: Option<Sender<()>> },
}
