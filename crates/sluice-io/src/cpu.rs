//! CPU time of a device thread for each of its VMs, and their limits of it.
//!
//! To read a clock for each request would cost more than many requests do. So work for a VM is counted in units when it is taken: a
//! unit is about a nanosecond, but only the ratio of units counts. Every 250 us the thread reads its CPU clock once, at the end of an
//! iteration of its loop, and divides the CPU time since the last reading among the VMs by their units. Time without the CPU and
//! polling without work are charged to no VM. Workers of the kernel and helper threads are not counted. The units are those that
//! `cargo xtask bench network --only charge` measured.
//!
//! A thread that sleeps is woken by an event of one VM, which pays for that, although it may find work of others. Events that bring
//! no request do not make the thread poll: otherwise a VM that kicks could keep the thread polling, and no VM is charged for polling.
//!
//! A VM that has used more than its limit allows is held until its excess is paid for: nothing is taken from its rings, sockets and TAPs.
//! Requests that were taken before continue. Received frames are accounted and do not count against the limit, because other VMs and
//! hosts send them; `receive` bounds them. Kicks for receive buffers count, and so does a look at buffers that do not suffice: a held VM
//! gets a frame that waits for buffers when it may continue.
//!
//! Example: VM `a` may use 10 % of a CPU. In 250 us it causes 150 us of work. It had saved 1 ms (10 % of 10 ms), so it may go on for
//! 1.5 ms at this pace; from then on it is held for 1.25 ms after each 250 us.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::future::poll_fn;
use std::pin::pin;
use std::task::Context;
use std::time::Duration;

use sluice_sched::{Instant, Percent};

use crate::slab::{Slab, VmId};

/// Time between two readings of the CPU clock while there is work.
const PERIOD: Duration = Duration::from_micros(250);
/// Time in which a VM that used nothing saves what its limit allows.
const SAVED_MAX: Duration = Duration::from_millis(10);

/// A request of a disk, without its data.
pub(crate) const REQUEST: u64 = 500;
/// A read of a client's socket.
pub(crate) const RECEIVE: u64 = 500;
/// A kick of a guest.
pub(crate) const KICK: u64 = 2000;
/// The end of the thread's sleep by an event of a client.
pub(crate) const WAKE: u64 = 8000;
/// The start and the end of a connection, without its handshake.
pub(crate) const CONNECTION: u64 = 30_000;
/// A frame that is sent or received, without its bytes.
pub(crate) const FRAME: u64 = 2500;
/// Each further frame of a large segment: the kernel, or the thread itself, cuts it.
pub(crate) const SEGMENT: u64 = 300;
/// A descriptor of a chain.
pub(crate) const DESCRIPTOR: u64 = 20;

/// Units of copying bytes once.
pub(crate) fn copied(bytes: u64) -> u64 {
    bytes / 4
}

/// Units of a received frame.
pub(crate) fn delivered(bytes: usize) -> u64 {
    FRAME + 2 * copied(bytes as u64)
}

/// CPU time of a VM on a device thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CpuTime {
    /// Time that was used for it, in nanoseconds.
    pub used_nanos: u64,
    /// Time for which it had work that its limit held back, in nanoseconds.
    pub held_nanos: u64,
    /// Part of a CPU that it may use.
    pub limit: Option<Percent>,
}

/// The account of a VM.
#[derive(Debug, Default)]
pub(crate) struct VmCpu {
    time: CpuTime,
    /// Units since the last reading: of what it sent, and of what it received.
    sent: u64,
    received: u64,
    /// When what it has used is paid for.
    paid: Instant,
    /// Since when it is held.
    held: Option<Instant>,
}

impl VmCpu {
    pub(crate) fn time(&self) -> CpuTime {
        self.time
    }

    /// Whether nothing may be taken from it.
    pub(crate) fn is_held(&self) -> bool {
        self.held.is_some()
    }

    /// Changes its limit. What it used under the old one is forgotten.
    pub(crate) fn set_limit(&mut self, now: Instant, limit: Option<Percent>) {
        self.time.limit = limit;
        (self.paid, self.held) = (now, None);
    }

    /// Charges what it sent against its limit. Returns until when it is held, if it was not before.
    fn spend(&mut self, now: Instant, nanos: u64) -> Option<Instant> {
        let limit = self.time.limit?;
        let price = u128::from(nanos) * 10_000 / u128::from(limit.hundredths().max(1));
        let price = u64::try_from(price).unwrap_or(u64::MAX >> 1);
        self.paid = self.paid.max(now - SAVED_MAX) + Duration::from_nanos(price);
        if self.paid <= now || self.held.is_some() {
            return None;
        }
        self.held = Some(now);
        Some(self.paid)
    }
}

/// A VM that has an account.
pub(crate) trait HasCpu {
    fn cpu(&mut self) -> &mut VmCpu;

    /// Whether it has work that was not taken because it is held.
    fn is_waiting(&self) -> bool;
}

/// The meter of a device thread.
#[derive(Debug, Default)]
pub(crate) struct CpuMeter {
    /// When the CPU clock was last read, and what it showed.
    read: Instant,
    cpu: Duration,
    /// Time of iterations since then, and of those with work, in nanoseconds.
    awake: u64,
    worked: u64,
    /// Units since then, of all VMs.
    units: u128,
    /// Whether the thread has slept until an event, and no VM has paid for it yet.
    woke: bool,
    /// Number of events of this iteration that brought no request.
    in_vain: usize,
    /// VMs with units.
    busy: Vec<VmId>,
    /// VMs that are held, the next one to be looked at first. VMs of the same instant are in the order of their arrival.
    held: BinaryHeap<Reverse<(Instant, u64, VmId)>>,
    /// Number of times that a VM was added to `held`.
    holds: u64,
}

impl CpuMeter {
    /// A meter that begins now. What this thread has done for another device, or before a restart, is not charged.
    pub(crate) fn of_thread() -> CpuMeter {
        CpuMeter { cpu: thread_time(), ..CpuMeter::default() }
    }

    /// Begins an iteration of the loop. `woke`: the thread has slept until an event.
    pub(crate) fn begin_iteration(&mut self, woke: bool) {
        (self.woke, self.in_vain) = (woke, 0);
    }

    /// Counts units of work for an event of a client, and the wake-up if it was the first.
    pub(crate) fn event(&mut self, id: VmId, vm: &mut VmCpu, units: u64) {
        let wake = if std::mem::take(&mut self.woke) { WAKE } else { 0 };
        self.sent(id, vm, units + wake);
    }

    /// Charges time that another thread has used for a VM.
    pub(crate) fn charge(&mut self, now: Instant, id: VmId, vm: &mut VmCpu, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        vm.time.used_nanos += nanos;
        if let Some(until) = vm.spend(now, nanos) {
            self.hold(until, id);
        }
    }

    /// Records that an event of a client brought no request.
    pub(crate) fn note_in_vain(&mut self) {
        self.in_vain += 1;
    }

    /// Whether one of this iteration's `events` may have brought something.
    pub(crate) fn has_useful(&self, events: usize) -> bool {
        events > self.in_vain
    }

    /// Counts units of work for what a VM sends.
    pub(crate) fn sent(&mut self, id: VmId, vm: &mut VmCpu, units: u64) {
        self.note(id, vm, units);
        vm.sent += units;
    }

    /// Counts units of work for what a VM receives.
    pub(crate) fn received(&mut self, id: VmId, vm: &mut VmCpu, units: u64) {
        self.note(id, vm, units);
        vm.received += units;
    }

    fn note(&mut self, id: VmId, vm: &VmCpu, units: u64) {
        self.units += u128::from(units);
        if vm.sent + vm.received == 0 {
            self.busy.push(id);
        }
    }

    /// Records an iteration of the loop. Returns whether the CPU clock is to be read.
    pub(crate) fn end_of_iteration(&mut self, ended: Instant, nanos: u64, worked: bool) -> bool {
        self.awake += nanos;
        self.worked += if worked { nanos } else { 0 };
        ended.since(self.read) >= PERIOD && !self.busy.is_empty()
    }

    /// Divides the CPU time since the last reading, at which the CPU clock shows `cpu`.
    pub(crate) fn divide<V: HasCpu>(&mut self, now: Instant, cpu: Duration, vms: &mut Slab<VmId, V>) {
        let used = cpu.saturating_sub(self.cpu).as_nanos();
        let worked = (used * u128::from(self.worked) / u128::from(self.awake.max(1))).min(used);
        let mut busy = std::mem::take(&mut self.busy);
        for id in busy.drain(..) {
            let Some(vm) = vms.get_mut(id).map(V::cpu) else { continue };
            let part = |units: u64| u64::try_from(worked * u128::from(units) / self.units.max(1)).unwrap_or(u64::MAX);
            vm.time.used_nanos += part(vm.sent + vm.received);
            let sent = part(vm.sent);
            (vm.sent, vm.received) = (0, 0);
            let held = vm.spend(now, sent);
            if let Some(until) = held {
                self.hold(until, id);
            }
        }
        self.busy = busy;
        (self.read, self.cpu, self.awake, self.worked, self.units) = (now, cpu, 0, 0, 0);
    }

    /// Returns when a VM may continue.
    pub(crate) fn next_release(&self) -> Option<Instant> {
        self.held.peek().map(|Reverse((until, ..))| *until)
    }

    /// Removes and returns a VM that may continue.
    pub(crate) fn release<V: HasCpu>(&mut self, now: Instant, vms: &mut Slab<VmId, V>) -> Option<VmId> {
        while self.next_release().is_some_and(|until| until <= now) {
            let Some(Reverse((_, _, id))) = self.held.pop() else { break };
            let Some(vm) = vms.get_mut(id) else { continue };
            let is_waiting = vm.is_waiting();
            let cpu = vm.cpu();
            // What had been taken before has cost something since, or the limit has changed.
            if cpu.is_held() && cpu.paid > now {
                self.hold(cpu.paid, id);
            } else if let Some(since) = cpu.held.take() {
                cpu.time.held_nanos += if is_waiting { now.nanos_since(since) } else { 0 };
                return Some(id);
            }
        }
        None
    }

    fn hold(&mut self, until: Instant, id: VmId) {
        self.held.push(Reverse((until, self.holds, id)));
        self.holds += 1;
    }
}

/// Returns the output of a future, and its CPU time: that of this thread while it is polled.
pub(crate) async fn metered<F: Future>(future: F) -> (F::Output, Duration) {
    let (mut future, mut used) = (pin!(future), Duration::ZERO);
    let poll = |context: &mut Context<'_>| {
        let began = thread_time();
        let polled = future.as_mut().poll(context);
        used += thread_time().saturating_sub(began);
        polled
    };
    let output = poll_fn(poll).await;
    (output, used)
}

/// Reads the CPU clock of this thread.
pub(crate) fn thread_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Vm(VmCpu);

    impl HasCpu for Vm {
        fn cpu(&mut self) -> &mut VmCpu {
            &mut self.0
        }

        fn is_waiting(&self) -> bool {
            true
        }
    }

    /// A thread in virtual time.
    struct Thread {
        meter: CpuMeter,
        vms: Slab<VmId, Vm>,
        now: Instant,
        cpu: Duration,
    }

    impl Thread {
        fn new(limits: &[Option<u16>]) -> (Thread, Vec<VmId>) {
            let mut vms: Slab<VmId, Vm> = Slab::default();
            let add = |limit: &Option<u16>| {
                let mut vm = Vm::default();
                vm.0.set_limit(Instant::ZERO, limit.map(|percent| Percent::from_hundredths(percent * 100)));
                vms.insert(vm)
            };
            let ids = limits.iter().map(add).collect();
            (Thread { meter: CpuMeter::default(), vms, now: Instant::ZERO, cpu: Duration::ZERO }, ids)
        }

        fn sent(&mut self, id: VmId, units: u64) {
            self.meter.sent(id, &mut self.vms[id].0, units);
        }

        /// An iteration of `micros`, in which the thread had the CPU for `percent` of the time.
        fn iterate(&mut self, micros: u64, percent: u64, worked: bool) {
            self.now = self.now + Duration::from_micros(micros);
            self.cpu += Duration::from_nanos(micros * 10 * percent);
            if self.meter.end_of_iteration(self.now, micros * 1000, worked) {
                self.meter.divide(self.now, self.cpu, &mut self.vms);
            }
        }

        fn used_micros(&self, id: VmId) -> u64 {
            self.vms[id].0.time.used_nanos / 1000
        }

        fn release(&mut self) -> Option<VmId> {
            self.meter.release(self.now, &mut self.vms)
        }
    }

    #[test]
    fn cpu_time_is_divided_by_units_and_excludes_polling_and_time_without_the_cpu() {
        let (mut thread, ids) = Thread::new(&[None, None]);
        thread.sent(ids[0], 3000);
        thread.sent(ids[1], 1000);
        thread.iterate(200, 50, true);
        assert_eq!(thread.used_micros(ids[0]), 0, "the clock is not read in each iteration");
        thread.iterate(200, 50, false);
        assert_eq!([0, 1].map(|vm| thread.used_micros(ids[vm])), [75, 25], "half of 400 us, half of it with work");
        thread.meter.received(ids[1], &mut thread.vms[ids[1]].0, 10);
        thread.iterate(1000, 100, true);
        assert_eq!([0, 1].map(|vm| thread.used_micros(ids[vm])), [75, 1025]);
    }

    /// Lets a VM that always has work run for a second, beside others. Returns the CPU time that was used for it.
    fn run(limit: u16, percent: u64) -> u64 {
        let (mut thread, ids) = Thread::new(&[Some(limit), None]);
        while thread.now < Instant::from_nanos(1_000_000_000) {
            thread.release();
            if !thread.vms[ids[0]].0.is_held() {
                thread.sent(ids[0], 1000);
            }
            thread.sent(ids[1], 1000);
            thread.iterate(50, percent, true);
        }
        thread.used_micros(ids[0])
    }

    #[test]
    fn a_vm_gets_its_limit_of_the_cpu_time_however_busy_the_host_is() {
        for (limit, percent, expected) in [(10, 100, 100_000), (1, 100, 10_000), (10, 40, 100_000), (90, 100, 500_000)]
        {
            let used = run(limit, percent);
            assert!(used.abs_diff(expected) <= expected / 50 + 1000, "{limit} % at {percent} %: {used} us");
        }
    }

    #[test]
    fn a_held_vm_continues_when_its_excess_is_paid_for() {
        let (mut thread, ids) = Thread::new(&[Some(10), None]);
        thread.now = Instant::from_nanos(1_000_000_000);
        thread.meter.read = thread.now;
        thread.sent(ids[0], 1);
        thread.iterate(2000, 100, true);
        assert!(thread.vms[ids[0]].0.is_held(), "1 ms was saved");
        assert_eq!(
            thread.meter.next_release(),
            Some(thread.now + Duration::from_millis(10)),
            "2 ms at 10 % minus 10 ms"
        );
        assert_eq!(thread.release(), None);
        thread.now = thread.now + Duration::from_millis(10);
        assert_eq!(thread.release(), Some(ids[0]));
        assert_eq!((thread.release(), thread.vms[ids[0]].0.time.held_nanos), (None, 10_000_000));
    }

    #[test]
    fn a_new_limit_ends_the_hold_and_a_vm_that_is_gone_is_forgotten() {
        let (mut thread, ids) = Thread::new(&[Some(1), Some(1)]);
        ids.iter().for_each(|id| thread.sent(*id, 1));
        thread.iterate(20_000, 100, true);
        let now = thread.now;
        thread.vms[ids[0]].0.set_limit(now, None);
        assert!(!thread.vms[ids[0]].0.is_held() && thread.vms[ids[1]].0.is_held());
        thread.vms.remove(ids[1]);
        thread.now = thread.now + Duration::from_secs(10);
        assert_eq!((thread.release(), thread.meter.next_release()), (None, None));
    }

    #[test]
    fn received_frames_do_not_count_against_the_limit() {
        let (mut thread, ids) = Thread::new(&[Some(1)]);
        thread.meter.received(ids[0], &mut thread.vms[ids[0]].0, 1000);
        thread.iterate(500_000, 100, true);
        assert!(!thread.vms[ids[0]].0.is_held() && thread.used_micros(ids[0]) == 500_000);
    }
}
