//! Wake-ups of the daemon while a connected VM is idle.

use std::fs;
use std::path::Path;
use std::time::Duration;

use super::super::contest::{Kind as _, ServerSettings, Store};
use super::super::report::{Bound, Report};
use super::load::{Load, Target};
use super::peers::{Kind, QUEUES};
use super::{BLOCK, Effort, failed};

/// Wait after the last request, until one-time work and polling of the daemon have ended.
const CALM: Duration = Duration::from_millis(500);

pub(super) fn run(report: &mut Report, effort: Effort) -> Result<(), String> {
    let sockets = tempfile::tempdir().map_err(|error| format!("Cannot make a folder for sockets: {error}"))?;
    let setting = ServerSettings { store: Store::Null, file: Path::new(""), sockets: sockets.path(), beside: &[] };
    let server = Kind::Sluice.start(&setting, sockets.path().join("quiet"))?;
    let server = server.expect("ours is a process");
    let target = Target { socket: server.sockets[0].clone(), queues: QUEUES, depth: 32, block: BLOCK, poll: false };
    let failed = |error| failed("sluice", &error);
    let mut load = Load::start(&[target]).map_err(failed)?;
    load.run(effort.warm).map_err(failed)?;
    load.pause().map_err(failed)?;
    std::thread::sleep(CALM);
    let before = wake_ups(server.pid())?;
    std::thread::sleep(effort.time);
    let wake_ups = wake_ups(server.pid())? - before;
    let per_second = wake_ups as f64 / effort.time.as_secs_f64();
    report.target("wake-ups per second of a daemon whose VM is quiet", Bound::AtMost(0.0), per_second);
    Ok(())
}

/// Returns the number of times that the threads of a process have gone to sleep.
fn wake_ups(pid: u32) -> Result<u64, String> {
    let failed = |error| format!("Cannot read the daemon's threads: {error}");
    let mut total = 0;
    for thread in fs::read_dir(format!("/proc/{pid}/task")).map_err(failed)? {
        let status = fs::read_to_string(thread.map_err(failed)?.path().join("status")).map_err(failed)?;
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        total += line.and_then(|count| count.trim().parse::<u64>().ok()).unwrap_or(0);
    }
    Ok(total)
}
