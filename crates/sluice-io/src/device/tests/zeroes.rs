//! Zeroing on volumes that can do it by themselves and on volumes that cannot.

use std::os::unix::fs::{FileExt as _, MetadataExt as _};

use sluice_sched::units::{Bytes, Iops};

use super::*;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// A line of the delay's log: the kind, and the length in bytes.
type Submitted = (String, u64);

/// Creates a device with small pieces: writes of 64 KiB, discards and zeroes of 1 MiB. Its log has all dispatched
/// requests.
fn logged(scheduler: &str, merging: bool) -> (Device, tempfile::NamedTempFile) {
    let log = tempfile::NamedTempFile::new().unwrap();
    let descriptor = schedulers::find(scheduler).unwrap();
    let scheduler = SchedulerSpec { descriptor, info: DeviceInfo::default(), params: Default::default() };
    let (transfer_max, discard_max) = (Bytes::kib(64), Bytes::mib(1));
    let gate = GateSettings { transfer_max, discard_max, merging, ..GateSettings::default() };
    let time = ServiceTime::Fixed(Duration::from_micros(1));
    let delay = Some(DelaySpec { time, parallel: 8, bandwidth: None, seed: 1 });
    let delay_log = Some(Arc::new(slot_log::open(log.path()).unwrap()));
    (
        Device::start(DeviceSpec { name: "d".to_owned(), scheduler, gate, delay, aim: None, delay_log, model: None })
            .unwrap(),
        log,
    )
}

fn submitted(log: &tempfile::NamedTempFile) -> Vec<Submitted> {
    let text = std::fs::read_to_string(log.path()).unwrap();
    let lines = text.lines().skip(1).map(|line| line.split(',').collect::<Vec<_>>());
    lines.map(|fields| (fields[7].to_owned(), fields[8].parse().unwrap())).collect()
}

/// Returns the number of requests of a kind, and their bytes.
fn of_kind(submitted: &[Submitted], kind: Kind) -> (usize, u64) {
    let lengths = submitted.iter().filter(|(name, _)| name == kind.name()).map(|(_, length)| length);
    (lengths.clone().count(), lengths.sum())
}

/// Creates a file of `len` non-zero bytes.
fn full(len: u64) -> (tempfile::NamedTempFile, StoreSpec) {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().write_all_at(&vec![7; len as usize], 0).unwrap();
    let store = store(file.path());
    (file, store)
}

fn refuse_zeroing(device: &Device, after: u32) {
    device.mailbox.send(Message::Command(DiskCommand::RefuseZeroing(after))).unwrap();
}

fn zeroes(offset: u64, len: u64, no_hole: bool) -> Command<'static> {
    Command::WriteZeroes { offset, len: len as u32, no_hole, fast: false }
}

/// Whether a range is zero and the rest of the file is unchanged.
fn is_zeroed(file: &tempfile::NamedTempFile, offset: u64, len: u64) -> bool {
    let content = std::fs::read(file.path()).unwrap();
    let within = |at: usize| (offset..offset + len).contains(&(at as u64));
    content.iter().enumerate().all(|(at, byte)| *byte == if within(at) { 0 } else { 7 })
}

#[test]
fn zeroes_that_were_written_passed_the_gate_as_one_cheap_request() {
    for no_hole in [false, true] {
        let (device, log) = logged("mclock", false);
        let (file, store) = full(8 * MIB);
        add(&device, Policy::default(), store, 8 * MIB);
        refuse_zeroing(&device, 0);
        let mut client = connect(&device, 8 * MIB);
        let (offset, len) = (4 * KIB, 3 * MIB + 36 * KIB);
        assert_eq!(ask(&mut client, zeroes(offset, len, no_hole)), Ok(vec![]));
        assert!(is_zeroed(&file, offset, len));
        let account = device.snapshot().unwrap().vms[0].account.clone();
        assert_eq!((account.bytes, account.failed), (len, 0));
        // It is known now, so there is no further attempt.
        assert_eq!(ask(&mut client, zeroes(offset, 2 * MIB, no_hole)), Ok(vec![]));
        device.stop();
        let submitted = submitted(&log);
        let attempts = if no_hole { 1 } else { 2 };
        assert_eq!(of_kind(&submitted, Kind::WriteZeroes), (attempts, attempts as u64 * MIB), "{submitted:?}");
        assert_eq!(of_kind(&submitted, Kind::Write), (49 + 32, len + 2 * MIB));
        assert!(submitted.iter().all(|(kind, length)| kind != "write" || *length <= 64 * KIB));
    }
}

#[test]
fn only_the_rest_is_written_after_a_late_refusal() {
    let (device, log) = logged("mclock", false);
    let (file, store) = full(8 * MIB);
    add(&device, Policy::default(), store, 8 * MIB);
    // Two holes are punched. After that the file system supports neither holes nor zeroing of ranges.
    refuse_zeroing(&device, 2);
    let mut client = connect(&device, 8 * MIB);
    assert_eq!(ask(&mut client, zeroes(MIB, 5 * MIB, false)), Ok(vec![]));
    assert!(is_zeroed(&file, MIB, 5 * MIB));
    assert_eq!(device.snapshot().unwrap().vms[0].account.bytes, 3 * MIB);
    device.stop();
    let submitted = submitted(&log);
    assert_eq!(of_kind(&submitted, Kind::WriteZeroes), (4, 4 * MIB), "two succeeded, two refused: {submitted:?}");
    assert_eq!(of_kind(&submitted, Kind::Write), (48, 3 * MIB));
}

#[test]
fn queued_zeroes_return_to_the_gate_after_a_refusal_and_are_written_once() {
    let (device, log) = logged("mclock", false);
    let (file, store) = full(8 * MIB);
    add(&device, Policy::default(), store, 8 * MIB);
    refuse_zeroing(&device, 0);
    let mut client = connect(&device, 8 * MIB);
    let commands: Vec<_> = (0..8).map(|number| zeroes(number * MIB, MIB, true)).collect();
    assert!(ask_all(&mut client, &commands).iter().all(|answer| *answer == Ok(vec![])));
    assert!(is_zeroed(&file, 0, 8 * MIB));
    assert_eq!(device.snapshot().unwrap().vms[0].account.bytes, 8 * MIB);
    device.stop();
    let written = of_kind(&submitted(&log), Kind::Write);
    assert_eq!(written, (128, 8 * MIB), "each was written once, in pieces");
}

#[test]
fn fast_zeroes_that_would_be_written_are_refused_and_change_nothing() {
    let (device, log) = logged("mclock", false);
    let (file, store) = full(4 * MIB);
    add(&device, Policy::default(), store, 4 * MIB);
    refuse_zeroing(&device, 0);
    let mut client = connect(&device, 4 * MIB);
    for _ in 0..3 {
        let fast = Command::WriteZeroes { offset: 0, len: 2 << 20, no_hole: true, fast: true };
        assert_eq!(ask(&mut client, fast), Err(Errno::Enotsup));
    }
    assert!(is_zeroed(&file, 0, 0));
    device.stop();
    assert_eq!(submitted(&log).len(), 1, "only the first attempt is dispatched");
}

#[test]
fn written_zeroes_are_merged_with_adjacent_data() {
    let (device, log) = logged("noop", true);
    let (file, store) = full(MIB);
    add(&device, Policy::default(), store, MIB);
    refuse_zeroing(&device, 0);
    let mut client = connect(&device, MIB);
    assert_eq!(ask(&mut client, zeroes(0, 4 * KIB, true)), Ok(vec![]));
    let write = |page: u64| Command::Write { offset: page * 4 * KIB, data: &[7; 4096], fua: false };
    for _ in 0..20 {
        // One write for each slot, so that later ones are queued and can be merged.
        let mut commands: Vec<_> = (100..132).map(write).collect();
        commands.extend([write(1), zeroes(8 * KIB, 8 * KIB, true), write(4), zeroes(20 * KIB, 4 * KIB, true)]);
        assert!(ask_all(&mut client, &commands).iter().all(|answer| *answer == Ok(vec![])));
        let mut expected = vec![7; MIB as usize];
        expected[..4096].fill(0);
        expected[2 * 4096..4 * 4096].fill(0);
        expected[5 * 4096..6 * 4096].fill(0);
        assert!(std::fs::read(file.path()).unwrap() == expected);
    }
    assert_eq!(device.snapshot().unwrap().vms[0].account.failed, 0);
    device.stop();
    let merged = submitted(&log).iter().filter(|(_, length)| *length > 8 * KIB).count();
    assert!(merged > 0, "none was merged");
}

/// A policy that allows one request now, and the next one in 1000 s.
fn held_back() -> Policy {
    let mut policy = Policy::default();
    policy.limit.iops = Some(Iops::from_milli(1));
    policy.burst = Some(1);
    policy
}

#[test]
fn a_request_for_4_gib_of_zeroes_has_four_pieces_at_the_gate_and_not_65536() {
    const SIZE: u64 = 8 << 30;
    let (device, _log) = logged("mclock", false);
    let (_file, store) = file(SIZE);
    add(&device, held_back(), store, SIZE);
    refuse_zeroing(&device, 0);
    let mut client = connect(&device, SIZE);
    let len = !511;
    client.submit(1, Command::WriteZeroes { offset: 0, len, no_hole: true, fast: false }).unwrap();
    while !client.flush_output().unwrap() {}
    let snapshot = loop {
        // polls: the attempt has been refused and the request has arrived as a write.
        let snapshot = device.snapshot().unwrap();
        let attempted = snapshot.vms[0].account.dispatched.iter().sum::<u64>() > 0;
        if attempted && snapshot.queued > 0 && snapshot.in_flight == 0 {
            break snapshot;
        }
        thread::yield_now();
    };
    assert_eq!((snapshot.queued, snapshot.vms[0].outstanding), (4, 1));
    // The client's next request fits into the window, which a read of 32 MiB would fill.
    client.submit(2, Command::Read { offset: 0, len: 4096 }).unwrap();
    while !client.flush_output().unwrap() {}
    while device.snapshot().unwrap().queued < 5 {
        thread::yield_now();
    }
    drop(client);
    while device.snapshot().unwrap().vms[0].outstanding > 0 {
        thread::yield_now();
    }
    assert_eq!(device.snapshot().unwrap().queued, 0);
}

#[test]
fn zeroes_are_not_written_if_the_device_can_zero() {
    let (device, log) = logged("mclock", false);
    let (file, store) = full(8 * MIB);
    add(&device, Policy::default(), store, 8 * MIB);
    let mut client = connect(&device, 8 * MIB);
    assert_eq!(ask(&mut client, zeroes(0, 8 * MIB, false)), Ok(vec![]));
    assert!(is_zeroed(&file, 0, 8 * MIB));
    assert!(file.as_file().metadata().unwrap().blocks() * 512 < 8 * MIB, "there are holes");
    device.stop();
    let submitted = submitted(&log);
    assert_eq!(of_kind(&submitted, Kind::WriteZeroes), (8, 8 * MIB), "{submitted:?}");
}
