//! A literal implementation of published mClock, compared with ours decision by decision.
//!
//! It follows the listing (\[mclock\] Algorithm 1): every request gets its three tags when it arrives, and a dispatch
//! by weight subtracts its cost from the reservation tags of all queued requests of its VM. All requests are in one
//! list, and a decision scans it. Ours tags only the head. The tests show that both are the same in the cases that the
//! listing covers: parameters do not change, and every request costs one.

use crate::common::plan::{ChangePlan, LENGTHS, Plan, for_plans, for_plans_as_found, plan};
use crate::common::twin::twin;
use crate::common::*;
use sluice_sched::params::Value;
use sluice_sched::scheduler::{Change, ChangeError, Decision, Scheduler, State};
use sluice_sched::*;

/// Ticks of 1/16 ns.
type Ticks = i128;
const SECOND: Ticks = 16_000_000_000;

fn ticks(at: Instant) -> Ticks {
    Ticks::from(at.as_nanos()) * 16
}

/// Time of one request at a rate in thousandths per second; `None` without a rate.
fn of_rate(rate: Option<Iops>) -> Option<Ticks> {
    rate.map(|rate| SECOND * 1000 / Ticks::from(rate.milli()))
}

/// The same for bytes.
fn of_bytes(rate: Option<ByteRate>, length: u32) -> Option<Ticks> {
    rate.map(|rate| SECOND * Ticks::from(length) / Ticks::from(rate.bytes_per_second()))
}

#[derive(Debug, Clone, Copy)]
struct Vm {
    owner: OwnerId,
    policy: Policy,
    /// Tags of its last request, after corrections.
    reservation: Option<Ticks>,
    limit: Option<Ticks>,
    share: Option<Ticks>,
    offset: Ticks,
    in_flight: u32,
    /// Share tag of the last dispatch.
    dispatched: Option<Ticks>,
    heard: Option<Instant>,
}

#[derive(Debug, Clone, Copy)]
struct Waiting {
    request: Request,
    reservation: Option<Ticks>,
    limit: Option<Ticks>,
    share: Option<Ticks>,
}

#[derive(Debug)]
struct Oracle {
    /// Whether a VM that becomes active starts at the smallest tag.
    adjusts: bool,
    /// Whether weight service is corrected in the reservation tags.
    takes_back: bool,
    vms: Vec<Vm>,
    queue: Vec<Waiting>,
    in_flight: u64,
}

/// The literal form.
const LETTER: Oracle = Oracle { adjusts: true, takes_back: true, vms: Vec::new(), queue: Vec::new(), in_flight: 0 };

impl Oracle {
    fn vm(&mut self, owner: OwnerId) -> &mut Vm {
        self.vms.iter_mut().find(|vm| vm.owner == owner).expect("a known VM")
    }

    fn head(&self, owner: OwnerId) -> Option<&Waiting> {
        self.queue.iter().find(|waiting| waiting.request.owner == owner)
    }

    fn heads(&self) -> impl Iterator<Item = (&Vm, &Waiting)> {
        self.vms.iter().filter_map(|vm| Some((vm, self.head(vm.owner)?)))
    }

    /// A VM's share tag: that of its head, or of its request in flight.
    fn stands(&self, vm: &Vm) -> Option<Ticks> {
        let share = match self.head(vm.owner) {
            Some(head) => head.share,
            None => vm.dispatched.filter(|_| vm.in_flight > 0),
        };
        share.map(|share| share + vm.offset)
    }
}

/// "RequestArrival" of the listing.
fn arrive(oracle: &mut Oracle, now: Instant, request: Request) {
    let idle = oracle.head(request.owner).is_none();
    let tracked = request.flags.contains(Flags::TRACKED);
    let smallest = oracle.vms.iter().filter(|vm| vm.owner != request.owner).filter_map(|vm| oracle.stands(vm)).min();
    let adjusts = oracle.adjusts;
    let vm = oracle.vm(request.owner);
    let known = vm.heard.is_some_and(|heard| now.since(heard) < tracker::CLIENT_IDLE);
    if idle && vm.in_flight == 0 && !known && adjusts {
        vm.offset = smallest.map_or(0, |smallest| smallest - ticks(now));
    }
    if tracked && (request.delta > 1 || vm.heard.is_some()) {
        vm.heard = Some(now);
    }
    let (rho, delta) = if tracked { (request.rho.into(), request.delta.into()) } else { (1, 1) };
    let Policy { reservation, limit, weight, idle_credit, .. } = vm.policy;
    let later =
        |previous: Option<Ticks>, step: Ticks, floor: Ticks| previous.map_or(floor, |tag| (tag + step).max(floor));
    let slower = |a: Option<Ticks>, b: Option<Ticks>, times: Ticks| a.max(b).map(|step| step * times);
    let reserved = slower(of_rate(reservation.iops), of_bytes(reservation.bytes, request.length), rho);
    vm.reservation = reserved.map(|step| later(vm.reservation, step, ticks(now)));
    let limited = slower(of_rate(limit.iops), of_bytes(limit.bytes, request.length), delta);
    vm.limit = limited.map(|step| later(vm.limit, step, ticks(now)));
    vm.share = weight.map(|weight| {
        let one = SECOND * 100 / Ticks::from(weight.hundredths());
        later(vm.share, one * delta, ticks(now) - one * Ticks::from(idle_credit))
    });
    let waiting = Waiting { request, reservation: vm.reservation, limit: vm.limit, share: vm.share };
    oracle.queue.push(waiting);
}

impl Scheduler for Oracle {
    fn insert(&mut self, now: Instant, request: Request) {
        arrive(self, now, request);
    }

    fn grow(&mut self, _now: Instant, _grown: Request) -> bool {
        unreachable!("the plans do not merge")
    }

    /// "ScheduleRequest".
    fn dispatch(&mut self, now: Instant) -> Decision {
        let at = ticks(now);
        if self.queue.is_empty() {
            return Decision::Idle;
        }
        let due =
            self.heads().filter_map(|(_, head)| Some((head.reservation.filter(|tag| *tag <= at)?, head.request.id)));
        let by_weight = || {
            self.heads()
                .filter(|(_, head)| head.limit.is_none_or(|limit| limit <= at))
                .filter_map(|(vm, head)| Some((head.share? + vm.offset, head.request.id)))
                .min()
        };
        let (id, phase) = match (due.min(), by_weight()) {
            (Some((_, id)), _) => (id, Phase::Reservation),
            (None, Some((_, id))) => (id, Phase::Weight),
            (None, None) => {
                let tags = self.heads().flat_map(|(_, head)| [head.reservation, head.share.and(head.limit)]);
                let next = tags.flatten().filter(|tag| *tag > at).min().expect("a tag in the future");
                return Decision::WaitUntil(Instant::from_nanos((next + 15).div_euclid(16) as u64));
            }
        };
        let place = self.queue.iter().position(|waiting| waiting.request.id == id).expect("just seen");
        let chosen = self.queue.remove(place);
        let owner = chosen.request.owner;
        self.in_flight += 1;
        let takes_back = self.takes_back;
        let vm = self.vm(owner);
        vm.in_flight += 1;
        vm.dispatched = chosen.share;
        if phase == Phase::Weight && takes_back {
            let Policy { reservation, .. } = vm.policy;
            let cost = of_rate(reservation.iops).max(of_bytes(reservation.bytes, chosen.request.length)).unwrap_or(0);
            vm.reservation = vm.reservation.map(|tag| tag - cost);
            for waiting in self.queue.iter_mut().filter(|waiting| waiting.request.owner == owner) {
                waiting.reservation = waiting.reservation.map(|tag| tag - cost);
            }
        }
        Decision::Dispatch(Request { phase, ..chosen.request })
    }

    fn complete(&mut self, _now: Instant, completion: &Completion) {
        self.in_flight -= 1;
        let owner = completion.request.owner;
        if let Some(vm) = self.vms.iter_mut().find(|vm| vm.owner == owner) {
            vm.in_flight = vm.in_flight.saturating_sub(1);
        }
    }

    fn configure(&mut self, _now: Instant, change: Change) -> Result<(), ChangeError> {
        match change {
            Change::AddOwner { owner, policy } => {
                let (reservation, limit, share) = (None, None, None);
                let (dispatched, heard) = (None, None);
                let vm = Vm { owner, policy, reservation, limit, share, offset: 0, in_flight: 0, dispatched, heard };
                self.vms.push(vm);
            }
            Change::RemoveOwner { owner } => self.vms.retain(|vm| vm.owner != owner),
            _ => {}
        }
        Ok(())
    }

    fn cancel(&mut self, _now: Instant, scope: Scope, removed: &mut Vec<Request>) {
        removed.extend(self.queue.iter().map(|waiting| waiting.request).filter(|request| scope.contains(request)));
        self.queue.retain(|waiting| !scope.contains(&waiting.request));
    }

    fn inspect(&self, _now: Instant) -> State {
        State { queued: self.queue.len() as u64, in_flight: self.in_flight, ..State::default() }
    }
}

/// A plan that the listing covers.
fn published(plan: &Plan) -> Plan {
    let mut plan = plan.clone();
    plan.changes.retain(|(_, change)| {
        matches!(
            change,
            ChangePlan::RemoveOwner(_) | ChangePlan::AddOwner(_) | ChangePlan::Depth(_) | ChangePlan::Stall
        )
    });
    let added = plan.changes.iter_mut().filter_map(|(_, change)| match change {
        ChangePlan::AddOwner(vm) => Some(vm),
        _ => None,
    });
    for stream in plan.vms.iter_mut().chain(added).flat_map(|vm| &mut vm.streams) {
        stream.lengths = vec![LENGTHS[0]];
        if stream.asks.0 == Kind::Flush {
            stream.asks.0 = Kind::Write;
        }
        // A report of less reservation service than this request lets tags fall behind arrivals.
        stream.remote = stream.remote.filter(|(rho, delta)| *(rho.min(delta)) > 0);
    }
    plan
}

fn hold(plan: &Plan, oracle: Oracle) {
    let plan = published(plan);
    let subject = paper().with("batch", Value::Integer(1));
    let both = twin(subject.build(&plan.info()), Box::new(oracle));
    assert!(!plan.run(both, Instant::ZERO, |_| ()).log.is_empty());
}

// rule: mclock.delayed-tagging, mclock.weight-service-reservation, mclock.paper-counts
#[test]
fn paper_mode_matches_the_listing() {
    for_plans(256, plan(true), |plan| hold(plan, LETTER));
}

#[test]
#[should_panic(expected = "the fast one, then the oracle")]
fn missing_tag_adjustment_is_noticed() {
    for_plans_as_found(64, plan(true), |plan| hold(plan, Oracle { adjusts: false, ..LETTER }));
}

#[test]
#[should_panic(expected = "the fast one, then the oracle")]
fn missing_reservation_correction_is_noticed() {
    for_plans_as_found(64, plan(true), |plan| hold(plan, Oracle { takes_back: false, ..LETTER }));
}
