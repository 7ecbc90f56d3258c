//! Clients that leave while their sockets are not read.

use super::*;
use sluice_sched::Iops;

/// Requests that the window of the VM has room for.
const WINDOW: u32 = 64;

/// A device that takes one request at a time, and serves each for this time.
fn slow(time: Duration) -> Device {
    let delay = DelaySpec { time: ServiceTime::Fixed(time), parallel: 1, bandwidth: None, seed: 1 };
    let device = device(Some(delay));
    add(&device, Policy::default(), Store::Null, 1 << 20);
    device.edit(vec![Edit::SetDevice { depth: 1, request_bytes: Bytes::kib(8) }]).unwrap();
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
    let device = slow(Duration::from_secs(3600));
    let client = send(&device, Command::Read { offset: 0, len: 4096 }, WINDOW + 10);
    wait_until(&device, |now| now.vms[0].outstanding == WINDOW);
    drop(client);
    // The one that is at the device ends there.
    wait_until(&device, |now| now.vms[0].outstanding == 1);
}

#[test]
fn a_client_with_more_to_send_than_is_received_was_not_missed_when_it_left() {
    let device = slow(Duration::from_secs(3600));
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

/// Sends requests that exceed the window by `more` while a limit holds them, then a disconnect, and closes the sending
/// direction. Once the device knows that, the limit ends, and all are replied.
fn all_before_a_disconnect_are_served(command: Command<'_>, more: u32) {
    let device = device(None);
    let mut policy = Policy { burst: Some(1), ..Policy::default() };
    policy.limit.iops = Some(Iops::from_milli(1));
    add(&device, policy, Store::Null, 1 << 20);
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
    all_before_a_disconnect_are_served(Command::Read { offset: 0, len: 4096 }, 10);
}

#[test]
fn requests_were_dropped_if_the_disconnect_after_them_was_not_received() {
    // More than a connection receives before it takes a request.
    let data = vec![1; 8192];
    all_before_a_disconnect_are_served(Command::Write { offset: 0, data: &data, fua: false }, 24);
}

#[test]
fn a_client_that_has_waited_for_room_ends_like_any_other() {
    let device = slow(Duration::from_millis(1));
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
