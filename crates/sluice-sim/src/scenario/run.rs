//! A run: the same scenario and seed give the same outcome, bit by bit.

use std::cell::RefCell;
use std::fmt::Display;
use std::rc::Rc;
use std::time::Duration;

use sluice_sched::Instant;

use super::outcome::{Outcome, collect};
use super::{Scenario, States, assemble};
use crate::engine::{Completed, OUTSTANDING_MAX};
use crate::traces::{Failure, TraceError};

/// How often a run says how far it is.
const STEPS: u32 = 200;

/// Why there is no outcome.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// Something cannot be made as the scenario says.
    #[error("{of}: {why}")]
    Cannot {
        /// A device, a VM or a file.
        of: String,
        /// What is wrong with it.
        why: String,
    },
    /// A trace ended early.
    #[error("Cannot continue reading a trace")]
    Trace(#[from] TraceError),
    /// More requests on their way than are kept in memory.
    #[error(
        "VM {vm} submits faster than its device completes: after {} s {OUTSTANDING_MAX} requests are outstanding; \
         lower its rate, or end the run earlier",
        .at.as_secs_f64().round()
    )]
    Overrun {
        /// Whose request was one too many.
        vm: String,
        /// When.
        at: Duration,
    },
    /// Who watched wants no more.
    #[error("The run was aborted")]
    Aborted,
}

impl RunError {
    pub(super) fn of(of: &dyn Display, why: impl Display) -> Self {
        RunError::Cannot { of: of.to_string(), why: why.to_string() }
    }
}

/// Who is told of requests that are over.
pub type Requests = Rc<RefCell<dyn FnMut(&Completed)>>;

/// Who is told of what happens.
#[derive(Default)]
pub struct Watch<'a> {
    /// Of every request that is over, device by device; its VM has the number that it has in the scenario.
    pub requests: Option<Requests>,
    /// Where states of aged drives are kept; without it they are made each time.
    pub states: Option<&'a States>,
    /// Of the part of the run that is over, from 0 to 1; whether to go on.
    pub progress: Option<&'a mut dyn FnMut(f64) -> bool>,
}

/// Runs a scenario.
///
/// # Errors
/// [`RunError`]. A law that is broken is none: it is in the outcome.
pub fn run(scenario: &Scenario, seed: u64, mut watch: Watch<'_>) -> Result<Outcome, RunError> {
    let mut parts = Vec::new();
    let together = assemble::parts(scenario);
    for (number, devices) in together.iter().enumerate() {
        let mut part = assemble::part(scenario, devices, seed, watch.states)?;
        if let Some(requests) = watch.requests.clone() {
            let vms = part.vms.clone();
            let tell = move |over: &Completed| (requests.borrow_mut())(&Completed { vm: vms[over.vm], ..*over });
            part.simulation.observe(Box::new(tell));
        }
        for step in 1..=STEPS {
            let end = scenario.settings.duration.as_nanos() * u128::from(step) / u128::from(STEPS);
            part.simulation.run_until(Instant::from_nanos(end as u64));
            if let Some(vm) = part.simulation.overrun() {
                let at = part.simulation.now().since(Instant::ZERO);
                return Err(RunError::Overrun { vm: scenario.vms[part.vms[vm]].name.clone(), at });
            }
            let done = (number as f64 + f64::from(step) / f64::from(STEPS)) / together.len() as f64;
            if watch.progress.as_mut().is_some_and(|progress| !progress(done)) {
                return Err(RunError::Aborted);
            }
        }
        if let Some(error) = part.failures.iter().find_map(Failure::take) {
            return Err(error.into());
        }
        parts.push(part);
    }
    Ok(collect(scenario, seed, &parts))
}
