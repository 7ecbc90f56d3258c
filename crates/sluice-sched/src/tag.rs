//! Tags: points on a clock that runs at a VM's own rate, as integers.
//!
//! A real-time tag is in units of 1/16 ns, [`TAG_START`] at the first event of the scheduler. At 10 million requests per second two
//! tags are 1,600 units apart, so rounding costs less than 0.1 %. 64 bits last for 36 years. With floating-point
//! seconds, limits would be exceeded by 40 % at 3 million requests per second.
//!
//! A share tag is in units of virtual time: 2.52 * 10^11 per request at weight 0.01, a number that most weights divide.
//! Example: requests of cost 1 are 25,200,000 units apart at weight 100 and 8,400,000 at weight 300. At 1000 IOPS
//! real-time tags are 16,000,000 units apart, which is 1 ms.

use crate::cost::Cost;
use crate::time::Instant;
use crate::units::{ByteRate, Iops, Weight};

/// A real-time tag: 1/16 ns, [`TAG_START`] at the epoch of its [`TagClock`].
pub type Tag = u64;
/// A share tag: units of virtual time.
pub type ShareTag = u64;

/// Units of a real-time tag per nanosecond.
pub const TAGS_PER_NANO: u64 = 16;
/// Tag of the epoch: room for tags of the time before it, which a scheduler has if it replaces another. The longest catch-up of
/// a reservation is one hour.
pub const TAG_START: Tag = 3600 * 1_000_000_000 * TAGS_PER_NANO;
/// Virtual time that one normalised request takes at weight 0.01.
const SHARE_UNIT: u128 = 252_000_000_000;
/// Virtual time that one byte takes at weight 0.01.
const BYTE_UNIT: u128 = 252_000_000;
const FRACTION_BITS: u32 = 32;

/// Converts between instants and tags. The epoch is the first instant that is converted, so a clock may start anywhere.
#[derive(Debug, Clone, Default)]
pub struct TagClock {
    epoch: Option<Instant>,
}

impl TagClock {
    /// The tag of `now`. Saturates 36 years after the epoch.
    pub fn tag(&mut self, now: Instant) -> Tag {
        let epoch = *self.epoch.get_or_insert(now);
        now.nanos_since(epoch).saturating_mul(TAGS_PER_NANO).saturating_add(TAG_START)
    }

    /// The first instant that is not before `tag`; the epoch for a tag of the time before it.
    #[must_use]
    pub fn instant(&self, tag: Tag) -> Instant {
        let epoch = self.epoch.unwrap_or(Instant::ZERO);
        let since = tag.saturating_sub(TAG_START).div_ceil(TAGS_PER_NANO);
        Instant::from_nanos(epoch.as_nanos().saturating_add(since))
    }
}

/// Distance between two tags of one owner: tag units per unit of service, with 32 binary digits after the point.
///
/// Distances are rounded up, so rounding never exceeds a limit. The error is below one tag unit per request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Spacing(u64);

impl Spacing {
    /// No rate, so no tags.
    pub const NONE: Spacing = Spacing(0);

    /// Distance per raw cost unit, for a rate of normalised requests.
    #[must_use]
    pub fn per_cost(rate: Option<Iops>) -> Self {
        let Some(rate) = rate else { return Spacing::NONE };
        let tags_per_milli = u128::from(TAGS_PER_NANO) * 1_000_000_000_000;
        Self::fixed((tags_per_milli << (FRACTION_BITS - Cost::SHIFT)) / u128::from(rate.milli()))
    }

    /// Distance per byte.
    #[must_use]
    pub fn per_byte(rate: Option<ByteRate>) -> Self {
        let Some(rate) = rate else { return Spacing::NONE };
        let tags = u128::from(TAGS_PER_NANO) * 1_000_000_000;
        Self::fixed((tags << FRACTION_BITS) / u128::from(rate.bytes_per_second()))
    }

    /// Virtual time per raw cost unit.
    #[must_use]
    pub fn of_weight(weight: Option<Weight>) -> Self {
        let Some(weight) = weight else { return Spacing::NONE };
        Self::fixed((SHARE_UNIT << (FRACTION_BITS - Cost::SHIFT)) / u128::from(weight.hundredths()))
    }

    /// Virtual time per byte, for a weight in hundredths: 2.52 * 10^8 at weight 0.01, so the smallest frame still
    /// counts three digits at the largest weight.
    #[must_use]
    pub fn per_byte_of_weight(hundredths: u64) -> Self {
        Self::fixed((BYTE_UNIT << FRACTION_BITS) / u128::from(hundredths.max(1)))
    }

    fn fixed(scaled: u128) -> Self {
        Spacing(u64::try_from(scaled).unwrap_or(u64::MAX).max(1))
    }

    /// Whether there is no rate.
    #[must_use]
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }

    /// Distance for `amount` of service (raw cost units or bytes), rounded up.
    #[must_use]
    pub const fn of(self, amount: u64) -> u64 {
        let wide = amount as u128 * self.0 as u128;
        let up = (wide + ((1 << FRACTION_BITS) - 1)) >> FRACTION_BITS;
        if up > u64::MAX as u128 { u64::MAX } else { up as u64 }
    }

    /// Service that takes the distance between two tags; negative if `to` is earlier. Rounded down, so [`Spacing::of`] never
    /// takes more than the distance for it. 0 without a rate.
    #[must_use]
    pub fn amount_between(self, from: u64, to: u64) -> i64 {
        if self.is_none() {
            return 0;
        }
        let scaled = |distance: u64| u128::from(distance) << FRACTION_BITS;
        match to.checked_sub(from) {
            Some(distance) => i64::try_from(scaled(distance) / u128::from(self.0)).unwrap_or(i64::MAX),
            None => i64::try_from(scaled(from - to).div_ceil(u128::from(self.0))).map_or(i64::MIN, |amount| -amount),
        }
    }

    /// The tag that lies `amount` of service after `tag`, or before it if that is negative. Saturates.
    #[must_use]
    pub fn tag_after(self, tag: u64, amount: i64) -> u64 {
        let distance = self.of(amount.unsigned_abs());
        if amount >= 0 { tag.saturating_add(distance) } else { tag.saturating_sub(distance) }
    }

    /// Distance for `amount` of service plus the `fraction` that earlier distances were too short, in 2^-32 of a unit.
    /// Also returns the new fraction. The sum of many distances is exact to one unit.
    #[must_use]
    pub const fn carry(self, amount: u64, fraction: u32) -> (u64, u32) {
        let wide = amount as u128 * self.0 as u128 + fraction as u128;
        let whole = wide >> FRACTION_BITS;
        (if whole > u64::MAX as u128 { u64::MAX } else { whole as u64 }, wide as u32)
    }

    /// Converts `distance` at this spacing to the spacing `other`: the same service at another rate.
    #[must_use]
    pub fn convert(self, distance: u64, other: Spacing) -> u64 {
        if self.is_none() || other.is_none() {
            return 0;
        }
        let converted = u128::from(distance) * u128::from(other.0) / u128::from(self.0);
        u64::try_from(converted).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 16_000_000_000;

    #[test]
    fn spacings_are_exact_for_round_rates_and_otherwise_rounded_up() {
        let at = |iops| Spacing::per_cost(Some(Iops::per_second(iops)));
        let one = u64::from(Cost::ONE.raw());
        assert_eq!(at(100).of(one), 160_000_000);
        assert_eq!(at(1_000_000).of(one), 16_000);
        assert_eq!(at(3).of(one), 5_333_333_334);
        let bytes = Spacing::per_byte(Some(ByteRate::per_second(1 << 20)));
        assert_eq!(bytes.of(1 << 20), 16_000_000_000);
        let weight = |w| Spacing::of_weight(Some(Weight::new(w)));
        assert_eq!(weight(100).of(one), 3 * weight(300).of(one));
        assert_eq!(weight(1).of(one), 1_000_000 * weight(1_000_000).of(one));
        assert_eq!(at(1000).convert(16_000_000, at(10)), 1_600_000_000);
    }

    #[test]
    fn a_sum_of_carried_distances_is_exact() {
        let third = Spacing::per_byte_of_weight(300 * 7);
        let step = |(sum, fraction): (u64, u32), _| {
            let (distance, fraction) = third.carry(60, fraction);
            (sum + distance, fraction)
        };
        let (sum, _) = (0..7_000_000).fold((0, 0), step);
        let exact = 60 * 7_000_000 * 120_000;
        assert!(exact - sum <= 1, "{sum} of {exact}");
    }

    #[test]
    fn an_amount_never_takes_more_than_its_distance() {
        for spacing in [3, 7, 1000, 10_000_000].map(|iops| Spacing::per_cost(Some(Iops::per_second(iops)))) {
            for distance in [0, 1, 16, 999_999_999, 16_000_000_001] {
                let amount = spacing.amount_between(SECOND, SECOND + distance);
                assert!(spacing.tag_after(SECOND, amount) <= SECOND + distance, "{spacing:?}: {distance}");
                assert!(spacing.of(amount.unsigned_abs() + 1) > distance, "{spacing:?}: {distance}");
                let debt = spacing.amount_between(SECOND + distance, SECOND);
                assert!(spacing.of(debt.unsigned_abs()) >= distance && debt <= 0, "{spacing:?}: {distance}");
            }
        }
        let one = Spacing::fixed(1);
        assert_eq!((one.amount_between(0, u64::MAX), one.amount_between(u64::MAX, 0)), (i64::MAX, i64::MIN));
        let longest = Spacing::fixed(u128::MAX);
        assert_eq!((longest.tag_after(5, i64::MIN), longest.tag_after(5, i64::MAX)), (0, u64::MAX));
        assert_eq!(Spacing::NONE.amount_between(1, 5), 0);
    }

    #[test]
    fn a_clock_may_start_anywhere() {
        let mut clock = TagClock::default();
        let late = Instant::from_nanos(u64::MAX - 1000);
        assert_eq!(clock.tag(late), TAG_START);
        assert_eq!(clock.instant(TAG_START + 17), Instant::from_nanos(u64::MAX - 998));
        assert_eq!(clock.instant(TAG_START - 17), late);
        assert_eq!(clock.instant(u64::MAX), Instant::MAX);
    }
}
