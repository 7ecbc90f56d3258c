//! mcfq: CFQ with groups, and a manager that corrects slices by the bandwidth that they resulted in.
//!
//! Idea: CFQ shares time by weight, but on an SSD that collects garbage equal time is not equal bandwidth. Once per
//! second the manager compares the bandwidth of each VM with that of the VM of the smallest weight, and lengthens or
//! shortens slices.
//!
//! Rules: `manager` is the control loop. Its multiplier scales the slices of a VM's group and divides the group's
//! charges, as if its weight were that much larger.
//!
//! Parameters: see [`Params`]; in addition all of CFQ's except `mode`.
//!
//! Example: weights 10 and 1, and 6 times the bandwidth: after a window of 10 seconds the slices of the first VM are
//! multiplied by 10/6 = 1.67.
//!
//! Deviations: the published listing multiplies every second by corrections that are averaged twice, and oscillates
//! between its bounds for windows of 3 and more (mode `paper`). By default the correction of a window is applied once,
//! at its end. Multipliers are limited to 0.1 and 10. A VM that was idle or absent for more than half of the time is
//! not corrected. A change of a weight starts a new window.
//!
//! Source: \[mcfq\] MCFQ: time-slice manager (MoTS) on CFQ for virtual machines that share an SSD.

use core::time::Duration;

use serde::Deserialize;

use crate::cfq::{self, V2632};
use crate::mcfq::manager::Manager;
use sluice_sched::guarantees::Guarantees;
use sluice_sched::params::{self, ParamError, ParamTable, Parameter, Range, Value};
use sluice_sched::policy::Field;
use sluice_sched::request::{Completion, Kind, OwnerId, Request};
use sluice_sched::scheduler::{Change, ChangeError, Decision, Descriptor, DeviceInfo, Scheduler, Scope, State};
use sluice_sched::time::Instant;
use sluice_sched::units::Weight;

mod manager;

/// Form in which corrections are applied.
// rule: mcfq.t2
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Once per window, by what that window showed.
    Window,
    /// Every second, averaged once more: as published.
    Paper,
    /// Every second, from the base slice.
    Base,
}

/// The parameters in `[device.NAME.mcfq]` in addition to those of CFQ.
// rule: mcfq.t9, mcfq.window
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Params {
    /// Form in which corrections are applied.
    pub mode: Mode,
    /// Number of bandwidth samples in a window.
    pub window: u32,
    /// Part of a correction that is applied, in percent.
    pub gain: u32,
    /// Duration of a sample.
    #[serde(with = "params::duration")]
    pub interval: Duration,
}

impl Default for Params {
    fn default() -> Self {
        params::defaults(&OWN)
    }
}

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "mcfq",
    summary: "CFQ with groups, whose slices are corrected by the bandwidth that they achieve",
    idea: "CFQ shares the disk's time by weight. Once a second a manager compares the bandwidth of each VM with that \
           of the VM with the smallest weight. It lengthens the slices of VMs that get less than their weight entitles \
           them to.",
    when: "For VMs with weights on an SSD with garbage collection, to compare with the paper. mclock keeps weights \
           more exactly.",
    source: "MCFQ: time-slice manager (MoTS) on CFQ for virtual machines that share an SSD",
    enforces: &[
        (Field::Weight, "bandwidth is shared in proportion, if the VMs keep the disk busy"),
        (Field::Class, "background: priority class idle"),
        (Field::PriorityClass, "real-time before best-effort before idle, only among the requests of one VM"),
        (Field::PriorityLevel, "longer slices: 180 ms at level 0, 100 ms at 4, 40 ms at 7"),
    ],
    merging: true,
    guarantees: |_, table| cfq_params(table).map_or(Guarantees::BASE, |params| params.guarantees()),
    parameters: &PARAMETERS,
    build,
    ..Descriptor::BASE
};

const OWN: [Parameter; 4] = [
    Parameter {
        name: "mode",
        kind: "word",
        range: Range::Words(&["window", "paper", "base"]),
        default: "\"window\"",
        help: "window: slices are corrected once per window; paper: every second, as published; base: every second, \
               starting from the base slice",
    },
    Parameter {
        name: "window",
        kind: "samples",
        range: Range::Number(1, 1_000),
        default: "10",
        help: "Number of bandwidth samples in a window",
    },
    Parameter {
        name: "gain",
        kind: "percent",
        range: Range::Number(1, 100),
        default: "100",
        help: "Part of a correction that is applied at a time; less than 100 damps swings. Not in mode \"base\"",
    },
    Parameter {
        name: "interval",
        kind: "time with unit",
        range: Range::Time(Duration::from_millis(1), Duration::from_secs(3600)),
        default: "\"1s\"",
        help: "Duration of a sample",
    },
];

/// Its own parameters, and those of CFQ after the mode.
const PARAMETERS: [Parameter; OWN.len() + cfq::PARAMETERS.len() - 1] = {
    let mut all = [OWN[0]; OWN.len() + cfq::PARAMETERS.len() - 1];
    let mut index = 0;
    while index < all.len() {
        all[index] = if index < OWN.len() { OWN[index] } else { cfq::PARAMETERS[index - OWN.len() + 1] };
        index += 1;
    }
    all
};

fn is_own(name: &str) -> bool {
    OWN.iter().any(|own| own.name == name)
}

/// The parameters of its CFQ.
fn cfq_params(table: &ParamTable) -> Result<cfq::Params, ParamError> {
    let mut params: ParamTable = table.clone().into_iter().filter(|(name, _)| !is_own(name)).collect();
    params.insert("mode".to_owned(), Value::Text("group".to_owned()));
    params::read(cfq::PARAMETERS, &params)
}

fn build(info: &DeviceInfo, table: &ParamTable) -> Result<Box<dyn Scheduler>, ParamError> {
    let own: ParamTable = table.clone().into_iter().filter(|(name, _)| is_own(name)).collect();
    let params: Params = params::read(&OWN, &own)?;
    let groups = V2632::new(cfq_params(table)?, info);
    Ok(Box::new(Mcfq { groups, manager: Manager::new(&params), interval: params.interval, ends: None }))
}

#[derive(Debug)]
pub struct Mcfq {
    groups: V2632,
    manager: Manager,
    interval: Duration,
    /// End of the current sample; `None` before the first request.
    ends: Option<Instant>,
}

impl Mcfq {
    /// Ends the samples that are due.
    // rule: mcfq.apply
    fn sample(&mut self, now: Instant) {
        let Some(mut end) = self.ends else { return };
        if now < end {
            return;
        }
        // After a long idle time only the samples of a window count.
        let most = self.manager.window() + 1;
        let passed = now.nanos_since(end) / (self.interval.as_nanos() as u64).max(1);
        if passed > most {
            end = now - self.interval * u32::try_from(most).unwrap_or(u32::MAX);
        }
        while now >= end {
            self.manager.close(end);
            end = end + self.interval;
        }
        self.ends = Some(end);
        let Mcfq { groups, manager, .. } = self;
        manager.multipliers(|owner, multiplier| groups.set_multiplier(OwnerId(owner), multiplier));
    }
}

impl Scheduler for Mcfq {
    fn insert(&mut self, now: Instant, request: Request) {
        self.ends.get_or_insert(now + self.interval);
        self.sample(now);
        self.manager.came(now, request.owner.0);
        self.groups.insert(now, request);
    }

    fn grow(&mut self, now: Instant, grown: Request) -> bool {
        self.groups.grow(now, grown)
    }

    fn dispatch(&mut self, now: Instant) -> Decision {
        self.sample(now);
        self.groups.dispatch(now)
    }

    // rule: mcfq.t8
    fn complete(&mut self, now: Instant, completion: &Completion) {
        self.sample(now);
        let request = &completion.request;
        let moved = completion.ok && matches!(request.kind, Kind::Read | Kind::Write);
        self.manager.went(now, request.owner.0, if moved { u64::from(request.length) } else { 0 });
        self.groups.complete(now, completion);
    }

    fn configure(&mut self, now: Instant, change: Change) -> Result<(), ChangeError> {
        self.sample(now);
        match change {
            Change::AddOwner { owner, policy } | Change::SetOwner { owner, policy } => {
                let weight = policy.effective_weight().unwrap_or(Weight::MIN).hundredths();
                self.manager.set(owner.0, weight);
            }
            Change::RemoveOwner { owner } => self.manager.remove(owner.0),
            _ => {}
        }
        self.groups.configure(now, change)
    }

    fn cancel(&mut self, now: Instant, scope: Scope, removed: &mut Vec<Request>) {
        self.sample(now);
        let from = removed.len();
        self.groups.cancel(now, scope, removed);
        removed[from..].iter().for_each(|request| self.manager.went(now, request.owner.0, 0));
    }

    fn inspect(&self, now: Instant) -> State {
        self.groups.inspect(now)
    }
}

#[cfg(test)]
mod tests;
