use super::*;
use crate::scheduler::Facts;
use crate::schedulers;

struct Log(Vec<Submission>);

impl Device for Log {
    fn submit(&mut self, _now: Instant, submission: &Submission) {
        self.0.push(*submission);
    }
}

fn gate(name: &str, depth: u32) -> Gate {
    let build = schedulers::find(name).unwrap().build;
    let scheduler = build(&Facts::default(), &Default::default()).unwrap();
    Gate::new(scheduler, GateSettings { depth, ..GateSettings::default() })
}

fn arrival(owner: OwnerId, volume: VolumeId, kind: Kind, length: u32, token: u32) -> Arrival {
    Arrival { owner, volume, kind, flags: Flags::NONE, offset: 4096, length, token, elsewhere: None }
}

#[test]
fn a_large_request_is_split_and_completed_once() {
    for name in ["noop", "mclock"] {
        let (mut gate, mut log, now) = (gate(name, 8), Log(Vec::new()), Instant::ZERO);
        let owner = gate.add_owner(now, Policy::default()).unwrap();
        let volume = gate.add_volume(now, owner, Policy::default()).unwrap();
        gate.insert(now, &arrival(owner, volume, Kind::Write, 600 << 10, 7)).unwrap();
        assert_eq!(gate.queued(), 3);
        assert_eq!(gate.pump(now, &mut log), None);
        let parts: Vec<_> = log.0.iter().map(|s| (s.token, s.skip, s.request.length)).collect();
        assert_eq!(parts, [(7, 0, 256 << 10), (7, 256 << 10, 256 << 10), (7, 512 << 10, 88 << 10)]);
        assert_eq!(gate.complete(now, log.0[2].slot, true), None);
        assert_eq!(gate.complete(now, log.0[0].slot, false), None);
        let finished = gate.complete(now, log.0[1].slot, true).unwrap();
        assert_eq!((finished.token, finished.outcome), (7, Outcome::Failed));
        assert_eq!(gate.account(owner).unwrap().arrived, 1);
    }
}

#[test]
fn an_owner_that_leaves_returns_what_waits_and_keeps_its_number_while_in_flight() {
    for name in ["noop", "mclock"] {
        let (mut gate, mut log, now) = (gate(name, 1), Log(Vec::new()), Instant::ZERO);
        let owner = gate.add_owner(now, Policy::default()).unwrap();
        let volume = gate.add_volume(now, owner, Policy::default()).unwrap();
        for token in 0..3 {
            gate.insert(now, &arrival(owner, volume, Kind::Read, 4096, token)).unwrap();
        }
        let _ = gate.pump(now, &mut log);
        let mut finished = Vec::new();
        gate.remove_owner(now, owner, &mut finished).unwrap();
        let cancelled: Vec<_> = finished.iter().map(|f| (f.token, f.outcome)).collect();
        assert_eq!(cancelled, [(1, Outcome::Cancelled), (2, Outcome::Cancelled)]);
        assert_eq!(gate.add_owner(now, Policy::default()).unwrap(), OwnerId(1));
        assert_eq!(gate.complete(now, log.0[0].slot, true).unwrap().token, 0);
        assert_eq!(gate.add_owner(now, Policy::default()).unwrap(), owner);
        assert_eq!(
            gate.insert(now, &arrival(owner, volume, Kind::Read, 4096, 9)),
            Err(Refused::Unknown(owner, volume))
        );
    }
}

#[test]
fn a_full_queue_is_refused_and_changes_nothing() {
    let now = Instant::ZERO;
    let build = schedulers::find("mclock").unwrap().build;
    let scheduler = build(&Facts::default(), &Default::default()).unwrap();
    let mut gate = Gate::new(scheduler, GateSettings { queue_max: 2, ..GateSettings::default() });
    let owner = gate.add_owner(now, Policy::default()).unwrap();
    let volume = gate.add_volume(now, owner, Policy::default()).unwrap();
    let read = |token| arrival(owner, volume, Kind::Read, 4096, token);
    gate.insert(now, &read(0)).unwrap();
    gate.insert(now, &read(1)).unwrap();
    let before = gate.inspect(now);
    assert_eq!(gate.insert(now, &read(2)), Err(Refused::Full(owner)));
    assert_eq!(gate.inspect(now), before);
}

#[test]
#[should_panic(expected = "exactly once")]
fn a_second_completion_is_a_defect() {
    let (mut gate, mut log, now) = (gate("noop", 1), Log(Vec::new()), Instant::ZERO);
    let owner = gate.add_owner(now, Policy::default()).unwrap();
    let volume = gate.add_volume(now, owner, Policy::default()).unwrap();
    gate.insert(now, &arrival(owner, volume, Kind::Flush, 0, 0)).unwrap();
    let _ = gate.pump(now, &mut log);
    let _ = gate.complete(now, Slot(0), true);
    let _ = gate.complete(now, Slot(0), true);
}
