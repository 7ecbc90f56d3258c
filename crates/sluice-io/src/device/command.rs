//! Messages to the thread of a disk: about clients, and from its helper threads.

use crate::device::pool::PoolCommand;
use crate::frontend;
use crate::frontend::nbd;
use crate::store::file::jobs::BlockingResult;
use crate::vhost_user::message::SessionMessage;

/// A message that only the thread of a disk understands.
pub(crate) enum Command {
    /// A message for a frontend.
    Frontend(frontend::Command),
    /// A message of the exchange with other hosts.
    Pool(PoolCommand),
    /// Reply from the helper thread. The number is the restart count at which the helper was started; the disk drops
    /// replies with another count.
    BlockingDone(u64, BlockingResult),
    /// Blocks the helper thread until the sender is dropped.
    #[cfg(test)]
    HangHelper(std::sync::mpsc::Receiver<()>),
    /// Lets file systems zero this many ranges, and refuse afterwards.
    #[cfg(test)]
    RefuseZeroing(u32),
}

impl From<nbd::Command> for Command {
    fn from(command: nbd::Command) -> Self {
        Command::Frontend(frontend::Command::Nbd(command))
    }
}

impl From<SessionMessage> for Command {
    fn from(message: SessionMessage) -> Self {
        Command::Frontend(frontend::Command::VhostBlk(message))
    }
}
