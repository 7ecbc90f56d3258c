//! netback: rate credits per virtual NIC, and round robin by packet.
//!
//! Idea: how Xen's driver domain isolated its guests. A virtual NIC may have a maximum rate. NICs that this rate does
//! not throttle send one packet each, in turn. There is no other guarantee.
//!
//! Rules: queues with packets are in a list. A poll takes the first queue. If the credits of the queue's window cover
//! its packet, the packet is sent and the queue moves to the tail. If not, the queue leaves the list until the window
//! ends. Queues are assigned to groups when they are added and stay there; the groups are served in turn, however many
//! packets they have.
//!
//! Parameters: see [`Params`].
//!
//! Example: 25 Mb/s, frames of 1514 bytes. A window of 50 ms has 156,250 bytes, so 103 frames are sent, and the 104th
//! waits for the window's end: 24.95 Mb/s. On a clock of 250 ticks per second the window takes 52 ms: 23.99 Mb/s.
//!
//! Deviations: a packet that needs the credits of several windows waits for exactly those; credits are also saved for
//! packets above 128 KiB.
//!
//! Source: \[netback\] IV.B and VII; the toolstack's documentation of `rate`.

// Consequences that tests assert:
// rule: netback.bound-window, netback.bound-rate, netback.weak-below-rate, netback.weak-double-burst

use core::time::Duration;
use std::collections::VecDeque;

use serde::Deserialize;

use sluice_sched::guarantees::{Guarantees, Limits, Order, Waits};
use sluice_sched::params::{self, ParamError, ParamTable, Parameter, Range};
use sluice_sched::policy::{Field, Policy};
use sluice_sched::request::{Completion, OwnerId, Request, Wait};
use sluice_sched::request_arena::{Arena, Fifo};
use sluice_sched::scheduler::{
    Change, ChangeError, Decision, Descriptor, DeviceClass, DeviceInfo, OwnerState, Scheduler, Scope, State,
};
use sluice_sched::standing::{Balance, Standing};
use sluice_sched::time::Instant;
use sluice_sched::tournament::Tournament;

pub(crate) mod credits;

use credits::{Credits, Window};

/// The parameters in `[device.NAME.netback]`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
// rule: netback.credit
pub struct Params {
    /// Length of a window.
    #[serde(with = "params::duration")]
    pub interval: Duration,
    /// Tick of the clock; 0 is exact time.
    #[serde(with = "params::duration")]
    pub tick: Duration,
    /// Maximum number of packets in flight.
    pub pending: u32,
    /// Number of groups that queues are assigned to.
    pub groups: u32,
}

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "netback",
    summary: "a maximum rate per virtual NIC, and one packet of each NIC in turn: Xen's back end",
    idea: "A virtual NIC has credits of a number of bytes per window of 50 ms. The NICs with credits left send one \
           packet each in turn, whatever its size. Unused credits are lost, so a NIC stays somewhat below its maximum \
           rate, and its bursts are at the start of windows. The turns are fair in packets, unless packets are dropped \
           after the scheduler.",
    when: "As the baseline of the paper: a maximum for each VM, and no other guarantee.",
    source: "B. Adamczyk, A. Chydzinski: On the Performance Isolation Across Virtual Network Adapters in Xen, CLOUD \
             COMPUTING 2011; the toolstack's documentation of a virtual NIC's rate",
    enforces: &[(
        Field::Limit,
        "bytes per second that the VM sends, as credits per window; a limit in requests is rejected",
    )],
    device_classes: &[DeviceClass::Network],
    guarantees,
    parameters: &[
        Parameter {
            name: "interval",
            kind: "time with unit",
            range: Range::Time(Duration::from_millis(1), Duration::from_secs(10)),
            default: "\"50ms\"",
            help: "Length of a credit window, rounded up to whole ticks",
        },
        Parameter {
            name: "tick",
            kind: "time with unit",
            range: Range::Time(Duration::ZERO, Duration::from_secs(1)),
            default: "\"1ms\"",
            help: "Resolution of the clock that measures windows; 0s is exact time",
        },
        Parameter {
            name: "pending",
            kind: "packets",
            range: Range::Number(1, 65_536),
            default: "256",
            help: "Maximum number of packets dispatched and not completed; a smaller depth of the device limits them \
                   too",
        },
        Parameter {
            name: "groups",
            kind: "number",
            range: Range::Number(1, 64),
            default: "1",
            help: "Lists of NICs, one per CPU of the driver domain. A NIC is assigned to a list when it is added; the \
                   lists are served in turn",
        },
    ],
    build,
    ..Descriptor::BASE
};

fn guarantees(_facts: &DeviceInfo, table: &ParamTable) -> Guarantees {
    let Ok(Params { interval, tick, pending, .. }) = params::read(DESCRIPTOR.parameters, table) else {
        return Guarantees::BASE;
    };
    let waits = Waits::Windows { in_flight: Some(pending) };
    Guarantees { order: Order::Volume, waits, limits: Limits::Windows { interval, tick }, ..Guarantees::BASE }
}

fn build(_facts: &DeviceInfo, table: &ParamTable) -> Result<Box<dyn Scheduler>, ParamError> {
    let params: Params = params::read(DESCRIPTOR.parameters, table)?;
    Ok(Box::new(Netback::new(&params)))
}

/// A virtual NIC.
#[derive(Debug)]
struct Vif {
    fifo: Fifo,
    credits: Credits,
    group: usize,
    listed: bool,
    /// Whether its rate has throttled its head.
    held: bool,
}

/// The NICs of one backend thread that have packets.
#[derive(Debug, Default)]
struct Group {
    list: VecDeque<u32>,
    members: u32,
}

#[derive(Debug)]
pub struct Netback {
    window: Window,
    pending: u64,
    arena: Arena,
    vifs: Vec<Option<Vif>>,
    groups: Vec<Group>,
    /// The group that is polled next.
    turn: usize,
    /// NICs that wait for the end of their window, by that time.
    timers: Tournament,
    in_flight: u64,
}

impl Netback {
    /// Without NICs.
    #[must_use]
    pub fn new(params: &Params) -> Self {
        let mut groups = Vec::new();
        groups.resize_with(params.groups.max(1) as usize, Group::default);
        Netback {
            window: Window::new(params.interval, params.tick),
            pending: u64::from(params.pending.max(1)),
            arena: Arena::new(),
            vifs: Vec::new(),
            groups,
            turn: 0,
            timers: Tournament::default(),
            in_flight: 0,
        }
    }

    fn vif_mut(&mut self, owner: OwnerId) -> &mut Vif {
        self.vifs[owner.index()].as_mut().expect("the gate adds an owner before it uses it")
    }

    /// Inserts a NIC into its list, if it has packets and does not wait.
    // rule: netback.leaves-list
    fn list(&mut self, owner: OwnerId) {
        let vif = self.vifs[owner.index()].as_mut().expect("the gate adds an owner before it uses it");
        if !vif.listed && !vif.fifo.is_empty() && !vif.credits.is_armed() {
            vif.listed = true;
            self.groups[vif.group].list.push_back(owner.0);
        }
    }

    // rule: netback.timer
    fn fire(&mut self, now: Instant) {
        while let Some((due, _, owner)) = self.timers.peek()
            && due <= now.as_nanos()
        {
            self.timers.remove(owner);
            let vif = self.vifs[owner as usize].as_mut().expect("a waiting NIC is known");
            let head = self.arena.front(&vif.fifo).map_or(0, |head| u64::from(head.length));
            vif.credits.fire(head);
            self.list(OwnerId(owner));
        }
    }

    /// The next packet of the first NIC of a group that may send.
    // rule: netback.round-robin, netback.leaves-list, netback.armed
    fn poll(&mut self, now: Instant, group: usize) -> Option<Request> {
        while let Some(owner) = self.groups[group].list.pop_front() {
            let vif = self.vifs[owner as usize].as_mut().expect("a listed NIC is known");
            vif.listed = false;
            let Some(head) = self.arena.front(&vif.fifo) else { continue };
            if let Err(due) = vif.credits.poll(now, u64::from(head.length), &self.window) {
                vif.held = true;
                self.timers.set(owner, due.as_nanos(), head.id);
                continue;
            }
            let mut request = self.arena.pop(&mut vif.fifo).expect("it has a head");
            if std::mem::take(&mut vif.held) {
                request.wait = Wait::OwnLimit;
            }
            self.list(OwnerId(owner));
            return Some(request);
        }
        None
    }

    // rule: netback.groups
    fn add(&mut self, now: Instant, owner: OwnerId, policy: &Policy) {
        if owner.index() >= self.vifs.len() {
            self.vifs.resize_with(owner.index() + 1, || None);
        }
        let fewest = (0..self.groups.len()).min_by_key(|group| (self.groups[*group].members, *group));
        let group = fewest.expect("there is a group");
        self.groups[group].members += 1;
        let credits = Credits::new(now, policy.limit.bytes, &self.window);
        self.vifs[owner.index()] = Some(Vif { fifo: Fifo::default(), credits, group, listed: false, held: false });
    }
}

impl Scheduler for Netback {
    fn insert(&mut self, _now: Instant, request: Request) {
        let vif = self.vifs[request.owner.index()].as_mut().expect("the gate adds an owner before it uses it");
        self.arena.push(&mut vif.fifo, request);
        self.list(request.owner);
    }

    fn grow(&mut self, _now: Instant, grown: Request) -> bool {
        self.arena.grow(&grown)
    }

    fn dispatch(&mut self, now: Instant) -> Decision {
        self.fire(now);
        // rule: netback.batch
        if self.in_flight >= self.pending && !self.arena.is_empty() {
            return Decision::WaitCompletion;
        }
        // rule: netback.groups
        for _ in 0..self.groups.len() {
            let group = self.turn;
            self.turn = (group + 1) % self.groups.len();
            if let Some(request) = self.poll(now, group) {
                self.in_flight += 1;
                return Decision::Dispatch(request);
            }
        }
        match self.timers.peek() {
            Some((due, _, _)) => Decision::WaitUntil(Instant::from_nanos(due)),
            None => Decision::Idle,
        }
    }

    fn complete(&mut self, _now: Instant, _completion: &Completion) {
        self.in_flight -= 1;
    }

    fn configure(&mut self, now: Instant, change: Change) -> Result<(), ChangeError> {
        change.policy().map_or(Ok(()), |policy| DESCRIPTOR.check_units(policy, DeviceClass::Network))?;
        match change {
            Change::AddOwner { owner, policy } => self.add(now, owner, &policy),
            Change::SetOwner { owner, policy } => {
                let window = self.window;
                self.vif_mut(owner).credits.set(now, policy.limit.bytes, &window);
                self.timers.remove(owner.0);
                self.list(owner);
            }
            Change::RemoveOwner { owner } => {
                self.timers.remove(owner.0);
                if let Some(vif) = self.vifs[owner.index()].take() {
                    let group = &mut self.groups[vif.group];
                    group.members -= 1;
                    group.list.retain(|listed| *listed != owner.0);
                }
            }
            Change::Device { .. }
            | Change::AddVolume { .. }
            | Change::SetVolume { .. }
            | Change::RemoveVolume { .. } => {}
        }
        Ok(())
    }

    fn cancel(&mut self, _now: Instant, scope: Scope, removed: &mut Vec<Request>) {
        let owner = scope.owner();
        let Some(vif) = self.vifs.get_mut(owner.index()).and_then(Option::as_mut) else { return };
        self.arena.remove_if(&mut vif.fifo, removed, |request| scope.contains(request));
        // The packet that it waited for may be gone.
        vif.credits.disarm();
        vif.held = false;
        self.timers.remove(owner.0);
        self.list(owner);
    }

    fn inspect(&self, _now: Instant) -> State {
        let owners = self.vifs.iter().enumerate().filter_map(|(index, vif)| {
            let vif = vif.as_ref()?;
            let limit_passes_ns = vif.credits.due().map(Instant::as_nanos);
            Some((index as u32, OwnerState { queued: vif.fifo.len() as u64, limit_passes_ns, ..OwnerState::default() }))
        });
        let owners = owners.collect();
        State { queued: self.arena.len() as u64, in_flight: self.in_flight, virtual_time: None, owners }
    }

    fn standing(&self, now: Instant, scope: Scope) -> Standing {
        let mut standing = Standing::default();
        if let Scope::Owner(owner) = scope
            && let Some(Some(vif)) = self.vifs.get(owner.index())
        {
            standing.limits[0].limit = Balance { cost: None, bytes: vif.credits.left(now, &self.window) };
        }
        standing
    }

    fn resume(&mut self, now: Instant, scope: Scope, standing: &Standing) {
        let Scope::Owner(owner) = scope else { return };
        let Some(Some(vif)) = self.vifs.get_mut(owner.index()) else { return };
        let head = self.arena.front(&vif.fifo).map_or(0, |head| u64::from(head.length));
        vif.credits.resume(now, standing.limits[0].limit.bytes, head, &self.window);
        self.timers.remove(owner.0);
        self.list(owner);
    }
}
