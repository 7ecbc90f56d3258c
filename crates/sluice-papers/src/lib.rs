//! The papers' schedulers, the baselines that they are compared with, and the list of all schedulers.
//!
//! The crate [`sluice_sched`] has the gate and the schedulers `noop` and `mclock`, on which an operator's promises rest. The schedulers
//! here are state machines of the same kind, behind the same gate. A scheduler is one file here and one line in [`ALL`]; the command line,
//! the schema, the manual and the contract tests are generated from the list.
#![forbid(unsafe_code)]

use sluice_sched::scheduler::{Descriptor, DeviceClass};
use sluice_sched::schedulers::{mclock, noop};

pub mod anticipatory;
pub mod cfq;
pub mod deadline;
pub mod edf_credit;
mod elevator;
pub mod flubber;
pub mod mcfq;
pub mod mclock_paper;
pub mod netback;
pub mod sfqd;
pub mod wrr;

/// Every scheduler, by name.
pub const ALL: &[&Descriptor] = &[
    &anticipatory::DESCRIPTOR,
    &cfq::DESCRIPTOR,
    &deadline::DESCRIPTOR,
    &edf_credit::DESCRIPTOR,
    &flubber::DESCRIPTOR,
    &mcfq::DESCRIPTOR,
    &mclock::DESCRIPTOR,
    &mclock_paper::DESCRIPTOR,
    &netback::DESCRIPTOR,
    &noop::DESCRIPTOR,
    &sfqd::DESCRIPTOR,
    &wrr::DESCRIPTOR,
];

/// The scheduler with that name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Descriptor> {
    ALL.iter().copied().find(|descriptor| descriptor.name == name)
}

/// The schedulers for one kind of device, by name.
pub fn for_class(device_class: DeviceClass) -> impl Iterator<Item = &'static Descriptor> {
    ALL.iter().copied().filter(move |descriptor| descriptor.is_for(device_class))
}
