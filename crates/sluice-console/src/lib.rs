//! Console: what `sluice` and the laboratory share of a command line.
//!
//! | module | contents |
//! |---|---|
//! | `lab` | the arguments of the laboratory's verbs |
//! | `progress` | progress of long commands |
//! | `table` | tables |
#![forbid(unsafe_code)]

pub mod lab;
pub mod progress;
pub mod table;
