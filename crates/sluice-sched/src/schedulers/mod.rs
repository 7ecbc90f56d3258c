//! The schedulers that an operator's promises rest on. The crate `sluice-papers` has the others, and the list of all.

use crate::scheduler::Descriptor;

pub mod mclock;
pub mod noop;

/// The schedulers of this crate, by name.
pub const ALL: &[&Descriptor] = &[&mclock::DESCRIPTOR, &noop::DESCRIPTOR];

/// The scheduler of this crate with that name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Descriptor> {
    ALL.iter().copied().find(|descriptor| descriptor.name == name)
}
