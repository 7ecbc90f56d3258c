//! Cap on flooded frames: broadcasts, multicasts and frames to unknown addresses, each of which costs a copy for every port.
//!
//! A large segment counts as the frames that it becomes ([`Frame::frames`]): a receiver without offloads gets each of them.
//!
//! Without a cap one VM that sends broadcasts keeps the daemon busy for all others. A plain cap would also cut the VM off, because a
//! station finds others by broadcast ARP and multicast neighbour discovery. A quarter of the cap is for those alone, and they may use
//! the rest too.
//!
//! Example: 1,000 frames/s, of which 900 are ARP and 5,000 other broadcasts. 750 others pass, and the 250 of ARP that are kept; what
//! ARP gets of the rest depends on the order.

use core::num::{NonZeroU32, NonZeroU64};

use sluice_sched::Instant;

use crate::Frame;
use crate::bucket::Bucket;

/// Tokens of a frame: the smallest number that makes a quarter of any rate whole.
const TOKENS: u64 = 4;

/// How many frames a sender may flood.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FloodLimit {
    pub frames_per_second: NonZeroU32,
    /// Frames that pass at once after a pause; at least two of ARP and neighbour discovery, and two others.
    pub burst: NonZeroU32,
}

/// The cap of one sender.
#[derive(Clone, Copy, Debug)]
pub struct FloodCap {
    /// For ARP and neighbour discovery.
    kept: Bucket,
    shared: Bucket,
}

impl FloodCap {
    #[must_use]
    pub fn new(now: Instant, limit: FloodLimit) -> Self {
        let part = |quarters: u64| {
            let rate = NonZeroU64::from(limit.frames_per_second).saturating_mul(tokens(quarters));
            let burst = NonZeroU64::from(limit.burst).saturating_mul(tokens(quarters)).max(tokens(2 * TOKENS));
            Bucket::new(now, rate, burst)
        };
        FloodCap { kept: part(1), shared: part(TOKENS - 1) }
    }

    /// Whether a flooded frame passes; it is counted if so. A segment of more frames than the burst never does.
    pub fn passes(&mut self, now: Instant, frame: &Frame) -> bool {
        let tokens = TOKENS * u64::from(frame.frames);
        frame.finds_neighbours() && self.kept.take(now, tokens) || self.shared.take(now, tokens)
    }
}

/// How many copies of flooded frames all senders together may cause: frames on the wire, for each port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CopyLimit {
    pub per_second: NonZeroU32,
    /// Copies at once after a pause.
    pub burst: NonZeroU32,
}

/// The cap of all senders together. A flooded frame costs a copy for each port of its VLAN, a large segment its frames for each port, so a cap of each sender alone would let
/// the cost grow with the square of the ports.
///
/// Every sender keeps a part for ARP and neighbour discovery, which no other sender can use up: a quarter of the cap, half of it for the
/// uplink and half in equal parts for the ports, and at least one frame per second.
///
/// Example: 100,000 copies/s and 100 ports. Two ports that flood 1,000 frames/s each would cause 200,000. Half of them pass, and
/// each other port still finds one neighbour per second at least: its part is 125 copies, which is one frame and a quarter.
#[derive(Clone, Copy, Debug)]
pub struct CopyCap {
    limit: CopyLimit,
    shared: Bucket,
}

/// Number of frames that a sender has used of its guaranteed part in this second.
#[derive(Clone, Copy, Debug, Default)]
pub struct Spent {
    second: u64,
    copies: u64,
}

impl CopyCap {
    #[must_use]
    pub fn new(now: Instant, limit: CopyLimit) -> Self {
        CopyCap { limit, shared: Bucket::new(now, limit.per_second.into(), limit.burst.into()) }
    }

    /// Whether a frame for `receivers` passes; it is counted if so. The sender is the uplink, or one of `ports` ports.
    pub fn passes(
        &mut self,
        now: Instant,
        spent: &mut Spent,
        (is_uplink, ports): (bool, u32),
        receivers: u32,
        frame: &Frame,
    ) -> bool {
        let copies = u64::from(receivers) * u64::from(frame.frames);
        // One that costs more than the burst passes with a full bucket, and those after it wait for the rest.
        if self.shared.ready(now, copies).is_none() {
            self.shared.spend(now, copies);
            return true;
        }
        let kept = u64::from(self.limit.per_second.get()) / 8 / if is_uplink { 1 } else { u64::from(ports.max(1)) };
        let second = now.as_nanos() / 1_000_000_000;
        if spent.second != second {
            *spent = Spent { second, copies: 0 };
        }
        let passes = frame.finds_neighbours() && (spent.copies == 0 || spent.copies + copies <= kept);
        spent.copies += if passes { copies } else { 0 };
        passes
    }
}

const fn tokens(count: u64) -> NonZeroU64 {
    NonZeroU64::new(count).expect("parts are not empty")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{PREFIX_LEN, parse};

    fn cap(rate: u32, burst: u32) -> FloodCap {
        let limit =
            FloodLimit { frames_per_second: NonZeroU32::new(rate).unwrap(), burst: NonZeroU32::new(burst).unwrap() };
        FloodCap::new(Instant::ZERO, limit)
    }

    fn broadcast() -> Frame {
        parse(&[&[0xff; 6][..], &[2; 6], &[0x12, 0x34], &[0; 46]].concat(), 60).unwrap()
    }

    fn arp() -> Frame {
        let message = [&[0, 1, 8, 0, 6, 4, 0, 1][..], &[2; 6], &[10, 0, 0, 1], &[0; 6], &[10, 0, 0, 2]].concat();
        parse(&[&[0xff; 6][..], &[2; 6], &[8, 6], &message].concat(), 42).unwrap()
    }

    fn solicitation() -> Frame {
        let mut packet = vec![0x60, 0, 0, 0, 0, 24, 58, 255];
        packet.extend([0xfd; 32]);
        packet.extend([135, 0, 0, 0, 0, 0, 0, 0]);
        packet.extend([0xfd; 16]);
        let bytes = [&[0x33, 0x33, 0xff, 1, 2, 3][..], &[2; 6], &[0x86, 0xdd], &packet].concat();
        parse(&bytes[..bytes.len().min(PREFIX_LEN)], bytes.len() as u32).unwrap()
    }

    #[test]
    fn arp_and_neighbour_discovery_survive_a_storm() {
        for finder in [arp(), solicitation()] {
            let mut cap = cap(100, 10);
            let (mut others, mut found) = (0, 0);
            // 10 s with 10,000 broadcasts and 10 questions for neighbours per second.
            for at in 0..100_000u64 {
                let now = Instant::from_nanos(at * 100_000);
                others += u32::from(cap.passes(now, &broadcast()));
                found += u32::from(at % 1_000 == 999 && cap.passes(now, &finder));
            }
            assert_eq!(found, 100);
            assert!((750..=760).contains(&others), "{others}");
        }
    }

    #[test]
    fn many_senders_each_below_its_cap_flooded_without_a_bound_and_kept_neighbours_from_being_found() {
        const PORTS: u32 = 100;
        let number = |value| NonZeroU32::new(value).unwrap();
        let mut total = CopyCap::new(Instant::ZERO, CopyLimit { per_second: number(100_000), burst: number(20_000) });
        let mut spent = [Spent::default(); PORTS as usize];
        let (mut copies, mut found) = (0u64, 0);
        // 10 s in which 50 ports send 1,000 ARP messages per second each, and another one asks for a neighbour each second.
        for at in 0..10_000u64 {
            let now = Instant::from_millis(at);
            for sender in &mut spent[..50] {
                copies += 100 * u64::from(total.passes(now, sender, (false, PORTS), 100, &arp()));
            }
            if at % 1000 == 999 {
                found += u32::from(total.passes(now, &mut spent[99], (false, PORTS), 100, &solicitation()));
            }
        }
        assert_eq!(found, 10);
        // The cap and its burst, and the kept parts of 50 ports: one frame per second each.
        assert!(copies <= 10 * 100_000 + 20_000 + 10 * 50 * 100, "{copies}");
        assert!(copies >= 1_000_000, "{copies}");
    }

    #[test]
    fn the_sum_is_capped_whatever_is_sent() {
        let mut cap = cap(100, 8);
        let passed = |cap: &mut FloodCap, frame: &Frame| {
            (0..100_000u64).filter(|at| cap.passes(Instant::from_nanos(at * 100_000), frame)).count()
        };
        let passed = passed(&mut cap, &arp());
        assert!((1_006..=1_008).contains(&passed), "{passed}: 100/s for 10 s and the burst, less parts of frames");
    }

    #[test]
    fn a_large_segment_counted_as_one_frame() {
        let segment = |frames| Frame { frames, ..broadcast() };
        let passed = |cap: &mut FloodCap, frames| {
            (0..10_000u64).filter(|at| cap.passes(Instant::from_millis(*at), &segment(frames))).count()
        };
        // 75/s for others than ARP, and their part of the burst.
        assert_eq!(passed(&mut cap(100, 40), 25), 31);
        assert_eq!(passed(&mut cap(100, 40), 2_000), 0, "more than the burst");
        let number = |value| NonZeroU32::new(value).unwrap();
        let mut total = CopyCap::new(Instant::ZERO, CopyLimit { per_second: number(1_000), burst: number(100) });
        let mut passes =
            |at| total.passes(Instant::from_millis(at), &mut Spent::default(), (false, 10), 10, &segment(25));
        // 250 copies each: the first with a full bucket, the next when what it lacked and the burst are there again.
        let times: Vec<u64> = (0..1_000).filter(|at| passes(*at)).collect();
        assert_eq!(times, [0, 250, 500, 750]);
    }

    #[test]
    fn a_rate_of_one_frame_per_second_is_not_none() {
        let mut cap = cap(1, 1);
        let passed = (0..400u64).filter(|second| cap.passes(Instant::from_millis(second * 1_000), &arp())).count();
        assert_eq!(passed, 400, "a quarter of the cap each four seconds, and the rest");
    }
}
