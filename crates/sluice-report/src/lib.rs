//! Building blocks of reports: charts as SVG, tables, and a page that needs no network and no script.
//!
//! The same input gives the same bytes, so that reports can be compared.
//!
//! ```
//! use sluice_report::{Chart, Line};
//! let line = Line::new("vm1", vec![(0.0, 300.0), (1.0, 310.0)]);
//! let svg = Chart::lines("Throughput", "time [s]", "IOPS", vec![line]).svg();
//! assert!(svg.starts_with("<svg"));
//! ```
#![forbid(unsafe_code)]

mod chart;
mod heat;
mod page;
mod table;

pub use chart::{Area, Chart, Level, Line, Shape, Zone};
pub use heat::{Column, Heat};
pub use page::{Page, escape};
pub use table::Table;
