//! Common state of all variants of CFQ: streams and their requests, the head, the requests in flight, and the
//! parameters.

use crate::cfq::stream::{Priority, Seeky, Stream, StreamId};
use crate::cfq::{Mode, Params};
use crate::elevator::{Nearness, SortKey, Ticks, is_sync};
use sluice_sched::policy::Policy;
use sluice_sched::request::{OwnerId, Request, RequestId, VolumeId};
use sluice_sched::scheduler::{DeviceInfo, Scope, State};
use sluice_sched::slab::Slab;
use sluice_sched::time::Instant;

/// Number of requests, in flight or queued, above which the device's behaviour shows whether it queues.
const BUSY_DEVICE: u32 = 5;
/// Number of samples between two decisions whether the device queues.
const SAMPLES: u32 = 50;

/// Number of queued requests that make a stream deep.
const DEEP: usize = 4;

/// An owner and its streams.
#[derive(Debug, Clone)]
pub(super) struct Owner {
    pub(super) policy: Policy,
    pub(super) group: u32,
    pub(super) streams: Vec<(VolumeId, StreamId)>,
}

#[derive(Debug)]
pub(super) struct Core {
    pub(super) params: Params,
    pub(super) mode: Mode,
    pub(super) ticks: Ticks,
    pub(super) rotational: bool,
    nearness: Nearness,
    pub(super) streams: Slab<Stream>,
    pub(super) owners: Vec<Option<Owner>>,
    /// By class and level.
    asyncs: [Option<StreamId>; 24],
    /// End of the request that the driver started last.
    pub(super) head: u64,
    /// Requests in flight: async, sync.
    pub(super) in_driver: [u32; 2],
    flight: Vec<(RequestId, StreamId)>,
    pub(super) queued: u32,
    pub(super) last_sync_end: Option<Instant>,
    pub(super) active: Option<StreamId>,
    /// End of the idling.
    pub(super) idle_until: Option<Instant>,
    pub(super) hw_tag: bool,
    /// Requests that were taken but not yet passed to the driver.
    pub(super) listed: u32,
    samples: u32,
    peak: u32,
}

pub(super) fn nanos(duration: core::time::Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl Core {
    pub(super) fn new(params: Params, info: &DeviceInfo) -> Core {
        Core {
            mode: params.mode,
            ticks: Ticks::new(params.tick),
            rotational: info.rotational,
            // rule: cfq.back-seek-max, cfq.back-seek-penalty
            nearness: Nearness { back_max: params.back_seek_max.0, back_penalty: u64::from(params.back_seek_penalty) },
            // In 2.6.18 queueing must first be observed; in the other variants it is assumed until the opposite is
            // observed.
            hw_tag: params.mode != Mode::V2618,
            params,
            streams: Slab::default(),
            owners: Vec::new(),
            asyncs: [None; 24],
            head: 0,
            in_driver: [0; 2],
            flight: Vec::new(),
            queued: 0,
            last_sync_end: None,
            active: None,
            idle_until: None,
            listed: 0,
            samples: 0,
            peak: 0,
        }
    }

    pub(super) fn stream(&self, id: StreamId) -> &Stream {
        &self.streams[id]
    }

    pub(super) fn stream_mut(&mut self, id: StreamId) -> &mut Stream {
        &mut self.streams[id]
    }

    pub(super) fn seeky(&self, id: StreamId) -> bool {
        let judged = match self.mode {
            Mode::V2618 => Seeky::Mean(131_072),
            Mode::V2632 => Seeky::Mean(8192),
            Mode::Group | Mode::El6 => Seeky::History,
        };
        self.stream(id).is_seeky(judged)
    }

    /// `base` for a level: a fifth more or less for each level above or below 4. Example: 100 ms are 180 ms at level 0
    /// and 40 ms at level 7.
    // rule: cfq.slice-by-level
    pub(super) fn scaled(base: u64, level: u8) -> u64 {
        (base * (9 - u64::from(level))) / 5
    }

    /// The slice of a stream by its level, in nanoseconds.
    pub(super) fn base_slice(&self, id: StreamId) -> u64 {
        let stream = self.stream(id);
        let base = if stream.is_sync() { self.params.slice_sync } else { self.params.slice_async };
        Core::scaled(nanos(base), stream.priority.level)
    }

    /// Number of requests that an async stream sends in a slice.
    // rule: cfq.async-by-level, cfq.slice-async-rq
    pub(super) fn async_requests(&self, level: u8) -> u32 {
        let base = self.params.slice_async_rq;
        2 * (base + base * (7 - u32::from(level)))
    }

    fn new_stream(&mut self, owner: Option<(OwnerId, VolumeId)>, priority: Priority, group: u32) -> StreamId {
        let mut stream = Stream::new(owner, priority, group);
        // rule: cfq.idle-window-start
        stream.window = self.mode == Mode::V2618 || owner.is_some() && !stream.is_idle_class();
        self.streams.insert(stream)
    }

    pub(super) fn add_owner(&mut self, owner: OwnerId, policy: Policy, group: u32) {
        if self.owners.len() <= owner.index() {
            self.owners.resize(owner.index() + 1, None);
        }
        self.owners[owner.index()] = Some(Owner { policy, group, streams: Vec::new() });
    }

    /// The stream that a request belongs to.
    // rule: cfq.sync-queue, cfq.async-shared, cfq.weak-async
    pub(super) fn stream_of(&mut self, request: &Request) -> StreamId {
        let owner = self.owners[request.owner.index()].as_ref().expect("the gate adds owners before their requests");
        let priority = Priority::of(&owner.policy);
        if !is_sync(request) {
            let known = self.asyncs[priority.index()];
            return known.unwrap_or_else(|| {
                let id = self.new_stream(None, priority, 0);
                self.asyncs[priority.index()] = Some(id);
                id
            });
        }
        // Without groups an owner has one stream, with groups one for each of its volumes.
        let volume = if self.mode == Mode::Group { request.volume } else { VolumeId(0) };
        if let Some((_, id)) = owner.streams.iter().find(|(of, _)| *of == volume) {
            return *id;
        }
        let id = self.new_stream(Some((request.owner, volume)), priority, owner.group);
        let owner = self.owners[request.owner.index()].as_mut().expect("just seen");
        owner.streams.push((volume, id));
        id
    }

    /// Sets the policy of an owner, and with it the priority of its streams.
    pub(super) fn set_owner(&mut self, owner: OwnerId, policy: Policy) {
        let Some(owner) = self.owners[owner.index()].as_mut() else { return };
        owner.policy = policy;
        for (_, id) in &owner.streams {
            let stream = &mut self.streams[*id];
            stream.priority = Priority::of(&policy);
            stream.window &= !stream.is_idle_class();
        }
    }

    /// Adds an arrival to its stream and to the statistics; returns the stream.
    pub(super) fn receive(&mut self, request: Request, now: Instant) -> StreamId {
        let id = self.stream_of(&request);
        let most = nanos(self.params.slice_idle).saturating_mul(2);
        let place = (request.offset, request.end());
        self.streams[id].observe(now, place, most, self.rotational);
        self.enqueue(id, request);
        id
    }

    // rule: cfq.fifo-expire, cfq.never-across
    fn enqueue(&mut self, id: StreamId, request: Request) {
        let Core { streams, ticks, params, nearness, head, .. } = self;
        let stream = &mut streams[id];
        let expire = if stream.is_sync() { params.fifo_expire_sync } else { params.fifo_expire_async };
        let expiry = ticks.shown(request.arrival) + expire;
        let node = stream.requests.insert(request, expiry);
        stream.next = nearness.nearer(*head, stream.next, Some(node));
        // rule: cfq.c-seeky-window
        stream.deep = stream.deep || stream.requests.len() >= DEEP;
        self.queued += 1;
    }

    /// The request that a stream sends next.
    fn choose(&mut self, id: StreamId, now: Instant) -> SortKey {
        let shown = self.ticks.shown(now);
        let mode = self.mode;
        let stream = &mut self.streams[id];
        let oldest = stream.requests.oldest().expect("a stream with requests was chosen");
        let next = stream.next.expect("a stream with requests has a candidate");
        // rule: cfq.queue-expiry
        if stream.slice.checked {
            return next;
        }
        let expired = shown > stream.requests.expiry(oldest);
        stream.slice.checked = expired || mode != Mode::V2618;
        if expired { oldest } else { next }
    }

    /// Takes the next request of a stream for dispatch.
    // rule: cfq.choose
    pub(super) fn take(&mut self, id: StreamId, now: Instant) -> Request {
        let node = self.choose(id, now);
        let stream = &mut self.streams[id];
        let queue = &mut stream.requests;
        let request = queue.remove(node);
        self.head = request.end();
        let (before, after) = (queue.before(node), queue.after(node).or_else(|| queue.lowest()));
        stream.next = self.nearness.nearer(self.head, before, after);
        stream.in_flight += 1;
        stream.slice.sent += 1;
        self.in_driver[usize::from(stream.is_sync())] += 1;
        self.queued -= 1;
        self.flight.push((request.id, id));
        request
    }

    /// Notes the completion of a request; returns its stream.
    pub(super) fn land(&mut self, request: &Request, now: Instant) -> Option<StreamId> {
        let place = self.flight.iter().position(|(id, _)| *id == request.id)?;
        let (_, id) = self.flight.swap_remove(place);
        self.watch_queueing();
        let stream = &mut self.streams[id];
        stream.in_flight -= 1;
        self.in_driver[usize::from(stream.is_sync())] -= 1;
        if stream.is_sync() {
            stream.last_end_time = Some(now);
            self.last_sync_end = Some(now);
        }
        Some(id)
    }

    /// Drops a request that was taken but will not be dispatched.
    pub(super) fn forget(&mut self, request: &Request) {
        if let Some(place) = self.flight.iter().position(|(id, _)| *id == request.id) {
            let (_, id) = self.flight.swap_remove(place);
            let stream = &mut self.streams[id];
            stream.in_flight -= 1;
            self.in_driver[usize::from(stream.is_sync())] -= 1;
        }
    }

    /// Updates whether the device queues, while it has, or could have, more than a few requests.
    // rule: cfq.hw-tag
    fn watch_queueing(&mut self) {
        let driver = self.in_device() - self.listed;
        if self.mode == Mode::V2618 {
            self.hw_tag |= driver > 4;
            return;
        }
        self.peak = self.peak.max(driver);
        if self.queued <= BUSY_DEVICE && driver <= BUSY_DEVICE {
            return;
        }
        self.samples += 1;
        if self.samples >= SAMPLES {
            self.hw_tag = self.peak >= BUSY_DEVICE;
            (self.samples, self.peak) = (0, 0);
        }
    }

    pub(super) fn in_device(&self) -> u32 {
        self.in_driver[0] + self.in_driver[1]
    }

    /// Maximum idling for a stream in nanoseconds; shorter for a stream that seeks.
    // rule: cfq.idle-seeky, cfq.slice-idle
    pub(super) fn idle_max(&self, id: StreamId) -> u64 {
        let idle = nanos(self.params.slice_idle);
        let seeky = self.stream(id).seek.0.is_valid() && self.seeky(id);
        if seeky { idle.min(nanos(self.params.slice_idle_seeky)) } else { idle }
    }

    /// Removes the requests in `scope` from a stream. Returns whether this emptied it.
    pub(super) fn cancel(&mut self, id: StreamId, scope: Scope, removed: &mut Vec<Request>) -> bool {
        let Core { streams, nearness, head, .. } = self;
        let stream = &mut streams[id];
        let before = removed.len();
        stream.requests.cancel(scope, removed);
        if removed.len() == before {
            return false;
        }
        self.queued -= (removed.len() - before) as u32;
        let [low, high] = stream.requests.around(*head);
        let low = low.or_else(|| stream.requests.lowest());
        let high = high.or_else(|| stream.requests.lowest());
        stream.next = nearness.nearer(*head, low, high);
        stream.requests.is_empty()
    }

    /// The streams that may have requests of an owner.
    pub(super) fn streams_of(&self, owner: OwnerId) -> Vec<StreamId> {
        let own = self.owners[owner.index()].iter().flat_map(|owner| owner.streams.iter().map(|(_, id)| *id));
        own.chain(self.asyncs.iter().flatten().copied()).collect()
    }

    pub(super) fn grow(&mut self, grown: Request) -> Option<StreamId> {
        let id = self.stream_of(&grown);
        let stream = &mut self.streams[id];
        let node = stream.requests.find_part(&grown)?;
        let moved = stream.requests.grow(node, grown);
        if stream.next == Some(node) {
            stream.next = Some(moved);
        }
        Some(id)
    }

    /// Frees a stream that is not used any more.
    pub(super) fn release_if_unused(&mut self, id: StreamId) {
        let stream = self.stream(id);
        if stream.owner_left && stream.in_flight == 0 && stream.tree.is_none() && self.active != Some(id) {
            self.streams.remove(id).owner_left = false;
        }
    }

    pub(super) fn inspect(&self) -> State {
        let in_flight = u64::from(self.in_device());
        let mut state = State { queued: u64::from(self.queued), in_flight, ..State::default() };
        for request in self.streams.entries().iter().flat_map(|stream| stream.requests.iter()) {
            state.owners.entry(request.owner.0).or_default().queued += 1;
        }
        state
    }
}
