//! What a request costs, in normalised requests.
//!
//! A large request occupies the device longer than a small one, so requests are not counted but weighed. \[mclock\] 3.1,
//! eq. (4) and (5): a request of size S counts as `1 + S/(Tm * Bpeak)` requests, Tm the mechanical delay, Bpeak the
//! peak transfer rate. We write K for `Tm * Bpeak` and divide by the cost of a stated size, so that a request of
//! just that size costs exactly 1 and every rate reads as "requests of 8 KiB".

use crate::request::Kind;
use crate::units::Bytes;

/// A cost in normalised requests: an integer of 1/65,536; up to 65,535 requests. Every request costs something.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct Cost(u32);

impl Cost {
    /// One normalised request.
    pub const ONE: Cost = Cost(1 << Cost::SHIFT);
    /// No request's cost: where sums of costs begin.
    pub const NONE: Cost = Cost(0);
    /// Binary digits after the point.
    pub const SHIFT: u32 = 16;

    /// `requests` whole requests, at most 65,535.
    #[must_use]
    pub const fn requests(requests: u32) -> Self {
        if requests > 65_535 { Cost(u32::MAX) } else { Cost(requests << Cost::SHIFT) }
    }

    /// The cost of a request from its raw integer (1/65,536 of a request); 0 is raised to 1.
    #[must_use]
    pub const fn from_raw(raw: u32) -> Self {
        if raw == 0 { Cost(1) } else { Cost(raw) }
    }

    /// The raw integer.
    #[must_use]
    pub const fn raw(self) -> u32 {
        self.0
    }

    /// Both costs together, at most the largest.
    #[must_use]
    pub const fn plus(self, other: Cost) -> Self {
        Cost(self.0.saturating_add(other.0))
    }

    /// The cost as a number, for output.
    #[must_use]
    pub fn as_f64(self) -> f64 {
        f64::from(self.0) / 65_536.0
    }
}

/// How the cost follows from kind and size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CostModel {
    /// The size that costs exactly 1, or `None`: every read and write costs 1 ("IOPS mode").
    pub reference: Option<Bytes>,
    /// K: the size at which transferring takes as long as positioning. \[mclock\] 3.1: 5 ms at 60 MB/s = 300 kB.
    pub knee: Bytes,
    /// A flush.
    pub flush: Cost,
    /// The least that one piece (at most 64 MiB) of a discard or of write zeroes costs that the device does by itself.
    pub discard: Cost,
    /// What each MiB of it costs, if that is more: at least 1/64.
    pub discard_mib: Cost,
}

impl Default for CostModel {
    fn default() -> Self {
        CostModel {
            reference: Some(Bytes::kib(8)),
            knee: Bytes(300_000),
            flush: Cost::ONE,
            discard: Cost::ONE,
            discard_mib: CostModel::DISCARD_MIB_MIN,
        }
    }
}

impl CostModel {
    /// The least that a MiB of a discard may cost: 1 for 64 MiB.
    pub const DISCARD_MIB_MIN: Cost = Cost(Cost::ONE.0 / 64);

    /// Every request costs 1: for the paper's experiments with one size.
    #[must_use]
    // rule: mclock.cost-one
    pub fn per_request() -> Self {
        CostModel { reference: None, ..CostModel::default() }
    }

    /// \[mclock\] 3.1, "IO size": 1 + S/K, relative to a request of no size.
    #[must_use]
    // rule: mclock.cost-size
    pub fn paper() -> Self {
        CostModel { reference: Some(Bytes(0)), ..CostModel::default() }
    }

    /// The cost of one request of `length` bytes.
    #[must_use]
    // rule: mclock.cost-normalised, mclock.cost-other
    pub fn cost(&self, kind: Kind, length: u32) -> Cost {
        match kind {
            Kind::Read | Kind::Write => match self.reference {
                None => Cost::ONE,
                Some(reference) => {
                    let knee = self.knee.0.max(1);
                    let raw = ((knee + u64::from(length)) << Cost::SHIFT) / (knee + reference.0);
                    Cost::from_raw(u32::try_from(raw).unwrap_or(u32::MAX))
                }
            },
            Kind::Flush => self.flush,
            Kind::Discard | Kind::WriteZeroes => {
                let by_size = (u64::from(length) * u64::from(self.discard_mib.0)).div_ceil(1 << 20);
                self.discard.max(Cost::from_raw(u32::try_from(by_size).unwrap_or(u32::MAX)))
            }
        }
    }

    /// The size that costs 1, or 8 KiB where every read and write costs 1.
    #[must_use]
    pub fn reference_size(&self) -> Bytes {
        self.reference.filter(|size| size.0 > 0).unwrap_or(Bytes::kib(8))
    }

    /// The bytes that a request counts against a limit in bytes: what a read or write moves; for discards and zeroes that
    /// the device makes by itself, as much as reads of the reference size of the same cost. A flush counts none.
    #[must_use]
    // rule: mclock.byte-limit
    pub fn bytes(&self, kind: Kind, length: u32, cost: Cost) -> u64 {
        match kind {
            Kind::Read | Kind::Write => u64::from(length),
            Kind::Flush => 0,
            Kind::Discard | Kind::WriteZeroes => (u64::from(cost.0) * self.reference_size().0) >> Cost::SHIFT,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // rule: mclock.cost-size, mclock.cost-normalised, mclock.cost-other, mclock.cost-one
    #[test]
    fn the_stated_size_costs_one_and_the_paper_form_matches() {
        assert_eq!(CostModel::default().cost(Kind::Read, 8192), Cost::ONE);
        let paper = |size| CostModel::paper().cost(Kind::Write, size).as_f64();
        for (size, expected) in [(8_192, 1.027), (32_768, 1.109), (262_144, 1.874)] {
            assert!((paper(size) - expected).abs() < 0.001, "{size}: {}", paper(size));
        }
        assert_eq!(CostModel::per_request().cost(Kind::Read, 1 << 20), Cost::ONE);
        assert_eq!(CostModel::default().cost(Kind::Discard, 64 << 20), Cost::ONE);
        let dear = CostModel { discard_mib: Cost::requests(2), ..CostModel::default() };
        assert_eq!(dear.cost(Kind::WriteZeroes, 64 << 20), Cost::requests(128));
        assert_eq!(dear.cost(Kind::WriteZeroes, 4096), Cost::ONE);
    }

    #[test]
    fn zeroes_and_discards_count_bytes_by_their_cost() {
        let model = CostModel { discard_mib: Cost::ONE, ..CostModel::default() };
        let bytes = |kind, length| model.bytes(kind, length, model.cost(kind, length));
        assert_eq!(bytes(Kind::Read, 512), 512);
        assert_eq!(bytes(Kind::Flush, 0), 0);
        assert_eq!(bytes(Kind::Discard, 64 << 20), 64 * 8192);
        assert_eq!(bytes(Kind::WriteZeroes, 4096), 8192);
    }
}
