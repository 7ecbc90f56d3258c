//! Changes at run time: requests of the control socket, and their replies.
//!
//! [`socket`] takes requests, and [`apply`] carries them out. What they are and what is replied are types of `sluice_api`.

pub use sluice_api::request::{Code, MetricsFormat, Request, Written as Reply};

pub mod apply;
pub mod audit;
pub mod changer;
pub mod describe;
pub mod http;
mod keys;
mod loss;
mod overdue;
mod plan;
mod preview;
pub mod roles;
pub mod socket;
mod target;
mod undo;
