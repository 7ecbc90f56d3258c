//! What holds wherever hosts meet: [`crate::pool`] tests it with a file, `ceph` with objects of a cluster.

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::hosts::{CLAIMS, Hosts, has_troubles, pool, reserve};
use crate::common::raw::Raw;
use crate::common::{Daemon, run, sluice, until};

/// Makes a test of each function here, for hosts that an expression makes.
macro_rules! the_same_at {
    ($hosts:expr) => {
        crate::pool::same::the_same_at! { $hosts;
            two_hosts_promised_more_than_their_storage_has
            two_daemons_had_one_number
            a_block_that_cannot_be_read_hid_a_claim
            a_place_that_is_gone_was_used_on
            a_claim_that_others_could_not_read_any_more_was_not_missed
            a_host_without_a_meeting_place_did_not_serve
            a_capacity_that_is_not_that_of_the_pool_was_sold
            a_host_that_left_its_pool_kept_what_it_had_claimed
            a_killed_helper_kept_a_host_from_the_others
        }
    };
    ($hosts:expr; $($name:ident)+) => {
        $(#[test]
        fn $name() {
            crate::pool::same::$name(&$hosts);
        })+
    };
}
pub(crate) use the_same_at;

pub(crate) fn two_hosts_promised_more_than_their_storage_has(hosts: &Hosts) {
    let (first, second) = (hosts.serve(1), hosts.serve(2));
    reserve(hosts.place(1), 1, 1200).ok();
    let refused = reserve(hosts.place(2), 2, 900).failed();
    assert!(refused.contains("host 1 (") && refused.contains("has 1200 iops"), "{refused}");
    reserve(hosts.place(2), 2, 700).ok();
    // What a dead host has stays, until it is forgotten, and what a host gives back is free at once.
    second.kill();
    assert!(reserve(hosts.place(1), 1, 1400).failed().contains("has 700 iops"));
    let forget = |number: &str| hosts.pool("forget", &["--host", number]);
    assert!(forget("1").failed().contains("Host 1 runs"));
    assert!(forget("3").failed().contains("no host 3"));
    forget("2").ok();
    reserve(hosts.place(1), 1, 1400).ok();
    reserve(hosts.place(1), 1, 100).ok();
    until("it has given back what it does not need", || hosts.claimed(1) < 101.0);
    // A restart has what it had, and it is not claimed twice.
    first.kill();
    let _first = hosts.serve(1);
    until("it runs", || hosts.look()["hosts"][0]["runs"] == true);
    assert!((99.0..101.0).contains(&hosts.claimed(1)));
}

pub(crate) fn two_daemons_had_one_number(hosts: &Hosts) {
    let _first = hosts.serve(1);
    reserve(hosts.place(1), 1, 300).ok();
    let _other = Daemon::serve(hosts.place(2), &hosts.file(2, 1).replace("offset = \"0MiB\"", "offset = \"8MiB\""));
    let refused = reserve(hosts.place(2), 1, 100).failed();
    assert!(refused.contains("nothing more can be reserved"), "{refused}");
    assert!((299.0..301.0).contains(&hosts.claimed(1)));
}

pub(crate) fn a_block_that_cannot_be_read_hid_a_claim(hosts: &Hosts) {
    let _first = hosts.serve(1);
    reserve(hosts.place(1), 1, 300).ok();
    hosts.spoil(CLAIMS + 2);
    hosts.spoil(2);
    let refused = reserve(hosts.place(1), 1, 400).failed();
    assert!(refused.contains("the claims of host 2 cannot be read"), "{refused}");
    reserve(hosts.place(1), 1, 200).ok();
    // Its own daemon writes it again.
    let _second = hosts.serve(2);
    until("the claims can be read", || reserve(hosts.place(1), 1, 400).code() == Some(0));
    let is_good = |host: &Value| host["runs"] == true && host["unreadable"] == Value::Null;
    until("both are seen", || hosts.look()["hosts"].as_array().unwrap().iter().all(is_good));
}

pub(crate) fn a_claim_that_others_could_not_read_any_more_was_not_missed(hosts: &Hosts) {
    let _first = hosts.serve(1);
    reserve(hosts.place(1), 1, 300).ok();
    let old = hosts.meeting.read(CLAIMS, 2);
    reserve(hosts.place(1), 1, 1500).ok();
    hosts.meeting.write(CLAIMS, &old);
    until("it is claimed again", || hosts.claimed(1) > 1499.0);
    // One of another host hides what it has from all.
    hosts.spoil(CLAIMS + 2);
    until("it is told", || pool(hosts.place(1))["troubles"].to_string().contains("the block of host 2"));
}

pub(crate) fn a_host_without_a_meeting_place_did_not_serve(hosts: &Hosts) {
    let place = hosts.place(1);
    hosts.meeting.take_away();
    let text = hosts.file(1, 1).replace("[vm.v1]", "[vm.v1]\nreservation = \"500 iops\"");
    let refused = Daemon::refused(place, &text);
    assert!(refused.contains("sluice pool create"), "{refused}");
    let checked = run(sluice().args(["check", "--host"]).arg(place.write("checked.toml", &text)));
    assert!(checked.stdout.contains("cannot meet the other hosts"), "{}{}", checked.stdout, checked.stderr);
    let daemon = Daemon::serve(place, &text);
    Raw::open(&place.volume_socket("v1", "d"), "v1/d").unwrap().read(0, 4096).unwrap();
    assert!(daemon.apply(place, &text.replace("host = 1", "host = 2")).failed().contains("sluice pool create"));
    hosts.meeting.bring_back();
    until("what it serves is claimed", || hosts.claimed(1) > 499.0);
    assert_eq!(daemon.terminate().code(), Some(0));
}

pub(crate) fn a_capacity_that_is_not_that_of_the_pool_was_sold(hosts: &Hosts) {
    let (place, text) = (hosts.place(1), hosts.file(1, 1));
    let daemon = Daemon::serve(place, &text.replace("2000 iops", "3000 iops"));
    let refused = reserve(place, 1, 100).failed();
    assert!(refused.contains("2000 iops@8KiB") && refused.contains("--keep"), "{refused}");
    let again = hosts.create(2, "3000 iops", &[]).failed();
    assert!(again.contains("has a pool of 2 hosts") && again.contains("--keep"), "{again}");
    hosts.create(2, "3000 iops", &["--keep"]).ok();
    until("it is that of the pool", || reserve(place, 1, 2500).code() == Some(0));
    let refused = hosts.create(2, "2520 iops", &["--keep"]).failed();
    assert!(
        refused.contains("2500 iops of the pool"),
        "not sold: what hosts meet with, and the weight floor: {refused}"
    );
    assert_eq!(daemon.terminate().code(), Some(0));
}

pub(crate) fn a_host_that_left_its_pool_kept_what_it_had_claimed(hosts: &Hosts) {
    let daemon = hosts.serve(1);
    reserve(hosts.place(1), 1, 800).ok();
    assert!((799.0..801.0).contains(&hosts.claimed(1)));
    let pool = format!("[device.disk.pool]\nmeeting = \"{}\"\nhost = 1\n", hosts.meeting.name());
    let text = hosts.file(1, 1);
    assert!(text.contains(&pool));
    daemon.accept(&text.replace(&pool, ""));
    until("it is given back", || hosts.claimed(1) < 1.0);
    // It has not vanished: nothing is there that gets old.
    until("it is out of the pool", || hosts.meeting.read(1, 1).iter().all(|byte| *byte == 0));
    // A stop is no leave: what its VMs have is kept for them.
    daemon.accept(&text);
    until("it is claimed again", || hosts.claimed(1) > 799.0);
    assert_eq!(daemon.terminate().code(), Some(0));
    assert!(hosts.claimed(1) > 799.0);
}

pub(crate) fn a_place_that_is_gone_was_used_on(hosts: &Hosts) {
    let _hosts = [hosts.serve(1), hosts.serve(2)];
    reserve(hosts.place(1), 1, 800).ok();
    hosts.meeting.take_away();
    until("it is missed", || (1..=2).all(|number| has_troubles(hosts.place(number))));
    let refused = reserve(hosts.place(1), 1, 900).failed();
    assert!(refused.contains("it does not exist"), "{refused}");
    reserve(hosts.place(1), 1, 700).ok();
    hosts.create(2, "2000 iops", &[]).ok();
    until("another pool is told", || pool(hosts.place(1))["troubles"].to_string().contains("another pool"));
    assert!(hosts.claimed(1) < 1.0, "nothing is written there");
}

pub(crate) fn a_killed_helper_kept_a_host_from_the_others(hosts: &Hosts) {
    let _daemons = [hosts.serve(1), hosts.serve(2)];
    reserve(hosts.place(1), 1, 800).ok();
    for iops in [900, 700, 1000] {
        helpers(&hosts.meeting.name()).into_iter().for_each(|helper| kill_process(helper, Signal::KILL).unwrap());
        until("it is claimed", || reserve(hosts.place(1), 1, iops).code() == Some(0));
    }
    assert!(reserve(hosts.place(2), 2, 1000).failed().contains("has 1000 iops"));
}

/// The helpers of a place.
fn helpers(meeting: &str) -> Vec<Pid> {
    let processes =
        std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
    let is_helper = |pid: &i32| {
        let arguments = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let mut arguments = arguments.split('\0').skip(1);
        arguments.next() == Some("meeting") && arguments.next().is_some_and(|place| is_named(place, meeting))
    };
    processes.filter(is_helper).filter_map(Pid::from_raw).collect()
}

/// Whether the argument of a helper is this place.
fn is_named(argument: &str, meeting: &str) -> bool {
    let name = meeting.strip_prefix("rados:vms/").unwrap_or(meeting);
    argument.contains(&format!("\"{name}\""))
}

/// Not in [`the_same_at`]: `stop` makes the place hang, `go_on` ends that.
pub(crate) fn a_meeting_place_that_hung_stopped_a_host(hosts: &Hosts, stop: impl FnOnce(), go_on: impl FnOnce()) {
    let (place, text) = (hosts.place(1), hosts.file(1, 1));
    let daemon = Daemon::serve(place, &text);
    reserve(place, 1, 800).ok();
    let mut vm = Raw::open(&place.volume_socket("v1", "d"), "v1/d").unwrap();
    vm.read(0, 4096).unwrap();
    stop();
    until("it is away", || has_troubles(place));
    vm.read(0, 4096).unwrap();
    reserve(place, 1, 600).ok();
    // Nothing is promised that the others do not know.
    let refused = reserve(place, 1, 900).failed();
    assert!(refused.contains("nothing more can be reserved") && refused.contains("not responded"), "{refused}");
    daemon.kill();
    let daemon = Daemon::serve(place, &text);
    Raw::open(&place.volume_socket("v1", "d"), "v1/d").unwrap().read(0, 4096).unwrap();
    // Nor does it keep one that was started meanwhile.
    daemon.kill();
    let daemon = Daemon::serve(place, &text);
    let mut vm = Raw::open(&place.volume_socket("v1", "d"), "v1/d").unwrap();
    vm.read(0, 4096).unwrap();
    assert!(daemon.apply(place, &text.replace("host = 1", "host = 2")).failed().contains("no response for 4 s"));
    go_on();
    until("it is back", || pool(place)["troubles"].as_array().is_some_and(Vec::is_empty));
    until("more may be reserved", || reserve(place, 1, 900).code() == Some(0));
    assert_eq!(daemon.terminate().code(), Some(0));
}
