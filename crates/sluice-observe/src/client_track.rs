//! Faults of the clients of a volume or NIC over time.

use sluice_api::cause::Cause;
use sluice_api::event::{EventKind, Unit};

use crate::judge::{Shortfall, Watch};
use crate::now::{About, Now, Subject};
use crate::sample::ClientFaults;

/// Seconds without a refused request after which refusals are over: a guest that tries again now and then causes one event.
const QUIET: u32 = 60;

/// Refused requests and stopped queues of a volume or NIC.
#[derive(Debug, Default)]
pub(crate) struct ClientTrack {
    /// Refused requests of the last sample.
    seen: u64,
    /// Refused requests since the refusals began.
    count: u64,
    /// Seconds until refusals are over.
    left: u32,
    refused: Watch<About>,
    stopped: Watch<About>,
}

impl ClientTrack {
    pub(crate) fn push(&mut self, now: &mut Now<'_>, (vm, volume): (&str, &str), faults: &ClientFaults) {
        let subject = |kind| Subject { kind, vm: Some(vm), volume: Some(volume) };
        // A thread that has restarted counts from zero.
        let new = faults.refused.checked_sub(self.seen).unwrap_or(faults.refused);
        self.seen = faults.refused;
        self.count = if self.refused.broken().is_some() { self.count + new } else { new };
        self.left = if new > 0 { QUIET } else { self.left.saturating_sub(1) };
        let found = (self.left > 0).then_some(Shortfall { wanted: 0.0, got: new as f64, unit: Unit::Requests });
        let detail = || format!("{} so far; the last one: {}", self.count, faults.refusal.unwrap_or("unknown"));
        now.judge(subject(EventKind::Refused), &mut self.refused, found, || about(detail()));
        let stopped = f64::from(faults.stopped_queues);
        let found = (stopped > 0.0).then_some(Shortfall { wanted: 0.0, got: stopped, unit: Unit::Requests });
        let detail = || faults.stopped.unwrap_or("unknown").to_owned();
        now.judge(subject(EventKind::QueueStopped), &mut self.stopped, found, || about(detail()));
    }

    /// Ends what was reported, because the volume is gone.
    pub(crate) fn end(&mut self, now: &mut Now<'_>, (vm, volume): (&str, &str)) {
        let subject = |kind| Subject { kind, vm: Some(vm), volume: Some(volume) };
        now.end(subject(EventKind::Refused), &mut self.refused);
        now.end(subject(EventKind::QueueStopped), &mut self.stopped);
    }
}

fn about(detail: String) -> About {
    About::new(Cause::Client, Vec::new()).with(Some(detail))
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_api::event::{Event, Phase};

    fn push(track: &mut ClientTrack, second: u64, faults: ClientFaults) -> Vec<Event> {
        let mut events = Vec::new();
        let (device, is_late, is_link) = ("disk", false, false);
        let mut now = Now {
            time: second,
            second,
            since: second,
            is_late,
            device,
            is_link,
            events: &mut events,
            minutes: &mut Vec::new(),
        };
        track.push(&mut now, ("web", "root"), &faults);
        events
    }

    #[test]
    fn refused_requests_are_one_event_until_there_are_none_for_a_minute() {
        let (mut track, mut events) = (ClientTrack::default(), Vec::new());
        let refused = |refused| ClientFaults {
            refused,
            refusal: Some("a range past the end of the volume"),
            ..ClientFaults::default()
        };
        for second in 0..200 {
            events.extend(push(&mut track, second, refused(if second < 100 { second / 10 } else { 10 })));
        }
        let words: Vec<_> = events.iter().map(|event| (event.phase, event.in_words())).collect();
        let text = |count| {
            format!(
                "Requests of web/root are refused ({count} so far; the last one: a range past the end of the volume)"
            )
        };
        assert_eq!(words[0], (Phase::Began, text(1)));
        assert_eq!((words[1].0, words.len()), (Phase::Ended, 2));
        assert!(words[1].1.ends_with(&text(10)), "{}", words[1].1);
    }

    #[test]
    fn a_queue_that_has_stopped_is_an_event_until_it_is_reset() {
        let mut track = ClientTrack::default();
        let stopped = ClientFaults { stopped_queues: 1, stopped: Some("why it stopped"), ..ClientFaults::default() };
        let began = push(&mut track, 1, stopped);
        let expected = "A queue of web/root has stopped until its driver is reset (why it stopped)";
        assert_eq!((began.len(), began[0].in_words().as_str()), (1, expected));
        assert!((2..10).all(|second| push(&mut track, second, stopped).is_empty()));
        let ended: Vec<_> = (10..20).flat_map(|second| push(&mut track, second, ClientFaults::default())).collect();
        assert_eq!((ended.len(), ended[0].phase), (1, Phase::Ended));
    }
}
