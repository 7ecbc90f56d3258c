//! An uplink as the actor of a device thread.
//!
//! An iteration takes frames of the NICs, lets the gate fill the wire, receives frames from the interface, and gives them to the NICs.

use std::io;
use std::num::NonZeroU32;
use std::time::Duration;

use sluice_net::UplinkTotals;
use sluice_net::flood::{CopyLimit, FloodLimit};
use sluice_net::switch::{Limits, Switch};
use sluice_sched::{Gate, Instant};

use crate::backend::retry::is_put_off;
use crate::backend::ring::Ring;
use crate::backend::tag::Tag;
use crate::reactor::actor::Actor;
use crate::reactor::base::Base;
use crate::reactor::mailbox::Mailbox;
use crate::reactor::spec::{ClientSnapshot, EditError, VmSnapshot};
use crate::slab::FrontendNumber;
use crate::uplink::core::{Core, Vm};
use crate::uplink::deliver::deliver;
use crate::uplink::edit;
use crate::uplink::nic::Standing;
use crate::uplink::pacer::Pacer;
use crate::uplink::ports::Ports;
use crate::uplink::spec::{Edit, UplinkSpec};
use crate::uplink::taps::{self, DOWN_PAUSE, Taps};
use crate::uplink::vhost_net::VhostNet;
use crate::uplink::wire::Wire;
use crate::vhost_user::message::SessionMessage;
use crate::virtio::sessions::VirtioDevices as _;

/// Owners of operations of the ring.
const TAPS: FrontendNumber = FrontendNumber(0);
pub(super) const LINK: FrontendNumber = FrontendNumber(1);
const TRANSMIT: FrontendNumber = FrontendNumber(2);
const RECEIVE: FrontendNumber = FrontendNumber(3);

/// Bounds of the switch. A flooded frame is copied for each NIC of its VLAN.
const SWITCH: Limits = Limits {
    ports: 65_536,
    addresses_per_port: 64,
    addresses_of_uplink: 16_384,
    age: Duration::from_secs(300),
    port_flood: FloodLimit { frames_per_second: number(1000), burst: number(200) },
    uplink_flood: FloodLimit { frames_per_second: number(4000), burst: number(800) },
    copies: CopyLimit { per_second: number(100_000), burst: number(20_000) },
};

const fn number(value: u32) -> NonZeroU32 {
    NonZeroU32::new(value).expect("a limit is not 0")
}

/// Maximum number of rounds in one iteration in which frames are taken for those that have been sent.
const ROUNDS_MAX: u32 = 16;

/// An uplink: its gate and its wire, and the NICs of its VMs.
pub(crate) struct UplinkActor {
    pub(crate) core: Core,
    pub(crate) ports: Ports,
    pub(super) link: LinkState,
    /// Whether the last attempt to receive from the interface failed.
    link_fails: bool,
    /// Number of times that it began to fail.
    pub(crate) link_failures: u64,
}

/// Whether the interface has frames to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LinkState {
    /// No operation waits for frames.
    Idle,
    /// An operation waits for frames.
    Watched,
    /// There may be frames that were not read.
    Ready,
    /// It cannot be read, and is looked at again then.
    Down(Instant),
}

impl Actor for UplinkActor {
    type Spec = UplinkSpec;
    type Edit = Edit;
    type Command = SessionMessage;
    type Vm = Vm;
    type Helper = ();

    fn name(spec: &UplinkSpec) -> &str {
        &spec.name
    }

    fn build(spec: &UplinkSpec, ring: Ring, _mailbox: &Mailbox<Self>, _restarts: u64) -> io::Result<(Self, ())> {
        let gate = Gate::new(spec.scheduler.build().map_err(io::Error::other)?, spec.gate);
        let wire = Wire::new(spec.link.clone(), Pacer::new(spec.rate));
        let switch = Switch::new(Instant::ZERO, SWITCH);
        let base = Base::new(spec.name.clone(), gate);
        let actor = UplinkActor {
            core: Core::new(base, ring, wire, switch, spec.frame_time_max),
            ports: Ports { taps: Taps::new(TAPS), vhost: VhostNet::new(TRANSMIT, RECEIVE) },
            link: LinkState::Idle,
            link_fails: false,
            link_failures: 0,
        };
        Ok((actor, ()))
    }

    fn base(&self) -> &Base<Vm> {
        &self.core.base
    }

    fn base_mut(&mut self) -> &mut Base<Vm> {
        &mut self.core.base
    }

    fn ring(&mut self) -> &mut Ring {
        &mut self.core.ring
    }

    fn edit(&mut self, now: Instant, edits: Vec<Edit>) -> Result<(), EditError> {
        let has_link = edits.iter().any(|edit| matches!(edit, Edit::SetLink { nic: None, .. }));
        let applied = edit::apply(&mut self.core, &mut self.ports, now, edits);
        if has_link {
            self.link_fails = false;
            // The operation waits for frames of the former interface. When it ends, the new one is watched.
            taps::cancel(&mut self.core.ring, Tag::Frontend(LINK, 0, 0));
        }
        applied
    }

    fn describe(&self) -> Vec<Edit> {
        edit::describe(&self.core)
    }

    fn command(&mut self, now: Instant, message: SessionMessage) {
        self.ports.vhost.message(&mut self.core, now, message);
    }

    fn refuse_clients(&mut self, nics: Vec<(String, String)>) -> Result<(), EditError> {
        edit::refuse_clients(&mut self.core, &nics)
    }

    fn reopen(&mut self, nics: &[(String, String)]) {
        edit::set_standing(&mut self.core, nics, Standing::Open);
    }

    fn start(&mut self) {
        self.watch_link();
    }

    fn event(&mut self, now: Instant, tag: Tag, result: i32) {
        match tag {
            Tag::Frontend(TAPS, _, index) => self.ports.taps.event(&mut self.core, index),
            Tag::Frontend(LINK, ..) => {
                let is_ready = result >= 0 || is_put_off(result);
                self.link = if is_ready { LinkState::Ready } else { LinkState::Idle };
            }
            Tag::Frontend(number, operation, index) => {
                self.ports.vhost.event(&mut self.core, now, (number, operation, index), result);
            }
            Tag::Wakeup | Tag::Timer | Tag::Ignored | Tag::Store(_) => {}
        }
    }

    /// Moves frames in both directions. Returns whether there were any.
    fn work(&mut self, now: Instant) -> bool {
        let UplinkActor { core, ports, .. } = self;
        core.release_held(now);
        let mut found = ports.taps.poll(core, now);
        found |= ports.vhost.poll(core, now);
        // The wire runs last: frames that a queue has just given to the gate would wait for the next event.
        for round in 0..=ROUNDS_MAX {
            core.run_wire(now);
            ports.vhost.return_chains(core, now);
            if round == ROUNDS_MAX || !core.take_resumable() {
                break;
            }
            ports.vhost.resume(core, now);
        }
        found |= self.receive(now);
        let UplinkActor { core, ports, .. } = self;
        deliver(core, &mut ports.vhost, now);
        ports.vhost.end_of_iteration(core, now);
        core.end_of_iteration();
        found
    }

    fn has_work(&self) -> bool {
        self.link == LinkState::Ready || self.core.has_resumable() || self.ports.taps.has_more()
    }

    /// While frames wait for the wire, there is nothing to be early for.
    fn may_spin(&self) -> bool {
        self.ports.vhost.is_polling() && self.core.wire.pacer.rate().is_none()
    }

    fn stop_polling(&mut self, now: Instant) -> bool {
        self.ports.vhost.stop_polling(&mut self.core, now)
    }

    fn next_wakeup(&mut self) -> Option<Instant> {
        debug_assert!(
            self.link != LinkState::Idle,
            "the thread sleeps while nothing tells of frames from the interface"
        );
        let down_until = if let LinkState::Down(until) = self.link { Some(until) } else { None };
        [self.core.next_wakeup(), self.ports.taps.next_wakeup(), down_until].into_iter().flatten().min()
    }

    fn is_drained(&self) -> bool {
        self.core.base.gate.queued() == 0 && self.core.base.gate.in_flight() == 0
    }

    fn shut_down(&mut self) {
        self.ports.taps.shut_down(&mut self.core);
        self.ports.vhost.shut_down(&mut self.core);
        if self.link == LinkState::Watched {
            taps::cancel(&mut self.core.ring, Tag::Frontend(LINK, 0, 0));
        }
    }

    fn vm_snapshots(&mut self) -> Vec<VmSnapshot> {
        edit::vm_snapshots(&mut self.core)
    }

    fn clients(&self) -> Vec<ClientSnapshot> {
        self.ports.vhost.list(&self.core)
    }

    fn connections(&self) -> usize {
        self.ports.vhost.clients()
    }

    fn link_totals(&self) -> Option<UplinkTotals> {
        let (drops, full) = (self.core.drops, self.core.wire.stats.full);
        Some(UplinkTotals { drops, full, link_failures: self.link_failures, is_down: self.link_fails })
    }
}

impl UplinkActor {
    /// Receives frames from the interface, and watches it when there are no more: the thread may sleep after this. Returns whether there were any.
    fn receive(&mut self, now: Instant) -> bool {
        let was_ready = self.link == LinkState::Ready;
        if was_ready {
            self.link = match self.core.receive(now) {
                Ok(more) => {
                    self.report_link(None);
                    if more { LinkState::Ready } else { LinkState::Idle }
                }
                Err(error) => {
                    self.report_link(Some(&error));
                    LinkState::Down(now + DOWN_PAUSE)
                }
            };
        }
        if matches!(self.link, LinkState::Down(until) if until <= now) {
            self.link = LinkState::Idle;
        }
        self.watch_link();
        was_ready
    }

    /// Lets the kernel report once when the interface has frames, unless it is watched already, or looked at again anyway.
    fn watch_link(&mut self) {
        if self.link == LinkState::Idle {
            taps::watch(&mut self.core.ring, self.core.wire.link.fd(), Tag::Frontend(LINK, 0, 0));
            self.link = LinkState::Watched;
        }
    }

    /// Logs when the interface fails, and when it works again. An interface that was deleted fails for ever.
    fn report_link(&mut self, error: Option<&io::Error>) {
        let device = &self.core.base.device;
        match error {
            Some(error) if !self.link_fails => {
                self.link_failures += 1;
                tracing::warn!(device, %error, "Cannot receive from the uplink's interface: it is down, or was removed");
            }
            None if self.link_fails => tracing::info!(device, "The uplink's interface receives again"),
            Some(_) | None => {}
        }
        self.link_fails = error.is_some();
    }
}
