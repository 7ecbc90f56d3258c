//! A store of some lines: what it got is what it returns.

use super::*;

#[test]
fn a_volume_in_memory_returns_what_was_written_and_zeroed() {
    const SIZE: u64 = 4 << 20;
    let device = device(None);
    add(&device, Policy::default(), StoreSpec::Ram(SIZE as usize), SIZE);
    let mut client = connect(&device, SIZE);
    let data: Vec<u8> = (0..1 << 20).map(|at| at as u8 ^ 0x5a).collect();
    assert_eq!(ask(&mut client, Command::Write { offset: 4096, data: &data, fua: true }), Ok(vec![]));
    let zeroes = Command::WriteZeroes { offset: 8192, len: 4096, no_hole: false, fast: true };
    assert_eq!(ask(&mut client, zeroes), Ok(vec![]));
    assert_eq!(ask(&mut client, Command::Flush), Ok(vec![]));
    let mut expected = data;
    expected[4096..8192].fill(0);
    assert_eq!(ask(&mut client, Command::Read { offset: 4096, len: 1 << 20 }), Ok(expected));
}
