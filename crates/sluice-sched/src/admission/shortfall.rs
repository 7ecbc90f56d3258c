//! The calculation that a rejection shows.

use core::fmt;

use crate::admission::{Claim, Part, show};
use crate::policy::Reservation;
use crate::units::Percent;

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
    /// As in [`Supply::reservable`](crate::admission::Supply::reservable).
    pub reservable: Percent,
    /// Amount by which `sum` exceeds `most`.
    pub short: Part,
    /// The most that this VM could reserve, in each currency that it reserves; `None` if nothing is left.
    pub free: Reservation,
}

/// Maximum number of VMs that a rejection lists by name, the largest parts first.
const LISTED_MAX: usize = 4;

impl Shortfall {
    /// Whether [`Supply::reservable`](crate::admission::Supply::reservable) allows less than the weight floor does.
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
