//! The tests of the simulator, in one program: it is linked once.

#[path = "../../sluice-sched/tests/common/mod.rs"]
mod common;

mod calibration;
mod drives;
mod invariants;
mod netback;
mod pools;
mod profiles;
mod queueing;
mod replay;
mod scenario_file;
mod stack;
mod timeline;
mod windows;
