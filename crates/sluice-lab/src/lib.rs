//! The papers, reproduced: every table and figure on modelled devices, with the schedulers that serve real VMs.
//!
//! ```text
//! figure --Setting--> simulations --Finding--> rows: exact | shape over a band | side by side
//!                                     tables, charts --> report
//! ```
//!
//! A figure is one file in `figures/` and a line in its list. It says what was set up, runs it, and says of each row of
//! the acceptance table whether what must come out came out. The device of a paper is fitted to what the paper says of
//! the device, written down in `devices/` with its reasons, and stays as it is for all of that paper's rows.
//!
//! Classes of rows: *exact* must hold on any device; *shape* must hold over a band of the device's parameters, 30 % to
//! both sides, and passes when it does in nine of ten points; what depends on *hardware* is shown beside the paper's
//! numbers and not judged.
#![forbid(unsafe_code)]

pub mod advise;
pub mod band;
pub mod device;
pub mod experiment;
pub mod figure;
pub mod figures;
pub mod parallel;
pub mod report;
pub mod run;
pub mod setup;

pub use figure::{Class, Figure, Finding, LabError, Paper, RowSpec};
pub use run::{Plan, Row, Verdict};
