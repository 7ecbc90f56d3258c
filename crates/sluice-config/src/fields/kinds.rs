//! Kinds of values that the policies of disks and of NICs share.

use super::{HOUR, Key, Kind, MICROSECOND};

pub(super) const NONE: Kind = Kind::Word(&["none"]);
pub(super) const UNLIMITED: Kind = Kind::Word(&["unlimited"]);
pub(super) const WEIGHT_KIND: Kind = Kind::Either(&[WEIGHT_RANGE, NONE]);
pub(super) const WEIGHT_RANGE: Kind = Kind::Decimal(0.01, 1_000_000.0);
pub(super) const LATENCY_RANGE: Kind = Kind::Time(MICROSECOND, HOUR);

pub(super) const ALLOW_UNENFORCED: Key = Key::new(
    "allow_unenforced",
    Kind::Bool,
    "true",
    "Accepts fields that the device's scheduler does not enforce, with a warning",
)
.default("false");
