//! Hosts and VMs of several rows.

use std::time::Duration;

use sluice_sim::random::stream;

use super::bench::{Bench, Device, Vm, vm};

/// A device that takes 16 ms for each request, twice what is stated.
pub(super) fn too_low() -> Bench {
    Bench::db(Device::Servers(32), 4, 8192)
}

/// Each host has VMs that reserve 300, 100 and 0. Each VM jumps every 5 +- 2 s between none, a quarter and all of its outstanding requests.
pub(super) fn moving(device: Device, seed: u64, seconds: u64) -> Bench {
    let mut random = stream(seed, "jumps");
    let mut vms = Vec::new();
    for host in 0..4 {
        for (reserved, outstanding) in [(300, 20), (100, 8), (0, 32)] {
            let (mut at, mut levels) = (0, Vec::new());
            while at < 1000 * seconds {
                let others: Vec<u32> = [0, 25, 100]
                    .into_iter()
                    .filter(|level| levels.last().map(|(_, last)| last) != Some(level))
                    .collect();
                levels.push((at, others[random.below(others.len() as u64) as usize]));
                at += 3000 + random.below(4001);
            }
            vms.push(Vm { levels, ..vm(host, reserved, outstanding) });
        }
    }
    Bench::new(device, 4, vms).seed(seed)
}

/// Each host has a light VM, and at 10 s a flood begins on all of them.
pub(super) fn flood(device: Device, hosts: usize) -> Bench {
    let light = |host| Vm { think: Duration::from_millis(5 * hosts as u64 / 2), ..vm(host, 0, 1) };
    let flood = |host| Vm { levels: vec![(10_000, 100)], ..vm(host, if host == 0 { 800 } else { 0 }, 32) };
    Bench::new(device, hosts, (0..hosts).map(flood).chain((0..hosts).map(light)).collect())
}

/// At 10 s the first host begins, beside hosts that do a little: each a request, and after it nothing for `think` milliseconds.
pub(super) fn begins(device: Device, hosts: usize, think: u64) -> Bench {
    let light = |host| Vm { think: Duration::from_millis(think), ..vm(host, 0, 1) };
    let first = Vm { levels: vec![(10_000, 100)], ..vm(0, 0, 32) };
    Bench::new(device, hosts, [first].into_iter().chain((1..hosts).map(light)).collect())
}
