//! Any bytes as an in-flight log, and any use of it. There must be no panic and no endless walk, and a recovered log
//! must stay recovered.
//!
//! Format of an input: queues, entries (2 bytes), the ring's index (2 bytes), the number of steps, the steps (a head
//! of 2 bytes and an action), and then the content of the log.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sluice_io::virtio::inflight::{Log, QueueLog};

/// Checks that recovery finds a consistent state, and finds it again.
fn settle(queue: &mut QueueLog, used: u16, entries: u16) {
    let found = queue.recover(used);
    let mut sorted = found.clone();
    sorted.sort_unstable();
    sorted.dedup();
    assert!(sorted.len() == found.len() && sorted.iter().all(|&head| head < entries), "each head once, and all there");
    assert_eq!(queue.recover(used), found, "settled is settled");
}

fuzz_target!(|data: &[u8]| {
    let [queues, low, high, used_low, used_high, steps, rest @ ..] = data else { return };
    let (queues, entries) = (u16::from(queues % 4), u16::from_le_bytes([*low, *high]) % 2048);
    let mut used = u16::from_le_bytes([*used_low, *used_high]);
    let Ok((log, file, len)) = Log::create(queues, entries, &sluice_io::vhost_user::mapping::MappingOwner::default())
    else {
        return;
    };
    let (steps, content) = rest.split_at(rest.len().min(usize::from(*steps) * 3));
    rustix::io::pwrite(&file, &content[..content.len().min(len as usize)], 0).expect("it fits");
    for index in 0..queues {
        let mut queue = log.queue(index, entries).expect("it is there");
        settle(&mut queue, used, entries);
        for step in steps.chunks_exact(3) {
            let head = u16::from_le_bytes([step[0], step[1]]);
            match step[2] % 4 {
                0 => queue.taken(head),
                1 => queue.returning(head),
                2 => {
                    used = used.wrapping_add(1);
                    queue.returned(head, used);
                }
                _ => settle(&mut queue, used, entries),
            }
        }
        settle(&mut queue, used, entries);
    }
    log.clear();
    assert!((0..queues).all(|index| log.queue(index, entries).expect("it is there").recover(used).is_empty()));
});
