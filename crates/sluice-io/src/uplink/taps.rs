//! NICs that are TAPs: for containers, network namespaces, and VMMs without vhost-user.
//!
//! The kernel says once that a TAP has frames; then it is read until it has none, a few frames at a time, so that a NIC that sends
//! much delays the others by one batch.

use std::os::fd::RawFd;
use std::time::Duration;

use io_uring::{opcode, types};
use sluice_sched::Instant;

use crate::backend::ring::Ring;
use crate::backend::tag::Tag;
use crate::slab::{FrontendNumber, Id as _};
use crate::uplink::core::{Core, Outgoing};
use crate::uplink::ids::NicId;
use crate::uplink::link::Read;
use crate::uplink::nic::Watch;
use crate::uplink::packet::Data;
use crate::uplink::receive_buffers::ReceiveBuffers;
use crate::uplink::spec::NicPlug;

/// Frames that are read from a TAP before the next TAP is served.
const BATCH_MAX: u32 = 32;

/// Pause before an interface that cannot be read (it is down, or was removed) is looked at again.
pub(crate) const DOWN_PAUSE: Duration = Duration::from_millis(100);

/// The TAPs of an uplink.
pub(crate) struct Taps {
    number: FrontendNumber,
    ready: Vec<NicId>,
    /// TAPs that cannot be read, and when they are looked at again.
    failed: Vec<(Instant, NicId)>,
    /// TAPs of VMs that have used up their CPU time.
    held: Vec<NicId>,
    buffers: ReceiveBuffers,
}

impl Taps {
    pub(crate) fn new(number: FrontendNumber) -> Self {
        Taps { number, ready: Vec::new(), failed: Vec::new(), held: Vec::new(), buffers: ReceiveBuffers::new() }
    }

    /// Starts to read from a new NIC, if it is a TAP.
    pub(crate) fn open(&mut self, core: &mut Core, id: NicId) {
        if let NicPlug::Tap(_) = core.nics[id].spec.plug {
            self.watch(core, id);
        }
    }

    /// Asks the kernel to report frames.
    fn watch(&mut self, core: &mut Core, id: NicId) {
        let nic = &mut core.nics[id];
        let NicPlug::Tap(link) = &nic.spec.plug else { return };
        watch(&mut core.ring, link.fd(), Tag::Frontend(self.number, 0, id.index()));
        nic.watch = Watch::Waiting;
    }

    /// Handles the kernel's report.
    pub(crate) fn event(&mut self, core: &mut Core, index: u32) {
        let id = core.nics.id_at(index);
        core.nics[id].watch = Watch::Ready;
        self.ready.push(id);
    }

    /// Reads frames. Returns whether there were any.
    pub(crate) fn poll(&mut self, core: &mut Core, now: Instant) -> bool {
        let mut found = false;
        let ready = &mut self.ready;
        self.failed.retain(|(until, id)| {
            let is_over = *until <= now || core.nics[*id].is_leaving();
            ready.extend(is_over.then_some(*id));
            !is_over
        });
        for id in std::mem::take(&mut self.held) {
            let is_held = !core.nics[id].is_leaving() && core.is_held(id);
            if is_held { self.held.push(id) } else { self.ready.push(id) }
        }
        for id in std::mem::take(&mut self.ready) {
            if core.nics[id].is_leaving() {
                core.nics[id].watch = Watch::Idle;
                core.remove_left(id);
                continue;
            }
            if core.is_held(id) {
                self.held.push(id);
                continue;
            }
            let more = self.read(core, now, id);
            found |= more.is_some_and(|more| more > 0);
            match more {
                Some(BATCH_MAX) => self.ready.push(id),
                Some(_) => self.watch(core, id),
                // The kernel would report a deleted TAP again and again.
                None => self.failed.push((now + DOWN_PAUSE, id)),
            }
        }
        found
    }

    /// Whether frames are left that were not read.
    pub(crate) fn has_more(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Returns when a TAP is looked at again that could not be read.
    pub(crate) fn next_wakeup(&self) -> Option<Instant> {
        self.failed.iter().map(|(until, _)| *until).min()
    }

    /// Reads up to [`BATCH_MAX`] frames; returns their number, or `None` if the TAP is gone.
    fn read(&mut self, core: &mut Core, now: Instant, id: NicId) -> Option<u32> {
        let NicPlug::Tap(link) = &core.nics[id].spec.plug else { return None };
        let link = std::sync::Arc::clone(link);
        for count in 0..BATCH_MAX {
            match link.receive(self.buffers.next()) {
                Ok(Read::Frame(received)) => {
                    let frame = received.start..received.start + received.length;
                    let data = match self.buffers.keep(received.length) {
                        Some(buffer) => Data::in_buffer(buffer, frame),
                        None => Data::own(&self.buffers.next()[frame]),
                    };
                    let outgoing =
                        Outgoing { header: received.header, data, length: received.length as u32, origin: None };
                    core.transmit(now, id, outgoing);
                }
                Ok(Read::Dropped(reason)) => core.nics[id].drop_frame(reason),
                Ok(Read::Nothing) => return Some(count),
                Err(_) => return None,
            }
        }
        Some(BATCH_MAX)
    }

    /// Stops waiting for frames of a NIC that is removed.
    pub(crate) fn close(&mut self, core: &mut Core, id: NicId) {
        if core.nics[id].watch == Watch::Waiting {
            cancel(&mut core.ring, Tag::Frontend(self.number, 0, id.index()));
        }
    }

    pub(crate) fn shut_down(&mut self, core: &mut Core) {
        core.nics.ids().into_iter().for_each(|id| self.close(core, id));
    }
}

/// Lets the kernel report once when a descriptor can be read.
pub(crate) fn watch(ring: &mut Ring, fd: RawFd, tag: Tag) {
    let entry = opcode::PollAdd::new(types::Fd(fd), libc::POLLIN as u32).build();
    // SAFETY: the operation refers to no memory; the kernel holds the file of the descriptor.
    unsafe { ring.push(entry.user_data(tag.pack())) };
}

/// Ends such an operation.
pub(crate) fn cancel(ring: &mut Ring, tag: Tag) {
    let entry = opcode::AsyncCancel::new(tag.pack()).build();
    // SAFETY: a cancellation refers to no memory.
    unsafe { ring.push(entry.user_data(Tag::Ignored.pack())) };
}
