//! Queues of Flubber's low level, Virtual Latency Control: by deadline, by address, and background in order of entry.
//!
//! The deadlines of a VM increase in the order in which its requests pass the credits. So each VM has one list, and the
//! VMs are in a tournament by the deadline of their heads: taking the earliest costs O(log VMs). The only look-up by
//! address is for requests that begin at a given byte, which `addresses` answers. A scheduler by deadlines only keeps
//! no addresses.
//!
//! Bounds: insertion, removal and growth cost at most O(log queue) for the address and O(log VMs) for the VM. `queued`
//! and `cancel` walk over the requests of a VM and of the background; they serve output and removed VMs.

use core::time::Duration;

use sluice_sched::request::{Flags, Kind, OwnerId, Request, RequestId};
use sluice_sched::scheduler::Scope;
use sluice_sched::slab::Slab;
use sluice_sched::time::Instant;
use sluice_sched::tournament::Tournament;

use super::addresses::Addresses;

pub(crate) const NIL: u32 = u32::MAX;

/// Order of requests with equal deadlines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EqualDeadlines {
    /// First in, first out.
    Fifo,
    /// Last in, first out, as in the published listing.
    Lifo,
}

/// Requests that can be looked up by address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ByAddress {
    /// None.
    Nothing,
    /// Those of VMs that are not background work.
    Vms,
    /// Background requests too.
    All,
}

/// A request in a list.
#[derive(Debug, Clone, Copy)]
struct Node {
    request: Request,
    /// Start of the time to its deadline.
    start: Instant,
    /// Number of requests that entered before it.
    order: u64,
    before: u32,
    behind: u32,
    background: bool,
}

/// First and last node of a list.
#[derive(Debug, Clone, Copy)]
struct List {
    first: u32,
    last: u32,
}

const EMPTY: List = List { first: NIL, last: NIL };

/// List of a VM.
#[derive(Debug, Clone, Copy)]
struct VmList {
    list: List,
    /// Time from start to deadline.
    slack: Duration,
    /// With [`EqualDeadlines::Lifo`]: first of the nodes at the end of the list that have the same start.
    run: u32,
}

/// Requests that have passed the credits.
#[derive(Debug)]
pub(crate) struct Queues {
    equals: EqualDeadlines,
    by_address: ByAddress,
    nodes: Slab<Node>,
    vms: Vec<VmList>,
    earliest: Tournament,
    background: List,
    addresses: Addresses,
    /// Node of each merged request, by token.
    merged: Vec<u32>,
    of_vms: u64,
    of_background: u64,
    entered: u64,
}

/// Reads and writes have an address. A flush has none, and a discard does not move the head.
pub(crate) fn has_address(request: &Request) -> bool {
    matches!(request.kind, Kind::Read | Kind::Write)
}

impl Queues {
    pub(crate) fn new(equals: EqualDeadlines, by_address: ByAddress) -> Self {
        Queues {
            equals,
            by_address,
            nodes: Slab::default(),
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

    /// Number of requests of VMs.
    pub(crate) fn of_vms(&self) -> u64 {
        self.of_vms
    }

    /// Number of background requests.
    pub(crate) fn of_background(&self) -> u64 {
        self.of_background
    }

    /// Sets the time from start to deadline of a VM's requests, also for queued ones.
    pub(crate) fn set_slack(&mut self, owner: OwnerId, slack: Duration) {
        if owner.index() >= self.vms.len() {
            self.vms.resize(owner.index() + 1, VmList { list: EMPTY, slack, run: NIL });
        }
        self.vms[owner.index()].slack = slack;
        self.requeue(owner);
    }

    /// Inserts a VM's request. The starts of a VM never decrease.
    // rule: flubber.queues, flubber.equal-deadlines
    pub(crate) fn enter(&mut self, request: Request, start: Instant) {
        let slot = self.new_node(request, start, false);
        let VmList { mut list, run, .. } = self.vms[request.owner.index()];
        // With "fifo" the node goes last, and `run` is not read, since it may not be cached.
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

    /// Inserts a background request.
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
        let slot = self.nodes.insert(node);
        if self.is_found_by_address(slot) {
            self.addresses.insert(slot, request.offset);
        }
        if request.flags.contains(Flags::MERGED) {
            self.note(request.token, slot);
        }
        slot
    }

    /// Sets the node of a merged request; `NIL` if it is not queued.
    fn note(&mut self, token: u32, slot: u32) {
        let index = token as usize;
        if index >= self.merged.len() {
            self.merged.resize(index + 1, NIL);
        }
        self.merged[index] = slot;
    }

    fn node(&self, slot: u32) -> &Node {
        &self.nodes[slot]
    }

    fn is_found_by_address(&self, slot: u32) -> bool {
        let node = &self.nodes[slot];
        let asked = match self.by_address {
            ByAddress::Nothing => false,
            ByAddress::Vms => !node.background,
            ByAddress::All => true,
        };
        asked && has_address(&node.request)
    }

    /// Links a node after `before`, or at the front.
    fn link(&mut self, list: &mut List, slot: u32, before: u32) {
        let behind = if before == NIL { list.first } else { self.nodes[before].behind };
        (self.nodes[slot].before, self.nodes[slot].behind) = (before, behind);
        *(if before == NIL { &mut list.first } else { &mut self.nodes[before].behind }) = slot;
        *(if behind == NIL { &mut list.last } else { &mut self.nodes[behind].before }) = slot;
    }

    /// Removes a request from any position.
    pub(crate) fn take(&mut self, slot: u32) -> Request {
        if self.is_found_by_address(slot) {
            self.addresses.remove(slot, self.nodes[slot].request.offset);
        }
        let Node { request, before, behind, background, .. } = *self.node(slot);
        if request.flags.contains(Flags::MERGED) {
            self.note(request.token, NIL);
        }
        let owner = request.owner;
        let mut list = if background { self.background } else { self.vms[owner.index()].list };
        *(if before == NIL { &mut list.first } else { &mut self.nodes[before].behind }) = behind;
        *(if behind == NIL { &mut list.last } else { &mut self.nodes[behind].before }) = before;
        self.nodes.remove(slot);
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

    /// Updates a VM in the tournament by its head's deadline.
    fn requeue(&mut self, owner: OwnerId) {
        let VmList { list, slack, .. } = self.vms[owner.index()];
        if list.first == NIL {
            return self.earliest.remove(owner.0);
        }
        let Node { start, order, .. } = self.nodes[list.first];
        let order = if self.equals == EqualDeadlines::Lifo { !order } else { order };
        self.earliest.set(owner.0, (start + slack).as_nanos(), RequestId(order));
    }

    /// The VM request with the earliest deadline: deadline and node.
    pub(crate) fn earliest(&self) -> Option<(Instant, u32)> {
        let (deadline, _, owner) = self.earliest.peek()?;
        Some((Instant::from_nanos(deadline), self.vms[owner as usize].list.first))
    }

    /// The oldest background request: the start of its time to a deadline, and its node.
    pub(crate) fn first_background(&self) -> Option<(Instant, u32)> {
        let slot = self.background.first;
        (slot != NIL).then(|| (self.nodes[slot].start, slot))
    }

    /// Number of requests that entered before that of a node.
    pub(crate) fn order(&self, slot: u32) -> u64 {
        self.nodes[slot].order
    }

    /// Number of queued requests of a VM. O(requests of the VM and of the background).
    pub(crate) fn queued(&self, owner: OwnerId) -> u64 {
        let own = self.vms.get(owner.index()).map_or(NIL, |vm| vm.list.first);
        let lists = [own, self.background.first];
        let all = lists.into_iter().flat_map(|first| self.walk(first));
        all.filter(|node| node.request.owner == owner).count() as u64
    }

    fn walk(&self, first: u32) -> impl Iterator<Item = &Node> {
        let node = |slot: u32| self.nodes.get(slot);
        std::iter::successors(node(first), move |last| node(last.behind))
    }

    /// Owner of the request of a node.
    pub(crate) fn owner(&self, slot: u32) -> OwnerId {
        self.nodes[slot].request.owner
    }

    /// The request at `address` that entered first.
    pub(crate) fn at_address(&self, address: u64) -> Option<u32> {
        self.addresses.first(address)
    }

    /// Removes the queued requests of `scope`.
    pub(crate) fn cancel(&mut self, scope: Scope, removed: &mut Vec<Request>) {
        let own = self.vms.get(scope.owner().index()).map_or(NIL, |vm| vm.list.first);
        for first in [own, self.background.first] {
            let mut slot = first;
            while slot != NIL {
                let Node { request, behind, .. } = self.nodes[slot];
                if scope.contains(&request) {
                    removed.push(self.take(slot));
                }
                slot = behind;
            }
        }
    }

    /// Replaces a queued request by `grown`. Returns `false` if it is not queued here.
    pub(crate) fn grow(&mut self, grown: Request) -> bool {
        let slot = self.merged.get(grown.token as usize).copied().unwrap_or(NIL);
        if slot == NIL || !grown.flags.contains(Flags::MERGED) || self.node(slot).request.id != grown.id {
            return false;
        }
        if self.node(slot).request.offset != grown.offset && self.is_found_by_address(slot) {
            self.addresses.remove(slot, self.nodes[slot].request.offset);
            self.addresses.insert(slot, grown.offset);
        }
        self.nodes[slot].request = grown;
        true
    }
}
