//! Disk and NIC of the same VMs busy at once: each VM gets of both what it gets of each alone. Xen's network lost throughput when other
//! VMs used disks (\[netback\] figure 8), because one CPU of the driver domain served both.

use std::time::Instant;

use crate::common::reads::while_reading;
use crate::common::stations::{Lab, Uplink};
use crate::common::{Place, until};
use sluice_client::net::traffic::{Sender, Sink};

/// Outstanding requests of a VM.
const OUTSTANDING: u16 = 32;
/// Requests of a window: about 2 s at 4,000 requests per second.
const REQUESTS: u64 = 8000;
/// Bytes of a window: about 2 s at 100 Mbit/s.
const BYTES: u64 = 24_000_000;
/// A busy machine makes an attempt fail; a daemon whose loops starve each other makes all of them fail.
const ATTEMPTS: usize = 4;

/// A device of 4,000 requests per second, on which two VMs have volumes with weights 1 to 3. Requests wait inside it, so that it stays busy
/// when this machine wakes the daemon late: at a depth of 4 each wake-up that is 50 µs late would take 5 % of its rate.
fn disks(place: &Place) -> String {
    let vm = |vm: &str, weight: u32| {
        format!(
            "[vm.{vm}]\nweight = {weight}\n[vm.{vm}.volume.disk]\ndevice = \"disk\"\nsize = \"1GiB\"\n\
             export = {{ type = \"vhost-user-blk\", socket = \"{}\" }}\n",
            place.socket(vm).display()
        )
    };
    let device = "[device.disk]\nbackend = \"null\"\ndepth = 16\n[device.disk.delay]\ntime = \"1ms\"\nparallel = 4\n";
    format!("{device}{}{}", vm("vm1", 100), vm("vm2", 300))
}

/// Rates of each VM, per second, while `amount` of all counters together passes.
fn rates<const N: usize>(amount: u64, of: std::ops::Range<usize>, counters: &dyn Fn() -> [u64; N]) -> [f64; N] {
    let sum = |counts: [u64; N]| counts[of.clone()].iter().sum::<u64>();
    let reach = |bound: u64| {
        // polls: counters of clients
        until("there is progress", || sum(counters()) >= bound);
        (counters(), Instant::now())
    };
    let first = reach(sum(counters()) + amount / 8);
    let last = reach(sum(first.0) + amount);
    let seconds = (last.1 - first.1).as_secs_f64();
    std::array::from_fn(|at| (last.0[at] - first.0[at]) as f64 / seconds)
}

/// What each VM gets of the disk and of the link at once, as parts of what it gets of each alone.
fn attempt(lab: &Lab, sinks: &[Sink]) -> [f64; 4] {
    let link = || [0, 1].map(|vm: usize| sinks[vm].bytes());
    let alone = while_reading(&lab.place, ["vm1", "vm2"], OUTSTANDING, |disk| rates(REQUESTS, 0..2, disk));
    let send = || [1, 2].map(|number| lab.send(number, 120));
    let senders: [Sender; 2] = send();
    let link_alone = rates(BYTES, 0..2, &link);
    let both = while_reading(&lab.place, ["vm1", "vm2"], OUTSTANDING, |disk| {
        rates(BYTES, 2..4, &|| {
            let (disk, link) = (disk(), link());
            [disk[0], disk[1], link[0], link[1]]
        })
    });
    drop(senders);
    let alone = [alone[0], alone[1], link_alone[0], link_alone[1]];
    assert!((0.7..0.8).contains(&(alone[1] / (alone[0] + alone[1]))), "weights of the disk: {alone:?}");
    assert!((0.7..0.8).contains(&(alone[2] / (alone[2] + alone[3]))), "weights of the link: {alone:?}");
    std::array::from_fn(|at| both[at] / alone[at])
}

#[test]
fn each_vm_gets_of_disk_and_link_at_once_what_it_gets_of_each_alone() {
    let policies = ["weight = 300", "weight = 100"];
    let lab = Lab::with_host(Uplink::Tap, "rate = \"100Mbit/s\"", &policies, &["", ""], disks);
    let sinks = [1, 2].map(|number| lab.sink(number));
    let mut seen = Vec::new();
    for _ in 0..ATTEMPTS {
        let parts = attempt(&lab, &sinks);
        seen.push(parts);
        if parts.iter().all(|part| (0.98..=1.02).contains(part)) {
            return;
        }
    }
    panic!("disk of vm1 and vm2, link of vm1 and vm2, at once as parts of alone: {seen:.3?}");
}
