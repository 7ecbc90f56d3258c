//! Limits of CPU time, on a real thread.

use std::io::{Read as _, Write as _};
use std::time::Instant;

use sluice_sched::Percent;

use super::*;
use crate::cpu::CpuTime;
use crate::nbd::handshake::Negotiated;

const SIZE: u64 = 1 << 20;

fn cpu(device: &Device) -> CpuTime {
    device.snapshot().unwrap().vms[0].cpu
}

/// Reads 4 KiB `times`, 32 at a time.
fn read(client: &mut Client, times: u64) {
    let (mut sent, mut answered) = (0, 0);
    while answered < times {
        while sent < times && sent < answered + 32 {
            client.submit(sent, Command::Read { offset: 0, len: 4096 }).unwrap();
            sent += 1;
        }
        client.flush_output().unwrap();
        client.receive(None, &mut |reply| answered += u64::from(reply.result.is_ok())).unwrap();
    }
}

#[test]
fn a_vm_gets_no_more_cpu_time_than_its_limit_and_continues_when_it_ends() {
    let device = device(None);
    add(&device, Policy::default(), StoreSpec::Null, SIZE);
    let mut client = connect(&device, SIZE);
    let set = |limit| device.edit(vec![Edit::SetCpu { vm: "vm".to_owned(), limit }]).unwrap();
    set(Some(Percent::from_hundredths(200)));
    let began = Instant::now();
    while cpu(&device).used_nanos < 5_000_000 {
        read(&mut client, 100);
    }
    let elapsed = began.elapsed().as_nanos() as u64;
    let time = cpu(&device);
    // 2 %, and what it had saved, and what one iteration may exceed.
    let allowed = elapsed / 50 + 200_000 + 2_000_000;
    assert!(time.used_nanos <= allowed, "{time:?} in {elapsed} ns");
    assert!(time.held_nanos > elapsed / 2, "{time:?} in {elapsed} ns");
    client.submit(0, Command::Read { offset: 0, len: 4096 }).unwrap();
    set(None);
    read(&mut client, 1000);
    let after = cpu(&device);
    assert!(after.limit.is_none() && after.used_nanos > time.used_nanos, "{after:?}");
}

/// Connects a client whose handshake took some CPU time.
fn attach(device: &Device, handshake: Duration) -> UnixStream {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let (export, offered) = ("vm/disk".to_owned(), info(SIZE));
    let negotiated = Negotiated {
        export,
        structured_replies: false,
        base_allocation: None,
        block_size_requested: false,
        gateway: None,
    };
    device.nbd().attach(Arrived {
        vm: "vm".to_owned(),
        volume: "disk".to_owned(),
        generation: VolumeGeneration::default(),
        socket: theirs.into(),
        negotiated,
        offered,
        peer: "test".to_owned(),
        permit: Box::new(()),
        handshake,
    });
    ours
}

#[test]
fn connections_in_a_loop_were_charged_to_no_vm() {
    let device = device(None);
    add(&device, Policy::default(), StoreSpec::Null, SIZE);
    let handshake = Duration::from_millis(2);
    for _ in 0..10 {
        drop(attach(&device, handshake));
    }
    let used = cpu(&device).used_nanos;
    assert!(used >= 20_000_000, "{used} ns for the handshakes alone");
    let limit = Some(Percent::from_hundredths(200));
    device.edit(vec![Edit::SetCpu { vm: "vm".to_owned(), limit }]).unwrap();
    let mut client = attach(&device, handshake);
    let header = [&0x2560_9513_u32.to_be_bytes()[..], &[0; 20], &512_u32.to_be_bytes()].concat();
    client.write_all(&header).unwrap();
    client.read_exact(&mut [0; 16 + 512]).unwrap();
    let time = cpu(&device);
    // 2 ms are 2 % of 100 ms, of which 10 ms were saved.
    assert!(time.held_nanos >= 50_000_000 && time.used_nanos >= used + 2_000_000, "{time:?}");
}

#[test]
fn a_vm_was_charged_with_all_that_its_thread_had_done_before_a_restart() {
    let device = device(None);
    add(&device, Policy::default(), StoreSpec::Null, SIZE);
    let mut client = connect(&device, SIZE);
    while cpu(&device).used_nanos < 50_000_000 {
        read(&mut client, 1000);
    }
    let before = cpu(&device).used_nanos;
    device.mailbox.send(Message::Test(Fault::Panic)).unwrap();
    while device.snapshot().is_none_or(|snapshot| snapshot.restarts == 0) {}
    read(&mut connect(&device, SIZE), 1);
    let after = cpu(&device).used_nanos;
    assert!(after < before, "{after} ns for one request, after {before} ns for thousands");
}
