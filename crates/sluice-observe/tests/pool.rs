//! Devices that share storage with other hosts: what is judged from all hosts, whose fault it is, and what keeps them from sharing.

use std::time::Duration;

use sluice_api::cause::Cause;
use sluice_api::event::{Event, EventKind, Phase};
use sluice_api::status::Verdict;
use sluice_observe::sample::PoolSample;
use sluice_pool::Aim;
use sluice_pool::block::Unreadable;
use sluice_pool::exchange::{Seen, State, Trouble};
use sluice_sched::{Cost, Iops, Policy};

use crate::common::{Observed, Setup, closed, iops, within};

/// Raw cost per second of normalised requests per second.
fn raw(iops: u64) -> u64 {
    iops * u64::from(Cost::ONE.raw())
}

fn reserving(rate: u64) -> Policy {
    Policy::default().reserving(rate)
}

fn seen(host: u8, rate: u64) -> Seen {
    let (age, latency) = (Duration::from_millis(500), 8_400_000);
    Seen { host, age, is_fresh: true, part: raw(rate), latency, rate: raw(rate) }
}

/// A pool of four hosts. The first is this one, and the third completes most.
fn pool(own: u64, others: [u64; 3]) -> State {
    let hosts = (1..).zip([own].into_iter().chain(others)).map(|(host, rate)| seen(host, rate));
    State {
        price: raw(2) as f64,
        window: raw(17),
        latency: Some(8_400_000),
        rate: raw(own + others.iter().sum::<u64>()),
        last_host: 4,
        hosts: hosts.collect(),
        troubles: Vec::new(),
        requests: 0,
        reserved: raw(0),
        unclaimed: None,
    }
}

/// A host that gets `gets` of a pool whose capacity is 2,000 iops, with `vms` that ask for all that they can get.
fn host(gets: u64, pool: State, vms: &[(&str, Policy)]) -> Observed {
    let setup = Setup::new("mclock", 32, iops(2000));
    let mut observed = Observed::exact(&setup, iops(gets));
    observed.simulation.set_aim(0, Aim::new(Iops::per_second(gets), Duration::from_millis(8)));
    for (name, policy) in vms {
        observed.add(name, *policy, closed(32, name));
    }
    let stated = PoolSample { meeting: "/dev/pool".to_owned(), host: 1, request_bytes: 8192 };
    observed.pool = Some((stated, pool));
    observed
}

impl Observed {
    fn set(&mut self, change: impl FnOnce(&mut State)) {
        change(&mut self.pool.as_mut().expect("it is in a pool").1);
    }

    /// Events of one kind about the device, as phase and text.
    fn about_device(&self, kind: EventKind) -> Vec<(Phase, String)> {
        let events = self.events.iter().filter(|event| event.kind == kind && event.vm.is_none());
        events.map(|event| (event.phase, event.in_words())).collect()
    }
}

#[test]
fn the_rate_of_one_host_was_taken_for_what_the_pool_gives() {
    let mut observed = host(660, pool(660, [400, 600, 340]), &[("a", Policy::default())]);
    observed.run(90);
    assert_eq!(observed.events, [] as [Event; 0]);
    let device = &observed.observer.status().devices[0];
    assert_eq!((device.capacity.verdict, device.capacity.measured_iops), (Verdict::Right, Some(2000.0)), "{device:?}");
    assert_eq!(device.problems, [] as [String; 0]);
}

#[test]
fn a_pool_that_gives_less_than_its_capacity() {
    let mut observed = host(300, pool(300, [400, 500, 300]), &[("a", reserving(1600))]);
    observed.set(|state| state.hosts[0].is_fresh = false);
    observed.run(30);
    assert_eq!(observed.about_device(EventKind::Capacity), [], "what the others complete is not known");
    observed.set(|state| state.hosts[0].is_fresh = true);
    observed.run(20);
    assert_eq!(observed.about_device(EventKind::Capacity), [], "a moment, for all that the hosts have found");
    observed.set(|state| state.troubles = vec![Trouble::GivesLess(raw(1500))]);
    observed.run(1);
    observed.set(|state| state.troubles.clear());
    observed.run(10);
    let says = "Device disk gives 1500 iops while it is full; its stated capacity is 2000 iops (all hosts of its pool together; latency = 8ms \
                bounds what is in flight; with a longer one it may give more)";
    assert_eq!(observed.about_device(EventKind::Capacity), [(Phase::Began, says.to_owned())]);
    let says = "Reservations of 1600 iops do not fit into the 1500 iops that device disk gives";
    assert_eq!(observed.about_device(EventKind::Overcommitted), [(Phase::Began, says.to_owned())]);
    observed.set(|state| *state = pool(300, [500, 800, 400]));
    observed.run(60);
    assert_eq!(observed.about_device(EventKind::Capacity)[1].0, Phase::Ended);
}

#[test]
fn what_other_hosts_refuse_is_told_until_it_is_claimed() {
    let mut observed = host(300, pool(300, [400, 500, 300]), &[("a", reserving(200))]);
    observed.set(|state| state.unclaimed = Some("host 2 (b) has 1900 iops".to_owned()));
    observed.run(5);
    let status = observed.observer.status();
    let pool = status.devices[0].pool.clone().unwrap();
    assert!(pool.troubles[0].contains("host 2 (b) has 1900 iops"), "{pool:?}");
    observed.set(|state| (state.unclaimed, state.reserved) = (None, raw(200)));
    observed.run(5);
    assert_eq!(observed.about_device(EventKind::Pool).last().map(|(phase, _)| *phase), Some(Phase::Ended));
    assert_eq!(observed.observer.status().devices[0].pool.as_ref().unwrap().reserved_iops, 200.0);
}

#[test]
fn a_host_without_queues_learns_from_the_others_that_the_pool_gives_less() {
    let mut observed = host(2000, pool(0, [500, 600, 400]), &[]);
    observed.run(20);
    assert_eq!(observed.about_device(EventKind::Capacity), []);
    observed.set(|state| state.troubles = vec![Trouble::GivesLess(raw(1500))]);
    observed.run(12);
    assert_eq!(observed.about_device(EventKind::Capacity).len(), 1);
}

#[test]
fn a_reservation_that_other_hosts_leave_no_room_for_names_the_one_with_most_device_time() {
    let mut observed = host(400, pool(400, [450, 800, 350]), &[("db", reserving(800)), ("b", Policy::default())]);
    let began = observed.expect("db", EventKind::Reservation, Cause::Pool, |observed| observed.stop(0));
    let says = "db got 392 iops of the 800 iops that it has reserved and asked for (host 3 uses most among the other hosts: 800 iops, 8.4 ms each, \
                40 % of the device time of all hosts; this host has 20 %); cause: other hosts of the pool";
    assert_eq!(began.in_words(), says);
}

#[test]
fn a_reservation_on_a_host_without_views_of_the_others() {
    let blind = |state: &mut State| {
        state.hosts[0].is_fresh = false;
        state.troubles = vec![Trouble::Away];
    };
    let mut observed = host(500, pool(500, [500; 3]), &[("db", reserving(800))]);
    observed.set(blind);
    let began = observed.expect("db", EventKind::Reservation, Cause::Pool, |observed| observed.stop(0));
    assert!(began.in_words().contains("does not see the others"), "{}", began.in_words());
}

#[test]
fn a_reservation_that_the_storage_of_a_pool_does_not_give_is_the_fault_of_the_storage() {
    let mut observed = host(400, pool(400, [400; 3]), &[("db", reserving(800))]);
    observed.expect("db", EventKind::Reservation, Cause::Device, |observed| observed.stop(0));
}

#[test]
fn neighbours_on_the_same_host_are_the_cause_if_other_hosts_use_little() {
    let mut observed = host(1900, pool(1900, [100, 0, 0]), &[("a", Policy::default()), ("b", Policy::default())]);
    observed.run(12);
    assert_eq!(observed.vm("a").held_by, Some(Cause::OthersWeight));
    observed.set(|state| *state = pool(500, [500; 3]));
    observed.run(12);
    let vm = observed.vm("a");
    assert_eq!(vm.held_by, Some(Cause::Pool));
    assert!(vm.held_by_detail.unwrap().starts_with("host "));
}

#[test]
fn requests_that_are_late_because_of_other_hosts() {
    let mut observed = host(400, pool(400, [450, 800, 350]), &[("a", within(20))]);
    observed.expect("a", EventKind::Latency, Cause::Pool, |observed| observed.stop(0));
}

#[test]
fn a_host_that_vanishes_and_comes_back_is_one_event_and_one_that_was_never_seen_is_none() {
    let mut observed = host(2000, pool(0, [500, 0, 0]), &[]);
    observed.set(|state| {
        state.hosts[3].is_fresh = false;
        state.hosts[3].age = Duration::from_secs(100);
    });
    observed.run(5);
    // A daemon that is restarted.
    for (millis, is_fresh) in [(2500, false), (4500, false), (500, true), (2500, false), (4900, false)] {
        observed.set(|state| (state.hosts[1].age, state.hosts[1].is_fresh) = (Duration::from_millis(millis), is_fresh));
        observed.run(1);
    }
    assert_eq!(observed.events, [] as [Event; 0]);
    observed.set(|state| state.hosts[1].age = Duration::from_secs(7));
    observed.run(30);
    let vanished = "Pool of device disk: host 2 has vanished: it does not write to /dev/pool any more, and the other hosts share its part; look at \
                    its daemon, or, if it is gone for good, forget it with `sluice pool forget /dev/pool --host 2`";
    assert_eq!(observed.about_device(EventKind::Pool), [(Phase::Began, vanished.to_owned())]);
    let device = &observed.observer.status().devices[0];
    assert!(device.problems[0].starts_with("has a problem in its pool for 29 s: host 2 has vanished"), "{device:?}");
    assert_eq!(observed.observer.reading().devices[0].pool_troubles, Some(1));
    let pool = device.pool.as_ref().unwrap();
    assert_eq!((pool.troubles.len(), pool.hosts[1].age_ms, pool.hosts[1].is_fresh), (1, 7000, false));
    observed.set(|state| (state.hosts[1].age, state.hosts[1].is_fresh) = (Duration::ZERO, true));
    observed.run(5);
    assert!(observed.about_device(EventKind::Pool)[1].1.starts_with("Over after "), "{:?}", observed.events);
    assert_eq!(observed.events.len(), 2);
}

#[test]
fn hosts_do_not_vanish_while_this_one_cannot_read_what_they_write() {
    let mut observed = host(2000, pool(0, [500, 0, 0]), &[]);
    observed.run(3);
    observed.set(|state| {
        state.troubles = vec![Trouble::Away];
        state.hosts.iter_mut().for_each(|host| (host.age, host.is_fresh) = (Duration::from_secs(60), false));
    });
    observed.run(60);
    let events = observed.about_device(EventKind::Pool);
    assert_eq!(events.len(), 1, "{events:?}");
    assert!(
        events[0].1.starts_with("Pool of device disk: /dev/pool, where its hosts meet, cannot be read and written")
    );
    let pool = observed.observer.status().devices[0].pool.clone().unwrap();
    assert_eq!((pool.price_iops, pool.part_iops, pool.iops), (None, None, None));
    observed.set(|state| *state = self::pool(0, [500, 0, 0]));
    observed.run(4);
    let phases: Vec<Phase> = observed.events.iter().map(|event| event.phase).collect();
    assert_eq!(phases, [Phase::Began, Phase::Ended]);
}

#[test]
fn what_keeps_hosts_from_sharing_is_said_once_with_its_remedy() {
    for (trouble, says) in [
        (
            Trouble::SameNumber,
            "another daemon has number 1 too, so neither sees the others; give each host a `host` of its own",
        ),
        (Trouble::NoBlock(4), "the pool at /dev/pool has 4 hosts; state another `host`"),
        (Trouble::OtherPool, "/dev/pool has another pool than before"),
        (
            Trouble::Header(Unreadable::Foreign),
            "the header at /dev/pool is not a block of this pool; look at it with `sluice pool status /dev/pool`",
        ),
        (Trouble::Block(3, Unreadable::Torn), "the block of host 3 at /dev/pool was written in part"),
        (
            Trouble::Block(3, Unreadable::Version(2)),
            "has version 2, and this program knows 1; run the same version on all hosts",
        ),
        (
            Trouble::Capacity(3_000_000, 4096),
            "the host file states a capacity of 2000 iops@8KiB, and the pool has 3000 iops@4KiB; the smaller one holds. State that of the pool, or \
             change it with `sluice pool create /dev/pool --hosts 4 --capacity '2000 iops@8KiB' --keep`",
        ),
    ] {
        let mut observed = host(2000, pool(0, [500, 0, 0]), &[]);
        observed.run(3);
        observed.set(|state| state.troubles = vec![trouble]);
        observed.run(1);
        observed.set(|state| state.troubles.clear());
        observed.run(3);
        assert_eq!(observed.events, [] as [Event; 0], "one sample is no evidence of {trouble:?}");
        observed.set(|state| state.troubles = vec![trouble]);
        observed.run(20);
        observed.set(|state| state.troubles.clear());
        observed.run(5);
        let events = observed.about_device(EventKind::Pool);
        assert!(events[0].1.contains(says), "{events:?}");
        assert_eq!(events.iter().map(|(phase, _)| *phase).collect::<Vec<_>>(), [Phase::Began, Phase::Ended]);
    }
}

#[test]
fn a_latency_below_what_the_pool_takes_for_one_request() {
    let mut observed = host(600, pool(600, [200, 0, 0]), &[("a", Policy::default())]);
    observed.set(|state| state.troubles = vec![Trouble::TooLow(16_000_000), Trouble::GivesLess(raw(800))]);
    observed.run(30);
    let events = observed.about_device(EventKind::LatencyTooLow);
    assert!(events.len() == 1 && events[0].1.contains("latency = 8ms is below the 16 ms"), "{events:?}");
    assert_eq!(observed.events.len(), 1, "it gives less because of that: {:?}", observed.events);
    assert_eq!(observed.observer.status().devices[0].window.unwrap().own_time_us, Some(16_000));
}
