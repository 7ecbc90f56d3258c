//! Replies of the daemon for people: tables and descriptions.

use sluice_api::cause::Cause;
use sluice_api::policy::Policy;
use sluice_api::status::{Cpu, Disk, Failing, Histograms, Intervals, Nic, Parts, Promise, Rates, State, Vm, Volume};

pub(crate) mod clients;
pub(crate) mod devices;
pub(crate) mod events;
pub(crate) mod history;
pub(crate) mod object;
pub(crate) mod policies;
pub(crate) mod promise;
pub(crate) mod status;
pub(crate) mod vms;
pub(crate) mod why;

/// Text for a value that is not known or not set.
pub(crate) const NOTHING: &str = "-";

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
}

impl<'a> From<&'a Vm> for Served<'a> {
    fn from(vm: &'a Vm) -> Served<'a> {
        let of_volume =
            |volume: &'a Volume| volume.failing.iter().map(|failing| (Some(volume.volume.as_str()), failing));
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
            failing: vm.volumes.iter().flat_map(of_volume).collect(),
            held_by: vm.held_by,
            cpu: Some(&vm.cpu),
            nic: None,
            disk: None,
            histograms: vm.histograms.as_ref(),
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
        }
    }
}

/// A value as `show` has it, or `-`.
pub(crate) fn shown<T>(value: Option<T>, show: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| NOTHING.to_owned(), show)
}

/// A number of requests per second with three digits: `950`, `12.3k`, `1.45M`.
pub(crate) fn rate(value: f64) -> String {
    let (value, unit) = match value {
        value if value >= 999_500.0 => (value / 1e6, "M"),
        value if value >= 9999.5 => (value / 1e3, "k"),
        value => (value, ""),
    };
    match value {
        value if value >= 99.95 || value == 0.0 => format!("{value:.0}{unit}"),
        value if value >= 9.995 => format!("{value:.1}{unit}"),
        value => format!("{value:.2}{unit}"),
    }
}

/// Bytes per second in MiB/s.
pub(crate) fn bandwidth(bytes: f64) -> String {
    match bytes / 1_048_576.0 {
        0.0 => "0".to_owned(),
        mib if mib >= 99.95 => format!("{mib:.0}"),
        mib if mib >= 9.995 => format!("{mib:.1}"),
        mib => format!("{mib:.2}"),
    }
}

/// Bits per second with the unit: `940 Mbit/s`.
pub(crate) fn bits(value: f64) -> String {
    let (value, unit) = match value {
        value if value >= 999.5e6 => (value / 1e9, "Gbit/s"),
        value if value >= 999.5e3 || value == 0.0 => (value / 1e6, "Mbit/s"),
        value => (value / 1e3, "kbit/s"),
    };
    format!("{} {unit}", rate(value))
}

/// Bytes per second in MiB/s, or of an uplink bits per second with the unit.
pub(crate) fn throughput(bytes_per_second: f64, bits_per_second: Option<f64>) -> String {
    bits_per_second.map_or_else(|| bandwidth(bytes_per_second), bits)
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
    let bytes = bytes.map(|bytes| format!("{} MiB/s", bandwidth(bytes)));
    let both: Vec<String> = iops.map(rate).into_iter().chain(bytes).collect();
    if both.is_empty() { NOTHING.to_owned() } else { both.join(" ") }
}

/// A time in microseconds with its unit: `85 us`, `1.2 ms`, `3.4 s`.
pub(crate) fn time(us: f64) -> String {
    match us {
        us if us < 999.5 => format!("{us:.0} us"),
        us if us < 9_995.0 => format!("{:.1} ms", us / 1e3),
        us if us < 999_500.0 => format!("{:.0} ms", us / 1e3),
        us => format!("{:.1} s", us / 1e6),
    }
}

/// A part in percent.
pub(crate) fn percent(percent: f64) -> String {
    format!("{percent:.0} %")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_and_a_unit() {
        let rates = [0.0, 3.456, 950.4, 9999.0, 12_345.0, 1_450_000.0].map(rate);
        assert_eq!(rates, ["0", "3.46", "950", "9999", "12.3k", "1.45M"]);
        assert_eq!(
            [0.0, 64_000.0, 98_400_000.0, 12.4e9].map(bits),
            ["0 Mbit/s", "64.0 kbit/s", "98.4 Mbit/s", "12.4 Gbit/s"]
        );
        assert_eq!([85.0, 1234.0, 45_000.0, 3_400_000.0].map(time), ["85 us", "1.2 ms", "45 ms", "3.4 s"]);
        assert_eq!([Some(0.0), Some(1_048_576.0), None].map(|v| shown(v, bandwidth)), ["0", "1.00", "-"]);
    }
}
