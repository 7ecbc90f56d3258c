//! How much may be in flight at a device, so that its time per request stays at a stated one.
//!
//! What is in flight at a device and cannot be called back decides how long the next request waits there. [`Aim`] states the capacity of a device
//! and the time from which on it counts as full, [`law`] says how much may be in flight, [`debt`] sends that much on average although
//! requests are whole, and [`Window`] is all of it for one device.
//!
//! ```text
//!     Gate --has_room? start--> Window --> device --> end
//!                                 ^                    |
//!                                 '- cost, time at the device
//! ```
//!
//! Costs are raw: 1/65,536 of a normalised request. Time is an argument, and no float decides.
//!
//! Source of the law: PARDA (FAST 2009).
#![forbid(unsafe_code)]

pub mod block;
pub mod claims;
pub mod debt;
pub mod demand;
pub mod dues;
pub mod exchange;
pub mod law;
pub mod too_low;
pub mod window;

pub use exchange::Exchange;
pub use law::Aim;
pub use window::{Order, Report, State, Window};
