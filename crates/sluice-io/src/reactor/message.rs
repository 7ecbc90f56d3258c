//! Messages to a device thread.

use std::sync::mpsc::Sender;

use crate::reactor::actor::Actor;
use crate::reactor::probe::Pulse;
use crate::reactor::spec::{ClientSnapshot, EditError, Snapshot};

/// A message from the control plane or a helper thread to a reactor.
pub(crate) enum Message<A: Actor> {
    Edit(Vec<A::Edit>, Sender<Result<(), EditError>>),
    /// A message that only this kind of actor understands.
    Command(A::Command),
    Call(Call),
    #[cfg(test)]
    Test(Fault),
}

/// A message that every device thread understands.
pub(crate) enum Call {
    Snapshot(Sender<Snapshot>),
    /// Lists the clients.
    Clients(Sender<Vec<ClientSnapshot>>),
    Probe(Sender<Pulse>),
    /// Refuses new clients of these volumes, by VM and volume, until they are removed or opened again.
    RefuseClients(Vec<(String, String)>, Sender<Result<(), EditError>>),
    /// Accepts clients of these volumes again.
    Reopen(Vec<(String, String)>),
    /// Reads no more requests, and ends when every request has been answered.
    Drain,
    /// Ends now; queued requests are dropped.
    Stop,
}

/// A fault that a test injects, or a question of a test.
#[cfg(test)]
pub(crate) enum Fault {
    Panic,
    /// Panics, and again when the supervisor reads the state.
    PanicTwice,
    /// Lets this many submissions fail.
    RefuseSubmits(u32),
    /// Lets this many disk operations end with EAGAIN.
    PutOff(u32),
    /// Holds disk operations back, or releases them.
    HoldWork(bool),
    /// Asks how often the loop has slept.
    Sleeps(Sender<u64>),
    /// Advances the clock.
    Advance(std::time::Duration),
    /// Blocks the thread until the sender is dropped.
    Pause(std::sync::mpsc::Receiver<()>),
    /// Lets this many restarts fail.
    RefuseRestarts(u32),
}
