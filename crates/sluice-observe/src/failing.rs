//! Requests of a volume that fail at the device: their errors, from the first failure until requests of that kind succeed again.
//!
//! Example: a file system is full. 41 writes fail with ENOSPC, and reads succeed. The volume is failing with [`EventKind::NoSpace`]
//! until a write has succeeded after the last one that failed. If the disk returns EIO for reads too, that is a second violation,
//! [`EventKind::Errors`], because it needs another remedy.

use std::collections::BTreeMap;

use sluice_api::cause::Cause;
use sluice_api::event::{EventKind, Unit, shortened_in_words};
use sluice_api::status::{self, Operation};
use sluice_sched::Kind;

use crate::judge::{Broken, Shortfall, Watch};
use crate::now::{About, Now, Subject};
use crate::sample::{Failure, Faults, VolumeSample};

const ENOSPC: i32 = 28;
const EDQUOT: i32 = 122;
const ESHUTDOWN: i32 = 108;

/// Names of errors that storage and networks return.
const NAMES: [(i32, &str); 27] = [
    (1, "EPERM"),
    (5, "EIO"),
    (6, "ENXIO"),
    (9, "EBADF"),
    (11, "EAGAIN"),
    (12, "ENOMEM"),
    (13, "EACCES"),
    (14, "EFAULT"),
    (19, "ENODEV"),
    (22, "EINVAL"),
    (27, "EFBIG"),
    (ENOSPC, "ENOSPC"),
    (30, "EROFS"),
    (52, "EBADE"),
    (61, "ENODATA"),
    (67, "ENOLINK"),
    (74, "EBADMSG"),
    (84, "EILSEQ"),
    (95, "EOPNOTSUPP"),
    (100, "ENETDOWN"),
    (107, "ENOTCONN"),
    (ESHUTDOWN, "ESHUTDOWN"),
    (110, "ETIMEDOUT"),
    (116, "ESTALE"),
    (117, "EUCLEAN"),
    (121, "EREMOTEIO"),
    (EDQUOT, "EDQUOT"),
];

/// Failed requests of one kind with one error.
#[derive(Debug, Clone, Copy)]
struct Spell {
    count: u64,
    first: u64,
    last: u64,
    /// Whether the last one failed for lack of space ([`EventKind::NoSpace`]), or for another reason ([`EventKind::Errors`]).
    event: EventKind,
    /// Whether it was over at the last sample: none has failed since the one before it, and one of that kind has succeeded since.
    has_ended: bool,
}

/// The failing requests of a volume over time.
#[derive(Debug, Default)]
pub(crate) struct Failing {
    /// Counters of the last sample.
    seen: BTreeMap<(Kind, i32), u64>,
    spells: BTreeMap<(Kind, i32), Spell>,
    no_space: Watch<About>,
    errors: Watch<About>,
    shortened: Watch<About>,
    away: Watch<About>,
}

/// Returns which event a failure belongs to. A block device that has shrunk has no space past its end, and cannot get any by freeing some.
fn event_of(errno: i32, shortened: Option<Cause>) -> EventKind {
    match errno {
        ENOSPC | EDQUOT if shortened != Some(Cause::DeviceShrunk) => EventKind::NoSpace,
        _ => EventKind::Errors,
    }
}

/// Returns the cause if a source has become shorter than its volume.
fn shortened(faults: &Faults) -> Option<Cause> {
    faults.ends_at.map(|_| if faults.is_device { Cause::DeviceShrunk } else { Cause::SourceShortened })
}

impl Failing {
    /// Looks at the counters of a sample.
    pub(crate) fn look(&mut self, now: &mut Now<'_>, vm: &str, sample: &VolumeSample) {
        let shortened = shortened(&sample.faults);
        self.count(now.time, &sample.faults.failures, shortened);
        let subject = |kind| Subject { kind, vm: Some(vm), volume: Some(&sample.volume) };
        for (kind, watch) in [(EventKind::NoSpace, &mut self.no_space), (EventKind::Errors, &mut self.errors)] {
            let spells = self.spells.iter().filter(|(_, spell)| spell.event == kind);
            let spells: Vec<_> = spells.map(|(key, spell)| (*key, *spell)).collect();
            let lasts = spells.iter().any(|(_, spell)| !spell.has_ended);
            let count: u64 = spells.iter().map(|(_, spell)| spell.count).sum();
            let found = lasts.then_some(Shortfall { wanted: 0.0, got: count as f64, unit: Unit::Requests });
            let cause = match kind {
                EventKind::NoSpace => Cause::NoSpace,
                _ if let Some(cause) = shortened => cause,
                _ if sample.faults.is_lost => Cause::LostWrites,
                // A volume fails with this error alone when its connection is locked out.
                _ if spells.iter().any(|((_, errno), _)| *errno == ESHUTDOWN) => Cause::TakenOver,
                _ if sample.nic.is_some() => Cause::Interface,
                _ => Cause::Errors,
            };
            let statuses = || spells.iter().map(|spell| failure(spell, sample.nic.is_some())).collect::<Vec<_>>();
            now.judge(subject(kind), watch, found, || About::new(cause, Vec::new()).failed(statuses()));
            if watch.broken().is_none() {
                self.spells.retain(|_, spell| spell.event != kind);
            }
        }
        let found = sample.faults.ends_at.map(|end| Shortfall {
            wanted: sample.faults.needs as f64,
            got: end as f64,
            unit: Unit::Bytes,
        });
        let about = || About::new(shortened.expect("the source ends too early"), Vec::new());
        now.judge(subject(EventKind::SourceShortened), &mut self.shortened, found, about);
        let found = sample.faults.is_away.then_some(Shortfall { wanted: 1.0, got: 0.0, unit: Unit::Requests });
        now.judge(subject(EventKind::ServerAway), &mut self.away, found, || About::new(Cause::ServerAway, Vec::new()));
    }

    fn count(&mut self, time: u64, failures: &[Failure], shortened: Option<Cause>) {
        for &Failure { kind, errno, count, has_recovered } in failures {
            let seen = self.seen.entry((kind, errno)).or_default();
            // A volume that was opened again counts from zero.
            let more = count.checked_sub(*seen).unwrap_or(count);
            *seen = count;
            if more > 0 {
                let event = event_of(errno, shortened);
                let new = Spell { count: 0, first: time, last: time, event, has_ended: false };
                let spell = self.spells.entry((kind, errno)).or_insert(new);
                // It is told also if it is over already.
                *spell = Spell { count: spell.count + more, last: time, event, has_ended: false, ..*spell };
            } else if let Some(spell) = self.spells.get_mut(&(kind, errno)) {
                spell.has_ended = has_recovered;
            }
        }
    }

    /// Ends everything, because the volume is gone.
    pub(crate) fn end(&mut self, now: &mut Now<'_>, vm: &str, volume: &str) {
        let Failing { no_space, errors, shortened, away, .. } = self;
        let watches = [
            (EventKind::NoSpace, no_space),
            (EventKind::Errors, errors),
            (EventKind::SourceShortened, shortened),
            (EventKind::ServerAway, away),
        ];
        for (kind, watch) in watches {
            now.end(Subject { kind, vm: Some(vm), volume: Some(volume) }, watch);
        }
    }

    fn broken(&self) -> impl Iterator<Item = (EventKind, &Broken<About>)> {
        let watches = [
            (EventKind::NoSpace, &self.no_space),
            (EventKind::Errors, &self.errors),
            (EventKind::SourceShortened, &self.shortened),
            (EventKind::ServerAway, &self.away),
        ];
        watches.into_iter().filter_map(|(kind, watch)| Some((kind, watch.broken()?)))
    }

    /// What is not as it should be now.
    pub(crate) fn kinds(&self) -> Vec<EventKind> {
        self.broken().map(|(kind, _)| kind).collect()
    }

    /// The same with the errors.
    pub(crate) fn status(&self, second: u64) -> Vec<status::Failing> {
        let status = |(kind, broken): (EventKind, &Broken<About>)| status::Failing {
            kind,
            cause: broken.about.cause,
            for_seconds: second.saturating_sub(broken.since),
            text: match kind {
                EventKind::SourceShortened => shortened_in_words(broken.now.wanted, broken.now.got),
                EventKind::ServerAway => "Its server is away".to_owned(),
                _ => in_words(&broken.about.failures),
            } + ". "
                + broken.about.cause.advice(),
            failures: broken.about.failures.clone(),
        };
        self.broken().map(status).collect()
    }
}

fn failure(&((kind, errno), spell): &((Kind, i32), Spell), is_link: bool) -> status::Failure {
    let name = NAMES.iter().find(|(known, _)| *known == errno).map(|(_, name)| (*name).to_owned());
    status::Failure {
        operation: if is_link { Operation::Frame } else { crate::status::operation(kind) },
        errno,
        error: name.unwrap_or_else(|| format!("errno {errno}")),
        count: spell.count,
        first: spell.first,
        last: spell.last,
    }
}

/// Failures in words: `41 writes failed with ENOSPC (No space left on device), first at 12:00:01 and last at 12:00:09 UTC`.
#[must_use]
pub fn in_words(failures: &[status::Failure]) -> String {
    let one = |failure: &status::Failure| {
        let status::Failure { operation, errno, error, count, first, last } = failure;
        let (one, several) = match operation {
            Operation::Read => ("read", "reads"),
            Operation::Write => ("write", "writes"),
            Operation::Flush => ("flush", "flushes"),
            Operation::Discard => ("discard", "discards"),
            Operation::WriteZeroes => ("request for zeroes", "requests for zeroes"),
            Operation::Frame => ("frame", "frames"),
            Operation::Unknown => ("request", "requests"),
        };
        let operation = if *count == 1 { one } else { several };
        let text = std::io::Error::from_raw_os_error(*errno).to_string();
        let text = text.split(" (os error").next().unwrap_or_default().to_owned();
        let when = match first == last {
            true => format!("at {} UTC", clock(*first)),
            false => format!("first at {} and last at {} UTC", clock(*first), clock(*last)),
        };
        format!("{count} {operation} failed with {error} ({text}), {when}")
    };
    failures.iter().map(one).collect::<Vec<_>>().join("; ")
}

/// Time of day in UTC.
fn clock(time: u64) -> String {
    let second = time % 86_400;
    format!("{:02}:{:02}:{:02}", second / 3600, second / 60 % 60, second % 60)
}

#[cfg(test)]
mod tests {
    use sluice_sched::Policy;

    use super::*;
    use sluice_api::event::{Event, Phase};

    /// A volume whose operations have failed or succeeded so often, in each second.
    struct Lab {
        failing: Failing,
        second: u64,
        sample: VolumeSample,
    }

    impl Lab {
        fn new() -> Lab {
            let sample = VolumeSample {
                volume: "root".to_owned(),
                policy: Policy::default(),
                stats: None,
                outstanding: 0,
                clients: 1,
                left: 0,
                client_faults: Default::default(),
                faults: Faults { needs: 8192, ..Faults::default() },
                nic: None,
            };
            Lab { failing: Failing::default(), second: 0, sample }
        }

        fn fail(&mut self, kind: Kind, errno: i32, more: u64) {
            let failures = &mut self.sample.faults.failures;
            match failures.iter_mut().find(|known| (known.kind, known.errno) == (kind, errno)) {
                Some(known) => (known.count, known.has_recovered) = (known.count + more, false),
                None => failures.push(Failure { kind, errno, count: more, has_recovered: false }),
            }
        }

        fn succeed(&mut self, kind: Kind) {
            let failures = self.sample.faults.failures.iter_mut();
            failures.filter(|known| known.kind == kind).for_each(|known| known.has_recovered = true);
        }

        /// The events of the next second.
        fn second(&mut self) -> Vec<Event> {
            self.second += 1;
            let mut events = Vec::new();
            let (time, second) = (43_200 + self.second, self.second);
            let (device, is_late, is_link, minutes) = ("disk", false, false, &mut Vec::new());
            let mut now = Now { time, second, since: second, is_late, device, is_link, events: &mut events, minutes };
            self.failing.look(&mut now, "v", &self.sample);
            events
        }

        fn kinds(&mut self) -> Vec<(EventKind, Phase)> {
            self.second().iter().map(|event| (event.kind, event.phase)).collect()
        }
    }

    #[test]
    fn a_full_file_system_is_one_event_until_writes_succeed_again() {
        let mut lab = Lab::new();
        assert_eq!(lab.kinds(), []);
        lab.fail(Kind::Write, ENOSPC, 40);
        let began = lab.second();
        let words = "Requests of v/root fail because there is no space (40 writes failed with ENOSPC (No space left on device), at \
                     12:00:02 UTC). Free space";
        assert!(began[0].in_words().starts_with(words), "{}", began[0].in_words());
        lab.succeed(Kind::Read);
        lab.fail(Kind::Write, ENOSPC, 1);
        assert_eq!(lab.kinds(), []);
        for _ in 0..60 {
            lab.succeed(Kind::Read);
            assert_eq!(lab.kinds(), [], "reads say nothing about space");
        }
        let status = &lab.failing.status(lab.second)[0];
        assert!(status.text.contains("41 writes failed"), "{}", status.text);
        lab.succeed(Kind::Write);
        let ended: Vec<Event> = (0..5).flat_map(|_| lab.second()).collect();
        assert_eq!((ended.len(), ended[0].phase, ended[0].got), (1, Phase::Ended, 41.0));
        let failure = &ended[0].failures[0];
        assert_eq!((failure.count, failure.first, failure.last), (41, 43_202, 43_203));
        assert_eq!(lab.failing.status(lab.second), []);
        lab.fail(Kind::Write, ENOSPC, 1);
        assert_eq!(lab.second()[0].failures[0].count, 1, "it counts from zero");
    }

    #[test]
    fn a_success_in_the_second_of_a_failure_did_not_end_it() {
        let mut lab = Lab::new();
        lab.fail(Kind::Read, 5, 1);
        lab.succeed(Kind::Read);
        assert_eq!(lab.kinds(), [(EventKind::Errors, Phase::Began)]);
        assert_eq!((0..9).flat_map(|_| lab.kinds()).collect::<Vec<_>>(), [(EventKind::Errors, Phase::Ended)]);
        lab.fail(Kind::Read, 5, 1);
        assert_eq!(lab.kinds(), [(EventKind::Errors, Phase::Began)]);
        assert_eq!((0..9).flat_map(|_| lab.kinds()).collect::<Vec<_>>(), [], "nothing came after it");
    }

    #[test]
    fn errors_of_the_disk_are_another_event_than_a_lack_of_space() {
        let mut lab = Lab::new();
        lab.fail(Kind::Write, EDQUOT, 1);
        assert_eq!(lab.kinds(), [(EventKind::NoSpace, Phase::Began)]);
        lab.fail(Kind::Discard, 5, 1);
        lab.fail(Kind::Flush, 5, 1);
        assert_eq!(lab.kinds(), [(EventKind::Errors, Phase::Began)]);
        lab.succeed(Kind::Discard);
        assert_eq!((0..9).flat_map(|_| lab.kinds()).collect::<Vec<_>>(), [], "flushes have not succeeded");
        lab.sample.faults.is_lost = true;
        lab.fail(Kind::Flush, 5, 1);
        lab.second();
        lab.second();
        lab.succeed(Kind::Flush);
        assert_eq!((0..9).flat_map(|_| lab.kinds()).collect::<Vec<_>>(), [(EventKind::Errors, Phase::Ended)]);
    }

    #[test]
    fn a_device_that_shrank_got_the_advice_for_a_full_file_system() {
        let mut lab = Lab::new();
        (lab.sample.faults.is_device, lab.sample.faults.ends_at) = (true, Some(4096));
        lab.fail(Kind::Write, ENOSPC, 1);
        let began = lab.second();
        assert_eq!(
            began.iter().map(|event| event.kind).collect::<Vec<_>>(),
            [EventKind::Errors, EventKind::SourceShortened]
        );
        for event in began {
            assert!(event.in_words().contains("The device is smaller than the volume"), "{}", event.in_words());
        }
        // When it has its size again, the old failure is still none for lack of space.
        lab.sample.faults.ends_at = None;
        let later: Vec<_> = (0..5).flat_map(|_| lab.kinds()).collect();
        assert_eq!(later, [(EventKind::SourceShortened, Phase::Ended)]);
        lab.fail(Kind::Write, ENOSPC, 1);
        assert_eq!(lab.kinds(), [(EventKind::NoSpace, Phase::Began)], "a thin pool is full");
    }

    #[test]
    fn a_source_that_was_cut_is_told_until_it_is_whole_again() {
        let mut lab = Lab::new();
        lab.sample.faults.ends_at = Some(4096);
        let began = lab.second();
        let words = "Source of v/root was cut: its source ends at byte 4096, and the volume needs 8192";
        assert!(began[0].in_words().starts_with(words), "{}", began[0].in_words());
        lab.sample.faults.ends_at = None;
        let ended: Vec<_> = (0..5).flat_map(|_| lab.kinds()).collect();
        assert_eq!(ended, [(EventKind::SourceShortened, Phase::Ended)]);
    }
}
