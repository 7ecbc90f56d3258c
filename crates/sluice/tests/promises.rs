//! Reservation, limit and weight, seen from outside: fio as the load, the delay device's log as the witness.
//!
//! The device does 2,000 requests per second, whatever the machine does: 8 at once, 4 ms each. The tests run one at a
//! time, because each needs the whole machine.

use std::sync::{Mutex, MutexGuard, PoisonError};

use common::slots::{self, SECOND_NS, Slot};
use common::{Daemon, MIB, Place, fio};

mod common;

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A VM of a test: its name, its policy, and what fio does in it.
struct Load {
    vm: &'static str,
    policy: &'static str,
    job: &'static str,
}

/// Serves the VMs on the device `delay` while fio runs in all of them; what the device was given to do.
fn measure(delay: &str, loads: &[Load], seconds: u32) -> Vec<Slot> {
    let place = Place::new();
    let log = place.file("slots.csv");
    let mut host = place.device("capacity = \"2000 iops@8KiB\"");
    host += &format!("[device.disk.delay]\n{delay}\nlog = \"{}\"\n", log.display());
    let mut jobs = format!("[global]\nioengine=nbd\ntime_based=1\nruntime={seconds}\nsize=64m\nrandrepeat=1\n");
    for Load { vm, policy, job } in loads {
        let image = place.image(&format!("{vm}.img"), 64 * MIB);
        host += &(format!("[vm.{vm}]\n{policy}\n") + &place.volume(vm, "v", &image, ""));
        jobs += &format!("[{vm}]\nuri={}\n{job}\n", place.uri(vm, "v"));
    }
    let daemon = Daemon::serve(&place, &host);
    fio::run(&place, "load", &jobs);
    assert_eq!(daemon.terminate().code(), Some(0));
    slots::read(&log)
}

const TWO_THOUSAND: &str = "time = \"4ms\"\nparallel = 8";

/// The largest excess over `rate` of any window that starts and ends with a dispatch: what would be the burst.
fn largest_burst(slots: &[Slot], rate: f64, amount: impl Fn(&Slot) -> f64) -> f64 {
    // A running sum of what was dispatched minus what the rate allows; a window's excess is a difference in it.
    let (mut sum, mut lowest, mut largest) = (0.0, f64::INFINITY, 0.0_f64);
    for slot in slots {
        let allowed = slot.dispatched_ns as f64 / SECOND_NS as f64 * rate;
        lowest = lowest.min(sum - allowed);
        sum += amount(slot);
        largest = largest.max(sum - allowed - lowest);
    }
    largest
}

fn seconds(slots: &[Slot]) -> f64 {
    (slots.last().unwrap().dispatched_ns - slots[0].dispatched_ns) as f64 / SECOND_NS as f64
}

#[test]
fn no_window_of_any_length_exceeds_a_limit_of_requests() {
    let _alone = alone();
    let sizes = "rw=randrw\nbssplit=4k/40:8k/30:64k/15:256k/10:1m/5\niodepth=32";
    let loads = [
        Load { vm: "a", policy: "limit = \"500 iops@8KiB\"\nburst = 8", job: sizes },
        Load { vm: "b", policy: "limit = \"700 iops@8KiB\"\nburst = 1", job: "rw=randread\nbs=8k\niodepth=16" },
    ];
    let slots = measure("time = \"200us\"\nparallel = 16", &loads, 4);
    // Without a burst a late wake-up is not made up for.
    for (owner, rate, burst, least) in [(0, 500.0, 8.0, 0.98), (1, 700.0, 1.0, 0.7)] {
        let own = slots::of(&slots, owner);
        let most = own.iter().map(|slot| slot.cost).fold(0.0, f64::max);
        let excess = largest_burst(&own, rate, |slot| slot.cost);
        assert!(excess <= burst - 1.0 + most + 0.01, "VM {owner}: {excess} at once, with a burst of {burst}");
        let got = own.iter().map(|slot| slot.cost).sum::<f64>() / seconds(&own);
        assert!(got > least * rate, "VM {owner}: {got} of {rate} per second: nothing was put to the test");
    }
}

#[test]
fn no_window_of_any_length_exceeds_a_limit_of_bytes() {
    let _alone = alone();
    let sizes = "rw=randrw\nbssplit=8k/50:128k/40:1m/10\niodepth=32";
    let policy = "limit = { bytes = \"16MiB/s\", iops = \"1000 iops@8KiB\" }\nburst = 4";
    let slots = measure("time = \"200us\"\nparallel = 16", &[Load { vm: "a", policy, job: sizes }], 4);
    let rate = 16.0 * MIB as f64;
    let excess = largest_burst(&slots, rate, |slot| slot.length_bytes as f64);
    // A burst of 4 lets three requests of the reference size through beside one of any size.
    assert!(excess <= (3.0 * 8.0 + 256.0) * 1024.0 + 16.0, "{excess} bytes at once");
    let got = slots.iter().map(|slot| slot.length_bytes as f64).sum::<f64>() / seconds(&slots);
    assert!(got > 0.98 * rate, "{got} bytes per second: nothing was put to the test");
}

#[test]
fn a_reservation_holds_in_every_second_beside_a_noisy_neighbour() {
    let _alone = alone();
    let loads = [
        Load { vm: "noisy", policy: "weight = 10000", job: "rw=randwrite\nbs=8k\niodepth=64\nnumjobs=4" },
        Load {
            vm: "quiet",
            policy: "reservation = \"500 iops@8KiB\"\nweight = 1",
            job: "rw=randread\nbs=8k\niodepth=32",
        },
    ];
    let slots = measure(TWO_THOUSAND, &loads, 8);
    let quiet = slots::of(&slots, 1);
    let (from, to) = (quiet[0].ended_ns, slots::together(&slots, 2).1);
    let windows = (from..).step_by(SECOND_NS as usize).take_while(|start| start + SECOND_NS <= to);
    let mut seen = 0;
    for start in windows {
        let within =
            |slots: &[Slot]| slots.iter().filter(|slot| (start..start + SECOND_NS).contains(&slot.ended_ns)).count();
        let (all, own) = (within(&slots), within(&quiet));
        // A second in which the machine stood still says nothing about who should have been served.
        if all >= 1980 {
            seen += 1;
            assert!(own >= 495, "{own} of 500 in the second at {start} ns, of {all} in all");
        }
    }
    assert!(seen >= 4, "only {seen} seconds in which the machine worked");
    let by_reservation = quiet.iter().filter(|slot| slot.phase == "Reservation").count();
    assert!(by_reservation * 10 > quiet.len() * 9, "{by_reservation} of {} by the reservation", quiet.len());
}

/// Each VM's part of what was dispatched while all were at work.
fn parts(slots: &[Slot], vms: u32) -> Vec<f64> {
    let (from, to) = slots::together(slots, vms);
    let costs: Vec<f64> = (0..vms).map(|vm| slots::cost_between(&slots::of(slots, vm), from, to)).collect();
    let all: f64 = costs.iter().sum();
    let seconds = (to - from) as f64 / SECOND_NS as f64;
    assert!(seconds > 4.0, "they were at work together for {seconds} s only");
    assert!(all / seconds > 1800.0, "the device was not busy: {all} in {seconds} s");
    costs.iter().map(|cost| cost / all).collect()
}

#[track_caller]
fn assert_parts(parts: &[f64], expected: &[f64]) {
    for (part, expected) in parts.iter().zip(expected) {
        assert!((part / expected - 1.0).abs() < 0.02, "{parts:?} instead of {expected:?}");
    }
}

#[test]
fn weights_share_the_device_in_proportion() {
    let _alone = alone();
    let job = "rw=randread\nbs=8k\niodepth=32";
    let loads = [
        Load { vm: "a", policy: "weight = 100", job },
        Load { vm: "b", policy: "weight = 200", job },
        Load { vm: "c", policy: "weight = 300", job },
    ];
    assert_parts(&parts(&measure(TWO_THOUSAND, &loads, 5), 3), &[1.0 / 6.0, 2.0 / 6.0, 3.0 / 6.0]);
}

#[test]
fn more_connections_and_deeper_queues_do_not_get_more() {
    let _alone = alone();
    let loads = [
        Load { vm: "greedy", policy: "", job: "rw=randread\nbs=8k\niodepth=32\nnumjobs=6" },
        Load { vm: "modest", policy: "", job: "rw=randread\nbs=8k\niodepth=32" },
    ];
    assert_parts(&parts(&measure(TWO_THOUSAND, &loads, 5), 2), &[0.5, 0.5]);
}

#[test]
fn what_one_vm_leaves_the_others_get() {
    let _alone = alone();
    let loads = [
        Load {
            vm: "held",
            policy: "limit = \"200 iops@8KiB\"\nburst = 4\nweight = 10000",
            job: "rw=randread\nbs=8k\niodepth=32",
        },
        Load { vm: "other", policy: "weight = 1", job: "rw=randread\nbs=8k\niodepth=32" },
    ];
    assert_parts(&parts(&measure(TWO_THOUSAND, &loads, 5), 2), &[0.1, 0.9]);
}
