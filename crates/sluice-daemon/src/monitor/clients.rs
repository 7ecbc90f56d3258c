//! Volumes and NICs that have lost their client.
//!
//! One without a client is usual: its VM is off. It has lost its client if its VM has others, or if it had one when the last daemon ended
//! and has had none since. Example: VM `db` has `root` over vhost-user and `data` over NBD. After a restart of the daemon its VMM connects
//! to `root` again, and QEMU's NBD client does not: `db/data` has lost its client, and the guest its disk.
//!
//! An NBD client that ends its session in order, such as a program that copies a disk, leaves nothing behind. A TAP has no client.

use std::collections::{BTreeMap, BTreeSet};

use sluice_api::cause::Cause;
use sluice_api::event::{Event, EventKind, Phase};
use sluice_api::object::ObjectId;
use sluice_api::status::LostClient;
use sluice_config::{Host, NicAccess};
use sluice_observe::sample::{DeviceSample, VolumeSample};

use super::absent::At;
use crate::server::{nic_of, volume_of};

/// Time in seconds for which it must be so: clients that reconnect, and a VMM that starts, need a moment.
const PATIENCE: u64 = 5;
/// Minimum time in seconds between two events of one object: a client may connect and leave all the time.
const EVERY: u64 = 60;
/// Minimum time in seconds between two writes of what should have a client.
const KEPT_EVERY: u64 = 10;

/// What has a client, and what has lost it.
#[derive(Debug, Default)]
pub(super) struct Clients {
    /// What had a client since its VM was last without any, with the number of clients that had left by then.
    had: BTreeMap<ObjectId, u64>,
    /// What had one at the end of the last run, and has had none since.
    expected: BTreeSet<ObjectId>,
    /// What lacks its client, by the time at which that began.
    lacking: BTreeMap<ObjectId, Lack>,
    /// When the last event of an object began, on the monitor's clock.
    told: BTreeMap<ObjectId, u64>,
    connected: BTreeSet<ObjectId>,
    /// What was in the last samples.
    seen: BTreeMap<ObjectId, Seen>,
    /// Whether what should have a client is kept for the next start, and when it was last kept.
    is_kept: bool,
    kept: Option<u64>,
}

/// A volume or NIC in a sample.
#[derive(Debug)]
struct Seen {
    device: String,
    has_client: bool,
    /// Clients that have ended their session in order.
    left: u64,
}

#[derive(Debug, Clone)]
struct Lack {
    began: At,
    device: String,
    reason: &'static str,
    is_told: bool,
}

impl Clients {
    /// Notes what had a client at the end of the last run.
    pub(super) fn expect(&mut self, clients: BTreeSet<ObjectId>) {
        self.expected.extend(clients);
    }

    /// Returns the events since the last sample.
    pub(super) fn look(&mut self, host: &Host, devices: &[DeviceSample], at: At) -> Vec<Event> {
        let volumes = || devices.iter().flat_map(|device| device.vms.iter().map(move |vm| (device, vm)));
        let is_tap = |id: &ObjectId| nic_of(host, id).is_some_and(|nic| matches!(nic.access, NicAccess::Tap(_)));
        let seen = volumes().flat_map(|(device, vm)| {
            let of = |volume: &str| ObjectId::of_vm(&vm.vm, volume);
            let seen = |one: &VolumeSample| Seen {
                device: device.device.clone(),
                has_client: one.clients > 0,
                left: one.left,
            };
            vm.volumes.iter().map(move |one| (of(&one.volume), seen(one)))
        });
        let mut all: BTreeMap<ObjectId, Seen> = seen.filter(|(id, _)| !is_tap(id)).collect();
        // What a device that does not respond serves is as before.
        let silent: BTreeSet<&str> =
            devices.iter().filter(|device| !device.serving).map(|device| &*device.device).collect();
        let before = std::mem::take(&mut self.seen).into_iter();
        all.extend(before.filter(|(_, seen)| silent.contains(&*seen.device)));
        self.expected.retain(|id| nic_of(host, id).is_some() || volume_of(host, id).is_some());
        let events = self.update(&all, at);
        self.seen = all;
        events
    }

    fn update(&mut self, all: &BTreeMap<ObjectId, Seen>, at: At) -> Vec<Event> {
        let connected = || all.iter().filter(|(_, seen)| seen.has_client);
        let now: BTreeSet<ObjectId> = connected().map(|(object, _)| object.clone()).collect();
        self.is_kept &= self.connected == now;
        self.connected = now;
        let vms: BTreeSet<&str> = connected().map(|(object, _)| object.parts().0).collect();
        self.had.extend(connected().map(|(object, seen)| (object.clone(), seen.left)));
        self.had.retain(|object, left| {
            vms.contains(object.parts().0) && all.get(object).is_some_and(|seen| seen.has_client || seen.left <= *left)
        });
        self.expected.retain(|object| !self.connected.contains(object));
        let reason = |object: &ObjectId| {
            if self.connected.contains(object) {
                None
            } else if self.had.contains_key(object) {
                Some("it had one, and others of its VM have theirs")
            } else {
                self.expected.contains(object).then_some("it had one before the daemon's restart")
            }
        };
        let lacking: BTreeMap<ObjectId, Lack> = all
            .iter()
            .filter_map(|(object, seen)| {
                let device = seen.device.clone();
                let new = Lack { began: at, device, reason: reason(object)?, is_told: false };
                Some((object.clone(), self.lacking.get(object).cloned().unwrap_or(new)))
            })
            .collect();
        let before = std::mem::replace(&mut self.lacking, lacking);
        let ended = before.iter().filter(|(object, lack)| lack.is_told && !self.lacking.contains_key(*object));
        let mut events: Vec<Event> = ended.map(|(object, lack)| event(object, lack, Phase::Ended, at)).collect();
        self.told.retain(|_, last| at.second < *last + EVERY);
        for (object, lack) in &mut self.lacking {
            let is_long = at.second >= lack.began.second + PATIENCE;
            if !lack.is_told && is_long && !self.told.contains_key(object) {
                lack.is_told = true;
                self.told.insert(object.clone(), at.second);
                events.push(event(object, lack, Phase::Began, at));
            }
        }
        events
    }

    /// What has lost its client, as of the last sample.
    pub(super) fn lost(&self) -> impl Iterator<Item = LostClient> {
        let told = self.lacking.iter().filter(|(_, lack)| lack.is_told);
        told.map(|(object, lack)| LostClient {
            volume: object.clone(),
            since: lack.began.time,
            reason: lack.reason.to_owned(),
        })
    }

    /// Passes what should have a client at the next start on to `keep`, if that has changed, until it says that it has kept it. `second`: on the
    /// monitor's clock; it is not kept more often than every ten seconds.
    pub(super) fn keep(&mut self, second: u64, keep: impl FnOnce(BTreeSet<ObjectId>) -> bool) {
        if self.is_kept || self.kept.is_some_and(|last| second < last + KEPT_EVERY) {
            return;
        }
        let all = self.connected.iter().chain(&self.expected).chain(self.had.keys());
        self.is_kept = keep(all.cloned().collect());
        self.kept = Some(second);
    }

    /// Returns the ends of all events that hold, because the daemon ends.
    pub(super) fn end(&self, at: At) -> Vec<Event> {
        let told = self.lacking.iter().filter(|(_, lack)| lack.is_told);
        told.map(|(object, lack)| event(object, lack, Phase::Ended, at)).collect()
    }
}

fn event(object: &ObjectId, lack: &Lack, phase: Phase, at: At) -> Event {
    let (vm, volume) = object.parts();
    Event {
        time: at.time,
        kind: EventKind::ClientLost,
        phase,
        device: lack.device.clone(),
        vm: Some(vm.to_owned()),
        volume: Some(volume.into_owned()),
        cause: Cause::ClientGone,
        seconds: if phase == Phase::Ended { at.second.saturating_sub(lack.began.second) } else { 0 },
        detail: Some(lack.reason.to_owned()),
        ..Event::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks each second from `from` on, with clients for these volumes of `db`; returns the events with the second.
    fn look(clients: &mut Clients, seconds: std::ops::Range<u64>, connected: &[&str]) -> Vec<(u64, Phase, String)> {
        look_after(clients, seconds, connected, 0)
    }

    /// The same, when this number of clients of each volume has left in order.
    fn look_after(
        clients: &mut Clients,
        seconds: std::ops::Range<u64>,
        connected: &[&str],
        left: u64,
    ) -> Vec<(u64, Phase, String)> {
        let seen = |volume: &str| Seen { device: "disk".to_owned(), has_client: connected.contains(&volume), left };
        let all = ["root", "data"].map(|volume| (ObjectId::volume("db", volume), seen(volume))).into();
        let mut events = Vec::new();
        for second in seconds {
            let found = clients.update(&all, At { time: 1000 + second, second });
            events.extend(found.into_iter().map(|event| (second, event.phase, event.subject())));
        }
        events
    }

    #[test]
    fn a_vm_that_is_off_has_lost_no_client() {
        let mut clients = Clients::default();
        assert_eq!(look(&mut clients, 0..10, &["root", "data"]), []);
        assert_eq!(look(&mut clients, 10..30, &[]), []);
        assert_eq!(look(&mut clients, 30..33, &["root"]), [], "it boots");
        assert_eq!(look(&mut clients, 33..40, &["root", "data"]), []);
    }

    #[test]
    fn copies_of_the_disks_of_a_vm_that_is_off_left_lost_clients() {
        let mut clients = Clients::default();
        assert_eq!(look(&mut clients, 0..10, &["root", "data"]), [], "the VM runs");
        assert_eq!(look(&mut clients, 10..12, &[]), [], "and is shut down");
        assert_eq!(look(&mut clients, 12..30, &["root"]), [], "one disk is copied");
        assert_eq!(look(&mut clients, 30..50, &["root", "data"]), [], "then both");
        assert_eq!(look_after(&mut clients, 50..70, &["data"], 1), [], "the first copy is done");
        assert_eq!(look_after(&mut clients, 70..90, &[], 2), []);
    }

    #[test]
    fn a_disk_that_its_vm_lost_at_a_restart_of_the_daemon_was_not_named() {
        let mut clients = Clients::default();
        clients.expect(["root", "data"].map(|volume| ObjectId::volume("db", volume)).into());
        let began = (6, Phase::Began, "db/data".to_owned());
        assert_eq!(look(&mut clients, 1..20, &["root"]), [began]);
        let lost: Vec<_> = clients.lost().collect();
        assert_eq!(
            (lost.len(), lost[0].since, lost[0].reason.as_str()),
            (1, 1001, "it had one before the daemon's restart")
        );
        let mut kept = BTreeSet::new();
        clients.keep(19, |all| {
            kept = all;
            true
        });
        assert_eq!(kept.len(), 2, "another restart does not forget it");
        assert_eq!(look(&mut clients, 20..30, &["root", "data"]), [(20, Phase::Ended, "db/data".to_owned())]);
        assert_eq!(clients.lost().count(), 0);
    }

    #[test]
    fn a_client_that_came_and_went_filled_the_record() {
        let mut clients = Clients::default();
        look(&mut clients, 0..1, &["root", "data"]);
        let mut events = 0;
        for round in 0..60 {
            events += look(&mut clients, 1 + round * 10..9 + round * 10, &["root"]).len();
            events += look(&mut clients, 9 + round * 10..11 + round * 10, &["root", "data"]).len();
        }
        assert!((10..=22).contains(&events), "{events} events of 600 s");
    }
}
