//! Checks that a stated burst is large enough for the reservation.

use sluice_sched::admission::{self, BurstTooSmall};
use sluice_sched::policy::Field;

use crate::device::DeviceDraft;
use crate::diagnostics::Report;
use crate::policy::Part;

/// Rejects a burst with which a VM, or a volume inside its VM, cannot get its reservation, and warns if only large
/// requests cannot.
// rule: mclock.burst-reservation
pub fn check_burst(part: &Part, inside: bool, device: &DeviceDraft, report: &Report) {
    let device = &device.device;
    let enforced = match inside {
        true => device.scheduler.enforces_inside_with(Field::Burst, &device.params),
        false => device.scheduler.enforces_with(Field::Burst, &device.params),
    };
    let Some((span, whose)) = part.span_of(Field::Burst).filter(|_| enforced && !part.broken) else { return };
    let (policy, info, name) = (part.policy(), device.info(false), &device.name);
    let large = admission::check_burst_of_large(&policy, &info, &device.capacity).err();
    let message = |found: &BurstTooSmall| {
        let mut text = found.to_string();
        text.replace_range(..1, "w");
        format!("{whose}: {text} (device {name})")
    };
    if let Err(found) = admission::check_burst(&policy, &info, &device.capacity) {
        if device.admission {
            report.error(span, message(&found), hint(&found, large.as_deref()));
        } else {
            report.warn(
                span,
                message(&found),
                "admission is \"off\" on this device: reservations may not be met".to_owned(),
            );
        }
    } else if let Some(found) = large {
        report.warn(span, message(&found), hint(&found, None));
    }
}

fn hint(found: &BurstTooSmall, large: Option<&BurstTooSmall>) -> String {
    let without = "leave it out: the default is the device's depth times its largest piece, or 100 ms of the limit";
    let Some(enough) = found.enough else { return without.to_owned() };
    let large = large.and_then(|large| Some((large.enough.filter(|more| *more > enough)?, large.size)));
    let large = large.map_or(String::new(), |(more, size)| format!(" ({more} for requests of {size})"));
    format!("raise burst to at least {enough}{large}, or {without}")
}
