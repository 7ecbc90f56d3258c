//! The tests of the papers' schedulers, in one program: it is linked once.

#[path = "../../sluice-sched/tests/common/mod.rs"]
mod common;

mod baselines;
mod elevator_bounds;
mod elevators;
mod flubber;
mod flubber_bounds;
mod gate;
mod mclock_paper;
mod nics;
mod oracle_deadline;
mod oracle_flubber;
mod oracle_mclock_paper;
mod oracle_sfqd;
mod wrr_bounds;
