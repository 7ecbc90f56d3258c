//! Warns of a reservation of a VM that the limits of its volumes, or NICs, cannot reach.

use sluice_sched::Policy;
use sluice_sched::admission::limits_together;
use sluice_sched::policy::{Limit, Reservation};

use crate::diagnostics::Report;
use crate::source::Span;

/// `whose`: the VM and where its volumes are; `inside`: `volumes` or `NICs`, with these policies.
// rule: mclock.volumes-owed
pub(super) fn check<'a>(
    whose: &str,
    vm: &Policy,
    inside: (&str, impl IntoIterator<Item = &'a Policy>),
    span: Span,
    report: &Report,
) {
    let Reservation { iops, bytes } = vm.reservation;
    let (inside, policies) = inside;
    let most = limits_together(policies);
    let short = Limit {
        iops: most.iops.filter(|most| iops.is_some_and(|reserved| *most < reserved)),
        bytes: most.bytes.filter(|most| bytes.is_some_and(|reserved| *most < reserved)),
    };
    let (reserved, most) = match (short, iops, bytes) {
        (Limit { iops: Some(most), .. }, Some(reserved), _) => (reserved.to_string(), most.to_string()),
        (Limit { bytes: Some(most), .. }, _, Some(reserved)) => (reserved.to_string(), most.to_string()),
        _ => return,
    };
    let message =
        format!("{whose}: it reserves {reserved}, but the limits of its {inside} let at most {most} pass together");
    let hint = format!("raise the limits of its {inside}, or lower the reservation, which takes a part of the device");
    report.warn(span, message, hint);
}
