//! Fan-out of a merged submission to its requests: dispatched, completed and cancelled together, but counted
//! separately.

use crate::gate::merging::Merging;
use crate::gate::{Device, Finished, Gate, Part, Slot, Submission};
use crate::request::{Completion, Flags, Request};
use crate::time::Instant;

impl Gate {
    #[cold]
    #[inline(never)]
    pub(super) fn submit_merged(&mut self, now: Instant, request: &Request, device: &mut impl Device) {
        let mut parts = core::mem::take(&mut self.parts);
        parts.clear();
        let mut at = self.merging.first(request);
        while let Some((part, next)) = self.merging.part_at(at) {
            let mut part = Request { phase: request.phase, wait: request.wait, ..part };
            self.book_dispatch(now, &mut part);
            let (token, skip) = self.splitting.resolve(&part);
            parts.push(Part { token, skip, length: part.length });
            self.merging.set_part(at, part);
            at = next;
        }
        let slot = self.take_slot(now, *request);
        let Part { token, skip, .. } = parts[0];
        device.submit_merged(now, &Submission { slot, token, skip, request: *request }, &parts);
        self.parts = parts;
    }

    /// Completes a merged submission whose parts may have different results: `ok` says for each part, in the order of
    /// [`Device::submit_merged`], whether it succeeded. Appends the arrivals that this completes to `finished`.
    ///
    /// # Panics
    /// If the slot is not in flight, or has another number of parts.
    pub fn complete_parts(&mut self, now: Instant, slot: Slot, ok: &[bool], finished: &mut Vec<Finished>) {
        let completion = self.leave_slot(now, slot, ok.iter().all(|ok| *ok));
        assert!(completion.request.flags.contains(Flags::MERGED), "only a merged submission has parts");
        assert!(self.merging.count(&completion.request) as usize == ok.len(), "one result for each part");
        self.finish_parts(now, &completion, |index| ok[index], finished);
    }

    pub(super) fn finish_parts(
        &mut self,
        now: Instant,
        completion: &Completion,
        ok: impl Fn(usize) -> bool,
        finished: &mut Vec<Finished>,
    ) {
        let mut index = 0;
        while let Some(part) = self.merging.pop(&completion.request) {
            let ok = ok(index);
            finished.extend(self.finish(now, &Completion { request: part, ok, ..*completion }));
            index += 1;
        }
    }

    /// Calls `each` for the parts of a merged request that is not queued any more, in order of their offsets.
    pub(super) fn unmerge(merging: &mut Merging, merged: &Request, mut each: impl FnMut(Request)) {
        match merging.detach(merged) {
            Some(only) => each(only),
            None => {
                while let Some(part) = merging.pop(merged) {
                    each(part);
                }
            }
        }
    }
}
