//! Several hosts before one device of 2,000 iops, which exchange blocks as the daemon does. `latency` is 8 ms.
//!
//! A second in which a VM gets less than 95 % of its reservation is short. The first host has db, which reserves 800 and keeps 16 requests
//! outstanding; the others have aggressors, which keep 32.

use std::time::Duration;

use sluice_pool::exchange::Trouble;
use sluice_sched::Iops;
use sluice_sim::engine::Change;
use sluice_sim::scenario::file::load_scenario;
use sluice_sim::scenario::{Scenario, Watch, run};

mod bench;
mod rows;

use bench::{Bench, DEVICES, Device, Measured, vm};
use rows::{begins, flood, moving, too_low};

/// Milliseconds at the device that are within 15 % of `latency`.
const NEAR: std::ops::Range<f64> = 6.8..9.2;

#[track_caller]
fn assert_kept(what: &str, measured: &Measured, short_max: f64) {
    let (short, time) = (measured.short(0), measured.mean_time());
    assert!(short <= short_max, "{what}: {:.1} % short{}", 100.0 * short, measured.short_seconds(0));
    assert!(NEAR.contains(&time), "{what}: {time:.2} ms at the device");
}

#[test]
fn a_vm_keeps_its_reservation_beside_aggressors_on_other_hosts() {
    let rows = DEVICES.into_iter().map(|device| (device, 8192));
    for (device, length) in rows.chain([(Device::ByCost, 65_536), (Device::ByCost, 262_144)]) {
        let bench = Bench::db(device, 4, length);
        let (shared, alone) = (bench.run(60), bench.clone().alone().run(60));
        let what = format!("{device:?}, {length} bytes");
        assert_kept(&what, &shared, 0.01);
        assert!(alone.short(0) > 0.99 && alone.mean_time() > 5.0 * shared.mean_time(), "{what}: without an exchange");
        assert!(shared.total_cost() >= 0.97 * alone.total_cost(), "{what}: {} iops in all", shared.total_cost());
        assert!(!shared.found(|trouble| matches!(trouble, Trouble::GivesLess(_) | Trouble::TooLow(_))), "{what}");
    }
}

#[test]
fn reservations_hold_while_all_vms_jump() {
    for device in DEVICES {
        let bench = moving(device, 7, 123);
        let [(short, all), (apart, apart_all)] = bench.run(120).after_jumps(1500);
        let what = format!("{device:?}: {short} of {all}, {apart} of {apart_all} after a jump");
        assert!(all > 200 && short * 100 <= all && apart * 20 <= apart_all, "{what}");
        let [(short, all), _] = bench.alone().run(120).after_jumps(1500);
        assert!(short * 4 > all, "{device:?}, without an exchange: {short} of {all}");
    }
}

#[test]
fn a_vm_that_jumps_has_its_due_within_three_periods() {
    for device in DEVICES {
        let mut bench = Bench::db(device, 4, 8192);
        bench.vms[0].levels = vec![(0, 0), (20_500, 100), (30_000, 0), (40_500, 100)];
        let measured = bench.run(47);
        let series = measured.series(0);
        for second in [22, 42] {
            let got = series[second - bench::WARM as usize];
            assert!(got >= 760, "{device:?}: {got} in second {second}");
            let peak = measured.peak(1000 * second as u64 - 1500, 1000 * second as u64 + 2500);
            assert!(peak <= 16.0, "{device:?}: {peak:.1} ms");
        }
    }
}

#[test]
fn a_common_flood_is_short() {
    let rows = DEVICES.into_iter().flat_map(|device| [4, 16].map(|hosts| (device, hosts)));
    for (device, hosts) in rows.chain([(Device::Servers(8), 64)]) {
        let measured = flood(device, hosts).run(if hosts > 16 { 13 } else { 20 });
        let what = format!("{device:?}, {hosts} hosts");
        let (peak, after) = (measured.peak(10_000, 14_000), measured.time(14_000, u64::MAX));
        assert!(peak <= 16.0, "{what}: {peak:.1} ms in the first 4 s");
        assert!(NEAR.contains(&after), "{what}: {after:.2} ms after that");
    }
}

#[test]
fn the_window_of_equal_hosts_is_steady() {
    let bench = Bench::new(Device::Fifo, 16, (0..16).map(|host| vm(host, 0, 32)).collect());
    let (mean, off) = bench.run(60).window();
    assert!((16.0..18.0).contains(&mean) && off < 0.5, "{mean} +- {off}");
}

#[test]
fn many_hosts_have_windows_below_one_request() {
    for device in DEVICES {
        assert_kept(&format!("{device:?}, 16 hosts"), &Bench::db(device, 16, 8192).run(30), 0.01);
    }
    assert_kept("64 hosts", &Bench::db(Device::Servers(8), 64, 8192).run(15), 0.01);
    // 63 hosts with a VM that keeps one request outstanding: together far more than the pool's window.
    let measured = begins(Device::Fifo, 64, 10).run(17);
    let due = f64::from(bench::RATE) / 64.0;
    let got = measured.series(0)[12..].iter().sum::<u64>() as f64 / 5.0;
    assert!(got >= 0.8 * due, "{got} of {due}");
}

#[test]
fn a_vm_that_begins_on_an_idle_host_of_an_idle_pool_does_not_wait_for_the_others() {
    for (device, hosts) in DEVICES.into_iter().flat_map(|device| [4, 16].map(|hosts| (device, hosts))) {
        let measured = begins(device, hosts, 5 * hosts as u64 / 2).run(11);
        let series = &measured.series(0)[(10 - bench::WARM) as usize..];
        assert!(series[0] >= 500 && series[2] >= 1200, "{device:?}, {hosts} hosts: {series:?}");
    }
}

#[test]
fn lost_reads_and_hosts_that_are_cut_off_cost_little() {
    let bench = Bench::db(Device::Servers(8), 64, 8192).meeting(|meeting| meeting.lost = 0.1);
    assert_kept("64 hosts", &bench.change(6, Change::Away(0)).change(18, Change::Back(0)).run(19), 0.03);
    for device in DEVICES {
        let late = Bench::db(device, 4, 8192).meeting(|meeting| meeting.delay = Duration::from_millis(250));
        assert_kept(&format!("{device:?}, late"), &late.run(60), 0.02);
        let torn = Bench::db(device, 4, 8192).meeting(|meeting| meeting.torn = 0.1);
        assert_kept(&format!("{device:?}, torn"), &torn.run(60), 0.01);
        for (cut, hosts) in [(0, 16), (1, 4)] {
            let bench = Bench::db(device, hosts, 8192).change(10, Change::Away(cut)).change(30, Change::Back(cut));
            let away = bench.run(37);
            // Some 3 s after a cut: the host falls back to its part by the number of hosts, and the others to a smaller window.
            assert_kept(&format!("{device:?}, host {cut} of {hosts} away"), &away, 3.0 / 37.0);
            assert!(!away.found(|trouble| matches!(trouble, Trouble::GivesLess(_))), "{device:?}: it gives all");
        }
    }
}

#[test]
fn a_slower_path_has_more_in_flight() {
    for device in DEVICES {
        assert_kept(&format!("{device:?}"), &Bench::db(device, 4, 8192).change(0, Change::Path(0, 2.0)).run(60), 0.01);
    }
}

#[test]
fn a_wrong_capacity_or_time_is_found() {
    for device in DEVICES {
        // The device gives 1 / 1.3 of what is stated.
        let high = Bench::db(device, 4, 8192).meeting(|meeting| meeting.capacity.iops = Some(Iops::per_second(2600)));
        let measured = high.run(60);
        assert_kept(&format!("{device:?}, capacity too high"), &measured, 0.05);
        assert!(measured.found(|trouble| matches!(trouble, Trouble::GivesLess(_))), "{device:?}");
    }
    let measured = too_low().run(60);
    assert!(
        measured.found(|trouble| matches!(trouble, Trouble::TooLow(own) if (14_500_000..17_500_000).contains(own)))
    );
}

#[test]
fn what_a_killed_host_had_is_used_by_the_others() {
    for device in DEVICES {
        let killed = Bench::db(device, 4, 8192).change(20, Change::Fail(1)).change(40, Change::Return(1));
        let measured = killed.run(57);
        assert_kept(&format!("{device:?}"), &measured, 0.02);
        let second =
            |second: usize| -> u64 { (0..4).map(|vm| measured.series(vm)[second - bench::WARM as usize]).sum() };
        let least = (22..60).map(second).min().unwrap();
        assert!(least as f64 >= 0.9 * f64::from(bench::RATE), "{device:?}: {least} in a second");
        let returned = measured.series(1)[45 - bench::WARM as usize];
        assert!(returned >= 300, "{device:?}: {returned} after its return");
    }
}

#[test]
fn a_scenario_has_hosts_and_their_pool() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/scenario-pool.toml");
    let mut scenario = load_scenario(&path).unwrap().base.scenario;
    let iops_of = |scenario: &Scenario| {
        let outcome = run(scenario, 1, Watch::default()).unwrap();
        assert_eq!(outcome.broken().count(), 0);
        assert_eq!(outcome.devices.len(), 1, "its busy time counts once");
        let db = outcome.vms.iter().find(|vm| vm.name == "db").unwrap();
        db.iops
    };
    let iops = iops_of(&scenario);
    assert!(iops > 800.0, "{iops}");
    scenario.devices[0].meeting = None;
    scenario.devices[0].aim = None;
    // What it asks for is never queued before its own gate.
    let iops = iops_of(&scenario);
    assert!(iops < 400.0, "{iops}");
}
