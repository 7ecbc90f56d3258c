//! Statistics of every VM, for SIGUSR1 and for the exit.

use sluice_api::object::ObjectId;
use sluice_api::printed::{self, GuestSocket};
use sluice_api::status::{NotServed, Operation};
use sluice_io::device::{Health, Snapshot, VmSnapshot};
use sluice_sched::gate::histogram::Histogram;
use sluice_sched::{Kind, Phase, Wait};

use crate::output::{self, Format};

/// State of the host apart from its devices.
pub struct HostState {
    /// Maximum number of open connections.
    pub connections_max: u32,
    pub sockets: Vec<GuestSocket>,
    pub missing: Vec<ObjectId>,
    /// Volumes that are held back, and why.
    pub held: Vec<NotServed>,
}

/// Prints the statistics of all devices and the state of the host.
pub fn print(devices: &[Snapshot], host: HostState, format: Format) {
    match format {
        Format::Json => output::json(&printed::Line::Accounts(printed::Accounts {
            devices: devices.iter().map(device).collect(),
            guest_sockets: host.sockets,
            out_of_service: host.missing,
            held_back: host.held,
            connections_max: host.connections_max,
        })),
        Format::Table => print_table(devices, &host),
    }
}

fn device(device: &Snapshot) -> printed::Device {
    printed::Device {
        device: device.device.clone(),
        health: sluice_api::status::Health::named(device.health.name()),
        queued: device.queued,
        in_flight: device.in_flight,
        connections: device.connections,
        turns: device.iterations,
        restarts: device.restarts,
        stale_messages: device.stale_messages,
        vms: device.vms.iter().map(vm).collect(),
    }
}

fn micros(histogram: &Histogram, percent: f64) -> Option<f64> {
    histogram.percentile(percent).map(|nanos| nanos as f64 / 1000.0)
}

fn vm(vm: &VmSnapshot) -> printed::Vm {
    let account = &vm.account;
    let completed = Kind::ALL.map(|kind| (Operation::named(kind.name()), account.completed()[kind as usize]));
    let waited_for = Wait::ALL.map(|wait| (printed_wait(wait), account.waited_for(wait)));
    let lost = vm.volumes.iter().filter(|volume| volume.faults.is_lost);
    let percentiles = |times: &Histogram| printed::Percentiles { p50: micros(times, 50.0), p99: micros(times, 99.0) };
    printed::Vm {
        vm: vm.vm.clone(),
        completed: completed.into(),
        completed_normalised: account.service(),
        bytes: account.bytes,
        failed: account.failed,
        cancelled: account.cancelled,
        refused: vm.refused,
        protocol_errors: vm.protocol_errors,
        outstanding: vm.outstanding,
        writes_fail: lost.map(|volume| volume.volume.clone()).collect(),
        dispatched: printed::Dispatched {
            reservation: account.dispatched_in(Phase::Reservation),
            weight: account.dispatched_in(Phase::Weight),
            other: account.dispatched_in(Phase::None),
        },
        waited_for: waited_for.into(),
        queue_us: percentiles(&account.queue_time),
        service_us: percentiles(&account.service_time),
    }
}

fn printed_wait(wait: Wait) -> sluice_api::list::Wait {
    sluice_api::list::Wait::named(wait.name())
}

/// Returns the causes for which requests waited before their dispatch, each as a part of all requests.
fn waits(count: impl Fn(Wait) -> u64) -> String {
    let causes = [
        (Wait::OwnLimit, "its limit"),
        (Wait::Share, "others"),
        (Wait::Device, "the device"),
        (Wait::Batch, "a batch"),
        (Wait::Anticipation, "anticipation"),
    ];
    let counts = causes.map(|(cause, name)| (count(cause), name));
    let all = counts.iter().fold(count(Wait::None), |sum, (count, _)| sum + count);
    let part = |(count, name): &(u64, &str)| format!("{name} {:.0} %", 100.0 * *count as f64 / all as f64);
    let parts: Vec<String> = counts.iter().filter(|(count, _)| *count > 0).map(part).collect();
    if parts.is_empty() { "-".to_owned() } else { parts.join(", ") }
}

/// Columns of the table for people.
const HEADER: [&str; 10] = [
    "DEVICE",
    "VM",
    "NORMALISED",
    "BYTES",
    "FAILED",
    "BY RESERVATION",
    "BY WEIGHT",
    "QUEUE P99",
    "DEVICE P99",
    "WAITED FOR",
];

fn print_table(devices: &[Snapshot], host: &HostState) {
    let mut rows = vec![HEADER.map(str::to_owned)];
    for device in devices {
        for vm in &device.vms {
            let account = &vm.account;
            let time = |histogram| micros(histogram, 99.0).map_or("-".to_owned(), |us| format!("{us:.0} us"));
            rows.push([
                device.device.clone(),
                vm.vm.clone(),
                format!("{:.0}", account.service()),
                account.bytes.to_string(),
                account.failed.to_string(),
                account.dispatched_in(Phase::Reservation).to_string(),
                account.dispatched_in(Phase::Weight).to_string(),
                time(&account.queue_time),
                time(&account.service_time),
                waits(|cause| account.waited_for(cause)),
            ]);
        }
    }
    output::line(&aligned(&rows));
    for device in devices.iter().filter(|device| !matches!(device.health, Health::Serving | Health::Ended)) {
        output::line(&format!("Device {} is {}", device.device, device.health.name()));
    }
    for volume in &host.missing {
        output::line(&format!("Volume {volume} is out of service"));
    }
    for held in &host.held {
        output::line(&format!("Volume {} is held back: {}", held.volume, held.reason));
    }
    output::line(&format!("At most {} connections are allowed", host.connections_max));
}

/// Returns rows as lines with aligned columns.
fn aligned<const N: usize>(rows: &[[String; N]]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default();
    let widths: [usize; N] = std::array::from_fn(width);
    let line = |row: &[String; N]| {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!(" {cell:<width$} "));
        cells.collect::<String>().trim_end().to_owned()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_of_waiting_are_shown_in_percent() {
        let counted = |cause| match cause {
            Wait::None => 50,
            Wait::OwnLimit => 30,
            Wait::Device => 20,
            Wait::Share | Wait::Batch | Wait::Anticipation => 0,
        };
        assert_eq!(waits(counted), "its limit 30 %, the device 20 %");
        assert_eq!(waits(|cause| u64::from(cause == Wait::None)), "-");
        assert_eq!(waits(|_| 0), "-");
    }
}
