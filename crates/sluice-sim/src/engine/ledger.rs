//! Completed requests that are not in the records of their VMs yet.
//!
//! With many VMs, the record of a VM, its time series and its histogram are in no CPU cache when one of its requests completes, and the
//! simulation would wait for memory at each completion. Here VMs with adjacent numbers share a page of completed requests, which takes
//! one line for most of them. A full page is added to the records in one go. It has four requests of each of its VMs, so a line of a
//! record is fetched once for several requests, and the CPU fetches lines of several VMs at once.

use super::Vm;
use crate::record::Measured;

/// VMs of a page. As many or fewer have no pages: their records stay in the caches.
const PAGE_VMS: usize = 64;
/// Requests of a full page.
const REQUESTS_MAX: usize = 4 * PAGE_VMS;

/// Measured requests by page, in the order of completion.
#[derive(Debug, Default)]
pub(super) struct Ledger(Vec<Vec<Measured>>);

impl Ledger {
    /// Makes room for the requests of this number of VMs.
    pub(super) fn admit(&mut self, vms: usize) {
        if vms > PAGE_VMS {
            self.0.resize_with(vms.div_ceil(PAGE_VMS), || Vec::with_capacity(REQUESTS_MAX));
        }
    }

    /// Appends a request.
    #[inline]
    pub(super) fn add(&mut self, request: Measured, vms: &mut [Vm]) {
        match self.0.get_mut(request.vm as usize / PAGE_VMS) {
            None => vms[request.vm as usize].record.measure(&request),
            Some(page) => {
                page.push(request);
                if page.len() >= REQUESTS_MAX {
                    settle(page, vms);
                }
            }
        }
    }

    /// Adds all to the records of their VMs.
    pub(super) fn settle(&mut self, vms: &mut [Vm]) {
        self.0.iter_mut().for_each(|page| settle(page, vms));
    }
}

#[inline(never)]
fn settle(page: &mut Vec<Measured>, vms: &mut [Vm]) {
    for request in page.drain(..) {
        vms[request.vm as usize].record.measure(&request);
    }
}
