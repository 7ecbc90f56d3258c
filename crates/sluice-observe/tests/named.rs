//! A table of constructed causes, each with the name that the observer has to give: for what is said without a violation, and for
//! the promise that is broken, if one is.

use std::time::Duration;

use crate::common::{Observed, Setup, at, closed, iops, sequential, thinking, within};
use sluice_api::cause::Cause;
use sluice_observe::sample::CpuSample;
use sluice_sched::policy::Limit;
use sluice_sched::{ByteRate, Percent, Policy};
use sluice_sim::devices::servers::{Servers, ServiceTime};
use sluice_sim::devices::speed::Speed;
use sluice_sim::engine::Change;
use sluice_sim::random::stream;
use sluice_sim::workloads::Workload;

/// Seconds after which the cause must be known.
const SECONDS: u64 = 12;

/// A constructed cause, of which VM `a` has to be told.
struct Case {
    name: &'static str,
    make: fn() -> Observed,
    cause: Cause,
    /// Whether a promise to `a` is broken by it.
    breaks: bool,
}

const fn case(name: &'static str, cause: Cause, breaks: bool, make: fn() -> Observed) -> Case {
    Case { name, make, cause, breaks }
}

fn mclock(rate: u64) -> Setup {
    Setup::new("mclock", 8, iops(rate))
}

/// VMs on a device that gives exactly what is stated.
fn exact(rate: u64, vms: Vec<(&str, Policy, Box<dyn Workload>)>) -> Observed {
    with(Observed::exact(&mclock(rate), iops(rate)), vms)
}

fn with(mut observed: Observed, vms: Vec<(&str, Policy, Box<dyn Workload>)>) -> Observed {
    for (name, policy, workload) in vms {
        observed.add(name, policy, workload);
    }
    observed
}

fn reserving(rate: u64) -> Policy {
    Policy::default().reserving(rate)
}

/// A device that completes 32 requests together, 16 ms after it has got them: 2,000 per second.
fn in_rounds(vms: Vec<(&str, Policy, Box<dyn Workload>)>) -> Observed {
    let model = Servers::new(32, ServiceTime::Fixed(Duration::from_millis(16)), stream(1, "service"));
    with(Observed::new(&Setup::new("mclock", 32, iops(2000)), Box::new(model)), vms)
}

/// A guest that sends its next requests a moment after the replies.
fn guest(outstanding: u32, name: &str) -> Box<dyn Workload> {
    thinking(outstanding, Duration::from_micros(200), name)
}

fn batches() -> Observed {
    let setup = Setup { params: &[("batch", "128")], rotational: true, ..Setup::new("mclock", 1, iops(1000)) };
    with(
        Observed::exact(&setup, iops(1000)),
        vec![
            ("a", within(40), thinking(1, Duration::from_millis(30), "a")),
            ("b", Policy::default(), sequential(200, Duration::ZERO, "b")),
        ],
    )
}

fn held_by_cpu() -> Observed {
    let mut observed = exact(10_000, vec![("a", within(1), closed(16, "a"))]);
    for second in 1..=SECONDS {
        let limit = Some(Percent::from_hundredths(1000));
        observed.cpu = vec![CpuSample { used_nanos: second * 100_000_000, held_nanos: second * 800_000_000, limit }];
        observed.run(1);
    }
    observed
}

const CASES: [Case; 19] = [
    case("limit of the VM", Cause::OwnLimit, true, || {
        exact(10_000, vec![("a", within(10).limited(100), closed(32, "a")), ("b", Policy::default(), closed(1, "b"))])
    }),
    case("a reservation as large as the limit, beside a neighbour of a large weight", Cause::OwnLimit, false, || {
        let (a, b) = (reserving(900).limited(900), Policy::weighted(1000));
        exact(2000, vec![("a", a, closed(32, "a")), ("b", b, closed(64, "b"))])
    }),
    case("limit of the volume", Cause::OwnLimit, true, || {
        let mut observed = exact(10_000, vec![("a", reserving(500), closed(32, "a"))]);
        let (owner, volume) = observed.simulation.owner(0, 0).unwrap();
        let now = observed.simulation.now();
        observed.simulation.gate_mut(0).set_volume(now, owner, volume, Policy::default().limited(200)).unwrap();
        observed
    }),
    case("limit of reads", Cause::OwnLimit, true, || {
        let read_limit = Limit { iops: Some(sluice_sched::Iops::per_second(100)), bytes: None };
        exact(10_000, vec![("a", Policy { read_limit, ..within(10) }, closed(32, "a"))])
    }),
    case("limit in bytes", Cause::OwnLimit, true, || {
        let limit = Limit { iops: None, bytes: Some(ByteRate::per_second(1 << 20)) };
        exact(10_000, vec![("a", Policy { limit, burst: Some(8), ..reserving(500) }, closed(32, "a"))])
    }),
    case("limit of CPU time", Cause::OwnCpuLimit, true, held_by_cpu),
    case("reservations of others", Cause::OthersReservation, true, || {
        exact(1000, vec![("a", within(30), closed(4, "a")), ("b", reserving(900), closed(64, "b"))])
    }),
    case("reservations that were never admitted together", Cause::OthersReservation, true, || {
        exact(1000, vec![("a", reserving(500), closed(32, "a")), ("b", reserving(900), closed(32, "b"))])
    }),
    case("weights of others", Cause::OthersWeight, true, || {
        exact(1000, vec![("a", within(30), closed(4, "a")), ("b", Policy::weighted(2000), closed(64, "b"))])
    }),
    case("weights of others, beside its own reservation and another one", Cause::OthersWeight, false, || {
        let others = [("b", reserving(500)), ("c", Policy::default())];
        let mut vms = vec![("a", reserving(350), closed(32, "a"))];
        vms.extend(others.map(|(name, policy)| (name, policy, closed(64, name))));
        exact(1000, vms)
    }),
    case("a device that gives less than is stated", Cause::Device, true, || {
        let mut observed =
            exact(1000, vec![("a", reserving(450), closed(32, "a")), ("b", reserving(450), closed(32, "b"))]);
        observed.simulation.plan_change(at(0), Change::Speed(0, Speed::Slower(2.0)));
        observed
    }),
    case("a device that stalls", Cause::Device, true, || {
        let mut observed = exact(1000, vec![("a", reserving(450), closed(32, "a"))]);
        observed.simulation.plan_change(at(5), Change::Speed(0, Speed::Stalled));
        observed
    }),
    case("a device thread without CPU time", Cause::DaemonCpu, true, || {
        let mut observed = Observed::exact(&mclock(10_000), iops(300));
        observed.worked = 1.0;
        with(observed, vec![("a", reserving(2000), closed(64, "a"))])
    }),
    case("batches on a rotational device", Cause::Batch, true, batches),
    case("too few requests outstanding", Cause::OwnQueue, false, || {
        let model = Servers::new(16, ServiceTime::Fixed(Duration::from_millis(2)), stream(1, "service"));
        with(
            Observed::new(&Setup::new("mclock", 16, iops(8000)), Box::new(model)),
            vec![("a", reserving(2000), closed(1, "a")), ("b", Policy::default(), closed(12, "b"))],
        )
    }),
    case("more requests than the device takes within the target", Cause::OwnQueue, true, || {
        exact(1000, vec![("a", within(20), closed(64, "a")), ("b", Policy::default(), closed(16, "b"))])
    }),
    case("lock step: a reservation that needs more outstanding", Cause::OwnQueue, true, || {
        in_rounds(vec![
            ("a", reserving(700), guest(16, "a")),
            ("db", reserving(800), guest(32, "db")),
            ("batch", Policy::default(), guest(64, "batch")),
        ])
    }),
    case("lock step: a share that needs more outstanding", Cause::OwnQueue, false, || {
        in_rounds(vec![("a", Policy::default(), guest(12, "a")), ("b", Policy::default(), guest(64, "b"))])
    }),
    case(
        "lock step: all its requests in every second round, beside one that fills the device",
        Cause::OwnQueue,
        false,
        || in_rounds(vec![("a", reserving(700), guest(16, "a")), ("db", reserving(800), guest(64, "db"))]),
    ),
];

#[test]
fn each_of_nineteen_constructed_causes_is_named() {
    for Case { name, make, cause, breaks } in CASES {
        let mut observed = make();
        observed.run(SECONDS - observed.second);
        let vm = observed.vm("a");
        let broken: Vec<_> = vm.promises.iter().filter_map(|promise| promise.cause).collect();
        assert_eq!(!broken.is_empty(), breaks, "{name}: {vm:#?}");
        assert!(broken.iter().all(|broken| *broken == cause), "{name}: {broken:?}, {:#?} {vm:#?}", observed.events);
        // A target of latency may be missed by a VM that gets all it asks for.
        if vm.policy.latency_p99_us.is_none() {
            assert_eq!(vm.held_by, Some(cause), "{name}: {vm:#?}");
        }
    }
}

#[test]
fn neighbours_of_a_vm_in_lock_step_were_said_to_hold_it_by_their_reservations() {
    let mut observed = in_rounds(vec![
        ("batch", Policy::default(), guest(64, "batch")),
        ("db", reserving(800), guest(32, "db")),
        ("web", reserving(700), guest(16, "web")),
    ]);
    observed.run(20);
    let began =
        observed.events.iter().find(|event| event.vm.as_deref() == Some("web")).expect("it misses its reservation");
    assert_eq!(began.cause, Cause::OwnQueue, "{began:?}");
    let detail = began.detail.as_deref().unwrap();
    assert!(detail.starts_with("16.1 requests outstanding on average, each for 31.8 ms"), "{detail}");
    assert!(detail.contains("; 700 iops need 22.4;") && detail.contains("its queue was empty"), "{detail}");
    assert_eq!(observed.vm("web").held_by_detail.map(|detail| detail.contains("700 iops need 22.")), Some(true));
    // One that is served by weight alone, below what the others have reserved.
    assert_eq!(observed.vm("batch").held_by, Some(Cause::OthersReservation));
    assert_eq!(observed.vm("db").held_by, Some(Cause::OthersWeight), "it has its reservation, and batch gets the rest");
}
