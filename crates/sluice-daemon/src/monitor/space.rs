//! Space on the file systems of the served images, and whether their files are still as long as the volumes.
//!
//! A file system may hang, so each is looked at by a thread of its own, and only again when that thread has ended. The kernel knows
//! the sizes of block devices, so one thread looks at all of them. The monitor takes what has arrived since its last look and waits
//! for none.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Weak};
use std::thread;

use sluice_api::cause::Cause;
use sluice_api::event::{Event, EventKind, Phase, Unit};
use sluice_api::object::ObjectId;
use sluice_io::source::Source;

use super::Served;
use super::absent::At;
use crate::space::{FileSystem, Image, Threshold};

/// The open source of a volume. It is not kept open for this.
#[derive(Debug, Clone)]
pub struct Watched {
    pub volume: ObjectId,
    pub device: String,
    pub source: Weak<Source>,
    /// Number of its file system; `None` for a block device.
    pub file_system: Option<u64>,
}

type Found = (Option<u64>, Option<FileSystem>);

/// The file systems of the served images.
pub(super) struct Space {
    found: Receiver<Found>,
    send: Sender<Found>,
    known: BTreeMap<u64, FileSystem>,
    /// File systems, or all block devices, that a thread is looking at.
    looking: BTreeSet<Option<u64>>,
    /// What is low, since which second of the monitor's clock.
    low: BTreeMap<(u64, Threshold), (u64, FileSystem)>,
}

impl Default for Space {
    fn default() -> Self {
        let (send, found) = channel();
        Space { found, send, known: BTreeMap::new(), looking: BTreeSet::new(), low: BTreeMap::new() }
    }
}

impl Space {
    /// Takes what has been found, and starts the next looks. Returns the events that have begun and ended.
    pub(super) fn look(&mut self, served: &Served, at: At) -> Vec<Event> {
        while let Ok((number, found)) = self.found.try_recv() {
            self.looking.remove(&number);
            match (number, found) {
                (Some(number), Some(found)) => drop(self.known.insert(number, found)),
                (Some(number), None) => drop(self.known.remove(&number)),
                (None, _) => {}
            }
        }
        let mut by_system: BTreeMap<Option<u64>, Vec<Watched>> = BTreeMap::new();
        for watched in &served.sources {
            by_system.entry(watched.file_system).or_default().push(watched.clone());
        }
        self.known.retain(|number, _| by_system.contains_key(&Some(*number)));
        for (number, sources) in by_system {
            if !self.looking.contains(&number) && self.start(number, sources) {
                self.looking.insert(number);
            }
        }
        self.changes(at)
    }

    /// Returns the ends of all events that hold, because the daemon ends.
    pub(super) fn end(&mut self, at: At) -> Vec<Event> {
        self.known.clear();
        self.changes(at)
    }

    fn start(&self, number: Option<u64>, sources: Vec<Watched>) -> bool {
        let send = self.send.clone();
        let look = move || drop(send.send((number, look_at(&sources))));
        thread::Builder::new().name("space".to_owned()).spawn(look).is_ok()
    }

    /// The file systems with images, in the order of their numbers.
    pub(super) fn file_systems(&self) -> impl Iterator<Item = &FileSystem> {
        self.known.values()
    }

    fn changes(&mut self, at: At) -> Vec<Event> {
        let mut events = Vec::new();
        let now = self
            .known
            .iter()
            .flat_map(|(number, found)| found.reached().map(move |threshold| ((*number, threshold), found.clone())));
        let now: BTreeMap<_, _> = now.collect();
        self.low.retain(|(number, threshold), (since, before)| {
            let found = self.known.get(number);
            let stays = found.is_some_and(|found| !found.has_left(*threshold));
            if !stays {
                // The last figures, if the file system is still there.
                let seconds = at.second.saturating_sub(*since);
                events.push(event(found.unwrap_or(before), *threshold, Phase::Ended, (at.time, seconds)));
            }
            stays
        });
        for (key, found) in now {
            self.low.entry(key).or_insert_with(|| {
                events.push(event(&found, key.1, Phase::Began, (at.time, 0)));
                (at.second, found)
            });
        }
        events
    }
}

fn event(found: &FileSystem, threshold: Threshold, phase: Phase, (time, seconds): (u64, u64)) -> Event {
    let below = match threshold {
        Threshold::TenPercent => "Less than 10 % is free",
        Threshold::OneGib => "Less than 1 GiB is free",
    };
    Event {
        time,
        kind: EventKind::LowSpace,
        phase,
        device: found.device.clone(),
        cause: Cause::LowSpace,
        wanted: found.growth_bytes as f64,
        got: found.free_bytes as f64,
        unit: Unit::Bytes,
        seconds,
        detail: Some(format!("{below}. {}", found.in_words())),
        ..Event::default()
    }
}

/// Looks at the sources on one file system, or at all block devices. `None` if there is no image among them.
fn look_at(sources: &[Watched]) -> Option<FileSystem> {
    let (mut images, mut space) = (Vec::new(), None);
    for Watched { volume, device, source, .. } in sources {
        let Some(source) = source.upgrade() else { continue };
        // This also notes where a file ends that was cut.
        let Ok(sizes) = source.look_at_sizes() else { continue };
        if source.is_block_device() || source.is_read_only() {
            continue;
        }
        space = space.or_else(|| rustix::fs::fstatvfs(&*source).ok());
        images.push(Image {
            volume: volume.to_string(),
            device: device.clone(),
            path: source.path().to_owned(),
            file: (source.id().dev, source.id().ino),
            size_bytes: sizes.size_bytes,
            allocated_bytes: sizes.allocated_bytes,
        });
    }
    FileSystem::of(&images, &space?)
}

/// Returns what is to be looked at of a source.
pub fn watched(volume: &ObjectId, device: &str, source: &Arc<Source>) -> Watched {
    let file_system = (!source.is_block_device()).then(|| source.id().dev);
    let source = Arc::downgrade(source);
    Watched { volume: volume.clone(), device: device.to_owned(), source, file_system }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_is_reported_at_ten_percent_and_at_one_gib_until_there_is_room() {
        let mut space = Space::default();
        let gib = 1_u64 << 30;
        let mut look = |free_bytes: u64, second: u64| {
            let (device, folder, volumes) = ("disk".to_owned(), "/images".into(), vec!["a/r".to_owned()]);
            let (size_bytes, growth_bytes) = (100 * gib, 50 * gib);
            space.known.insert(7, FileSystem { device, folder, size_bytes, free_bytes, growth_bytes, volumes });
            let events = space.changes(At { time: 1000 + second, second });
            events.iter().map(|event| (event.phase, event.seconds)).collect::<Vec<_>>()
        };
        assert_eq!(look(20 * gib, 1), []);
        assert_eq!(look(9 * gib, 2), [(Phase::Began, 0)]);
        assert_eq!(look(8 * gib, 3), []);
        assert_eq!(look(gib / 2, 4), [(Phase::Began, 0)]);
        for second in 5..8 {
            let free_bytes = if second % 2 == 0 { 10 * gib + 1 } else { 10 * gib - 1 };
            let ended: &[_] = if second == 5 { &[(Phase::Ended, 1)] } else { &[] };
            assert_eq!(look(free_bytes, second), ended, "around a threshold, at {second} s");
        }
        assert_eq!(look(gib / 2, 8), [(Phase::Began, 0)]);
        assert_eq!(look(60 * gib, 9), [(Phase::Ended, 7), (Phase::Ended, 1)]);
    }
}
