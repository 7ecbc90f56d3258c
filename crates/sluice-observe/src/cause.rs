//! Why a VM gets less, or waits longer, than it should.

use serde::Serialize;
use sluice_sched::gate::histogram::SparseHistogram;
use sluice_sched::policy::Limit;
use sluice_sched::{Phase, Policy, Wait};

use crate::flow::Flow;

/// Part of the time above which a device thread has no time left.
pub(crate) const THREAD_BUSY: f64 = 0.95;
/// Part of the time without a free slot above which a device is full.
const DEVICE_FULL: f64 = 0.5;
/// Part of the time without a free slot above which a device has not idled.
const ALWAYS_FULL: f64 = 0.95;
/// Part of the stated capacity from which on a device gives what is stated.
const AS_STATED: f64 = 0.9;
/// Part of what is reserved or stated from which on nothing of it is missing.
pub(crate) const NEARLY_ALL: f64 = 0.97;
/// Part of the service of a device below which all other VMs together do not explain a queue.
const NEIGHBOURS_MATTER: f64 = 0.2;
/// Part of a limit from which on a VM has got what the limit lets through.
const AT_LIMIT: f64 = 0.9;
/// Part of the time from which on it matters that the device thread is late.
const LATE_MATTERS: f64 = 0.03;
/// Part of a shortfall that lateness of the device thread must be able to cause. Parts are those of the time.
const LATE_EXPLAINS: f64 = 0.5;
/// Part of the time from which on a VM is held back by its limit of CPU time.
const HELD_BACK: f64 = 0.1;

/// The main cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// The VM's own limit, or that of its volume.
    OwnLimit,
    /// The VM's own limit of CPU time of the daemon.
    OwnCpuLimit,
    /// Its own requests queue behind each other, or it keeps too few outstanding.
    OwnQueue,
    /// The reservations of other VMs.
    OthersReservation,
    /// The weights of other VMs.
    OthersWeight,
    /// A batch of adjacent requests of another VM.
    Batch,
    /// The scheduler left the device idle in expectation of a better request.
    Anticipation,
    /// The device is slow, stalled or down.
    Device,
    /// The device thread of the daemon has no CPU time left.
    DaemonCpu,
    /// The source of the volume is not the one that was last served.
    SourceChanged,
    /// The source of the volume, its socket or its device cannot be opened, or does not respond.
    SourceUnavailable,
    /// The interface of the uplink, or the TAP of the NIC, is missing, down or in use.
    Interface,
    /// What the client of the volume or NIC sends, or the memory that its VMM shares.
    Client,
    /// The file system of the source has no space.
    NoSpace,
    /// The disk or the file system of the source returns errors.
    Errors,
    /// A sync failed, so that writes may be lost, and writes fail until the loss is accepted.
    LostWrites,
    /// The source is a file that has become shorter than the volume.
    SourceShortened,
    /// The source is a block device that has become smaller than the volume.
    DeviceShrunk,
    /// Sparse images may still grow by more than is free on their file system.
    LowSpace,
}

const NO_SPACE: &str = "Free space on the file system of the source (of a thin volume, in its pool), extend it, or raise its quota. Then resume a VM that \
     QEMU has paused; a guest that has made its file system read-only must check it and mount it again.";

const SHRUNK: &str = "The device is smaller than the volume, and what was behind its end may be lost: give the device its size back (`lvextend`, its \
     partition table, or `losetup -c` after its file has been extended), and let the guest check its file system, or restore the data \
     from a backup. Until then requests past the end fail.";

const SHORTENED: &str = "Another program has cut the file, and what was behind the end is lost: find that program, and restore the data from a \
     backup. The daemon does not extend the file; `truncate -s` to the size of the volume does, with zeroes.";

impl Cause {
    pub const ALL: [Cause; 19] = [
        Cause::OwnLimit,
        Cause::OwnCpuLimit,
        Cause::OwnQueue,
        Cause::OthersReservation,
        Cause::OthersWeight,
        Cause::Batch,
        Cause::Anticipation,
        Cause::Device,
        Cause::DaemonCpu,
        Cause::SourceChanged,
        Cause::SourceUnavailable,
        Cause::Interface,
        Cause::Client,
        Cause::NoSpace,
        Cause::Errors,
        Cause::LostWrites,
        Cause::SourceShortened,
        Cause::DeviceShrunk,
        Cause::LowSpace,
    ];

    /// Name in machine-readable output.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Cause::OwnLimit => "own_limit",
            Cause::OwnCpuLimit => "own_cpu_limit",
            Cause::OwnQueue => "own_queue",
            Cause::OthersReservation => "others_reservation",
            Cause::OthersWeight => "others_weight",
            Cause::Batch => "batch",
            Cause::Anticipation => "anticipation",
            Cause::Device => "device",
            Cause::DaemonCpu => "daemon_cpu",
            Cause::SourceChanged => "source_changed",
            Cause::SourceUnavailable => "source_unavailable",
            Cause::Interface => "interface",
            Cause::Client => "client",
            Cause::NoSpace => "no_space",
            Cause::Errors => "errors",
            Cause::LostWrites => "lost_writes",
            Cause::SourceShortened => "source_shortened",
            Cause::DeviceShrunk => "device_shrunk",
            Cause::LowSpace => "low_space",
        }
    }

    /// In words, for people.
    #[must_use]
    pub const fn in_words(self) -> &'static str {
        match self {
            Cause::OwnLimit => "its own limit",
            Cause::OwnCpuLimit => "its own limit of CPU time",
            Cause::OwnQueue => "its own queue",
            Cause::OthersReservation => "reservations of other VMs",
            Cause::OthersWeight => "weights of other VMs",
            Cause::Batch => "a batch of another VM",
            Cause::Anticipation => "anticipation of the scheduler",
            Cause::Device => "the device",
            Cause::DaemonCpu => "CPU time of the daemon",
            Cause::SourceChanged => "its source is not the one that was served before",
            Cause::SourceUnavailable => "its source, socket or device cannot be opened or does not respond",
            Cause::Interface => "its interface is missing, down or in use",
            Cause::Client => "what its client sends, or the memory that its VMM shares",
            Cause::NoSpace => "the file system of its source has no space",
            Cause::Errors => "errors of its disk or file system",
            Cause::LostWrites => "a sync failed, and writes may be lost",
            Cause::SourceShortened => "its source was cut",
            Cause::DeviceShrunk => "its device is smaller than the volume",
            Cause::LowSpace => "sparse images may outgrow their file system",
        }
    }

    /// A remedy, for people.
    #[must_use]
    pub const fn advice(self) -> &'static str {
        match self {
            Cause::OwnLimit => "Raise the limit of the VM or of its volume, or let the guest ask for less.",
            Cause::OwnCpuLimit => {
                "Raise `cpu_limit` of the VM or of its policy, or let the guest send fewer and larger requests or frames: most of \
                 the CPU time is for each of them and not for its bytes."
            }
            Cause::OwnQueue => {
                "The guest decides: a longer queue gives more throughput, a shorter one less latency. A limit below what \
                 the device gives does not shorten its queue."
            }
            Cause::OthersReservation => {
                "Give the VM a reservation, lower the reservations of its neighbours, or move one of them to another \
                 device."
            }
            Cause::OthersWeight => "Give the VM a reservation or a larger weight, or limit its neighbours.",
            Cause::Batch => "Make batches shorter (`batch` of the scheduler), or set it to 0.",
            Cause::Anticipation => {
                "Shorten or switch off the idle window of the scheduler; on an SSD it is never worth its time."
            }
            Cause::Device => {
                "Look at the device (`sluice doctor`, the kernel log). If it is healthy, lower the stated capacity to what \
                 it gives, and the reservations with it."
            }
            Cause::DaemonCpu => {
                "Give the device thread a CPU of its own, start the daemon at a higher priority (`Nice=` or `CPUWeight=` of its unit), \
                 or spread the volumes over several devices."
            }
            Cause::SourceChanged => {
                "Correct the host file or restore the source, and reload; or accept the new source with `sluice apply FILE --force \
                 VM/VOLUME`."
            }
            Cause::SourceUnavailable => {
                "Look at the path of the source, its file system and the kernel log. The daemon tries again each second, and \
                 serves the volume when it can be opened."
            }
            Cause::Interface => {
                "Look at the interface (`ip link`, `sluice doctor`): make it, switch it on, or name another one in the host file. The \
                 daemon looks each second, and uses it when it is there."
            }
            Cause::Client => {
                "Look at the reason in `sluice events` and at the guest's kernel log. If it is memory that the daemon was not given, make \
                 every memory backend of the VM share=on, and restart the VM."
            }
            Cause::NoSpace => NO_SPACE,
            Cause::Errors => {
                "Look at the kernel log and at the disk and the file system of the source. If the disk is failing, move the volume \
                 while its data can be read."
            }
            Cause::LostWrites => {
                "Look at the kernel log and at the disk. When it is healthy, let the guest check its file system, and accept the loss \
                 with `sluice accept-loss VM/VOLUME`; until then writes and flushes fail."
            }
            Cause::LowSpace => "Free space, extend the file system, or allocate images (`fallocate -l SIZE IMAGE`).",
            Cause::SourceShortened => SHORTENED,
            Cause::DeviceShrunk => SHRUNK,
        }
    }
}

/// How late a device thread was to look at its requests.
#[derive(Debug, Clone, Copy, Default)]
pub struct Lateness {
    /// Part of the interval in which it was late, 0 to 1.
    pub part: f64,
    /// The same of the last ten seconds.
    pub part_of_ten_seconds: f64,
    /// Nanoseconds by which it was late once, at the most.
    pub longest: u64,
}

impl Lateness {
    /// Whether it can be the main reason for missing a part of the interval's service, 0 to 1.
    fn explains(&self, missing: f64) -> bool {
        let part = self.part.max(self.part_of_ten_seconds);
        part >= LATE_MATTERS && part >= LATE_EXPLAINS * missing
    }
}

/// State of the device in the same interval.
#[derive(Debug, Clone, Copy)]
pub struct DeviceState {
    /// Whether its thread responds and requests complete.
    pub serving: bool,
    /// Whether the daemon itself stood still: the interval is much longer than the time between two samples.
    pub is_late: bool,
    /// Part of the interval in which no slot was free, 0 to 1.
    pub full: f64,
    /// Part of the interval in which its thread worked, 0 to 1.
    pub worked: f64,
    /// How late its thread was.
    pub late: Lateness,
    /// Completed service as a part of the stated capacity; `None` if none is stated.
    pub given: Option<f64>,
    /// Seconds until a request that is due is taken: for the one that it works on, and for one of each VM that is due too.
    pub turn: f64,
    /// Whether it completed less than what VMs with requests queued had reserved for that time.
    pub misses_reservations: bool,
}

impl DeviceState {
    /// Whether its thread had no time left, and the device could have done more.
    fn lacks_cpu(&self) -> bool {
        self.is_late || self.worked >= THREAD_BUSY && !self.does_its_part()
    }

    fn does_its_part(&self) -> bool {
        self.full >= DEVICE_FULL && self.given.is_some_and(|given| given >= AS_STATED)
    }

    /// The facts behind [`Cause::DaemonCpu`], in words.
    #[must_use]
    pub fn cpu_in_words(&self) -> String {
        if self.is_late {
            return "the daemon took no sample for seconds".to_owned();
        }
        let Lateness { part, part_of_ten_seconds, longest } = self.late;
        if self.worked >= THREAD_BUSY {
            return format!("the device thread worked for {:.0} % of the time", 100.0 * self.worked);
        }
        let millis = longest as f64 / 1e6;
        let percent = 100.0 * part.max(part_of_ten_seconds);
        format!("the device thread looked at its requests up to {millis:.0} ms late, in {percent:.0} % of the time")
    }

    /// Whether it was full and gave less than its stated capacity in that time.
    fn is_slow(&self) -> bool {
        self.full >= DEVICE_FULL && self.given.is_some_and(|given| given < AS_STATED * self.full)
    }
}

/// Whether a VM or volume got about what the limits of its policy let through. Of limits for one direction that is not known, so
/// with them it is assumed.
#[must_use]
pub fn reaches(policy: &Policy, flow: &Flow) -> bool {
    let of = |got: f64, rate: f64| flow.nanos > 0 && flow.per_second(got) >= AT_LIMIT * rate;
    let by_requests = policy.limit.iops.is_some_and(|limit| of(flow.dispatched_requests(), limit.as_f64()));
    let by_bytes =
        policy.limit.bytes.is_some_and(|limit| of(flow.dispatched_bytes as f64, limit.bytes_per_second() as f64));
    by_requests || by_bytes || policy.read_limit != Limit::default() || policy.write_limit != Limit::default()
}

/// A VM and its neighbours on one device.
#[derive(Debug, Clone, Copy)]
pub struct Scene<'a> {
    pub device: DeviceState,
    /// The VM in question.
    pub own: &'a Flow,
    /// The sum of all others: what they dispatched.
    pub others: &'a Flow,
    /// Whether it or one of its volumes got what a limit lets through, see [`reaches`].
    pub at_limit: bool,
}

impl Scene<'_> {
    /// Why a reservation that was asked for was not met. `missing`: the part of it that was missing, 0 to 1.
    #[must_use]
    pub fn why_too_little(&self, missing: f64) -> Cause {
        let cause = self.device_down().or_else(|| self.lacks_own_cpu());
        let cause = cause.or_else(|| self.thread_late(missing));
        cause.or_else(|| self.scheduler_waits()).unwrap_or_else(|| self.device_or_others())
    }

    /// Why requests took longer than the latency target of `target` nanoseconds.
    ///
    /// A VM whose requests would be late even if it had the whole device to itself has too many of them. Example: 64
    /// outstanding requests take 128 ms at half of a device, and 64 ms alone. For a target of 20 ms that is its own queue,
    /// for one of 100 ms the neighbour's half.
    #[must_use]
    pub fn why_too_late(&self, target: u64) -> Cause {
        if let Some(cause) = self.device_down().or_else(|| self.lacks_own_cpu()) {
            return cause;
        }
        // If most requests are late, single delays are not the reason.
        let is_single = self.own.latency.percentile(50.0).unwrap_or(0) <= target;
        if self.device.late.longest >= target && (is_single || self.device.late.part >= LATE_EXPLAINS) {
            return Cause::DaemonCpu;
        }
        let p99 = |times: &SparseHistogram| times.percentile(99.0).unwrap_or(0);
        let is_late_at_device = p99(&self.own.service_time) > p99(&self.own.queue_time);
        // A device that gives all that is stated is not slow: requests queue there as they would at the gate.
        if is_late_at_device && self.device.given.is_none_or(|given| given < AS_STATED) {
            return Cause::Device;
        }
        if let Some(cause) = self.scheduler_waits().filter(|_| !is_late_at_device) {
            return cause;
        }
        let alone = self.own.latency.percentile(50.0).unwrap_or(0) as f64 * (1.0 - self.part_of_others());
        if self.device.is_slow() {
            Cause::Device
        } else if self.has_neighbours() && alone <= target as f64 {
            self.others()
        } else {
            Cause::OwnQueue
        }
    }

    /// Why it does not get more, although nothing was promised.
    #[must_use]
    pub fn why_not_more(&self) -> Cause {
        // Without a queue at the gate, each request is submitted when it arrives.
        if self.own.backlogged() < 0.5 && self.device.serving && self.lacks_own_cpu().is_none() {
            return Cause::OwnQueue;
        }
        match self.why_too_little(1.0) {
            Cause::OthersReservation | Cause::OthersWeight if !self.has_neighbours() => Cause::Device,
            cause => cause,
        }
    }

    /// The device is stalled, or its thread has no time.
    fn device_down(&self) -> Option<Cause> {
        let down = (!self.device.serving).then_some(if self.device.is_late { Cause::DaemonCpu } else { Cause::Device });
        down.or_else(|| self.device.lacks_cpu().then_some(Cause::DaemonCpu))
    }

    /// Its device thread was late for so long that the device idled. If the device gives what is stated, or the VM gets what its
    /// limits let through, this did no harm: what is late is made up for.
    fn thread_late(&self, missing: f64) -> Option<Cause> {
        let harms = !self.at_limit && !self.device.does_its_part();
        (harms && self.device.late.explains(missing * self.own.backlogged())).then_some(Cause::DaemonCpu)
    }

    /// Its limit of CPU time kept its requests where they were.
    fn lacks_own_cpu(&self) -> Option<Cause> {
        (self.own.held() >= HELD_BACK).then_some(Cause::OwnCpuLimit)
    }

    /// The reason for which the scheduler held back a request of the VM that it could have dispatched, if that was the main one.
    /// A batch lasts as long as the device takes for it: behind one on a device that gives too little, requests wait for the device.
    fn scheduler_waits(&self) -> Option<Cause> {
        match self.own.main_wait()? {
            Wait::OwnLimit => Some(Cause::OwnLimit),
            Wait::Batch if self.device.is_slow() || self.misses_reservations() => Some(Cause::Device),
            Wait::Batch => Some(Cause::Batch),
            // Requests that waited through a moment of idling are of no account at a device that was busy all the time.
            Wait::Anticipation => (self.device.full < ALWAYS_FULL).then_some(Cause::Anticipation),
            Wait::None | Wait::Share | Wait::Device => None,
        }
    }

    /// Part of the service of the device that others got, 0 to 1.
    fn part_of_others(&self) -> f64 {
        let all = self.own.dispatched_cost + self.others.dispatched_cost;
        if all == 0 { 0.0 } else { self.others.dispatched_cost as f64 / all as f64 }
    }

    fn has_neighbours(&self) -> bool {
        self.part_of_others() >= NEIGHBOURS_MATTER
    }

    fn device_or_others(&self) -> Cause {
        if self.misses_reservations() || !self.has_neighbours() { Cause::Device } else { self.others() }
    }

    /// Whether the device gave less than VMs with a queue had reserved. Reservations beyond the stated capacity are no fault of a
    /// device that gives all of it.
    fn misses_reservations(&self) -> bool {
        self.device.misses_reservations && self.device.given.is_none_or(|given| given < NEARLY_ALL)
    }

    fn others(&self) -> Cause {
        match self.others.by(Phase::Reservation) {
            Some(part) if part > 0.5 => Cause::OthersReservation,
            Some(_) | None => Cause::OthersWeight,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Load that begins or ends within a second fills the device for a part of it.
    #[test]
    fn a_device_that_was_full_for_a_part_of_a_second_was_called_slow() {
        let device = |full: f64, given: f64| DeviceState {
            serving: true,
            is_late: false,
            full,
            worked: 0.3,
            late: Lateness::default(),
            given: Some(given),
            turn: 0.0,
            misses_reservations: false,
        };
        assert!(!device(0.84, 0.83).is_slow() && !device(0.6, 0.6).is_slow());
        assert!(device(1.0, 0.83).is_slow() && device(0.84, 0.5).is_slow());
    }
}
