//! Where a VMM's queues go into a device thread: checked state changes, each answered when it has happened.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use tokio::sync::oneshot;

use super::device_kind::Driver;
use super::memory::Memory;
use crate::device::DeviceHandle;
use crate::frontend::vhost_blk::{SessionChange, SessionMessage};
use crate::virtio::queue::{QueueSpec, SessionId};
use crate::volume::VolumeGeneration;

/// Why a device does not take something.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SessionError {
    /// The volume has left, or the device has stopped.
    #[error("Volume {1} of VM {0} is no longer served")]
    Gone(String, String),
    /// Its rings do not lie in the memory table.
    #[error("Queue {0}: its rings are outside the guest memory")]
    Rings(u16),
}

/// The control thread's handle of a VMM's session on a device thread. Dropping it closes the session, as
/// [`SessionHandle::close`] does, but does not wait.
pub struct SessionHandle {
    device: DeviceHandle,
    session: SessionId,
    of: (String, String),
    closed: bool,
}

impl DeviceHandle {
    /// A VMM has connected for a volume. Ends with the volume: its queues then take nothing more, and `permit` is dropped.
    pub async fn open(
        &self,
        vm: &str,
        volume: &str,
        generation: VolumeGeneration,
        permit: Box<dyn Send>,
    ) -> Result<SessionHandle, SessionError> {
        let of = (vm.to_owned(), volume.to_owned());
        let (reply, answer) = oneshot::channel();
        let (vm, volume) = of.clone();
        self.tell(SessionMessage::Open { vm, volume, generation, permit, reply });
        match answer.await {
            Ok(Some(session)) => Ok(SessionHandle { device: self.clone(), session, of, closed: false }),
            Ok(None) | Err(_) => Err(SessionError::Gone(of.0, of.1)),
        }
    }
}

impl SessionHandle {
    /// The rings of a queue are set and the guest may ring: requests are taken from it from now on. How many the in-flight log
    /// says were taken before and not returned: they come first.
    pub async fn start_queue(
        &self,
        queue: QueueSpec,
        memory: Arc<Memory>,
        driver: Driver,
    ) -> Result<u16, SessionError> {
        let index = queue.index;
        let (reply, answer) = oneshot::channel();
        self.change(SessionChange::Start { queue: Box::new(queue), memory, driver, reply });
        match answer.await {
            Ok(Some(recovered)) => Ok(recovered),
            Ok(None) => Err(SessionError::Rings(index)),
            Err(_) => Err(self.gone()),
        }
    }

    /// Takes nothing more from a queue, and puts back what waits, the last taken first. Answered when all before it is over: an
    /// index of the ring is all that the VMM is told, so nothing can be left undone before it. Returns the next entry of the
    /// available ring to be taken.
    pub async fn stop_queue(&self, index: u16) -> Result<u16, SessionError> {
        let (reply, answer) = oneshot::channel();
        self.change(SessionChange::StopQueue { index, reply });
        answer.await.map_err(|_| self.gone())
    }

    /// Lets a running queue rest, or go on.
    pub async fn enable_queue(&self, index: u16, enabled: bool) -> Result<(), SessionError> {
        let (reply, answer) = oneshot::channel();
        self.change(SessionChange::Enable { index, enabled, reply });
        answer.await.map_err(|_| self.gone())
    }

    /// Another way to ring for the guest.
    pub async fn set_call(&self, index: u16, call: Option<Arc<OwnedFd>>) -> Result<(), SessionError> {
        let (reply, answer) = oneshot::channel();
        self.change(SessionChange::SetCall { index, call, reply });
        answer.await.map_err(|_| self.gone())
    }

    /// Another memory table, for what is taken from now on. A queue whose rings do not lie in it stops.
    pub async fn set_memory(&self, memory: Arc<Memory>) -> Result<(), SessionError> {
        let (reply, answer) = oneshot::channel();
        self.change(SessionChange::SetMemory { memory, reply });
        match answer.await {
            Ok(None) => Ok(()),
            Ok(Some(queue)) => Err(SessionError::Rings(queue)),
            Err(_) => Err(self.gone()),
        }
    }

    /// The driver switched the write cache.
    pub async fn set_driver(&self, driver: Driver) -> Result<(), SessionError> {
        let (reply, answer) = oneshot::channel();
        self.change(SessionChange::SetDriver { driver, reply });
        answer.await.map_err(|_| self.gone())
    }

    /// The VMM has gone: nothing more of its memory is touched than what is at the device already. Returns when that is over
    /// too, and everything that it held is given back.
    pub async fn close(mut self) {
        self.closed = true;
        let (reply, answer) = oneshot::channel();
        self.change(SessionChange::Close { reply: Some(reply) });
        let _ = answer.await;
    }

    /// The device thread has let go of it already: there is nothing to close.
    pub fn forget(mut self) {
        self.closed = true;
    }

    fn change(&self, change: SessionChange) {
        self.device.tell(SessionMessage::Change(self.session, change));
    }

    fn gone(&self) -> SessionError {
        SessionError::Gone(self.of.0.clone(), self.of.1.clone())
    }
}

impl Drop for SessionHandle {
    fn drop(&mut self) {
        if !self.closed {
            self.change(SessionChange::Close { reply: None });
        }
    }
}
