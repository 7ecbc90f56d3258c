//! Restarts of a device thread.

use super::*;
use crate::backend::rings;

#[test]
fn a_thread_that_panicked_restarts_with_its_volumes() {
    let (_file, store) = file(1 << 20);
    let device = device(None);
    add(&device, Policy::default().reserving(100), store, 1 << 20);
    let mut client = connect(&device, 1 << 20);
    assert_eq!(ask(&mut client, Command::Write { offset: 0, data: &[9; 512], fua: false }), Ok(vec![]));
    device.mailbox.send(Message::Test(Fault::Panic)).unwrap();
    assert!(ends(client), "its connection ends");
    let mut again = connect(&device, 1 << 20);
    assert_eq!(ask(&mut again, Command::Read { offset: 0, len: 512 }), Ok(vec![9; 512]));
    assert_eq!(device.snapshot().unwrap().restarts, 1);
}

#[test]
fn a_restart_keeps_the_depth_in_force() {
    let never =
        DelaySpec { time: ServiceTime::Fixed(Duration::from_secs(3600)), parallel: 8, bandwidth: None, seed: 1 };
    let device = device(Some(never));
    add(&device, Policy::default(), StoreSpec::Null, 1 << 20);
    device.edit(vec![Edit::SetDevice { depth: 1, request_bytes: Bytes::kib(8), aim: None }]).unwrap();
    device.mailbox.send(Message::Test(Fault::Panic)).unwrap();
    let mut client = connect(&device, 1 << 20);
    for cookie in 0..4 {
        client.submit(cookie, Command::Read { offset: 0, len: 4096 }).unwrap();
    }
    while !client.flush_output().unwrap() {}
    let taken = loop {
        let snapshot = device.snapshot().unwrap();
        // Requests that arrive in an iteration are dispatched at its end.
        if snapshot.vms[0].outstanding == 4 && snapshot.in_flight > 0 {
            break snapshot;
        }
    };
    assert_eq!((taken.in_flight, taken.queued, taken.restarts), (1, 3, 1));
}

#[test]
fn a_restart_keeps_the_bytes_of_a_request_in_force() {
    let device = device(None);
    add(&device, Policy::default(), StoreSpec::Null, 1 << 20);
    let dispatched_bytes = || {
        let mut client = connect(&device, 1 << 20);
        assert_eq!(ask(&mut client, Command::Read { offset: 0, len: 512 }), Ok(vec![0; 512]));
        device.snapshot().unwrap().vms[0].account.dispatched_bytes
    };
    device.edit(vec![Edit::SetDevice { depth: 8, request_bytes: Bytes::mib(1), aim: None }]).unwrap();
    let before = dispatched_bytes();
    assert!(before > 512 << 10, "a small request counts as what the device transfers in its time: {before}");
    device.mailbox.send(Message::Test(Fault::Panic)).unwrap();
    while device.snapshot().is_none_or(|snapshot| snapshot.restarts == 0) {}
    assert_eq!(dispatched_bytes(), before);
}

#[test]
fn messages_that_arrive_just_before_a_restart_are_handled() {
    let device = device(None);
    add(&device, Policy::default(), StoreSpec::Null, 1 << 20);
    let (reply, answer) = channel();
    device.mailbox.leave(Message::Test(Fault::Panic));
    device.mailbox.leave(Message::Call(Call::Snapshot(reply)));
    device.mailbox.wake();
    // The time limit is only for a failing test.
    assert_eq!(answer.recv_timeout(Duration::from_secs(60)).unwrap().restarts, 1);
}

#[test]
fn a_job_result_from_before_a_restart_is_ignored() {
    let (_file, store) = file(1 << 20);
    let device = device(None);
    add(&device, Policy::default(), store, 1 << 20);
    let allocation = || BlockingResult::Allocation { io: IoId::new(0, 0), spans: Vec::new() };
    // The helper has sent its result; the thread panics before it reads it.
    let discard = BlockingResult::Discard { op: crate::store::OpIndex(0), result: 0 };
    for message in [
        Message::Test(Fault::Panic),
        Message::Command(DiskCommand::BlockingDone(0, allocation())),
        Message::Command(DiskCommand::BlockingDone(0, discard)),
    ] {
        device.mailbox.leave(message);
    }
    device.mailbox.wake();
    let mut client = connect(&device, 1 << 20);
    assert_eq!(ask(&mut client, Command::Read { offset: 0, len: 512 }), Ok(vec![0; 512]));
    assert_eq!(device.snapshot().unwrap().restarts, 1);
}

/// Creates a device, and a receiver that is notified when it goes down.
fn watched() -> (Device, std::sync::mpsc::Receiver<()>) {
    let (sender, receiver) = channel();
    let went_down = Box::new(move || sender.send(()).unwrap());
    (Device::start_watched(spec(None), went_down).unwrap(), receiver)
}

/// The time limit is only for a failing test.
const LONG: Duration = Duration::from_secs(60);

#[test]
fn a_device_that_failed_repeatedly_was_restarted_forever() {
    let (device, went_down) = watched();
    add(&device, Policy::default(), StoreSpec::Null, 1 << 20);
    (0..7).for_each(|_| device.mailbox.leave(Message::Test(Fault::Panic)));
    device.mailbox.wake();
    went_down.recv_timeout(LONG).unwrap();
    assert_eq!(device.health(), Health::Down);
    let seen = device.request_snapshot().until(Instant::now() + LONG);
    assert_eq!((seen.health, seen.restarts, seen.device.as_str()), (Health::Down, 6, "d"));
    assert!(device.snapshot().is_none());
    assert_eq!(device.edit(vec![]), Err(EditError::Stopped("d".to_owned())));
    assert!(device.stop().is_none());
}

#[test]
fn a_device_whose_restart_failed_once_was_down_immediately() {
    let (device, went_down) = watched();
    add(&device, Policy::default(), StoreSpec::Null, 1 << 20);
    device.mailbox.leave(Message::Test(Fault::RefuseRestarts(2)));
    device.mailbox.send(Message::Test(Fault::Panic)).unwrap();
    assert_eq!(device.edit(vec![Edit::RemoveVm { vm: "vm".to_owned() }]), Ok(()));
    assert_eq!((device.health(), device.snapshot().unwrap().restarts), (Health::Serving, 1));
    device.mailbox.leave(Message::Test(Fault::RefuseRestarts(u32::MAX)));
    device.mailbox.send(Message::Test(Fault::Panic)).unwrap();
    went_down.recv_timeout(LONG).unwrap();
    assert_eq!(device.health(), Health::Down);
}

#[test]
fn a_restart_waited_forever_for_a_file_system_that_did_not_respond() {
    let device = device(None);
    add(&device, Policy::default(), StoreSpec::Null, 1 << 20);
    let (answers, until) = channel();
    device.mailbox.leave(Message::Command(DiskCommand::HangHelper(until)));
    device.mailbox.send(Message::Test(Fault::Panic)).unwrap();
    assert_eq!(device.edit(vec![Edit::RemoveVm { vm: "vm".to_owned() }]), Ok(()));
    assert_eq!(device.snapshot().unwrap().restarts, 1);
    drop(answers);
}

#[test]
fn messages_that_arrive_in_the_pause_before_a_restart_are_handled_after_it() {
    let device = device(None);
    add(&device, Policy::default(), StoreSpec::Null, 1 << 20);
    // The second failure is followed by a pause.
    (0..3).for_each(|_| device.mailbox.leave(Message::Test(Fault::Panic)));
    device.mailbox.wake();
    assert_eq!(device.edit(vec![Edit::RemoveVm { vm: "vm".to_owned() }]), Ok(()));
    let snapshot = device.snapshot().unwrap();
    assert_eq!((snapshot.restarts, snapshot.vms.len()), (3, 0));
}

#[test]
fn a_thread_whose_state_could_not_be_read_ended_without_a_log_line() {
    let (device, went_down) = watched();
    add(&device, Policy::default(), StoreSpec::Null, 1 << 20);
    device.mailbox.send(Message::Test(Fault::PanicTwice)).unwrap();
    went_down.recv_timeout(LONG).unwrap();
    assert_eq!(device.health(), Health::Down);
}

#[test]
fn a_thread_that_failed_during_a_drain_was_restarted() {
    for ending in [Message::Call(Call::Drain), Message::Call(Call::Stop)] {
        let (device, went_down) = watched();
        device.mailbox.leave(ending);
        device.mailbox.leave(Message::Test(Fault::Panic));
        device.mailbox.wake();
        while !device.is_finished() {
            thread::yield_now();
        }
        assert_eq!(device.health(), Health::Ended);
        assert!(went_down.try_recv().is_err(), "it was stopped");
    }
}

/// A sealed process makes no ring. It runs in a process of its own, because the rings are those of the process.
#[test]
fn restarts_and_devices_that_follow_each_other_use_up_no_ring() {
    const SEALED: &str = "SLUICE_TEST_OF_SEALED_RINGS";
    const NAME: &str = "device::tests::restarts::restarts_and_devices_that_follow_each_other_use_up_no_ring";
    if std::env::var_os(SEALED).is_none() {
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        let ended = command.args(["--exact", NAME]).env(SEALED, "").output().unwrap();
        let said = String::from_utf8_lossy(&ended.stdout);
        return assert!(ended.status.success() && said.contains("1 passed"), "{said}");
    }
    rings::fill(1).unwrap();
    rings::seal();
    for _ in 0..200 {
        let device = device(None);
        add(&device, Policy::default(), StoreSpec::Null, 1 << 20);
        device.mailbox.send(Message::Test(Fault::Panic)).unwrap();
        while device.snapshot().is_none_or(|snapshot| snapshot.restarts == 0) {}
        let mut client = connect(&device, 1 << 20);
        assert_eq!(ask(&mut client, Command::Read { offset: 0, len: 512 }), Ok(vec![0; 512]));
    }
    assert_eq!(rings::count(), Some(rings::Count { free: 0, lost: 0 }));
    let _only = device(None);
    let Err(error) = Device::start(spec(None)) else { panic!("there is one ring") };
    assert!(error.to_string().contains("rings are used up: restart it"), "{error}");
}
