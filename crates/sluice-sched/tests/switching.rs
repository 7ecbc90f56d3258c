//! Replacing the scheduler while requests are queued and in flight: no request is lost or executed twice, order is kept
//! where it is guaranteed, and all owners stay.

use crate::common::plan::{Plan, for_plans, plan};
use crate::common::*;
use sluice_sched::gate::{GateSettings, Outcome};
use sluice_sched::scheduler::{Change, ChangeError, Decision, DeviceInfo, Scheduler, State};
use sluice_sched::*;

/// A plan in which the scheduler changes between the two several times, with and without merging.
fn run(plan: &Plan, pair: [&Subject; 2]) -> World {
    let info = plan.info();
    let (mut world, _) = plan.world(pair[0].build(&info), Instant::ZERO);
    for turn in 1..8usize {
        world.run_for(170 * MILLI);
        let (now, next) = (world.now, pair[turn % 2]);
        let before = (world.gate.queued(), world.gate.in_flight());
        let info = DeviceInfo { depth: world.gate.settings().depth, ..info };
        world
            .gate
            .replace_scheduler(now, next.build(&info), turn % 3 == 1)
            .expect("the scheduler accepts every policy");
        assert_eq!((world.gate.queued(), world.gate.in_flight()), before, "queued and in-flight requests stay");
        let _ = world.gate.inspect(now);
        world.pump();
    }
    world
}

fn check(plan: &Plan, pair: [&Subject; 2]) {
    let mut world = run(plan, pair);
    world.stop();
    while let Some(next) = world.next_instant() {
        world.run_until(next);
    }
    let label = format!("{} and {}", pair[0].label(), pair[1].label());
    assert_eq!((world.gate.queued(), world.gate.in_flight()), (0, 0), "{label}: all requests complete");
    for source in &world.sources {
        assert_eq!(source.finished, source.accepted, "{label}: each arrival completes once");
    }
    assert!(world.finished.iter().all(|finished| finished.outcome == Outcome::Done), "{label}");
    let accounts = world.sources.iter().filter_map(|source| world.gate.outstanding(source.owner));
    accounts.for_each(|own| assert_eq!((own.waiting, own.in_flight), (0, 0), "{label}"));
    if pair.iter().all(|subject| subject.guarantees(&plan.info()).order.keeps_volumes()) {
        for source in &world.sources {
            let of = |r: &&Record| r.request.owner == source.owner && r.request.volume == source.volume;
            let ids: Vec<RequestId> = world.log.iter().filter(of).map(|r| r.request.id).collect();
            assert!(ids.is_sorted(), "{label}: a volume is served in order");
        }
    }
}

#[test]
fn every_scheduler_can_replace_every_other() {
    let subjects = subjects();
    for first in &subjects {
        for second in &subjects {
            for_plans(1, plan(false), |plan| check(plan, [first, second]));
        }
    }
}

#[test]
fn many_plans_between_a_few() {
    let few = [product(), Subject::of("noop"), Subject::of("deadline").text("tick", "0s"), Subject::of("cfq")];
    for first in &few {
        for second in &few {
            for_plans(12, plan(false), |plan| check(plan, [first, second]));
        }
    }
}

/// Accepts all owners, but no policy with a reservation.
struct Choosy(Box<dyn Scheduler>);

impl Scheduler for Choosy {
    fn insert(&mut self, now: Instant, request: Request) {
        self.0.insert(now, request);
    }

    fn grow(&mut self, now: Instant, grown: Request) -> bool {
        self.0.grow(now, grown)
    }

    fn dispatch(&mut self, now: Instant) -> Decision {
        self.0.dispatch(now)
    }

    fn complete(&mut self, now: Instant, completion: &Completion) {
        self.0.complete(now, completion);
    }

    fn configure(&mut self, now: Instant, change: Change) -> Result<(), ChangeError> {
        match change {
            Change::AddOwner { policy, .. } if policy.is_reserved() => Err(ChangeError::Full("no reservations")),
            change => self.0.configure(now, change),
        }
    }

    fn cancel(&mut self, now: Instant, scope: Scope, removed: &mut Vec<Request>) {
        self.0.cancel(now, scope, removed);
    }

    fn inspect(&self, now: Instant) -> State {
        self.0.inspect(now)
    }

    fn standing(&self, now: Instant, scope: Scope) -> Standing {
        self.0.standing(now, scope)
    }

    fn resume(&mut self, now: Instant, scope: Scope, standing: &Standing) {
        self.0.resume(now, scope, standing);
    }
}

#[test]
fn a_refusal_changes_nothing() {
    let mut world = World::simple(&product(), 2, 100);
    let [plain, reserved] = [Policy::weighted(3), Policy::weighted(1).reserving(10)];
    let vms = [world.busy(plain, Pattern::Closed(8)), world.busy(reserved, Pattern::Closed(8))];
    world.run_until(secs(1));
    let before = world.gate.inspect(world.now);
    let choosy = |_: ()| Box::new(Choosy(Subject::of("noop").build(&DeviceInfo::default())));
    let refused = world.gate.replace_scheduler(world.now, choosy(()), true);
    assert_eq!(refused, Err(ChangeError::Full("no reservations")));
    assert_eq!(world.gate.inspect(world.now), before);
    assert!(!world.gate.settings().merging);
    world.run_until(secs(2));
    assert!(world.counts(&vms, secs(1), secs(2)).iter().all(|count| *count > 20), "both are still served");
    world.set(vms[1], plain);
    assert_eq!(world.gate.replace_scheduler(world.now, choosy(()), false), Ok(()));
}

/// The new scheduler keeps the guarantees of the policies.
#[test]
fn guarantees_follow_the_scheduler() {
    let settings = GateSettings { depth: 4, cost: CostModel::per_request(), ..GateSettings::default() };
    let noop = Subject::of("noop");
    let info = DeviceInfo { depth: 4, ..DeviceInfo::default() };
    let mut world = World::new(noop.build(&info), settings, Stub::serial(MILLI));
    let limited = world.busy(Policy::weighted(1).limited(100), Pattern::Closed(16));
    let heavy = world.busy(Policy::weighted(3), Pattern::Closed(16));
    let light = world.busy(Policy::weighted(1), Pattern::Closed(16));
    let vms = [limited, heavy, light];
    world.run_until(secs(5));
    let of = |world: &World, second: u64| world.rates(&vms, secs(second), secs(second + 4));
    analysis::assert_close("noop", &of(&world, 1), &[333.3; 3], 0.02);
    world.gate.replace_scheduler(world.now, product().build(&info), false).unwrap();
    world.pump();
    world.run_until(secs(10));
    analysis::assert_close("mclock", &of(&world, 6), &[100.0, 675.0, 225.0], 0.02);
    world.gate.replace_scheduler(world.now, noop.build(&info), false).unwrap();
    world.pump();
    world.run_until(secs(15));
    analysis::assert_close("noop again", &of(&world, 11), &[333.3; 3], 0.02);
}
