//! The interval that is being judged, and what began and ended in it.

use sluice_api::cause::Cause;
use sluice_api::event::{Event, EventKind, Neighbour, Phase};
use sluice_api::status::Failure;

use crate::failing;
use crate::interval::{Interval, Minute};
use crate::judge::{Change, Shortfall, Watch};

/// The cause of a violation, and the neighbours that were served during it.
#[derive(Debug, Clone)]
pub(crate) struct About {
    /// Cause of most intervals; the first of several.
    pub(crate) cause: Cause,
    /// Neighbours in the last interval with that cause.
    pub(crate) neighbours: Vec<Neighbour>,
    /// Facts of that interval, in words.
    pub(crate) detail: Option<String>,
    /// Requests that have failed.
    pub(crate) failures: Vec<Failure>,
    /// Number of intervals with each cause.
    counts: [u32; Cause::ALL.len()],
}

impl About {
    /// The cause of a violation in one interval.
    pub(crate) fn new(cause: Cause, neighbours: Vec<Neighbour>) -> About {
        let mut counts = [0; Cause::ALL.len()];
        counts[cause as usize] = 1;
        About { cause, neighbours, detail: None, failures: Vec::new(), counts }
    }

    /// Adds facts in words.
    pub(crate) fn with(self, detail: Option<String>) -> About {
        About { detail, ..self }
    }

    /// Adds requests that have failed.
    pub(crate) fn failed(self, failures: Vec<Failure>) -> About {
        About { detail: Some(failing::in_words(&failures)), failures, ..self }
    }

    /// The device itself.
    pub(crate) fn device() -> About {
        About::new(Cause::Device, Vec::new())
    }

    /// The interface of an uplink.
    pub(crate) fn interface() -> About {
        About::new(Cause::Interface, Vec::new())
    }

    /// Adds the next interval.
    fn and(mut self, next: About) -> About {
        let cause = next.cause;
        self.counts[cause as usize] += 1;
        if cause == self.cause || self.counts[cause as usize] > self.counts[self.cause as usize] {
            (self.cause, self.neighbours) = (cause, next.neighbours);
            (self.detail, self.failures) = (next.detail, next.failures);
        }
        self
    }
}

/// The interval that is being looked at.
pub(crate) struct Now<'a> {
    pub(crate) time: u64,
    pub(crate) second: u64,
    /// The first second of the interval.
    pub(crate) since: u64,
    /// Whether the previous sample is so long ago that the daemon must have stood still.
    pub(crate) is_late: bool,
    pub(crate) device: &'a str,
    /// Whether it is an uplink.
    pub(crate) is_link: bool,
    pub(crate) events: &'a mut Vec<Event>,
    /// Minutes that are over.
    pub(crate) minutes: &'a mut Vec<Minute>,
}

/// Object and kind of an event.
#[derive(Clone, Copy)]
pub(crate) struct Subject<'a> {
    pub(crate) kind: EventKind,
    pub(crate) vm: Option<&'a str>,
    pub(crate) volume: Option<&'a str>,
}

impl Now<'_> {
    /// Records whether something was as it should be in this interval.
    pub(crate) fn judge(
        &mut self,
        subject: Subject<'_>,
        watch: &mut Watch<About>,
        found: Option<Shortfall>,
        about: impl FnOnce() -> About,
    ) {
        let found = found.map(|found| if self.is_link { found.in_bits() } else { found });
        let change = watch.update(self.since..=self.second, found, |before| match before {
            Some(before) => before.and(about()),
            None => about(),
        });
        if let Some(event) = change.map(|change| self.event(subject, change)) {
            self.events.push(event);
        }
    }

    /// Ends a violation, because the promise was withdrawn or its VM removed.
    pub(crate) fn end(&mut self, subject: Subject<'_>, watch: &mut Watch<About>) {
        if let Some(event) = watch.end().map(|change| self.event(subject, change)) {
            self.events.push(event);
        }
    }

    /// Keeps a minute of a VM, or of its volume, if one is over.
    pub(crate) fn keep(
        &mut self,
        (vm, volume): (&str, Option<&str>),
        is_whole_vm: bool,
        over: Option<(u64, Interval)>,
    ) {
        self.minutes.extend(over.map(|(minute, interval)| Minute {
            device: self.device.to_owned(),
            vm: vm.to_owned(),
            volume: volume.map(str::to_owned),
            minute,
            interval: Interval { is_whole_vm, is_link: self.is_link, ..interval },
        }));
    }

    fn event(&self, subject: Subject<'_>, change: Change<'_, About>) -> Event {
        let (phase, broken, seconds) = match &change {
            Change::Began(broken) => (Phase::Began, *broken, 0),
            Change::Ended(broken) => (Phase::Ended, broken, broken.until + 1 - broken.since),
        };
        let Shortfall { wanted, got, unit } = broken.worst;
        Event {
            time: if phase == Phase::Began { self.time.saturating_sub(self.second - self.since) } else { self.time },
            kind: subject.kind,
            phase,
            device: self.device.to_owned(),
            vm: subject.vm.map(str::to_owned),
            volume: subject.volume.map(str::to_owned),
            cause: broken.about.cause,
            wanted,
            got,
            unit,
            seconds,
            neighbours: broken.about.neighbours.clone(),
            detail: broken.about.detail.clone(),
            failures: broken.about.failures.clone(),
            ..Event::default()
        }
    }
}
