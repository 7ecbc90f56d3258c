//! The loop polls the sockets of clients that send one request after the other, and not those of VMs that limits hold.

use sluice_sched::{Iops, Limit};

use super::*;

fn iterations(device: &Device) -> u64 {
    device.snapshot().unwrap().iterations
}

#[test]
fn a_client_that_sends_each_request_alone_woke_the_thread_for_each() {
    const REQUESTS: u64 = 100;
    let device = device(None);
    add(&device, Policy::default(), StoreSpec::Null, 1 << 20);
    let mut client = connect(&device, 1 << 20);
    let sleeps = || {
        let (reply, answer) = channel();
        device.mailbox.send(Message::Test(Fault::Sleeps(reply))).unwrap();
        answer.recv().unwrap()
    };
    let is_polling = |client: &mut Client| {
        let before = sleeps();
        (0..REQUESTS).for_each(|_| drop(ask(client, Command::Read { offset: 0, len: 4096 })));
        // A thread that sleeps does so twice for each request. The shortest window with polling has 64 requests.
        sleeps() - before < REQUESTS * 3 / 2
    };
    // Whether it polls depends on what is faster at this moment, but from time to time it tries both.
    assert!((0..1000).any(|_| is_polling(&mut client)), "the loop slept after each request");
}

#[test]
fn a_client_at_its_limit_is_not_polled() {
    const REQUESTS: u64 = 4000;
    let limit = Limit { iops: Some(Iops::per_second(20_000)), bytes: None };
    let device = device(None);
    add(&device, Policy { limit, burst: Some(1), ..Policy::default() }, StoreSpec::Null, 1 << 20);
    let mut client = connect(&device, 1 << 20);
    let read = Command::Read { offset: 0, len: 512 };
    (0..4).for_each(|cookie| client.submit(cookie, read).unwrap());
    let before = iterations(&device);
    let mut answered = 0;
    while answered < REQUESTS {
        client.flush_output().unwrap();
        let mut done = Vec::new();
        client.receive(None, &mut |reply| done.push(reply.cookie)).unwrap();
        answered += done.len() as u64;
        done.into_iter().for_each(|cookie| client.submit(cookie, read).unwrap());
    }
    let took = iterations(&device) - before;
    // A loop that polls takes tens.
    assert!(took <= 8 * REQUESTS, "{took} iterations for {REQUESTS} requests");
}
