//! Messages to a device thread.

use std::sync::mpsc::Sender;

use crate::backend::jobs::BlockingResult;
use crate::device::spec::{Edit, EditError, Snapshot};
use crate::frontend::Command;

/// A message from the control plane or the helper thread to the loop.
pub(crate) enum Message {
    Edit(Vec<Edit>, Sender<Result<(), EditError>>),
    /// For a frontend.
    Frontend(Command),
    Snapshot(Sender<Snapshot>),
    /// Read no more; end when every request has been answered.
    Drain,
    /// End now; what waits is not served.
    Stop,
    /// Reply from the helper thread. The number is the restart count at which the helper was started; the loop drops
    /// replies with another count.
    BlockingDone(u64, BlockingResult),
    #[cfg(test)]
    Panic,
    /// The kernel takes nothing so many times.
    #[cfg(test)]
    RefuseSubmits(u32),
    /// So many operations of the disk end with EAGAIN.
    #[cfg(test)]
    PutOff(u32),
    /// It is so much later from now on.
    #[cfg(test)]
    Advance(std::time::Duration),
    /// The kernel takes no operation for the disk until it is told to go on.
    #[cfg(test)]
    HoldWork(bool),
    /// The helper thread takes no job until the sender is dropped.
    #[cfg(test)]
    HangHelper(std::sync::mpsc::Receiver<()>),
    /// So many restarts fail.
    #[cfg(test)]
    RefuseRestarts(u32),
    /// Panics, and again when the state is looked at.
    #[cfg(test)]
    PanicTwice,
    /// File systems make zeroes this many times more, and refuse afterwards.
    #[cfg(test)]
    RefuseZeroing(u32),
}
