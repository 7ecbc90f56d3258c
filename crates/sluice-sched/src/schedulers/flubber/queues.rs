//! The queues of Flubber's low level, Virtual Latency Control: by deadline, by address, and background in order of entry.
//!
//! A VM's deadlines ascend in the order in which its requests came here, so each VM has one list and the VMs stand in
//! a tournament by the deadline of their heads: taking the earliest costs O(log VMs). Of the order by address all that
//! is ever asked is what begins at a given byte: `addresses` answers that. Who goes by deadlines alone does not ask, and
//! keeps no addresses.
//!
//! Bounds: what comes, goes and grows costs at most O(log queue) for its address and O(log VMs) for its VM's place.
//! `queued` and `cancel` walk over the requests of a VM and of the background; they serve people and VMs that leave.

use core::time::Duration;

use crate::request::{Flags, Kind, OwnerId, Request, RequestId};
use crate::scheduler::Scope;
use crate::steps::step;
use crate::time::Instant;
use crate::tournament::Tournament;

use super::addresses::Addresses;

pub(crate) const NIL: u32 = u32::MAX;

/// Which of two equal deadlines goes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EqualDeadlines {
    /// The one that came first.
    #[default]
    Fifo,
    /// The one that came last, as the listing has it.
    Lifo,
}

/// Which requests are found by their address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ByAddress {
    /// None: nobody asks.
    Nothing,
    /// Those of VMs that are no background work.
    Vms,
    /// Background requests too.
    All,
}

/// A request in a list.
#[derive(Debug, Clone, Copy)]
struct Node {
    request: Request,
    /// From when its deadline counts.
    start: Instant,
    /// How many came here before it.
    order: u64,
    before: u32,
    behind: u32,
    background: bool,
}

/// First and last of a list.
#[derive(Debug, Clone, Copy)]
struct List {
    first: u32,
    last: u32,
}

const EMPTY: List = List { first: NIL, last: NIL };

/// A VM's list.
#[derive(Debug, Clone, Copy)]
struct VmList {
    list: List,
    /// From start to deadline.
    slack: Duration,
    /// With [`EqualDeadlines::Lifo`] the first of the last ones in the list, which all have one start.
    run: u32,
}

/// What is queued behind the credits.
#[derive(Debug)]
pub(crate) struct Queues {
    equals: EqualDeadlines,
    by_address: ByAddress,
    nodes: Vec<Node>,
    free: Vec<u32>,
    vms: Vec<VmList>,
    earliest: Tournament,
    background: List,
    addresses: Addresses,
    /// By token the place of each carrier.
    merged: Vec<u32>,
    of_vms: u64,
    of_background: u64,
    entered: u64,
}

/// Reads and writes have an address; a flush has none, and a discard moves no head.
pub(crate) fn has_address(request: &Request) -> bool {
    matches!(request.kind, Kind::Read | Kind::Write)
}

impl Queues {
    pub(crate) fn new(equals: EqualDeadlines, by_address: ByAddress) -> Self {
        Queues {
            equals,
            by_address,
            nodes: Vec::new(),
            free: Vec::new(),
            vms: Vec::new(),
            earliest: Tournament::default(),
            background: EMPTY,
            addresses: Addresses::default(),
            merged: Vec::new(),
            of_vms: 0,
            of_background: 0,
            entered: 0,
        }
    }

    /// Requests of VMs.
    pub(crate) fn of_vms(&self) -> u64 {
        self.of_vms
    }

    /// Background requests.
    pub(crate) fn of_background(&self) -> u64 {
        self.of_background
    }

    /// How long after its start a VM's request is due; holds for what is queued too.
    pub(crate) fn set_slack(&mut self, owner: OwnerId, slack: Duration) {
        if owner.index() >= self.vms.len() {
            self.vms.resize(owner.index() + 1, VmList { list: EMPTY, slack, run: NIL });
        }
        self.vms[owner.index()].slack = slack;
        self.requeue(owner);
    }

    /// A VM's request comes in. A VM's starts never decrease.
    // rule: flubber.queues, flubber.equal-deadlines
    pub(crate) fn enter(&mut self, request: Request, start: Instant) {
        let slot = self.new_node(request, start, false);
        let VmList { mut list, run, .. } = self.vms[request.owner.index()];
        // With "fifo" the place is the last one, and the run is left unread: its memory may be far away.
        let lifo = self.equals == EqualDeadlines::Lifo;
        let joins = lifo && run != NIL && self.node(run).start == start;
        let before = if joins { self.node(run).before } else { list.last };
        self.link(&mut list, slot, before);
        let vm = &mut self.vms[request.owner.index()];
        vm.list = list;
        if lifo {
            vm.run = slot;
        }
        self.of_vms += 1;
        if list.first == slot {
            self.requeue(request.owner);
        }
    }

    /// A background request comes in.
    pub(crate) fn enter_background(&mut self, request: Request, start: Instant) {
        let slot = self.new_node(request, start, true);
        let mut list = self.background;
        let last = list.last;
        self.link(&mut list, slot, last);
        self.background = list;
        self.of_background += 1;
    }

    fn new_node(&mut self, request: Request, start: Instant, background: bool) -> u32 {
        let node = Node { request, start, order: self.entered, before: NIL, behind: NIL, background };
        self.entered += 1;
        let slot = match self.free.pop() {
            Some(slot) => {
                self.nodes[slot as usize] = node;
                slot
            }
            None => {
                self.nodes.push(node);
                (self.nodes.len() - 1) as u32
            }
        };
        if self.is_found_by_address(slot) {
            self.addresses.insert(slot, request.offset);
        }
        if request.flags.contains(Flags::MERGED) {
            self.note(request.token, slot);
        }
        slot
    }

    /// Where a carrier stands; `NIL`: nowhere.
    fn note(&mut self, token: u32, slot: u32) {
        let index = token as usize;
        if index >= self.merged.len() {
            self.merged.resize(index + 1, NIL);
        }
        self.merged[index] = slot;
    }

    fn node(&self, slot: u32) -> &Node {
        step();
        &self.nodes[slot as usize]
    }

    fn is_found_by_address(&self, slot: u32) -> bool {
        let node = &self.nodes[slot as usize];
        let asked = match self.by_address {
            ByAddress::Nothing => false,
            ByAddress::Vms => !node.background,
            ByAddress::All => true,
        };
        asked && has_address(&node.request)
    }

    /// Puts a node behind `before`, or in front.
    fn link(&mut self, list: &mut List, slot: u32, before: u32) {
        let behind = if before == NIL { list.first } else { self.nodes[before as usize].behind };
        (self.nodes[slot as usize].before, self.nodes[slot as usize].behind) = (before, behind);
        *(if before == NIL { &mut list.first } else { &mut self.nodes[before as usize].behind }) = slot;
        *(if behind == NIL { &mut list.last } else { &mut self.nodes[behind as usize].before }) = slot;
    }

    /// Takes a request out, wherever it stands.
    pub(crate) fn take(&mut self, slot: u32) -> Request {
        if self.is_found_by_address(slot) {
            self.addresses.remove(slot, self.nodes[slot as usize].request.offset);
        }
        let Node { request, before, behind, background, .. } = *self.node(slot);
        if request.flags.contains(Flags::MERGED) {
            self.note(request.token, NIL);
        }
        let owner = request.owner;
        let mut list = if background { self.background } else { self.vms[owner.index()].list };
        *(if before == NIL { &mut list.first } else { &mut self.nodes[before as usize].behind }) = behind;
        *(if behind == NIL { &mut list.last } else { &mut self.nodes[behind as usize].before }) = before;
        self.free.push(slot);
        if background {
            self.background = list;
            self.of_background -= 1;
        } else {
            let vm = &mut self.vms[owner.index()];
            vm.list = list;
            vm.run = if vm.run == slot { behind } else { vm.run };
            self.of_vms -= 1;
            if before == NIL {
                self.requeue(owner);
            }
        }
        request
    }

    /// Puts a VM where its head's deadline belongs.
    fn requeue(&mut self, owner: OwnerId) {
        let VmList { list, slack, .. } = self.vms[owner.index()];
        if list.first == NIL {
            return self.earliest.remove(owner.0);
        }
        let Node { start, order, .. } = self.nodes[list.first as usize];
        let order = if self.equals == EqualDeadlines::Lifo { !order } else { order };
        self.earliest.set(owner.0, (start + slack).as_nanos(), RequestId(order));
    }

    /// The VM's request that is due first: its deadline, and where it stands.
    pub(crate) fn earliest(&self) -> Option<(Instant, u32)> {
        let (deadline, _, owner) = self.earliest.peek()?;
        Some((Instant::from_nanos(deadline), self.vms[owner as usize].list.first))
    }

    /// The background request that came first: from when a deadline of its would count, and where it stands.
    pub(crate) fn first_background(&self) -> Option<(Instant, u32)> {
        let slot = self.background.first;
        (slot != NIL).then(|| (self.nodes[slot as usize].start, slot))
    }

    /// How many came before the request at a place.
    pub(crate) fn order(&self, slot: u32) -> u64 {
        self.nodes[slot as usize].order
    }

    /// How many requests of a VM are queued here. O(requests of the VM and of the background).
    pub(crate) fn queued(&self, owner: OwnerId) -> u64 {
        let own = self.vms.get(owner.index()).map_or(NIL, |vm| vm.list.first);
        let lists = [own, self.background.first];
        let all = lists.into_iter().flat_map(|first| self.walk(first));
        all.filter(|node| node.request.owner == owner).count() as u64
    }

    fn walk(&self, first: u32) -> impl Iterator<Item = &Node> {
        let node = |slot: u32| self.nodes.get(slot as usize);
        std::iter::successors(node(first), move |last| node(last.behind))
    }

    /// Whose request stands at a place.
    pub(crate) fn owner(&self, slot: u32) -> OwnerId {
        self.nodes[slot as usize].request.owner
    }

    /// The request that came first of those that begin at `address`.
    pub(crate) fn at_address(&self, address: u64) -> Option<u32> {
        self.addresses.first(address)
    }

    /// What of `scope` is queued leaves.
    pub(crate) fn cancel(&mut self, scope: Scope, removed: &mut Vec<Request>) {
        let own = self.vms.get(scope.owner().index()).map_or(NIL, |vm| vm.list.first);
        for first in [own, self.background.first] {
            let mut slot = first;
            while slot != NIL {
                let Node { request, behind, .. } = self.nodes[slot as usize];
                if scope.contains(&request) {
                    removed.push(self.take(slot));
                }
                slot = behind;
            }
        }
    }

    /// A queued request has grown. `false` if it is not queued here.
    pub(crate) fn grow(&mut self, grown: Request) -> bool {
        let slot = self.merged.get(grown.token as usize).copied().unwrap_or(NIL);
        if slot == NIL || !grown.flags.contains(Flags::MERGED) || self.node(slot).request.id != grown.id {
            return false;
        }
        if self.node(slot).request.offset != grown.offset && self.is_found_by_address(slot) {
            self.addresses.remove(slot, self.nodes[slot as usize].request.offset);
            self.addresses.insert(slot, grown.offset);
        }
        self.nodes[slot as usize].request = grown;
        true
    }
}
