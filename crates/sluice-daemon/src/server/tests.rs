//! Tests with a device whose thread fails permanently.

use std::collections::BTreeSet;
use std::sync::Mutex;

use sluice_api::object::ObjectId;
use sluice_io::device::{Edit, EditError, SchedulerSpec};
use sluice_sched::params::{ParamError, ParamTable};
use sluice_sched::scheduler::{Descriptor, DeviceInfo, Scheduler};
use sluice_sched::schedulers;

use super::change::Changed;
use super::*;

/// Number of consecutive failures after which a device stays down.
const FAILURES: usize = 7;

fn host(text: &str) -> Arc<Host> {
    Arc::new(sluice_config::parse("a test's host file", text).unwrap_or_else(|found| panic!("{found}")))
}

fn fails(_: &DeviceInfo, _: &ParamTable) -> Result<Box<dyn Scheduler>, ParamError> {
    panic!("a test requested this panic");
}

impl Server {
    /// Returns a server of which one device is down.
    pub fn with_a_dead_device(text: &str, device: &str) -> Server {
        let mut server = Server::default();
        server.apply(&host(text)).unwrap();
        let noop = schedulers::find("noop").unwrap();
        let descriptor: &'static Descriptor = Box::leak(Box::new(Descriptor { build: fails, ..*noop }));
        let scheduler = SchedulerSpec { descriptor, info: DeviceInfo::default(), params: ParamTable::default() };
        for _ in 0..FAILURES {
            let edit = Edit::SetScheduler { scheduler: scheduler.clone(), merging: false };
            let stopped = EditError::Stopped(device.to_owned());
            assert_eq!(server.devices[device].disk().unwrap().edit(vec![edit]), Err(stopped));
        }
        server
    }
}

/// Blocks the thread that builds it until the test releases it.
static BUILDING: Mutex<()> = Mutex::new(());

fn waits(_: &DeviceInfo, _: &ParamTable) -> Result<Box<dyn Scheduler>, ParamError> {
    drop(BUILDING.lock().unwrap());
    (schedulers::find("noop").unwrap().build)(&DeviceInfo::default(), &ParamTable::default())
}

#[tokio::test]
async fn a_change_that_a_device_had_not_applied_was_reported_as_done() {
    let text = "[device.a]\nbackend = \"null\"\n";
    let mut server = Server::default();
    server.apply(&host(text)).unwrap();
    let noop = schedulers::find("noop").unwrap();
    let descriptor: &'static Descriptor = Box::leak(Box::new(Descriptor { build: waits, ..*noop }));
    let scheduler = SchedulerSpec { descriptor, info: DeviceInfo::default(), params: ParamTable::default() };
    let held = BUILDING.lock().unwrap();
    // It responds neither in time for this change nor for the next one.
    let edit = Edit::SetScheduler { scheduler, merging: false };
    assert_eq!(server.devices["a"].disk().unwrap().edit(vec![edit]), Err(EditError::Silent("a".to_owned())));
    let deeper = host(&format!("{text}depth = 7\n"));
    let done = server.apply(&deeper).unwrap();
    assert!(matches!(&done.unapplied[..], [ServerError::Silent(device)] if device == "a"));
    drop(held);
}

#[tokio::test]
async fn a_change_that_its_only_device_had_lost_was_reported_as_done() {
    let text = "[device.a]\nbackend = \"null\"\n";
    let mut server = Server::default();
    server.apply(&host(text)).unwrap();
    let noop = schedulers::find("noop").unwrap();
    let mut failing = Host::clone(&host(text));
    let descriptor: &'static Descriptor = Box::leak(Box::new(Descriptor { name: "fails", build: fails, ..*noop }));
    failing.devices.get_mut("a").unwrap().scheduler = descriptor;
    let lost = |result| matches!(result, Err(ServerError::Edit { source: EditError::Stopped(_), .. }));
    assert!(lost(server.apply(&Arc::new(failing))));
    assert_ne!(server.host().devices["a"].scheduler.name, "fails", "nothing has changed");
}

/// A host of two devices with a volume each, whose sockets are in `folder`.
fn two_volumes(folder: &Path) -> Arc<Host> {
    let volume = |vm: &str, device: &str| {
        let socket = folder.join(vm);
        format!(
            "[device.{device}]\nbackend = \"null\"\n[vm.{vm}.volume.v]\ndevice = \"{device}\"\nsize = \"1MiB\"\nexport.socket = \"{}\"\n",
            socket.display()
        )
    };
    host(&(volume("x", "a") + &volume("y", "b")))
}

#[tokio::test]
async fn a_device_that_rejected_its_part_of_a_tolerant_start_kept_the_others_from_starting() {
    let folder = tempfile::tempdir().unwrap();
    let right = two_volumes(folder.path());
    let mut failing = Host::clone(&right);
    // The host file would not allow that its requests are never served.
    Arc::make_mut(failing.vms.get_mut("x").unwrap()).policy.weight = None;
    let mut server = Server::default();
    server.apply_with(&Arc::new(failing), &Extra::Tolerate).unwrap();
    let volume = |vm: &str| ObjectId::volume(vm, "v");
    let out: Vec<_> = server.absent().out_of_service().map(|(name, _)| name).collect();
    assert_eq!(out, [&ObjectId::Device("a".to_owned()), &volume("x")]);
    assert!(server.absent().get(&volume("x")).unwrap().reason().contains("never be served"), "{:?}", server.absent());
    assert!(server.served.contains_key(&volume("y")) && !server.devices.contains_key("a"));
    // It is started again when it is retried.
    server.host = Arc::clone(&right);
    server.apply_with(&right, &Extra::Retry(volume("x"))).unwrap();
    assert!(*server.absent() == Absent::default() && server.served.contains_key(&volume("x")));
}

#[tokio::test]
async fn a_change_of_a_device_that_was_down_was_accepted() {
    let text = "[device.a]\nbackend = \"null\"\n[device.b]\nbackend = \"null\"\n";
    let mut server = Server::with_a_dead_device(text, "a");
    server.down().notified().await;
    let health: Vec<_> = server.snapshots().into_iter().map(|device| (device.device, device.health)).collect();
    assert_eq!(health, [("a".to_owned(), Health::Down), ("b".to_owned(), Health::Serving)]);
    assert!(!server.is_dead(), "another one serves");
    let deeper = |device: &str| text.replace(&format!("[device.{device}]"), &format!("[device.{device}]\ndepth = 7"));
    assert!(matches!(server.apply(&host(&deeper("a"))), Err(ServerError::Down(device)) if device == "a"));
    assert_eq!(server.apply(&host(&deeper("b"))).unwrap().changes, 1);
    server.apply(&host("[device.a]\nbackend = \"null\"\n")).unwrap();
    assert!(server.is_dead());
    server.apply(&host("[device.b]\nbackend = \"null\"\n")).unwrap();
    server.apply(&host(text)).unwrap();
    assert!(server.snapshots().iter().all(|device| device.health == Health::Serving), "it restarted");
}

#[test]
fn busy_polling_is_switched_on_and_off_while_the_device_runs() {
    let off = "[device.a]\nbackend = \"null\"\n".to_owned();
    let on = format!("{off}busy_poll = true\n");
    let edits = |before: &str, after: &str| {
        let (old, new, none) = (host(before), host(after), BTreeMap::new());
        let changed = Changed(BTreeSet::new());
        let opened = (&none, &BTreeMap::new());
        commit::edits((&old, &new), &changed, opened, &none, &|_| true, &|_| (false, false))["a"].clone()
    };
    assert!(matches!(edits("", &on)[..], [Edit::SetBusyPoll(true)]), "a new device");
    assert!(matches!(edits(&off, &on)[..], [Edit::SetBusyPoll(true)]));
    assert!(matches!(edits(&on, &off)[..], [Edit::SetBusyPoll(false)]));
    assert!(edits(&on, &on).is_empty() && edits("", &off).is_empty());
}

#[test]
fn a_reload_of_the_capacity_alone_left_the_gate_with_the_old_one() {
    let text = "[device.a]\nbackend = \"null\"\ncapacity = \"1000 iops@8KiB\"\nbandwidth = \"100MiB/s\"\n";
    let edits = |after: &str| {
        let (old, new, none) = (host(text), host(after), BTreeMap::new());
        let edits = commit::edits(
            (&old, &new),
            &Changed(BTreeSet::new()),
            (&none, &BTreeMap::new()),
            &none,
            &|_| true,
            &|_| (false, false),
        );
        edits["a"].clone()
    };
    assert!(edits(text).is_empty());
    let half = edits(&text.replace("100MiB/s", "50MiB/s"));
    let [Edit::SetDevice { depth: 32, request_bytes, aim: None }] = half[..] else { panic!("{half:?}") };
    assert_eq!(request_bytes.0, (50 << 20) / 1000);
    let twice = edits(&text.replace("1000 iops", "2000 iops").replace("100MiB/s", "200MiB/s"));
    assert!(twice.is_empty(), "both are twice as large, so the bytes of a request stay");
}
