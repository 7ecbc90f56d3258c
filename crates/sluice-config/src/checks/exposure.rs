//! Host files that weaken the daemon's protection: NBD addresses that other hosts reach, and devices that need calls which the seal forbids.

use super::{Draft, volumes};
use crate::device::DeviceDraft;
use crate::diagnostics::Report;
use crate::model::{Backend, Jail, ListenAddress};
use crate::source::Span;

/// Reports addresses without TLS that are not known to be meant so.
pub(super) fn check(draft: &Draft, report: &Report) {
    if draft.nbd.settings.tls.is_some() {
        return;
    }
    let host = draft.nbd.settings.endpoints.iter().zip(&draft.nbd.endpoints_at);
    host.for_each(|(endpoint, at)| check_endpoint("[nbd]", endpoint, draft.nbd.insecure, *at, report));
    for volume in volumes(draft).filter(|volume| !volume.export.broken) {
        let (export, whose) = (&volume.export, format!("Volume {}", volume.title));
        check_endpoint(&whose, &export.export.endpoint, export.insecure, export.endpoint_at, report);
    }
}

/// Reports pools of Ceph clusters where the whole seal is required.
pub(super) fn check_seal(draft: &Draft, jail: &Jail, report: &Report) {
    let is_pool = |device: &&DeviceDraft| matches!(device.device.backend, Backend::Rbd(_));
    if *jail != Jail::Required {
        return;
    }
    for device in draft.devices.values().filter(is_pool) {
        let message =
            format!("Device {}: path: librbd does what the seal forbids, and jail is \"required\"", device.device.name);
        let hint = "map the image with the kernel's client and state its block device, or remove jail from [daemon]";
        report.error(device.path_at, message, hint.to_owned());
    }
}

fn check_endpoint(whose: &str, endpoint: &ListenAddress, insecure: bool, at: Span, report: &Report) {
    let ListenAddress::Tcp(address) = endpoint else { return };
    if address.ip().is_loopback() {
        return;
    }
    let message = format!("{whose}: any client that reaches {address} can read and write the volumes");
    let hint = "without [nbd.tls] the NBD server neither authenticates clients nor encrypts data; use that, a socket or \
                127.0.0.1, or a protected network";
    match insecure {
        true => report.warn(at, message, hint.to_owned()),
        false => report.error(at, message, format!("{hint} and insecure = true")),
    }
}
