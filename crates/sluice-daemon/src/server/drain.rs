//! Drains the devices: requests that were read are answered, for a bounded time. Requests that a disk does not
//! complete are not waited for.

use std::time::{Duration, Instant};

use sluice_io::device::{Health, Snapshot, SnapshotRequest};
use sluice_io::reactor::Thread;

use super::closing::Closing;
use super::listening::Listening;

/// Maximum time for devices to report their requests in flight, before they are told to end.
const LAST_WORD_MAX: Duration = Duration::from_millis(300);
/// Maximum time for devices to end.
const END_MAX: Duration = Duration::from_millis(400);
/// Maximum time for removing the files of sockets.
const CLOSE_MAX: Duration = Duration::from_millis(300);
/// Interval between checks whether they have ended.
const GLANCE: Duration = Duration::from_millis(5);

/// Returns the snapshots of devices. All are requested before the first is waited for.
pub(super) fn ask<'a>(devices: impl Iterator<Item = &'a Thread>, timeout: Duration) -> Vec<Snapshot> {
    let asked: Vec<_> = devices.map(Thread::request_snapshot).collect();
    let deadline = Instant::now() + timeout;
    asked.into_iter().map(|asked| asked.until(deadline)).collect()
}

/// Draining devices. Dropping it ends them immediately and waits for them.
pub struct Draining {
    devices: Vec<Thread>,
    outstanding: u64,
    /// VMMs stay connected until their requests complete; no others are accepted.
    guests: Vec<Listening>,
    /// Sockets of NBD clients. Their files are removed in the background.
    closing: Closing,
}

impl Draining {
    /// Begins to drain. It waits for nothing before, because the folder of a socket may hang.
    pub(super) fn begin(
        devices: Vec<Thread>,
        listeners: Vec<Listening>,
        guests: Vec<Listening>,
        deadline: Instant,
    ) -> Self {
        // The snapshots are requested before the devices are told to end, so that they count the remaining requests.
        let asked: Vec<SnapshotRequest> = devices.iter().map(Thread::request_snapshot).collect();
        devices.iter().for_each(Thread::drain);
        let closing = Closing::start(listeners);
        let deadline = deadline.min(Instant::now() + LAST_WORD_MAX);
        let now = asked.into_iter().map(|asked| asked.until(deadline));
        let outstanding = now.flat_map(|device| device.vms).map(|vm| u64::from(vm.outstanding)).sum();
        Draining { devices, outstanding, guests, closing }
    }

    /// Returns the number of outstanding requests at the beginning.
    #[must_use]
    pub fn outstanding(&self) -> u64 {
        self.outstanding
    }

    /// Whether all devices have ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.devices.iter().all(Thread::is_finished)
    }

    /// Waits until all devices have ended, or until `deadline`.
    pub async fn until(&self, deadline: Instant) {
        while !self.has_ended() && Instant::now() < deadline {
            tokio::time::sleep(GLANCE).await;
        }
    }

    /// Ends devices that still run. Returns the final snapshots of all devices. A device with requests at a disk that
    /// does not respond is logged and not waited for.
    pub async fn finish(self) -> Vec<Snapshot> {
        let before = ask(self.devices.iter(), LAST_WORD_MAX);
        self.devices.iter().for_each(Thread::request_stop);
        self.until(Instant::now() + END_MAX).await;
        let mut last = Vec::new();
        for (device, before) in self.devices.into_iter().zip(before) {
            if device.is_finished() {
                let (name, health) = (device.name().to_owned(), device.health());
                last.push(device.stop().unwrap_or_else(|| Snapshot::unknown(name, health)));
                continue;
            }
            log_unfinished(&before);
            device.abandon();
            last.push(before);
        }
        let closing = [self.closing, Closing::start(self.guests)];
        let deadline = Instant::now() + CLOSE_MAX;
        closing.into_iter().for_each(|closing| closing.until(deadline));
        last
    }
}

fn log_unfinished(device: &Snapshot) {
    let with_requests = device.vms.iter().filter(|vm| vm.outstanding > 0).map(|vm| vm.vm.as_str());
    let vms = with_requests.collect::<Vec<_>>().join(", ");
    let (name, in_flight) = (&device.device, device.in_flight);
    match device.health {
        Health::Serving => {
            tracing::error!(
                device = name,
                in_flight,
                vms,
                "Exiting with requests in flight: the disk has not completed them"
            );
        }
        health => tracing::error!(
            device = name,
            health = health.name(),
            "Exiting before the device thread: it does not respond"
        ),
    }
}
