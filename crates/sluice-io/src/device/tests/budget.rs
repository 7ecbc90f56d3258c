//! Costs that a VM causes to others by requests that never reach the device.

use sluice_sched::units::Iops;

use super::*;

/// Lets a VM do one request now, and the next one in 1000 s.
fn limited(device: &Device, store: StoreSpec, size: u64) {
    let mut policy = Policy::default();
    policy.limit.iops = Some(Iops::from_milli(1));
    policy.burst = Some(1);
    add(device, policy, store, size);
}

fn queued(device: &Device) -> u64 {
    device.snapshot().unwrap().queued
}

/// Sends commands, of which the first is answered with `result`. Returns the number of requests that are then queued at
/// the gate.
fn send(device: &Device, size: u64, commands: &[Command<'_>], result: Result<(), Errno>) -> u64 {
    let mut client = connect(device, size);
    for (cookie, command) in commands.iter().enumerate() {
        client.submit(cookie as u64, *command).unwrap();
    }
    let mut answers = Vec::new();
    while answers.is_empty() {
        client.flush_output().unwrap();
        client.receive(None, &mut |reply| answers.push((reply.cookie, reply.result.map(|_| ())))).unwrap();
    }
    assert_eq!(answers, [(0, result)]);
    while device.snapshot().unwrap().vms[0].outstanding < commands.len() as u32 - 1 {
        thread::yield_now();
    }
    queued(device)
}

#[test]
fn refused_requests_of_a_limited_vm_were_answered_as_fast_as_it_sent_them() {
    const SIZE: u64 = 1 << 20;
    let beyond = Command::Read { offset: SIZE, len: 4096 };
    let device = device(None);
    limited(&device, StoreSpec::Null, SIZE);
    assert_eq!(send(&device, SIZE, &[beyond; 4], Err(Errno::Einval)), 3);
}

#[test]
fn a_refused_write_was_free_however_much_data_it_had() {
    const SIZE: u64 = 1 << 20;
    let data = vec![0; 64 << 10];
    let beyond = Command::Write { offset: SIZE, data: &data, fua: false };
    let device = device(None);
    let mut policy = Policy::default();
    policy.limit.bytes = Some(sluice_sched::units::ByteRate::per_second(64));
    policy.burst = Some(1);
    add(&device, policy, StoreSpec::Null, SIZE);
    assert_eq!(send(&device, SIZE, &[beyond; 4], Err(Errno::Enospc)), 3);
}

#[test]
fn block_status_requests_were_free() {
    const SIZE: u64 = 1 << 20;
    let (_file, store) = file(SIZE);
    let device = device(None);
    limited(&device, store, SIZE);
    let question = Command::BlockStatus { offset: 0, len: 4096 };
    assert_eq!(send(&device, SIZE, &[question; 4], Ok(())), 3);
}

#[test]
fn a_volume_with_a_loss_answered_block_status_with_an_error() {
    const SIZE: u64 = 1 << 20;
    let (_file, store) = file(SIZE);
    let StoreSpec::File(FileSpec { source, .. }) = &store else { unreachable!("it is a file") };
    source.set_loss(Loss::OfFile);
    let device = device(None);
    add(&device, Policy::default(), store, SIZE);
    let mut client = connect(&device, SIZE);
    assert!(ask(&mut client, Command::BlockStatus { offset: 0, len: 4096 }).is_ok());
    assert_eq!(ask(&mut client, Command::Read { offset: SIZE, len: 4096 }), Err(Errno::Einval));
    assert_eq!(ask(&mut client, Command::Flush), Err(Errno::Eio));
}

/// Two clients of a VM wait for a window of two requests. One sends reads of 1 MiB, the other one of 4 KiB. Then the window grows by 32
/// requests. None completes meanwhile.
#[test]
fn a_client_with_large_requests_took_as_many_turns_of_the_window_as_one_with_small_requests() {
    let time = ServiceTime::Fixed(Duration::from_secs(1000));
    let device = device(Some(DelaySpec { time, parallel: 1, bandwidth: None, seed: 1 }));
    add(&device, Policy::default(), StoreSpec::Null, 1 << 30);
    let grow = |requests| {
        let (policy, window) = (Policy::default(), Window { requests, bytes: 64 << 20 });
        device.edit(vec![Edit::SetPolicies { vm: "vm".to_owned(), policy, window, volumes: vec![] }]).unwrap();
    };
    let outstanding = || {
        let clients = device.watch().clients(Duration::from_secs(60)).unwrap();
        clients.iter().map(|client| client.outstanding).collect::<Vec<_>>()
    };
    let send = |client: &mut Client, requests: u64, len: u32| {
        (0..requests).for_each(|cookie| client.submit(cookie, Command::Read { offset: 0, len }).unwrap());
        while !client.flush_output().unwrap() {}
    };
    grow(2);
    let [mut large, mut small] = [(); 2].map(|()| connect(&device, 1 << 30));
    send(&mut large, 1, 1 << 20);
    while outstanding() != [1, 0] {
        thread::yield_now();
    }
    // All its requests come together; it waits with the rest.
    send(&mut small, 20, 4096);
    while outstanding() != [1, 1] {
        thread::yield_now();
    }
    send(&mut large, 19, 1 << 20);
    let _ = outstanding();
    grow(34);
    while outstanding().iter().sum::<u32>() < 34 {
        thread::yield_now();
    }
    assert_eq!(outstanding(), [14, 20]);
}

/// The window has room for a part of the read. The reply has all of it.
#[test]
fn a_read_that_is_longer_than_the_window_got_a_buffer_of_one_part() {
    const SIZE: u64 = 8 << 20;
    let content: Vec<u8> = (0..SIZE as usize).map(|at| (at / 4096) as u8 ^ at as u8).collect();
    for blocks in [512, 4096] {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), &content).unwrap();
        let spec = SourceSpec { buffered: true, ..SourceSpec::whole(file.path()) };
        let source = Arc::new(Source::open(&spec).unwrap().with_blocks(blocks));
        let device = device(None);
        add(&device, Policy::default(), StoreSpec::File(FileSpec { source, extents: None }), SIZE);
        let (policy, window) = (Policy::default(), Window { requests: 64, bytes: 256 << 10 });
        device.edit(vec![Edit::SetPolicies { vm: "vm".to_owned(), policy, window, volumes: vec![] }]).unwrap();
        let mut client = connect(&device, SIZE);
        for (offset, len) in [(512u64, 3 << 20), (0, 1 << 20), (4096, 2 << 20)] {
            let read = ask(&mut client, Command::Read { offset, len }).unwrap();
            assert!(read == content[offset as usize..][..len as usize], "{offset} {len}, blocks of {blocks}");
        }
    }
}
