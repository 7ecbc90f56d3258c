//! The black-box tests that need a Ceph cluster, which runs for them alone.

use std::path::PathBuf;
use std::process::Command;

use super::{Tally, programs, tools};
use crate::{package, workspace};

/// The module of the black-box tests.
pub(super) const MODULE: &str = "ceph";
/// Variable by which the tests know the cluster's folder.
const FOLDER: &str = "SLUICE_CEPH";

/// A running cluster.
struct Cluster(PathBuf);

impl Cluster {
    /// # Errors
    /// The script has failed, or what an earlier run left behind cannot be ended.
    fn start() -> Result<Cluster, String> {
        let cluster = Cluster(package::target().join("ceph"));
        cluster.script("down")?;
        cluster.script("up")?;
        Ok(cluster)
    }

    fn script(&self, verb: &str) -> Result<(), String> {
        let script = workspace::root().join("crates/sluice/tests/ceph/cluster.sh");
        let status = Command::new(&script).arg(verb).arg(&self.0).status();
        match status.map_err(|error| format!("Cannot start {}: {error}", script.display()))? {
            status if status.success() => Ok(()),
            status => Err(format!("{} {verb} failed ({status}), see above", script.display())),
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if let Err(error) = self.script("down") {
            println!("error: {error}");
        }
    }
}

/// Starts a cluster, runs the tests with these variables, and ends it.
pub(super) fn run(install: bool, variables: &[(&str, &str)]) -> Result<Tally, String> {
    tools::provide(install, tools::CEPH)?;
    let cluster = Cluster::start()?;
    let folder = cluster.0.to_str().ok_or("The folder of the target is no text")?;
    programs::run_module(MODULE, &[variables, &[(FOLDER, folder)]].concat())
}
