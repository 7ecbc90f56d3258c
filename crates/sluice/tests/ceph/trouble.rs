//! A cluster that is in trouble: what a VM sees of it.

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::{Image, OSDS, PoisonError, Verified, ceph, conf, folder, host, is_long, open};
use crate::common::{Daemon, MIB, Place, noise, run, until};

const OSD_NAMES: [&str; 3] = ["osd.0", "osd.1", "osd.2"];

/// Sends a signal to a process of the cluster.
fn signal(process: &str, signal: Signal) {
    let text = std::fs::read_to_string(folder().join(format!("run/{process}.pid"))).unwrap();
    kill_process(Pid::from_raw(text.trim().parse().unwrap()).unwrap(), signal).unwrap();
}

/// Returns what `ceph` answers.
fn json(words: &[&str]) -> serde_json::Value {
    serde_json::from_str(&ceph("ceph", &[words, &["-f", "json"]].concat()).stdout).unwrap()
}

/// Returns the epoch of the cluster's map with which this pool was full; `None`: it is not.
fn full_epoch(pool: &str) -> Option<u64> {
    let pools = json(&["osd", "pool", "ls", "detail"]);
    let pool = pools.as_array().unwrap().iter().find(|one| one["pool_name"] == pool).unwrap();
    let is_full = pool["flags_names"].as_str().unwrap().contains("full_quota");
    is_full.then(|| pool["last_change"].as_str().unwrap().parse().unwrap())
}

/// Processes of the cluster that stand still until this is dropped.
pub(super) struct StandStill(Vec<&'static str>);

impl StandStill {
    /// All OSDs.
    pub(super) fn osds() -> StandStill {
        StandStill::of(&OSD_NAMES)
    }

    fn of(processes: &[&'static str]) -> StandStill {
        processes.iter().for_each(|process| signal(process, Signal::STOP));
        StandStill(processes.to_vec())
    }
}

impl Drop for StandStill {
    fn drop(&mut self) {
        self.0.iter().for_each(|process| signal(process, Signal::CONT));
    }
}

#[test]
fn an_osd_that_stands_still_delays_requests_and_fails_none() {
    let _alone = OSDS.write().unwrap_or_else(PoisonError::into_inner);
    let (place, image) = (Place::new(), Image::new());
    let daemon = Daemon::serve(&place, &host(&place, &[("a", &image, "")]));
    let mut raw = open(&place, "a");
    let data = noise(1, 16 << 20);
    data.chunks(MIB as usize).zip(0..).for_each(|(part, at)| raw.write(at * MIB, part).unwrap());
    let still = StandStill::osds();
    let sent: Vec<u64> = (0..32).map(|number| raw.send(0, 0, number * 4096, 4096, &[]).unwrap()).collect();
    until("they are at the device", || daemon.accounts().device()["in_flight"] == 32);
    drop(still);
    for _ in &sent {
        let (cookie, errno) = raw.reply().unwrap();
        assert_eq!(errno, 0);
        let at = sent.iter().position(|one| *one == cookie).unwrap() * 4096;
        assert_eq!(raw.data(4096).unwrap(), data[at..at + 4096]);
    }
}

#[test]
fn an_osd_that_is_killed_under_load_fails_no_request_and_loses_no_write() {
    let _alone = OSDS.write().unwrap_or_else(PoisonError::into_inner);
    let mut verified = Verified::start();
    for osd in OSD_NAMES.iter().cycle().take(if is_long() { 5 } else { 1 }) {
        verified.work(50);
        signal(osd, Signal::KILL);
        verified.work(300);
        let script = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/ceph/cluster.sh");
        run(std::process::Command::new(script).arg("mend").arg(folder())).ok();
    }
    verified.finish();
}

#[test]
fn monitors_that_are_away_stop_no_request_and_no_start_for_ever() {
    let _alone = OSDS.write().unwrap_or_else(PoisonError::into_inner);
    let mut verified = Verified::start();
    let (place, image) = (Place::new(), Image::new());
    let away = StandStill::of(&["mon.a"]);
    let begun = Instant::now();
    verified.work(300);
    let daemon = Daemon::serve(&place, &host(&place, &[("b", &image, "")]));
    assert_eq!(daemon.accounts().0["out_of_service"], serde_json::json!(["b/v"]));
    let said = daemon.stderr().up_to(&["no monitor of"]);
    assert!(said.contains("has answered for 4 s"), "{said}");
    while is_long() && begun.elapsed() < Duration::from_secs(60) {
        verified.work(20);
    }
    drop(away);
    until("it is served", || daemon.accounts().0["out_of_service"] == serde_json::json!([]));
    open(&place, "b").write(0, &noise(1, 4096)).unwrap();
    verified.finish();
}

#[test]
fn writes_wait_while_a_pool_is_full_and_reads_do_not() {
    let _alone = OSDS.write().unwrap_or_else(PoisonError::into_inner);
    let (place, pool) = (Place::new(), format!("full{}", std::process::id()));
    ceph("ceph", &["osd", "pool", "create", &pool, "4", "4"]).ok();
    ceph("ceph", &["osd", "pool", "application", "enable", &pool, "rbd"]).ok();
    let osd = format!("profile rbd pool=vms, profile rbd pool={pool}");
    ceph("ceph", &["auth", "caps", "client.sluice", "mon", "profile rbd", "osd", &osd]).ok();
    let image = format!("{pool}/i");
    ceph("rbd", &["create", &image, "--size", "32M"]).ok();
    let socket = place.volume_socket("a", "v");
    let text = place.control_keys()
        + &format!(
            "[device.ceph]\npath = \"rbd:{pool}\"\nceph_user = \"sluice\"\nceph_conf = \"{}\"\n[vm.a.volume.v]\ndevice = \"ceph\"\n\
             source = \"rbd:{image}\"\nexport = {{ socket = \"{}\" }}\n",
            conf().display(),
            socket.display()
        );
    let daemon = Daemon::serve(&place, &text);
    let mut raw = open(&place, "a");
    let data = noise(7, MIB as usize);
    (0..16).for_each(|at| raw.write(at * MIB, &data).unwrap());
    ceph("ceph", &["osd", "pool", "set-quota", &pool, "max_bytes", "4194304"]).ok();
    let mut full_since = None;
    until("the pool is full", || {
        full_since = full_epoch(&pool);
        full_since.is_some()
    });
    // An OSD whose map is older still takes writes.
    let knows = |osd: &&str| Some(json(&["tell", osd, "status"])["newest_map"].as_u64().unwrap()) >= full_since;
    until("the OSDs know that", || OSD_NAMES.iter().all(&knows));
    let sent = raw.send(1, 0, 16 * MIB, 4096, &data[..4096]).unwrap();
    let mut other = open(&place, "a");
    (0..64).for_each(|at| assert_eq!(other.read(at * 4096, 4096).unwrap(), data[at as usize * 4096..][..4096]));
    until("the write waits", || daemon.accounts().device()["in_flight"] == 1);
    ceph("ceph", &["osd", "pool", "set-quota", &pool, "max_bytes", "0"]).ok();
    assert_eq!(raw.reply().unwrap(), (sent, 0));
    assert_eq!(daemon.terminate().code(), Some(0));
}
