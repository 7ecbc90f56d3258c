//! Planned changes: VMs start, stop, become idle and change their policy; devices slow down, stall and recover; nodes
//! fail and return.

use sluice_sched::{Instant, Policy};

use super::vm::{Seat, State};
use super::{Event, Simulation};
use crate::devices::Changeable;
use crate::devices::servers::{Servers, ServiceTime};
use crate::devices::speed::{Speed, VariableSpeed};
use crate::random::stream;

#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// A VM submits no more requests; outstanding ones are served.
    Idle(usize),
    /// A VM stops: queued requests are cancelled, those in flight complete.
    Stop(usize),
    /// A VM starts, or continues.
    Start(usize),
    /// Sets the policy of a VM, at every node.
    Policy(usize, Policy),
    /// The device of a node changes its speed, stalls or recovers.
    Speed(usize, Speed),
    /// The path between a node and the device that it shares changes: requests take this many times as long.
    Path(usize, f64),
    /// A node fails: its requests go to other nodes, or wait until one is available.
    Fail(usize),
    /// A failed node returns, with an empty queue.
    Return(usize),
    /// A host cannot read or write where the hosts of its pool meet.
    Away(usize),
    /// It can again.
    Back(usize),
}

impl Simulation {
    /// Plans a change. It comes before a request at the same instant that was planned later.
    ///
    /// # Panics
    /// If the change is for a node whose device is busy already and cannot change its speed: plan such changes before
    /// the run, as a scenario does.
    pub fn plan_change(&mut self, at: Instant, change: Change) {
        if let Change::Speed(node, _) | Change::Fail(node) = change
            && self.nodes[node].model_mut().changeable().is_none()
        {
            assert_eq!(self.nodes[node].host().in_flight(), 0, "changes of a device are planned before it works");
            let idle = Servers::new(1, ServiceTime::Fixed(std::time::Duration::ZERO), stream(0, "none"));
            let model = std::mem::replace(self.nodes[node].model_mut(), Box::new(idle));
            *self.nodes[node].model_mut() = Box::new(VariableSpeed::new(model));
        }
        self.changes.push(change);
        self.enter(at, Event::Change(self.changes.len() as u32 - 1));
    }

    /// Pauses a VM from the start: it submits nothing before it is started.
    pub fn start_paused(&mut self, vm: usize) {
        self.vms[vm].state = State::Idle;
    }

    pub(super) fn change(&mut self, index: usize) {
        match self.changes[index].clone() {
            Change::Idle(vm) => self.vms[vm].state = State::Idle,
            Change::Stop(vm) => self.stop(vm),
            Change::Start(vm) => self.start(vm),
            Change::Policy(vm, policy) => {
                if let Err(error) = self.set_policy(vm, policy) {
                    self.refused.push((self.now, error));
                }
            }
            Change::Speed(node, speed) => {
                let now = self.now;
                self.changeable(node).set_speed(now, speed);
            }
            Change::Path(node, times) => self.changeable(node).set_path(times),
            Change::Fail(node) => self.fail(node),
            Change::Return(node) => {
                self.nodes[node].alive = true;
                self.rejoin_pool(node);
                (0..self.vms.len()).for_each(|vm| self.offer_backpressured(vm));
            }
            Change::Away(node) => self.set_away(node, true),
            Change::Back(node) => self.set_away(node, false),
        }
    }

    fn changeable(&mut self, node: usize) -> &mut dyn Changeable {
        self.nodes[node].model_mut().changeable().expect("it was wrapped when this was planned")
    }

    fn stop(&mut self, vm: usize) {
        self.vms[vm].state = State::Stopped;
        for token in std::mem::take(&mut self.vms[vm].backpressured) {
            self.cancelled(token);
        }
        let seats = self.vms[vm].route.seats().to_vec();
        let threads: Vec<_> = self.vms[vm].runners.iter().map(|runner| runner.owner).collect();
        for Seat { node, owner, .. } in seats {
            let node = node as usize;
            let mut finished = std::mem::take(&mut self.finished);
            self.nodes[node].cancel(self.now, owner, &threads, &mut finished);
            finished.drain(..).for_each(|over| self.finish(node, &over));
            self.finished = finished;
        }
    }

    fn start(&mut self, vm: usize) {
        self.vms[vm].state = State::Active;
        self.vms[vm].ended = None;
        for thread in 0..self.vms[vm].runners.len() {
            self.vms[vm].runners[thread].thread.workload.resume(self.now);
            self.plan(vm, thread);
        }
    }

    fn fail(&mut self, node: usize) {
        self.nodes[node].alive = false;
        let lost = self.changeable(node).lose();
        let mut finished = std::mem::take(&mut self.finished);
        lost.into_iter().for_each(|slot| self.nodes[node].complete_slot(self.now, slot, false, &mut finished));
        for vm in 0..self.vms.len() {
            let threads: Vec<_> = self.vms[vm].runners.iter().map(|runner| runner.owner).collect();
            if let Some((owner, _)) = self.vms[vm].route.at(node) {
                self.nodes[node].cancel(self.now, owner, &threads, &mut finished);
            }
        }
        finished.drain(..).for_each(|over| self.finish(node, &over));
        self.finished = finished;
    }
}
