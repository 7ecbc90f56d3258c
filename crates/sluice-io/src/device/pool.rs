//! A disk as a part of a pool that other hosts use too: what its thread tells the exchange, and what that tells it.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use sluice_pool::exchange::State;
use sluice_pool::{Order, Report};
use sluice_sched::Instant;

use crate::device::command::Command;
use crate::device::core::Core;
use crate::device::disk::Disk;
use crate::reactor::mailbox::Mailbox;
use crate::reactor::message::Message;

/// A handle of the thread of a disk, for the exchange with other hosts.
#[derive(Clone)]
pub struct PoolHandle(pub(crate) Mailbox<Disk>);

/// What the exchange says.
pub(crate) enum PoolCommand {
    EndPeriod(Sender<Option<Report>>),
    Obey(Option<Box<(Order, Arc<State>)>>),
}

impl PoolHandle {
    /// Ends a period. What the device has to say is `None` if it does not obey an order yet. Waits for nothing.
    #[must_use]
    pub fn end_period(&self) -> Receiver<Option<Report>> {
        let (reply, answer) = channel();
        self.send(PoolCommand::EndPeriod(reply));
        answer
    }

    /// The device does what the order says, and shows the state of the pool; `None`: it is alone again. Waits for nothing.
    pub fn obey(&self, order: Option<(Order, Arc<State>)>) {
        self.send(PoolCommand::Obey(order.map(Box::new)));
    }

    fn send(&self, command: PoolCommand) {
        // A thread that has ended needs no order.
        let _ = self.0.send(Message::Command(Command::Pool(command)));
    }
}

/// Carries out what the exchange says.
pub(crate) fn command(core: &mut Core, now: Instant, command: PoolCommand) {
    let (gate, store) = (&mut core.base.gate, &mut core.backend.store);
    match command {
        PoolCommand::EndPeriod(reply) => drop(reply.send(store.end_period(now, gate))),
        PoolCommand::Obey(order) => store.obey(now, order.map(|order| *order), gate),
    }
}
