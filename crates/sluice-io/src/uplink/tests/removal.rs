//! NICs that are removed while their VMM is connected, in every state of its session.

use super::*;

/// Changes a session into one of its states.
type Prepare = fn(&mut Lab, &mut Guest);

fn stop(lab: &mut Lab, guest: &Guest, index: u16) {
    let (reply, _stopped) = oneshot::channel();
    lab.change(guest, SessionChange::StopQueue { index, reply });
}

const STATES: [(&str, Prepare); 6] = [
    ("all rings run", |_, _| ()),
    ("both rings were stopped", |lab, guest| {
        [RECEIVE, TRANSMIT].into_iter().for_each(|index| stop(lab, guest, index));
        lab.step(MOMENT);
    }),
    ("a ring is about to stop", |lab, guest| stop(lab, guest, TRANSMIT)),
    ("frames are on the wire", |lab, guest| {
        (0..8).for_each(|slot| guest.send(slot, OffloadHeader::default(), &frame(1, mac(200), 1500)));
        lab.step(MOMENT);
    }),
    ("a ring is broken", |lab, guest| {
        guest.descriptor(RING, 0, (u64::MAX - 50, 100, 0, 0));
        guest.offer(TRANSMIT, std::iter::once(0));
        lab.step(MOMENT);
    }),
    ("the VMM has just left", |lab, guest| lab.change(guest, SessionChange::Close { reply: None })),
];

#[test]
fn a_nic_whose_vmm_had_no_running_ring_stopped_the_uplink_when_it_was_detached() {
    for (state, prepare) in STATES {
        for also_vm in [false, true] {
            let mut lab = Lab::new(Some(8192));
            lab.vm(Policy::default());
            let mut guest = lab.guest(2, all_features(), ENTRIES);
            lab.step(MOMENT);
            prepare(&mut lab, &mut guest);
            let (vm, volume) = ("vm2".to_owned(), "eth0".to_owned());
            let edit = if also_vm { Edit::RemoveVm { vm } } else { Edit::RemoveNic { vm, nic: volume } };
            lab.state.actor.edit(lab.now, vec![edit]).unwrap();
            for _ in 0..10 {
                lab.step(Duration::from_millis(200));
            }
            assert_eq!((lab.state.actor.core.nics.len(), lab.state.snapshot().connections), (1, 0), "{state}");
            lab.far.all();
            lab.nics[0].send(OffloadHeader::default(), &frame(1, mac(200), 60));
            lab.step(MOMENT);
            assert_eq!(lab.far.all(), [frame(1, mac(200), 60)], "the other NIC is served; {state}");
        }
    }
}

#[test]
fn a_nic_that_was_changed_and_removed_by_changes_of_which_a_later_one_failed_stopped_the_uplink() {
    let mut lab = Lab::new(Some(8192));
    lab.vm(Policy::default());
    let guest = lab.guest(2, all_features(), ENTRIES);
    // It stays until its frames have left the wire.
    (0..8).for_each(|slot| guest.send(slot, OffloadHeader::default(), &frame(2, mac(200), 1500)));
    lab.step(MOMENT);
    for vm in ["vm1", "vm2"] {
        let vm = vm.to_owned();
        let nic = Box::new(nic(9, NicPlug::VhostUser));
        let edits = vec![Edit::RemoveVm { vm: vm.clone() }, Edit::SetNic { vm, nic }];
        assert!(lab.state.actor.edit(lab.now, edits).is_err(), "the NIC is gone");
    }
    for _ in 0..10 {
        lab.far.send(OffloadHeader::default(), &frame(200, mac(2), 60));
        lab.step(Duration::from_millis(200));
    }
    assert_eq!(lab.state.actor.core.nics.len(), 0);
}
