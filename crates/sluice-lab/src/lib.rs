//! Reproduction of the papers: every table and figure on modelled devices, with the schedulers that serve real VMs.
//!
//! ```text
//! figure --BandPoint--> simulations --Finding--> rows: conformance | shape over a range | hardware
//!                                     tables, charts --> report
//! ```
//!
//! A figure is one file in `figures/` and one line in its list. It describes its set-up, runs it, and checks each row
//! of the acceptance table. The device of a paper is fitted to the paper's statements about it, documented in
//! `devices/` with the reasons, and the same for all of that paper's rows.
//!
//! Classes of rows: *conformance* is a check of our own that must hold wherever it is run. *Shape* must hold over a range of the device's
//! parameters, 30 % to both sides, and of the facts that the paper does not state. Values that depend on *hardware* are shown next to
//! the paper's, without a check, and are near or differ. `verdict.rs` computes a row's verdict from its results; `claims.toml` has what is known of rows
//! apart from results.
#![forbid(unsafe_code)]

pub mod advise;
pub mod band;
pub mod claims;
pub mod device;
pub mod experiment;
pub mod figure;
pub mod figures;
pub mod parallel;
pub mod proof;
pub mod real;
pub mod report;
pub mod run;
pub mod setup;
pub mod verdict;

pub use figure::{Class, Figure, Finding, LabError, Paper, RowSpec};
pub use run::Plan;
pub use verdict::{Row, Verdict};
