//! The counters of all devices at one instant.

use std::sync::Arc;

use sluice_net::{NicTotals, UplinkTotals};
use sluice_pool::block::Host;
use sluice_pool::exchange::Trouble;
use sluice_sched::admission::Capacity;
use sluice_sched::gate::histogram::Histogram;
use sluice_sched::gate::{DeviceStats, GateStats};
use sluice_sched::{Instant, Kind, Percent, Policy};

/// Counters of all devices, taken about a second after the previous sample.
#[derive(Debug, Clone, Default)]
pub struct Sample {
    /// Time in whole seconds, on any clock that does not go back.
    pub second: u64,
    /// Wall-clock time in seconds since 1970, for output.
    pub time: u64,
    pub devices: Vec<DeviceSample>,
}

/// Counters of one device.
#[derive(Debug, Clone)]
pub struct DeviceSample {
    /// Name in the host file.
    pub device: String,
    /// When it was taken, on the clock of the device. Another origin than before means that the device has restarted.
    pub at: Instant,
    /// Whether the device thread responds; otherwise everything below is unknown.
    pub serving: bool,
    /// State of the device thread in words, for output.
    pub health: &'static str,
    /// Maximum number of requests in flight.
    pub depth: u32,
    /// How much may be in flight, if that follows the time of requests.
    pub window: Option<sluice_pool::State>,
    /// The pool that it is a part of, as the host file states it.
    pub pool: Option<Box<PoolSample>>,
    /// Capacity that the host file states.
    pub capacity: Capacity,
    /// Queued requests.
    pub queued: u64,
    /// Requests in flight.
    pub in_flight: u64,
    /// Time that the device thread has worked, in nanoseconds.
    pub worked_nanos: u64,
    /// Time by which the device thread looked at its requests too late, in nanoseconds, and how often it was how late.
    pub late_nanos: u64,
    pub late: Histogram,
    /// Restarts of the device thread; known even if it does not respond.
    pub restarts: u64,
    /// Why it failed before the last of them.
    pub failure: Option<String>,
    pub stats: DeviceStats,
    /// Counters of its interface, if it is an uplink.
    pub uplink: Option<Box<UplinkTotals>>,
    pub vms: Vec<VmSample>,
}

/// What the host file states of a pool that a device is a part of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolSample {
    /// The file or block device where the hosts meet.
    pub meeting: String,
    /// Number of this host.
    pub host: Host,
    /// Size in bytes of a request that counts as one.
    pub request_bytes: u64,
}

/// Counters of one VM on one device.
#[derive(Debug, Clone)]
pub struct VmSample {
    /// Name in the host file.
    pub vm: String,
    /// Policy on this device.
    pub policy: Policy,
    pub stats: Arc<GateStats>,
    pub cpu: CpuSample,
    /// Requests that were taken from clients and are not answered.
    pub outstanding: u32,
    pub volumes: Vec<VolumeSample>,
}

/// CPU time of the device thread for one VM.
#[derive(Debug, Clone, Copy, Default)]
pub struct CpuSample {
    /// Time that was used for it, in nanoseconds.
    pub used_nanos: u64,
    /// Time for which its limit held it back although it had requests, in nanoseconds.
    pub held_nanos: u64,
    /// Part of a CPU that it may use.
    pub limit: Option<Percent>,
}

/// Counters of one volume.
#[derive(Debug, Clone)]
pub struct VolumeSample {
    /// Name in the host file.
    pub volume: String,
    /// Policy of the volume, inside that of its VM.
    pub policy: Policy,
    /// `None` if they are those of the VM.
    pub stats: Option<Arc<GateStats>>,
    /// Requests that were taken from clients and are not answered.
    pub outstanding: u32,
    /// Clients that are connected.
    pub clients: u32,
    /// Clients that have ended their session in order, since the volume was opened.
    pub left: u64,
    pub client_faults: ClientFaults,
    pub faults: Faults,
    /// Counters of frames, if it is a NIC.
    pub nic: Option<Box<NicTotals>>,
}

/// What a volume or NIC does not do for its clients, since the start of its device thread.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ClientFaults {
    /// Requests that were refused.
    pub refused: u64,
    /// Why the last one was refused.
    pub refusal: Option<&'static str>,
    /// Queues that take no requests until their driver is reset.
    pub stopped_queues: u32,
    /// Why the last one has stopped.
    pub stopped: Option<&'static str>,
}

/// Faults of a volume's source, or of a NIC's uplink.
#[derive(Debug, Clone, Default)]
pub struct Faults {
    /// Requests that have failed since the source was opened; of a NIC frames that the interface did not take.
    pub failures: Vec<Failure>,
    /// Whether writes and flushes fail, because a failed sync may have lost data.
    pub is_lost: bool,
    /// End of the source in bytes, if it is shorter than `needs`.
    pub ends_at: Option<u64>,
    /// End of the volume in its source, in bytes.
    pub needs: u64,
    /// Whether the source is a block device.
    pub is_device: bool,
    /// Whether it is on a server that is away.
    pub is_away: bool,
}

/// Failed requests of one kind with one errno.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failure {
    pub kind: Kind,
    pub errno: i32,
    pub count: u64,
    /// Whether a request of that kind has succeeded since the last of them.
    pub has_recovered: bool,
}

impl DeviceSample {
    /// A sample of a device of which nothing is known.
    #[must_use]
    pub fn unknown(device: &str) -> DeviceSample {
        DeviceSample {
            device: device.to_owned(),
            at: Instant::ZERO,
            serving: false,
            health: "unknown",
            depth: 0,
            window: None,
            pool: None,
            capacity: Capacity::default(),
            queued: 0,
            in_flight: 0,
            worked_nanos: 0,
            late_nanos: 0,
            late: Histogram::default(),
            restarts: 0,
            failure: None,
            stats: DeviceStats::default(),
            uplink: None,
            vms: Vec::new(),
        }
    }

    /// The time in nanoseconds that the device takes for one request, if the stated one is below it. In a pool the hosts find it together.
    #[must_use]
    pub fn own_time(&self) -> Option<u64> {
        let window = self.window.as_ref()?;
        let of_pool = |trouble: &Trouble| if let Trouble::TooLow(own) = trouble { Some(*own) } else { None };
        window.own_time.or_else(|| window.pool.as_ref()?.troubles.iter().find_map(of_pool))
    }

    /// Finds a VM, if the VMs are sorted by name.
    pub(crate) fn vm(&self, name: &str) -> Option<&VmSample> {
        let index = self.vms.binary_search_by(|vm| vm.vm.as_str().cmp(name)).ok()?;
        Some(&self.vms[index])
    }

    /// Counters of a volume. Those of a VM with one volume are those of the volume.
    pub(crate) fn stats_of_volume(&self, vm: &str, volume: &str) -> Option<&GateStats> {
        let vm = self.vm(vm)?;
        let volume = vm.volumes.iter().find(|known| known.volume == volume)?;
        Some(volume.stats.as_deref().unwrap_or(&vm.stats))
    }

    /// The sum of all reservations in normalised requests per second.
    #[must_use]
    pub fn reserved_iops(&self) -> f64 {
        // The sum of no numbers is -0.0.
        self.vms.iter().map(VmSample::reserved_iops).sum::<f64>() + 0.0
    }

    /// The sum of all reservations in bytes per second.
    #[must_use]
    pub fn reserved_bytes(&self) -> u64 {
        self.vms.iter().map(VmSample::reserved_bytes).sum()
    }
}

impl VmSample {
    /// Its reservation in normalised requests per second; 0 without one.
    pub(crate) fn reserved_iops(&self) -> f64 {
        self.policy.reservation.iops.map_or(0.0, |iops| iops.as_f64())
    }

    /// Its reservation in bytes per second; 0 without one.
    pub(crate) fn reserved_bytes(&self) -> u64 {
        self.policy.reservation.bytes.map_or(0, |rate| rate.bytes_per_second())
    }

    /// The part of a device that it reserves, by the larger of its reservations; 0 without a stated capacity.
    pub(crate) fn reserved_part(&self, stated: &Capacity) -> f64 {
        let by_requests = stated.iops.map_or(0.0, |stated| self.reserved_iops() / stated.as_f64());
        let by_bytes =
            stated.bytes.map_or(0.0, |stated| self.reserved_bytes() as f64 / stated.bytes_per_second() as f64);
        by_requests.max(by_bytes)
    }

    pub(crate) fn clients(&self) -> u32 {
        self.volumes.iter().map(|volume| volume.clients).sum()
    }
}
