//! Scheduling core: decides which request of which VM a shared device executes next.
//!
//! Everything here is a state machine without clock, I/O, threads or random numbers. Time is an argument of every call,
//! so the code that serves VMs also runs in a simulator, and a recorded run can be repeated.
//!
//! A frontend turns a VM's request into an [`Arrival`]. The [`Gate`] numbers it and splits it into [`Request`]s, a
//! [`Scheduler`] selects the next one, the gate submits it to the device, and a [`Completion`] comes back.
//!
//! | part | where |
//! |---|---|
//! | time and units | [`time`], [`units`] |
//! | requests and promises | [`request`], [`cost`], [`policy`] |
//! | decisions | [`scheduler`], [`schedulers`], [`guarantees`] |
//! | the device's queue | [`gate`] |
//! | state that a new scheduler takes over | [`standing`] |
//! | checks before a promise is accepted | [`admission`] |
//! | a VM on several servers | [`tracker`] |
#![forbid(unsafe_code)]

pub mod admission;
pub mod cost;
pub mod gate;
pub mod guarantees;
pub mod inline_vec;
pub mod params;
pub mod policy;
pub mod request;
pub mod request_arena;
pub mod scheduler;
pub mod schedulers;
pub mod slab;
pub mod standing;
mod steps;
pub mod tag;
pub mod time;
pub mod tournament;
pub mod tracker;
pub mod units;

pub use cost::{Cost, CostModel};
pub use gate::{Arrival, Device, Gate, GateSettings};
pub use policy::{LatencyTarget, Limit, Policy, Reservation};
pub use request::{Completion, Flags, Kind, OwnerId, Phase, Request, RequestId, VolumeId, Wait};
pub use scheduler::{Change, ChangeError, Decision, Descriptor, Scheduler, Scope, State};
pub use standing::Standing;
pub use time::Instant;
pub use units::{ByteRate, Bytes, Iops, Percent, Weight};
