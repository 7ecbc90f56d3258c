//! A second, slow and obvious implementation of SFQ(D), compared with the fast one decision by decision.
//!
//! Every request gets its start and finish tag when it arrives, all requests are in one list, and a decision scans it.

use crate::common::plan::{Plan, for_plans, for_plans_as_found, plan};
use crate::common::twin::twin;
use crate::common::*;
use sluice_sched::params::Value;
use sluice_sched::scheduler::{Change, ChangeError, Decision, Scheduler, State};
use sluice_sched::*;

/// Virtual time: 252 * 10^9 per request at weight 0.01.
type Tag = i128;

fn over_weight(raw: u32, hundredths: Tag) -> Tag {
    let dividend = Tag::from(raw) * 252_000_000_000;
    assert_eq!(dividend % (65_536 * hundredths), 0, "the plan's numbers must give exact tags");
    dividend / 65_536 / hundredths
}

#[derive(Debug, Default)]
struct Oracle {
    depth: u64,
    /// Owner, weight in hundredths, finish tag of its last request.
    flows: Vec<(OwnerId, Tag, Tag)>,
    /// With the start tag.
    queue: Vec<(Tag, Request)>,
    v: Tag,
    in_flight: u64,
}

impl Oracle {
    fn flow(&mut self, owner: OwnerId) -> &mut (OwnerId, Tag, Tag) {
        self.flows.iter_mut().find(|flow| flow.0 == owner).expect("a known flow")
    }

    /// Tags the queued requests again, from the first one's tag.
    fn retag(&mut self, owner: OwnerId, first: Option<Tag>) {
        let Some(mut tag) = first else { return };
        let weight = self.flow(owner).1;
        for (start, request) in self.queue.iter_mut().filter(|(_, request)| request.owner == owner) {
            *start = tag;
            tag += over_weight(request.cost.raw(), weight);
        }
        self.flow(owner).2 = tag;
    }

    fn first_tag(&self, owner: OwnerId) -> Option<Tag> {
        self.queue.iter().find(|(_, request)| request.owner == owner).map(|(start, _)| *start)
    }

    fn reset_if_idle(&mut self) {
        if self.queue.is_empty() && self.in_flight == 0 {
            self.v = 0;
            self.flows.iter_mut().for_each(|flow| flow.2 = 0);
        }
    }
}

fn weight(policy: &Policy) -> Tag {
    policy.weight.map_or(1, |weight| Tag::from(weight.hundredths()))
}

impl Scheduler for Oracle {
    fn insert(&mut self, _now: Instant, request: Request) {
        let v = self.v;
        let flow = self.flow(request.owner);
        let start = v.max(flow.2);
        flow.2 = start + over_weight(request.cost.raw(), flow.1);
        self.queue.push((start, request));
    }

    fn grow(&mut self, _now: Instant, _grown: Request) -> bool {
        unreachable!("the plans do not merge")
    }

    fn dispatch(&mut self, _now: Instant) -> Decision {
        let Some((start, id)) = self.queue.iter().map(|(start, request)| (*start, request.id)).min() else {
            return Decision::Idle;
        };
        if self.in_flight >= self.depth {
            return Decision::WaitCompletion;
        }
        let place = self.queue.iter().position(|(_, request)| request.id == id).expect("just seen");
        self.v = start;
        self.in_flight += 1;
        Decision::Dispatch(self.queue.remove(place).1)
    }

    fn complete(&mut self, _now: Instant, _completion: &Completion) {
        self.in_flight -= 1;
        self.reset_if_idle();
    }

    fn configure(&mut self, _now: Instant, change: Change) -> Result<(), ChangeError> {
        match change {
            Change::AddOwner { owner, policy } => self.flows.push((owner, weight(&policy), self.v)),
            Change::SetOwner { owner, policy } => {
                let (v, first) = (self.v, self.first_tag(owner));
                let flow = self.flow(owner);
                let (old, new) = (flow.1, weight(&policy));
                flow.1 = new;
                let converted = |tag: Tag| v + (tag - v).max(0) * old / new;
                let (finish, first) = (converted(flow.2), first.map(converted));
                flow.2 = finish;
                self.retag(owner, first);
            }
            Change::RemoveOwner { owner } => self.flows.retain(|flow| flow.0 != owner),
            _ => {}
        }
        Ok(())
    }

    fn cancel(&mut self, _now: Instant, scope: Scope, removed: &mut Vec<Request>) {
        let first = self.first_tag(scope.owner());
        removed.extend(self.queue.iter().map(|(_, request)| request).filter(|request| scope.contains(request)));
        self.queue.retain(|(_, request)| !scope.contains(request));
        if self.flows.iter().any(|flow| flow.0 == scope.owner()) {
            self.retag(scope.owner(), first);
        }
        self.reset_if_idle();
    }

    fn inspect(&self, _now: Instant) -> State {
        State { queued: self.queue.len() as u64, in_flight: self.in_flight, ..State::default() }
    }
}

fn both(plan: &Plan, of_fast: i64, of_oracle: u64) -> Box<dyn Scheduler> {
    let fast = Subject::of("sfqd").with("depth", Value::Integer(of_fast)).build(&plan.info());
    twin(fast, Box::new(Oracle { depth: of_oracle, ..Oracle::default() }))
}

// rule: sfqd.tags, sfqd.dispatch, sfqd.depth, sfqd.complete, sfqd.reset, sfqd.idle-flow
#[test]
fn the_fast_scheduler_matches_the_oracle() {
    for depth in [1, 3, 32] {
        for_plans(64, plan(true), |plan| {
            let world = plan.run(both(plan, depth, depth as u64), Instant::ZERO, |_| ());
            assert!(!world.log.is_empty());
        });
    }
}

#[test]
#[should_panic(expected = "the fast one, then the oracle")]
fn another_depth_is_noticed() {
    for_plans_as_found(32, plan(true), |plan| drop(plan.run(both(plan, 1, 2), Instant::ZERO, |_| ())));
}

// rule: sfqd.weight-change
#[test]
fn a_head_that_waited_kept_the_tag_of_its_old_weight_for_seconds() {
    let sfqd = Subject::of("sfqd").with("depth", Value::Integer(0));
    let mut world = World::simple(&sfqd, 1, 1000);
    let lightest = Policy { weight: Some(Weight::MIN), ..Policy::default() };
    let vms = [lightest, Policy::default()].map(|policy| world.busy(policy, Pattern::Closed(16)));
    // The head of the first VM is 10,000 requests of the second ahead, more than 12 s at 1000 requests per second.
    world.run_until(secs(1));
    assert_eq!(world.count(vms[0], millis(10), secs(1)), 0);
    world.set(vms[0], Policy::default());
    world.run_until(millis(1100));
    let counts = world.counts(&vms, secs(1), millis(1100));
    assert!(counts[0].abs_diff(counts[1]) <= 2, "{counts:?} in the 100 ms after the change");
    // And the reverse: a request due at the old weight is not served first.
    world.set(vms[0], lightest);
    world.run_until(secs(2));
    assert!(world.count(vms[0], millis(1100), secs(2)) <= 1);
}
