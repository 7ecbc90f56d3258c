//! The list of schedulers. A new one is a file here and a line in [`ALL`]; the command line, the schema, the
//! manual and the contract tests follow from it.

use crate::scheduler::Descriptor;

pub mod anticipatory;
pub mod cfq;
pub mod deadline;
pub mod edf_credit;
pub mod flubber;
pub mod mcfq;
pub mod mclock;
pub mod noop;
pub mod sfqd;

/// Every scheduler, by name.
pub const ALL: &[&Descriptor] = &[
    &anticipatory::DESCRIPTOR,
    &cfq::DESCRIPTOR,
    &deadline::DESCRIPTOR,
    &edf_credit::DESCRIPTOR,
    &flubber::DESCRIPTOR,
    &mcfq::DESCRIPTOR,
    &mclock::DESCRIPTOR,
    &noop::DESCRIPTOR,
    &sfqd::DESCRIPTOR,
];

/// The scheduler of that name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Descriptor> {
    ALL.iter().copied().find(|descriptor| descriptor.name == name)
}
