//! Two schedulers in a row: one in each guest and one on the host, with a bounded ring between them.
//!
//! A guest schedules the requests of its threads and puts them into its ring. The host schedules the requests of all
//! rings, and sees one owner per VM. A request occupies a ring slot from its dispatch in the guest until its completion
//! at the host's device. So the device of a guest is a gate: its depth is the size of the ring, and the ring also
//! bounds the size of a request.
//!
//! ```text
//! thread -+                                                        +- thread
//! thread -+-> gate of VM 0 --ring--> gate of the host <--ring-- gate of VM 1 <-+
//!                                          |
//!                                       device
//! ```
//!
//! Example: a guest's noop puts its 40 random reads of 64 KiB into a Xen ring. They become 80 requests of at most 44
//! KiB. The host can order 32 of them; 48 wait in the guest, and one follows whenever one completes.
//!
//! As with a gate, the caller calls [`Stack::pump`] after every other call and keeps the instant that it returns.
//!
//! Source: \[two-tier\]; \[flubber\] II.A describes the ring.

// Consequences that tests assert:
// rule: two-tier.host-matters-little, two-tier.guest-matters, two-tier.request-cost
// rule: anticipatory.nested, cfq.weak-nested

use sluice_sched::cost::CostModel;
use sluice_sched::gate::{Arrival, Device, Finished, Gate, GateSettings, Outcome, Refused, Slot, Submission};
use sluice_sched::policy::Policy;
use sluice_sched::request::{Flags, OwnerId, RequestId, VolumeId};
use sluice_sched::scheduler::{ChangeError, Scheduler, Scope};
use sluice_sched::slab::Slab;
use sluice_sched::time::Instant;
use sluice_sched::units::Bytes;

/// Capacity of a ring between a guest and the host.
// rule: two-tier.model
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ring {
    /// Requests in the ring, 1 to 65,536.
    pub slots: u32,
    /// Largest read or write; the guest splits larger ones.
    pub transfer_max: Bytes,
}

impl Ring {
    /// Xen's block ring: 32 requests of 11 pages. \[flubber\] III.D: "less than 44KB".
    pub const XEN: Ring = Ring { slots: 32, transfer_max: Bytes::kib(44) };
    /// A virtio queue as QEMU makes it today: 256 requests of at most 254 pages.
    pub const VIRTIO: Ring = Ring { slots: 256, transfer_max: Bytes::kib(254 * 4) };
}

/// Components of a guest.
pub struct Guest {
    /// Scheduler for the requests of its threads.
    pub scheduler: Box<dyn Scheduler>,
    /// Ring to the host.
    pub ring: Ring,
    /// Whether the guest merges adjacent requests, up to the ring's largest transfer.
    pub merging: bool,
    /// Queued requests per thread, at most.
    pub queue_max: u32,
}

/// A guest that cannot be added.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StackError {
    /// Rejected by the host's gate.
    #[error(transparent)]
    Change(#[from] ChangeError),
    /// The host's queue cannot hold all requests of the ring.
    #[error(
        "A ring of {slots} requests may become {pieces} requests at the host, which queues at most {queue_max} for one \
         VM; use a smaller ring"
    )]
    RingTooLarge {
        /// Size of the ring in requests.
        slots: u32,
        /// Requests at the host that they may become.
        pieces: u64,
        /// Queue of the host for one owner.
        queue_max: u32,
    },
}

/// A completed arrival of a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    pub vm: OwnerId,
    pub finished: Finished,
}

/// A guest of the stack.
struct Member {
    gate: Gate,
    threads: Vec<OwnerId>,
    volume: VolumeId,
    wake: Option<Instant>,
    /// Whether an event has occurred since the last pump.
    stirred: bool,
    leaving: bool,
}

/// The guest request that a request at the host belongs to.
#[derive(Debug, Clone, Copy)]
struct RingSlot {
    vm: OwnerId,
    slot: Slot,
}

/// The host's end of a ring, which is the device of a guest.
struct HostEnd<'a> {
    host: &'a mut Gate,
    ring_slots: &'a mut Slab<RingSlot>,
    vm: OwnerId,
    volume: VolumeId,
}

impl Device for HostEnd<'_> {
    fn submit(&mut self, now: Instant, submission: &Submission) {
        let request = &submission.request;
        let of_guest = Flags::PIECE.with(Flags::TRACKED).with(Flags::MERGED);
        let arrival = Arrival {
            owner: self.vm,
            volume: self.volume,
            kind: request.kind,
            flags: request.flags.without(of_guest),
            offset: request.offset,
            length: request.length,
            token: self.ring_slots.insert(RingSlot { vm: self.vm, slot: submission.slot }),
            remote: None,
        };
        self.host.insert(now, &arrival).expect("the host's queue has room for a whole ring of each VM that it knows");
    }
}

/// Guests above a host.
pub struct Stack {
    host: Gate,
    guests: Vec<Option<Member>>,
    /// Ring slots in use; the index is the token of the request at the host.
    ring_slots: Slab<RingSlot>,
    /// Buffers, reused at each completion.
    completed: (Vec<Finished>, Vec<Finished>),
}

impl Stack {
    /// A host without guests.
    #[must_use]
    pub fn new(host: Gate) -> Self {
        Stack { host, guests: Vec::new(), ring_slots: Slab::default(), completed: (Vec::new(), Vec::new()) }
    }

    /// Gate of the host. Its owners are the VMs.
    #[must_use]
    pub fn host(&self) -> &Gate {
        &self.host
    }

    /// The same, to be changed.
    pub(crate) fn host_mut(&mut self) -> &mut Gate {
        &mut self.host
    }

    /// Gate of a guest. Its owners are the threads, and its requests in flight are those in the ring.
    #[must_use]
    pub fn guest(&self, vm: OwnerId) -> Option<&Gate> {
        self.guests.get(vm.index())?.as_ref().filter(|guest| !guest.leaving).map(|guest| &guest.gate)
    }

    fn member(&mut self, vm: OwnerId) -> Option<&mut Member> {
        self.guests.get_mut(vm.index())?.as_mut().filter(|guest| !guest.leaving)
    }

    /// Adds a VM without threads, with `policy` at the host.
    // rule: two-tier.owners
    pub fn add_vm(&mut self, now: Instant, policy: Policy, guest: Guest) -> Result<OwnerId, StackError> {
        let host = *self.host.settings();
        let Ring { slots, transfer_max } = guest.ring;
        let pieces = u64::from(slots) * transfer_max.0.div_ceil(host.transfer_max.0.max(1));
        if pieces > u64::from(host.queue_max) {
            return Err(StackError::RingTooLarge { slots, pieces, queue_max: host.queue_max });
        }
        let vm = self.host.add_owner(now, policy)?;
        let volume = self.host.add_volume(now, vm, Policy::default())?;
        let settings = GateSettings {
            depth: slots,
            transfer_max,
            discard_max: host.discard_max,
            queue_max: guest.queue_max,
            cost: CostModel::per_request(),
            request_bytes: CostModel::per_request().reference_size(),
            merging: guest.merging,
            device_class: host.device_class,
        };
        if vm.index() >= self.guests.len() {
            self.guests.resize_with(vm.index() + 1, || None);
        }
        let gate = Gate::new(guest.scheduler, settings);
        self.guests[vm.index()] =
            Some(Member { gate, threads: Vec::new(), volume, wake: None, stirred: false, leaving: false });
        Ok(vm)
    }

    /// Adds a thread to a VM, with `policy` in the guest. Its arrivals use the returned owner and volume 0.
    pub fn add_thread(&mut self, now: Instant, vm: OwnerId, policy: Policy) -> Result<OwnerId, ChangeError> {
        let guest = self.member(vm).ok_or(ChangeError::UnknownOwner(vm))?;
        let thread = guest.gate.add_owner(now, policy)?;
        guest.gate.add_volume(now, thread, Policy::default())?;
        guest.threads.push(thread);
        Ok(thread)
    }

    /// Sets the policy of a VM at the host, also for queued requests.
    pub fn set_vm(&mut self, now: Instant, vm: OwnerId, policy: Policy) -> Result<(), ChangeError> {
        self.host.set_owner(now, vm, policy)
    }

    /// Queues a request of a thread in its guest.
    pub fn insert(&mut self, now: Instant, vm: OwnerId, arrival: &Arrival) -> Result<RequestId, Refused> {
        let guest = self.member(vm).ok_or(Refused::Unknown(vm, arrival.volume))?;
        guest.stirred = true;
        guest.gate.insert(now, arrival)
    }

    /// Dispatches from the guests into their rings and from the rings to the device. Returns when to pump again if no
    /// event occurs before. O(VMs).
    pub fn pump(&mut self, now: Instant, device: &mut impl Device) -> Option<Instant> {
        let Stack { host, guests, ring_slots, .. } = self;
        let mut wakes = None;
        for (index, guest) in guests.iter_mut().enumerate() {
            let Some(guest) = guest.as_mut().filter(|guest| !guest.leaving) else { continue };
            if guest.stirred || guest.wake.is_some_and(|wake| wake <= now) {
                let (vm, volume) = (OwnerId(index as u32), guest.volume);
                guest.wake = guest.gate.pump(now, &mut HostEnd { host, ring_slots, vm, volume });
                guest.stirred = false;
            }
            wakes = wakes.into_iter().chain(guest.wake).min();
        }
        host.pump(now, device).into_iter().chain(wakes).min()
    }

    /// Completes a submission at the device, and appends the arrivals that this completes to `ended`.
    ///
    /// # Panics
    /// If the slot is not in flight: every submission is completed exactly once.
    pub fn complete(&mut self, now: Instant, slot: Slot, ok: bool, ended: &mut Vec<Ended>) {
        let mut at_host = std::mem::take(&mut self.completed.0);
        self.host.complete_all(now, slot, ok, &mut at_host);
        self.leave_rings(now, &mut at_host, ended);
        self.completed.0 = at_host;
    }

    /// Releases the ring slots of requests that completed at the host, and completes them in their guests.
    fn leave_rings(&mut self, now: Instant, at_host: &mut Vec<Finished>, ended: &mut Vec<Ended>) {
        for completed in at_host.drain(..) {
            let RingSlot { vm, slot } = *self.ring_slots.remove(completed.token);
            let guest = self.guests[vm.index()].as_mut().expect("a guest is kept while it has requests in its ring");
            let in_guest = &mut self.completed.1;
            guest.gate.complete_all(now, slot, completed.outcome == Outcome::Done, in_guest);
            guest.stirred = true;
            ended.extend(in_guest.drain(..).map(|finished| match (completed.outcome, finished.outcome) {
                // The guest only sees a failure; the cause is known at the host.
                (Outcome::Cancelled, Outcome::Failed) => {
                    Ended { vm, finished: Finished { outcome: Outcome::Cancelled, ..finished } }
                }
                _ => Ended { vm, finished },
            }));
            if guest.leaving && guest.gate.in_flight() == 0 {
                self.guests[vm.index()] = None;
            }
        }
    }

    /// Cancels the requests of `scope` that wait in a guest. Those in the ring stay there.
    pub fn cancel(&mut self, now: Instant, vm: OwnerId, scope: Scope, ended: &mut Vec<Ended>) {
        let mut in_guest = std::mem::take(&mut self.completed.1);
        if let Some(guest) = self.member(vm) {
            guest.gate.cancel(now, scope, &mut in_guest);
            guest.stirred = true;
        }
        ended.extend(in_guest.drain(..).map(|finished| Ended { vm, finished }));
        self.completed.1 = in_guest;
    }

    /// Removes a VM: cancels its requests that wait in the guest and at the host. Those in flight complete as usual.
    pub fn remove_vm(&mut self, now: Instant, vm: OwnerId, ended: &mut Vec<Ended>) -> Result<(), ChangeError> {
        let threads = self.member(vm).ok_or(ChangeError::UnknownOwner(vm))?.threads.clone();
        for thread in threads {
            self.cancel(now, vm, Scope::Owner(thread), ended);
        }
        let mut at_host = std::mem::take(&mut self.completed.0);
        self.host.remove_owner(now, vm, &mut at_host)?;
        self.leave_rings(now, &mut at_host, ended);
        self.completed.0 = at_host;
        let guest = &mut self.guests[vm.index()];
        match guest {
            Some(member) if member.gate.in_flight() > 0 => member.leaving = true,
            _ => *guest = None,
        }
        Ok(())
    }
}

impl core::fmt::Debug for Stack {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Stack").field("host", &self.host).finish_non_exhaustive()
    }
}
