//! Random runs: VMs, volumes, traffic, a device and events, as plain data that can be shrunk.
//!
//! Everything is on a grid of 1 ms. Costs are exactly 1, 4, 16 or 64, and every rate is a product of powers of 2 and 5.
//! So tags are exact, and an oracle can be compared decision by decision.

use std::time::Duration;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use sluice_sched::gate::GateSettings;
use sluice_sched::policy::{Class, PriorityClass, TimedBurst};
use sluice_sched::scheduler::{DeviceClass, DeviceInfo, Scheduler};
use sluice_sched::{
    ByteRate, Bytes, CostModel, Flags, Instant, Iops, Kind, LatencyTarget, Limit, OwnerId, Policy, Reservation, Scope,
    VolumeId, Weight,
};

use super::{MILLI, Order, Pattern, Places, Service, Source, Stub, World};

/// Lengths that cost 1, 4, 16 and 64 under [`cost_model`].
pub const LENGTHS: [u32; 4] = [4096, 28_672, 126_976, 520_192];

pub fn cost_model() -> CostModel {
    CostModel { reference: Some(Bytes(4096)), knee: Bytes(4096), ..CostModel::default() }
}

#[derive(Debug, Clone)]
pub struct Plan {
    pub depth: u32,
    /// Whether the scheduler sees a device with a head that seeks.
    pub rotational: bool,
    pub batch: u32,
    pub device: DevicePlan,
    pub vms: Vec<VmPlan>,
    pub changes: Vec<(u64, ChangePlan)>,
    pub millis: u64,
}

#[derive(Debug, Clone, Copy)]
pub struct DevicePlan {
    pub servers: u32,
    pub order: Order,
    /// The first VM's requests take 100 times longer.
    pub one_slow: bool,
}

#[derive(Debug, Clone)]
pub struct VmPlan {
    pub policy: Policy,
    pub volumes: Vec<Policy>,
    pub streams: Vec<StreamPlan>,
}

#[derive(Debug, Clone)]
pub struct StreamPlan {
    pub volume: usize,
    pub traffic: Traffic,
    pub places: Places,
    pub asks: Asks,
    pub lengths: Vec<u32>,
    pub remote: Option<(u32, u32)>,
}

/// Kind and flags of a stream's requests.
pub type Asks = (Kind, Flags);

#[derive(Debug, Clone, Copy)]
pub enum Traffic {
    Steady(Pattern),
    /// This number of requests at one instant, and no more.
    Burst(u32),
}

#[derive(Debug, Clone)]
pub enum ChangePlan {
    SetOwner(usize, Policy),
    SetVolume(usize, usize, Policy),
    Cancel(usize),
    CancelVolume(usize, usize),
    RemoveOwner(usize),
    RemoveVolume(usize, usize),
    AddOwner(VmPlan),
    Depth(u32),
    Stall,
}

/// Runs `check` on `cases` fixed plans, and shrinks one that fails.
pub fn for_plans<S: Strategy<Value = Plan>>(cases: u32, plans: S, check: impl Fn(&Plan)) {
    run_plans(cases, 400, plans, check);
}

/// The same for a control that must fail: without shrinking, since the plan is not shown.
pub fn for_plans_as_found<S: Strategy<Value = Plan>>(cases: u32, plans: S, check: impl Fn(&Plan)) {
    run_plans(cases, 0, plans, check);
}

fn run_plans<S: Strategy<Value = Plan>>(cases: u32, max_shrink_iters: u32, plans: S, check: impl Fn(&Plan)) {
    let config = Config { cases, failure_persistence: None, max_shrink_iters, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &[28; 32]));
    let outcome = runner.run(&plans, |plan| {
        check(&plan);
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
}

const RATES: [u64; 6] = [20, 40, 100, 200, 400, 1000];
const BYTE_RATES: [u64; 4] = [1 << 19, 1 << 20, 1 << 22, 1_000_000];

fn iops(rates: impl Into<std::borrow::Cow<'static, [u64]>>) -> impl Strategy<Value = Option<Iops>> {
    option::weighted(0.4, select(rates).prop_map(Iops::per_second))
}

fn byte_rate() -> impl Strategy<Value = Option<ByteRate>> {
    option::weighted(0.2, select(&BYTE_RATES[..]).prop_map(ByteRate::per_second))
}

fn weight() -> impl Strategy<Value = Option<Weight>> {
    option::weighted(0.9, select(&[1u32, 2, 4, 5, 10, 100, 1000][..]).prop_map(Weight::new))
}

fn stated_burst() -> impl Strategy<Value = Option<u32>> {
    option::weighted(0.5, select(&[1u32, 2, 5, 20][..]))
}

/// Repairs a policy that contradicts itself.
fn repaired(mut policy: Policy) -> Policy {
    let reservation = &mut policy.reservation;
    if policy.weight.is_none() && reservation.iops.is_none() && reservation.bytes.is_none() {
        reservation.iops = Some(Iops::per_second(20));
    }
    policy.limit.iops = policy.limit.iops.max(reservation.iops.filter(|_| policy.limit.iops.is_some()));
    policy.limit.bytes = policy.limit.bytes.max(reservation.bytes.filter(|_| policy.limit.bytes.is_some()));
    policy
}

pub fn policy() -> impl Strategy<Value = Policy> {
    let credit = select(&[0u32, 1, 8, 256][..]);
    let rates = (iops(&RATES[..4]), byte_rate(), iops(&RATES[..]), byte_rate());
    (rates, weight(), stated_burst(), credit).prop_map(|(rates, weight, burst, idle_credit)| {
        let (reserved, reserved_bytes, limit, limit_bytes) = rates;
        let reservation = Reservation { iops: reserved, bytes: reserved_bytes };
        let limit = Limit { iops: limit, bytes: limit_bytes };
        repaired(Policy { reservation, limit, weight, burst, idle_credit, ..Policy::default() })
    })
}

/// A policy inside a VM with policy `outer`: a quarter of its reservation, or none.
fn inner_policy(outer: Policy, stated: Policy, reserves: bool) -> Policy {
    let quarter = outer.reservation.iops.map(|iops| Iops::from_milli(iops.milli() / 4)).filter(|_| reserves);
    let bytes =
        outer.reservation.bytes.map(|rate| ByteRate::per_second(rate.bytes_per_second() / 4)).filter(|_| reserves);
    let reservation = Reservation { iops: quarter, bytes };
    let weight = stated.weight.or(Some(Weight::DEFAULT).filter(|_| quarter.is_none() && bytes.is_none()));
    repaired(Policy { reservation, weight, ..stated })
}

fn volumes(outer: Policy) -> impl Strategy<Value = Vec<Policy>> {
    let plain = Just(vec![Policy::default()]);
    let stated = vec((policy(), any::<bool>(), any::<bool>()), 1..4).prop_map(move |volumes| {
        let inner = |(stated, reserves, default)| {
            if default { Policy::default() } else { inner_policy(outer, stated, reserves) }
        };
        volumes.into_iter().map(inner).collect::<Vec<Policy>>()
    });
    prop_oneof![plain, stated]
}

fn traffic() -> impl Strategy<Value = Traffic> {
    let on_off = (1u32..16, 20u64..300, 1000u64..1400).prop_map(|(outstanding, on, off)| {
        Traffic::Steady(Pattern::OnOff { outstanding, on: on * MILLI, off: off * MILLI })
    });
    prop_oneof![
        1 => (0u64..13).prop_map(|think| Traffic::Steady(Pattern::Think(think * MILLI))),
        4 => (1u32..24).prop_map(|outstanding| Traffic::Steady(Pattern::Closed(outstanding))),
        2 => (1u64..40).prop_map(|every| Traffic::Steady(Pattern::Open(every * MILLI))),
        1 => on_off,
        2 => (1u32..60).prop_map(Traffic::Burst),
    ]
}

/// Reads, and many writes, of which every other one is sync.
fn asks() -> impl Strategy<Value = Asks> {
    prop_oneof![
        5 => Just((Kind::Read, Flags::NONE)),
        2 => Just((Kind::Write, Flags::NONE)),
        2 => Just((Kind::Write, Flags::SYNC)),
        1 => select(vec![(Kind::Flush, Flags::SYNC), (Kind::Discard, Flags::NONE), (Kind::WriteZeroes, Flags::SYNC), (Kind::Read, Flags::BACKGROUND)]),
    ]
}

fn stream(volumes: usize) -> impl Strategy<Value = StreamPlan> {
    let places = select(vec![Places::Equal, Places::Contiguous, Places::Random]);
    let counted = option::weighted(0.2, (0u32..4, 0u32..6));
    let what = (places, asks());
    (0..volumes, traffic(), what, vec(select(LENGTHS.to_vec()), 1..4), counted).prop_map(
        |(volume, traffic, (places, asks), lengths, remote)| {
            let lengths = if asks.0 == Kind::Flush { vec![0] } else { lengths };
            StreamPlan { volume, traffic, places, asks, lengths, remote }
        },
    )
}

pub fn vm() -> impl Strategy<Value = VmPlan> {
    policy().prop_flat_map(|policy| {
        volumes(policy).prop_flat_map(move |volumes| {
            let streams = vec(stream(volumes.len()), 1..3);
            (Just(volumes), streams).prop_map(move |(volumes, streams)| VmPlan { policy, volumes, streams })
        })
    })
}

/// Changes during a run; `leaving` says whether owners and volumes are added and removed.
fn change(leaving: bool) -> impl Strategy<Value = ChangePlan> {
    let depth = select(&[1u32, 2, 4, 8, 32][..]);
    let own = prop_oneof![
        4 => (0usize..8, policy()).prop_map(|(vm, policy)| ChangePlan::SetOwner(vm, policy)),
        2 => (0usize..8, 0usize..3, policy()).prop_map(|(vm, volume, policy)| ChangePlan::SetVolume(vm, volume, policy)),
        2 => (0usize..8).prop_map(ChangePlan::Cancel),
        1 => (0usize..8, 0usize..3).prop_map(|(vm, volume)| ChangePlan::CancelVolume(vm, volume)),
        1 => depth.prop_map(ChangePlan::Depth),
        1 => Just(ChangePlan::Stall),
    ];
    let coming_and_going = prop_oneof![
        2 => (0usize..8).prop_map(ChangePlan::RemoveOwner),
        1 => (0usize..8, 0usize..3).prop_map(|(vm, volume)| ChangePlan::RemoveVolume(vm, volume)),
        2 => vm().prop_map(ChangePlan::AddOwner),
    ];
    if leaving { prop_oneof![2 => own, 1 => coming_and_going].boxed() } else { own.boxed() }
}

pub fn plan(leaving: bool) -> impl Strategy<Value = Plan> {
    let depth = select(&[1u32, 2, 4, 8, 32][..]);
    let order = select(vec![Order::Fifo, Order::Lifo, Order::Random]);
    let device = (select(&[1u32, 2, 4, 32][..]), order, prop::bool::weighted(0.15), any::<bool>());
    let changes = vec((0u64..2500, change(leaving)), 0..8);
    (depth, select(&[1u32, 3, 8][..]), device, vec(vm(), 1..8), changes).prop_map(
        |(depth, batch, (servers, order, one_slow, rotational), vms, mut changes)| {
            changes.sort_by_key(|(at, _)| *at);
            let device = DevicePlan { servers, order, one_slow };
            Plan { depth, rotational, batch, device, vms, changes, millis: 2500 }
        },
    )
}

/// Latency targets of 10 to 200 ms, occasional background work, and priorities, derived from other fields of a policy.
fn flavour(policy: &mut Policy) {
    let hundredths = policy.weight.map_or(0, |weight| weight.hundredths());
    let millis = match hundredths {
        0..=200 => 10,
        201..=1000 => 60,
        1001..=20_000 => 80,
        _ => 200,
    };
    let p99 = Duration::from_millis(millis);
    policy.latency = (policy.burst != Some(5)).then_some(LatencyTarget { p99, reads_only: false });
    policy.class = if policy.idle_credit == 8 { Class::Background } else { Class::Foreground };
    policy.priority_class = match policy.burst {
        Some(2) => PriorityClass::RealTime,
        Some(20) => PriorityClass::Idle,
        _ => PriorityClass::BestEffort,
    };
    policy.priority_level = (hundredths / 100 % 8) as u8;
}

/// Limits of reads and of writes and bursts for a time, derived from other fields of a policy.
fn directed(policy: &mut Policy) {
    let hundredths = policy.weight.map_or(0, |weight| weight.hundredths());
    let kibs = |kib: u64| Limit { iops: None, bytes: Some(ByteRate::per_second(kib << 10)) };
    let requests = |iops: u64| Limit { iops: Some(Iops::per_second(iops)), bytes: None };
    (policy.read_limit, policy.write_limit) = match (policy.idle_credit, hundredths) {
        (0, _) => (Limit::default(), Limit::default()),
        (1, 0..=1000) => (Limit::default(), requests(20)),
        (1, _) => (Limit::default(), kibs(1024)),
        (8, _) => (requests(400), requests(40)),
        (_, 0..=1000) => (kibs(512), Limit { bytes: Some(ByteRate::per_second(1 << 22)), ..requests(100) }),
        _ => (requests(100), Limit::default()),
    };
    let all = [policy.limit, policy.read_limit, policy.write_limit];
    let rate = Limit {
        iops: Some(Iops::per_second(2000)).filter(|_| all.iter().any(|limit| limit.iops.is_some())),
        bytes: Some(ByteRate::per_second(1 << 23)).filter(|_| all.iter().any(|limit| limit.bytes.is_some())),
    };
    let burst = TimedBurst { rate, length: Duration::from_millis(hundredths % 7 * 20) };
    policy.timed_burst = (policy.burst == Some(5) && rate.is_set()).then_some(burst);
    if policy.check().is_err() {
        (policy.read_limit, policy.timed_burst) = (Limit::default(), None);
    }
}

impl Plan {
    /// The plan with limits of reads and of writes, and bursts for a time.
    pub fn directed(&self) -> Plan {
        let mut plan = self.clone();
        let of_volumes = plan.changes.iter_mut().filter_map(|(_, change)| match change {
            ChangePlan::SetVolume(_, _, policy) => Some(policy),
            _ => None,
        });
        of_volumes.for_each(directed);
        plan.vms.iter_mut().flat_map(|vm| &mut vm.volumes).for_each(directed);
        plan.policies().for_each(directed);
        plan
    }

    /// The plan with classes, priorities and latency targets.
    pub fn flavoured(&self) -> Plan {
        let mut plan = self.clone();
        plan.policies().for_each(flavour);
        plan
    }

    /// All policies of VMs in the plan.
    fn policies(&mut self) -> impl Iterator<Item = &mut Policy> {
        let changed = self.changes.iter_mut().filter_map(|(_, change)| match change {
            ChangePlan::SetOwner(_, policy) => Some(policy),
            ChangePlan::AddOwner(vm) => Some(&mut vm.policy),
            _ => None,
        });
        self.vms.iter_mut().map(|vm| &mut vm.policy).chain(changed)
    }

    /// Whether any VM is, or becomes, background work or of class idle.
    pub fn has_idle(&self) -> bool {
        let idle =
            |policy: &mut Policy| policy.class == Class::Background || policy.priority_class == PriorityClass::Idle;
        self.clone().policies().any(idle)
    }

    /// The longest latency target, in milliseconds.
    pub fn latency_max(&self) -> u64 {
        let millis = |policy: &mut Policy| policy.latency.map_or(0, |latency| latency.p99.as_millis() as u64);
        self.clone().policies().map(millis).max().unwrap_or(0)
    }

    pub fn info(&self) -> DeviceInfo {
        let (cost, piece_max, request_bytes) = (cost_model(), Bytes::mib(1), Bytes(6144));
        let device_class = DeviceClass::Disk;
        DeviceInfo { depth: self.depth, rotational: self.rotational, cost, piece_max, request_bytes, device_class }
    }

    /// A gate with these VMs, at `start`.
    pub fn world(&self, scheduler: Box<dyn Scheduler>, start: Instant) -> (World, Vec<OwnerId>) {
        let settings = GateSettings {
            depth: self.depth,
            transfer_max: Bytes::mib(1),
            cost: cost_model(),
            ..GateSettings::default()
        };
        let servers = self.device.servers;
        let service = Service::Fixed(u64::from(servers) * MILLI);
        let mut world = World::new(scheduler, settings, Stub::new(servers as usize, self.device.order, service));
        world.now = start;
        let mut vms = Vec::new();
        for vm in &self.vms {
            vms.push(add(&mut world, vm));
        }
        if self.device.one_slow {
            world.device.slow = Some((vms[0], 100));
        }
        (world, vms)
    }

    /// Runs the whole plan; `each` sees the world after every change.
    pub fn run(&self, scheduler: Box<dyn Scheduler>, start: Instant, mut each: impl FnMut(&World)) -> World {
        let (mut world, mut vms) = self.world(scheduler, start);
        for (at, change) in &self.changes {
            world.run_until(start + core::time::Duration::from_millis(*at));
            apply(&mut world, &mut vms, change);
            world.pump();
            each(&world);
        }
        world.run_until(start + core::time::Duration::from_millis(self.millis));
        world
    }
}

fn add(world: &mut World, vm: &VmPlan) -> OwnerId {
    let owner = world.gate.add_owner(world.now, vm.policy).expect("a repaired policy");
    let volumes: Vec<VolumeId> = vm.volumes.iter().map(|policy| world.volume(owner, *policy)).collect();
    for stream in &vm.streams {
        let (pattern, burst) = match stream.traffic {
            Traffic::Steady(pattern) => (pattern, 0),
            Traffic::Burst(requests) => (Pattern::Manual, requests),
        };
        let (kind, flags) = stream.asks;
        let mut source = Source::new(owner, volumes[stream.volume], pattern).places(stream.places).kind(kind);
        (source.lengths, source.flags) = (stream.lengths.clone(), flags);
        if let Some((rho, delta)) = stream.remote {
            source = source.remote(rho.min(delta), delta);
        }
        let index = world.source(source);
        for _ in 0..burst {
            world.ask(index);
        }
        world.pump();
    }
    owner
}

/// The gate rejects what is impossible (a removed VM, volumes that reserve too much), and it is skipped.
fn apply(world: &mut World, vms: &mut Vec<OwnerId>, change: &ChangePlan) {
    let count = vms.len().max(1);
    let vm = |index: &usize| vms.get(index % count).copied();
    let volume = |index: &usize| VolumeId(*index as u16);
    match change {
        ChangePlan::SetOwner(index, policy) => {
            let Some(owner) = vm(index) else { return };
            let _ = world.gate.set_owner(world.now, owner, *policy);
        }
        ChangePlan::SetVolume(index, inner, policy) => {
            let Some(owner) = vm(index) else { return };
            let outer = *world.gate.policy(owner).expect("a VM of the plan");
            let _ = world.gate.set_volume(world.now, owner, volume(inner), inner_policy(outer, *policy, true));
        }
        ChangePlan::Cancel(index) => {
            let Some(owner) = vm(index) else { return };
            world.cancel(Scope::Owner(owner));
        }
        ChangePlan::CancelVolume(index, inner) => {
            let Some(owner) = vm(index) else { return };
            world.cancel(Scope::Volume(owner, volume(inner)));
        }
        ChangePlan::RemoveOwner(index) => {
            let Some(owner) = vm(index) else { return };
            world.remove_owner(owner);
            vms.retain(|known| *known != owner);
        }
        ChangePlan::RemoveVolume(index, inner) => {
            let Some(owner) = vm(index) else { return };
            let streams = world.sources.iter().any(|s| s.owner == owner && s.volume == volume(inner));
            if streams && world.sources.iter().any(|s| s.owner == owner && s.volume != volume(inner)) {
                world.remove_volume(owner, volume(inner));
            }
        }
        ChangePlan::AddOwner(plan) => vms.push(add(world, plan)),
        ChangePlan::Depth(depth) => {
            let now = world.now;
            world.gate.set_device(now, *depth, world.gate.settings().request_bytes).expect("any depth will do");
        }
        ChangePlan::Stall => world.device.stalled_until = world.after(1000 * MILLI),
    }
}
