//! `sluice top`: a display of VMs and devices that refreshes every second.
//!
//! [`app`] is a state machine without terminal, sockets or clock: it gets keys and replies, and returns what is to be done.
//! [`screen`] draws it. [`session`] connects both to a terminal and to the daemon:
//!
//! ```text
//! terminal --keys--> [input thread]  --.
//! daemon --replies-- [fetch thread]  --+--Message--> [session] --> app --> screen --> terminal
//! signals ---------> [signal thread] --'
//! ```

pub(crate) mod app;
pub(crate) mod band;
pub(crate) mod batch;
mod change;
mod details;
mod fetch;
pub(crate) mod model;
pub(crate) mod rows;
mod screen;
pub(crate) mod session;
#[cfg(test)]
mod tests;
mod theme;
