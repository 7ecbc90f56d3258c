//! The long table: 300 windows and several seeds (`SLUICE_POOL_SEEDS`) for each row. `SLUICE_POOL_TABLE` is a part of the names of rows to
//! print, or 1 for all.

use std::time::Duration;

use sluice_pool::exchange::Trouble;
use sluice_sched::Iops;
use sluice_sim::devices::speed::Speed;
use sluice_sim::engine::Change;

use super::bench::{Bench, DEVICES, Device, Measured, RATE, vm};
use super::rows::{begins, flood, moving, too_low};

fn seeds() -> u64 {
    std::env::var("SLUICE_POOL_SEEDS").map_or(2, |seeds| seeds.parse().expect("it is a number"))
}

fn wants(row: &str) -> bool {
    std::env::var("SLUICE_POOL_TABLE").is_ok_and(|wanted| wanted == "1" || row.contains(&wanted))
}

fn row(name: &str, bench: &Bench, show: impl Fn(&Measured) -> String) {
    if !wants(name) {
        return;
    }
    for seed in 1..=seeds() {
        let measured = bench.clone().seed(seed).run(300);
        println!("{name:<44} {:<11} {seed} {}", format!("{:?}", bench.device), show(&measured));
    }
}

fn usual(measured: &Measured) -> String {
    let (window, off) = if measured.states.is_empty() { (0.0, 0.0) } else { measured.window() };
    let (less, low) = (
        measured.found(|trouble| matches!(trouble, Trouble::GivesLess(_))),
        measured.found(|trouble| matches!(trouble, Trouble::TooLow(_))),
    );
    format!(
        "short {:5.1} %{}, db {:4.0}, other {:4.0}, total {:4.0} (cost {:4.0}), {:5.2} ms, W {window:.2} +- {off:.2}{}{}",
        100.0 * measured.short(0),
        measured.short_seconds(0),
        measured.rate(0),
        measured.rate(1),
        measured.total(),
        measured.total_cost(),
        measured.mean_time(),
        if less { ", gives less" } else { "" },
        if low { ", too low" } else { "" },
    )
}

#[test]
#[ignore = "a table that takes minutes"]
fn db_beside_aggressors() {
    for device in DEVICES {
        for hosts in [4, 16, 64] {
            let name = format!("db, {hosts} hosts");
            row(&name, &Bench::db(device, hosts, 8192), usual);
            row(&format!("{name}, uncoordinated"), &Bench::db(device, hosts, 8192).alone(), usual);
        }
        let slow = Bench::db(device, 4, 8192).change(0, Change::Path(0, 2.0));
        row("db, its path x 2", &slow, usual);
        let late = Bench::db(device, 4, 8192).meeting(|meeting| meeting.delay = Duration::from_millis(250));
        row("db, exchange late by 250 ms", &late, usual);
        row("db, torn 10 %", &Bench::db(device, 4, 8192).meeting(|meeting| meeting.torn = 0.1), usual);
        for hosts in [4, 16, 64] {
            let lost = Bench::db(device, hosts, 8192).meeting(|meeting| meeting.lost = 0.1);
            row(&format!("db, lost 10 %, {hosts} hosts"), &lost, usual);
            for cut in [0, 1] {
                let cut_off = lost.clone().change(100, Change::Away(cut)).change(120, Change::Back(cut));
                row(&format!("db, lost 10 %, {hosts} hosts, {cut} away 20 s"), &cut_off, usual);
            }
        }
        row("equal, 16 hosts", &Bench::new(device, 16, (0..16).map(|host| vm(host, 0, 32)).collect()), usual);
        row("db, latency half of own", &too_low(), usual);
    }
    for length in [65_536, 262_144] {
        row(&format!("db, {length}"), &Bench::db(Device::ByCost, 4, length), usual);
        row(&format!("db, {length}, uncoordinated"), &Bench::db(Device::ByCost, 4, length).alone(), usual);
    }
}

#[test]
#[ignore = "a table that takes minutes"]
fn a_wrong_capacity() {
    for device in DEVICES {
        for percent in [70, 77, 100, 130] {
            let slower = f64::from(percent) / 100.0;
            let stated = (f64::from(RATE) / slower) as u64;
            let wrong =
                Bench::db(device, 4, 8192).meeting(|meeting| meeting.capacity.iops = Some(Iops::per_second(stated)));
            row(&format!("db, true capacity {percent} %"), &wrong, usual);
            let device_slower = Bench::db(device, 4, 8192);
            let speed = Speed::Slower((1.0 / slower).max(1.0));
            row(&format!("db, device at {percent} %"), &device_slower.change(0, Change::Speed(0, speed)), usual);
        }
    }
}

#[test]
#[ignore = "a table that takes minutes"]
fn jumps() {
    for device in DEVICES {
        for alone in [false, true] {
            let name = if alone { "moving, uncoordinated" } else { "moving" };
            if !wants(name) {
                continue;
            }
            for seed in 1..=seeds() {
                let bench = moving(device, seed, 303);
                let measured = if alone { bench.alone() } else { bench }.run(300);
                let [(short, all), (apart, apart_all)] = measured.after_jumps(1500);
                let share = |part: u64, all: u64| 100.0 * part as f64 / all as f64;
                println!(
                    "{name:<44} {:<11} {seed} short {:.2} % ({short} of {all}), apart {:.1} % ({apart} of {apart_all}), total {:.0}, {:.2} ms",
                    format!("{device:?}"),
                    share(short, all),
                    share(apart, apart_all),
                    measured.total(),
                    measured.mean_time()
                );
            }
        }
    }
}

#[test]
#[ignore = "a table that takes minutes"]
fn floods() {
    for device in DEVICES {
        for hosts in [4, 16, 64] {
            row(&format!("flood, {hosts} hosts"), &flood(device, hosts), |measured| {
                let last_above =
                    (100..250).rev().find(|at| measured.time(at * 100, at * 100 + 500) > 9.2).unwrap_or(99);
                let peak_of_100 = (100..140).map(|at| measured.time(at * 100, at * 100 + 100)).fold(0.0, f64::max);
                format!(
                    "peak 0.5 s {:.1} ms, 0.1 s {peak_of_100:.1} ms, above 9.2 ms until {:.1} s; db by second {:?}; all {:.0}",
                    measured.peak(10_000, 14_000),
                    (last_above as f64 - 99.0) / 10.0,
                    &measured.series(0)[6..12],
                    measured.total(),
                )
            });
            for think in [10, 5 * hosts as u64 / 2] {
                row(&format!("begins, {hosts} hosts, {think}"), &begins(device, hosts, think), |measured| {
                    format!(
                        "by second {:?}, peak {:.1}, {:.0}, {:.0}",
                        &measured.series(0)[6..18],
                        measured.peak(10_000, 14_000),
                        measured.rate(0),
                        measured.total()
                    )
                });
            }
        }
    }
}
