//! fio as a client: load of a given depth, with verified data.

use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use super::{Ended, LONG, Place, run_within, tool};

/// Returns fio with a job file.
pub(crate) fn fio(place: &Place, name: &str, jobs: &str) -> Command {
    // Threads instead of processes, so that killing fio ends its jobs as well.
    let file = place.write(&format!("{name}.fio"), format!("[global]\nthread=1\n{jobs}"));
    let mut command = tool("fio", "fio");
    command.current_dir(place.folder()).args(["--output-format=json", "--eta=never"]).arg(file);
    command
}

/// Runs the jobs to their end; all of them must succeed.
#[track_caller]
pub(crate) fn run(place: &Place, name: &str, jobs: &str) -> Report {
    report(run_within(&mut fio(place, name, jobs), LONG + Duration::from_secs(60)))
}

#[track_caller]
pub(crate) fn report(ended: Ended) -> Report {
    let stderr = ended.stderr.clone();
    let stdout = ended.ok();
    // The engine may print notes before the report.
    let start = stdout.find("\n{").map_or(0, |at| at + 1);
    let report: Value = serde_json::from_str(&stdout[start..]).unwrap_or_else(|error| panic!("{error}: {stdout}"));
    let report = Report(report);
    for job in report.jobs() {
        assert_eq!(job["error"], 0, "{stderr}\n{job}");
    }
    report
}

/// fio's report.
pub(crate) struct Report(Value);

impl Report {
    pub(crate) fn jobs(&self) -> &[Value] {
        self.0["jobs"].as_array().unwrap()
    }

    /// Returns the number of requests of a job in a direction: `read` or `write`.
    pub(crate) fn requests(&self, job: &str, direction: &str) -> u64 {
        let found = self.jobs().iter().find(|found| found["jobname"] == job);
        found.unwrap_or_else(|| panic!("no job {job}"))[direction]["total_ios"].as_u64().unwrap()
    }
}
