//! Virtual time: modelled devices and workloads around the very gates and schedulers that serve real VMs.
//!
//! ```text
//! workloads --Arrival--> Gate{Scheduler} --submit--> device model
//!     ^                       ^   ^                      |
//!     '------ Finished -------'   '--- pump(now) <-------' over at its time
//! ```
//!
//! Time is an integer of nanoseconds that jumps from event to event. Events of one instant have a fixed order: what is over
//! at the device, then what CPUs have done, then arrivals in the order in which they were planned, then the scheduler's own
//! wake-up. Every random choice comes from a stream with a name of its own, so that one more component shifts nobody else's
//! numbers. The same binary, scenario and seed give the same bytes.
//!
//! | part | where |
//! |---|---|
//! | the loop | [`engine`] |
//! | what devices do | [`devices`] |
//! | the CPUs that guests and the driver domain share | [`cpu`] |
//! | what VMs ask for | [`workloads`], [`traces`] |
//! | what came out, and whether it can be true | [`record`], [`checks`] |
//! | all of that by name: what a scenario states, and a run of it | [`scenario`] |
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
pub mod statistics;
pub mod traces;
mod units;
pub mod workloads;
