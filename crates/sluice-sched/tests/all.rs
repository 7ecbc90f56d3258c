//! The tests of the core and of what every scheduler guarantees, in one program: it is linked once.

mod common;

mod bounds;
mod causes;
mod contract;
mod directions;
mod dmclock;
mod extremes;
mod failures;
mod fairness;
mod fluid;
mod mclock_bounds;
mod metamorphic;
mod minimums;
mod noop;
mod oracle;
mod parameters;
mod properties;
mod standing;
mod switching;
mod tracker;
mod units;
