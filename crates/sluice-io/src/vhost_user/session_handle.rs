//! The control thread's handle of a session on a device thread: sends checked changes, each of which is answered when
//! it is in force.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use tokio::sync::oneshot;

use super::device_kind::Driver;
use super::memory::Memory;
use super::message::{SessionChange, SessionMessage};
use crate::device::DeviceHandle;
use crate::virtio::queue::{QueueSpec, SessionId};
use crate::volume::VolumeGeneration;

/// Why a device thread rejects a session or a change.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SessionError {
    /// The volume was removed, or the device has stopped.
    #[error("Volume {1} of VM {0} is no longer served")]
    Gone(String, String),
    /// The rings are not in the memory table.
    #[error("Queue {0}: its rings are outside the guest memory")]
    Rings(u16),
}

/// The control thread's handle of a VMM's session. Dropping it closes the session, as [`SessionHandle::close`] does, but does not
/// wait.
pub struct SessionHandle {
    device: DeviceHandle,
    id: SessionId,
    of: (String, String),
    closed: bool,
}

impl DeviceHandle {
    /// Opens a session for the VMM `peer`. It ends when the volume is removed: its queues then take no requests, and `permit` is
    /// dropped.
    ///
    /// # Errors
    /// [`SessionError::Gone`].
    pub async fn open(
        &self,
        vm: &str,
        volume: &str,
        generation: VolumeGeneration,
        peer: String,
        permit: Box<dyn Send>,
    ) -> Result<SessionHandle, SessionError> {
        let (reply, answer) = oneshot::channel();
        let (vm, volume) = (vm.to_owned(), volume.to_owned());
        let of = (vm.clone(), volume.clone());
        self.send(SessionMessage::Open { vm, volume, generation, peer, permit, reply });
        match answer.await {
            Ok(Some(id)) => Ok(SessionHandle { device: self.clone(), id, of, closed: false }),
            Ok(None) | Err(_) => Err(SessionError::Gone(of.0, of.1)),
        }
    }
}

impl SessionHandle {
    /// Starts a queue: requests are taken from it from now on. Returns the number of requests in the in-flight log that
    /// were taken before and not returned. They are done first.
    ///
    /// # Errors
    /// [`SessionError`].
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

    /// Stops a queue: takes no more requests, and puts back those that wait, the last taken first. Returns when all
    /// others have completed, with the index of the next entry of the available ring. The VMM only gets this index, so
    /// no request before it may be incomplete.
    ///
    /// # Errors
    /// [`SessionError::Gone`].
    pub async fn stop_queue(&self, index: u16) -> Result<u16, SessionError> {
        let (reply, answer) = oneshot::channel();
        self.change(SessionChange::StopQueue { index, reply });
        answer.await.map_err(|_| self.gone())
    }

    /// Disables or enables a running queue.
    pub async fn enable_queue(&self, index: u16, enabled: bool) -> Result<(), SessionError> {
        let (reply, answer) = oneshot::channel();
        self.change(SessionChange::Enable { index, enabled, reply });
        answer.await.map_err(|_| self.gone())
    }

    /// Replaces the eventfd for interrupts.
    pub async fn set_call(&self, index: u16, call: Option<Arc<OwnedFd>>) -> Result<(), SessionError> {
        let (reply, answer) = oneshot::channel();
        self.change(SessionChange::SetCall { index, call, reply });
        answer.await.map_err(|_| self.gone())
    }

    /// Replaces the memory table for requests that are taken from now on. A queue whose rings are not in it stops.
    pub async fn set_memory(&self, memory: Arc<Memory>) -> Result<(), SessionError> {
        let (reply, answer) = oneshot::channel();
        self.change(SessionChange::SetMemory { memory, reply });
        let outside = answer.await.map_err(|_| self.gone())?;
        outside.map_or(Ok(()), |queue| Err(SessionError::Rings(queue)))
    }

    /// Applies a change of the write cache by the driver.
    pub async fn set_driver(&self, driver: Driver) -> Result<(), SessionError> {
        let (reply, answer) = oneshot::channel();
        self.change(SessionChange::SetDriver { driver, reply });
        answer.await.map_err(|_| self.gone())
    }

    /// Closes the session: no memory of the VMM is accessed except by requests in flight. Returns when these have
    /// completed and all resources are free.
    pub async fn close(mut self) {
        self.closed = true;
        let (reply, answer) = oneshot::channel();
        self.change(SessionChange::Close { reply: Some(reply) });
        let _ = answer.await;
    }

    /// Drops the handle of a session that the device thread has already closed.
    pub fn forget(mut self) {
        self.closed = true;
    }

    fn change(&self, change: SessionChange) {
        self.device.send(SessionMessage::Change(self.id, change));
    }

    fn gone(&self) -> SessionError {
        let (vm, volume) = self.of.clone();
        SessionError::Gone(vm, volume)
    }
}

impl Drop for SessionHandle {
    fn drop(&mut self) {
        if !self.closed {
            self.change(SessionChange::Close { reply: None });
        }
    }
}
