//! Queries on a log of dispatches.

use sluice_sched::{Cost, Instant, OwnerId, Phase};

use super::{Record, SECOND, World};

impl World {
    /// Requests of `owner` dispatched from `from` until before `to`.
    pub fn count(&self, owner: OwnerId, from: Instant, to: Instant) -> u64 {
        self.of(owner).filter(|record| record.at >= from && record.at < to).count() as u64
    }

    /// The same for each of `owners`.
    pub fn counts(&self, owners: &[OwnerId], from: Instant, to: Instant) -> Vec<u64> {
        owners.iter().map(|owner| self.count(*owner, from, to)).collect()
    }

    /// Requests per second of each of `owners`.
    pub fn rates(&self, owners: &[OwnerId], from: Instant, to: Instant) -> Vec<f64> {
        let seconds = to.nanos_since(from) as f64 / SECOND as f64;
        self.counts(owners, from, to).iter().map(|count| *count as f64 / seconds).collect()
    }

    pub fn of(&self, owner: OwnerId) -> impl Iterator<Item = &Record> + Clone {
        self.log.iter().filter(move |record| record.request.owner == owner)
    }

    /// When requests of `owner` were dispatched.
    pub fn times(&self, owner: OwnerId) -> Vec<Instant> {
        self.of(owner).map(|record| record.at).collect()
    }

    pub fn phase_count(&self, owner: OwnerId, phase: Phase) -> u64 {
        self.of(owner).filter(|record| record.request.phase == phase).count() as u64
    }
}

/// The largest sum of `amount` over any closed window of `window` nanoseconds.
pub fn window_max<'a>(records: impl Iterator<Item = &'a Record>, window: u64, amount: impl Fn(&Record) -> f64) -> f64 {
    let records: Vec<&Record> = records.collect();
    let (mut first, mut sum, mut most) = (0, 0.0, 0.0f64);
    for record in &records {
        sum += amount(record);
        while record.at.nanos_since(records[first].at) > window {
            sum -= amount(records[first]);
            first += 1;
        }
        most = most.max(sum);
    }
    most
}

/// Cost of a record in normalised requests.
pub fn cost(record: &Record) -> f64 {
    f64::from(record.request.cost.raw()) / f64::from(Cost::ONE.raw())
}

/// Bytes of a record.
pub fn bytes(record: &Record) -> f64 {
    f64::from(record.request.length)
}

/// Asserts that each number is within `tolerance` (a fraction of the sum) of its expected value.
pub fn assert_close(what: &str, got: &[f64], due: &[f64], tolerance: f64) {
    let sum: f64 = due.iter().sum();
    let close = got.iter().zip(due).all(|(got, due)| (got - due).abs() <= tolerance * sum);
    assert!(close && got.len() == due.len(), "{what}: got {got:.3?}, due {due:.3?} within {tolerance} of the sum");
}

/// \[mclock\] eq. (1): shares of `capacity` in proportion to the weights, clamped to reservation and limit. Below the
/// sum of the reservations: in proportion to those. Rows are (weight, reservation, limit).
pub fn water_fill(capacity: f64, vms: &[(f64, f64, f64)]) -> Vec<f64> {
    let reserved: f64 = vms.iter().map(|vm| vm.1).sum();
    if capacity <= reserved {
        return vms.iter().map(|vm| capacity * vm.1 / reserved).collect();
    }
    let at = |level: f64| vms.iter().map(|vm| (vm.0 * level).clamp(vm.1, vm.2)).collect::<Vec<f64>>();
    let lightest = vms.iter().map(|vm| vm.0).fold(f64::MAX, f64::min);
    let (mut low, mut high) = (0.0, capacity / lightest);
    for _ in 0..200 {
        let middle = (low + high) / 2.0;
        if at(middle).iter().sum::<f64>() < capacity { low = middle } else { high = middle }
    }
    at(low)
}
