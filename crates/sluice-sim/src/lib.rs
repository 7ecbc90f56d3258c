//! Simulator in virtual time: modelled devices and workloads around the gates and schedulers that serve real VMs.
//!
//! ```text
//! workloads --Arrival--> Gate{Scheduler} --submit--> device model
//!     ^                       ^   ^                      |
//!     '------ Finished -------'   '--- pump(now) <-------' over at its time
//! ```
//!
//! Time is an integer of nanoseconds that advances from event to event. Events of one instant have a fixed order:
//! completions of devices, completed CPU work, arrivals in planned order, then the scheduler's wake-up. Every random
//! choice comes from a stream with its own name, so an additional component does not change the numbers of others. The
//! same binary, scenario and seed give the same bytes.
//!
//! | part | where |
//! |---|---|
//! | event loop | [`engine`] |
//! | device models | [`devices`] |
//! | the CPUs that guests and the driver domain share | [`cpu`] |
//! | workloads of VMs | [`workloads`], [`traces`] |
//! | results, and their invariants | [`record`], [`checks`] |
//! | guest schedulers above a host scheduler | [`stack`] |
//! | scenarios by name, and their runs | [`scenario`] |
//! | means of many runs | [`statistics`] |
#![forbid(unsafe_code)]

pub mod checks;
pub mod cpu;
pub mod devices;
pub mod engine;
mod named;
pub mod random;
pub mod record;
pub mod scenario;
pub mod stack;
pub mod statistics;
pub mod traces;
mod units;
pub mod workloads;
