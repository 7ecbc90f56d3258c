//! The time that frames take on the wire.
//!
//! An uplink of a stated rate is a server of one frame at a time: a frame starts when the one before it has left, and occupies the wire for
//! its length. The next switch, or a faster interface, must never queue frames, because no scheduler of ours
//! orders them there. So the gate gets a frame's slot back only when the wire has room for the next one.
//!
//! A thread that wakes up late has not lost the time of the wire while frames were waiting: they are sent together, as if each had
//! started when the one before it left. At most [`LATE_MAX`] is made up for, so that a stopped process does not continue with
//! a flood. Time without frames is never made up for.

use std::time::Duration;

use sluice_sched::{ByteRate, Instant};

/// Maximum time of the wire that is made up for.
const LATE_MAX: Duration = Duration::from_millis(20);

/// Time that frames may be written ahead, besides the last one. Nobody schedules them any more, so a frame of another VM waits for them.
const AHEAD_MAX: Duration = Duration::from_micros(200);

/// The wire of an uplink.
#[derive(Debug)]
pub(crate) struct Pacer {
    /// Bytes per second, with what surrounds each frame; `None` if the interface itself holds frames back.
    rate: Option<ByteRate>,
    /// When the last frame leaves.
    free_at: Instant,
    /// Part of a nanosecond by which it leaves later, in units of 1 / rate.
    fraction: u64,
    /// Before this instant no frame might be sent.
    idle_until: Instant,
}

impl Pacer {
    pub(crate) fn new(rate: Option<ByteRate>) -> Self {
        Pacer { rate, free_at: Instant::ZERO, fraction: 0, idle_until: Instant::MAX }
    }

    pub(crate) fn set_rate(&mut self, rate: Option<ByteRate>) {
        (self.rate, self.fraction) = (rate, 0);
    }

    pub(crate) fn rate(&self) -> Option<ByteRate> {
        self.rate
    }

    /// Records that the wire has room and that no frame may be sent before `next`, or at all until one arrives (`None`).
    pub(crate) fn note_idle(&mut self, next: Option<Instant>) {
        self.idle_until = next.unwrap_or(Instant::MAX);
    }

    /// Records that frames wait for the wire.
    pub(crate) fn note_busy(&mut self) {
        self.idle_until = Instant::ZERO;
    }

    /// Sends frames that occupy the wire for `bytes` bytes; returns when the last of them has left.
    pub(crate) fn send(&mut self, now: Instant, bytes: u64) -> Instant {
        let Some(rate) = self.rate else { return now };
        let rate = rate.bytes_per_second();
        let earliest = self.idle_until.min(now).max(now - LATE_MAX);
        if self.free_at < earliest {
            (self.free_at, self.fraction) = (earliest, 0);
        }
        let time = u128::from(bytes) * 1_000_000_000 + u128::from(self.fraction);
        self.fraction = (time % u128::from(rate)) as u64;
        let nanos = u64::try_from(time / u128::from(rate)).unwrap_or(u64::MAX);
        self.free_at = self.free_at + Duration::from_nanos(nanos);
        self.free_at
    }

    /// Whether another frame may be written: what was written leaves the wire within [`AHEAD_MAX`].
    pub(crate) fn has_room(&self, now: Instant) -> bool {
        self.rate.is_none() || self.free_at <= now + AHEAD_MAX
    }

    /// Returns when the last frame leaves.
    #[cfg(test)]
    pub(crate) fn free_at(&self) -> Instant {
        self.free_at
    }

    /// Returns how many bytes pass in `time`, at most 4 GiB.
    pub(crate) fn bytes_in(&self, time: Duration) -> u32 {
        self.rate.map_or(u32::MAX, |rate| {
            let bytes = time.as_nanos() * u128::from(rate.bytes_per_second()) / 1_000_000_000;
            u32::try_from(bytes).unwrap_or(u32::MAX)
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(micros: u64) -> Instant {
        Instant::from_nanos(micros * 1000)
    }

    /// 100 Mbit/s: 80 ns for each byte.
    fn wire() -> Pacer {
        Pacer::new(Some(ByteRate::per_second(12_500_000)))
    }

    #[test]
    fn frames_follow_one_another_on_the_wire() {
        let mut wire = wire();
        wire.note_idle(None);
        assert_eq!([1250, 125, 125].map(|bytes| wire.send(at(1000), bytes)), [at(1100), at(1110), at(1120)]);
        assert_eq!(wire.bytes_in(Duration::from_micros(100)), 1250);
        assert_eq!(wire.send(at(1050), 125), at(1130), "the wire is still busy");
    }

    #[test]
    fn time_is_made_up_for_after_a_late_wake_up_and_not_after_a_pause() {
        let mut wire = wire();
        wire.note_idle(None);
        assert_eq!(wire.send(at(1000), 1250), at(1100));
        wire.note_busy();
        assert_eq!(wire.send(at(5000), 1250), at(1200), "it waited, and the thread was late");
        wire.note_idle(Some(at(6000)));
        assert_eq!(wire.send(at(5500), 1250), at(5600), "another frame arrived before the held one might go");
        assert_eq!(wire.send(at(6300), 1250), at(6100), "the held one, by a late thread");
        wire.note_idle(None);
        assert_eq!(wire.send(at(9000), 1250), at(9100), "there was no frame before");
        wire.note_busy();
        assert_eq!(wire.send(at(100_000), 1250), at(80_100), "20 ms at most");
    }

    #[test]
    fn an_uplink_without_a_rate_does_not_pace() {
        let mut free = Pacer::new(None);
        assert_eq!((free.send(at(7), 1 << 30), free.bytes_in(Duration::from_nanos(1))), (at(7), u32::MAX));
    }

    proptest! {
        /// Rates that are no divisor of a second are kept over any number of frames: no nanosecond is lost per frame.
        #[test]
        fn a_rate_is_exact_over_many_frames(rate in 1024u64..12_500_000_000, lengths in prop::collection::vec(84u64..66_000, 1..300)) {
            let mut wire = Pacer::new(Some(ByteRate::per_second(rate)));
            let last = lengths.iter().map(|bytes| wire.send(Instant::ZERO, *bytes)).last().unwrap();
            let whole: u128 = lengths.iter().map(|bytes| u128::from(*bytes)).sum::<u128>() * 1_000_000_000;
            prop_assert_eq!(u128::from(last.as_nanos()), whole / u128::from(rate));
        }
    }
}
