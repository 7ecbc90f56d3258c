//! Output of simulated runs: printed summaries, folders of results, and sweeps.

#[cfg(feature = "parquet")]
mod columns;
pub(crate) mod folder;
pub(crate) mod logs;
pub(crate) mod report;
pub(crate) mod results;
pub(crate) mod summary;
pub(crate) mod sweep;
