//! Test helper that drives a scheduler by hand.

use std::collections::BTreeMap;
use std::time::Duration;

use sluice_sched::cost::Cost;
use sluice_sched::params::{ParamTable, Value};
use sluice_sched::policy::Policy;
use sluice_sched::request::{Completion, Flags, Kind, OwnerId, Phase, Request, RequestId, VolumeId, Wait};
use sluice_sched::scheduler::{Change, Decision, Descriptor, DeviceInfo, Scheduler, Scope};
use sluice_sched::time::Instant;

/// A scheduler, the time, and the requests in flight.
pub(crate) struct Drive {
    pub(crate) scheduler: Box<dyn Scheduler>,
    pub(crate) now: Instant,
    pub(crate) flying: BTreeMap<u64, Request>,
    asked: u64,
}

/// A parameter of a test: numbers and words unquoted, times as text.
pub(crate) fn params(stated: &[(&str, &str)]) -> ParamTable {
    let value = |text: &str| match (text.parse::<i64>(), text) {
        (Ok(number), _) => Value::Integer(number),
        (_, "true") => Value::Bool(true),
        (_, "false") => Value::Bool(false),
        _ => Value::Text(text.to_owned()),
    };
    stated.iter().map(|(name, text)| ((*name).to_owned(), value(text))).collect()
}

impl Drive {
    /// A scheduler for a spinning disk with `owners` owners of the default policy, with one volume each.
    pub(crate) fn new(descriptor: &Descriptor, stated: &[(&str, &str)], owners: u32) -> Drive {
        Drive::on(descriptor, stated, &DeviceInfo { rotational: true, ..DeviceInfo::default() }, owners)
    }

    pub(crate) fn on(descriptor: &Descriptor, stated: &[(&str, &str)], info: &DeviceInfo, owners: u32) -> Drive {
        let scheduler = descriptor.build(info, &params(stated)).expect("valid parameters");
        let mut drive = Drive { scheduler, now: Instant::from_millis(10_000), flying: BTreeMap::new(), asked: 0 };
        (0..owners).for_each(|owner| drive.owner(owner, Policy::default()));
        drive
    }

    pub(crate) fn owner(&mut self, owner: u32, policy: Policy) {
        let owner = OwnerId(owner);
        self.change(Change::AddOwner { owner, policy });
        self.change(Change::AddVolume { owner, volume: VolumeId(0), policy: Policy::default() });
    }

    pub(crate) fn change(&mut self, change: Change) {
        self.scheduler.configure(self.now, change).expect("valid change");
    }

    /// Inserts a request of 4 KiB at a page; returns its number.
    pub(crate) fn ask(&mut self, owner: u32, kind: Kind, page: u64) -> u64 {
        self.insert(Request { ..request(self.asked, owner, kind, page) })
    }

    pub(crate) fn read(&mut self, owner: u32, page: u64) -> u64 {
        self.ask(owner, Kind::Read, page)
    }

    pub(crate) fn write(&mut self, owner: u32, page: u64) -> u64 {
        self.ask(owner, Kind::Write, page)
    }

    /// Inserts a sync write.
    pub(crate) fn sync_write(&mut self, owner: u32, page: u64) -> u64 {
        self.insert(Request { flags: Flags::SYNC, ..request(self.asked, owner, Kind::Write, page) })
    }

    pub(crate) fn insert(&mut self, request: Request) -> u64 {
        self.scheduler.insert(self.now, Request { arrival: self.now, ..request });
        self.asked += 1;
        request.id.0
    }

    pub(crate) fn wait(&mut self, micros: u64) {
        self.now = self.now + Duration::from_micros(micros);
    }

    pub(crate) fn decide(&mut self) -> Decision {
        let decision = self.scheduler.dispatch(self.now);
        if let Decision::Dispatch(request) = decision {
            self.flying.insert(request.id.0, request);
        }
        decision
    }

    /// Dispatches the next request; returns its owner and page.
    #[track_caller]
    pub(crate) fn go(&mut self) -> (u32, u64) {
        match self.decide() {
            Decision::Dispatch(request) => (request.owner.0, request.offset / 4096),
            other => panic!("no dispatch but {other:?} at {:?}", self.now),
        }
    }

    /// Completes the request in flight of this owner and page.
    #[track_caller]
    pub(crate) fn done(&mut self, owner: u32, page: u64) {
        let at = |request: &&Request| request.owner.0 == owner && request.offset / 4096 == page;
        let id = self.flying.values().find(at).expect("the request is in flight").id.0;
        let request = self.flying.remove(&id).expect("just seen");
        let completion = Completion { request, dispatched: self.now, ok: true };
        self.scheduler.complete(self.now, &completion);
    }

    /// Dispatches one request and completes it `micros` later.
    #[track_caller]
    pub(crate) fn serve(&mut self, micros: u64) -> (u32, u64) {
        let (owner, page) = self.go();
        self.wait(micros);
        self.done(owner, page);
        (owner, page)
    }

    /// Dispatches and completes up to `count` requests; returns their pages.
    pub(crate) fn pages(&mut self, count: usize) -> Vec<u64> {
        (0..count).map(|_| self.serve(0).1).collect()
    }

    /// The time until the scheduler wants to be called, in microseconds.
    #[track_caller]
    pub(crate) fn waits(&mut self) -> u64 {
        match self.decide() {
            Decision::WaitUntil(until) => until.nanos_since(self.now) / 1000,
            other => panic!("no wait but {other:?} at {:?}", self.now),
        }
    }

    pub(crate) fn cancel(&mut self, owner: u32) -> usize {
        let mut removed = Vec::new();
        self.scheduler.cancel(self.now, Scope::Owner(OwnerId(owner)), &mut removed);
        removed.len()
    }
}

/// A request of 4 KiB at a page.
pub(crate) fn request(id: u64, owner: u32, kind: Kind, page: u64) -> Request {
    Request {
        id: RequestId(id),
        arrival: Instant::ZERO,
        offset: page * 4096,
        length: 4096,
        cost: Cost::ONE,
        owner: OwnerId(owner),
        token: id as u32,
        rho: 0,
        delta: 0,
        volume: VolumeId(0),
        kind,
        flags: Flags::MERGED,
        phase: Phase::None,
        wait: Wait::None,
    }
}

/// A request of the first owner at a page.
pub(crate) fn at(kind: Kind, page: u64) -> Request {
    request(0, 0, kind, page)
}

impl Drive {
    /// Number of the next request.
    pub(crate) fn next_id(&self) -> RequestId {
        RequestId(self.asked)
    }
}
