//! CPU time of VMs on an uplink, in virtual time.

use sluice_sched::Percent;

use super::hostile::tcp6;
use super::*;
use crate::cpu::CpuTime;

const STEP: Duration = Duration::from_micros(250);
/// CPU time of a frame.
const FRAME: Duration = Duration::from_micros(20);

impl Lab {
    /// Lets the VMs send for a second on a thread that takes [`FRAME`] for each frame. Returns the CPU time of each VM, and
    /// the numbers of frames that arrived at each other NIC and at the uplink.
    fn run_on_cpu(&mut self, mut offer: impl FnMut(&[Far])) -> (Vec<CpuTime>, Vec<usize>) {
        let mut arrived = vec![0; self.nics.len() + 1];
        let mut cpu = Duration::ZERO;
        let end = self.now + Duration::from_secs(1);
        while self.now < end {
            offer(&self.nics);
            self.step(STEP);
            let places = self.nics.iter().chain([&self.far]);
            for (count, far) in arrived.iter_mut().zip(places) {
                let frames = far.all().len();
                *count += frames;
                cpu += FRAME * frames as u32;
            }
            let core = &mut self.state.actor.core;
            if core.base.cpu.end_of_iteration(self.now, STEP.as_nanos() as u64, true) {
                core.base.cpu.divide(self.now, cpu, &mut core.base.vms);
            }
        }
        let vms = self.state.snapshot().vms;
        let time = |number: usize| vms.iter().find(|vm| vm.vm == format!("vm{number}")).unwrap().cpu;
        ((1..=self.nics.len()).map(time).collect(), arrived)
    }

    pub(super) fn limit_cpu(&mut self, vm: &str, percent: u16) {
        let limit = Some(Percent::from_hundredths(percent * 100));
        self.state.actor.edit(self.now, vec![Edit::SetCpu { vm: vm.to_owned(), limit }]).unwrap();
    }
}

/// Sends `count` frames.
fn send(nic: &Far, number: u8, to: u8, count: u32) {
    let bytes = [&[0; HEADER_LEN][..], &frame(number, mac(to), 100)].concat();
    (0..count).for_each(|_| drop(nic.0.send(&bytes)));
}

#[test]
fn frames_to_a_neighbour_cost_no_part_of_the_wire_but_cpu_time() {
    let mut lab = Lab::new(None);
    (0..3).for_each(|_| lab.vm(Policy::default()));
    lab.limit_cpu("vm1", 10);
    let (time, arrived) = lab.run_on_cpu(|nics| {
        send(&nics[0], 1, 2, 10);
        send(&nics[2], 3, 200, 2);
    });
    let used = |vm: usize| time[vm].used_nanos as f64 / 1e9;
    assert!((0.095..0.105).contains(&used(0)), "vm1 used {}", used(0));
    assert!(time[0].held_nanos > 500_000_000, "it had frames all the time: {:?}", time[0]);
    assert_eq!(arrived[3], 8000, "each frame of the other sender reached the uplink");
    let all = (arrived.iter().sum::<usize>() * FRAME.as_micros() as usize) as f64 / 1e6;
    assert!((used(0) + used(1) + used(2) - all).abs() < 0.01, "all CPU time belongs to a VM: {time:?} of {all} s");
    assert_eq!((time[1].held_nanos, time[2].held_nanos), (0, 0));
}

#[test]
fn a_vm_that_receives_much_is_not_held_back_from_sending() {
    let mut lab = Lab::new(None);
    (0..2).for_each(|_| lab.vm(Policy::default()));
    lab.limit_cpu("vm2", 5);
    let (time, arrived) = lab.run_on_cpu(|nics| {
        send(&nics[0], 1, 2, 8);
        send(&nics[1], 2, 200, 1);
    });
    assert!(time[1].used_nanos > 100_000_000 && arrived[2] == 4000, "{time:?} {arrived:?}");
}

#[test]
fn a_higher_limit_is_in_force_at_once_and_a_restart_keeps_it() {
    let mut lab = Lab::new(None);
    lab.vm(Policy::default());
    lab.limit_cpu("vm1", 1);
    let flood = |nics: &[Far]| send(&nics[0], 1, 200, 10);
    let first = lab.run_on_cpu(flood).0[0].used_nanos;
    lab.limit_cpu("vm1", 50);
    let second = lab.run_on_cpu(flood).0[0].used_nanos - first;
    assert!(first < 12_000_000 && (470_000_000..530_000_000).contains(&second), "{first} {second}");
    let edits = lab.state.kept().edits;
    assert!(edits.iter().any(|edit| matches!(edit, Edit::SetCpu { limit: Some(_), .. })), "{edits:?}");
}

#[test]
fn a_segment_of_two_thousand_frames_cost_its_sender_as_much_cpu_time_as_one_frame() {
    let mut lab = Lab::new(None);
    (0..2).for_each(|_| lab.vm(Policy::default()));
    let (header, bytes) = tcp6(1, mac(200), 60_114, 30);
    lab.nics[0].send(header, &bytes);
    send(&lab.nics[1], 2, 200, 1);
    lab.step(STEP);
    assert_eq!(lab.far.all().len(), 2);
    let core = &mut lab.state.actor.core;
    assert!(core.base.cpu.end_of_iteration(lab.now, 1_000_000, true));
    core.base.cpu.divide(lab.now, Duration::from_millis(1), &mut core.base.vms);
    let used: Vec<u64> = core.base.vms.values_mut().map(|vm| vm.cpu.time().used_nanos).collect();
    assert!(used[0] > 100 * used[1], "{used:?}");
}
