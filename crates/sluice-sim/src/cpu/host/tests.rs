//! Items, classes, CPU-bound guests, and the sums.

use super::*;

const MS: u64 = 1_000_000;

fn at(millis: u64) -> Instant {
    Instant::from_millis(millis)
}

fn host(cpus: usize) -> Host<u32> {
    Host::new(Params::XEN_4_0, cpus)
}

/// Items that complete by `now`, as milliseconds and tags.
fn done(host: &mut Host<u32>, now: Instant) -> Vec<(f64, u32)> {
    let mut done = Vec::new();
    host.advance(now, &mut done);
    done.iter().map(|done| (done.at.as_nanos() as f64 / 1e6, done.tag)).collect()
}

#[test]
fn items_are_served_in_order_with_idle_time_between() {
    let mut host = host(1);
    let domain = host.add_domain(256, 0);
    let vcpu = host.add_vcpu(domain, 1);
    host.submit(at(1), vcpu, Class::Net, 2 * MS, 7);
    host.submit(at(2), vcpu, Class::Net, MS, 8);
    assert_eq!(host.next(), Some(at(3)));
    assert_eq!(done(&mut host, at(20)), [(3.0, 7), (4.0, 8)]);
    host.submit(at(20), vcpu, Class::Net, 0, 9);
    assert_eq!(done(&mut host, at(20)), [(20.0, 9)], "an item of 0 ns completes immediately");
    host.submit(at(25), vcpu, Class::Net, MS, 10);
    assert_eq!(done(&mut host, at(40)), [(26.0, 10)]);
    assert_eq!((host.used_nanos(vcpu), host.busy_nanos()), (4 * MS, 4 * MS));
}

// rule: credit1.driver-domain
#[test]
fn the_classes_of_a_driver_domain_are_served_in_turn() {
    let mut host = host(1);
    let domain = host.add_domain(256, 0);
    let vcpu = host.add_vcpu(domain, 1);
    for tag in 0..3 {
        host.submit(at(0), vcpu, Class::Net, MS, tag);
        host.submit(at(0), vcpu, Class::Block, 3 * MS, 10 + tag);
    }
    let order: Vec<u32> = done(&mut host, at(100)).into_iter().map(|(_, tag)| tag).collect();
    assert_eq!(order, [0, 10, 1, 11, 2, 12]);
}

// rule: credit1.driver-domain
#[test]
fn work_for_a_guest_is_charged_to_the_driver_domain() {
    let mut host = host(1);
    let (driver, guest) = (host.add_domain(256, 0), host.add_domain(256, 0));
    let (driver, guest) = (host.add_vcpu(driver, 1), host.add_vcpu(guest, 1));
    for packet in 0..1000 {
        let now = Instant::from_nanos(u64::from(packet) * MS);
        done(&mut host, now);
        host.submit(now, guest, Class::Net, MS / 10, packet);
        host.submit(now, driver, Class::Net, 6 * MS / 10, packet);
    }
    done(&mut host, at(1000));
    // The guest has caused 70 % of a CPU and been charged for 10 %.
    assert_eq!((host.used_nanos(guest), host.used_nanos(driver)), (100 * MS, 600 * MS));
}

// rule: credit1.work-conserving
#[test]
fn cpu_time_is_used_exactly_once_under_load() {
    for cpus in [1, 2, 3] {
        let mut host = host(cpus);
        let all = (1 << cpus) - 1;
        let vcpus: Vec<VcpuId> = [256, 512, 128, 256, 1024]
            .iter()
            .map(|weight| {
                let domain = host.add_domain(*weight, 0);
                host.add_vcpu(domain, all)
            })
            .collect();
        vcpus.iter().for_each(|vcpu| host.set_busy(at(0), *vcpu, true));
        // Items are served before the guest's own work.
        let mut items = 0;
        for round in 0..300u64 {
            host.submit(at(round * 10), vcpus[round as usize % 5], Class::Net, 3 * MS, 0);
            items += done(&mut host, at(round * 10 + 10)).len();
        }
        assert_eq!(host.busy_nanos(), cpus as u64 * 3000 * MS);
        let most = vcpus.iter().map(|vcpu| host.used_nanos(*vcpu)).max().unwrap();
        assert!(most <= 3000 * MS, "no vcpu runs on two CPUs");
        assert!(items >= 270, "{items}");
    }
}

#[test]
fn a_guest_without_work_releases_the_cpu() {
    let mut host = host(1);
    let vcpus = [0, 1].map(|_| {
        let domain = host.add_domain(256, 0);
        host.add_vcpu(domain, 1)
    });
    host.set_busy(at(0), vcpus[0], true);
    done(&mut host, at(5));
    host.set_busy(at(5), vcpus[0], false);
    host.submit(at(6), vcpus[1], Class::Net, MS, 1);
    assert_eq!(done(&mut host, at(50)), [(7.0, 1)]);
    assert_eq!(host.used_nanos(vcpus[0]), 5 * MS);
    assert_eq!(host.scheduler().running(0), None);
}
