//! NBD at addresses that other hosts reach: who may come there, and who may read along.

use super::{Draft, volumes};
use crate::diagnostics::Report;
use crate::model::ListenAddress;
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
