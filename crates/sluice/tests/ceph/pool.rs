//! Hosts that meet in objects of the cluster.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{PoisonError, RwLockReadGuard};

use super::trouble::StandStill;
use super::{OSDS, ceph, conf};
use crate::common::{Daemon, Place, run, sluice};
use crate::pool::hosts::{BLOCK, CLAIMS, Hosts, Meets};
use crate::pool::same::{self, the_same_at};

fn keys_as(user: &str) -> String {
    format!("ceph_conf = \"{}\"\nceph_user = \"{user}\"\n", conf().display())
}

/// Objects of a test. They go with the cluster.
struct AtObjects {
    name: String,
    folder: Place,
    /// No other test lets the OSDs stand still meanwhile.
    _osds: Option<RwLockReadGuard<'static, ()>>,
}

impl AtObjects {
    fn new(osds: Option<RwLockReadGuard<'static, ()>>) -> AtObjects {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("meet-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        AtObjects { name, folder: Place::new(), _osds: osds }
    }

    /// Object and offset of a block.
    fn at(&self, block: u64) -> (String, u64) {
        match block {
            0 => (self.name.clone(), 0),
            host @ 1..CLAIMS => (format!("{}:{host}", self.name), 0),
            claim => (self.name.clone(), (claim - CLAIMS + 1) * BLOCK),
        }
    }

    fn rados(&self, arguments: &[&str]) -> crate::common::Ended {
        ceph("rados", &[&["-p", "vms"], arguments].concat())
    }
}

impl Meets for AtObjects {
    fn name(&self) -> String {
        format!("rados:vms/{}", self.name)
    }

    fn arguments(&self) -> Vec<String> {
        ["--ceph-conf", conf().to_str().unwrap(), "--ceph-user", "sluice"].map(str::to_owned).to_vec()
    }

    fn keys(&self) -> String {
        keys_as("sluice")
    }

    /// Read by Ceph's own program, whole objects at once.
    fn read(&self, block: u64, count: u64) -> Vec<u8> {
        let (object, offset) = self.at(block);
        let file = self.folder.file("read");
        let read = self.rados(&["get", &object, file.to_str().unwrap()]);
        let mut bytes = if read.code() == Some(0) { std::fs::read(file).unwrap() } else { Vec::new() };
        bytes.resize(bytes.len().max((offset + count * BLOCK) as usize), 0);
        bytes[offset as usize..(offset + count * BLOCK) as usize].to_vec()
    }

    fn write(&self, block: u64, bytes: &[u8]) {
        let (object, offset) = self.at(block);
        let file = self.folder.write("written", bytes);
        self.rados(&["put", &object, file.to_str().unwrap(), "--offset", &offset.to_string()]).ok();
    }

    fn take_away(&self) {
        self.rados(&["cp", &self.name, &format!("{}-away", self.name)]).ok();
        self.rados(&["rm", &self.name]).ok();
    }

    fn bring_back(&self) {
        self.rados(&["cp", &format!("{}-away", self.name), &self.name]).ok();
    }
}

fn hosts() -> Hosts {
    let osds = OSDS.read().unwrap_or_else(PoisonError::into_inner);
    Hosts::new(Place::new(), Box::new(AtObjects::new(Some(osds))))
}

the_same_at!(hosts());

#[test]
fn a_meeting_place_that_hung_stopped_a_host() {
    let _alone = OSDS.write().unwrap_or_else(PoisonError::into_inner);
    let hosts = Hosts::new(Place::new(), Box::new(AtObjects::new(None)));
    let still = std::cell::Cell::new(None);
    same::a_meeting_place_that_hung_stopped_a_host(
        &hosts,
        || still.set(Some(StandStill::osds())),
        || drop(still.take()),
    );
}

#[test]
fn objects_that_cannot_be_a_place_are_refused_with_what_to_do() {
    let _osds = OSDS.read().unwrap_or_else(PoisonError::into_inner);
    let place = Place::new();
    let objects = AtObjects::new(None);
    let create = |name: &str, more: &[&str]| {
        let what = ["pool", "create", name, "--hosts", "2", "--capacity", "2000 iops"];
        run(sluice().args(what).args(more))
    };
    let arguments = objects.arguments();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    assert!(create("rados:none/a", &arguments).failed().contains("the pool none: No such file"));
    assert!(create("rados:vms", &[]).failed().contains("write rados:POOL/NAME"));
    let refused = create(&objects.name(), &["--ceph-conf", arguments[1], "--ceph-user", "nobody"]).failed();
    assert!(refused.contains("no key of client.nobody"), "{refused}");
    let refused = create(&objects.name(), &[&arguments[..], &["--keep"]].concat()).failed();
    assert!(refused.contains("prepare the place with `sluice pool create`"), "{refused}");
    // What another program keeps there stays.
    for length in [7, 1 << 20] {
        let file = place.write("other", vec![7; length]);
        objects.rados(&["put", &objects.name, file.to_str().unwrap()]).ok();
        assert!(create(&objects.name(), &arguments).failed().contains("holds something else"));
    }
    create(&objects.name(), &[&arguments[..], &["--force"]].concat()).ok();
}

#[test]
fn a_user_of_these_objects_alone_is_enough() {
    let _osds = OSDS.read().unwrap_or_else(PoisonError::into_inner);
    let place = Place::new();
    let objects = AtObjects::new(None);
    let osd = format!("allow rw pool=vms object_prefix {}", objects.name);
    let user = format!("u{}", std::process::id());
    let (client, keyring) = (format!("client.{user}"), super::folder().join(format!("client.{user}.keyring")));
    let make = ["auth", "get-or-create", &client, "mon", "allow r", "osd", &osd, "-o", keyring.to_str().unwrap()];
    ceph("ceph", &make).ok();
    let arguments = ["--ceph-conf", conf().to_str().unwrap(), "--ceph-user", &user].map(str::to_owned);
    let command =
        |verb: &str, name: &str, more: &[&str]| run(sluice().args(["pool", verb, name]).args(&arguments).args(more));
    command("create", &objects.name(), &["--hosts", "2", "--capacity", "2000 iops"]).ok();
    let refused = command("create", "rados:vms/other", &["--hosts", "2", "--capacity", "2000 iops"]).failed();
    assert!(refused.contains("not permitted"), "{refused}");
    let disk = place.image("disk", 64 << 20);
    let device = format!("capacity = \"2000 iops\"\nlatency = \"8ms\"\n{}", keys_as(&user));
    let host = crate::common::shared::HostFile {
        place: &place,
        disk: &disk,
        number: 1,
        device,
        meeting: Some(objects.name()),
        vm: "",
    };
    // The seal holds: a process of its own meets the others.
    let text = host.text().replace("state = ", "jail = \"required\"\nstate = ");
    let daemon = Daemon::serve(&place, &text);
    crate::pool::hosts::reserve(&place, 1, 500).ok();
    command("forget", &objects.name(), &["--host", "2"]).ok();
    // A new user is no new pool: the claim stays, and a restart connects as the other user.
    let refused = daemon.reload(&text.replace(&keys_as(&user), &keys_as("sluice")));
    assert!(refused.contains("estart the daemon"), "{refused}");
    // One who may only read is told at once.
    ceph("ceph", &["auth", "caps", &client, "mon", "allow r", "osd", "allow r pool=vms"]).ok();
    let host = host.text().replace("host = 1", "host = 2");
    let checked = run(sluice().args(["check", "--host"]).arg(place.write("reads.toml", host)));
    assert!(checked.stdout.contains("not permitted"), "{}{}", checked.stdout, checked.stderr);
}
