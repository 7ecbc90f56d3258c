//! Reservation, limit and weight measured from outside: fio is the load, and the delay device's log has the
//! dispatches.
//!
//! The device serves 2,000 requests per second, independent of the machine: 8 concurrently, 4 ms each. The tests run
//! one at a time, because each needs the whole machine.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::common::slots::{self, SECOND_NS, Slot};
use crate::common::{Accounts, Daemon, MIB, Place, fio};

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A VM of a test: its name, its policy and its fio options.
struct Load {
    vm: &'static str,
    policy: &'static str,
    job: &'static str,
}

/// Result of a run.
struct Run {
    slots: Vec<Slot>,
    accounts: Accounts,
}

/// Serves the VMs on the device `delay` while fio runs in all of them. Nothing is stored, so no disk is involved.
fn measure(delay: &str, loads: &[Load], seconds: u32) -> Run {
    let place = Place::new();
    let log = place.file("slots.csv");
    // A queue deeper than the device keeps it busy during pauses of this machine.
    let mut host = String::from("[device.disk]\nbackend = \"null\"\ndepth = 64\ncapacity = \"2000 iops@8KiB\"\n");
    host += &format!("[device.disk.delay]\n{delay}\nlog = \"{}\"\n", log.display());
    let mut jobs = format!("[global]\nioengine=nbd\ntime_based=1\nruntime={seconds}\nsize=64m\nrandrepeat=1\n");
    for Load { vm, policy, job } in loads {
        let socket = place.volume_socket(vm, "v");
        host += &format!("[vm.{vm}]\n{policy}\n[vm.{vm}.volume.v]\ndevice = \"disk\"\nsize = \"64MiB\"\n");
        host += &format!("export = {{ socket = \"{}\" }}\n", socket.display());
        jobs += &format!("[{vm}]\nuri={}\n{job}\n", place.uri(vm, "v"));
    }
    let daemon = Daemon::serve(&place, &host);
    fio::run(&place, "load", &jobs);
    let ended = daemon.terminate();
    assert_eq!(ended.code(), Some(0));
    let last = serde_json::from_str(ended.stdout.lines().last().unwrap()).unwrap();
    Run { slots: slots::read(&log), accounts: Accounts(last) }
}

/// Measures again if the machine paused: such a run shows nothing about the daemon.
fn measure_at_work(loads: &[Load], seconds: u32, worked: impl Fn(&Run) -> bool) -> Run {
    let mut runs = (0..4).map(|_| measure(TWO_THOUSAND, loads, seconds));
    runs.find(worked).expect("this machine is too busy to measure anything")
}

const TWO_THOUSAND: &str = "time = \"4ms\"\nparallel = 8";

/// Returns the largest excess over `rate` of any window that starts and ends with a dispatch: the effective burst.
fn largest_burst(slots: &[Slot], rate: f64, amount: impl Fn(&Slot) -> f64) -> f64 {
    // A running sum of the dispatched amount minus what the rate allows; a window's excess is a difference of two
    // sums.
    let (mut sum, mut lowest, mut largest) = (0.0, f64::INFINITY, 0.0_f64);
    for slot in slots {
        let allowed = slot.dispatched_ns as f64 / SECOND_NS as f64 * rate;
        lowest = lowest.min(sum - allowed);
        sum += amount(slot);
        largest = largest.max(sum - allowed - lowest);
    }
    largest
}

/// Checks that the limit held this VM back.
#[track_caller]
fn assert_held_back(run: &Run, vm: &str) {
    let waited = &run.accounts.vm(vm)["waited_for"];
    let number = |key| waited[key].as_u64().unwrap();
    assert!(number("own_limit") > 10 * number("device"), "nothing was put to the test: {waited}");
    assert!(run.slots.len() > 500, "{} requests", run.slots.len());
}

#[test]
fn no_window_of_any_length_exceeds_a_limit_of_requests() {
    let _alone = alone();
    let sizes = "rw=randrw\nbssplit=4k/40:8k/30:64k/15:256k/10:1m/5\niodepth=32";
    let loads = [
        Load { vm: "a", policy: "limit = \"500 iops@8KiB\"\nburst = 8", job: sizes },
        Load { vm: "b", policy: "limit = \"700 iops@8KiB\"\nburst = 1", job: "rw=randread\nbs=8k\niodepth=16" },
    ];
    let run = measure("time = \"200us\"\nparallel = 16", &loads, 4);
    for (owner, vm, rate, burst) in [(0, "a", 500.0, 8.0), (1, "b", 700.0, 1.0)] {
        assert_held_back(&run, vm);
        let own = slots::of(&run.slots, owner);
        let most = own.iter().map(|slot| slot.cost).fold(0.0, f64::max);
        let excess = largest_burst(&own, rate, |slot| slot.cost);
        assert!(excess <= burst - 1.0 + most + 0.01, "VM {vm}: {excess} at once, with a burst of {burst}");
    }
}

#[test]
fn no_window_of_any_length_exceeds_a_limit_of_bytes() {
    let _alone = alone();
    let sizes = "rw=randrw\nbssplit=8k/50:128k/40:1m/10\niodepth=32";
    let policy = "limit = { bytes = \"16MiB/s\", iops = \"1000 iops@8KiB\" }\nburst = 4";
    let run = measure("time = \"200us\"\nparallel = 16", &[Load { vm: "a", policy, job: sizes }], 4);
    assert_held_back(&run, "a");
    let excess = largest_burst(&run.slots, 16.0 * MIB as f64, |slot| slot.length_bytes as f64);
    // A burst of 4 passes three requests of the reference size in addition to one of any size.
    assert!(excess <= (3.0 * 8.0 + 256.0) * 1024.0 + 16.0, "{excess} bytes at once");
}

/// One second of the device's work.
struct Second {
    /// Number of requests of each VM.
    got: Vec<usize>,
    /// Whether the daemon was not scheduled or the device had nothing to do; delayed requests follow later.
    stood_still: bool,
}

/// Returns every whole second in which all VMs had requests.
fn whole_seconds(slots: &[Slot], vms: u32) -> Vec<Second> {
    const LATE_NS: u64 = 10_000_000;
    let ends = |owner| slots.iter().filter(move |slot| slot.owner == owner).map(|slot| slot.ended_ns);
    // The device's queue of 32 ms fills first.
    let from = (0..vms).filter_map(|owner| ends(owner).min()).max().unwrap() + SECOND_NS / 10;
    let to = slots::together(slots, vms).1;
    let second = |start: u64| {
        let within = |end: &u64| (start..start + SECOND_NS).contains(end);
        let got: Vec<usize> = (0..vms).map(|owner| ends(owner).filter(within).count()).collect();
        let gap = |pair: &[Slot]| pair[1].dispatched_ns - pair[0].dispatched_ns;
        // Requests that complete now were dispatched a little earlier.
        let here = slots
            .windows(2)
            .filter(|pair| (start.saturating_sub(5 * LATE_NS)..start + SECOND_NS).contains(&pair[1].dispatched_ns));
        let late = here.map(gap).max().unwrap_or(SECOND_NS) > LATE_NS;
        Second { stood_still: late || got.iter().sum::<usize>() < 1980, got }
    };
    (from..).step_by(SECOND_NS as usize).take_while(|start| start + SECOND_NS <= to).map(second).collect()
}

#[test]
fn a_reservation_holds_in_every_second_next_to_a_noisy_neighbour() {
    let _alone = alone();
    let loads = [
        Load { vm: "noisy", policy: "weight = 10000", job: "rw=randwrite\nbs=8k\niodepth=64\nnumjobs=4" },
        Load {
            vm: "quiet",
            policy: "reservation = \"500 iops@8KiB\"\nweight = 1",
            job: "rw=randread\nbs=8k\niodepth=64",
        },
    ];
    let working = |run: &Run| whole_seconds(&run.slots, 2).iter().filter(|second| !second.stood_still).count();
    let run = measure_at_work(&loads, 7, |run| working(run) >= 3);
    let seconds = whole_seconds(&run.slots, 2);
    for Second { got, .. } in seconds.iter().filter(|second| !second.stood_still) {
        assert!(got[1] >= 495, "{got:?} for the noisy one and the quiet one, to whom 500 are reserved");
    }
    let [noisy, quiet] = [0, 1].map(|vm| seconds.iter().map(|second| second.got[vm]).sum::<usize>());
    assert!(quiet * 4 >= (noisy + quiet) * 99 / 100, "{quiet} of {} in {} s", noisy + quiet, seconds.len());
    let dispatched = &run.accounts.vm("quiet")["dispatched"];
    assert!(dispatched["reservation"].as_u64().unwrap() > 9 * dispatched["weight"].as_u64().unwrap(), "{dispatched}");
}

/// Returns each VM's part of the requests dispatched while all had requests, and the rate per second.
fn parts(slots: &[Slot], vms: u32) -> (Vec<f64>, f64) {
    let (from, to) = slots::together(slots, vms);
    let costs: Vec<f64> = (0..vms).map(|vm| slots::cost_between(&slots::of(slots, vm), from, to)).collect();
    let all: f64 = costs.iter().sum();
    let seconds = (to - from) as f64 / SECOND_NS as f64;
    assert!(seconds > 4.0, "they were at work together for {seconds} s only");
    (costs.iter().map(|cost| cost / all).collect(), all / seconds)
}

/// Returns the largest part of the time in which a VM had nothing queued because its client was not scheduled. Every
/// VM here is due every few milliseconds, so more than 20 ms between two of its dispatches counts. A scheduler that
/// let a VM wait so long would do so in every run, and then no run would count as measured.
fn absent(slots: &[Slot], vms: u32) -> f64 {
    const LONGEST_NS: u64 = 20_000_000;
    let (from, to) = slots::together(slots, vms);
    let beyond = |vm| {
        let own: Vec<u64> = slots::of(slots, vm).iter().map(|slot| slot.dispatched_ns).collect();
        own.windows(2).map(|pair| (pair[1] - pair[0]).saturating_sub(LONGEST_NS)).sum::<u64>()
    };
    (0..vms).map(beyond).max().unwrap_or(0) as f64 / (to - from) as f64
}

#[track_caller]
fn assert_parts(loads: &[Load], expected: &[f64]) {
    let vms = loads.len() as u32;
    let run = measure_at_work(loads, 5, |run| parts(&run.slots, vms).1 >= 1900.0 && absent(&run.slots, vms) < 0.005);
    let parts = parts(&run.slots, vms).0;
    for (part, expected) in parts.iter().zip(expected) {
        assert!((part / expected - 1.0).abs() < 0.02, "{parts:?} instead of {expected:?}");
    }
}

#[test]
fn weights_share_the_device_in_proportion() {
    let _alone = alone();
    let job = "rw=randread\nbs=8k\niodepth=64";
    let loads = [
        Load { vm: "a", policy: "weight = 100", job },
        Load { vm: "b", policy: "weight = 200", job },
        Load { vm: "c", policy: "weight = 300", job },
    ];
    assert_parts(&loads, &[1.0 / 6.0, 2.0 / 6.0, 3.0 / 6.0]);
}

#[test]
fn more_connections_and_deeper_queues_do_not_get_more() {
    let _alone = alone();
    let loads = [
        Load { vm: "greedy", policy: "", job: "rw=randread\nbs=8k\niodepth=32\nnumjobs=6" },
        Load { vm: "modest", policy: "", job: "rw=randread\nbs=8k\niodepth=64" },
    ];
    assert_parts(&loads, &[0.5, 0.5]);
}

#[test]
fn unused_capacity_of_one_vm_goes_to_the_others() {
    let _alone = alone();
    let job = "rw=randread\nbs=8k\niodepth=64";
    let loads = [
        Load { vm: "held", policy: "limit = \"200 iops@8KiB\"\nburst = 4\nweight = 10000", job },
        Load { vm: "other", policy: "weight = 1", job },
    ];
    assert_parts(&loads, &[0.1, 0.9]);
}
