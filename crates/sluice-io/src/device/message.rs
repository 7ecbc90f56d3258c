//! Messages to a device thread.

use std::sync::mpsc::Sender;

use crate::device::probe::Pulse;
use crate::device::spec::{ClientSnapshot, Edit, EditError, Snapshot};
use crate::frontend::Command;
use crate::store::file::jobs::BlockingResult;
use crate::vhost_user::message::SessionMessage;

/// A message from the control plane or the helper thread to the loop.
pub(crate) enum Message {
    Edit(Vec<Edit>, Sender<Result<(), EditError>>),
    /// A message for a frontend.
    Frontend(Command),
    /// A message about the session of a VMM.
    Session(SessionMessage),
    Snapshot(Sender<Snapshot>),
    /// Lists the clients.
    Clients(Sender<Vec<ClientSnapshot>>),
    Probe(Sender<Pulse>),
    /// Reads no more requests, and ends when every request has been answered.
    Drain,
    /// Ends now; queued requests are dropped.
    Stop,
    /// Reply from the helper thread. The number is the restart count at which the helper was started; the loop drops
    /// replies with another count.
    BlockingDone(u64, BlockingResult),
    #[cfg(test)]
    Panic,
    /// Lets this many submissions fail.
    #[cfg(test)]
    RefuseSubmits(u32),
    /// Lets this many disk operations end with EAGAIN.
    #[cfg(test)]
    PutOff(u32),
    /// Asks how often the loop has slept.
    #[cfg(test)]
    Sleeps(Sender<u64>),
    /// Advances the clock.
    #[cfg(test)]
    Advance(std::time::Duration),
    /// Holds disk operations back, or releases them.
    #[cfg(test)]
    HoldWork(bool),
    /// Blocks the helper thread until the sender is dropped.
    #[cfg(test)]
    HangHelper(std::sync::mpsc::Receiver<()>),
    /// Blocks the thread until the sender is dropped.
    #[cfg(test)]
    Pause(std::sync::mpsc::Receiver<()>),
    /// Lets this many restarts fail.
    #[cfg(test)]
    RefuseRestarts(u32),
    /// Panics, and again when the supervisor reads the state.
    #[cfg(test)]
    PanicTwice,
    /// Lets file systems zero this many ranges, and refuse afterwards.
    #[cfg(test)]
    RefuseZeroing(u32),
}
