//! Guests with blocks of 512 bytes on a disk with blocks of 4096.

use std::os::unix::fs::FileExt as _;

use proptest::prelude::*;

use super::*;

const SECTOR: u64 = 512;
const BLOCK: u64 = 4096;
const SIZE: u64 = 64 * BLOCK;
const CLIENTS: u64 = 4;

/// Slow enough for requests of several clients to be in flight together.
const SLOW: DelaySpec =
    DelaySpec { time: ServiceTime::Fixed(Duration::from_micros(50)), parallel: 8, bandwidth: None, seed: 1 };

fn large_blocks() -> (tempfile::NamedTempFile, StoreSpec) {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().write_all_at(&vec![7; SIZE as usize], 0).unwrap();
    let spec = SourceSpec { buffered: true, ..SourceSpec::whole(file.path()) };
    let source = Arc::new(Source::open(&spec).unwrap().with_blocks(BLOCK as u32));
    (file, StoreSpec::File(FileSpec { source, extents: None }))
}

fn content(file: &tempfile::NamedTempFile) -> Vec<u8> {
    let mut bytes = vec![0; SIZE as usize];
    file.as_file().read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

/// A request of a client: kind, first sector, number of sectors, byte of its data.
type Sent = (u8, u64, u64, u8);

fn requests() -> impl Strategy<Value = Vec<Sent>> {
    let request = (0u8..4, 0..SIZE / SECTOR, 1u64..40, 1u8..);
    prop::collection::vec(request, 1..40)
}

/// Does a request at the device and in the model. What a discard leaves is undefined in whole blocks of the disk only.
fn both(client: &mut Client, model: &mut [u8], (kind, first, count, byte): Sent) {
    let (offset, end) = (first * SECTOR, ((first + count) * SECTOR).min(SIZE));
    let (len, range) = ((end - offset) as u32, offset as usize..end as usize);
    match kind {
        0 => {}
        1 => {
            model[range.clone()].fill(byte);
            let command = Command::Write { offset, data: &model[range.clone()], fua: byte % 2 == 0 };
            ask(client, command).unwrap();
        }
        2 => {
            model[range.clone()].fill(0);
            ask(client, Command::WriteZeroes { offset, len, no_hole: byte % 2 == 0, fast: false }).unwrap();
        }
        _ => {
            ask(client, Command::Trim { offset, len }).unwrap();
            let left = ask(client, Command::Read { offset, len }).unwrap();
            let whole = offset.next_multiple_of(BLOCK)..end / BLOCK * BLOCK;
            let is_kept = |at: u64| !whole.contains(&at);
            let differs =
                (offset..end).filter(|at| is_kept(*at)).any(|at| left[(at - offset) as usize] != model[at as usize]);
            assert!(!differs, "a discard of {len} bytes at {offset} changed a block that it covers in part");
            model[range.clone()].copy_from_slice(&left);
        }
    }
    assert!(ask(client, Command::Read { offset, len }).unwrap() == model[range], "{kind} {first} {count}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn a_disk_with_large_blocks_is_a_disk_with_small_ones(requests in requests()) {
        let (file, store) = large_blocks();
        let device = device(None);
        add(&device, Policy::default(), store, SIZE);
        let (mut client, mut model) = (connect(&device, SIZE), content(&file));
        requests.into_iter().for_each(|request| both(&mut client, &mut model, request));
        prop_assert!(content(&file) == model);
    }
}

/// Writes to the sectors of one client, of which each block has some. Ends when all are answered.
fn write_own(mut client: Client, own: u64, rounds: u8) -> thread::JoinHandle<()> {
    let sectors: Vec<u64> = (own..SIZE / SECTOR).step_by(CLIENTS as usize).collect();
    thread::spawn(move || {
        for round in 1..=rounds {
            for batch in sectors.chunks(16) {
                for sector in batch {
                    let data = [byte_of(*sector, round); SECTOR as usize];
                    client
                        .submit(*sector, Command::Write { offset: sector * SECTOR, data: &data, fua: false })
                        .unwrap();
                }
                let mut left = batch.len();
                while left > 0 {
                    client.flush_output().unwrap();
                    client
                        .receive(None, &mut |reply| {
                            reply.result.unwrap();
                            left -= 1;
                        })
                        .unwrap();
                }
            }
        }
    })
}

fn byte_of(sector: u64, round: u8) -> u8 {
    (sector % 61) as u8 * 4 + round
}

#[test]
fn writes_to_one_block_do_not_undo_each_other() {
    for delay in [None, Some(SLOW)] {
        let (file, store) = large_blocks();
        let device = device(delay);
        add(&device, Policy::default(), store, SIZE);
        let clients: Vec<_> = (0..CLIENTS).map(|own| write_own(connect(&device, SIZE), own, 3)).collect();
        clients.into_iter().for_each(|client| client.join().unwrap());
        for (sector, bytes) in content(&file).chunks(SECTOR as usize).enumerate() {
            let expected = byte_of(sector as u64, 3);
            assert!(bytes.iter().all(|byte| *byte == expected), "sector {sector}: {}", bytes[0]);
        }
    }
}

#[test]
fn a_block_stays_claimed_until_the_last_operation_of_a_client_that_has_gone_ends() {
    let slow = DelaySpec { time: ServiceTime::Fixed(Duration::from_millis(50)), ..SLOW };
    let (_file, store) = large_blocks();
    let StoreSpec::File(FileSpec { source, .. }) = &store else { unreachable!("it is a file") };
    let source = Arc::clone(source);
    let device = device(Some(slow));
    add(&device, Policy::default(), store, SIZE);
    let _stays = connect(&device, SIZE);
    let mut goes = connect(&device, SIZE);
    goes.submit(1, Command::Write { offset: 0, data: &[1; SECTOR as usize], fua: false }).unwrap();
    goes.flush_output().unwrap();
    // polls: until the write is at the device, after the read.
    while device.snapshot().unwrap().stats.completed == 0 {}
    drop(goes);
    let mut was_claimed = false;
    // polls: until the write has ended.
    loop {
        let is_claimed = source.claims().claim(&(0..BLOCK)).is_none();
        let in_flight = device.snapshot().unwrap().in_flight;
        was_claimed |= is_claimed;
        assert!(is_claimed || in_flight == 0, "it was released with {in_flight} operations in flight");
        if in_flight == 0 {
            break;
        }
    }
    assert!(was_claimed && source.claims().claim(&(0..BLOCK)).is_some());
}

#[test]
fn a_volume_is_removed_while_requests_wait_for_a_block() {
    let never = DelaySpec { time: ServiceTime::Fixed(Duration::from_millis(20)), ..SLOW };
    let (_file, store) = large_blocks();
    let device = device(Some(never));
    add(&device, Policy::default(), store, SIZE);
    let mut client = connect(&device, SIZE);
    for cookie in 0..8 {
        client.submit(cookie, Command::Write { offset: cookie * SECTOR, data: &[1; 512], fua: false }).unwrap();
    }
    client.flush_output().unwrap();
    // polls: until the first is at the device.
    while device.snapshot().unwrap().in_flight == 0 {}
    assert_eq!(device.snapshot().unwrap().in_flight, 1, "those that wait for its block hold no slot");
    device.edit(vec![Edit::RemoveVm { vm: "vm".to_owned() }]).unwrap();
    // polls: until what is at the device has ended.
    while device.snapshot().unwrap().in_flight > 0 {}
    assert!(device.snapshot().unwrap().vms.is_empty());
}

#[test]
fn a_small_write_costs_a_read_and_a_write_of_a_block() {
    let (_file, store) = large_blocks();
    let device = device(None);
    add(&device, Policy::default(), store, SIZE);
    let mut client = connect(&device, SIZE);
    let mut completed = 0;
    let mut costs = |command: Command<'_>| {
        ask(&mut client, command).unwrap();
        let before = std::mem::replace(&mut completed, device.snapshot().unwrap().stats.completed);
        completed - before
    };
    assert_eq!(costs(Command::Write { offset: 512, data: &[1; 512], fua: true }), 2);
    assert_eq!(costs(Command::Write { offset: 512, data: &[1; 8192], fua: false }), 3, "both ends are read");
    assert_eq!(costs(Command::Write { offset: 4096, data: &[1; 8192], fua: false }), 1);
    assert_eq!(costs(Command::Read { offset: 512, len: 8192 }), 1);
    assert_eq!(costs(Command::Trim { offset: 512, len: 512 }), 1, "no effect");
}
