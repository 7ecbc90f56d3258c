//! Samples of the running devices.

use std::time::Instant;

use sluice_config::Device;
use sluice_io::device::{DeviceWatch, Health, Snapshot, SnapshotRequest, VmSnapshot};
use sluice_io::source::FaultReport;
use sluice_observe::sample::{
    ClientFaults, CpuSample, DeviceSample, Failure, Faults, PoolSample, VmSample, VolumeSample,
};

use super::Served;

/// Takes a sample of all devices. All are asked before the first is waited for; those that have not replied by their
/// deadline are not serving.
pub(super) fn take(served: &Served, deadline: impl Fn(&str) -> Instant) -> Vec<DeviceSample> {
    let ask = |device: &DeviceWatch| (device.request_snapshot(), deadline(device.name()));
    let asked: Vec<(SnapshotRequest, Instant)> = served.devices.iter().map(ask).collect();
    asked.into_iter().map(|(asked, deadline)| device(served, asked.until(deadline))).collect()
}

fn device(served: &Served, snapshot: Snapshot) -> DeviceSample {
    let host = &served.host;
    let of_uplink = || host.uplinks.get(&snapshot.device).map(|uplink| &uplink.link);
    let stated = host.devices.get(&snapshot.device).or_else(of_uplink);
    DeviceSample {
        at: snapshot.at,
        serving: snapshot.health == Health::Serving,
        health: snapshot.health.name(),
        depth: snapshot.depth,
        window: snapshot.window,
        pool: stated.and_then(pool).map(Box::new),
        capacity: stated.map_or_else(Default::default, |device| device.capacity),
        queued: snapshot.queued,
        in_flight: snapshot.in_flight,
        worked_nanos: snapshot.worked_nanos,
        late_nanos: snapshot.late.nanos,
        late: snapshot.late.times,
        restarts: snapshot.restarts,
        failure: snapshot.failure,
        stats: snapshot.stats,
        uplink: snapshot.uplink,
        vms: snapshot.vms.into_iter().map(vm).collect(),
        device: snapshot.device,
    }
}

/// What the host file states of the pool that a device is a part of.
fn pool(device: &Device) -> Option<PoolSample> {
    let pool = device.pool.as_ref()?;
    Some(PoolSample { meeting: pool.meeting.to_string(), host: pool.host, request_bytes: device.reference.0 })
}

fn client_faults(of: &sluice_io::reactor::spec::Faults) -> ClientFaults {
    ClientFaults { refused: of.refused, refusal: of.refusal, stopped_queues: of.stopped_queues, stopped: of.stopped }
}

fn faults(report: FaultReport) -> Faults {
    let FaultReport { failures, is_lost, ends_at, needs, is_device, away_since } = report;
    let failures = failures.into_iter().map(|one| Failure {
        kind: one.kind,
        errno: one.errno,
        count: one.count,
        has_recovered: one.has_recovered,
    });
    Faults { failures: failures.collect(), is_lost, ends_at, needs, is_device, is_away: away_since.is_some() }
}

fn vm(snapshot: VmSnapshot) -> VmSample {
    let volumes = snapshot.volumes.into_iter().map(|volume| VolumeSample {
        volume: volume.volume,
        policy: volume.policy,
        stats: volume.account,
        outstanding: volume.outstanding,
        clients: volume.clients,
        left: volume.left,
        faults: faults(volume.faults),
        client_faults: client_faults(&volume.client_faults),
        nic: volume.nic,
    });
    let mut volumes: Vec<VolumeSample> = volumes.collect();
    volumes.sort_by(|one, other| one.volume.cmp(&other.volume));
    let cpu = snapshot.cpu;
    VmSample {
        cpu: CpuSample { used_nanos: cpu.used_nanos, held_nanos: cpu.held_nanos, limit: cpu.limit },
        vm: snapshot.vm,
        policy: snapshot.policy,
        stats: snapshot.account,
        outstanding: snapshot.outstanding,
        volumes,
    }
}
