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
mod reach;
mod shortfall;

pub use burst::{BurstTooSmall, check_burst, check_burst_of_large};
pub use reach::limits_together;
pub use shortfall::Shortfall;

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
mod tests;
