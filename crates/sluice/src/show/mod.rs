//! Replies of the daemon for people: tables and descriptions.

use sluice_api::amount::{bandwidth, bits, mib_per_second, rate};
use sluice_api::cause::Cause;
use sluice_api::policy::Policy;
use sluice_api::status::{Cpu, Disk, Failing, Histograms, Intervals, Nic, Parts, Promise, Rates, State, Vm, Volume};
use sluice_daemon::explain;

pub(crate) mod clients;
pub(crate) mod device;
pub(crate) mod devices;
pub(crate) mod events;
pub(crate) mod history;
pub(crate) mod object;
pub(crate) mod policies;
pub(crate) mod pool;
pub(crate) mod status;
pub(crate) mod vms;

pub(crate) use sluice_api::amount::{NOTHING, field};

/// A VM on one device, or a volume or NIC: what is shown of either.
pub(crate) struct Served<'a> {
    /// `VM`, `VM/VOLUME` or `VM/nic/NIC`.
    pub(crate) name: String,
    pub(crate) device: &'a str,
    pub(crate) state: State,
    pub(crate) promises: &'a [Promise],
    pub(crate) policy: &'a Policy,
    pub(crate) rates: &'a Intervals,
    pub(crate) parts: &'a Parts,
    pub(crate) outstanding: u32,
    pub(crate) clients: u32,
    pub(crate) failed_requests: u64,
    /// What fails now; of a VM with the volume.
    pub(crate) failing: Vec<(Option<&'a str>, &'a Failing)>,
    pub(crate) held_by: Option<Cause>,
    pub(crate) cpu: Option<&'a Cpu>,
    pub(crate) nic: Option<&'a Nic>,
    pub(crate) disk: Option<&'a Disk>,
    pub(crate) histograms: Option<&'a Histograms>,
    /// Scheduler of its device, if it is known.
    pub(crate) scheduler: Option<&'a str>,
}

impl<'a> From<&'a Vm> for Served<'a> {
    fn from(vm: &'a Vm) -> Served<'a> {
        Served {
            name: vm.vm.clone(),
            device: &vm.device,
            state: vm.state,
            promises: &vm.promises,
            policy: &vm.policy,
            rates: &vm.rates,
            parts: &vm.parts,
            outstanding: vm.outstanding,
            clients: vm.clients,
            failed_requests: vm.failed_requests,
            failing: explain::failing_of(vm).collect(),
            held_by: vm.held_by,
            cpu: Some(&vm.cpu),
            nic: None,
            disk: None,
            histograms: vm.histograms.as_ref(),
            scheduler: None,
        }
    }
}

impl<'a> From<&'a Volume> for Served<'a> {
    fn from(volume: &'a Volume) -> Served<'a> {
        Served {
            name: volume.id().to_string(),
            device: &volume.device,
            state: volume.state,
            promises: &volume.promises,
            policy: &volume.policy,
            rates: &volume.rates,
            parts: &volume.parts,
            outstanding: volume.outstanding,
            clients: volume.clients,
            failed_requests: volume.failed_requests,
            failing: volume.failing.iter().map(|failing| (None, failing)).collect(),
            held_by: None,
            cpu: None,
            nic: volume.nic.as_ref(),
            disk: volume.disk.as_ref(),
            histograms: volume.histograms.as_ref(),
            scheduler: None,
        }
    }
}

/// A value as `show` has it, or `-`.
pub(crate) fn shown<T>(value: Option<T>, show: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| NOTHING.to_owned(), show)
}

/// Bytes per second in MiB/s, or of an uplink bits per second with the unit.
pub(crate) fn throughput(bytes_per_second: f64, bits_per_second: Option<f64>) -> String {
    bits_per_second.map_or_else(|| mib_per_second(bytes_per_second), bits)
}

/// Throughput of `rates`.
pub(crate) fn throughput_of(rates: &Rates) -> String {
    throughput(rates.bytes_per_second, rates.bits_per_second)
}

/// Requests per second of `rates`, normalised; of an uplink frames per second.
pub(crate) fn operations(rates: &Rates) -> String {
    rate(if rates.bits_per_second.is_some() { rates.iops } else { rates.normalised_iops })
}

/// A reservation or limit: in requests, in bytes, or both; of a link in bits.
pub(crate) fn amount(is_link: bool, iops: Option<f64>, bytes: Option<f64>) -> String {
    if is_link {
        return shown(bytes, |bytes| bits(8.0 * bytes));
    }
    let bytes = bytes.map(bandwidth);
    let both: Vec<String> = iops.map(rate).into_iter().chain(bytes).collect();
    if both.is_empty() { NOTHING.to_owned() } else { both.join(" ") }
}
