//! Console: what `sluice` and the laboratory share of a command line.
//!
//! | module | contents |
//! |---|---|
//! | `lab` | the arguments of the laboratory's verbs |
//! | `progress` | progress of long commands |
//! | `rows` | forms of results that are rows |
//! | `table` | tables |
#![forbid(unsafe_code)]

pub mod lab;
pub mod progress;
pub mod rows;
pub mod table;
