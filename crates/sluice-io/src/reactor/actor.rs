//! An actor: the disk or the link that a reactor serves.

use std::io;

use sluice_net::UplinkTotals;
use sluice_sched::Instant;

use crate::backend::ring::Ring;
use crate::backend::tag::Tag;
use crate::cpu::HasCpu;
use crate::reactor::base::{Base, Ending};
use crate::reactor::mailbox::Mailbox;
use crate::reactor::spec::{ClientSnapshot, EditError, VmSnapshot};
use crate::vhost_user::message::SessionMessage;

/// A disk or a link that a reactor serves, with all of its state. Calls are dispatched statically.
///
/// In an iteration the reactor calls `event` for what the ring has completed, `command` and `edit` for messages, then `work` once. Before it
/// sleeps it calls `has_work`, `stop_polling` and `next_wakeup`.
pub(crate) trait Actor: Sized + 'static {
    /// The specification from which it is built, at the start and after each failure.
    type Spec: Send + 'static;
    /// A change at run time.
    type Edit: Clone + Send + 'static;
    /// A message about clients, or of its own helper threads.
    type Command: From<SessionMessage> + Send + 'static;
    type Vm: HasCpu;
    /// Threads that work for it.
    type Helper: Helper;

    /// Returns the name of the device in the host file.
    fn name(spec: &Self::Spec) -> &str;

    /// Builds an actor without VMs that was restarted `restarts` times.
    fn build(spec: &Self::Spec, ring: Ring, mailbox: &Mailbox<Self>, restarts: u64)
    -> io::Result<(Self, Self::Helper)>;

    fn base(&self) -> &Base<Self::Vm>;

    fn base_mut(&mut self) -> &mut Base<Self::Vm>;

    fn ring(&mut self) -> &mut Ring;

    /// Returns how much may be in flight, if that follows the time of requests.
    fn window(&self) -> Option<sluice_pool::State> {
        None
    }

    // ---- Messages ----

    /// Applies changes in order. Stops at the first that fails.
    fn edit(&mut self, now: Instant, edits: Vec<Self::Edit>) -> Result<(), EditError>;

    /// Returns the changes that give an empty actor the same VMs, volumes and settings.
    fn describe(&self) -> Vec<Self::Edit>;

    fn command(&mut self, now: Instant, command: Self::Command);

    /// Refuses new clients of these volumes, by VM and volume. Fails, and refuses none, if one of them has clients.
    fn refuse_clients(&mut self, volumes: Vec<(String, String)>) -> Result<(), EditError>;

    /// Accepts clients of these volumes again. Those that do not exist any more are left out.
    fn reopen(&mut self, volumes: &[(String, String)]);

    /// Called when the thread was woken and messages were handled.
    fn woken(&mut self) {}

    /// Reads no more requests.
    fn drain(&mut self) {}

    // ---- An iteration ----

    /// Called once, before the first iteration.
    fn start(&mut self) {}

    /// Handles the end of an operation of the ring.
    fn event(&mut self, now: Instant, tag: Tag, result: i32);

    /// Takes requests that are not announced by an event, and does what there is to do. Returns whether there were such requests.
    fn work(&mut self, now: Instant) -> bool;

    /// Whether there is something to do without an event.
    fn has_work(&self) -> bool;

    /// Whether polling may find something that could be dispatched.
    fn may_spin(&self) -> bool;

    /// Called before the loop sleeps: from now on an event announces what arrives. Returns `false` if there is something already.
    fn stop_polling(&mut self, now: Instant) -> bool;

    /// Returns when there is something to do even if no event arrives.
    fn next_wakeup(&mut self) -> Option<Instant>;

    // ---- State ----

    /// Whether every request has been answered, while the thread drains.
    fn is_drained(&self) -> bool;

    /// Ends all operations in the kernel that wait for others.
    fn shut_down(&mut self);

    fn vm_snapshots(&mut self) -> Vec<VmSnapshot>;

    fn clients(&self) -> Vec<ClientSnapshot>;

    /// Returns the number of connections.
    fn connections(&self) -> usize;

    /// Returns the counters of its interface, if it has one.
    fn link_totals(&self) -> Option<UplinkTotals> {
        None
    }
}

/// Threads that work for an actor.
pub(crate) trait Helper {
    /// Called when the actor has been freed. When this returns, they change nothing any more.
    fn end(self, device: &str);

    /// Called if the memory of the actor is kept, because the kernel may still use it.
    fn keep(self, device: &str);
}

impl Helper for () {
    fn end(self, _device: &str) {}

    fn keep(self, _device: &str) {}
}

/// The state that a restarted actor takes over from the failed one.
pub(crate) struct Kept<A: Actor> {
    /// The files in them stay open, and losses stay recorded.
    pub(crate) edits: Vec<A::Edit>,
    pub(crate) stale_messages: u64,
    pub(crate) restarts: u64,
    pub(crate) ending: Ending,
}
