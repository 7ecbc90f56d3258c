//! `sluice reproduce --real --guests`: a figure with Linux guests, and that nothing of it stays behind.
//!
//! Rates on a busy machine are not tested. The guests are emulated, so no test needs KVM.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::common::browser::{DARK, LIGHT, assert_nothing_covered, look, screenshot};
use crate::common::{Place, run, run_within, sluice, start, until};
use rustix::process::Signal;
use serde_json::Value;

/// Guests need the whole machine.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
/// Maximum time of a figure, on a busy machine.
const FIGURE_MAX: Duration = Duration::from_secs(900);

fn alone() -> MutexGuard<'static, ()> {
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A run of Fig. 6 whose temporary files are in the place.
fn figure(place: &Place) -> Command {
    // Packages are downloaded once for all runs.
    let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join("guest-root");
    let temporary = place.file("temporary");
    std::fs::create_dir_all(&temporary).unwrap();
    let mut command = sluice();
    command.env("TMPDIR", temporary).args([
        "-o",
        "json",
        "reproduce",
        "--real",
        "--guests",
        "M4",
        "--quick",
        "--guest-root",
    ]);
    command.arg(root);
    command
}

/// Loop devices over files of the place.
fn loop_devices(place: &Place) -> Vec<PathBuf> {
    let is_over = |device: &PathBuf| {
        let file = std::fs::read_to_string(device.join("loop/backing_file")).unwrap_or_default();
        file.contains(place.folder().to_str().unwrap())
    };
    let devices = std::fs::read_dir("/sys/block").unwrap().map(|entry| entry.unwrap().path());
    devices.filter(is_over).collect()
}

/// Processes with a file of the place among their arguments, except the one itself.
fn processes(place: &Place, except: u32) -> Vec<u32> {
    let pids =
        std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
    let names = |pid: &u32| {
        let arguments = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&arguments).contains(place.folder().to_str().unwrap())
    };
    pids.filter(|pid| *pid != except && names(pid)).collect()
}

/// Control groups that the process has made.
fn groups(pid: u32) -> Vec<PathBuf> {
    let prefix = format!("sluice-real-{pid}-");
    let folders = ["/sys/fs/cgroup/blkio", "/sys/fs/cgroup"].into_iter().flat_map(std::fs::read_dir);
    let entries = folders.flatten().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with(&prefix)).collect()
}

#[track_caller]
fn assert_nothing_left(place: &Place, pid: u32) {
    let (devices, groups, processes) = (loop_devices(place), groups(pid), processes(place, pid));
    assert!(devices.is_empty() && groups.is_empty() && processes.is_empty(), "{devices:?} {groups:?} {processes:?}");
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(!mounts.contains(place.folder().to_str().unwrap()), "{mounts}");
    let temporary: Vec<_> = std::fs::read_dir(place.file("temporary")).unwrap().collect();
    assert!(temporary.is_empty(), "{temporary:?}");
}

#[test]
fn three_guests_measure_a_figure_on_one_real_file() {
    let _alone = alone();
    let place = Place::new();
    let out = place.file("out");
    let ended = run_within(figure(&place).arg("--out").arg(&out), FIGURE_MAX);
    let answer: Value = serde_json::from_str(&ended.stdout).unwrap_or_else(|error| panic!("{error}: {}", ended.stderr));
    assert_eq!(ended.code(), Some(if answer["ok"] == true { 0 } else { 1 }), "{}", ended.stderr);
    let trials = answer["figures"][0]["trials"].as_array().unwrap();
    let names: Vec<_> = trials.iter().map(|trial| trial["name"].as_str().unwrap()).collect();
    match answer["no_kernel"].as_str() {
        None => assert_eq!(names, ["sfqd", "mclock", "bfq", "blk-throttle"]),
        Some(reason) => assert!(!reason.is_empty() && names == ["sfqd", "mclock"], "{reason}: {names:?}"),
    }
    for (number, trial) in trials.iter().enumerate() {
        assert_eq!((&trial["speedup"], &trial["windows"]), (&1.into(), &18.into()), "{trial}");
        // One VM in the first interval, two in the second, three in the third, each with IOPS and latency.
        let values = trial["values"].as_array().unwrap();
        assert_eq!(values.len(), 12);
        for pair in values.chunks(2) {
            let [iops, latency] = [0, 1].map(|which| pair[which]["real"]["guest"].as_f64().unwrap());
            assert_eq!((&pair[0]["unit"], &pair[1]["unit"]), (&"IOPS".into(), &"ms".into()));
            // What the guest counts agrees with Little's law: at most 32 requests are outstanding, fewer if it lacks CPU time.
            // A request that ends in the interval of 5 s counts with its whole latency, also what of it was before: with a
            // latency of up to 2.5 s, the law gives up to 32 x 7.5 / 5.
            let outstanding = iops * latency / 1000.0;
            assert!((0.5..=48.0).contains(&outstanding), "{}: {outstanding} requests: {pair:?}", trial["name"]);
            assert!(pair[0]["paused_percent"]["guest"].as_f64().unwrap() <= 100.0);
            assert_eq!(pair[0]["simulated"].is_null(), number >= 2, "{pair:?}");
        }
    }
    assert!(ended.stderr.contains("mclock-reservations (Fig. 6): "), "{}", ended.stderr);
    assert_eq!(std::fs::read_dir(place.file("temporary")).unwrap().count(), 0);
    assert!(loop_devices(&place).is_empty());

    let page = out.join("guests.html");
    let light = look(&page, &LIGHT);
    assert_eq!(light["charts"].as_u64().unwrap() as usize, names.len(), "{light}");
    assert_nothing_covered(&light);
    for name in ["VM1", "VM3", "reservation of VM1", "the paper"] {
        assert!(light["labels"].as_array().unwrap().contains(&name.into()), "{name}: {light}");
    }
    for (name, options) in [("light", LIGHT), ("dark", DARK)] {
        screenshot(&page, &out.join(format!("guests-{name}.png")), &options);
    }
    let results: Value = serde_json::from_str(&std::fs::read_to_string(out.join("guests.json")).unwrap()).unwrap();
    assert_eq!(results, answer);
}

/// With the kernel's devices where they can be used: these trials come first.
#[test]
fn sigterm_leaves_no_guest_no_device_and_no_group_behind() {
    let _alone = alone();
    let place = Place::new();
    let running = start(&mut figure(&place));
    let pid = running.pid();
    until("the three guests run", || processes(&place, pid).len() >= 3);
    let has_kernel = !running.stderr.so_far().contains("The kernel's schedulers do not run");
    if has_kernel {
        until("each guest has a group", || groups(pid).len() == 3 && loop_devices(&place).len() == 1);
    }
    running.signal(Signal::TERM);
    let ended = running.end();
    assert_eq!(ended.code(), Some(1), "{}", ended.stderr);
    assert!(ended.stderr.contains("Interrupted; the temporary disks are removed"), "{}", ended.stderr);
    assert!(!ended.stderr.contains("Cannot remove"), "{}", ended.stderr);
    assert_nothing_left(&place, pid);
}

#[test]
fn what_is_missing_is_named_before_anything_runs() {
    let place = Place::new();
    let empty = place.file("empty");
    std::fs::create_dir(&empty).unwrap();
    // QEMU may be in a folder that is searched in any case only on machines that are not ours.
    let ended = run(sluice().env("PATH", &empty).args(["reproduce", "--real", "--guests", "M4"]));
    let text = "Guests: qemu-system-x86_64 is not installed; on Debian: apt-get install qemu-system-x86";
    assert!(ended.stderr.contains(text), "{}", ended.stderr);
    assert_eq!(ended.code(), Some(4));
    for (arguments, what) in [
        (
            &["--real", "--guests", "M3"][..],
            "'M3' does not run in guests; with --guests there are: all, mclock-reservations, mclock-oltp",
        ),
        (&["--guests", "M4"], "--real"),
        (&["--real", "--guest-root", "x", "M4"], "--guests"),
        (&["--real", "M3", "--docs", "x"], "--docs writes the page of all figures on real I/O; name all, or use --out"),
    ] {
        let ended = run(sluice().current_dir(place.folder()).arg("reproduce").args(arguments));
        assert!(ended.stderr.contains(what), "{arguments:?}: {}", ended.stderr);
    }
}
