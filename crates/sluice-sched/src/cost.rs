//! Cost of a request, in normalised requests.
//!
//! A large request occupies the device longer than a small one. \[mclock\] 3.1, eq. (4) and (5): a request of size S counts
//! as `1 + S/(Tm * Bpeak)` requests. Tm is the mechanical delay, Bpeak the peak transfer rate, and K their product. The cost
//! is divided by that of the reference size, which therefore costs exactly 1: every rate means "requests of 8 KiB".
//!
//! Example: K is 300 kB and the reference size 8 KiB. A request of 64 KiB costs (300,000 + 65,536) / (300,000 + 8,192)
//! = 1.186, and one of 256 KiB 1.824.
//!
//! A network link is occupied by bytes alone: K is 0, and each frame also takes the preamble, checksum and gap that surround it
//! on the wire. With 24 bytes of overhead and a reference of 1538 bytes a full frame of 1514 bytes costs 1, and one of 60 bytes
//! 84 / 1538 = 0.055.
//!
//! A device that writes more slowly than it reads has a write factor, by which the cost of a write is multiplied. With 2 a
//! write of 64 KiB costs 2.372.

use crate::request::Kind;
use crate::units::Bytes;

/// A cost in normalised requests: an integer in units of 1/65,536, up to 65,535 requests. The cost of a request is
/// never 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct Cost(u32);

impl Cost {
    /// One normalised request.
    pub const ONE: Cost = Cost(1 << Cost::SHIFT);
    /// Zero, the initial value of a sum of costs.
    pub const NONE: Cost = Cost(0);
    /// Number of binary digits after the point.
    pub const SHIFT: u32 = 16;

    /// `requests` whole requests, at most 65,535.
    #[must_use]
    pub const fn requests(requests: u32) -> Self {
        if requests > 65_535 { Cost(u32::MAX) } else { Cost(requests << Cost::SHIFT) }
    }

    /// A cost from its raw integer (1/65,536 of a request). 0 becomes 1.
    #[must_use]
    pub const fn from_raw(raw: u32) -> Self {
        if raw == 0 { Cost(1) } else { Cost(raw) }
    }

    #[must_use]
    pub const fn raw(self) -> u32 {
        self.0
    }

    /// Sum of both costs; saturates at the largest cost.
    #[must_use]
    pub const fn plus(self, other: Cost) -> Self {
        Cost(self.0.saturating_add(other.0))
    }

    /// The cost multiplied by the number `factor`, rounded down to at least the smallest cost; saturates at the largest.
    #[must_use]
    pub fn times(self, factor: Cost) -> Self {
        let raw = (u64::from(self.0) * u64::from(factor.0)) >> Cost::SHIFT;
        Cost::from_raw(u32::try_from(raw).unwrap_or(u32::MAX))
    }

    /// The cost as a number, for output.
    #[must_use]
    pub fn as_f64(self) -> f64 {
        f64::from(self.0) / 65_536.0
    }
}

/// Cost as a function of kind and size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CostModel {
    /// The size that costs exactly 1. `None`: every read and write costs 1 ("IOPS mode").
    pub reference: Option<Bytes>,
    /// K: the size whose transfer takes as long as positioning. \[mclock\] 3.1: 5 ms at 60 MB/s = 300 kB.
    pub knee: Bytes,
    /// Bytes that every read or write takes in addition to its length, also of limits and reservations in bytes.
    pub overhead: Bytes,
    /// Cost of a write relative to a read of the same size.
    pub write_factor: Cost,
    /// Cost of a flush.
    pub flush: Cost,
    /// Minimum cost of one piece (at most 64 MiB) of a discard, or of write zeroes that the device executes itself.
    pub discard: Cost,
    /// Cost per MiB of such a piece, if that is more; at least 1/64.
    pub discard_mib: Cost,
}

impl Default for CostModel {
    fn default() -> Self {
        CostModel {
            reference: Some(Bytes::kib(8)),
            knee: Bytes(300_000),
            overhead: Bytes(0),
            write_factor: Cost::ONE,
            flush: Cost::ONE,
            discard: Cost::ONE,
            discard_mib: CostModel::DISCARD_MIB_MIN,
        }
    }
}

impl CostModel {
    /// Minimum cost per MiB of a discard: 1 for 64 MiB.
    pub const DISCARD_MIB_MIN: Cost = Cost(Cost::ONE.0 / 64);

    /// Overhead of a frame on Ethernet: preamble 8, checksum 4, gap 12.
    pub const FRAME_OVERHEAD: Bytes = Bytes(24);

    /// Frames cost what they take of a link: their length and [`CostModel::FRAME_OVERHEAD`]. A full frame costs 1.
    #[must_use]
    pub fn frames() -> Self {
        let overhead = CostModel::FRAME_OVERHEAD;
        CostModel { reference: Some(Bytes(1514 + overhead.0)), knee: Bytes(0), overhead, ..CostModel::default() }
    }

    /// Every read and write costs 1: for the paper's experiments with one request size.
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
    // rule: mclock.cost-normalised, mclock.cost-other, mclock.cost-write
    pub fn cost(&self, kind: Kind, length: u32) -> Cost {
        match kind {
            Kind::Read => self.transfer_cost(length),
            Kind::Write => self.transfer_cost(length).times(self.write_factor),
            Kind::Flush => self.flush,
            Kind::Discard | Kind::WriteZeroes => {
                let by_size = (u64::from(length) * u64::from(self.discard_mib.0)).div_ceil(1 << 20);
                self.discard.max(Cost::from_raw(u32::try_from(by_size).unwrap_or(u32::MAX)))
            }
        }
    }

    /// Cost of a read.
    fn transfer_cost(&self, length: u32) -> Cost {
        let Some(reference) = self.reference else { return Cost::ONE };
        let size = self.knee.0 + self.overhead.0 + u64::from(length);
        let raw = (size << Cost::SHIFT) / (self.knee.0 + reference.0).max(1);
        Cost::from_raw(u32::try_from(raw).unwrap_or(u32::MAX))
    }

    /// The cost of a read or of a write of `length` bytes, whichever is more.
    #[must_use]
    pub fn cost_max(&self, length: u32) -> Cost {
        self.cost(Kind::Read, length).max(self.cost(Kind::Write, length))
    }

    /// The size that costs 1; 8 KiB if every read and write costs 1.
    #[must_use]
    pub fn reference_size(&self) -> Bytes {
        self.reference.filter(|size| size.0 > 0).unwrap_or(Bytes::kib(8))
    }

    /// Bytes of a request that count against a limit in bytes: the payload of a read or write, and the overhead. A discard, or zeroes
    /// that the device makes itself, count as much as reads of the reference size with the same cost. A flush counts 0.
    #[must_use]
    // rule: mclock.byte-limit
    pub fn bytes(&self, kind: Kind, length: u32, cost: Cost) -> u64 {
        match kind {
            Kind::Read | Kind::Write => u64::from(length) + self.overhead.0,
            Kind::Flush => 0,
            Kind::Discard | Kind::WriteZeroes => (u64::from(cost.0) * self.reference_size().0) >> Cost::SHIFT,
        }
    }
}

/// Bytes for which a request counts against a reservation in bytes: the larger of its `bytes` ([`CostModel::bytes`]) and of what the
/// device transfers in its time, `request_bytes` for each 1 of its cost
/// ([`GateSettings::request_bytes`](crate::GateSettings::request_bytes)). `cost` is in raw units.
///
/// Example: a device of 1000 iops and 32 MiB/s transfers 33,554 bytes in the time of a request of cost 1. That number counts for each read
/// of 4 KiB (of cost 1), and 8 MiB/s are 250 such reads per second.
#[must_use]
// rule: mclock.byte-reservation
pub fn reserved_bytes(cost: u64, bytes: u64, request_bytes: Bytes) -> u64 {
    let by_cost = (u128::from(cost) * u128::from(request_bytes.0)) >> Cost::SHIFT;
    bytes.max(u64::try_from(by_cost).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    // rule: mclock.cost-size, mclock.cost-normalised, mclock.cost-other, mclock.cost-one
    #[test]
    fn the_stated_size_costs_one_and_the_paper_form_matches() {
        let cost = |size| CostModel::default().cost(Kind::Read, size);
        assert_eq!(cost(8192), Cost::ONE);
        for (size, expected) in [(65_536, 1.186), (262_144, 1.824)] {
            assert!((cost(size).as_f64() - expected).abs() < 0.001, "{size}: {}", cost(size).as_f64());
        }
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

    // rule: mclock.cost-write
    #[test]
    fn a_write_costs_the_factor_times_a_read() {
        let twice = CostModel { write_factor: Cost::requests(2), ..CostModel::default() };
        assert_eq!((twice.cost(Kind::Read, 8192), twice.cost(Kind::Write, 8192)), (Cost::ONE, Cost::requests(2)));
        assert_eq!(twice.cost(Kind::Write, 65_536).raw(), twice.cost(Kind::Read, 65_536).raw() * 2);
        assert_eq!(twice.cost(Kind::Flush, 0), Cost::ONE);
        assert_eq!(twice.cost_max(8192), Cost::requests(2));
        assert_eq!(twice.bytes(Kind::Write, 8192, Cost::requests(2)), 8192, "a limit in bytes counts the payload");
        let half = CostModel { write_factor: Cost::from_raw(1 << 15), ..CostModel::per_request() };
        assert_eq!((half.cost(Kind::Write, 1), half.cost_max(1)), (Cost::from_raw(1 << 15), Cost::ONE));
        let most = CostModel { knee: Bytes(1), reference: Some(Bytes(0)), ..twice };
        assert_eq!(most.cost(Kind::Write, u32::MAX).raw(), u32::MAX, "it saturates");
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
