use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Instant;

use sluice_sched::scheduler::DeviceInfo;
use sluice_sched::{Bytes, GateSettings, Kind, Policy, schedulers};

use super::*;
use crate::device::command::Command as DiskCommand;
use crate::nbd::export::Export;
use crate::nbd::handshake::{Exports, Listed};
use crate::nbd::negotiate::negotiate_blocking;
use crate::nbd::wire::{self, RequestHeader};
use crate::reactor::message::{Call, Fault};
use crate::slab::{Id as _, IoId};
use crate::source::{Loss, Source, SourceSpec};
use crate::store::delay::{DelaySpec, ServiceTime};
use crate::store::file::jobs::BlockingResult;
use crate::store::slot_log;
use crate::volume::VolumeInfo;
use sluice_client::nbd::Errno;
use sluice_client::nbd::{Client, ClientOptions, Command};

mod bridged;
mod budget;
mod clients;
mod cpu;
mod departures;
mod gateway;
mod modelled;
mod order;
mod polling;
mod remote;
mod restarts;
mod zeroes;

fn spec(delay: Option<DelaySpec>) -> DeviceSpec {
    let scheduler = SchedulerSpec {
        descriptor: schedulers::find("mclock").unwrap(),
        info: DeviceInfo::default(),
        params: Default::default(),
    };
    let gate = GateSettings::default();
    DeviceSpec { name: "d".to_owned(), scheduler, gate, delay, aim: None, delay_log: None, model: None }
}

fn device(delay: Option<DelaySpec>) -> Device {
    Device::start(spec(delay)).unwrap()
}

fn info(size_bytes: u64) -> VolumeInfo {
    VolumeInfo { block_maximum: 32 << 20, ..VolumeInfo::with_all_features(size_bytes) }
}

fn add(device: &Device, policy: Policy, store: StoreSpec, size: u64) {
    let window = Window { requests: 64, bytes: 32 << 20 };
    let add_vm = Edit::AddVm { vm: "vm".to_owned(), policy, window };
    device.edit(vec![add_vm, add_volume("disk", VolumeGeneration::default(), store, size)]).unwrap();
}

fn add_volume(name: &str, generation: VolumeGeneration, store: StoreSpec, size: u64) -> Edit {
    let (name, policy, info) = (name.to_owned(), Policy::default(), info(size));
    let volume = Box::new(VolumeSpec { name, generation, policy, store, info });
    Edit::AddVolume { vm: "vm".to_owned(), volume }
}

struct One(Export);

impl Exports for One {
    fn list(&self) -> Vec<Listed> {
        vec![Listed { name: self.0.name.clone(), description: String::new() }]
    }

    fn find(&self, _name: &str) -> Option<Export> {
        Some(self.0.clone())
    }
}

fn connect(device: &Device, size: u64) -> Client {
    connect_to(device, VolumeGeneration::default(), size)
}

fn connect_to(device: &Device, generation: VolumeGeneration, size: u64) -> Client {
    connect_as(device, ("vm", "disk"), generation, size)
}

fn connect_as(device: &Device, names: (&str, &str), generation: VolumeGeneration, size: u64) -> Client {
    connect_by(UnixStream::pair().unwrap(), device, names, generation, size)
}

fn connect_by(
    pair: (UnixStream, UnixStream),
    device: &Device,
    names: (&str, &str),
    generation: VolumeGeneration,
    size: u64,
) -> Client {
    let options = ClientOptions { keep_data: true, base_allocation: true, ..ClientOptions::default() };
    connect_with(&options, pair, device, names, (generation, size))
}

/// Connects a client without structured replies, which gets the data of a hole.
fn connect_simply(device: &Device, size: u64) -> Client {
    let options = ClientOptions { structured_replies: false, ..ClientOptions::default() };
    connect_with(&options, UnixStream::pair().unwrap(), device, ("vm", "disk"), (VolumeGeneration::default(), size))
}

fn connect_with(
    options: &ClientOptions,
    (ours, mut theirs): (UnixStream, UnixStream),
    device: &Device,
    (vm, volume): (&str, &str),
    (generation, size): (VolumeGeneration, u64),
) -> Client {
    let (vm, volume) = (vm.to_owned(), volume.to_owned());
    let device = device.nbd();
    let server = thread::spawn(move || {
        let negotiated = negotiate_blocking(
            &mut theirs,
            &One(Export { info: info(size), ..Export::with_all_features("vm/disk", size) }),
        )
        .unwrap();
        let socket = OwnedFd::from(theirs);
        let offered = info(size);
        device.attach(Arrived {
            vm,
            volume,
            generation,
            socket,
            negotiated,
            offered,
            peer: "test".to_owned(),
            permit: Box::new(()),
            handshake: Duration::ZERO,
        });
    });
    let client = Client::from_unix(ours, "vm/disk", options).unwrap();
    server.join().unwrap();
    client
}

/// Submits one request, and returns the result.
fn ask(client: &mut Client, command: Command<'_>) -> Result<Vec<u8>, Errno> {
    client.submit(1, command).unwrap();
    let mut answer = None;
    while answer.is_none() {
        client.flush_output().unwrap();
        client.receive(None, &mut |reply| answer = Some(reply.result.map(|()| reply.data.to_vec()))).unwrap();
    }
    answer.unwrap()
}

/// Whether the server closes this connection, before or after one more request.
fn ends(mut client: Client) -> bool {
    let sent = client.submit(99, Command::Flush).and_then(|()| client.flush_output());
    sent.is_err() || client.receive(None, &mut |_| ()).is_err()
}

fn file(size: u64) -> (tempfile::NamedTempFile, StoreSpec) {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(size).unwrap();
    let store = store(file.path());
    (file, store)
}

fn store(path: &std::path::Path) -> StoreSpec {
    let spec = SourceSpec { buffered: true, ..SourceSpec::whole(path) };
    let source = Arc::new(Source::open_within(&spec, Duration::from_secs(10)).unwrap());
    let extents = source.extents().ok();
    StoreSpec::File(FileSpec { source, extents })
}

#[test]
fn a_client_came_between_the_last_look_at_a_volume_and_its_end() {
    let device = device(None);
    add(&device, Policy::default(), StoreSpec::Null, 1 << 20);
    let names = || vec![("vm".to_owned(), "disk".to_owned())];
    let refuse = || device.refuse_clients(names(), Duration::from_secs(60));
    let mut client = connect(&device, 1 << 20);
    let read = Command::Read { offset: 0, len: 512 };
    ask(&mut client, read).unwrap();
    assert_eq!(refuse(), Err(EditError::InUse(names())));
    // The change was refused, so clients are still accepted.
    let mut other = connect(&device, 1 << 20);
    ask(&mut other, read).unwrap();
    drop((client, other));
    while refuse().is_err() {
        // polls: the device notices that its clients have gone.
        thread::yield_now();
    }
    assert!(ends(connect(&device, 1 << 20)));
    device.handle().reopen(names());
    ask(&mut connect(&device, 1 << 20), read).unwrap();
}

#[test]
fn many_messages_kept_the_device_thread_from_requests_until_all_were_handled() {
    let device = device(None);
    add(&device, Policy::default(), StoreSpec::Null, 1 << 20);
    let answers: Vec<_> = (0..100)
        .map(|_| {
            let (reply, answer) = channel();
            device.mailbox.leave(Message::Call(Call::Snapshot(reply)));
            answer
        })
        .collect();
    device.mailbox.wake();
    let at: Vec<u64> = answers.into_iter().map(|answer| answer.recv().unwrap().iterations).collect();
    assert!(at.is_sorted() && at[99] - at[0] >= 12, "8 in each iteration: {at:?}");
}

#[test]
fn a_device_that_refuses_a_scheduler_was_called_a_vm() {
    let device = device(None);
    let mut policy = Policy::default();
    policy.reservation.iops = Some(sluice_sched::Iops::per_second(100));
    add(&device, policy, StoreSpec::Null, 1 << 30);
    let bytes_alone = SchedulerSpec {
        descriptor: sluice_papers::find("wrr").unwrap(),
        info: DeviceInfo::default(),
        params: Default::default(),
    };
    let refused = device.edit(vec![Edit::SetScheduler { scheduler: bytes_alone, merging: false }]).unwrap_err();
    let text = refused.to_string();
    assert!(text.contains("supports a reservation only in bytes") && !text.contains("VM d"), "{text}");
}

#[test]
fn a_vm_with_or_without_clients_is_removed_and_others_stay() {
    let device = device(None);
    let window = Window { requests: 64, bytes: 32 << 20 };
    for volumes in 0..3 {
        let vm = format!("vm{volumes}");
        let mut edits = vec![Edit::AddVm { vm: vm.clone(), policy: Policy::default(), window }];
        edits.extend((0..volumes).map(|number| {
            let (name, policy, generation) = (format!("disk{number}"), Policy::default(), VolumeGeneration::default());
            let volume = Box::new(VolumeSpec { name, generation, policy, store: StoreSpec::Null, info: info(1 << 20) });
            Edit::AddVolume { vm: vm.clone(), volume }
        }));
        device.edit(edits).unwrap();
        device.edit(vec![Edit::RemoveVm { vm }]).unwrap();
    }
    add(&device, Policy::default(), StoreSpec::Null, 1 << 30);
    let client = connect(&device, 1 << 30);
    device.edit(vec![Edit::RemoveVm { vm: "vm".to_owned() }]).unwrap();
    assert!(ends(client));
    let snapshot = device.snapshot().unwrap();
    assert_eq!((snapshot.vms.len(), snapshot.restarts), (0, 0));
}

#[test]
fn a_null_device_reads_zeroes_and_accepts_writes() {
    let device = device(None);
    add(&device, Policy::default(), StoreSpec::Null, 1 << 30);
    let mut client = connect(&device, 1 << 30);
    let data = ask(&mut client, Command::Read { offset: 4096, len: 1 << 20 }).unwrap();
    assert!(data.len() == 1 << 20 && data.iter().all(|byte| *byte == 0));
    assert_eq!(ask(&mut client, Command::Write { offset: 0, data: &[1; 8192], fua: true }), Ok(vec![]));
    assert_eq!(ask(&mut client, Command::Flush), Ok(vec![]));
    let snapshot = device.snapshot().unwrap();
    assert_eq!(snapshot.vms[0].account.completed()[Kind::Write as usize], 1);
    assert_eq!(snapshot.connections, 1);
}

#[test]
fn the_statistics_of_an_idle_vm_were_copied_for_each_snapshot() {
    let device = device(None);
    add(&device, Policy::default(), StoreSpec::Null, 1 << 30);
    device.edit(vec![add_volume("other", VolumeGeneration::default(), StoreSpec::Null, 1 << 20)]).unwrap();
    let mut client = connect(&device, 1 << 30);
    let copies = || {
        let vm = device.snapshot().unwrap().vms.remove(0);
        let volume = |name: &str| vm.volumes.iter().find(|volume| volume.volume == name).unwrap().account.clone();
        [vm.account.clone(), volume("disk").unwrap(), volume("other").unwrap()]
    };
    let is_shared = |one: [Arc<_>; 3], other: [Arc<_>; 3]| [0, 1, 2].map(|at| Arc::ptr_eq(&one[at], &other[at]));
    let first = copies();
    assert_eq!(is_shared(first.clone(), copies()), [true; 3]);
    assert_eq!(ask(&mut client, Command::Flush), Ok(vec![]));
    assert_eq!(is_shared(first, copies()), [false, false, true], "only the idle volume's");
}

#[test]
fn written_data_is_read_across_pieces_and_zeroed() {
    let (_file, store) = file(8 << 20);
    let device = device(None);
    add(&device, Policy::default(), store, 8 << 20);
    let mut client = connect(&device, 8 << 20);
    let written: Vec<u8> = (0..3_000_832u32).map(|byte| ((byte * 31) >> 3) as u8).collect();
    assert_eq!(ask(&mut client, Command::Write { offset: 1536, data: &written, fua: false }), Ok(vec![]));
    let read = ask(&mut client, Command::Read { offset: 1536, len: written.len() as u32 }).unwrap();
    assert!(read == written);
    let zero = Command::WriteZeroes { offset: 4096, len: 1 << 20, no_hole: false, fast: false };
    assert_eq!(ask(&mut client, zero), Ok(vec![]));
    let read = ask(&mut client, Command::Read { offset: 4096, len: 1 << 20 }).unwrap();
    assert!(read.iter().all(|byte| *byte == 0));
    assert_eq!(ask(&mut client, Command::Trim { offset: 0, len: 1 << 20 }), Ok(vec![]));
    assert_eq!(ask(&mut client, Command::Read { offset: 8 << 20, len: 512 }), Err(Errno::Einval));
    assert_eq!(ask(&mut client, Command::Write { offset: 8 << 20, data: &[0; 512], fua: false }), Err(Errno::Enospc));
    assert_eq!(ask(&mut client, Command::Read { offset: 1, len: 512 }), Err(Errno::Einval));
}

#[test]
fn a_file_that_became_shorter_is_an_error_not_a_wrong_answer() {
    let (file, store) = file(1 << 20);
    let device = device(None);
    add(&device, Policy::default(), store, 1 << 20);
    let mut client = connect(&device, 1 << 20);
    file.as_file().set_len(8192).unwrap();
    assert_eq!(ask(&mut client, Command::Read { offset: 0, len: 8192 }), Ok(vec![0; 8192]));
    assert_eq!(ask(&mut client, Command::Read { offset: 4096, len: 8192 }), Err(Errno::Eio));
}

#[test]
fn a_client_whose_handshake_started_before_its_volume_was_replaced_read_the_new_disk() {
    let device = device(None);
    let [old, new] = [(); 2].map(|()| VolumeGeneration::next());
    add(&device, Policy::default(), StoreSpec::Null, 1 << 20);
    device.edit(vec![Edit::RemoveVolume { vm: "vm".to_owned(), volume: "disk".to_owned() }]).unwrap();
    device.edit(vec![add_volume("disk", new, StoreSpec::Null, 1 << 20)]).unwrap();
    assert!(ends(connect_to(&device, old, 1 << 20)));
    device.mailbox.send(Message::Test(Fault::Panic)).unwrap();
    assert!(ends(connect_to(&device, old, 1 << 20)), "also after a restart");
    assert_eq!(ask(&mut connect_to(&device, new, 1 << 20), Command::Flush), Ok(vec![]));
}

#[test]
fn invalid_bytes_close_only_their_connection() {
    let device = device(None);
    add(&device, Policy::default(), StoreSpec::Null, 1 << 30);
    let mut good = connect(&device, 1 << 30);
    let bad = connect(&device, 1 << 30);
    let socket = rustix::io::dup(&bad).unwrap();
    let mut socket = UnixStream::from(socket);
    socket.write_all(&[0xff; 28]).unwrap();
    assert!(ends(bad));
    assert_eq!(ask(&mut good, Command::Flush), Ok(vec![]));
    assert_eq!(device.snapshot().unwrap().vms[0].protocol_errors, 1);
}

#[test]
fn a_read_of_a_null_volume_is_answered_by_a_hole_without_data() {
    let device = device(None);
    add(&device, Policy::default(), StoreSpec::Null, 1 << 20);
    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut raw = ours.try_clone().unwrap();
    let mut client = connect_by((ours, theirs), &device, ("vm", "disk"), VolumeGeneration::default(), 1 << 20);
    assert_eq!(ask(&mut client, Command::Read { offset: 512, len: 4096 }), Ok(vec![0; 4096]));
    raw.set_nonblocking(false).unwrap();
    for cookie in [7, 8] {
        let command = wire::Command::Read.into();
        let header = RequestHeader { flags: 0, command, cookie, offset: 8192, length: 4096 };
        raw.write_all(&header.encode()).unwrap();
        let mut reply = [0; 32];
        raw.read_exact(&mut reply).unwrap();
        assert_eq!(reply, wire::offset_hole_chunk(cookie, 8192, 4096));
    }
}

#[test]
fn a_client_that_did_not_read_its_reply_stopped_all_others_of_its_vm() {
    let device = device(None);
    let window_bytes = 32 << 20;
    add(&device, Policy::default(), StoreSpec::Null, window_bytes);
    let mut deaf = connect_simply(&device, window_bytes);
    deaf.submit(1, Command::Read { offset: 0, len: window_bytes as u32 }).unwrap();
    while !deaf.flush_output().unwrap() {}
    while device.snapshot().unwrap().vms[0].outstanding == 0 {}
    let mut other = connect(&device, window_bytes);
    // The reply has a time limit of 30 s, and 1 s more for each MiB.
    device.mailbox.send(Message::Test(Fault::Advance(Duration::from_secs(40)))).unwrap();
    (0..2).for_each(|_| drop(device.snapshot()));
    let snapshot = device.snapshot().unwrap();
    assert_eq!((snapshot.connections, snapshot.vms[0].protocol_errors), (2, 0));
    device.mailbox.send(Message::Test(Fault::Advance(Duration::from_secs(30)))).unwrap();
    assert_eq!(ask(&mut other, Command::Flush), Ok(vec![]));
    let snapshot = device.snapshot().unwrap();
    assert_eq!((snapshot.connections, snapshot.vms[0].protocol_errors), (1, 1));
    assert!(ends(deaf));
}

#[test]
fn a_removed_volume_returns_its_queue_and_its_lock() {
    let (file, first) = file(1 << 20);
    let slow = DelaySpec { time: ServiceTime::Fixed(Duration::from_millis(20)), parallel: 1, bandwidth: None, seed: 1 };
    let device = device(Some(slow));
    add(&device, Policy::default(), first, 1 << 20);
    let mut client = connect(&device, 1 << 20);
    for cookie in 0..40 {
        client.submit(cookie, Command::Read { offset: 0, len: 4096 }).unwrap();
    }
    client.flush_output().unwrap();
    client.receive(None, &mut |_| ()).unwrap();
    device.edit(vec![Edit::RemoveVm { vm: "vm".to_owned() }]).unwrap();
    while client.receive(None, &mut |_| ()).is_ok() {}
    // The lock ends with the last request in flight.
    add(&device, Policy::default(), store(file.path()), 1 << 20);
    assert_eq!(ask(&mut connect(&device, 1 << 20), Command::Flush), Ok(vec![]));
}

#[test]
fn a_disconnected_client_abandons_only_its_own_requests() {
    let slow = DelaySpec { time: ServiceTime::Fixed(Duration::from_millis(2)), parallel: 2, bandwidth: None, seed: 1 };
    let device = device(Some(slow));
    add(&device, Policy::default(), StoreSpec::Null, 1 << 20);
    let mut clients = [connect(&device, 1 << 20), connect(&device, 1 << 20)];
    for client in &mut clients {
        for cookie in 0..20 {
            client.submit(cookie, Command::Read { offset: 0, len: 4096 }).unwrap();
        }
        while !client.flush_output().unwrap() {}
    }
    let [leaves, mut stays] = clients;
    drop(leaves);
    let mut answers = 0;
    while answers < 20 {
        stays.receive(None, &mut |reply| answers += u32::from(reply.result.is_ok())).unwrap();
    }
    drop(stays);
    assert_eq!(ask(&mut connect(&device, 1 << 20), Command::Flush), Ok(vec![]));
    let snapshot = device.snapshot().unwrap();
    assert_eq!((snapshot.in_flight, snapshot.restarts), (0, 0));
}

#[test]
fn a_vm_that_was_removed_and_added_again_is_found() {
    let device = device(None);
    for _ in 0..2 {
        add(&device, Policy::default(), StoreSpec::Null, 1 << 20);
        let client = connect(&device, 1 << 20);
        device.edit(vec![Edit::RemoveVm { vm: "vm".to_owned() }]).unwrap();
        assert_eq!(
            device.edit(vec![Edit::RemoveVm { vm: "vm".to_owned() }]),
            Err(EditError::Unknown("VM vm".to_owned()))
        );
        assert!(ends(client));
    }
}

#[test]
fn draining_answers_all_requests_first() {
    [false, true].into_iter().for_each(drains);
}

/// Drains a device with requests, whose loop polls or does not.
fn drains(polls: bool) {
    let slow = DelaySpec { time: ServiceTime::Fixed(Duration::from_millis(2)), parallel: 4, bandwidth: None, seed: 1 };
    let device = device(Some(slow));
    device.edit(vec![Edit::SetBusyPoll(polls)]).unwrap();
    add(&device, Policy::default(), StoreSpec::Null, 1 << 20);
    let mut client = connect(&device, 1 << 20);
    for cookie in 0..50 {
        client.submit(cookie, Command::Read { offset: 0, len: 4096 }).unwrap();
    }
    while !client.flush_output().unwrap() {}
    let mut answers = client.receive(None, &mut |_| ()).unwrap();
    device.drain();
    while client.in_flight() > 0 {
        answers += client.receive(None, &mut |_| ()).unwrap();
    }
    assert_eq!(answers, 50);
    assert!(ends(client));
}

/// Creates a device of depth 1 whose gate merges, and the log of its delay.
fn merging(time: Duration) -> (Device, tempfile::NamedTempFile) {
    let log = tempfile::NamedTempFile::new().unwrap();
    let descriptor = schedulers::find("noop").unwrap();
    let scheduler = SchedulerSpec { descriptor, info: DeviceInfo::default(), params: Default::default() };
    let gate = GateSettings { depth: 1, merging: true, ..GateSettings::default() };
    let delay = Some(DelaySpec { time: ServiceTime::Fixed(time), parallel: 1, bandwidth: None, seed: 1 });
    let delay_log = Some(Arc::new(slot_log::open(log.path()).unwrap()));
    (
        Device::start(DeviceSpec { name: "d".to_owned(), scheduler, gate, delay, aim: None, delay_log, model: None })
            .unwrap(),
        log,
    )
}

/// Submits all commands together. Returns the results by cookie.
fn ask_all(client: &mut Client, commands: &[Command<'_>]) -> Vec<Result<Vec<u8>, Errno>> {
    for (cookie, command) in commands.iter().enumerate() {
        client.submit(cookie as u64, *command).unwrap();
    }
    let mut answers = vec![None; commands.len()];
    while answers.iter().any(Option::is_none) {
        client.flush_output().unwrap();
        let mut keep = |reply: sluice_client::nbd::Reply<'_>| {
            let before = answers[reply.cookie as usize].replace(reply.result.map(|()| reply.data.to_vec()));
            assert!(before.is_none(), "answered once");
        };
        client.receive(None, &mut keep).unwrap();
    }
    answers.into_iter().flatten().collect()
}

#[test]
fn adjacent_requests_are_one_submission_and_each_gets_its_reply() {
    let (device, log) = merging(Duration::from_millis(100));
    let (file, store) = file(1 << 20);
    add(&device, Policy::default(), store, 1 << 20);
    let mut client = connect(&device, 1 << 20);
    let data: Vec<Vec<u8>> = (0..9u8).map(|page| vec![page + 1; 4096]).collect();
    let write = |page: usize| Command::Write { offset: page as u64 * 4096, data: &data[page], fua: page == 2 };
    let read = |page: u64| Command::Read { offset: page * 4096, len: 4096 };
    let answers = ask_all(&mut client, &[read(100), write(0), write(1), write(2), write(4), write(3), write(8)]);
    assert!(answers.iter().skip(1).all(|answer| *answer == Ok(vec![])));
    let answers = ask_all(&mut client, &[read(100), read(3), read(2), read(4), read(0), read(1), read(8)]);
    for (answer, page) in answers.iter().skip(1).zip([3, 2, 4, 0, 1, 8]) {
        assert_eq!(answer.as_deref(), Ok(&data[page][..]));
    }
    // Each part fails or succeeds separately.
    file.as_file().set_len(4096 * 3).unwrap();
    let answers = ask_all(&mut client, &[read(0), read(1), read(2), read(3)]);
    let ok: Vec<bool> = answers.iter().map(Result::is_ok).collect();
    assert_eq!(ok, [true, true, true, false]);
    let account = &device.snapshot().unwrap().vms[0].account;
    assert_eq!((account.completed()[0], account.completed()[1], account.failed), (11, 6, 1));
    device.stop();
    // The first line has the column names. Of 18 requests at least the six merged ones took no time of their own, even
    // if every first one was served before the others arrived.
    let slots = std::fs::read_to_string(log.path()).unwrap().lines().count() - 1;
    assert!(slots <= 12, "{slots} slots of the device for 18 requests");
}

#[test]
fn merged_requests_of_a_disconnected_client_are_dropped() {
    let (device, _log) = merging(Duration::from_millis(30));
    let (_file, store) = file(1 << 20);
    add(&device, Policy::default(), store, 1 << 20);
    let mut client = connect(&device, 1 << 20);
    for cookie in 0..32 {
        client.submit(cookie, Command::Read { offset: 4096 * (cookie % 16), len: 4096 }).unwrap();
    }
    while !client.flush_output().unwrap() {}
    client.receive(None, &mut |_| ()).unwrap();
    drop(client);
    assert_eq!(ask(&mut connect(&device, 1 << 20), Command::Flush), Ok(vec![]));
    let snapshot = device.snapshot().unwrap();
    assert_eq!((snapshot.queued, snapshot.in_flight, snapshot.vms[0].outstanding), (0, 0, 0));
}

#[test]
fn a_kernel_that_accepts_nothing_for_a_while_fails_no_request() {
    let (_file, store) = file(1 << 20);
    let device = device(None);
    add(&device, Policy::default(), store, 1 << 20);
    let mut client = connect(&device, 1 << 20);
    for times in [1, 2, 3, 50] {
        device.mailbox.send(Message::Test(Fault::RefuseSubmits(times))).unwrap();
        for cookie in 0..40 {
            let data = [times as u8; 4096];
            client.submit(cookie, Command::Write { offset: cookie * 4096, data: &data, fua: false }).unwrap();
        }
        let mut done = 0;
        while done < 40 {
            client.flush_output().unwrap();
            client.receive(None, &mut |reply| done += u32::from(reply.result.is_ok())).unwrap();
        }
        let read = ask(&mut client, Command::Read { offset: 39 * 4096, len: 4096 }).unwrap();
        assert!(read.iter().all(|byte| *byte == times as u8));
    }
    assert_eq!(device.snapshot().unwrap().restarts, 0);
}

#[test]
fn an_interrupted_operation_was_submitted_again_without_a_pause_and_a_limit() {
    let (_file, store) = file(1 << 20);
    let device = device(None);
    add(&device, Policy::default(), store, 1 << 20);
    let mut client = connect(&device, 1 << 20);
    let write = |client: &mut Client| ask(client, Command::Write { offset: 0, data: &[7; 4096], fua: false });
    device.mailbox.send(Message::Test(Fault::PutOff(3))).unwrap();
    assert_eq!(write(&mut client), Ok(Vec::new()), "it succeeds in the end");
    for command in [Command::Flush, Command::Read { offset: 0, len: 4096 }] {
        // Far more than an operation gets before it fails.
        device.mailbox.send(Message::Test(Fault::PutOff(10_000))).unwrap();
        assert_eq!(ask(&mut client, command), Err(Errno::Eio));
        device.mailbox.send(Message::Test(Fault::PutOff(0))).unwrap();
    }
    let (vm, volume) = ("vm".to_owned(), "disk".to_owned());
    device.edit(vec![Edit::AcceptLoss { vm, volume }]).unwrap();
    assert_eq!(write(&mut client), Ok(Vec::new()), "the next one succeeds too");
    assert_eq!(device.snapshot().unwrap().restarts, 0);
}

#[test]
fn a_write_that_the_kernel_has_not_accepted_goes_to_its_own_file_after_a_replacement() {
    let (image, store) = file(2 << 20);
    let StoreSpec::File(FileSpec { source, .. }) = &store else { unreachable!("it is a file") };
    let resized = Arc::new(source.resized(Some(2 << 20)).unwrap());
    let device = device(None);
    add(&device, Policy::default(), store, 2 << 20);
    let mut client = connect(&device, 2 << 20);
    device.mailbox.send(Message::Test(Fault::HoldWork(true))).unwrap();
    client.submit(1, Command::Write { offset: 0, data: &[7; 4096], fua: false }).unwrap();
    client.flush_output().unwrap();
    while device.snapshot().unwrap().in_flight == 0 {}
    let (vm, volume) = ("vm".to_owned(), "disk".to_owned());
    let store = StoreSpec::File(FileSpec { source: resized, extents: None });
    device.edit(vec![Edit::ResizeVolume { vm, volume, store, info: info(2 << 20) }]).unwrap();
    device.snapshot().unwrap();
    // If its number were free, one of these would have it now.
    let others: Vec<_> = (0..64).map(|_| tempfile::tempfile().unwrap()).collect();
    device.mailbox.send(Message::Test(Fault::HoldWork(false))).unwrap();
    let mut answer = None;
    client.receive(None, &mut |reply| answer = Some(reply.result)).unwrap();
    assert_eq!(answer, Some(Ok(())));
    assert!(others.iter().all(|other| other.metadata().unwrap().len() == 0), "it went to another file");
    assert_eq!(std::fs::read(image.path()).unwrap()[..4096], [7; 4096]);
    assert_eq!(ask(&mut client, Command::Read { offset: 0, len: 4096 }), Ok(vec![7; 4096]));
    device.edit(vec![Edit::RemoveVm { vm: "vm".to_owned() }]).unwrap();
    assert!(ends(client));
    // The lock ends with the last of both descriptions, which the helper thread closes: opening waits for it.
    drop(self::store(image.path()));
}

#[test]
fn a_loss_persists_after_a_restart_and_for_volumes_opened_later() {
    let image = tempfile::NamedTempFile::new().unwrap();
    image.as_file().set_len(2 << 20).unwrap();
    let half = |offset| {
        let spec = SourceSpec { offset, length: Some(1 << 20), buffered: true, ..SourceSpec::whole(image.path()) };
        Arc::new(Source::open(&spec).unwrap())
    };
    let first = half(0);
    first.set_loss(Loss::OfFile);
    let device = device(None);
    add(&device, Policy::default(), StoreSpec::File(FileSpec { source: first, extents: None }), 1 << 20);
    device.mailbox.send(Message::Test(Fault::Panic)).unwrap();
    let mut client = connect(&device, 1 << 20);
    let write = Command::Write { offset: 0, data: &[9; 512], fua: false };
    assert_eq!(ask(&mut client, write), Err(Errno::Eio));
    let later = half(1 << 20);
    let store = StoreSpec::File(FileSpec { source: Arc::clone(&later), extents: None });
    device.edit(vec![add_volume("later", VolumeGeneration::default(), store, 1 << 20)]).unwrap();
    assert_eq!(later.loss(), Loss::OfFile);
    device.edit(vec![Edit::AcceptLoss { vm: "vm".to_owned(), volume: "later".to_owned() }]).unwrap();
    assert_eq!((later.loss(), device.snapshot().unwrap().restarts), (Loss::None, 1));
    assert_eq!(ask(&mut client, Command::Write { offset: 0, data: &[9; 512], fua: false }), Ok(vec![]));
}
