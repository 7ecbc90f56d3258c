//! Runs of scenarios: the same scenario and seed give the same result, bit by bit.

use std::cell::RefCell;
use std::fmt::Display;
use std::rc::Rc;
use std::time::Duration;

use sluice_sched::Instant;

use super::outcome::{Outcome, collect};
use super::{Scenario, States, assemble};
use crate::engine::{Completed, OUTSTANDING_MAX};
use crate::traces::{Failure, TraceError};

/// Number of progress reports per run.
const STEPS: u32 = 200;

/// A run without a result.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A part of the scenario cannot be built.
    #[error("{of}: {why}")]
    Cannot {
        /// The device, VM or file.
        of: String,
        /// Cause.
        why: String,
    },
    /// A trace ended with an error.
    #[error("Cannot continue reading a trace")]
    Trace(#[from] TraceError),
    /// More requests are outstanding than fit into memory.
    #[error(
        "VM {vm} submits faster than its device completes: after {} s {OUTSTANDING_MAX} requests are outstanding; \
         lower its rate, or end the run earlier",
        .at.as_secs_f64().round()
    )]
    Overrun {
        /// The VM with the request that exceeded the limit.
        vm: String,
        /// Virtual time of the abort.
        at: Duration,
    },
    /// The progress callback aborted the run.
    #[error("The run was aborted")]
    Aborted,
}

impl RunError {
    pub(super) fn of(of: &dyn Display, why: impl Display) -> Self {
        RunError::Cannot { of: of.to_string(), why: why.to_string() }
    }
}

/// Callback for completed requests.
pub type Requests = Rc<RefCell<dyn FnMut(&Completed)>>;

/// Callbacks and folders of a run.
#[derive(Default)]
pub struct Watch<'a> {
    /// Called with every completed request, device by device; its VM has its number in the scenario.
    pub requests: Option<Requests>,
    /// Folder with states of aged drives; without it they are aged each time.
    pub states: Option<&'a States>,
    /// Called with the completed part of the run, from 0 to 1; returns whether to continue.
    pub progress: Option<&'a mut dyn FnMut(f64) -> bool>,
}

/// Runs a scenario.
///
/// # Errors
/// [`RunError`]. A violated invariant is not an error: it is in the result.
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
