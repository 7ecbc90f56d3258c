//! The form in which intervals are on disk.
//!
//! An interval has 33 bytes, so an hour of minutes has 1,989 and two rows fit into a page of SQLite. Numbers are floats of
//! 16 bits with a mantissa of 11, so they are exact up to 4,095 and within 1/4,096 above; buckets are floats of 8 bits, within 1/16. A column
//! of deltas would be smaller for VMs whose load is even; noisy ones, for which the size is stated, gain little by it.
//!
//! | bytes | contents |
//! |---|---|
//! | 5 | seconds, broken seconds (10 bits each), percent with a queue, percent by reservation (7 each), wait (3), on an uplink, whole VM (1 each) |
//! | 2 each | requests; service in 1/64 of a normalised request; bytes / 16; failed; outstanding * 16 |
//! | 1 each | 50th and 99th percentile / 128 ns; 16 buckets |
//!
//! A row begins with a version and a map of the intervals that follow, because those without requests are not kept. In a row of quarters
//! of an hour, each is followed by its busiest minute, and the number of that.

use std::collections::BTreeMap;

use sluice_observe::interval::Interval;

/// Version of the form.
const VERSION: u8 = 1;
/// Bytes of an interval.
const BYTES: usize = 33;
const SECOND: u64 = 1_000_000_000;

/// An interval with the busiest minute in it, if it is longer: its number in the interval.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Kept {
    pub(super) interval: Interval,
    pub(super) busiest: Option<(u8, Interval)>,
}

/// Intervals of an hour by their number in it.
pub(super) type Hour = BTreeMap<u8, Kept>;

/// A float with a mantissa of `bits` and an implicit first bit, rounded; values that are too large are the largest.
fn float(value: u64, bits: u32, largest: u64) -> u64 {
    let length = u64::BITS - value.leading_zeros();
    let shift = length.saturating_sub(bits + 1);
    if shift == 0 {
        return value.min(largest);
    }
    let rounded = (value >> shift) + (value >> (shift - 1) & 1);
    // Rounding up to the next power of two is right too: the mantissa becomes 0, and the exponent one more.
    ((u64::from(shift) << bits) + rounded).min(largest)
}

fn value(float: u64, bits: u32) -> u64 {
    let exponent = float >> bits;
    if exponent < 2 { float } else { (float & ((1 << bits) - 1) | 1 << bits) << (exponent - 1) }
}

fn wide(value: u64) -> [u8; 2] {
    (float(value, 11, u16::MAX.into()) as u16).to_le_bytes()
}

fn narrow(value: u64) -> u8 {
    float(value, 3, u8::MAX.into()) as u8
}

fn put(bytes: &mut Vec<u8>, interval: &Interval) {
    let seconds = ((interval.nanos + SECOND / 2) / SECOND).min(1023);
    let mut word = seconds | interval.broken_seconds.min(1023) << 10;
    word |= u64::from(interval.backlogged_percent.min(100)) << 20;
    word |= u64::from(interval.by_reservation_percent.min(100)) << 27;
    word |= u64::from(interval.wait & 7) << 34;
    word |= u64::from(interval.is_link) << 37 | u64::from(interval.is_whole_vm) << 38;
    bytes.extend(&word.to_le_bytes()[..5]);
    let outstanding = (interval.outstanding * 16.0).round() as u64;
    for number in
        [interval.requests, interval.normalised_64ths, interval.bytes.div_ceil(16), interval.failed, outstanding]
    {
        bytes.extend(wide(number));
    }
    bytes.extend([interval.p50_nanos, interval.p99_nanos].map(|nanos| narrow(nanos >> 7)));
    bytes.extend(interval.latency.map(narrow));
}

fn take(bytes: &mut &[u8]) -> Option<Interval> {
    let (own, rest) = bytes.split_at_checked(BYTES)?;
    *bytes = rest;
    let mut word = [0; 8];
    word[..5].copy_from_slice(&own[..5]);
    let word = u64::from_le_bytes(word);
    let number = |index: usize| value(u16::from_le_bytes([own[5 + 2 * index], own[6 + 2 * index]]).into(), 11);
    let small = |index: usize| value(own[15 + index].into(), 3);
    Some(Interval {
        nanos: (word & 1023) * SECOND,
        broken_seconds: word >> 10 & 1023,
        requests: number(0),
        normalised_64ths: number(1),
        bytes: number(2) * 16,
        failed: number(3),
        outstanding: number(4) as f64 / 16.0,
        p50_nanos: small(0) << 7,
        p99_nanos: small(1) << 7,
        backlogged_percent: (word >> 20 & 127) as u8,
        by_reservation_percent: (word >> 27 & 127) as u8,
        wait: (word >> 34 & 7) as u8,
        is_link: word >> 37 & 1 == 1,
        is_whole_vm: word >> 38 & 1 == 1,
        latency: std::array::from_fn(|bucket| small(2 + bucket)),
    })
}

/// The bytes of one interval, which stands alone.
pub(super) fn packed(interval: &Interval) -> Vec<u8> {
    let mut bytes = vec![VERSION];
    put(&mut bytes, interval);
    bytes
}

/// Reads one interval; `None` if it is of a newer program or damaged.
pub(super) fn unpacked(bytes: &[u8]) -> Option<Interval> {
    let (version, mut bytes) = bytes.split_first()?;
    (*version == VERSION).then(|| take(&mut bytes)).flatten()
}

/// The bytes of the intervals of an hour: at most 60.
pub(super) fn packed_hour(hour: &Hour) -> Vec<u8> {
    let mut bytes = vec![VERSION];
    let map: u64 = hour.keys().map(|number| 1 << number).sum();
    bytes.extend(map.to_le_bytes());
    for Kept { interval, busiest } in hour.values() {
        put(&mut bytes, interval);
        if let Some((number, busiest)) = busiest {
            bytes.push(*number);
            put(&mut bytes, busiest);
        }
    }
    bytes
}

/// Reads the intervals of an hour. `has_busiest`: they are quarters of it. A row that is damaged, or that a newer program wrote, has none.
pub(super) fn unpacked_hour(bytes: &[u8], has_busiest: bool) -> Hour {
    unpack_hour(bytes, has_busiest).unwrap_or_default()
}

fn unpack_hour(bytes: &[u8], has_busiest: bool) -> Option<Hour> {
    let (version, bytes) = bytes.split_first().filter(|(version, _)| **version == VERSION)?;
    let _ = version;
    let (map, mut bytes) = bytes.split_first_chunk()?;
    let map = u64::from_le_bytes(*map);
    let mut hour = Hour::new();
    for number in (0..64).filter(|number| map >> number & 1 == 1) {
        let interval = take(&mut bytes)?;
        let mut busiest = None;
        if has_busiest {
            let (number, rest) = bytes.split_first()?;
            bytes = rest;
            busiest = Some((*number, take(&mut bytes)?));
        }
        hour.insert(number, Kept { interval, busiest });
    }
    Some(hour)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interval(seed: u64) -> Interval {
        let requests = seed * 37;
        Interval {
            nanos: 60 * SECOND,
            broken_seconds: seed % 61,
            requests,
            normalised_64ths: requests * 64,
            bytes: requests * 4096,
            failed: seed % 3,
            outstanding: seed as f64 / 16.0,
            p50_nanos: 1152,
            p99_nanos: 9 << 20,
            backlogged_percent: 100,
            by_reservation_percent: 1,
            wait: 5,
            is_link: seed.is_multiple_of(2),
            is_whole_vm: true,
            latency: std::array::from_fn(|bucket| if bucket == 3 { requests } else { 0 }),
        }
    }

    #[test]
    fn floats_are_exact_when_small_and_within_half_a_step_above() {
        for (bits, largest) in [(11, u64::from(u16::MAX)), (3, u64::from(u8::MAX))] {
            let mut last = 0;
            for number in (0..40_000).chain((16..40).flat_map(|bit| [(1 << bit) - 1, 1 << bit, (1 << bit) + 1])) {
                let packed = float(number, bits, largest);
                let read = value(packed, bits);
                if packed < largest {
                    assert!(read.abs_diff(number) <= number >> (bits + 1), "{number} as {read} with {bits} bits");
                }
                assert!(packed >= last, "{number}");
                last = packed;
            }
            assert_eq!(value(float(u64::MAX, bits, largest), bits), ((2 << bits) - 1) << 30);
        }
    }

    #[test]
    fn an_interval_is_read_as_it_was_written_and_two_hours_fit_into_a_page() {
        for seed in 0..100 {
            let (written, read) = (interval(seed), unpacked(&packed(&interval(seed))).unwrap());
            let same = Interval { latency: written.latency, requests: written.requests, ..read.clone() };
            let near = |one: u64, other: u64, part: u64| assert!(one.abs_diff(other) <= other / part, "{one} {other}");
            near(read.requests, written.requests, 4096);
            near(read.latency[3], written.latency[3], 16);
            near(read.bytes, written.bytes, 4096);
            near(read.normalised_64ths, written.normalised_64ths, 4096);
            let (bytes, normalised_64ths) = (written.bytes, written.normalised_64ths);
            assert_eq!(Interval { bytes, normalised_64ths, ..same }, written);
        }
        let minutes: Hour =
            (0..60).map(|minute| (minute, Kept { interval: interval(minute.into()), busiest: None })).collect();
        let bytes = packed_hour(&minutes);
        // A page has 4,088 bytes for cells, and each takes up to 15 more.
        assert!(2 * (bytes.len() + 15) <= 4088, "{}", bytes.len());
        assert_eq!(unpacked_hour(&bytes, false).len(), 60);
        let quarter = Kept { interval: interval(60), busiest: Some((14, interval(64))) };
        let hour: Hour = [(1, quarter.clone()), (3, quarter)].into();
        let bytes = packed_hour(&hour);
        let read = unpacked_hour(&bytes, true);
        assert_eq!(read.keys().collect::<Vec<_>>(), [&1, &3]);
        assert_eq!(read[&3].busiest.as_ref().unwrap().0, 14);
    }

    #[test]
    fn what_is_damaged_or_of_a_newer_program_has_no_intervals() {
        let bytes = packed_hour(&[(0, Kept { interval: interval(1), busiest: None })].into());
        for length in 0..bytes.len() {
            assert!(unpacked_hour(&bytes[..length], false).is_empty());
        }
        let newer = [&[VERSION + 1], &bytes[1..]].concat();
        assert!(unpacked_hour(&newer, false).is_empty() && unpacked(&newer).is_none());
    }
}
