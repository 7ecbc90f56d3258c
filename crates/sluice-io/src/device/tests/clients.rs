//! Several clients of a device.

use std::time::Instant;

use sluice_sched::Iops;

use super::*;

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

/// Without what is left of the limit, each change of the scheduler would let another request through.
#[test]
fn a_change_of_the_scheduler_passed_another_burst() {
    let quick =
        DelaySpec { time: ServiceTime::Fixed(Duration::from_micros(20)), parallel: 4, bandwidth: None, seed: 1 };
    for delay in [None, Some(quick)] {
        let device = device(delay);
        add(&device, limited(400), StoreSpec::Null, 1 << 20);
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

#[test]
fn clients_of_a_vm_share_its_window_and_its_limit() {
    let device = device(None);
    let never = Policy { limit: limited(1).limit, ..limited(1) };
    add(&device, never, StoreSpec::Null, 1 << 20);
    set_policy(&device, never, 6);
    let mut clients = [connect(&device, 1 << 20), connect(&device, 1 << 20)];
    clients.iter_mut().for_each(|client| send(client, 20));
    // polls: until the thread has taken what it may.
    while device.snapshot().unwrap().vms[0].outstanding < 6 {}
    assert_eq!(device.snapshot().unwrap().vms[0].outstanding, 6);
    set_policy(&device, limited(2000), 6);
    clients.iter_mut().for_each(|client| receive(client, 20));
    // polls: replies are counted when they were sent.
    while device.snapshot().unwrap().vms[0].outstanding > 0 {}
}

#[test]
fn a_write_that_a_killed_client_had_left_overwrote_one_of_the_next_client() {
    for polls in [false, true] {
        let (_file, store) = file(1 << 20);
        let device = device(None);
        device.edit(vec![Edit::SetBusyPoll(polls)]).unwrap();
        add(&device, Policy::default(), store, 1 << 20);
        // The thread does not run.
        let (paused, until) = channel::<()>();
        device.mailbox.send(Message::Test(Fault::Pause(until))).unwrap();
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
        assert_eq!(writes, 1, "what the first client had left is dropped");
        let read = ask(&mut new, Command::Read { offset: 0, len: 4096 }).unwrap();
        assert!(read == [2; 4096]);
    }
}

#[test]
fn a_failed_sync_concerns_all_clients_until_the_loss_is_accepted() {
    let (_file, store) = file(1 << 20);
    let device = device(None);
    add(&device, Policy::default(), store, 1 << 20);
    let mut clients = [connect(&device, 1 << 20), connect(&device, 1 << 20)];
    let write = Command::Write { offset: 0, data: &[7; 512], fua: false };
    for failing in 0..2 {
        clients.iter_mut().for_each(|client| assert_eq!(ask(client, write), Ok(vec![])));
        device.mailbox.send(Message::Test(Fault::PutOff(10_000))).unwrap();
        assert_eq!(ask(&mut clients[failing], Command::Flush), Err(Errno::Eio));
        device.mailbox.send(Message::Test(Fault::PutOff(0))).unwrap();
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
    assert_eq!(flushed, 400, "flushes of both clients share syncs, and each is answered");
}

#[test]
fn what_a_client_sent_before_a_disconnect_is_served_although_the_next_one_is_there() {
    let device = device(None);
    add(&device, Policy::default(), StoreSpec::Null, 1 << 20);
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

#[test]
fn a_volume_in_use_is_removed_and_added_again() {
    let device = device(None);
    add(&device, limited(1), StoreSpec::Null, 1 << 20);
    for round in 0..3 {
        let mut clients = [(); 4].map(|()| connect(&device, 1 << 20));
        assert_eq!(device.watch().clients(Duration::from_secs(60)).unwrap().len(), 4);
        clients.iter_mut().for_each(|client| send(client, 8));
        let (vm, volume) = ("vm".to_owned(), "disk".to_owned());
        assert!(matches!(
            device.refuse_clients(vec![(vm.clone(), volume.clone())], Duration::from_secs(60)),
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
            0 => device.edit(vec![add_volume("disk", VolumeGeneration::default(), StoreSpec::Null, 1 << 20)]).unwrap(),
            _ => add(&device, limited(1), StoreSpec::Null, 1 << 20),
        }
    }
    set_policy(&device, Policy::default(), 64);
    let mut clients = [connect(&device, 1 << 20), connect(&device, 1 << 20)];
    clients.iter_mut().for_each(|client| send(client, 64));
    clients.iter_mut().for_each(|client| receive(client, 64));
}

#[test]
fn a_device_with_several_clients_drains_and_stops() {
    let slow = DelaySpec { time: ServiceTime::Fixed(Duration::from_millis(20)), parallel: 2, bandwidth: None, seed: 1 };
    let device = device(Some(slow));
    add(&device, Policy::default(), StoreSpec::Null, 1 << 20);
    let mut clients = [connect(&device, 1 << 20), connect(&device, 1 << 20)];
    clients.iter_mut().for_each(|client| send(client, 4));
    // polls: until all were taken.
    while device.snapshot().unwrap().vms[0].outstanding < 8 {}
    device.drain();
    clients.iter_mut().for_each(|client| receive(client, 4));
    drop(clients);
    assert_eq!(device.stop().unwrap().stats.completed, 8);
}
