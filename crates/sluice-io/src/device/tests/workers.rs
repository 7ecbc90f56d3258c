//! Devices with several threads.

use std::time::Instant;

use sluice_sched::{Gate, Iops};

use super::*;

fn device_with(threads: u32, delay: Option<DelaySpec>) -> Device {
    Device::start(DeviceSpec { threads, ..spec(delay) }).unwrap()
}

fn hub(device: &Device) -> Arc<crate::device::workers::hub::Hub> {
    let (reply, answer) = channel();
    device.mailbox.send(Message::Hub(reply)).unwrap();
    answer.recv().unwrap().expect("the device has several threads")
}

fn limited(per_second: u64) -> Policy {
    let mut policy = Policy::default();
    policy.limit.iops = Some(Iops::per_second(per_second));
    policy.burst = Some(1);
    policy
}

fn set_policy(device: &Device, policy: Policy, requests: u32) {
    let window = Window { requests, bytes: 32 << 20 };
    device.edit(vec![Edit::SetPolicies { vm: "vm".to_owned(), policy, window, volumes: Vec::new() }]).unwrap();
}

/// Sends `count` reads in one go.
fn send(client: &mut Client, count: u64) {
    for cookie in 0..count {
        client.submit(cookie, Command::Read { offset: cookie * 512, len: 512 }).unwrap();
    }
    while !client.flush_output().unwrap() {}
}

fn receive(client: &mut Client, count: u64) {
    let mut answered = 0;
    while answered < count {
        client.receive(None, &mut |reply| answered += u64::from(reply.result.is_ok())).unwrap();
    }
}

/// Whether a client is still served.
fn asks(client: &mut Client) -> bool {
    let sent = client.submit(99, Command::Flush).and_then(|()| client.flush_output());
    sent.is_ok() && client.receive(None, &mut |_| ()).is_ok()
}

/// Sends and receives, from a thread of its own.
fn load(mut client: Client, rounds: u64, depth: u64) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        for _ in 0..rounds {
            send(&mut client, depth);
            receive(&mut client, depth);
        }
    })
}

/// Without what is left of the limit, each change of the scheduler would let another request through.
#[test]
fn a_change_of_the_scheduler_passed_another_burst() {
    let quick =
        DelaySpec { time: ServiceTime::Fixed(Duration::from_micros(20)), parallel: 4, bandwidth: None, seed: 1 };
    for (threads, delay) in [(1, None), (2, None), (1, Some(quick)), (2, Some(quick))] {
        let device = device_with(threads, delay);
        add(&device, limited(400), Store::Null, 1 << 20);
        let mut clients = [connect(&device, 1 << 20), connect(&device, 1 << 20)];
        let began = Instant::now();
        clients.iter_mut().for_each(|client| send(client, 10));
        let mut changes = 0;
        // polls: until all are answered, however often the scheduler changes.
        while device.snapshot().unwrap().stats.completed < 20 {
            let scheduler = spec(None).scheduler;
            device.edit(vec![Edit::SetScheduler { scheduler, merging: false }]).unwrap();
            changes += 1;
        }
        let took = began.elapsed();
        assert!(took >= Duration::from_millis(45), "20 requests at 400 a second took {took:?}, {changes} changes");
        clients.iter_mut().for_each(|client| receive(client, 10));
    }
}

/// The lanes of tests are shorter than the windows, so they are full now and then.
#[test]
fn several_threads_get_the_decisions_of_one_gate() {
    let quick =
        DelaySpec { time: ServiceTime::Fixed(Duration::from_micros(20)), parallel: 4, bandwidth: None, seed: 1 };
    for (threads, delay) in [(2, None), (3, None), (2, Some(quick))] {
        let device = device_with(threads, delay);
        add(&device, Policy::default(), Store::Null, 1 << 20);
        let window = Window { requests: 64, bytes: 32 << 20 };
        let other = Edit::AddVm { vm: "other".to_owned(), policy: limited(50_000), window };
        device.edit(vec![other]).unwrap();
        let (name, policy, info) = ("disk".to_owned(), Policy::default(), info(1 << 20));
        let volume = VolumeSpec { name, generation: VolumeGeneration::default(), policy, store: Store::Null, info };
        device.edit(vec![Edit::AddVolume { vm: "other".to_owned(), volume: Box::new(volume) }]).unwrap();
        let of = |vm| connect_as(&device, (vm, "disk"), VolumeGeneration::default(), 1 << 20);
        let loads: Vec<_> = (0..3).flat_map(|_| ["vm", "other"]).map(|vm| load(of(vm), 20, 32)).collect();
        set_policy(&device, limited(100_000), 48);
        loads.into_iter().for_each(|load| load.join().unwrap());
        let DeviceSpec { scheduler, gate, .. } = spec(None);
        let (granted, again) = hub(&device).replay(Gate::new(scheduler.build().unwrap(), gate));
        assert_eq!(granted.len(), 6 * 20 * 32, "no request is lost or dispatched twice");
        assert!(granted == again);
        for worker in 0..threads as u8 {
            let is_its = |token: u32| crate::device::workers::token::split(token).0 == worker;
            assert!(granted.iter().any(|submission| is_its(submission.token)), "thread {worker} got nothing");
        }
        let snapshot = device.snapshot().unwrap();
        assert_eq!((snapshot.stats.completed, snapshot.in_flight, snapshot.queued), (6 * 20 * 32, 0, 0));
        assert_eq!(snapshot.vms.iter().map(|vm| vm.account.completed()[0]).collect::<Vec<_>>(), [1920, 1920]);
    }
}

#[test]
fn clients_of_a_vm_at_different_threads_share_its_window_and_its_limit() {
    let device = device_with(2, None);
    let never = Policy { limit: limited(1).limit, ..limited(1) };
    add(&device, never, Store::Null, 1 << 20);
    set_policy(&device, never, 6);
    let mut clients = [connect(&device, 1 << 20), connect(&device, 1 << 20)];
    clients.iter_mut().for_each(|client| send(client, 20));
    // polls: until both threads have taken what they may.
    while device.snapshot().unwrap().vms[0].outstanding < 6 {}
    let outstanding = device.snapshot().unwrap().vms[0].outstanding;
    assert!((6..=7).contains(&outstanding), "one more than the window, if both saw its last place: {outstanding}");
    // Each thread makes room for the clients of the other.
    set_policy(&device, limited(2000), 6);
    clients.iter_mut().for_each(|client| receive(client, 20));
    // polls: replies are counted when they were sent.
    while device.snapshot().unwrap().vms[0].outstanding > 0 {}
}

/// The thread that called the gate last sleeps until the limit lets something through, and the other one is woken by its
/// grant.
#[test]
fn a_thread_that_sleeps_is_woken_by_a_grant() {
    let device = device_with(2, None);
    add(&device, limited(400), Store::Null, 1 << 20);
    let mut clients = [connect(&device, 1 << 20), connect(&device, 1 << 20)];
    for _ in 0..3 {
        let began = Instant::now();
        clients.iter_mut().for_each(|client| send(client, 10));
        clients.iter_mut().for_each(|client| receive(client, 10));
        let took = began.elapsed();
        assert!(took >= Duration::from_millis(45), "20 requests at 400 a second took {took:?}");
    }
}

#[test]
fn a_write_that_a_killed_client_had_left_overwrote_one_of_the_next_client() {
    for (threads, polls) in [(1, false), (2, false), (3, false), (1, true), (2, true)] {
        let (_file, store) = file(1 << 20);
        let device = device_with(threads, None);
        device.edit(vec![Edit::SetBusyPoll(polls)]).unwrap();
        add(&device, Policy::default(), store, 1 << 20);
        // The thread that gets the first client does not run.
        let (paused, until) = channel::<()>();
        device.mailbox.send(Message::Pause(until)).unwrap();
        let write = |client: &mut Client, byte: u8| {
            client.submit(1, Command::Write { offset: 0, data: &[byte; 4096], fua: false }).unwrap();
            while !client.flush_output().unwrap() {}
        };
        let mut old = connect(&device, 1 << 20);
        write(&mut old, 1);
        drop(old);
        let mut new = connect(&device, 1 << 20);
        write(&mut new, 2);
        drop(paused);
        receive(&mut new, 1);
        // polls: the end of the first client.
        while device.snapshot().unwrap().connections > 1 {}
        let writes = device.snapshot().unwrap().vms[0].account.completed()[Kind::Write as usize];
        assert_eq!(writes, 1, "{threads} threads: what the first client had left is dropped");
        let read = ask(&mut new, Command::Read { offset: 0, len: 4096 }).unwrap();
        assert!(read == [2; 4096]);
    }
}

#[test]
fn the_panic_of_any_thread_restarts_the_device_with_its_volumes() {
    let (_file, store) = file(1 << 20);
    let device = device_with(3, None);
    add(&device, Policy::default().reserving(100), store, 1 << 20);
    for restarts in 1..=3 {
        let mut clients = [(); 3].map(|()| connect(&device, 1 << 20));
        let data = [restarts as u8; 512];
        let write = Command::Write { offset: 0, data: &data, fua: false };
        assert_eq!(ask(&mut clients[restarts - 1], write), Ok(vec![]));
        device.threads.send_to(restarts - 1, Message::Panic);
        // The other threads serve until they are told. The time limit is only for a failing test.
        let limit = Instant::now() + Duration::from_secs(60);
        for client in &mut clients {
            while asks(client) {
                assert!(Instant::now() < limit, "a thread still serves");
            }
        }
        let mut again = connect(&device, 1 << 20);
        assert_eq!(ask(&mut again, Command::Read { offset: 0, len: 512 }), Ok(data.to_vec()));
        assert_eq!(device.snapshot().unwrap().restarts, restarts as u64);
    }
}

#[test]
fn a_failed_sync_of_one_thread_concerns_all_until_the_loss_is_accepted() {
    let (_file, store) = file(1 << 20);
    let device = device_with(2, None);
    add(&device, Policy::default(), store, 1 << 20);
    let mut clients = [connect(&device, 1 << 20), connect(&device, 1 << 20)];
    let write = Command::Write { offset: 0, data: &[7; 512], fua: false };
    for failing in 0..2 {
        clients.iter_mut().for_each(|client| assert_eq!(ask(client, write), Ok(vec![])));
        device.threads.send_to(0, Message::PutOff(10_000));
        device.threads.send_to(1, Message::PutOff(10_000));
        assert_eq!(ask(&mut clients[failing], Command::Flush), Err(Errno::Eio));
        device.threads.send_to(0, Message::PutOff(0));
        device.threads.send_to(1, Message::PutOff(0));
        for client in &mut clients {
            assert_eq!((ask(client, write), ask(client, Command::Flush)), (Err(Errno::Eio), Err(Errno::Eio)));
        }
        assert!(device.snapshot().unwrap().vms[0].volumes[0].faults.is_lost);
        device.edit(vec![Edit::AcceptLoss { vm: "vm".to_owned(), volume: "disk".to_owned() }]).unwrap();
        assert!(!device.snapshot().unwrap().vms[0].volumes[0].faults.is_lost);
    }
    let flush = |mut client: Client| {
        thread::spawn(move || (0..200).filter(|_| ask(&mut client, Command::Flush) == Ok(vec![])).count())
    };
    let flushed: usize = clients.map(flush).map(|load| load.join().unwrap()).into_iter().sum();
    assert_eq!(flushed, 400, "flushes of both threads share syncs, and each is answered");
}

#[test]
fn what_a_client_sent_before_a_disconnect_is_served_although_the_next_one_is_there() {
    for threads in [1, 2, 3] {
        let device = device_with(threads, None);
        add(&device, Policy::default(), Store::Null, 1 << 20);
        for _ in 0..100 {
            let pair = UnixStream::pair().unwrap();
            let mut own = pair.0.try_clone().unwrap();
            let mut old = connect_by(pair, &device, ("vm", "disk"), VolumeGeneration::default(), 1 << 20);
            send(&mut old, 8);
            own.write_all(&[&0x2560_9513_u32.to_be_bytes()[..], &[0, 0, 0, 2], &[0; 20]].concat()).unwrap();
            own.shutdown(std::net::Shutdown::Write).unwrap();
            let mut new = connect(&device, 1 << 20);
            receive(&mut old, 8);
            send(&mut new, 1);
            receive(&mut new, 1);
        }
    }
}

#[test]
fn a_volume_in_use_at_several_threads_is_removed_and_added_again() {
    let device = device_with(2, None);
    add(&device, limited(1), Store::Null, 1 << 20);
    for round in 0..3 {
        let mut clients = [(); 4].map(|()| connect(&device, 1 << 20));
        assert_eq!(device.watch().clients(ANSWER_MAX).unwrap().len(), 4);
        clients.iter_mut().for_each(|client| send(client, 8));
        let (vm, volume) = ("vm".to_owned(), "disk".to_owned());
        assert!(matches!(
            device.edit(vec![Edit::RefuseClients { volumes: vec![(vm.clone(), volume.clone())] }]),
            Err(EditError::InUse(_))
        ));
        match round {
            0 => device.edit(vec![Edit::RemoveVolume { vm, volume }]).unwrap(),
            _ => device.edit(vec![Edit::RemoveVm { vm }]).unwrap(),
        }
        assert!(clients.into_iter().all(ends));
        // polls: what was in flight ends by itself.
        while device.snapshot().unwrap().queued + device.snapshot().unwrap().in_flight > 0 {}
        match round {
            0 => device.edit(vec![add_volume("disk", VolumeGeneration::default(), Store::Null, 1 << 20)]).unwrap(),
            _ => add(&device, limited(1), Store::Null, 1 << 20),
        }
    }
    set_policy(&device, Policy::default(), 64);
    let mut clients = [connect(&device, 1 << 20), connect(&device, 1 << 20)];
    clients.iter_mut().for_each(|client| send(client, 64));
    clients.iter_mut().for_each(|client| receive(client, 64));
}

/// Otherwise an old write could overwrite a newer one of a client at another thread.
#[test]
fn a_client_waits_for_requests_that_a_disconnected_one_has_in_flight_at_another_thread() {
    let slow =
        DelaySpec { time: ServiceTime::Fixed(Duration::from_millis(300)), parallel: 8, bandwidth: None, seed: 1 };
    let device = device_with(2, Some(slow));
    add(&device, Policy::default(), Store::Null, 1 << 20);
    let mut gone = connect(&device, 1 << 20);
    send(&mut gone, 1);
    // polls: until it is in flight.
    while device.snapshot().unwrap().in_flight == 0 {}
    drop(gone);
    // polls: until its end is known.
    while device.snapshot().unwrap().connections > 0 {}
    let began = Instant::now();
    let mut next = connect(&device, 1 << 20);
    ask(&mut next, Command::Read { offset: 0, len: 512 }).unwrap();
    assert!(began.elapsed() >= Duration::from_millis(301), "it was served during the other's request");
}

#[test]
fn a_device_with_several_threads_drains_and_stops() {
    let slow = DelaySpec { time: ServiceTime::Fixed(Duration::from_millis(20)), parallel: 2, bandwidth: None, seed: 1 };
    let device = device_with(2, Some(slow));
    add(&device, Policy::default(), Store::Null, 1 << 20);
    let mut clients = [connect(&device, 1 << 20), connect(&device, 1 << 20)];
    clients.iter_mut().for_each(|client| send(client, 4));
    // polls: until all were taken.
    while device.snapshot().unwrap().vms[0].outstanding < 8 {}
    device.drain();
    clients.iter_mut().for_each(|client| receive(client, 4));
    drop(clients);
    assert_eq!(device.stop().unwrap().stats.completed, 8);
}

#[test]
fn what_several_threads_cannot_do_is_refused() {
    let DeviceSpec { gate, .. } = spec(None);
    let merging = GateSettings { merging: true, ..gate };
    assert!(Device::start(DeviceSpec { threads: 2, gate: merging, ..spec(None) }).is_err());
    assert!(Device::start(DeviceSpec { threads: 17, ..spec(None) }).is_err());
    let device = device_with(2, None);
    let SchedulerSpec { info, params, .. } = spec(None).scheduler;
    let scheduler = SchedulerSpec { descriptor: schedulers::find("noop").unwrap(), info, params };
    let set = |merging| device.edit(vec![Edit::SetScheduler { scheduler: scheduler.clone(), merging }]);
    assert_eq!((set(true), set(false)), (Err(EditError::Merging), Ok(())));
}
