//! Limits of CPU time, on a real thread.

use std::time::Instant;

use sluice_sched::Percent;

use super::*;
use crate::cpu::CpuTime;

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
    add(&device, Policy::default(), Store::Null, SIZE);
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
