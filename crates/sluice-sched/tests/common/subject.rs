//! Test subjects: every scheduler of the list, in each of its modes.

use sluice_sched::gate::RemoteService;
use sluice_sched::guarantees::Guarantees;
use sluice_sched::params::{ParamTable, Range, Value};
use sluice_sched::scheduler::{Change, ChangeError, Decision, Descriptor, DeviceClass, DeviceInfo, Scheduler, State};
use sluice_sched::{Completion, Instant, OwnerId, Policy, Request, Scope, Standing, VolumeId, units::Weight};

/// A scheduler with parameters.
#[derive(Clone)]
pub struct Subject {
    pub descriptor: &'static Descriptor,
    pub params: ParamTable,
    /// Kind of the device that it is built for.
    pub device_class: DeviceClass,
}

impl Subject {
    pub fn of(name: &str) -> Self {
        let descriptor = sluice_papers::find(name).expect("a scheduler of the list");
        Subject { descriptor, params: ParamTable::new(), device_class: descriptor.device_classes[0] }
    }

    /// On a network interface.
    pub fn on_network(self) -> Self {
        Subject { device_class: DeviceClass::Network, ..self }
    }

    pub fn with(mut self, name: &str, value: Value) -> Self {
        self.params.insert(name.to_owned(), value);
        self
    }

    pub fn text(self, name: &str, value: &str) -> Self {
        self.with(name, Value::Text(value.to_owned()))
    }

    pub fn build(&self, info: &DeviceInfo) -> Box<dyn Scheduler> {
        let info = DeviceInfo { device_class: self.device_class, ..*info };
        let scheduler = self.descriptor.build(&info, &self.params).expect("the test's parameters are valid");
        if self.device_class.counts_requests() { scheduler } else { Box::new(WithoutRequests(scheduler)) }
    }

    pub fn guarantees(&self, info: &DeviceInfo) -> Guarantees {
        (self.descriptor.guarantees)(info, &self.params)
    }

    pub fn mode(&self) -> Option<&str> {
        match self.params.get("mode") {
            Some(Value::Text(mode)) => Some(mode),
            _ => None,
        }
    }

    pub fn is(&self, name: &str, mode: &str) -> bool {
        self.descriptor.name == name && self.mode() == Some(mode)
    }

    pub fn label(&self) -> String {
        let form = self.mode().map(str::to_owned).or_else(|| self.params.get("rounds").map(Value::to_string));
        let frames = self.device_class == DeviceClass::Network && self.descriptor.is_for(DeviceClass::Disk);
        let forms: Vec<String> = form.into_iter().chain(frames.then(|| "frames".to_owned())).collect();
        match forms.is_empty() {
            true => self.descriptor.name.to_owned(),
            false => format!("{} ({})", self.descriptor.name, forms.join(", ")),
        }
    }
}

/// Wraps a scheduler that counts bytes, for a test whose policies state rates of requests: removes those rates, which
/// the scheduler would reject.
struct WithoutRequests(Box<dyn Scheduler>);

impl WithoutRequests {
    fn without(mut change: Change) -> Change {
        match &mut change {
            Change::AddOwner { policy, .. }
            | Change::SetOwner { policy, .. }
            | Change::AddVolume { policy, .. }
            | Change::SetVolume { policy, .. } => {
                let Policy { reservation, limit, read_limit, write_limit, .. } = policy;
                (reservation.iops, limit.iops, read_limit.iops, write_limit.iops) = (None, None, None, None);
                policy.timed_burst = None;
                if !policy.is_reserved() {
                    policy.weight = policy.weight.or(Some(Weight::DEFAULT));
                }
            }
            Change::RemoveOwner { .. } | Change::RemoveVolume { .. } | Change::Device { .. } => {}
        }
        change
    }
}

impl Scheduler for WithoutRequests {
    fn insert(&mut self, now: Instant, request: Request) {
        self.0.insert(now, request);
    }

    fn add_remote_service(&mut self, now: Instant, owner: OwnerId, remote: &RemoteService) {
        self.0.add_remote_service(now, owner, remote);
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
        self.0.configure(now, WithoutRequests::without(change))
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

/// mClock as VMs get it.
pub fn product() -> Subject {
    Subject::of("mclock")
}

/// mClock as published.
pub fn paper() -> Subject {
    Subject::of("mclock-paper")
}

/// Every scheduler; one with a parameter `mode` or `rounds` once for each of its values, and mClock for frames too.
pub fn subjects() -> Vec<Subject> {
    let mut subjects = Vec::new();
    for descriptor in sluice_papers::ALL {
        let mut plain = Subject::of(descriptor.name);
        if descriptor.parameters.iter().any(|parameter| parameter.name == "tick") {
            // Exact time; the clock of an old kernel has separate tests.
            plain = plain.text("tick", "0s");
        }
        let forms = descriptor.parameters.iter().find_map(|parameter| match (parameter.name, parameter.range) {
            (name @ ("mode" | "rounds"), Range::Words(words)) => Some((name, words)),
            _ => None,
        });
        match forms {
            Some((name, words)) => subjects.extend(words.iter().map(|word| plain.clone().text(name, word))),
            None => subjects.push(plain),
        }
    }
    subjects.push(product().on_network());
    subjects
}
