//! QEMU's throttle filter in qemu-storage-daemon over NBD: one group and one export for each VM.

use std::process::Command;

use super::super::load::{Load, Target};
use super::super::server::Server;
use super::{DEPTH, Effort};

/// Returns IOPS and p99 in microseconds for each limit.
pub(super) fn run(limits: &[u64], effort: Effort) -> Result<Vec<(f64, f64)>, String> {
    let folder = tempfile::tempdir().map_err(|error| format!("Cannot make a folder: {error}"))?;
    let socket = folder.path().join("qsd");
    let mut command = Command::new("qemu-storage-daemon");
    for limit in limits {
        command.arg("--object").arg(format!("throttle-group,id=g{limit},x-iops-total={limit}"));
        command.arg("--blockdev").arg(format!("null-co,read-zeroes=on,size=1073741824,node-name=n{limit}"));
        command.arg("--blockdev").arg(format!("throttle,throttle-group=g{limit},file=n{limit},node-name=t{limit}"));
    }
    command.arg("--nbd-server").arg(format!("addr.type=unix,addr.path={},max-connections=64", socket.display()));
    for limit in limits {
        command.arg("--export").arg(format!("type=nbd,id=e{limit},node-name=t{limit},name=t{limit},writable=off"));
    }
    let _server = Server::start(&mut command, vec![socket.clone()])?;
    let target = |limit| Target { socket: socket.clone(), export: format!("t{limit}"), depth: DEPTH, block: 8192 };
    let targets: Vec<Target> = limits.iter().map(target).collect();
    let failed = |error| format!("qemu-storage-daemon: {error}");
    let mut load = Load::start(&targets).map_err(failed)?;
    load.run(effort.warm).map_err(failed)?;
    let outcomes = load.run(effort.others).map_err(failed)?;
    load.finish().map_err(failed)?;
    Ok(outcomes.iter().map(|outcome| (outcome.iops(), outcome.percentile_us(99.0))).collect())
}
