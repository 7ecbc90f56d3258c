//! Parts of a volume that hold data, for NBD's block status.
//!
//! `lseek` finds the next data and the next hole. It moves the offset of the description, which is not used otherwise: all I/O states its offset. Filesystems may report an unwritten or a zero part either way. A hole always reads as zeroes, which is what the result is used for. If nothing is known (block devices, errors) everything is data, which is always a correct answer.
//!
//! The calls may block on the file's locks, so they are not made on the device thread.

use std::os::fd::BorrowedFd;

use rustix::fs::{FileType, SeekFrom, seek};
use rustix::io::Errno;

use super::range::ByteRange;

/// Whether bytes are backed by storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allocation {
    /// Backed, or not known to be a hole.
    Data,
    /// Not backed; reads as zeroes.
    Hole,
}

/// Adjacent bytes of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// Number of bytes, above 0.
    pub length: u64,
    pub kind: Allocation,
}

/// Returns the kinds of the bytes `part` of a volume, in order from `part.offset`. `part` counts from the start of the
/// volume, which has the range `volume` in the file. What is past the end of the volume is cut off.
///
/// At most `spans_max` spans are returned, so they may cover less than `part` (never nothing, unless `part` is empty or
/// `spans_max` is 0). Adjacent spans always have different kinds.
#[must_use]
pub fn allocation(fd: BorrowedFd<'_>, volume: ByteRange, part: ByteRange, spans_max: usize) -> Vec<Span> {
    let requested = ByteRange::new(volume.offset.saturating_add(part.offset), part.length).within(volume);
    let all_data = || collect(requested, spans_max, |_, end| (end, Allocation::Data));
    match rustix::fs::fstat(fd) {
        Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile => {
            collect(requested, spans_max, |at, end| next_span(fd, at, end))
        }
        _ => all_data(),
    }
}

/// Calls `next` for the end and the kind of the bytes at an offset until `requested` is covered.
fn collect(requested: ByteRange, spans_max: usize, next: impl Fn(u64, u64) -> (u64, Allocation)) -> Vec<Span> {
    let mut spans: Vec<Span> = Vec::new();
    let mut at = requested.offset;
    // If a hole is filled concurrently, two steps may have the same kind. They are joined, so their number must be
    // bounded separately.
    for _ in 0..spans_max.saturating_mul(2) {
        if at >= requested.end() {
            break;
        }
        let (end, kind) = next(at, requested.end());
        let full = spans.len() == spans_max || spans.try_reserve(1).is_err();
        match spans.last_mut() {
            Some(last) if last.kind == kind => last.length += end - at,
            _ if full => break,
            _ => spans.push(Span { length: end - at, kind }),
        }
        at = end;
    }
    spans
}

/// Returns the kind of the byte `at`, and where that kind ends, at most `end`. Always makes progress.
fn next_span(fd: BorrowedFd<'_>, at: u64, end: u64) -> (u64, Allocation) {
    match seek(fd, SeekFrom::Data(at)) {
        // No data from here to the end of the file.
        Err(Errno::NXIO) => (end, Allocation::Hole),
        Ok(data) if data > at => (data.min(end), Allocation::Hole),
        Ok(_) => match seek(fd, SeekFrom::Hole(at)) {
            Ok(hole) if hole > at => (hole.min(end), Allocation::Data),
            _ => (end, Allocation::Data),
        },
        Err(_) => (end, Allocation::Data),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Allocation::{Data, Hole};
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    const MIB: u64 = 1 << 20;

    /// Data in the second and fourth of eight MiB; in MiB, because a filesystem may allocate more than requested.
    fn sparse() -> File {
        let file = tempfile::tempfile().unwrap();
        file.set_len(8 * MIB).unwrap();
        for block in [1, 3] {
            file.write_all_at(&vec![7; MIB as usize], block * MIB).unwrap();
        }
        file.sync_all().unwrap();
        file
    }

    /// In MiB.
    fn ask(file: &File, volume: (u64, u64), part: (u64, u64), spans_max: usize) -> Vec<(u64, Allocation)> {
        let range = |(offset, length): (u64, u64)| ByteRange::new(offset * MIB, length * MIB);
        let spans = allocation(file.as_fd(), range(volume), range(part), spans_max);
        spans.iter().map(|span| (span.length / MIB, span.kind)).collect()
    }

    #[test]
    fn spans_alternate_and_cover_the_part() {
        let file = sparse();
        let all = [(1, Hole), (1, Data), (1, Hole), (1, Data), (4, Hole)];
        assert_eq!(ask(&file, (0, 8), (0, 8), 100), all);
        assert_eq!(ask(&file, (0, 8), (0, 100), 100), all, "cut off at the end of the volume");
        assert_eq!(ask(&file, (3, 5), (0, 5), 100), [(1, Data), (4, Hole)]);
        assert_eq!(ask(&file, (1, 3), (1, 2), 100), [(1, Hole), (1, Data)]);
    }

    #[test]
    fn the_number_of_spans_is_bounded() {
        let file = sparse();
        assert_eq!(ask(&file, (0, 8), (0, 8), 2), [(1, Hole), (1, Data)]);
        assert_eq!(ask(&file, (0, 8), (0, 8), 0), []);
        assert_eq!(ask(&file, (0, 8), (8, 1), 9), []);
        assert_eq!(ask(&file, (0, 8), (0, 0), 9), []);
    }

    #[test]
    fn queries_do_not_affect_positional_io() {
        let file = sparse();
        let mut before = [0; 8];
        file.read_exact_at(&mut before, MIB).unwrap();
        ask(&file, (0, 8), (0, 8), 100);
        let mut after = [0; 8];
        file.read_exact_at(&mut after, MIB).unwrap();
        assert_eq!((before, after), ([7; 8], [7; 8]));
    }

    #[test]
    fn a_device_is_all_data() {
        let (reader, _writer) = std::io::pipe().unwrap();
        let spans = allocation(reader.as_fd(), ByteRange::new(0, 100), ByteRange::new(10, 50), 4);
        assert_eq!(spans, [Span { length: 50, kind: Data }]);
    }

    #[test]
    fn repeated_kinds_are_joined_and_the_number_of_steps_is_bounded() {
        let one_by_one = |at: u64, _end: u64| (at + 1, Data);
        let spans = collect(ByteRange::new(0, 1000), 4, one_by_one);
        assert_eq!(spans, [Span { length: 8, kind: Data }]);
    }
}
