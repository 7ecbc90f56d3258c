//! The frontends of a device thread. Each has a folder and one line in the list below.
//!
//! A frontend keeps its clients in its own tables and gets the [`Core`] with each call. The core calls no frontend: the
//! event loop delivers what the core has for one. Calls are dispatched statically.

use sluice_sched::Instant;

use crate::budget::Budget;
use crate::device::core::Core;
use crate::reactor::spec::ClientSnapshot;
use crate::slab::{ClientRef, FrontendNumber, IoId, VolumeKey};

pub(crate) mod nbd;
pub(crate) mod vhost_blk;

frontends! {
    nbd: Nbd(nbd::Nbd),
    vhost_blk: VhostBlk(vhost_blk::VhostBlk),
}

/// Serves the clients of one protocol.
pub(crate) trait Frontend {
    /// A message of the control plane to this frontend.
    type Command;

    fn new(number: FrontendNumber) -> Self;

    /// Handles a message of the control plane.
    fn command(&mut self, core: &mut Core, now: Instant, command: Self::Command);

    /// Handles the end of an operation of the ring that this frontend started. `operation` is the frontend's own number
    /// for the kind of operation, and `index` the index of an entry in its table.
    fn event(&mut self, core: &mut Core, now: Instant, operation: u8, index: u32, result: i32);

    /// Takes requests within `budget` from a client that waited for room in the window of its VM.
    fn serve(&mut self, core: &mut Core, now: Instant, client: ClientRef, budget: Budget);

    /// Replies to the client of a completed request.
    fn complete(&mut self, core: &mut Core, now: Instant, io: IoId);

    /// Called before a request arrives at the gate again. Returns whether the frontend has taken it back: one that stops a queue
    /// may return the request to its ring now.
    fn takes_back(&mut self, _core: &mut Core, _now: Instant, _io: IoId) -> bool {
        false
    }

    /// Called once in each iteration, before the gate dispatches: takes requests that are not announced by an event,
    /// and closes overdue clients. Returns whether there were requests.
    fn poll(&mut self, core: &mut Core, now: Instant) -> bool;

    /// Called after completed requests were delivered, several times in an iteration: shows replies to clients that poll.
    fn delivered(&mut self) {}

    /// Called at the end of each iteration: sends replies and notifications together, and removes disconnected clients.
    fn end_of_iteration(&mut self, core: &mut Core, now: Instant);

    /// Called before the loop sleeps: from now on requests must be announced by an event, except those that the gate
    /// would not dispatch before the loop wakes. Returns `false` if there are requests already.
    fn stop_polling(&mut self, _core: &mut Core, _now: Instant) -> bool {
        true
    }

    /// Returns when [`Frontend::poll`] must be called next; a second later is acceptable.
    fn next_deadline(&self) -> Option<Instant> {
        None
    }

    /// Serves clients of `volume` that connected while requests of a disconnected client were in flight.
    fn admit(&mut self, core: &mut Core, now: Instant, volume: VolumeKey);

    /// Disconnects the clients of `volume`.
    fn close(&mut self, core: &mut Core, now: Instant, volume: VolumeKey);

    /// Reads no more requests. Requests that were read are answered.
    fn drain(&mut self, core: &mut Core);

    /// Whether every request has been answered, while the frontend drains.
    fn is_drained(&self) -> bool;

    /// Ends all operations in the kernel.
    fn shut_down(&mut self, core: &mut Core);

    /// Returns the number of clients.
    fn clients(&self) -> usize;

    /// Appends the state of each client.
    fn list(&self, core: &Core, clients: &mut Vec<ClientSnapshot>);
}

/// Defines [`Frontends`] and [`Command`] from the list of frontends.
macro_rules! frontends {
    ($($field:ident: $name:ident($type:ty),)+) => {
        enum Number {
            $($name,)+
        }

        /// A message of the control plane to one of the frontends.
        pub(crate) enum Command {
            $($name(<$type as Frontend>::Command),)+
        }

        /// All frontends of a device thread.
        pub(crate) struct Frontends {
            $($field: $type,)+
        }

        impl Frontends {
            pub(crate) fn new() -> Self {
                Frontends { $($field: <$type>::new(FrontendNumber(Number::$name as u8)),)+ }
            }

            pub(crate) fn command(&mut self, core: &mut Core, now: Instant, command: Command) {
                match command {
                    $(Command::$name(command) => self.$field.command(core, now, command),)+
                }
            }

            pub(crate) fn event(
                &mut self,
                core: &mut Core,
                now: Instant,
                (number, operation, index): (FrontendNumber, u8, u32),
                result: i32,
            ) {
                $(if number.0 == Number::$name as u8 {
                    return self.$field.event(core, now, operation, index, result);
                })+
            }

            pub(crate) fn serve(&mut self, core: &mut Core, now: Instant, client: ClientRef, budget: Budget) {
                $(if client.frontend.0 == Number::$name as u8 {
                    return self.$field.serve(core, now, client, budget);
                })+
            }

            pub(crate) fn complete(&mut self, core: &mut Core, now: Instant, io: IoId) {
                let number = core.backend.ios[io].origin.client.frontend.0;
                $(if number == Number::$name as u8 {
                    return self.$field.complete(core, now, io);
                })+
            }

            pub(crate) fn takes_back(&mut self, core: &mut Core, now: Instant, io: IoId) -> bool {
                let number = core.backend.ios[io].origin.client.frontend.0;
                $(if number == Number::$name as u8 {
                    return self.$field.takes_back(core, now, io);
                })+
                false
            }

            pub(crate) fn poll(&mut self, core: &mut Core, now: Instant) -> bool {
                let mut found = false;
                $(found |= self.$field.poll(core, now);)+
                found
            }

            pub(crate) fn delivered(&mut self) {
                $(self.$field.delivered();)+
            }

            pub(crate) fn end_of_iteration(&mut self, core: &mut Core, now: Instant) {
                $(self.$field.end_of_iteration(core, now);)+
            }

            /// All frontends stop polling, even if one of them has found requests.
            pub(crate) fn stop_polling(&mut self, core: &mut Core, now: Instant) -> bool {
                let mut may_sleep = true;
                $(may_sleep &= self.$field.stop_polling(core, now);)+
                may_sleep
            }

            pub(crate) fn next_deadline(&self) -> Option<Instant> {
                [$(self.$field.next_deadline()),+].into_iter().flatten().min()
            }

            pub(crate) fn admit(&mut self, core: &mut Core, now: Instant, volume: VolumeKey) {
                $(self.$field.admit(core, now, volume);)+
            }

            pub(crate) fn close(&mut self, core: &mut Core, now: Instant, volume: VolumeKey) {
                $(self.$field.close(core, now, volume);)+
            }

            pub(crate) fn drain(&mut self, core: &mut Core) {
                $(self.$field.drain(core);)+
            }

            pub(crate) fn is_drained(&self) -> bool {
                true $(&& self.$field.is_drained())+
            }

            pub(crate) fn shut_down(&mut self, core: &mut Core) {
                $(self.$field.shut_down(core);)+
            }

            pub(crate) fn clients(&self) -> usize {
                0 $(+ self.$field.clients())+
            }

            pub(crate) fn list(&self, core: &Core) -> Vec<ClientSnapshot> {
                let mut clients = Vec::new();
                $(self.$field.list(core, &mut clients);)+
                clients
            }
        }
    };
}

use frontends;
