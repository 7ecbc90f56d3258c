//! Volumes and interfaces of the host file that are not served: events when this begins and ends.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use sluice_api::cause::Cause;
use sluice_api::event::{Event, EventKind, Phase, Unit};
use sluice_api::object::ObjectId;

use super::Served;
use crate::server::{nic_of, volume_of};

/// What is not served, each with the reason if one is known.
type Reasons = BTreeMap<(EventKind, ObjectId, Cause), Option<String>>;

/// Time of a look at what is served.
#[derive(Debug, Clone, Copy)]
pub(super) struct At {
    /// Seconds since 1970.
    pub(super) time: u64,
    /// Seconds on the monitor's clock, which is never set: durations are measured on it.
    pub(super) second: u64,
}

/// What is not served.
#[derive(Debug, Default)]
pub(super) struct AbsenceEvents {
    known: BTreeMap<(EventKind, ObjectId, Cause), Begun>,
}

/// How the absence of something began.
#[derive(Debug)]
struct Begun {
    /// On the monitor's clock.
    second: u64,
    reason: Option<String>,
    /// Device of both events: a volume that is detached has none when its absence ends.
    device: String,
}

impl AbsenceEvents {
    /// Returns the events that have begun and ended since the last call.
    pub(super) fn changes(&mut self, served: &Served, at: At) -> Vec<Event> {
        let held = served.absent.held_back().map(|absent| (EventKind::HeldBack, Cause::SourceChanged, absent));
        let out = |cause| move |absent| (EventKind::OutOfService, cause, absent);
        let missing = served.absent.out_of_service().map(out(Cause::SourceUnavailable));
        let all = held.chain(missing).chain(served.absent.interfaces().map(out(Cause::Interface)));
        let all = all.map(|(kind, cause, (name, reason))| ((kind, name.clone(), cause), Some(reason.to_owned())));
        // A volume that is held back is not in the host file in force.
        self.update(all.collect(), at, |name| match name {
            ObjectId::Uplink(device) | ObjectId::Device(device) => device.clone(),
            ObjectId::Nic { .. } => nic_of(&served.host, name).map_or_else(nothing, |nic| nic.uplink.clone()),
            ObjectId::Volume { .. } => {
                volume_of(&served.host, name).map_or_else(nothing, |volume| volume.device.clone())
            }
            ObjectId::Socket(_) => nothing(),
        })
    }

    /// Returns the ends of all events that hold, because the daemon ends.
    pub(super) fn end(&mut self, at: At) -> Vec<Event> {
        self.update(Reasons::new(), at, |_| nothing())
    }

    fn update(&mut self, now: Reasons, at: At, device: impl Fn(&ObjectId) -> String) -> Vec<Event> {
        let mut events = Vec::new();
        let mut add = |key: &(EventKind, ObjectId, Cause), begun: &Begun, phase, seconds| {
            events.push(event(key, begun.device.clone(), begun.reason.clone(), phase, (at.time, seconds)));
        };
        self.known.retain(|key, begun| {
            let stays = now.contains_key(key);
            if !stays {
                add(key, begun, Phase::Ended, at.second.saturating_sub(begun.second));
            }
            stays
        });
        for (key, reason) in now {
            if let Entry::Vacant(entry) = self.known.entry(key) {
                let begun = Begun { second: at.second, reason, device: device(&entry.key().1) };
                add(entry.key(), &begun, Phase::Began, 0);
                entry.insert(begun);
            }
        }
        events
    }
}

/// Stands for a device that is not known.
fn nothing() -> String {
    "-".to_owned()
}

fn event(
    (kind, name, cause): &(EventKind, ObjectId, Cause),
    device: String,
    reason: Option<String>,
    phase: Phase,
    (time, seconds): (u64, u64),
) -> Event {
    let (vm, volume) = match name {
        ObjectId::Uplink(_) | ObjectId::Device(_) => (None, None),
        ObjectId::Socket(_) | ObjectId::Volume { .. } | ObjectId::Nic { .. } => {
            let (vm, volume) = name.parts();
            (Some(vm.to_owned()), Some(volume.into_owned()))
        }
    };
    Event {
        time,
        kind: *kind,
        phase,
        device,
        vm,
        volume,
        cause: *cause,
        wanted: 1.0,
        got: 0.0,
        unit: Unit::Requests,
        seconds,
        detail: reason,
        ..Event::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_that_are_not_served_were_reported_with_the_cause_device() {
        let mut absent = AbsenceEvents::default();
        let name = |volume: &str| ObjectId::volume("a", volume);
        let held = ((EventKind::HeldBack, name("x"), Cause::SourceChanged), Some("another file".to_owned()));
        let missing = ((EventKind::OutOfService, name("y"), Cause::SourceUnavailable), None);
        let mut look = |now: Reasons, second| absent.update(now, At { time: 5000, second }, |_| "disk".to_owned());
        let causes = |events: &[Event]| events.iter().map(|event| event.cause.name()).collect::<Vec<_>>();
        let began = look([held, missing].into(), 10);
        assert_eq!(causes(&began), ["source_changed", "source_unavailable"]);
        let words = "out of service; cause: its source, socket or device cannot be opened or does not respond";
        assert!(began[1].in_words().ends_with(words), "{}", began[1].in_words());
        assert_eq!(causes(&look(Reasons::new(), 17)), ["source_changed", "source_unavailable"]);
    }

    #[test]
    fn the_absence_of_a_volume_that_was_detached_ended_on_no_device() {
        let mut absent = AbsenceEvents::default();
        let name = ObjectId::volume("a", "v");
        let missing = ((EventKind::OutOfService, name, Cause::SourceUnavailable), None);
        let at = |second| At { time: 5000, second };
        let mut devices = |now: Reasons, second, device: &str| {
            let events = absent.update(now, at(second), |_| device.to_owned());
            events.into_iter().map(|event| (event.phase, event.device)).collect::<Vec<_>>()
        };
        assert_eq!(devices([missing].into(), 10, "disk"), [(Phase::Began, "disk".to_owned())]);
        assert_eq!(devices(Reasons::new(), 17, "-"), [(Phase::Ended, "disk".to_owned())]);
    }

    #[test]
    fn a_clock_that_was_set_back_shortened_the_absence_of_a_volume() {
        let mut absent = AbsenceEvents::default();
        let missing = || {
            let name = ObjectId::volume("a", "v");
            [((EventKind::OutOfService, name, Cause::SourceUnavailable), None)].into()
        };
        let mut look = |now: Reasons, time, second| {
            let events = absent.update(now, At { time, second }, |_| "disk".to_owned());
            events.iter().map(|event| (event.phase, event.time, event.seconds)).collect::<Vec<_>>()
        };
        assert_eq!(look(missing(), 1_700_000_000, 10), [(Phase::Began, 1_700_000_000, 0)]);
        assert_eq!(look(missing(), 1_699_996_400, 20), []);
        assert_eq!(look(Reasons::new(), 1_699_996_410, 30), [(Phase::Ended, 1_699_996_410, 20)]);
    }
}
