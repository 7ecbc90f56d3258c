//! `cargo xtask bench pool`: a minimum that holds although other hosts use the same storage, and what one host does for a VM that keeps one
//! request outstanding. The client is fio, and the storage a throttle of qemu's behind FUSE.

mod alone;
mod bed;
mod ceph;
mod hosts;
mod load;

use std::path::PathBuf;

use super::report::Report;
use super::server::{build_sluice, has};

/// Options of the benchmark.
#[derive(Debug, clap::Args)]
pub(super) struct Options {
    /// Length of a run in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    seconds: usize,
    /// Number of runs of each row.
    #[arg(long, value_name = "N", default_value_t = 5)]
    rounds: usize,
    /// Only the rows whose names contain this.
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
    /// Only the rows of hosts that share a Ceph cluster, which `crates/sluice/tests/ceph/cluster.sh up FOLDER` has started. Its pool completes about 2,000
    /// requests per second then, because each OSD holds each request for a while.
    #[arg(long, value_name = "FOLDER")]
    ceph: Option<PathBuf>,
}

pub(super) fn run(options: &Options, quick: bool) -> Result<Report, String> {
    for (program, package) in [("fio", "fio"), ("qemu-storage-daemon", "qemu-system-common"), ("nbdfuse", "libnbd-bin")]
    {
        if !has(program) {
            return Err(format!("{program} is missing: install the package {package}"));
        }
    }
    build_sluice()?;
    let mut report = Report::new("pool");
    if options.ceph.is_none() {
        alone::measure(options, quick, &mut report)?;
    }
    hosts::measure(options, quick, &mut report)?;
    Ok(report)
}
