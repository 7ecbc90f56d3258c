//! The rate in a policy is enforced in its unit, or rejected.

use crate::common::*;
use sluice_sched::gate::GateSettings;
use sluice_sched::policy::Field;
use sluice_sched::scheduler::{ChangeError, DeviceInfo};
use sluice_sched::*;

/// A unit of a rate; requests of these tests have 8 KiB and cost 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unit {
    Requests,
    Bytes,
}

const UNITS: [Unit; 2] = [Unit::Requests, Unit::Bytes];

/// `iops` requests per second as a rate of this unit.
fn rate(unit: Unit, iops: u64) -> (Option<Iops>, Option<ByteRate>) {
    match unit {
        Unit::Requests => (Some(Iops::per_second(iops)), None),
        Unit::Bytes => (None, Some(ByteRate::per_second(iops * 8192))),
    }
}

fn limited(unit: Unit, rate_iops: u64) -> Policy {
    let (iops, bytes) = rate(unit, rate_iops);
    Policy { limit: Limit { iops, bytes }, ..Policy::default() }
}

fn reserving(unit: Unit, rate_iops: u64) -> Policy {
    let (iops, bytes) = rate(unit, rate_iops);
    Policy { reservation: Reservation { iops, bytes }, ..Policy::weighted(1) }
}

/// Requests per second of two VMs that always have requests, on a device of 1000; or why a policy is rejected.
fn rates(subject: &Subject, policies: [Policy; 2]) -> Result<[f64; 2], ChangeError> {
    let info = DeviceInfo { depth: 4, ..DeviceInfo::default() };
    let settings = GateSettings { depth: 4, cost: CostModel::per_request(), ..GateSettings::default() };
    // As it is, not as the other tests wrap it.
    let scheduler = subject.descriptor.build(&info, &subject.params).expect("valid parameters");
    let mut world = World::new(scheduler, settings, Stub::serial(MILLI));
    let mut vms = Vec::new();
    for policy in policies {
        let vm = world.gate.add_owner(world.now, policy)?;
        world.volume(vm, Policy::default());
        world.stream(vm, Pattern::Closed(32));
        vms.push(vm);
    }
    world.run_until(secs(11));
    let rates = world.rates(&vms, secs(1), secs(11));
    Ok([rates[0], rates[1]])
}

// rule: gate.units
#[test]
fn a_limit_in_requests_was_ignored_by_schedulers_that_count_bytes() {
    let mut refused = Vec::new();
    for subject in subjects() {
        if !subject.descriptor.enforces_with(Field::Limit, &subject.params) {
            continue;
        }
        for unit in UNITS {
            match rates(&subject, [limited(unit, 100), Policy::default()]) {
                Ok(rates) => assert!(rates[0] <= 105.0, "{} {unit:?}: {rates:?}", subject.label()),
                Err(error) => refused.push(format!("{error}")),
            }
        }
    }
    let text = |name: &str| {
        format!(
            "{name} supports a limit only in bytes per second, but this one is 100 iops; state it in bytes per second"
        )
    };
    assert_eq!(refused, ["netback", "wrr", "wrr"].map(text));
}

// rule: gate.units
#[test]
fn a_reservation_is_enforced_in_its_unit_or_rejected() {
    let (mut kept, mut refused) = (0, Vec::new());
    for subject in subjects() {
        if !subject.descriptor.enforces_with(Field::Reservation, &subject.params) {
            continue;
        }
        for unit in UNITS {
            // Flubber uses proportions, so the other VM also states something.
            let run = |iops| {
                rates(&subject, [reserving(unit, iops), Policy { weight: Some(Weight::new(9)), ..reserving(unit, 50) }])
            };
            match (run(100), run(500)) {
                (Ok(less), Ok(more)) => {
                    kept += 1;
                    let what = format!("{} {unit:?}: {less:?}, {more:?}", subject.label());
                    assert!(less[0] >= 99.0 && more[0] >= 495.0, "{what}");
                }
                (Err(error), _) => refused.push(error),
                (_, Err(error)) => panic!("{error}"),
            }
        }
    }
    assert!(kept >= 9, "{kept}");
    let of_wrr = |error: &ChangeError| matches!(error, ChangeError::CountsBytes { scheduler: "wrr", .. });
    assert!(refused.len() == 2 && refused.iter().all(of_wrr), "{refused:?}");
}

// rule: gate.units
#[test]
fn a_refused_unit_changes_nothing() {
    for name in ["wrr", "netback"] {
        let subject = Subject::of(name);
        let info = DeviceInfo { depth: 4, ..DeviceInfo::default() };
        let settings = GateSettings { depth: 4, ..GateSettings::default() };
        let scheduler = subject.descriptor.build(&info, &subject.params).expect("valid parameters");
        let mut world = World::new(scheduler, settings, Stub::serial(MILLI));
        let vm = world.busy(limited(Unit::Bytes, 100), Pattern::Closed(32));
        world.run_until(secs(1));
        assert!(world.gate.set_owner(world.now, vm, limited(Unit::Requests, 500)).is_err());
        assert_eq!(world.gate.policy(vm), Some(&limited(Unit::Bytes, 100)));
        world.run_until(secs(11));
        let rate = world.rates(&[vm], secs(1), secs(11))[0];
        assert!((90.0..=101.0).contains(&rate), "{name}: {rate}");
        // A gate with such a policy cannot change to this scheduler.
        let mut other = World::simple(&product(), 4, 1000);
        let vm = other.busy(limited(Unit::Requests, 100), Pattern::Closed(32));
        let scheduler = subject.descriptor.build(&info, &subject.params).expect("valid parameters");
        let refused = other.gate.replace_scheduler(other.now, scheduler, false);
        assert!(matches!(refused, Err(ChangeError::CountsBytes { .. })), "{refused:?}");
        other.run_until(secs(2));
        assert!(other.count(vm, secs(1), secs(2)) <= 105);
    }
}
