//! Clients that leave while their sockets are not read, or while the loop reads them itself.

use super::*;
use sluice_sched::Iops;

/// Requests that the window of the VM has room for.
const WINDOW: u32 = 64;

/// A device whose loop polls, and reads the sockets of clients itself, or leaves that to the kernel.
fn polling(delay: Option<DelaySpec>, polls: bool) -> Device {
    let device = device(delay);
    device.edit(vec![Edit::SetBusyPoll(polls)]).unwrap();
    device
}

/// A device that takes one request at a time, and serves each for this time.
fn slow(time: Duration, polls: bool) -> Device {
    let delay = DelaySpec { time: ServiceTime::Fixed(time), parallel: 1, bandwidth: None, seed: 1 };
    let device = polling(Some(delay), polls);
    add(&device, Policy::default(), StoreSpec::Null, 1 << 20);
    device.edit(vec![Edit::SetDevice { depth: 1, request_bytes: Bytes::kib(8), aim: None }]).unwrap();
    device
}

/// Sends requests that exceed the window, and does not read the replies.
fn send(device: &Device, command: Command<'_>, count: u32) -> Client {
    let mut client = connect(device, 1 << 20);
    (0..count).for_each(|cookie| client.submit(cookie.into(), command).unwrap());
    while !client.flush_output().unwrap() {}
    client
}

/// Waits until the state of the device is this one. The time limit is only for a failing test.
fn wait_until(device: &Device, is_so: impl Fn(&Snapshot) -> bool) {
    let limit = std::time::Instant::now() + Duration::from_secs(60);
    loop {
        let now = device.snapshot().expect("the device serves");
        if is_so(&now) {
            return;
        }
        assert!(std::time::Instant::now() < limit, "{:?}", now.vms[0]);
    }
}

#[test]
fn a_client_that_waited_for_room_was_not_missed_when_it_left() {
    for polls in [false, true] {
        let device = slow(Duration::from_secs(3600), polls);
        let client = send(&device, Command::Read { offset: 0, len: 4096 }, WINDOW + 10);
        wait_until(&device, |now| now.vms[0].outstanding == WINDOW);
        drop(client);
        // The one that is at the device ends there.
        wait_until(&device, |now| now.vms[0].outstanding == 1);
    }
}

#[test]
fn a_client_with_more_to_send_than_is_received_was_not_missed_when_it_left() {
    for polls in [false, true] {
        let device = slow(Duration::from_secs(3600), polls);
        let data = vec![1; 8192];
        let mut client = connect(&device, 1 << 20);
        for cookie in 0..u64::from(WINDOW + 10) {
            client.submit(cookie, Command::Write { offset: 0, data: &data, fua: false }).unwrap();
        }
        // Its socket takes more than the window has room for.
        while device.snapshot().unwrap().vms[0].outstanding < WINDOW {
            client.flush_output().unwrap();
        }
        drop(client);
        wait_until(&device, |now| now.vms[0].outstanding == 1);
    }
}

/// Sends requests that exceed the window by `more` while a limit holds them, then a disconnect, and closes the sending
/// direction. Once the device knows that, the limit ends, and all are replied.
fn all_before_a_disconnect_are_served(command: Command<'_>, more: u32, polls: bool) {
    let device = polling(None, polls);
    let mut policy = Policy { burst: Some(1), ..Policy::default() };
    policy.limit.iops = Some(Iops::from_milli(1));
    add(&device, policy, StoreSpec::Null, 1 << 20);
    let pair = UnixStream::pair().unwrap();
    let mut own = pair.0.try_clone().unwrap();
    let mut client = connect_by(pair, &device, ("vm", "disk"), VolumeGeneration::default(), 1 << 20);
    let count = WINDOW + more;
    (0..count).for_each(|cookie| client.submit(cookie.into(), command).unwrap());
    let mut replies = 0;
    while !client.flush_output().unwrap() {
        client.try_receive(&mut |_| replies += 1).unwrap();
    }
    wait_until(&device, |now| now.vms[0].outstanding == WINDOW);
    let disconnect = [&0x2560_9513_u32.to_be_bytes()[..], &[0, 0, 0, 2], &[0; 20]].concat();
    own.write_all(&disconnect).unwrap();
    own.shutdown(std::net::Shutdown::Write).unwrap();
    // The kernel has reported it when the next iteration begins.
    (0..2).for_each(|_| assert_eq!(device.snapshot().unwrap().connections, 1));
    let window = Window { requests: WINDOW, bytes: 32 << 20 };
    let (vm, volumes) = ("vm".to_owned(), Vec::new());
    device.edit(vec![Edit::SetPolicies { vm, policy: Policy::default(), window, volumes }]).unwrap();
    while replies < count {
        client.receive(None, &mut |_| replies += 1).unwrap();
    }
    wait_until(&device, |now| now.connections == 0);
}

#[test]
fn requests_before_a_disconnect_that_were_not_read_are_served() {
    for polls in [false, true] {
        all_before_a_disconnect_are_served(Command::Read { offset: 0, len: 4096 }, 10, polls);
    }
}

#[test]
fn requests_were_dropped_if_the_disconnect_after_them_was_not_received() {
    // More than a connection receives before it takes a request.
    let data = vec![1; 8192];
    for polls in [false, true] {
        all_before_a_disconnect_are_served(Command::Write { offset: 0, data: &data, fua: false }, 24, polls);
    }
}

#[test]
fn a_client_that_has_waited_for_room_ends_like_any_other() {
    for polls in [false, true] {
        let device = slow(Duration::from_millis(1), polls);
        let count = WINDOW + 10;
        let mut client = send(&device, Command::Flush, count);
        let mut replies = 0;
        while replies < count {
            client.receive(None, &mut |_| replies += 1).unwrap();
        }
        assert_eq!(device.snapshot().unwrap().connections, 1);
        drop(client);
        wait_until(&device, |now| now.connections == 0);
        let mut client = send(&device, Command::Flush, count);
        let mut replies = 0;
        while replies < count {
            client.receive(None, &mut |_| replies += 1).unwrap();
        }
        client.disconnect().unwrap();
        wait_until(&device, |now| now.connections == 0);
    }
}

#[test]
fn clients_whose_sockets_the_loop_reads_leave_in_each_way() {
    let device = polling(None, true);
    add(&device, Policy::default(), StoreSpec::Null, 1 << 20);
    let read = Command::Read { offset: 0, len: 4096 };
    // More of them than the loop reads itself.
    let mut clients: Vec<Client> = (0..20).map(|_| connect(&device, 1 << 20)).collect();
    for _ in 0..10 {
        clients.iter_mut().for_each(|client| assert_eq!(ask(client, read).unwrap().len(), 4096));
    }
    for client in clients.drain(..10) {
        client.disconnect().unwrap();
    }
    wait_until(&device, |now| now.connections == 10);
    clients.drain(..5).for_each(drop);
    wait_until(&device, |now| now.connections == 5);
    let bad = clients.pop().unwrap();
    UnixStream::from(rustix::io::dup(&bad).unwrap()).write_all(&[0xff; 28]).unwrap();
    assert!(ends(bad));
    wait_until(&device, |now| now.connections == 4);
    device.drain();
    assert!(clients.into_iter().all(ends));
}

#[test]
fn a_client_that_was_read_for_long_is_watched_again_when_it_waits_for_room() {
    let device = polling(None, true);
    add(&device, Policy::default(), StoreSpec::Null, 1 << 20);
    let mut client = connect(&device, 1 << 20);
    let read = Command::Read { offset: 0, len: 4096 };
    // More than the number of reads after which it is not watched any more.
    (0..300).for_each(|_| assert_eq!(ask(&mut client, read).unwrap().len(), 4096));
    let mut policy = Policy { burst: Some(1), ..Policy::default() };
    policy.limit.iops = Some(Iops::from_milli(1));
    let window = Window { requests: WINDOW, bytes: 32 << 20 };
    device.edit(vec![Edit::SetPolicies { vm: "vm".to_owned(), policy, window, volumes: Vec::new() }]).unwrap();
    for round in 0..2 {
        (0..u64::from(WINDOW) + 10).for_each(|cookie| client.submit(cookie, read).unwrap());
        while !client.flush_output().unwrap() {
            client.try_receive(&mut |_| ()).unwrap();
        }
        wait_until(&device, |now| now.vms[0].outstanding == WINDOW);
        drop(client);
        wait_until(&device, |now| now.vms[0].outstanding == 0 && now.connections == 0);
        client = connect(&device, 1 << 20);
        assert_eq!(device.snapshot().unwrap().connections, 1, "round {round}");
    }
}

/// A read by the loop takes what the first client has left, and the next one its end.
#[test]
fn a_client_was_served_while_the_last_write_of_its_killed_predecessor_was_at_the_disk() {
    // Which of both it reads first is up to the kernel.
    for polls in [false, true, true, true, true, true] {
        let service = ServiceTime::Fixed(Duration::from_secs(3600));
        let delay = DelaySpec { time: service, parallel: 2, bandwidth: None, seed: 1 };
        let device = polling(Some(delay), polls);
        add(&device, Policy::default(), StoreSpec::Null, 1 << 20);
        let write = |client: &mut Client, byte: u8| {
            client.submit(1, Command::Write { offset: 0, data: &[byte; 4096], fua: false }).unwrap();
            while !client.flush_output().unwrap() {}
        };
        let mut old = connect(&device, 1 << 20);
        wait_until(&device, |now| now.connections == 1);
        let (paused, until) = channel::<()>();
        device.mailbox.send(Message::Test(Fault::Pause(until))).unwrap();
        write(&mut old, 1);
        drop(old);
        let mut new = connect(&device, 1 << 20);
        write(&mut new, 2);
        drop(paused);
        wait_until(&device, |now| now.in_flight == 1);
        // Enough iterations for the other write, too.
        (0..100).for_each(|_| assert_eq!(device.snapshot().unwrap().in_flight, 1, "polls: {polls}"));
    }
}

#[test]
fn a_client_whose_socket_the_loop_reads_pauses_and_goes_on() {
    let device = polling(None, true);
    add(&device, Policy::default(), StoreSpec::Null, 1 << 20);
    let mut client = connect(&device, 1 << 20);
    let read = Command::Read { offset: 0, len: 4096 };
    for _ in 0..3 {
        (0..3).for_each(|_| assert_eq!(ask(&mut client, read).unwrap().len(), 4096));
        // The kernel receives from then on.
        device.mailbox.send(Message::Test(Fault::Advance(Duration::from_secs(2 * 3600)))).unwrap();
        (0..10).for_each(|_| assert_eq!(device.snapshot().unwrap().connections, 1));
    }
    drop(client);
    wait_until(&device, |now| now.connections == 0);
}

/// A server must handle all requests before `NBD_CMD_DISC`, also if it cannot send the replies.
#[test]
fn requests_before_a_disconnect_were_dropped_if_the_client_did_not_read_the_replies() {
    for polls in [false, true] {
        let device = polling(None, polls);
        add(&device, Policy::default(), StoreSpec::Null, 1 << 20);
        let data = vec![1; 4096];
        let count = 2 * WINDOW;
        let client = connect(&device, 1 << 20);
        let (paused, until) = channel::<()>();
        device.mailbox.send(Message::Test(Fault::Pause(until))).unwrap();
        let mut socket = UnixStream::from(rustix::io::dup(&client).unwrap());
        let header = |kind: u16, length: u32| {
            let kind = u32::from(kind).to_be_bytes();
            [&0x2560_9513_u32.to_be_bytes()[..], &kind, &[0; 16], &length.to_be_bytes()].concat()
        };
        let mut all: Vec<u8> = (0..count).flat_map(|_| [header(1, 4096), data.clone()].concat()).collect();
        all.extend(header(2, 0));
        // The socket takes less than all; the device reads the rest when it goes on.
        let writer = thread::spawn(move || socket.write_all(&all).map(|()| drop(socket)));
        drop(client);
        drop(paused);
        writer.join().unwrap().unwrap();
        wait_until(&device, |now| now.connections == 0 && now.vms[0].outstanding == 0);
        let writes = device.snapshot().unwrap().vms[0].account.completed()[Kind::Write as usize];
        assert_eq!(writes, u64::from(count), "polls: {polls}");
    }
}
