//! Groups: one for each VM, ordered by virtual disk time, which advances more slowly the larger the weight.
//!
//! A group has service trees by class and workload: async, sync without idling, sync. The first group is the root. It
//! has no VM, but the async streams of all.
//!
//! Example: a charge of 100 ms at weight 200 advances virtual time as much as one of 50 ms at weight 100.

use core::time::Duration;
use std::collections::BTreeMap;

use crate::cfq::Params;
use crate::cfq::core::{Core, nanos};
use crate::cfq::service_trees::ServiceTrees;
use crate::cfq::stream::StreamId;
use crate::elevator::Ticks;
use sluice_sched::policy::{Policy, PriorityClass};
use sluice_sched::slab::Slab;
use sluice_sched::time::Instant;
use sluice_sched::units::Weight;

/// Service trees of a group: three workloads of two classes, and class idle.
const TREES: u32 = 7;
const ASYNC: u32 = 0;
const SYNC_NO_IDLE: u32 = 1;
const IDLE_TREE: u32 = 6;
pub(super) const ROOT: u32 = 0;
/// Virtual time of a nanosecond at weight 0.01; divisible by usual weights.
const VIRTUAL: u128 = 252_000_000;
/// The multiplier 1.
pub(super) const ONE: u64 = 1 << 16;

#[derive(Debug, Clone, Default)]
struct Group {
    /// In hundredths.
    weight: u64,
    /// Factor of its slices and divisor of its charges; 65,536 is 1.
    multiplier: u64,
    virtual_time: u128,
    /// Increasing number, so that later groups come after earlier ones with the same virtual time.
    entered: u64,
    waiting: bool,
    /// Streams in its trees, and how many of them are sync.
    streams: u32,
    sync: u32,
    /// Number of streams with requests, by class.
    busy: [u32; 3],
    smoothed: [u32; 3],
    /// The workload that was interrupted, and nanoseconds left for it.
    saved: Option<(u32, u64)>,
}

impl Group {
    /// Its key among the groups that wait.
    fn place(&self) -> (u128, u64) {
        (self.virtual_time, self.entered)
    }
}

// rule: cfq.c-groups
#[derive(Debug)]
pub(super) struct Groups {
    groups: Slab<Group>,
    tree: BTreeMap<(u128, u64), u32>,
    entered: u64,
    /// Sum of the weights of the groups that wait.
    weights: u64,
    /// Streams in the trees of all groups.
    streams: u64,
    least: u128,
    /// Group and workload that are served, and the end of the workload's slice.
    serving: (u32, u32, Instant),
    ticks: Ticks,
    slice_idle: u64,
    group_idle: u64,
    target: u64,
    low_latency: bool,
}

fn weight_of(policy: &Policy) -> u64 {
    policy.effective_weight().unwrap_or(Weight::MIN).hundredths()
}

fn thinks_longer(core: &Core, id: StreamId, than: u64) -> bool {
    let think = &core.stream(id).think;
    think.is_valid() && think.mean() > than
}

/// `whole` x `times` / `of`, at most the largest number: slices of a minute stated instead of microseconds overflow
/// otherwise.
fn part(whole: u64, times: u64, of: u64) -> u64 {
    u64::try_from(u128::from(whole) * u128::from(times) / u128::from(of)).unwrap_or(u64::MAX)
}

impl Groups {
    pub(super) fn new(params: &Params) -> Groups {
        // The root weighs as much as two groups without a stated weight.
        let root = Group { weight: 2 * Weight::DEFAULT.hundredths(), multiplier: ONE, ..Group::default() };
        let mut groups = Slab::default();
        assert_eq!(groups.insert(root), ROOT);
        Groups {
            groups,
            tree: BTreeMap::new(),
            entered: 0,
            weights: 0,
            streams: 0,
            least: 0,
            serving: (ROOT, 0, Instant::ZERO),
            ticks: Ticks::new(params.tick),
            slice_idle: nanos(params.slice_idle),
            group_idle: nanos(params.group_idle),
            target: nanos(params.target_latency),
            low_latency: params.low_latency,
        }
    }

    pub(super) fn add(&mut self, policy: &Policy) -> u32 {
        self.groups.insert(Group { weight: weight_of(policy), multiplier: ONE, ..Group::default() })
    }

    /// Sets the weight for charges from now on.
    pub(super) fn set(&mut self, index: u32, policy: &Policy) {
        let weight = weight_of(policy);
        let group = &mut self.groups[index];
        if group.waiting {
            self.weights = self.weights - group.weight + weight;
        }
        group.weight = weight;
    }

    pub(super) fn set_multiplier(&mut self, index: u32, multiplier: u64) {
        self.groups[index].multiplier = multiplier;
    }

    /// Removes a group without streams.
    pub(super) fn remove(&mut self, index: u32) {
        self.groups.remove(index);
    }

    pub(super) fn streams(&self, group: u32) -> u32 {
        self.groups[group].streams
    }

    /// Whether a group has only one stream with requests.
    pub(super) fn is_only(&self, group: u32) -> bool {
        self.streams(group) == 1
    }

    /// The service tree that a stream belongs to now.
    // rule: cfq.c-async-root
    pub(super) fn tree_of(&self, core: &Core, id: StreamId) -> u32 {
        let stream = core.stream(id);
        let kind = match (stream.priority.class, stream.is_sync(), stream.window) {
            (PriorityClass::Idle, _, _) => IDLE_TREE,
            (class, false, _) => class as u32 * 3 + ASYNC,
            (class, true, window) => class as u32 * 3 + SYNC_NO_IDLE + u32::from(window),
        };
        stream.group * TREES + kind
    }

    /// Inserts a stream into a tree of its group.
    // rule: cfq.c-activate
    // DEVIATION: a group that becomes backlogged is ordered right after the last group, not a fixed distance after it:
    // our weights reach a million, and no distance is small for all of them.
    pub(super) fn came(&mut self, core: &Core, id: StreamId) {
        let stream = core.stream(id);
        let index = stream.group;
        let behind = self.tree.last_key_value().map_or(self.least, |(last, _)| last.0);
        self.streams += 1;
        let group = &mut self.groups[index];
        group.streams += 1;
        group.sync += u32::from(stream.is_sync());
        group.busy[stream.priority.class as usize] += 1;
        if !group.waiting {
            group.waiting = true;
            group.virtual_time = behind;
            self.weights += group.weight;
            self.enter(index);
        }
    }

    fn enter(&mut self, index: u32) {
        self.entered += 1;
        let group = &mut self.groups[index];
        group.entered = self.entered;
        self.tree.insert(group.place(), index);
    }

    pub(super) fn went(&mut self, core: &Core, id: StreamId) {
        let stream = core.stream(id);
        let index = stream.group;
        self.streams -= 1;
        let group = &mut self.groups[index];
        group.streams -= 1;
        group.sync -= u32::from(stream.is_sync());
        // The class of a stream may change while it is in a tree, so only the sum is reliable.
        let class = stream.priority.class as usize;
        let counted = if group.busy[class] > 0 { class } else { (0..3).find(|c| group.busy[*c] > 0).unwrap_or(class) };
        group.busy[counted] = group.busy[counted].saturating_sub(1);
        if group.streams == 0 {
            group.waiting = false;
            group.saved = None;
            self.weights -= group.weight;
            let place = group.place();
            self.tree.remove(&place);
        }
    }

    /// Charges the group of a stream whose turn has ended.
    // rule: cfq.c-charge, cfq.c-iops-mode, cfq.group-bound, mcfq.t4
    pub(super) fn charge(&mut self, core: &mut Core, id: StreamId, now: Instant) {
        let stream = core.stream(id);
        let slice = stream.slice;
        let index = stream.group;
        let begun = slice.end.is_some() && slice.start < now;
        let used = match begun {
            true => now.nanos_since(slice.start).min(slice.length),
            false => now.nanos_since(slice.turn).max(self.ticks.grain()),
        };
        let group = &mut self.groups[index];
        let place = group.place();
        let charged = if self.slice_idle == 0 && core.hw_tag {
            u64::from(slice.sent) * self.ticks.unit()
        } else if !stream.is_sync() && group.sync == 0 && slice.length > 0 {
            slice.length
        } else {
            used
        };
        let weight = u128::from(group.weight) * u128::from(group.multiplier);
        group.virtual_time += u128::from(charged) * VIRTUAL * u128::from(ONE) / weight.max(1);
        let (serving, kind, until) = self.serving;
        group.saved = (serving == index && until > now).then(|| (kind, until.nanos_since(now)));
        if group.waiting {
            self.tree.remove(&place);
            self.enter(index);
        }
    }

    /// Makes the next turn choose the workload again.
    pub(super) fn forget_workload(&mut self) {
        self.groups[self.serving.0].saved = None;
    }

    /// The stream to serve next.
    // rule: cfq.c-workload
    pub(super) fn next(&mut self, core: &Core, trees: &ServiceTrees, now: Instant) -> Option<StreamId> {
        let (&(virtual_time, _), &index) = self.tree.first_key_value()?;
        self.least = self.least.max(virtual_time);
        let saved = self.groups[index].saved.take();
        let waits = |kind: u32| trees.count(index * TREES + kind) > 0;
        let class = (0..2).find(|class| (0..3).any(|kind| waits(class * 3 + kind)));
        let Some(class) = class else {
            self.serving = (index, IDLE_TREE, now + Duration::from_nanos(self.ticks.unit()));
            return trees.first(index * TREES + IDLE_TREE);
        };
        if let Some((kind, left)) = saved.filter(|(kind, left)| kind / 3 == class && waits(*kind) && *left > 0) {
            self.serving = (index, kind, now + Duration::from_nanos(left));
        } else {
            let kinds = (class * 3..class * 3 + 3).filter(|kind| waits(*kind));
            let kind = kinds.min_by_key(|kind| trees.first_key(index * TREES + kind)).expect("the class has work");
            let slice = self.workload_slice(core, trees, index, kind);
            self.serving = (index, kind, now + Duration::from_nanos(slice));
        }
        trees.first(index * TREES + self.serving.1)
    }

    /// Part of the target latency for a group. Example: with a target of 300 ms, waiting groups of weight 100, 200 and
    /// 300 get 50, 100 and 150 ms.
    // rule: cfq.c-group-slice, cfq.target-latency
    fn group_slice(&self, index: u32) -> u64 {
        let weight = self.groups[index].weight;
        let all = self.weights.max(weight).max(1);
        part(self.target, weight, all)
    }

    fn workload_slice(&mut self, core: &Core, trees: &ServiceTrees, index: u32, kind: u32) -> u64 {
        let class = (kind / 3) as usize;
        let group = &mut self.groups[index];
        let (low, high) = (group.smoothed[class].min(group.busy[class]), group.smoothed[class].max(group.busy[class]));
        group.smoothed[class] = (3 * high + low + 2) / 4;
        let of_class = u64::from(group.smoothed[class].max(group.busy[class]).max(1));
        let here = u64::from(trees.count(index * TREES + kind));
        let mut slice = part(self.group_slice(index), here, of_class);
        if kind % 3 == ASYNC {
            let asyncs = u64::from(self.groups[ROOT].streams);
            slice = slice.min(part(self.target, asyncs, self.streams.max(1)));
            slice = part(slice, nanos(core.params.slice_async), nanos(core.params.slice_sync).max(1));
        } else {
            slice = slice.max(2 * self.slice_idle);
        }
        slice.max(2 * self.ticks.unit())
    }

    /// Length of a stream's slice; shorter if many streams share the group's part. Example: slices are 100 ms, and six
    /// busy streams share 300 ms. Each gets 50 ms.
    // rule: cfq.c-queue-slice, mcfq.t4
    pub(super) fn slice(&self, core: &Core, id: StreamId) -> u64 {
        let stream = core.stream(id);
        let slice = core.base_slice(id);
        let group = &self.groups[stream.group];
        let base = nanos(core.params.slice_sync).max(1);
        let expected = base.saturating_mul(u64::from(group.smoothed[stream.priority.class as usize]));
        let share = self.group_slice(stream.group);
        let slice = if self.low_latency && expected > share {
            let low = slice.min(part(2 * self.slice_idle, slice, base));
            low.max(part(slice, share, expected))
        } else {
            slice
        };
        let (shortest, longest) = (2 * self.slice_idle, 10 * base);
        match group.multiplier {
            ONE => slice,
            // rule: mcfq.t7
            multiplier => {
                let scaled = part(slice, multiplier, ONE);
                scaled.clamp(shortest.min(longest), longest)
            }
        }
    }

    /// Whether to idle for the next request of a stream.
    // rule: cfq.c-tree-idle
    // DEVIATION: the think time of the last stream of a tree stands for that of the tree.
    pub(super) fn should_idle(&self, core: &Core, trees: &ServiceTrees, id: StreamId) -> bool {
        let stream = core.stream(id);
        if self.slice_idle == 0 || stream.is_idle_class() || !stream.is_sync() {
            return false;
        }
        let seeks = core.rotational || !core.hw_tag;
        let last = stream.tree.is_some_and(|tree| trees.count(tree) == 1);
        stream.window && seeks || last && !thinks_longer(core, id, self.slice_idle)
    }

    // rule: cfq.c-group-idle, cfq.group-idle
    pub(super) fn idles_for_group(&self, core: &Core, id: StreamId) -> bool {
        let alone = self.is_only(core.stream(id).group);
        self.group_idle > 0 && alone && !thinks_longer(core, id, self.group_idle)
    }

    // rule: cfq.c-wait-busy
    pub(super) fn should_wait_busy(&self, core: &Core, id: StreamId) -> bool {
        self.idles_for_group(core, id) && core.stream(id).is_sync()
    }

    /// Whether a stream is the only other one in the tree without idling that the active stream belongs to.
    pub(super) fn serves_seekers(&self, trees: &ServiceTrees, core: &Core, id: StreamId, active: StreamId) -> bool {
        let tree = core.stream(active).tree;
        let seekers = tree.is_some_and(|tree| tree % TREES % 3 == SYNC_NO_IDLE && tree % TREES < IDLE_TREE);
        seekers && tree == core.stream(id).tree && tree.is_some_and(|tree| trees.count(tree) == 2)
    }
}
