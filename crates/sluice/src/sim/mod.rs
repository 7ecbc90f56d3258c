//! What is made of runs: what is printed, what is written into a folder, and what a sweep of them comes to.

#[cfg(feature = "parquet")]
mod columns;
pub(crate) mod folder;
pub(crate) mod logs;
pub(crate) mod report;
pub(crate) mod results;
pub(crate) mod summary;
pub(crate) mod sweep;
