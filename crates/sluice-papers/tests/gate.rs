//! The gate with schedulers that reject a policy or idle.

use sluice_sched::gate::Submission;
use sluice_sched::scheduler::{ChangeError, DeviceInfo};
use sluice_sched::*;

struct Log(Vec<Submission>);

impl Device for Log {
    fn submit(&mut self, _now: Instant, submission: &Submission) {
        self.0.push(*submission);
    }
}

fn gate(name: &str, depth: u32) -> Gate {
    let build = sluice_papers::find(name).unwrap().build;
    let scheduler = build(&DeviceInfo::default(), &Default::default()).unwrap();
    Gate::new(scheduler, GateSettings { depth, ..GateSettings::default() })
}

fn arrival(owner: OwnerId, volume: VolumeId, kind: Kind, length: u32, token: u32) -> Arrival {
    Arrival { owner, volume, kind, flags: Flags::NONE, offset: 4096, length, token, remote: None }
}

#[test]
fn a_refused_policy_of_a_volume_leaves_the_policies_of_its_owner_as_they_were() {
    let (mut gate, now) = (gate("netback", 8), Instant::ZERO);
    let limited = |kib: u64| {
        let limit = Limit { iops: None, bytes: Some(ByteRate::per_second(kib << 10)) };
        Policy { limit, ..Policy::default() }
    };
    let owner = gate.add_owner(now, limited(1)).unwrap();
    let volumes = [(); 2].map(|()| gate.add_volume(now, owner, Policy::default()).unwrap());
    let inner = [(volumes[0], limited(3)), (volumes[1], Policy::default().limited(5))];
    assert!(matches!(gate.set_policies(now, owner, limited(2), &inner), Err(ChangeError::CountsBytes { .. })));
    assert_eq!(gate.policy(owner), Some(&limited(1)));
    // 1 KiB/s are 51 bytes per window of 50 ms, 2 KiB/s are 102. The rest of the first window and a whole new one are
    // dispatched.
    let later = now + core::time::Duration::from_secs(1);
    for token in 0..4 {
        gate.insert(later, &arrival(owner, volumes[0], Kind::Read, 51, token)).unwrap();
    }
    let mut log = Log(Vec::new());
    let _ = gate.pump(later, &mut log);
    assert_eq!((log.0.len(), gate.queued()), (2, 2));
}

#[test]
fn a_request_that_an_idle_slot_did_not_serve_waited_for_anticipation() {
    let (mut gate, mut log) = (gate("anticipatory", 1), Log(Vec::new()));
    let owners = [0, 1].map(|_| {
        let owner = gate.add_owner(Instant::ZERO, Policy::default()).unwrap();
        (owner, gate.add_volume(Instant::ZERO, owner, Policy::default()).unwrap())
    });
    let read = |(owner, volume), page: u64| Arrival {
        offset: page * 4096,
        flags: Flags::SYNC,
        ..arrival(owner, volume, Kind::Read, 4096, 0)
    };
    let (mut finished, mut held) = (Vec::new(), None);
    for page in 1..=20 {
        let at = Instant::from_millis(page);
        gate.insert(at, &read(owners[0], page)).unwrap();
        let _ = gate.pump(at, &mut log);
        if page == 20 {
            gate.insert(at, &read(owners[1], 1_000_000)).unwrap();
        }
        gate.complete_all(at, log.0.last().unwrap().slot, true, &mut finished);
        held = gate.pump(at, &mut log);
    }
    let wake = held.expect("it waits for the next read of the first VM");
    assert_eq!(gate.queued(), 1);
    let _ = gate.pump(wake, &mut log);
    assert_eq!(gate.stats(owners[1].0).unwrap().waited_for(Wait::Anticipation), 1);
}
