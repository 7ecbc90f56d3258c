//! Hosts that share a file, and the place where they meet.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::common::shared::HostFile;
use crate::common::{Daemon, Ended, MIB, Place, run, sluice};

/// Size of a block of a place, and the block of the first claim.
pub(crate) const BLOCK: u64 = 4096;
pub(crate) const CLAIMS: u64 = 65;

/// A place where hosts meet.
pub(crate) trait Meets {
    /// As host files and commands name it.
    fn name(&self) -> String;

    /// Further arguments of `sluice pool`.
    fn arguments(&self) -> Vec<String>;

    /// Further keys of the device.
    fn keys(&self) -> String;

    fn read(&self, block: u64, count: u64) -> Vec<u8>;

    fn write(&self, block: u64, bytes: &[u8]);

    /// Takes it away, until [`Meets::bring_back`].
    fn take_away(&self);

    fn bring_back(&self);
}

pub(crate) struct AtFile(pub(crate) PathBuf);

impl Meets for AtFile {
    fn name(&self) -> String {
        self.0.display().to_string()
    }

    fn arguments(&self) -> Vec<String> {
        Vec::new()
    }

    fn keys(&self) -> String {
        String::new()
    }

    fn read(&self, block: u64, count: u64) -> Vec<u8> {
        let mut bytes = vec![0; (count * BLOCK) as usize];
        std::fs::File::open(&self.0).unwrap().read_exact_at(&mut bytes, block * BLOCK).unwrap();
        bytes
    }

    fn write(&self, block: u64, bytes: &[u8]) {
        std::fs::File::options().write(true).open(&self.0).unwrap().write_all_at(bytes, block * BLOCK).unwrap();
    }

    fn take_away(&self) {
        std::fs::rename(&self.0, self.0.with_extension("away")).unwrap();
    }

    fn bring_back(&self) {
        std::fs::rename(self.0.with_extension("away"), &self.0).unwrap();
    }
}

/// Hosts with a file that they share, which is not throttled, and the place where they meet.
pub(crate) struct Hosts {
    pub(crate) base: Place,
    disk: PathBuf,
    pub(crate) meeting: Box<dyn Meets>,
    places: Vec<Place>,
}

impl Hosts {
    /// Two hosts that meet at a file.
    pub(crate) fn at_file() -> Hosts {
        let base = Place::new();
        let meeting = AtFile(base.file("meeting"));
        Hosts::new(base, Box::new(meeting))
    }

    /// Two hosts.
    pub(crate) fn new(base: Place, meeting: Box<dyn Meets>) -> Hosts {
        let disk = base.image("disk", 64 * MIB);
        let hosts = Hosts { disk, meeting, places: (0..2).map(|_| Place::new()).collect(), base };
        hosts.create(2, "2000 iops", &[]).ok();
        hosts
    }

    pub(crate) fn place(&self, number: u8) -> &Place {
        &self.places[usize::from(number) - 1]
    }

    pub(crate) fn file(&self, number: u8, as_number: u8) -> String {
        let device = format!("capacity = \"2000 iops\"\nlatency = \"8ms\"\n{}", self.meeting.keys());
        let (place, disk, meeting) = (self.place(number), self.disk.as_path(), Some(self.meeting.name()));
        HostFile { place, disk, number: as_number, device, meeting, vm: "" }.text()
    }

    pub(crate) fn serve(&self, number: u8) -> Daemon {
        Daemon::serve(self.place(number), &self.file(number, number))
    }

    pub(crate) fn pool(&self, verb: &str, more: &[&str]) -> Ended {
        run(sluice().args(["-o", "json", "pool", verb, &self.meeting.name()]).args(self.meeting.arguments()).args(more))
    }

    pub(crate) fn create(&self, hosts: u8, capacity: &str, more: &[&str]) -> Ended {
        self.pool("create", &[&["--hosts", &hosts.to_string(), "--capacity", capacity], more].concat())
    }

    /// The pool as it stands at its place.
    pub(crate) fn look(&self) -> Value {
        serde_json::from_str(&self.pool("status", &[]).ok()).unwrap()
    }

    /// What a host has claimed there.
    pub(crate) fn claimed(&self, number: u8) -> f64 {
        self.look()["hosts"][usize::from(number) - 1]["reserved_iops"].as_f64().unwrap()
    }

    /// Writes something else into a block.
    pub(crate) fn spoil(&self, block: u64) {
        self.meeting.write(block, b"sluicegate-pool claim 1 00000000 10\n{");
    }
}

fn ask(place: &Place, verb: &[&str]) -> Ended {
    run(sluice().args(verb).arg("--socket").arg(place.socket("control")))
}

pub(crate) fn reserve(place: &Place, number: u8, iops: u32) -> Ended {
    ask(place, &["set", &format!("v{number}"), &format!("reservation={iops} iops")])
}

/// The pool as the device of a host shows it.
pub(crate) fn pool(place: &Place) -> Value {
    let devices = ask(place, &["-o", "json", "get", "devices"]).stdout;
    serde_json::from_str::<Value>(&devices).unwrap()["devices"][0]["pool"].clone()
}

/// Whether a host says that something is wrong with its pool.
pub(crate) fn has_troubles(place: &Place) -> bool {
    pool(place)["troubles"].as_array().is_some_and(|troubles| !troubles.is_empty())
}

/// Makes a file where hosts meet.
pub(crate) fn create(path: &Path, hosts: u8, capacity: &str) -> Ended {
    run(sluice().args(["pool", "create"]).arg(path).args(["--hosts", &hosts.to_string(), "--capacity", capacity]))
}
