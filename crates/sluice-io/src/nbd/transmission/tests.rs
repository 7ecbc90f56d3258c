use super::*;
use crate::volume::sample;

const KIB: u32 = 1 << 10;
const MIB: u32 = 1 << 20;

fn negotiated() -> Negotiated {
    Negotiated {
        export: "a".to_owned(),
        structured_replies: true,
        base_allocation: Some(1),
        block_size_requested: true,
        gateway: None,
    }
}

fn header(command: Command, flags: u16, offset: u64, length: u32) -> RequestHeader {
    RequestHeader { flags, command: command.into(), cookie: 1, offset, length }
}

fn errno_of(header: &RequestHeader, info: &VolumeInfo, negotiated: &Negotiated) -> Option<Errno> {
    check(header, info, negotiated).err().map(|refusal| refusal.errno)
}

#[test]
fn valid_requests_become_operations() {
    use command_flag::{DF, FAST_ZERO, FUA, NO_HOLE, REQ_ONE};
    let cases = [
        (header(Command::Read, 0, 512, 1024), Operation::Read { offset: 512, len: 1024 }),
        (header(Command::Read, DF | FUA, 0, MIB), Operation::Read { offset: 0, len: MIB }),
        (header(Command::Write, 0, 512, 512), Operation::Write { offset: 512, len: 512, fua: false }),
        (header(Command::Write, FUA, 512, 512), Operation::Write { offset: 512, len: 512, fua: true }),
        (header(Command::Flush, 0, 0, 0), Operation::Flush),
        (header(Command::Trim, FUA, 0, MIB), Operation::Trim { offset: 0, len: MIB, fua: true }),
        (
            header(Command::WriteZeroes, NO_HOLE | FAST_ZERO, 0, 512),
            Operation::WriteZeroes { offset: 0, len: 512, fua: false, no_hole: true, fast: true },
        ),
        (header(Command::BlockStatus, REQ_ONE, 0, 512), Operation::BlockStatus { offset: 0, len: 512, req_one: true }),
        (header(Command::Disconnect, 0xffff, u64::MAX, 7), Operation::Disconnect),
        (header(Command::Read, 0, u64::from(MIB) - 512, 512), Operation::Read { offset: 1_048_064, len: 512 }),
    ];
    for (header, operation) in cases {
        assert_eq!(check(&header, &sample(), &negotiated()), Ok(operation));
    }
}

#[test]
fn invalid_requests_are_refused_with_the_right_error() {
    use command_flag::{DF, FAST_ZERO, NO_HOLE, REQ_ONE};
    let end = u64::from(MIB);
    let cases = [
        ("unknown command", header(Command::Other(8), 0, 0, 512), Errno::Einval),
        ("cache", header(Command::Cache, 0, 0, 512), Errno::Einval),
        ("zero-length read", header(Command::Read, 0, 0, 0), Errno::Einval),
        ("zero-length write", header(Command::Write, 0, 0, 0), Errno::Einval),
        ("zero-length trim", header(Command::Trim, 0, 0, 0), Errno::Einval),
        ("flush with length", header(Command::Flush, 0, 0, 512), Errno::Einval),
        ("flush with offset", header(Command::Flush, 0, 512, 0), Errno::Einval),
        ("misaligned offset", header(Command::Read, 0, 1, 512), Errno::Einval),
        ("misaligned length", header(Command::Write, 0, 0, 513), Errno::Einval),
        ("read beyond the end", header(Command::Read, 0, end - 512, 1024), Errno::Einval),
        ("read at the end", header(Command::Read, 0, end, 512), Errno::Einval),
        ("write beyond the end", header(Command::Write, 0, end - 512, 1024), Errno::Enospc),
        ("zeroing beyond the end", header(Command::WriteZeroes, 0, end, 512), Errno::Enospc),
        ("trim beyond the end", header(Command::Trim, 0, end, 512), Errno::Einval),
        ("status beyond the end", header(Command::BlockStatus, 0, end, 512), Errno::Einval),
        ("a range that wraps", header(Command::Read, 0, 0u64.wrapping_sub(512), 1024), Errno::Einval),
        ("a write that wraps", header(Command::Write, 0, 0u64.wrapping_sub(512), 512), Errno::Enospc),
        ("flag NO_HOLE on write", header(Command::Write, NO_HOLE, 0, 512), Errno::Einval),
        ("flag DF on write", header(Command::Write, DF, 0, 512), Errno::Einval),
        ("flag REQ_ONE on read", header(Command::Read, REQ_ONE, 0, 512), Errno::Einval),
        ("flag FAST_ZERO on trim", header(Command::Trim, FAST_ZERO, 0, 512), Errno::Einval),
        ("payload length flag", header(Command::Write, 1 << 5, 0, 512), Errno::Einval),
        ("unknown flag on flush", header(Command::Flush, 1 << 15, 0, 0), Errno::Einval),
    ];
    for (what, header, errno) in cases {
        let refusal = check(&header, &sample(), &negotiated()).expect_err(what);
        let payload_to_skip = if header.kind() == Command::Write { header.length } else { 0 };
        let wanted = (errno, payload_to_skip, false);
        assert_eq!((refusal.errno, refusal.payload_to_skip, refusal.fatal), wanted, "{what}");
        assert!(refusal.message.starts_with(char::is_uppercase), "{what}");
    }
}

#[test]
fn commands_that_are_not_offered_are_refused() {
    let info = VolumeInfo { flush: false, fua: false, trim: false, write_zeroes: false, fast_zero: false, ..sample() };
    let none = Negotiated { structured_replies: false, base_allocation: None, ..negotiated() };
    let cases = [
        header(Command::Flush, 0, 0, 0),
        header(Command::Trim, 0, 0, 512),
        header(Command::WriteZeroes, 0, 0, 512),
        header(Command::BlockStatus, 0, 0, 512),
        header(Command::Write, command_flag::FUA, 0, 512),
        header(Command::Read, command_flag::FUA, 0, 512),
        header(Command::Read, command_flag::DF, 0, 512),
    ];
    for header in cases {
        assert_eq!(errno_of(&header, &info, &none), Some(Errno::Einval), "{header:?}");
    }
    let slow = VolumeInfo { fast_zero: false, ..sample() };
    let fast = header(Command::WriteZeroes, command_flag::FAST_ZERO, 0, 512);
    assert_eq!(errno_of(&fast, &slow, &negotiated()), Some(Errno::Einval));
}

#[test]
fn a_read_only_export_refuses_all_changes() {
    let info = VolumeInfo { read_only: true, trim: false, ..sample() };
    for command in [Command::Write, Command::Trim, Command::WriteZeroes] {
        assert_eq!(errno_of(&header(command, 0, 0, 512), &info, &negotiated()), Some(Errno::Eperm));
    }
    let refusal = check(&header(Command::Write, 0, 0, 512), &info, &negotiated());
    assert_eq!(refusal.map_err(|refusal| refusal.payload_to_skip), Err(512));
    assert!(check(&header(Command::Read, 0, 0, 512), &info, &negotiated()).is_ok());
    assert!(check(&header(Command::Flush, 0, 0, 0), &info, &negotiated()).is_ok());
}

#[test]
fn the_maximum_block_size_bounds_payloads_only() {
    let info = VolumeInfo { size_bytes: 8 << 30, block_maximum: 64 * KIB, ..sample() };
    let check = |command| check(&header(command, 0, 0, 64 * KIB + 512), &info, &negotiated());
    assert_eq!(check(Command::Read).map_err(|refusal| refusal.errno), Err(Errno::Eoverflow));
    assert_eq!(check(Command::Write).map_err(|refusal| refusal.errno), Err(Errno::Einval));
    assert!(check(Command::Trim).is_ok());
    assert!(check(Command::WriteZeroes).is_ok());
    assert!(check(Command::BlockStatus).is_ok());
    let whole = header(Command::Trim, 0, 0, u32::MAX - 511);
    assert!(super::check(&whole, &info, &negotiated()).is_ok(), "almost 4 GiB");
}

#[test]
fn a_write_that_is_far_too_long_is_fatal() {
    // maximum, block sizes requested, length of the write, fatal
    let cases = [
        (64 * KIB, true, 128 * KIB, false),
        (64 * KIB, true, 128 * KIB + 1, true),
        (64 * KIB, false, 32 * MIB, false),
        (64 * KIB, false, 32 * MIB + 1, true),
        (64 * MIB, true, 64 * MIB, false),
        (64 * MIB, true, 64 * MIB + 1, true),
        (64 * MIB, false, u32::MAX, true),
    ];
    for (block_maximum, block_size_requested, length, fatal) in cases {
        let info = VolumeInfo { block_maximum, ..sample() };
        let negotiated = Negotiated { block_size_requested, ..negotiated() };
        let refusal = check(&header(Command::Write, 0, 0, length), &info, &negotiated);
        let refusal = refusal.expect_err("beyond the end at least");
        assert_eq!(refusal.fatal, fatal, "{length} bytes with maximum {block_maximum}");
        assert_eq!(refusal.payload_to_skip, if fatal { 0 } else { length });
    }
}

/// A generator of varied bytes that are the same in each run (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

#[test]
fn random_headers_never_panic_and_valid_ranges_are_within_the_export() {
    let mut random = Random(1);
    let info = sample();
    for _ in 0..200_000 {
        let header = RequestHeader {
            flags: random.next() as u16 >> (random.next() % 17).min(15),
            command: (random.next() % 10) as u16,
            cookie: random.next(),
            offset: random.next() >> (random.next() % 64) & !511,
            length: random.next() as u32 >> (random.next() % 32) & !511,
        };
        let (offset, len) = match check(&header, &info, &negotiated()) {
            Ok(Operation::Read { offset, len } | Operation::Write { offset, len, .. }) => (offset, len),
            Ok(Operation::Trim { offset, len, .. } | Operation::WriteZeroes { offset, len, .. }) => (offset, len),
            Ok(Operation::BlockStatus { offset, len, .. }) => (offset, len),
            Ok(Operation::Flush | Operation::Disconnect) | Err(_) => continue,
        };
        assert!(len > 0 && offset + u64::from(len) <= info.size_bytes);
    }
}
