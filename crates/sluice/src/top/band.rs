//! A rate, drawn in its band from reservation to limit.
//!
//! The bar begins at zero. `|` is the reservation and `]` the limit. Up to the rate the bar is full; a part of the reservation
//! that is not used is `-`, and room up to the limit is `.`. Examples, with 500 reserved and a limit of 1,000:
//!
//! ```text
//! #####|###...]   800: more than its reservation
//! ##---|......]   200: it asks for less than it may, or its promise is broken
//! #####|######>   1,050: above the limit, for a burst
//! ```
//!
//! Without a limit the bar ends at `scale` and has no mark there.

use sluice_api::top::{Figures, Rates};

use super::theme::Theme;

/// A rate with its band, all in the same unit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Band {
    pub(crate) rate: f64,
    pub(crate) reservation: Option<f64>,
    pub(crate) limit: Option<f64>,
    /// Value at the end of the bar, if there is no limit.
    pub(crate) scale: f64,
}

/// Part of the limit above which a rate is above it; rates of one second vary by a request.
const ABOVE: f64 = 1.02;

impl Band {
    /// The band in requests or in bytes: the one of whose limit, or else reservation, more is used. `scale_iops` is what the
    /// device can do.
    pub(crate) fn of(figures: &Figures, rates: &Rates, scale_iops: f64) -> Band {
        let (reservation, limit) = (figures.reservation, figures.limit);
        let bytes = Band {
            rate: rates.bytes_per_second,
            reservation: reservation.bytes_per_second,
            limit: limit.bytes_per_second,
            scale: 2.0 * reservation.bytes_per_second.unwrap_or(0.0),
        };
        let iops = Band { rate: rates.iops, reservation: reservation.iops, limit: limit.iops, scale: scale_iops };
        match (iops.used(), bytes.used()) {
            (Some(by_iops), Some(by_bytes)) if by_bytes > by_iops => bytes,
            (None, Some(_)) => bytes,
            _ => iops,
        }
    }

    /// The part of the limit, or else of the reservation, that is used.
    fn used(&self) -> Option<f64> {
        self.limit.or(self.reservation).map(|of| self.rate / of.max(f64::MIN_POSITIVE))
    }

    /// Draws it in this many cells.
    pub(crate) fn draw(&self, width: u16, theme: &Theme) -> String {
        let cells = usize::from(width.saturating_sub(1));
        if cells == 0 {
            return String::new();
        }
        let reserved = self.reservation.unwrap_or(0.0);
        let end = self.limit.unwrap_or_else(|| self.scale.max(self.rate)).max(reserved).max(f64::MIN_POSITIVE);
        let cell = |value: f64| ((value / end * cells as f64).round() as usize).min(cells);
        // A rate above zero is seen.
        let filled = if self.rate > 0.0 { cell(self.rate).max(1) } else { 0 };
        let marked = self.reservation.filter(|reserved| *reserved > 0.0).map(|reserved| cell(reserved).min(cells - 1));
        let symbol = |at: usize| match marked {
            Some(mark) if at == mark => theme.reservation,
            _ if at < filled => theme.full,
            Some(mark) if at < mark => theme.unused,
            _ if self.limit.is_some() => theme.room,
            _ => ' ',
        };
        let closing = match self.limit {
            Some(limit) if self.rate > limit * ABOVE => theme.above,
            Some(_) => ']',
            None => ' ',
        };
        (0..cells).map(symbol).chain([closing]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_api::top::Amount;

    fn drawn(rate: f64, reservation: Option<f64>, limit: Option<f64>) -> String {
        Band { rate, reservation, limit, scale: 2000.0 }.draw(13, &Theme::plain())
    }

    #[test]
    fn a_rate_is_drawn_in_its_band() {
        let both = |rate| drawn(rate, Some(500.0), Some(1000.0));
        assert_eq!(both(800.0), "######|###..]");
        assert_eq!(both(200.0), "##----|.....]");
        assert_eq!(both(500.0), "######|.....]");
        assert_eq!(both(1000.0), "######|#####]");
        assert_eq!(both(1050.0), "######|#####>", "a burst");
        assert_eq!(both(0.1), "#-----|.....]", "a rate above zero is seen");
        assert_eq!(both(0.0), "------|.....]");
        assert_eq!(drawn(500.0, Some(1000.0), Some(1000.0)), "######-----|]", "all of the limit is reserved");
        assert_eq!(drawn(1000.0, None, None), "######       ", "of what the device can do");
        assert_eq!(drawn(1000.0, Some(500.0), None), "###|##       ");
        assert_eq!(drawn(4000.0, None, None), "############ ", "more than the device is said to do");
        assert_eq!(drawn(0.0, Some(0.0), Some(0.0)), "............]");
    }

    #[test]
    fn the_band_is_in_the_unit_whose_limit_is_used_most() {
        let limit = Amount { iops: Some(1000.0), bytes_per_second: Some(1e6) };
        let figures = Figures { limit, ..Figures::default() };
        let at = |iops, bytes_per_second| {
            Band::of(&figures, &Rates { iops, bytes_per_second, ..Rates::default() }, 5000.0).limit
        };
        assert_eq!((at(900.0, 1e5), at(100.0, 9e5)), (Some(1000.0), Some(1e6)));
        let unlimited = Band::of(&Figures::default(), &Rates { iops: 7.0, ..Rates::default() }, 5000.0);
        assert_eq!((unlimited.rate, unlimited.scale), (7.0, 5000.0));
    }
}
