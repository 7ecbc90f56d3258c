//! Observation of VMs: their requests and rates, whether every promise is kept, and why one is not.
//!
//! The caller takes a [`Sample`](sample::Sample) of all devices every second and passes it to the
//! [`Observer`](observer::Observer). Everything here computes: no clock, no I/O, no threads. So tests pass samples of
//! simulated gates, in virtual time, to the code that observes real ones.
//!
//! ```text
//! [gates] --counters--> [sample] --difference--> [flow] --> [recent] 60 s --> rates, percentiles
//!                                                   |---> [history] 15 min
//!                                                   |---> [interval] minutes, to be kept elsewhere
//!                                                   |---> [capacity] what the device gives when it is full
//!                                                   '---> [judge] --> kept, or broken with its [cause] --> [event]s
//! ```
#![forbid(unsafe_code)]

pub mod capacity;
pub mod cause;
mod client_track;
mod device_track;
pub mod failing;
pub mod flow;
mod glance;
pub mod history;
pub mod interval;
pub mod judge;
mod now;
pub mod observer;
mod pool_track;
pub mod reading;
pub mod recent;
pub mod sample;
pub mod status;
mod vm_track;
