//! Admission control: checks that the reservations of a device's VMs fit, before any of them is accepted.
//!
//! A VM may reserve requests, bytes or both. A request served for one reservation also counts for the other, so a VM
//! takes the larger part: of the capacity in requests or of the bandwidth. The parts of all VMs may add up to the whole
//! device less the weight floor, which the scheduler keeps for VMs without a reservation.
//!
//! Example: a device of 1000 iops and 100 MiB/s with a floor of 2 %. VM a reserves 600 iops (60 %), VM b 100 iops and
//! 30 MiB/s (30 %, by bytes). That leaves 8 % for VM c: 80 iops or 8 MiB/s.
//!
//! Everything is counted in units of 1/(capacity x bandwidth), so that the decision is exact: 98 % fits next to a floor
//! of 2 %, and one thousandth of a request per second more does not.

use core::fmt;
use core::time::Duration;

use crate::cost::{Cost, CostModel};
use crate::policy::{Policy, Reservation};
use crate::request::Kind;
use crate::scheduler::{ChangeError, DeviceClass};
use crate::units::{ByteRate, Bytes, Iops, Percent};

mod burst;

pub use burst::{BurstTooSmall, check_burst, check_burst_of_large};

/// Sustained worst-case throughput of a device: \[mclock\] 3.1, "Reservation Setting".
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

/// The capacity that reservations on one device are checked against.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Supply {
    /// Capacity and bandwidth of the device.
    pub capacity: Capacity,
    /// The part that must stay free, see [`Descriptor::weight_floor`](crate::Descriptor::weight_floor).
    pub weight_floor: Percent,
    /// The part that may be reserved at most, whatever the scheduler keeps free.
    pub reservable: Percent,
    /// A disk also needs time for each request, so a reservation in bytes needs its capacity as well as its bandwidth.
    pub device_class: DeviceClass,
}

/// Requests or bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Currency {
    /// Normalised requests per second.
    Requests,
    /// Bytes per second.
    Bytes,
}

impl fmt::Display for Currency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Currency::Requests => "requests",
            Currency::Bytes => "bytes",
        })
    }
}

/// A part of a device in hundredths of a percent, rounded up. Unlike [`Percent`] it may exceed the whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Part(pub u64);

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0 / 100, self.0 % 100) {
            (whole, 0) => write!(f, "{whole}%"),
            (whole, hundredths) if hundredths % 10 == 0 => write!(f, "{whole}.{}%", hundredths / 10),
            (whole, hundredths) => write!(f, "{whole}.{hundredths:02}%"),
        }
    }
}

/// The part of a device that one VM reserves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    pub vm: String,
    pub reservation: Reservation,
    /// The larger of its two parts.
    pub part: Part,
    /// The currency of that part.
    pub binding: Currency,
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} by {}", self.vm, self.part, self.binding)
    }
}

/// A rejected set of reservations; the text shows the calculation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AdmissionError {
    /// Reservations need a capacity to be checked against.
    #[error(
        "VM {vm} reserves {}, but the device has no {}; set it to the device's worst-case throughput",
        show(reservation),
        missing.join(" and no ")
    )]
    NoCapacity {
        /// The VM.
        vm: String,
        /// Its reservation.
        reservation: Reservation,
        /// `capacity`, `bandwidth` or both.
        missing: Vec<&'static str>,
    },
    /// The sum is too large.
    #[error("{0}")]
    Over(Box<Shortfall>),
}

/// The calculation of a rejection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shortfall {
    /// The VM that does not fit.
    pub claim: Claim,
    /// Claims of the VMs that were admitted before it.
    pub others: Vec<Claim>,
    /// Sum of their parts.
    pub reserved: Part,
    /// Sum of all parts.
    pub sum: Part,
    /// Maximum that may be reserved: the whole device minus the floor, and at most `reservable`.
    pub most: Part,
    pub weight_floor: Percent,
    /// As in [`Supply::reservable`].
    pub reservable: Percent,
    /// Amount by which `sum` exceeds `most`.
    pub short: Part,
    /// The most that this VM could reserve, in each currency that it reserves; `None` if nothing is left.
    pub free: Reservation,
}

/// Maximum number of VMs that a rejection lists by name, the largest parts first.
const LISTED_MAX: usize = 4;

impl Shortfall {
    /// Whether [`Supply::reservable`] allows less than the weight floor does.
    #[must_use]
    pub fn bound_by_reservable(&self) -> bool {
        self.reservable.hundredths() < Percent::WHOLE.hundredths() - self.weight_floor.hundredths()
    }

    /// The VMs that reserved before this one, the largest parts first; empty if there are none.
    #[must_use]
    pub fn listed(&self) -> String {
        let mut others: Vec<&Claim> = self.others.iter().collect();
        others.sort_by_key(|claim| core::cmp::Reverse(claim.part));
        let listed: Vec<String> = others.iter().take(LISTED_MAX).map(ToString::to_string).collect();
        let more = if others.len() > LISTED_MAX { ", ..." } else { "" };
        if listed.is_empty() { String::new() } else { format!(" (already reserved: {}{more})", listed.join(", ")) }
    }

    /// The sum, the bound and its origin.
    #[must_use]
    pub fn arithmetic(&self) -> String {
        let Shortfall { reserved, sum, most, short, .. } = self;
        let others = match self.others.len() {
            0 => String::new(),
            1 => format!("1 VM already reserves {reserved}, with this one {sum}; "),
            count => format!("{count} VMs already reserve {reserved}, with this one {sum}; "),
        };
        let why = match (self.bound_by_reservable(), self.weight_floor) {
            (true, _) => format!(" because reservable is {}", self.reservable),
            (false, Percent::ZERO) => String::new(),
            (false, floor) => format!(" because weight_floor is {floor}"),
        };
        format!("{others}at most {most} can be reserved{why}: short by {short}{}", self.listed())
    }
}

impl std::error::Error for Shortfall {}

impl fmt::Display for Shortfall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Claim { vm, reservation, part, binding } = &self.claim;
        write!(
            f,
            "VM {vm} reserves {}, {part} of the device by {binding}; {}. ",
            show(reservation),
            self.arithmetic()
        )?;
        match (self.free.iops, self.free.bytes) {
            (None, None) => write!(f, "Lower the other reservations")?,
            _ => write!(f, "Lower it to at most {}", show(&self.free))?,
        }
        write!(f, ", or place the VM on another device")
    }
}

/// Formats a reservation, for example `500 iops and 20MiB/s`.
#[must_use]
pub fn show(reservation: &Reservation) -> String {
    match (reservation.iops, reservation.bytes) {
        (Some(iops), Some(bytes)) => format!("{iops} and {bytes}"),
        (Some(iops), None) => iops.to_string(),
        (None, Some(bytes)) => bytes.to_string(),
        (None, None) => "nothing".to_owned(),
    }
}

impl Supply {
    /// Capacity and bandwidth. 1 stands for one that is not stated, since nothing is then counted in it.
    fn figures(&self) -> (u128, u128) {
        let Capacity { iops, bytes } = self.capacity;
        (
            iops.map_or(1, |iops| u128::from(iops.milli())),
            bytes.map_or(1, |rate| u128::from(rate.bytes_per_second()).max(1)),
        )
    }

    /// Part that a reservation takes, in units of which the whole device has [`Self::whole`].
    fn units(&self, reservation: &Reservation) -> (u128, Currency) {
        let (capacity, bandwidth) = self.figures();
        // At most 10^15 x 2^64, about 2^114.
        let requests = reservation.iops.map_or(0, |iops| u128::from(iops.milli()) * bandwidth);
        let bytes = reservation.bytes.map_or(0, |rate| u128::from(rate.bytes_per_second()) * capacity);
        if bytes > requests { (bytes, Currency::Bytes) } else { (requests, Currency::Requests) }
    }

    fn whole(&self) -> u128 {
        let (capacity, bandwidth) = self.figures();
        capacity * bandwidth
    }

    /// The most that may be reserved, in hundredths of a percent.
    fn most_part(&self) -> u64 {
        (Percent::WHOLE.hundredths() - self.weight_floor.hundredths()).min(self.reservable.hundredths())
    }

    /// The most units that may be reserved.
    fn most(&self) -> u128 {
        // At most 10^15 x 2^64 x 10^4, less than 2^128.
        self.whole() * u128::from(self.most_part()) / 10_000
    }

    /// Units as a part of the device, rounded up.
    fn part(&self, units: u128) -> Part {
        let whole = self.whole();
        let hundredths =
            (units / whole).saturating_mul(10_000).saturating_add((units % whole * 10_000).div_ceil(whole));
        Part(u64::try_from(hundredths).unwrap_or(u64::MAX))
    }

    /// The figures that are missing to check this reservation.
    fn missing(&self, reservation: &Reservation) -> Vec<&'static str> {
        // Small requests reach the capacity of a disk before its bandwidth.
        let by_requests =
            reservation.iops.is_some() || (reservation.bytes.is_some() && self.device_class == DeviceClass::Disk);
        let capacity = (by_requests && self.capacity.iops.is_none()).then_some("capacity");
        let bandwidth = (reservation.bytes.is_some() && self.capacity.bytes.is_none()).then_some("bandwidth");
        capacity.into_iter().chain(bandwidth).collect()
    }

    /// The part of the device that these reservations take; `None` if a figure is missing for one of them.
    #[must_use]
    pub fn reserved<'a>(&self, policies: impl IntoIterator<Item = &'a Policy>) -> Option<Part> {
        let mut sum = 0u128;
        for policy in policies {
            if !self.missing(&policy.reservation).is_empty() {
                return None;
            }
            sum = sum.saturating_add(self.units(&policy.reservation).0);
        }
        Some(self.part(sum))
    }

    /// The most that each of `count` VMs could reserve in the currencies of `like`, next to `others`; `None` where nothing
    /// is left.
    #[must_use]
    pub fn free_each<'a>(
        &self,
        others: impl IntoIterator<Item = &'a Policy>,
        count: usize,
        like: &Reservation,
    ) -> Reservation {
        let taken = others.into_iter().map(|policy| self.units(&policy.reservation).0).fold(0, u128::saturating_add);
        self.largest(self.most().saturating_sub(taken) / count.max(1) as u128, like)
    }

    /// The largest request with which the device meets all reservations in requests at the same time; `None` if that is any request,
    /// or if a figure is not stated. `piece_max` is the largest that the device gets.
    ///
    /// A reservation in requests is one of bytes too: r requests per second of size S and cost c are r S / c bytes per second, and
    /// the bytes of a request grow faster than its cost. Example: 980 iops at 8 KiB are 7.7 MiB/s, and with requests of
    /// 256 KiB, each of which counts as 1.82, they are 134 MiB/s.
    #[must_use]
    pub fn request_max<'a>(
        &self,
        policies: impl IntoIterator<Item = &'a Policy>,
        cost: &CostModel,
        piece_max: Bytes,
    ) -> Option<Bytes> {
        let Capacity { iops: Some(_), bytes: Some(bandwidth) } = self.capacity else { return None };
        let reservations: Vec<Reservation> = policies.into_iter().map(|policy| policy.reservation).collect();
        let fits = |sectors: u64| {
            let needed = reservations.iter().map(|reservation| bytes_at(reservation, cost, sectors * 512));
            needed.fold(0, u128::saturating_add) <= u128::from(bandwidth.bytes_per_second())
        };
        let most = piece_max.0 / 512;
        if reservations.iter().all(|reservation| reservation.iops.is_none()) || fits(most) {
            return None;
        }
        let (mut fitting, mut above) = (0, most);
        while above - fitting > 1 {
            let middle = fitting + (above - fitting) / 2;
            if fits(middle) { fitting = middle } else { above = middle }
        }
        Some(Bytes(fitting * 512))
    }

    fn claim(&self, vm: &str, policy: &Policy) -> Claim {
        let (units, binding) = self.units(&policy.reservation);
        Claim { vm: vm.to_owned(), reservation: policy.reservation, part: self.part(units), binding }
    }

    /// The most that fits into `units`, in the currencies of `reservation`.
    fn largest(&self, units: u128, reservation: &Reservation) -> Reservation {
        let (capacity, bandwidth) = self.figures();
        let fits = |each: u128| u64::try_from(units / each).unwrap_or(u64::MAX);
        let iops = reservation.iops.map(|_| fits(bandwidth)).filter(|milli| *milli > 0).map(Iops::from_milli);
        let bytes = reservation.bytes.map(|_| fits(capacity));
        let least = ByteRate::MIN.bytes_per_second();
        Reservation { iops, bytes: bytes.filter(|rate| *rate >= least).map(ByteRate::per_second) }
    }
}

/// Bytes per second of a reservation that is used with reads or writes of this size, whichever cost less.
fn bytes_at(reservation: &Reservation, cost: &CostModel, size: u64) -> u128 {
    let length = u32::try_from(size).unwrap_or(u32::MAX);
    let cost = cost.cost(Kind::Read, length).min(cost.cost(Kind::Write, length));
    // At most 10^15 x 2^32 x 2^16.
    let by_requests = reservation.iops.map_or(0, |iops| {
        ((u128::from(iops.milli()) * u128::from(size)) << Cost::SHIFT).div_ceil(1000 * u128::from(cost.raw()))
    });
    by_requests.max(reservation.bytes.map_or(0, |rate| u128::from(rate.bytes_per_second())))
}

/// Checks that the reservations fit, in the order given; the first VM that does not is named.
// rule: mclock.admission
pub fn admit<'a>(supply: &Supply, vms: impl IntoIterator<Item = (&'a str, &'a Policy)>) -> Result<(), AdmissionError> {
    let (mut before, mut reserved) = (Vec::<(&str, &Policy)>::new(), 0u128);
    for (vm, policy) in vms.into_iter().filter(|(_, policy)| policy.is_reserved()) {
        let missing = supply.missing(&policy.reservation);
        if !missing.is_empty() {
            return Err(AdmissionError::NoCapacity { vm: vm.to_owned(), reservation: policy.reservation, missing });
        }
        let sum = reserved.saturating_add(supply.units(&policy.reservation).0);
        let most = supply.most();
        if sum > most {
            let others: Vec<Claim> = before.iter().map(|(vm, policy)| supply.claim(vm, policy)).collect();
            return Err(AdmissionError::Over(Box::new(Shortfall {
                claim: supply.claim(vm, policy),
                others,
                reserved: supply.part(reserved),
                sum: supply.part(sum),
                most: Part(supply.most_part()),
                weight_floor: supply.weight_floor,
                reservable: supply.reservable,
                short: supply.part(sum - most),
                free: supply.largest(most - reserved, &policy.reservation),
            })));
        }
        before.push((vm, policy));
        reserved = sum;
    }
    Ok(())
}

/// Checks that the volumes of one VM reserve at most what the VM does, in requests and in bytes.
// rule: mclock.volume-sum
pub fn volumes_fit<'a>(vm: &Policy, volumes: impl IntoIterator<Item = &'a Policy>) -> Result<(), ChangeError> {
    sums_fit(vm, volumes, Percent::ZERO)
}

/// Like [`volumes_fit`], but leaves `floor` of the VM's reservation free.
fn sums_fit<'a>(vm: &Policy, volumes: impl IntoIterator<Item = &'a Policy>, floor: Percent) -> Result<(), ChangeError> {
    let (mut milli, mut bytes) = (0u64, 0u64);
    for policy in volumes {
        milli = milli.saturating_add(policy.reservation.iops.map_or(0, Iops::milli));
        bytes = bytes.saturating_add(policy.reservation.bytes.map_or(0, ByteRate::bytes_per_second));
    }
    let show = |known: Option<String>| known.map_or_else(|| "nothing".to_owned(), |known| known + &kept(floor));
    let most = |rate: u64| u128::from(rate) * above(floor) / 10_000;
    if u128::from(milli) > most(vm.reservation.iops.map_or(0, Iops::milli)) {
        let volumes = Iops::from_milli(milli).to_string();
        return Err(ChangeError::VolumesOverReserve { volumes, vm: show(vm.reservation.iops.map(|r| r.to_string())) });
    }
    if u128::from(bytes) > most(vm.reservation.bytes.map_or(0, ByteRate::bytes_per_second)) {
        let volumes = ByteRate::per_second(bytes).to_string();
        return Err(ChangeError::VolumesOverReserve { volumes, vm: show(vm.reservation.bytes.map(|r| r.to_string())) });
    }
    Ok(())
}

/// The part above the floor, in hundredths of a percent.
fn above(floor: Percent) -> u128 {
    u128::from(Percent::WHOLE.hundredths() - floor.hundredths())
}

fn kept(floor: Percent) -> String {
    match floor {
        Percent::ZERO => String::new(),
        floor => format!(", of which weight_floor keeps {floor} for its volumes without a reservation"),
    }
}

/// Checks the volumes of one VM on a device. If a volume has a weight but no reservation, the floor's part of the VM's
/// reservation stays free for it. If capacity and bandwidth are both known, the volumes' parts of the device may not
/// exceed the VM's part.
///
/// Example: 1000 iops and 100 MiB/s. A VM that reserves 500 iops and 50 MiB/s has 50 % of the device. Two volumes, one
/// with 500 iops and one with 50 MiB/s, need 100 %. On other devices only the sums are checked: [`volumes_fit`].
// rule: mclock.volume-sum
pub fn volumes_fit_device<'a>(
    supply: &Supply,
    vm: &Policy,
    volumes: impl IntoIterator<Item = &'a Policy> + Clone,
) -> Result<(), ChangeError> {
    let lives_by_weight = |policy: &Policy| policy.weight.is_some() && !policy.is_reserved();
    let floor = match volumes.clone().into_iter().any(lives_by_weight) {
        true => supply.weight_floor,
        false => Percent::ZERO,
    };
    sums_fit(vm, volumes.clone(), floor)?;
    if supply.capacity.iops.is_none() || supply.capacity.bytes.is_none() {
        return Ok(());
    }
    let units = |policy: &Policy| supply.units(&policy.reservation).0;
    let sum = volumes.into_iter().map(units).fold(0u128, u128::saturating_add);
    // As in `most`, less than 2^128.
    if sum <= units(vm) * above(floor) / 10_000 {
        return Ok(());
    }
    // Rounded up, so that a VM with this much is accepted.
    let (capacity, bandwidth) = supply.figures();
    let needed = sum.div_ceil(above(floor)).saturating_mul(10_000);
    let up = |each: u128| u64::try_from(needed.div_ceil(each)).unwrap_or(u64::MAX);
    let (iops, bytes) = (Iops::from_milli(up(bandwidth)), ByteRate::per_second(up(capacity)));
    Err(ChangeError::VolumesOverReserve {
        volumes: format!("{} of the device (equal to {iops} or {bytes})", supply.part(sum)),
        vm: format!("{} of it{}", supply.part(units(vm)), kept(floor)),
    })
}

/// Little's law: the reservation with which a VM that keeps `outstanding` requests queued sees `latency` on average.
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

    /// A disk of 1000 iops and, if stated, 100 MiB/s.
    fn supply(bandwidth: Option<u64>, floor: u16) -> Supply {
        let bytes = bandwidth.map(|mib| ByteRate::per_second(Bytes::mib(mib).0));
        let capacity = Capacity { iops: Some(Iops::per_second(1000)), bytes };
        let weight_floor = Percent::from_hundredths(floor);
        Supply { capacity, weight_floor, reservable: Percent::WHOLE, device_class: DeviceClass::Disk }
    }

    fn reserving(iops: Option<u64>, mib: Option<u64>) -> Policy {
        let bytes = mib.map(|mib| ByteRate::per_second(Bytes::mib(mib).0));
        Policy { reservation: Reservation { iops: iops.map(Iops::per_second), bytes }, ..Policy::default() }
    }

    fn admits(supply: &Supply, policies: &[Policy]) -> Result<(), AdmissionError> {
        let names: Vec<String> = (0..policies.len()).map(|number| format!("vm{number}")).collect();
        admit(supply, names.iter().map(String::as_str).zip(policies))
    }

    #[test]
    fn littles_law_matches_the_examples_of_the_paper() {
        assert_eq!(reservation_for(8, Duration::from_millis(25)), Iops::per_second(320));
        assert_eq!(reservation_for(32, Duration::from_millis(65)).milli() / 1000, 492);
    }

    // rule: mclock.admission
    #[test]
    fn a_sum_over_capacity_is_refused_with_the_arithmetic() {
        let (a, b) = (reserving(Some(600), None), reserving(Some(500), None));
        assert_eq!(admits(&supply(None, 200), &[a, Policy::default()]), Ok(()));
        assert_eq!(
            admits(&supply(None, 200), &[a, Policy::default(), b]).unwrap_err().to_string(),
            "VM vm2 reserves 500 iops, 50% of the device by requests; 1 VM already reserves 60%, with this one 110%; at \
             most 98% can be reserved because weight_floor is 2%: short by 12% (already reserved: vm0 60% by requests). Lower it \
             to at most 380 iops, or place the VM on another device"
        );
        let nothing = Supply { capacity: Capacity::default(), ..supply(None, 200) };
        let none = admits(&nothing, &[a]).unwrap_err().to_string();
        assert!(none.contains("VM vm0 reserves 600 iops, but the device has no capacity;"), "{none}");
    }

    // rule: mclock.admission
    #[test]
    fn a_reservation_in_requests_was_promised_for_requests_that_the_bandwidth_does_not_carry() {
        let (cost, piece) = (CostModel::default(), Bytes::kib(256));
        let largest =
            |bandwidth: u64, policies: &[Policy]| supply(Some(bandwidth), 200).request_max(policies, &cost, piece);
        let (most, half) = (reserving(Some(980), None), reserving(Some(490), None));
        assert_eq!(largest(140, &[most]), None, "980 x 256 KiB / 1.82 are 134 MiB/s");
        assert_eq!(largest(100, &[half]), None);
        // 980 requests per second of 159,232 bytes, each of which counts as 1.49, are 104,720,000 bytes per second.
        let size = largest(100, &[most]).unwrap();
        assert_eq!((size, largest(100, &[half, half])), (Bytes(159_232), Some(size)));
        let needed = |size: u64| 980.0 * size as f64 / cost.cost(Kind::Read, size as u32).as_f64();
        let bandwidth = Bytes::mib(100).0 as f64;
        assert!(needed(size.0) <= bandwidth && needed(size.0 + 512) > bandwidth, "{size} of {}", needed(size.0));
        let beside = reserving(None, Some(40));
        assert!(
            largest(100, &[half, beside]).unwrap() < Bytes::kib(256),
            "bytes that others have reserved are not there"
        );
        assert_eq!(largest(100, &[beside]), None, "nothing is reserved in requests");
        assert_eq!(supply(None, 0).request_max(&[most], &cost, piece), None, "the bandwidth is not known");
    }

    // rule: mclock.admission
    #[test]
    fn all_requests_and_all_bytes_of_a_device_were_sold_to_two_vms() {
        let (requests, bytes) = (reserving(Some(1000), None), reserving(None, Some(100)));
        let both = [requests, bytes];
        assert!(admits(&supply(Some(100), 0), &both[..1]).is_ok() && admits(&supply(Some(100), 0), &both[1..]).is_ok());
        let refusal = admits(&supply(Some(100), 0), &both).unwrap_err().to_string();
        assert!(
            refusal.contains(
                "with this one 200%; at most 100% can be reserved: short by 100% (already reserved: vm0 100% \
                 by requests). Lower the other"
            ),
            "{refusal}"
        );
        // One VM takes the larger of its two parts, not their sum.
        assert_eq!(admits(&supply(Some(100), 0), &[reserving(Some(1000), Some(100))]), Ok(()));
        let halves = [reserving(Some(500), Some(20)), reserving(Some(100), Some(40)), reserving(Some(10), Some(10))];
        assert_eq!(admits(&supply(Some(100), 0), &halves), Ok(()));
        let refusal =
            admits(&supply(Some(100), 0), &[halves[0], halves[1], reserving(Some(20), Some(11))]).unwrap_err();
        let AdmissionError::Over(short) = refusal else { panic!("{refusal}") };
        assert_eq!((short.claim.binding, show(&short.free).as_str()), (Currency::Bytes, "100 iops and 10MiB/s"));
        assert_eq!(short.listed(), " (already reserved: vm0 50% by requests, vm1 40% by bytes)");
    }

    // rule: mclock.admission
    #[test]
    fn a_link_reserves_at_most_the_part_that_may_be_reserved() {
        let link = |reservable, floor| Supply {
            capacity: Capacity { iops: None, bytes: Some(ByteRate::per_second(Bytes::mib(100).0)) },
            reservable: Percent::from_hundredths(reservable),
            device_class: DeviceClass::Network,
            ..supply(None, floor)
        };
        let mib = |mib| reserving(None, Some(mib));
        assert_eq!(admits(&link(7500, 200), &[mib(50), mib(25)]), Ok(()));
        let refusal = admits(&link(7500, 200), &[mib(50), mib(26)]).unwrap_err().to_string();
        let why = "with this one 76%; at most 75% can be reserved because reservable is 75%: short by 1%";
        assert!(refusal.contains(why) && refusal.contains("Lower it to at most 25MiB/s"), "{refusal}");
        assert_eq!(link(7500, 200).free_each([&mib(50)], 1, &mib(1).reservation), mib(25).reservation);
        // The floor that the scheduler keeps binds if it is the larger part.
        let refusal = admits(&link(9900, 200), &[mib(99)]).unwrap_err().to_string();
        assert!(refusal.contains("at most 98% can be reserved because weight_floor is 2%"), "{refusal}");
    }

    // rule: mclock.admission
    #[test]
    fn bytes_without_a_capacity_in_requests_were_admitted() {
        let bandwidth = Capacity { iops: None, bytes: Some(ByteRate::per_second(Bytes::mib(100).0)) };
        let disk = Supply { capacity: bandwidth, ..supply(None, 0) };
        let refusal = admits(&disk, &[reserving(None, Some(10))]).unwrap_err().to_string();
        assert!(refusal.starts_with("VM vm0 reserves 10MiB/s, but the device has no capacity;"), "{refusal}");
        let link = Supply { device_class: DeviceClass::Network, ..disk };
        assert_eq!(admits(&link, &[reserving(None, Some(100))]), Ok(()), "a link transfers bytes alone");
        let refusal = admits(&supply(None, 0), &[reserving(None, Some(10))]).unwrap_err().to_string();
        assert!(refusal.contains("the device has no bandwidth;"), "{refusal}");
        let nothing = Supply { capacity: Capacity::default(), ..supply(None, 0) };
        let refusal = admits(&nothing, &[reserving(Some(5), Some(10))]).unwrap_err().to_string();
        assert!(refusal.contains("reserves 5 iops and 10MiB/s, but the device has no capacity and no bandwidth;"));
    }

    // rule: mclock.admission
    #[test]
    fn all_but_the_floor_is_admitted_and_not_a_thousandth_more() {
        let milli = |milli| Policy {
            reservation: Reservation { iops: Some(Iops::from_milli(milli)), bytes: None },
            ..Policy::default()
        };
        for bandwidth in [None, Some(100), Some(77)] {
            let supply = supply(bandwidth, 200);
            assert_eq!(admits(&supply, &[milli(980_000)]), Ok(()));
            assert_eq!(admits(&supply, &[milli(326_667), milli(326_667), milli(326_666)]), Ok(()));
            let over = admits(&supply, &[milli(326_667), milli(326_667), milli(326_667)]).unwrap_err();
            let AdmissionError::Over(short) = over else { panic!("{over}") };
            assert_eq!(
                (short.sum, short.short, short.free.iops),
                (Part(9801), Part(1), Some(Iops::from_milli(326_666)))
            );
        }
        // What is said to be free is free, and no byte more: 98 % of 77 MiB/s is not a whole number.
        let supply = supply(Some(77), 200);
        let bytes = |rate| Policy {
            reservation: Reservation { iops: None, bytes: Some(ByteRate::per_second(rate)) },
            ..Policy::default()
        };
        let AdmissionError::Over(short) = admits(&supply, &[milli(333_333), bytes(u64::MAX)]).unwrap_err() else {
            panic!("more than the device has")
        };
        let free = short.free.bytes.unwrap().bytes_per_second();
        assert_eq!(admits(&supply, &[milli(333_333), bytes(free)]), Ok(()));
        assert!(admits(&supply, &[milli(333_333), bytes(free + 1)]).is_err());
    }

    #[test]
    fn the_largest_rates_do_not_overflow() {
        let most = Reservation { iops: Some(Iops::from_milli(u64::MAX)), bytes: Some(ByteRate::per_second(u64::MAX)) };
        let capacity = Capacity { iops: most.iops, bytes: most.bytes };
        let supply = Supply {
            capacity,
            weight_floor: Percent::ZERO,
            reservable: Percent::WHOLE,
            device_class: DeviceClass::Disk,
        };
        let policy = Policy { reservation: most, ..Policy::default() };
        assert_eq!(admits(&supply, &[policy]), Ok(()));
        assert!(admits(&supply, &[policy, policy]).is_err());
        assert_eq!(supply.reserved(&[policy; 3]), Some(Part(30_000)));
        assert_eq!(
            [0, 1, 10, 205, 10_010].map(|part| Part(part).to_string()),
            ["0%", "0.01%", "0.1%", "2.05%", "100.1%"]
        );
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

    // rule: mclock.volume-sum
    #[test]
    fn the_requests_and_the_bytes_of_a_vm_are_not_sold_to_two_volumes() {
        let vm = reserving(Some(500), Some(50));
        let (requests, bytes) = (reserving(Some(500), None), reserving(None, Some(50)));
        assert_eq!(volumes_fit_device(&supply(None, 200), &vm, [&requests, &bytes]), Ok(()), "bandwidth unknown");
        let refusal = volumes_fit_device(&supply(Some(100), 200), &vm, [&requests, &bytes]).unwrap_err().to_string();
        assert_eq!(
            refusal,
            "Volumes of one VM reserve 100% of the device (equal to 1000 iops or 100MiB/s) together, but the VM only 50% of \
             it; raise the VM's reservation or lower theirs"
        );
        let halves = [reserving(Some(250), Some(25)); 2];
        assert_eq!(volumes_fit_device(&supply(Some(100), 200), &vm, &halves), Ok(()));
        let raised = reserving(Some(1000), Some(50));
        assert_eq!(volumes_fit_device(&supply(Some(100), 200), &raised, [&requests, &bytes]), Ok(()));
    }

    // rule: mclock.volume-sum, mclock.weight-floor
    #[test]
    fn a_volume_was_sold_the_floor_of_its_neighbour() {
        let (vm, by_weight) = (reserving(Some(500), None), Policy::default());
        let fits = |supply: Supply, reserved: u64| {
            volumes_fit_device(&supply, &vm, [&reserving(Some(reserved), None), &by_weight])
        };
        for bandwidth in [None, Some(100)] {
            assert_eq!(fits(supply(bandwidth, 200), 490), Ok(()));
            assert_eq!(
                fits(supply(bandwidth, 200), 491).unwrap_err().to_string(),
                "Volumes of one VM reserve 491 iops together, but the VM only 500 iops, of which weight_floor keeps 2% for its \
                 volumes without a reservation; raise the VM's reservation or lower theirs"
            );
            assert_eq!(fits(supply(bandwidth, 0), 500), Ok(()), "without a floor");
            let alone = [&reserving(Some(500), None)];
            assert_eq!(
                volumes_fit_device(&supply(bandwidth, 200), &vm, alone),
                Ok(()),
                "no volume without a reservation"
            );
        }
        // Parts of the device: 49.5 % by bytes of the VM's 50 %.
        let both = reserving(Some(500), Some(50));
        let volumes = [reserving(Some(100), Some(10)), reserving(Some(395), Some(20)), by_weight];
        let refusal = volumes_fit_device(&supply(Some(100), 200), &both, &volumes).unwrap_err().to_string();
        assert!(refusal.contains("of which weight_floor keeps 2%"), "{refusal}");
    }
}
