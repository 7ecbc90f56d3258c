//! The scheduling core: what decides which request of which VM goes to a shared device next.
//!
//! Everything here is a pure state machine: no clock, no I/O, no threads, no randomness of its own. Time comes in
//! as an argument of every call, so the code that serves VMs also runs in a simulator and re-derives a recorded day.
//!
//! Data flows one way: a frontend turns what a VM asks into an [`Arrival`], the [`Gate`] splits and numbers it into
//! [`Request`]s, a [`Scheduler`] picks the next one, the gate hands it to the device, and a [`Completion`] comes back.
//!
//! | part | where |
//! |---|---|
//! | time and units | [`time`], [`units`] |
//! | what is asked | [`request`], [`cost`], [`policy`] |
//! | who decides | [`scheduler`], [`schedulers`] |
//! | the device's front | [`gate`] |
//! | guests above a host | [`stack`] |
//! | before a promise is given | [`admission`] |
//! | a VM at several servers | [`tracker`] |
#![forbid(unsafe_code)]

pub mod admission;
pub mod cost;
mod elevator;
pub mod gate;
mod inline_vec;
pub mod params;
pub mod policy;
pub mod request;
pub mod request_arena;
pub mod scheduler;
pub mod schedulers;
pub mod stack;
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
pub use stack::Stack;
pub use time::Instant;
pub use units::{ByteRate, Bytes, Iops, Percent, Weight};
