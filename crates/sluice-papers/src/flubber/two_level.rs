//! The two levels together: credits admit requests, deadlines and addresses choose among them.
//!
//! A [`Rule`] selects the next request: batch and delay (Flubber), or the earliest deadline (its baseline).

use core::time::Duration;

use sluice_sched::policy::Policy;
use sluice_sched::request::{Completion, Flags, OwnerId, Request, Wait};
use sluice_sched::scheduler::{Change, ChangeError, Decision, OwnerState, Scheduler, Scope, State};
use sluice_sched::time::Instant;

use super::credits::Credits;
use super::queues::{Queues, has_address};

/// Start of the time to the deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Start {
    /// When the credits admit the request.
    Entry,
    /// Its arrival: a request that has waited for credits is then urgent.
    Arrival,
}

/// Latency targets, and what is subtracted from them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Targets {
    /// L of a VM without a latency target.
    pub(crate) latency: Duration,
    /// M.
    pub(crate) seek_max: Duration,
    pub(crate) start: Start,
    /// Time for which the deadline queue must have been empty for a replenishment.
    pub(crate) grace: Duration,
}

/// When background work is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Background {
    /// When no VM's request is queued.
    WhenEmpty,
    /// Within this target, or when no VM's request is queued.
    Within(Duration),
    /// Within the largest target of the VMs.
    WithinLargest,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct BatchAndDelay {
    /// Transfer time of the largest request.
    pub(crate) transfer: Duration,
    /// Maximum idling since the device became idle; `None`: until the head is due.
    pub(crate) wait_max: Option<Duration>,
}

/// Selection of the next request.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Rule {
    Earliest,
    BatchAndDelay(BatchAndDelay),
}

/// The last dispatched request.
#[derive(Debug, Clone, Copy, Default)]
struct Last {
    /// Its VM, if it was the head.
    vm: Option<OwnerId>,
    /// The first byte after it.
    end: Option<u64>,
}

/// The rule by which a request was chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Choice {
    Head(u32),
    Contiguous(u32),
    Background(u32),
    Wait(Instant),
}

#[derive(Debug)]
pub(crate) struct TwoLevel {
    credits: Credits,
    queues: Queues,
    targets: Targets,
    rule: Rule,
    background: Background,
    /// Latency targets of the VMs, by owner.
    latencies: Vec<Option<Duration>>,
    /// The largest of them; unknown after a change.
    largest: Option<Duration>,
    in_flight: u64,
    last: Last,
    /// When the deadline queue became empty, and when the last request in flight completed.
    empty_since: Instant,
    idle_since: Option<Instant>,
}

impl TwoLevel {
    pub(crate) fn new(credits: Credits, queues: Queues, targets: Targets, rule: Rule, background: Background) -> Self {
        TwoLevel {
            credits,
            queues,
            targets,
            rule,
            background,
            latencies: Vec::new(),
            largest: None,
            in_flight: 0,
            last: Last::default(),
            empty_since: Instant::ZERO,
            idle_since: None,
        }
    }

    /// L - M, at least 0.
    // rule: flubber.deadline, flubber.deadline-clamp
    fn slack(&self, latency: Duration) -> Duration {
        latency.saturating_sub(self.targets.seek_max)
    }

    fn start(&self, now: Instant, request: &Request) -> Instant {
        // rule: flubber.start-time
        if self.targets.start == Start::Arrival { request.arrival } else { now }
    }

    fn enter(&mut self, now: Instant, request: Request) {
        let start = self.start(now, &request);
        let waited = if now > request.arrival { Wait::Share } else { Wait::None };
        self.queues.enter(Request { wait: waited, ..request }, start);
    }

    fn enter_background(&mut self, now: Instant, request: Request) {
        self.queues.enter_background(request, self.start(now, &request));
    }

    /// Whether the deadline queue has been empty for long enough.
    fn may_replenish(&self, now: Instant) -> bool {
        self.queues.of_vms() == 0 && now >= self.empty_since + self.targets.grace
    }

    /// Admits requests that have credits, and replenishes as often as there is a reason.
    fn replenish(&mut self, now: Instant) {
        loop {
            while let Some(request) = self.credits.next_in_turn() {
                self.enter(now, request);
            }
            // rule: flubber.e1, flubber.e2
            // DEVIATION [flubber] III.B, event 2: "all VMs hardly send pending requests and pending queues are empty".
            // If that means the queues of the VMs, an idle VM with credits left blocks all others for good. If it means
            // the queue of deadlines, it serves its purpose: no request waits while the disk has spare bandwidth.
            let starved = self.credits.any_waiting() && self.may_replenish(now);
            if !self.credits.used_up() && !starved {
                return;
            }
            self.credits.refill();
        }
    }

    fn set_latency(&mut self, owner: OwnerId, policy: &Policy) {
        let latency = policy.latency.map_or(self.targets.latency, |target| target.p99);
        if owner.index() >= self.latencies.len() {
            self.latencies.resize(owner.index() + 1, None);
        }
        let old = self.latencies[owner.index()].replace(latency);
        // A larger target is known immediately; one that was removed may have been the largest.
        self.largest = self.largest.filter(|_| old.is_none()).map(|largest| largest.max(latency));
        self.queues.set_slack(owner, self.slack(latency));
    }

    /// Latency target of background work.
    // rule: edf-credit.background-deadline, flubber.f12
    fn background_latency(&mut self) -> Option<Duration> {
        match self.background {
            Background::WhenEmpty => None,
            Background::Within(latency) => Some(latency),
            Background::WithinLargest => {
                let (latencies, default) = (&self.latencies, self.targets.latency);
                let largest = || latencies.iter().flatten().max().copied().unwrap_or(default);
                Some(*self.largest.get_or_insert_with(largest))
            }
        }
    }

    fn background_deadline(&mut self) -> Option<(Instant, u32)> {
        let (start, slot) = self.queues.first_background()?;
        let latency = self.background_latency()?;
        Some((start + self.slack(latency), slot))
    }

    fn choose(&mut self, now: Instant) -> Option<Choice> {
        let Some((deadline, head)) = self.queues.earliest() else {
            // rule: flubber.background-when-empty, flubber.f11
            return self.queues.first_background().map(|(_, slot)| Choice::Background(slot));
        };
        let background = self.background_deadline();
        match self.rule {
            // rule: edf-credit.pure-edf
            Rule::Earliest => Some(match background {
                Some((due, slot)) if (due, self.queues.order(slot)) < (deadline, self.queues.order(head)) => {
                    Choice::Background(slot)
                }
                _ => Choice::Head(head),
            }),
            Rule::BatchAndDelay(rule) => Some(match background {
                Some((due, slot)) if due <= now && due < deadline => Choice::Background(slot),
                _ => match (self.batch_or_delay(now, rule, deadline, head), background) {
                    (Choice::Wait(until), Some((due, _))) => Choice::Wait(until.min(due)),
                    (choice, _) => choice,
                },
            }),
        }
    }

    /// [flubber] Algorithm 2.
    fn batch_or_delay(&self, now: Instant, rule: BatchAndDelay, deadline: Instant, head: u32) -> Choice {
        // rule: flubber.head-expired, flubber.head-same-vm, flubber.f6
        if deadline <= now || self.last.vm == Some(self.queues.owner(head)) {
            return Choice::Head(head);
        }
        // rule: flubber.contiguous, flubber.f4, flubber.f7, flubber.wait-contiguous, flubber.f8
        // This also covers the "future request" of the listing: every arrival while idling makes a new choice.
        let Some(end) = self.last.end else { return Choice::Head(head) };
        if let Some(next) = self.queues.at_address(end) {
            return Choice::Contiguous(next);
        }
        // rule: flubber.wait, flubber.f1, flubber.f2, flubber.f3
        let until = Instant::from_nanos(deadline.as_nanos().saturating_sub(rule.transfer.as_nanos() as u64));
        let until = match rule.wait_max {
            // rule: flubber.f9
            // DEVIATION [flubber] III.D: a disk that idles until the head is due loses half of its time.
            Some(Duration::ZERO) => now,
            Some(wait_max) if self.in_flight == 0 => self.idle_since.map_or(now, |since| until.min(since + wait_max)),
            // rule: flubber.f10
            // With requests in flight the disk does not idle, and each completion makes a new choice.
            _ => until,
        };
        if until <= now { Choice::Head(head) } else { Choice::Wait(until) }
    }

    fn dispatch_from(&mut self, now: Instant, slot: u32, vm: Option<OwnerId>) -> Decision {
        let request = self.queues.take(slot);
        if self.queues.of_vms() == 0 {
            self.empty_since = now;
        }
        // rule: flubber.end-address, flubber.f5
        self.last.vm = vm;
        if has_address(&request) {
            self.last.end = Some(request.end());
        }
        self.in_flight += 1;
        Decision::Dispatch(request)
    }

    fn configure_owner(&mut self, now: Instant, owner: OwnerId, policy: &Policy) {
        self.set_latency(owner, policy);
        if self.credits.is_background(owner) {
            let mut waiting = Vec::new();
            self.credits.take_if(owner, &mut waiting, |_| true);
            waiting.into_iter().for_each(|request| self.enter_background(now, request));
        }
        // rule: flubber.e3
        self.credits.refill();
        self.replenish(now);
    }

    fn queued(&self) -> u64 {
        self.credits.len() + self.queues.of_vms() + self.queues.of_background()
    }
}

impl Scheduler for TwoLevel {
    fn insert(&mut self, now: Instant, request: Request) {
        let owner = request.owner;
        // rule: flubber.background-bypasses
        if request.flags.contains(Flags::BACKGROUND) || self.credits.is_background(owner) {
            return self.enter_background(now, request);
        }
        if self.may_replenish(now) {
            self.credits.refill();
            self.replenish(now);
        }
        if let Some(passes) = self.credits.arrive(request) {
            self.enter(now, passes);
        }
        self.replenish(now);
    }

    fn grow(&mut self, _now: Instant, grown: Request) -> bool {
        self.queues.grow(grown) || self.credits.grow(grown)
    }

    fn dispatch(&mut self, now: Instant) -> Decision {
        self.replenish(now);
        match self.choose(now) {
            Some(Choice::Head(slot)) => self.dispatch_from(now, slot, Some(self.queues.owner(slot))),
            Some(Choice::Contiguous(slot) | Choice::Background(slot)) => self.dispatch_from(now, slot, None),
            Some(Choice::Wait(until)) => Decision::WaitUntil(until),
            None if self.credits.any_waiting() => Decision::WaitUntil(self.empty_since + self.targets.grace),
            None => Decision::Idle,
        }
    }

    fn complete(&mut self, now: Instant, _completion: &Completion) {
        self.in_flight -= 1;
        if self.in_flight == 0 {
            self.idle_since = Some(now);
        }
    }

    fn configure(&mut self, now: Instant, change: Change) -> Result<(), ChangeError> {
        match change {
            Change::AddOwner { owner, policy } => {
                self.credits.add(owner, &policy);
                self.configure_owner(now, owner, &policy);
            }
            Change::SetOwner { owner, policy } => {
                self.credits.set(owner, &policy);
                self.configure_owner(now, owner, &policy);
            }
            Change::RemoveOwner { owner } => {
                self.credits.remove(owner);
                self.latencies[owner.index()] = None;
                self.largest = None;
                self.last.vm = self.last.vm.filter(|last| *last != owner);
                self.credits.refill();
                self.replenish(now);
            }
            Change::AddVolume { .. }
            | Change::SetVolume { .. }
            | Change::RemoveVolume { .. }
            | Change::Device { .. } => {}
        }
        Ok(())
    }

    fn cancel(&mut self, now: Instant, scope: Scope, removed: &mut Vec<Request>) {
        let of_vms = self.queues.of_vms();
        self.queues.cancel(scope, removed);
        self.credits.take_if(scope.owner(), removed, |request| scope.contains(request));
        if of_vms > 0 && self.queues.of_vms() == 0 {
            self.empty_since = now;
        }
    }

    fn inspect(&self, _now: Instant) -> State {
        let mut state = State { queued: self.queued(), in_flight: self.in_flight, ..State::default() };
        for owner in self.credits.owners() {
            let queued = self.credits.waiting(owner) + self.queues.queued(owner);
            state.owners.insert(owner.0, OwnerState { queued, ..OwnerState::default() });
        }
        state
    }
}
