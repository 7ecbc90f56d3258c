//! Servers, VMs and time. Each server is a gate in front of a modelled device, and a VM has an owner at each server.
//!
//! The world calls gates as a driver does, and passes every result to the [`Ledger`]. It keeps a log of the gates'
//! events, by which two runs are compared.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use sluice_sched::admission::Capacity;
use sluice_sched::gate::{Finished, Outcome, Refused, RemoteService};
use sluice_sched::scheduler::DeviceInfo;
use sluice_sched::tracker::{Heard, Tracked};
use sluice_sched::*;

use super::ledger::{Counts, Home, Ledger};
use super::model::{Flying, Model};
use super::policies::in_bytes;
use super::subject::Subject;
use super::watched::{Policies, Watched};

/// Maximum number of events that one advance of time handles; the rest is late.
const EVENTS_MAX: u32 = 64;

/// One gate with its device.
pub struct Server {
    pub gate: Gate,
    pub model: Model,
    pub homes: Vec<Home>,
    pub capacity: Capacity,
    pub rotational: bool,
    pub subject: Subject,
    /// The policies that the scheduler knows.
    known: Arc<Mutex<Policies>>,
    wake: Option<Instant>,
}

/// A VM. At each server it is an owner.
#[derive(Debug)]
pub struct Vm {
    /// Its index in `homes` of each server.
    pub homes: Vec<usize>,
    pub tracker: Tracked,
    pub next_offset: u64,
}

/// Events of the gates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    Submit { at: Instant, server: usize, token: u32, skip: u32, length: u32, id: RequestId, phase: Phase, wait: Wait },
    Finish { at: Instant, finished: Finished },
    Wake { at: Instant, server: usize, wake: Option<Instant> },
}

/// The servers, VMs and time of a run.
pub struct World {
    pub servers: Vec<Server>,
    pub vms: Vec<Vm>,
    pub ledger: Ledger,
    pub now: Instant,
    pub log: Vec<Event>,
    pub is_printing: bool,
}

impl Server {
    pub fn new(subject: Subject, settings: GateSettings, capacity: Capacity, rotational: bool) -> Self {
        let info = DeviceInfo::of(&settings, rotational, &capacity);
        let known = Arc::default();
        let gate = Gate::new(Box::new(Watched::new(&subject, &info, &settings, Arc::clone(&known))), settings);
        let (model, homes) = (Model::new(settings.depth), Vec::new());
        Server { gate, model, homes, capacity, rotational, subject, known, wake: None }
    }

    /// Replaces the scheduler, unless the new one rejects the present policies.
    pub fn replace(&mut self, now: Instant, subject: Subject, merging: bool) -> Result<(), ChangeError> {
        let settings = *self.gate.settings();
        let info = DeviceInfo::of(&settings, self.rotational, &self.capacity);
        let known = Arc::default();
        let watched = Watched::new(&subject, &info, &settings, Arc::clone(&known));
        let replaced = self.gate.replace_scheduler(now, Box::new(watched), merging);
        refused_for_a_reason(&subject, replaced.as_ref().err());
        if replaced.is_ok() {
            (self.subject, self.known) = (subject, known);
        }
        replaced
    }

    /// Returns the largest piece of a request.
    pub fn piece_max(&self, kind: Kind) -> u32 {
        let settings = self.gate.settings();
        let max = match kind {
            Kind::Discard | Kind::WriteZeroes => settings.discard_max,
            Kind::Read | Kind::Write | Kind::Flush => settings.transfer_max,
        };
        u32::try_from(max.0).unwrap_or(u32::MAX).max(512)
    }

    /// Returns the instant of the next event.
    fn next(&self) -> Option<Instant> {
        self.model.next().map(|(_, due)| due).into_iter().chain(self.wake).min()
    }

    /// Checks that the scheduler knows exactly the policies that its driver has set.
    pub fn check_policies(&self) {
        let present = self.homes.iter().filter(|home| home.is_present);
        let stated = present.flat_map(|Home { owner, policy, volumes, .. }| {
            assert_eq!(self.gate.policy(*owner), Some(policy), "S7: all or nothing changes");
            volumes.iter().map(|(volume, policy)| ((*owner, Some(*volume)), *policy)).chain([((*owner, None), *policy)])
        });
        let known = self.known.lock().expect("there is one thread");
        assert_eq!(*known, stated.collect(), "S7: {} knows other policies", self.subject);
    }

    fn check_accounts(&self) {
        let (mut waiting, mut in_flight) = (0, 0);
        for home in &self.homes {
            waiting += home.counts.waiting();
            in_flight += home.counts.in_flight();
            if home.is_present {
                home.counts.check(&self.gate.stats(home.owner).expect("S7: an owner that is present has statistics"));
            }
        }
        // Merged requests share a slot.
        let slots = self.model.flying.len() as u64;
        let parts: u64 = self.model.flying.iter().map(|flying| flying.parts.len() as u64).sum();
        assert_eq!(
            (self.gate.queued(), self.gate.in_flight(), in_flight),
            (waiting, slots, parts),
            "S1: the gate's sums"
        );
    }
}

/// Whether a change contradicts itself, or has a rate that the scheduler does not count.
pub fn refused_for_a_reason(subject: &Subject, error: Option<&ChangeError>) {
    let is_reason = match error {
        None | Some(ChangeError::Policy(_) | ChangeError::VolumesOverReserve { .. }) => true,
        Some(ChangeError::CountsBytes { scheduler, .. }) => *scheduler == subject.descriptor.name,
        Some(_) => false,
    };
    assert!(is_reason, "{subject} refuses: {error:?}");
}

impl World {
    pub fn new(start: Instant, servers: Vec<Server>, is_printing: bool) -> Self {
        let (vms, ledger, log) = (Vec::new(), Ledger::default(), Vec::new());
        World { servers, vms, ledger, now: start, log, is_printing }
    }

    /// Prints an action, if printing is on.
    pub fn say(&self, what: core::fmt::Arguments<'_>) {
        if self.is_printing {
            println!("{:>12} ns: {what}", self.now.as_nanos());
        }
    }

    /// Adds a VM with a volume at each server.
    pub fn add_vm(&mut self, policy: Policy) -> bool {
        if let Err(error) = policy.check() {
            let refused = self.servers[0].gate.add_owner(self.now, policy);
            assert_eq!(refused, Err(ChangeError::Policy(error)));
            return false;
        }
        let policy = self.in_bytes_where_needed(policy);
        let (vm, mut homes) = (self.vms.len(), Vec::new());
        for server in &mut self.servers {
            let owner = server.gate.add_owner(self.now, policy).expect("a scheduler takes every policy");
            let volume = server.gate.add_volume(self.now, owner, Policy::default()).expect("the first volume");
            let taken = |home: &Home| home.owner == owner && (home.is_present || home.counts.in_flight() > 0);
            assert!(!server.homes.iter().any(taken), "S7: {owner:?} is given again");
            let (volumes, counts) = (vec![(volume, Policy::default())], Counts::default());
            homes.push(server.homes.len());
            server.homes.push(Home { owner, vm, is_present: true, policy, volumes, counts });
        }
        self.say(format_args!("VM {vm} comes: {policy:?}"));
        self.vms.push(Vm { homes, tracker: Tracked::default(), next_offset: (vm as u64) << 32 });
        true
    }

    /// Returns the policy, without rates in requests if one of the servers counts bytes. That server must reject the
    /// original one.
    fn in_bytes_where_needed(&mut self, policy: Policy) -> Policy {
        let mut counts_bytes = false;
        for server in &mut self.servers {
            if let Err(error) = server.subject.check_units(&policy) {
                assert_eq!(server.gate.add_owner(self.now, policy), Err(error));
                counts_bytes = true;
            }
        }
        if counts_bytes { in_bytes(policy) } else { policy }
    }

    /// Returns the owner of a VM at a server, if it still exists.
    pub fn owner(&self, vm: usize, server: usize) -> Option<OwnerId> {
        let home = self.servers[server].homes.get(*self.vms.get(vm)?.homes.get(server)?)?;
        home.is_present.then_some(home.owner)
    }

    pub fn home(&mut self, vm: usize, server: usize) -> &mut Home {
        &mut self.servers[server].homes[self.vms[vm].homes[server]]
    }

    pub fn remove_vm(&mut self, vm: usize) {
        for server in 0..self.servers.len() {
            let Some(owner) = self.owner(vm, server) else { return };
            let (now, mut finished) = (self.now, Vec::new());
            self.servers[server].gate.remove_owner(now, owner, &mut finished).expect("an owner that is present");
            self.cancelled(server, Scope::Owner(owner), &finished);
            self.home(vm, server).is_present = false;
            assert_eq!(self.servers[server].gate.policy(owner), None, "S7: it is gone");
        }
        self.say(format_args!("VM {vm} leaves"));
    }

    pub fn remove_volume(&mut self, vm: usize, server: usize, volume: VolumeId) {
        let Some(owner) = self.owner(vm, server) else { return };
        let (now, mut finished) = (self.now, Vec::new());
        self.servers[server].gate.remove_volume(now, owner, volume, &mut finished).expect("a volume that is present");
        self.cancelled(server, Scope::Volume(owner, volume), &finished);
        self.home(vm, server).volumes.retain(|(known, _)| *known != volume);
        self.say(format_args!("VM {vm} loses {volume:?} at server {server}"));
    }

    pub fn cancel(&mut self, server: usize, scope: Scope) {
        let (now, mut finished) = (self.now, Vec::new());
        self.servers[server].gate.cancel(now, scope, &mut finished);
        self.cancelled(server, scope, &finished);
        self.say(format_args!("{scope:?} is cancelled at server {server}, {} finish", finished.len()));
    }

    fn cancelled(&mut self, server: usize, scope: Scope, finished: &[Finished]) {
        let cancelled = self.ledger.cancel(server, scope);
        let owner = scope.owner();
        let home = self.servers[server].homes.iter_mut().find(|home| home.owner == owner && home.is_present);
        home.expect("a present owner").counts.cancelled += cancelled;
        self.finish(server, finished);
    }

    /// Submits a request of a VM. Returns whether the gate accepted it.
    pub fn ask(&mut self, vm: usize, server: usize, arrival: Arrival) -> bool {
        let home = self.vms[vm].homes[server];
        let piece_max = self.servers[server].piece_max(arrival.kind);
        let pieces = u64::from(super::ledger::pieces(arrival.length, piece_max));
        let Server { gate, homes, .. } = &mut self.servers[server];
        let waiting = homes[home].counts.waiting();
        let is_full = waiting > 0 && waiting + pieces > u64::from(gate.settings().queue_max);
        match gate.insert(self.now, &arrival) {
            Ok(_) => assert!(!is_full, "the queue is full and takes {arrival:?}"),
            Err(refused) => {
                assert!(is_full && refused == Refused::Full(arrival.owner), "{refused:?} of {arrival:?}");
                return false;
            }
        }
        let pieces = self.ledger.accept(arrival, server, home, piece_max);
        let counts = &mut homes[home].counts;
        counts.arrived += 1;
        counts.pieces += u64::from(pieces);
        true
    }

    /// Pumps the gate of a server.
    pub fn pump(&mut self, server: usize) {
        let Server { gate, model, homes, wake, .. } = &mut self.servers[server];
        let before = model.flying.len();
        *wake = gate.pump(self.now, model);
        assert!(wake.is_none_or(|wake| wake > self.now), "S5: a wake-up lies in the future");
        assert!(wake.is_none() || gate.queued() > 0, "S7: a wake-up for nothing");
        let goes_on = gate.queued() == 0 || gate.in_flight() > 0 || wake.is_some();
        assert!(goes_on, "S6: server {server} has requests and waits for nothing");
        let at = self.now;
        for flying in &model.flying[before..] {
            let home = self.ledger.submit(server, &flying.request, &flying.parts);
            homes[home].counts.dispatched += flying.parts.len() as u64;
            let Request { id, phase, wait, .. } = flying.request;
            self.log.extend(flying.parts.iter().map(|part| {
                let (token, skip, length) = (part.token, part.skip, part.length);
                Event::Submit { at, server, token, skip, length, id, phase, wait }
            }));
        }
        self.log.push(Event::Wake { at, server, wake: *wake });
        if self.is_printing {
            let (gone, wake) = (model.flying[before..].iter(), *wake);
            let gone: Vec<_> = gone.map(|f| (f.request.owner.0, f.request.id.0, f.request.phase)).collect();
            let state = gate.inspect(at);
            println!("{:>12} ns: server {server} dispatches {gone:?}, wake-up {wake:?}; {state:?}", at.as_nanos());
        }
        self.servers[server].check_accounts();
    }

    /// Completes the request at this index of the device's list. `ok` states for each part whether it succeeded; if
    /// it is empty, the device decides.
    pub fn complete(&mut self, server: usize, place: usize, ok: Option<u64>) {
        let Server { gate, model, homes, .. } = &mut self.servers[server];
        let (Flying { slot, parts, is_merged, .. }, succeeds) = model.take(place);
        let is_ok = |index: usize| ok.map_or(succeeds, |ok| ok >> (index % 64) & 1 == 0);
        let oks: Vec<bool> = (0..parts.len()).map(is_ok).collect();
        let mut finished = Vec::new();
        let all_same = oks.iter().all(|ok| *ok == oks[0]);
        match is_merged {
            true if all_same && ok.is_none() => gate.complete_all(self.now, slot, oks[0], &mut finished),
            true => gate.complete_parts(self.now, slot, &oks, &mut finished),
            false => finished.extend(gate.complete(self.now, slot, oks[0])),
        }
        let cost = gate.settings().cost;
        for (part, ok) in parts.iter().zip(&oks) {
            let home = self.ledger.entry(part.token).home;
            self.ledger.complete(&cost, part, *ok, &mut homes[home].counts);
        }
        self.say(format_args!("server {server} completes {parts:?}, {oks:?}"));
        self.finish(server, &finished);
        self.ledger.check_finished(parts.iter().map(|part| &part.token));
    }

    fn finish(&mut self, server: usize, finished: &[Finished]) {
        let cost = self.servers[server].gate.settings().cost;
        for finished in finished {
            self.ledger.finish(&cost, finished);
            self.log.push(Event::Finish { at: self.now, finished: *finished });
            let entry = self.ledger.entry(finished.token);
            assert_eq!(entry.server, server, "S1: it finishes at its server");
            let tracker = &mut self.vms[self.servers[server].homes[entry.home].vm].tracker.client;
            match finished.outcome {
                Outcome::Done => tracker.completed(server as u32, finished),
                Outcome::Failed | Outcome::Cancelled => tracker.ended(server as u32),
            }
        }
    }

    /// Returns the remote service that a truthful client reports, and what the server has heard if it accepts the request.
    pub fn honest(&mut self, vm: usize, server: usize) -> (RemoteService, Heard) {
        self.vms[vm].tracker.ask(self.now, server as u32)
    }

    /// Returns the instant and the server of the next event.
    pub fn next(&self) -> Option<(Instant, usize)> {
        let next = self.servers.iter().enumerate().filter_map(|(index, server)| Some((server.next()?, index)));
        next.min()
    }

    /// Advances to `at` and handles one event of a server: a due completion, otherwise the wake-up.
    pub fn happen(&mut self, at: Instant, server: usize) {
        self.now = self.now.max(at);
        if let Some((place, due)) = self.servers[server].model.next()
            && due <= self.now
        {
            self.complete(server, place, None);
        }
        self.pump(server);
    }

    /// Advances the time. A punctual driver handles the events until then; a late one does not.
    pub fn advance(&mut self, by: Duration, is_punctual: bool) {
        let end = self.now + by;
        let mut events = if is_punctual { EVENTS_MAX } else { 0 };
        while events > 0
            && let Some((at, server)) = self.next().filter(|(at, _)| *at <= end)
        {
            self.happen(at, server);
            events -= 1;
        }
        self.now = self.now.max(end);
    }
}
