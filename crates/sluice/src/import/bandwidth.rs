//! A NIC's rates of libvirt and Proxmox as fields of a `net` policy.
//!
//! Both shape by the host's kernel. A NIC without a rate is left as it is: the daemon would add nothing to it.

use std::time::Duration;

use sluice_sched::policy::BURST_MAX;
use sluice_sched::units::{show_duration, show_link_rate};
use sluice_sched::{ByteRate, CostModel};

/// Smallest rate that a host file accepts, in bytes per second.
const RATE_MIN: u64 = 1024;
/// Range of a burst in a host file.
const BURST: (Duration, Duration) = (Duration::from_micros(100), Duration::from_secs(1));

/// A NIC of the VM, with a rate for at least one direction.
#[derive(Debug, Default)]
pub(crate) struct Nic {
    /// Its name in the host file.
    pub(crate) name: String,
    /// The bridge that it is a port of.
    pub(crate) bridge: String,
    pub(crate) mac: Option<String>,
    pub(crate) vlan: Option<u16>,
    pub(crate) mtu: Option<u16>,
    /// Number of pairs of virtqueues.
    pub(crate) queues: Option<u8>,
    /// Maximum rate of sending, in bytes per second.
    pub(crate) sends: Option<u64>,
    /// What may be sent back to back, in bytes.
    pub(crate) burst: Option<u64>,
    /// Maximum rate of receiving, in bytes per second.
    pub(crate) receives: Option<u64>,
    /// Keys and values as the other system writes them, for comments.
    pub(crate) stated: Vec<String>,
}

impl Nic {
    /// Whether it has a rate.
    pub(crate) fn is_limited(&self) -> bool {
        self.sends.is_some() || self.receives.is_some()
    }

    /// Returns the fields, as lines of a host file.
    pub(crate) fn lines(&self, warnings: &mut Vec<String>) -> Vec<String> {
        let mut lines = Vec::new();
        if let Some(rate) = self.sends.map(|rate| self.rate(rate, warnings)) {
            lines.push(format!("limit = \"{}\"", show_link_rate(rate)));
            if let Some(burst) = self.burst.filter(|burst| *burst > 0) {
                lines.push(format!("burst = \"{}\"", show_duration(self.time(burst, rate, warnings))));
            }
        }
        if let Some(rate) = self.receives.map(|rate| self.rate(rate, warnings)) {
            lines.push(format!("receive.limit = \"{}\"", show_link_rate(rate)));
        }
        lines
    }

    fn rate(&self, rate: u64, warnings: &mut Vec<String>) -> ByteRate {
        if rate < RATE_MIN {
            warnings
                .push(format!("{}: a rate of {rate} B/s is raised to 1KiB/s, the smallest of a host file", self.name));
        }
        ByteRate::per_second(rate)
    }

    /// Returns the time that a burst takes at its limit, within what a host file accepts.
    fn time(&self, burst: u64, rate: ByteRate, warnings: &mut Vec<String>) -> Duration {
        let micros = |bytes: u64| u128::from(bytes) * 1_000_000 / u128::from(rate.bytes_per_second());
        let time = |bytes: u64| Duration::from_micros(u64::try_from(micros(bytes)).unwrap_or(u64::MAX));
        let most = time(u64::from(BURST_MAX - 1) * CostModel::frames().reference_size().0).min(BURST.1);
        let stated = time(burst);
        let within = stated.clamp(BURST.0.min(most), most);
        if within != stated {
            let (stated, within) = (show_duration(stated), show_duration(within));
            warnings.push(format!("{}: its burst lasts {stated} at its limit; a host file allows {within}", self.name));
        }
        within
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_and_bursts_become_fields_that_a_host_file_accepts() {
        let lines = |sends, burst, receives| {
            let mut warnings = Vec::new();
            let nic = Nic { name: "net0".into(), sends, burst, receives, ..Nic::default() };
            (nic.lines(&mut warnings), warnings)
        };
        let (all, none) = lines(Some(1_024_000), Some(128 * 1024), Some(2_048_000));
        assert_eq!(all, ["limit = \"8.192Mbit/s\"", "burst = \"128ms\"", "receive.limit = \"16.384Mbit/s\""]);
        assert_eq!(none, [""; 0]);
        let (long, warnings) = lines(Some(1_024_000), Some(10_240_000), None);
        assert_eq!(long, ["limit = \"8.192Mbit/s\"", "burst = \"1s\""]);
        assert_eq!(warnings, ["net0: its burst lasts 10s at its limit; a host file allows 1s"]);
        let (fast, warnings) = lines(Some(1 << 40), Some(1 << 40), None);
        assert_eq!((fast[1].as_str(), warnings.len()), ("burst = \"91us\"", 1), "{fast:?}");
        let (slow, warnings) = lines(Some(5), None, None);
        assert_eq!((slow, warnings.len()), (vec!["limit = \"8.192kbit/s\"".to_owned()], 1));
    }
}
