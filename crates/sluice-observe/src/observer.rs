//! The observer: takes samples, keeps the past, and reports the current state.

use std::collections::BTreeMap;

use sluice_api::event::Event;
use sluice_api::status::{Device, Histograms, Status, Vm};
use sluice_api::top;

use crate::device_track::DeviceTrack;
use crate::history::History;
use crate::interval::Minute;
use crate::now::Now;
use crate::reading::Reading;
use crate::sample::Sample;

/// Seconds without a sample from which on the daemon must have stood still.
const LATE: u64 = 3;

/// Takes samples, and reports the current state. Memory: at most about 110 KB for each VM and for each volume of a VM with several.
#[derive(Debug, Default)]
pub struct Observer {
    devices: BTreeMap<String, DeviceTrack>,
    time: u64,
    /// Second of the last sample.
    second: Option<u64>,
    /// Minutes that the last call ended.
    minutes: Vec<Minute>,
}

impl Observer {
    /// Takes a sample, about a second after the previous one. Returns the events that began and ended. A second sample of the same
    /// second is passed over; the next one covers its time.
    pub fn push(&mut self, sample: Sample) -> Vec<Event> {
        let (mut events, mut minutes) = (Vec::new(), Vec::new());
        let passed = self.second.map(|last| sample.second.saturating_sub(last));
        if passed == Some(0) {
            return events;
        }
        let (time, second, is_late) = (sample.time, sample.second, passed.is_some_and(|passed| passed >= LATE));
        let since = self.second.map_or(second, |last| last + 1);
        (self.time, self.second) = (time, Some(second));
        self.minutes.clear();
        self.end_devices(|name| sample.devices.iter().all(|device| device.device != name), is_late, &mut events);
        for mut device in sample.devices {
            device.vms.sort_by(|one, other| one.vm.cmp(&other.vm));
            let track = self.devices.entry(device.device.clone()).or_default();
            let name = device.device.clone();
            let is_link = device.uplink.is_some();
            let (events, minutes) = (&mut events, &mut minutes);
            track.push(&mut Now { time, second, since, is_late, device: &name, is_link, events, minutes }, device);
        }
        self.minutes.append(&mut minutes);
        events
    }

    /// Ends the observation, because the daemon ends. Returns the ends of all events that hold, as of the last sample.
    pub fn end(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        self.minutes.clear();
        self.end_devices(|_| true, false, &mut events);
        events
    }

    /// Minutes of VMs and volumes that the last sample ended, or the end of the observation.
    pub fn minutes(&mut self) -> Vec<Minute> {
        std::mem::take(&mut self.minutes)
    }

    /// Ends what is observed of some devices.
    fn end_devices(&mut self, is_gone: impl Fn(&str) -> bool, is_late: bool, events: &mut Vec<Event>) {
        let (time, second) = (self.time, self.second.unwrap_or(0));
        for (name, mut track) in self.devices.extract_if(.., |name, _| is_gone(name)) {
            let (is_link, minutes) = (track.is_link(), &mut self.minutes);
            track.end(&mut Now { time, second, since: second, is_late, device: &name, is_link, events, minutes });
        }
    }

    /// The current state of devices and VMs.
    #[must_use]
    pub fn status(&self) -> Status {
        let vms = self.devices.values().flat_map(|track| track.vm_status(self.second.unwrap_or(0))).collect();
        Status { time: self.time, devices: self.device_status(), vms, ..Status::default() }
    }

    /// The current state of the devices.
    #[must_use]
    pub fn device_status(&self) -> Vec<Device> {
        self.devices.iter().map(|(name, track)| track.status(name, self.second.unwrap_or(0))).collect()
    }

    /// The current state of the VMs, in a compact form.
    pub fn glance(&self) -> impl Iterator<Item = top::Vm> {
        self.devices.values().flat_map(|track| track.glance(self.second.unwrap_or(0)))
    }

    /// The current state of a VM on one device, and the times of its requests or of those of one of its volumes, unless the volume is counted with
    /// its VM.
    #[must_use]
    pub fn details(&self, device: &str, vm: &str, volume: Option<&str>) -> Option<(Vm, Option<Histograms>)> {
        self.devices.get(device)?.details(vm, volume, self.second.unwrap_or(0))
    }

    /// Wall-clock time of the last sample, in seconds since 1970.
    #[must_use]
    pub fn time(&self) -> u64 {
        self.time
    }

    /// The counters of the last sample, for programs that compute rates themselves.
    #[must_use]
    pub fn reading(&self) -> Reading {
        let devices = self.devices.iter().map(|(name, track)| track.reading(name)).collect();
        Reading { time: self.time, devices }
    }

    /// The past of a VM on a device, or of one of its volumes.
    #[must_use]
    pub fn history(&self, device: &str, vm: &str, volume: Option<&str>) -> Option<&History> {
        self.devices.get(device)?.history(vm, volume)
    }

    /// The wall-clock time, in seconds since 1970, of a second of the observer's clock.
    #[must_use]
    pub fn time_of(&self, second: u64) -> u64 {
        (self.time + second).saturating_sub(self.second.unwrap_or(0))
    }
}
