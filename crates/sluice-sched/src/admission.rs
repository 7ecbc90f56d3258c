//! Before a promise is given: do the reservations fit the device, and what reservation does a latency need?

use core::time::Duration;

use crate::policy::Policy;
use crate::scheduler::ChangeError;
use crate::units::{ByteRate, Bytes, Iops};

/// What a device can be relied on to do, at worst: \[mclock\] 3.1, "Reservation Setting".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Capacity {
    /// Normalised requests per second.
    pub iops: Option<Iops>,
    /// Bytes per second.
    pub bytes: Option<ByteRate>,
}

impl Capacity {
    /// Bytes that take the device as long as a request of cost 1, if both figures are stated; at least 1.
    #[must_use]
    pub fn request_bytes(&self) -> Option<Bytes> {
        let (iops, bytes) = (self.iops?, self.bytes?);
        let per_request = u128::from(bytes.bytes_per_second()) * 1000 / u128::from(iops.milli());
        Some(Bytes(u64::try_from(per_request).unwrap_or(u64::MAX).max(1)))
    }
}

/// A set of reservations that is not admitted; the text shows the arithmetic.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AdmissionError {
    /// Reservations need a capacity to be checked against.
    #[error("{vm} reserves {asked}, but the device states no {missing}; state what it does at worst")]
    NoCapacity {
        /// Who asks.
        vm: String,
        /// What it asks for.
        asked: String,
        /// `capacity` or `bandwidth`.
        missing: &'static str,
    },
    /// The sum is too large.
    #[error("{0}")]
    Over(Box<Shortfall>),
}

/// The arithmetic of a refusal.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "Reserved already {reserved} by {others} VMs, {vm} asks for {asked}, together {sum}; the device's capacity is \
     {capacity}: short by {short}. Lower the reservation to {free} at most, or place the VM on another device"
)]
pub struct Shortfall {
    /// Who does not fit any more.
    pub vm: String,
    /// What it asks for.
    pub asked: String,
    /// The sum of those before it.
    pub reserved: String,
    /// How many those are.
    pub others: usize,
    /// All of them.
    pub sum: String,
    /// What there is.
    pub capacity: String,
    /// What is missing.
    pub short: String,
    /// What is left for it.
    pub free: String,
}

/// Checks that the reservations fit, in the order given; the first VM that does not is named.
// rule: mclock.admission
pub fn admit<'a>(
    capacity: &Capacity,
    vms: impl IntoIterator<Item = (&'a str, &'a Policy)>,
) -> Result<(), AdmissionError> {
    let (mut requests, mut bytes) = (Vec::new(), Vec::new());
    for (vm, policy) in vms {
        requests.extend(policy.reservation.iops.map(|iops| (vm, iops.milli())));
        bytes.extend(policy.reservation.bytes.map(|rate| (vm, rate.bytes_per_second())));
    }
    let show_iops = |milli: u64| if milli == 0 { "0 iops".to_owned() } else { Iops::from_milli(milli).to_string() };
    let show_bytes = |rate: u64| if rate == 0 { "0B/s".to_owned() } else { ByteRate::per_second(rate).to_string() };
    fits(&requests, capacity.iops.map(Iops::milli), "capacity", show_iops)?;
    fits(&bytes, capacity.bytes.map(ByteRate::bytes_per_second), "bandwidth", show_bytes)
}

fn fits(
    asked: &[(&str, u64)],
    capacity: Option<u64>,
    missing: &'static str,
    show: impl Fn(u64) -> String,
) -> Result<(), AdmissionError> {
    let mut reserved = 0u64;
    for (others, &(vm, rate)) in asked.iter().enumerate() {
        let vm = vm.to_owned();
        let Some(capacity) = capacity else {
            return Err(AdmissionError::NoCapacity { vm, asked: show(rate), missing });
        };
        let sum = reserved.saturating_add(rate);
        if sum > capacity {
            return Err(AdmissionError::Over(Box::new(Shortfall {
                vm,
                asked: show(rate),
                reserved: show(reserved),
                others,
                sum: show(sum),
                capacity: show(capacity),
                short: show(sum - capacity),
                free: show(capacity - reserved),
            })));
        }
        reserved = sum;
    }
    Ok(())
}

/// Checks that the volumes of one VM reserve at most what the VM does.
// rule: mclock.volume-sum
pub fn volumes_fit<'a>(vm: &Policy, volumes: impl IntoIterator<Item = &'a Policy>) -> Result<(), ChangeError> {
    let (mut milli, mut bytes) = (0u64, 0u64);
    for policy in volumes {
        milli = milli.saturating_add(policy.reservation.iops.map_or(0, Iops::milli));
        bytes = bytes.saturating_add(policy.reservation.bytes.map_or(0, ByteRate::bytes_per_second));
    }
    let show = |known: Option<String>| known.unwrap_or_else(|| "nothing".to_owned());
    if milli > vm.reservation.iops.map_or(0, Iops::milli) {
        let volumes = Iops::from_milli(milli).to_string();
        return Err(ChangeError::VolumesOverReserve { volumes, vm: show(vm.reservation.iops.map(|r| r.to_string())) });
    }
    if bytes > vm.reservation.bytes.map_or(0, ByteRate::bytes_per_second) {
        let volumes = ByteRate::per_second(bytes).to_string();
        return Err(ChangeError::VolumesOverReserve { volumes, vm: show(vm.reservation.bytes.map(|r| r.to_string())) });
    }
    Ok(())
}

/// Little's law: what must be reserved so that a VM that keeps `outstanding` requests queued sees `latency` on average.
///
/// \[mclock\] eq. (6): 8 outstanding at 25 ms need 320 IOPS, 32 at 65 ms need 492.
#[must_use]
pub fn reservation_for(outstanding: u32, latency: Duration) -> Iops {
    let nanos = latency.as_nanos().max(1);
    let milli = u128::from(outstanding) * 1_000_000_000_000 / nanos;
    Iops::from_milli(u64::try_from(milli).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_papers_examples_of_littles_law() {
        assert_eq!(reservation_for(8, Duration::from_millis(25)), Iops::per_second(320));
        assert_eq!(reservation_for(32, Duration::from_millis(65)).milli() / 1000, 492);
    }

    // rule: mclock.admission
    #[test]
    fn a_sum_over_capacity_is_refused_with_the_arithmetic() {
        let capacity = Capacity { iops: Some(Iops::per_second(1000)), bytes: None };
        let (a, b) = (Policy::default().reserving(600), Policy::default().reserving(500));
        assert_eq!(admit(&capacity, [("a", &a), ("c", &Policy::default())]), Ok(()));
        let error = admit(&capacity, [("a", &a), ("b", &b)]).unwrap_err().to_string();
        assert_eq!(
            error,
            "Reserved already 600 iops by 1 VMs, b asks for 500 iops, together 1100 iops; the device's capacity is \
             1000 iops: short by 100 iops. Lower the reservation to 400 iops at most, or place the VM on another device"
        );
        let none = admit(&Capacity::default(), [("a", &a)]).unwrap_err().to_string();
        assert!(none.contains("states no capacity"), "{none}");
        let mut bytes = Policy::default();
        bytes.reservation.bytes = Some(ByteRate::per_second(Bytes::mib(1).0));
        assert!(admit(&capacity, [("d", &bytes)]).unwrap_err().to_string().contains("bandwidth"));
    }

    // rule: mclock.volume-sum
    #[test]
    fn volumes_reserve_at_most_what_their_vm_does() {
        let vm = Policy::default().reserving(100);
        let half = Policy::default().reserving(50);
        assert_eq!(volumes_fit(&vm, [&half, &half]), Ok(()));
        assert!(volumes_fit(&vm, [&half, &half, &half]).is_err());
        assert!(volumes_fit(&Policy::default(), [&half]).unwrap_err().to_string().contains("the VM only nothing"));
    }
}
