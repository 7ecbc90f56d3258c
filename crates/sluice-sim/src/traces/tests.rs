use proptest::prelude::*;

use super::write::{Target, write};
use super::*;
use crate::scenario::trace::FORMATS;

fn all(format: Format, text: &[u8]) -> Result<Vec<Row>, TraceError> {
    read(format, text).collect()
}

fn row(at: u64, stream: u32, kind: Kind, offset: u64, length: u32) -> Row {
    Row { at, stream, kind, offset, length }
}

const ETW: &str = "BeginHeader
               DiskRead,  TimeStamp,     Process Name ( PID),   ThreadID,             IrpPtr,   ByteOffset,     IOSize, ElapsedTime,  DiskNum, IrpFlags, DiskSvcTime, I/O Pri, FileObject, \"FileName\"
              DiskWrite,  TimeStamp,     Process Name ( PID),   ThreadID,  CPU, IrpPtr,   ByteOffset,     IOSize, ElapsedTime,  DiskNum, IrpFlags, DiskSvcTime, I/O Pri, FileObject, \"FileName\"
              DiskFlush,  TimeStamp,     Process Name ( PID),   ThreadID,             IrpPtr, ElapsedTime,  DiskNum, IrpFlags, DiskSvcTime, I/O Pri
EndHeader
               DiskRead,     123456,          store.exe (1234),       5678, 0xfffffa80, 0x000001f000, 0x00002000,         977,        2, 0x060043,         900,       3, 0xfffff8a0, \"Unknown\"
              DiskWrite,     223456,          store.exe (1234),       5678,    3, 0xfffffa80, 0x0000020000, 0x00001000,         977,        0, 0x060043,         900,       3, 0xfffff8a0, \"Unknown\"
              DiskFlush,     323456,          store.exe (1234),       5678, 0xfffffa80,         977,        2, 0x060043,         900,       3
            Something else, 5
";

#[test]
fn every_format_of_separated_values_parses_its_sample() {
    use Kind::{Read, Write};
    parse_samples(vec![
        (
            Format::Spc,
            "0,303567,3584,w,0.000000\n1,55590,3072,R,1.026214,more,fields\n",
            vec![row(0, 0, Write, 303_567 * 512, 3584), row(1_026_214_000, 1, Read, 55_590 * 512, 3072)],
        ),
        (
            Format::Msr,
            "128166372003061629,usr,0,Read,7014609920,24576,41286\n128166372016382155,usr,1,Write,1317441536,8192,1963\n",
            vec![row(0, 0, Read, 7_014_609_920, 24576), row(1_332_052_600, 1, Write, 1_317_441_536, 8192)],
        ),
        (
            Format::Systor,
            "Timestamp,Response,IOType,LUN,Offset,Size\n1456095600.002345678,0.0003,R,4,8192,4096\n",
            vec![row(1_456_095_600_002_345_678, 4, Read, 8192, 4096)],
        ),
        (
            Format::Alibaba,
            "419,W,11014160384,4096,1577808144360767\n",
            vec![row(1_577_808_144_360_767_000, 419, Write, 11_014_160_384, 4096)],
        ),
        (
            Format::Tencent,
            "1538323200,12910952,8,1,1063\n",
            vec![row(1_538_323_200_000_000_000, 1063, Write, 12_910_952 * 512, 4096)],
        ),
        (
            Format::Etw,
            ETW,
            vec![
                row(123_456_000, 2, Read, 0x1f000, 0x2000),
                row(223_456_000, 0, Write, 0x20000, 0x1000),
                row(323_456_000, 2, Kind::Flush, 0, 0),
            ],
        ),
    ]);
}

#[test]
fn every_text_format_of_a_tool_parses_its_sample() {
    use Kind::{Discard, Flush, Read, Write};
    parse_samples(vec![
        (
            Format::DiskSim(TimeUnit::Milliseconds),
            "0.5 0 100 8 1\n2.25 1 200 16 0\n",
            vec![row(500_000, 0, Read, 51200, 4096), row(2_250_000, 1, Write, 102_400, 8192)],
        ),
        (
            Format::DiskSimValidate,
            "W Hit    4583176   4    663.00000  45422.00000\nR Miss 100 8 1000.5 0\n",
            vec![row(0, 0, Write, 4_583_176 * 512, 2048), row(46_085_000, 0, Read, 51200, 4096)],
        ),
        (
            Format::Fio,
            "fio version 2 iolog\n/a add\n/a open\n/a read 4096 512\n/a wait 250 0\n/b trim 0 1024\n/a sync 0 0\n/a close\n",
            vec![row(0, 0, Read, 4096, 512), row(250_000_000, 1, Discard, 0, 1024), row(250_000_000, 0, Flush, 0, 0)],
        ),
        (
            Format::Blkparse,
            "  8,0    3        1     0.000000000   697  Q   R 223490 + 8 [kjournald]\n\
             8,0    3        2     0.000001829   697  G   W 223490 + 8 [kjournald]\n\
             8,16   1        3     1.500000000   697  Q F [kworker]\n\
             8,0    3        4     2.000000000   697  Q  WS 100 + 16 [kjournald]\n\
             CPU0 (sda):\n Reads Queued: 1, 4KiB\n",
            vec![
                row(0, 0, Read, 223_490 * 512, 4096),
                row(1_500_000_000, 1, Flush, 0, 0),
                row(2_000_000_000, 0, Write, 51200, 8192),
            ],
        ),
    ]);
}

/// Format, text and expected rows.
type Sample = (Format, &'static str, Vec<Row>);

fn parse_samples(samples: Vec<Sample>) {
    for (format, text, expected) in samples {
        assert_eq!(all(format, text.as_bytes()).unwrap(), expected, "{format:?}");
    }
}

/// Entries of a trace; all of stream 0 that are skipped, by their names.
fn with_skipped(format: Format, text: &[u8]) -> (Vec<Row>, Vec<&'static str>) {
    let (mut rows, mut skipped) = (Vec::new(), Vec::new());
    for entry in entries(format, text) {
        match entry.unwrap() {
            Entry::Request(row) => rows.push(row),
            Entry::Skipped(stream, what) => {
                assert_eq!(stream, 0);
                skipped.push(what);
            }
        }
    }
    (rows, skipped)
}

#[test]
fn a_flush_without_a_sector_refused_the_output_of_blkparse() {
    // As blkparse 1.3 prints the records of the next test, but for the zones, whose letters are those of the kernel.
    let text = b"  8,0    0        1     0.000000077   700  Q  WS 2048 + 8 [writer]
  8,0    0        2     0.000000077   700  Q FWS [flusher]
  8,0    0        3     0.000000077   700  Q  FN [flusher]
  8,0    0        4     0.000000077   700  Q FWFSM 4096 + 8 [jbd2/vda1-8]
  8,0    0        5     0.000000077   700  Q   R 8192 + 16 [reader]
  8,0    0        6     0.000000077   700  Q   D 0 + 2048 [fstrim]
  8,0    0        7     0.000000077   700  Q   W [blkzone]
  8,0    0        8     0.000000077   700  Q   N [none]
  8,0    0        9     0.000000077   700  Q   R 36 (12 00 00 00 24 00 ..) [sg_inq]
  8,0    0       10     0.000000077   700  Q  ZR 524288 + 524288 [blkzone]
  8,0    0       11     0.000000077   700  Q ZRS [blkzone]
CPU0 (8,0):
 Reads Queued:           4,        8KiB\t Writes Queued:           5,     1032KiB
";
    let (rows, skipped) = with_skipped(Format::Blkparse, text);
    assert_eq!(rows, blocks());
    assert_eq!(
        skipped,
        [
            "requests without data",
            "requests of unknown kind",
            "passthrough commands",
            "operations on zones",
            "operations on zones"
        ]
    );
    let cut = all(Format::Blkparse, b"  8,0 0 1 0.000000077 700\n").unwrap_err().to_string();
    assert!(cut.starts_with("Row 1: only 5 fields, no action"), "{cut}");
    let wrong = all(Format::Blkparse, b"8,0 0 1 0.0 700 Q 36 (12 00) [x]\n").unwrap_err().to_string();
    assert!(wrong.starts_with("Row 1: '36' is not the kind of a request"), "{wrong}");
}

/// The requests of the tests of blkparse and blktrace.
fn blocks() -> Vec<Row> {
    use Kind::{Discard, Flush, Read, Write};
    let requests = [
        (Write, 2048, 8),
        (Flush, 0, 0),
        (Flush, 0, 0),
        (Flush, 0, 0),
        (Write, 4096, 8),
        (Read, 8192, 16),
        (Discard, 0, 2048),
    ];
    requests.map(|(kind, sector, sectors)| row(77, 0, kind, sector * 512, sectors * 512)).into()
}

#[test]
fn a_flush_without_data_was_dropped_from_the_records_of_blktrace() {
    let (read, write, flush, sync) = (1, 1 << 1, 1 << 2, 1 << 3);
    let (passes, meta, discard, fua) = (1 << 9, 1 << 12, 1 << 13, 1 << 15);
    let records = [
        (write | sync, 2048, 4096),
        (write | sync | flush, 0, 0),
        (flush, 0, 0),
        (write | flush | fua | sync | meta, 4096, 4096),
        (read, 8192, 8192),
        (discard | write, 0, 1 << 20),
        (write, 524_288, 0),
        (0, 0, 0),
        (passes | read, 0, 36),
    ];
    let zone = (1 << 16 | write, 524_288, 524_288);
    let file = |version: u32, records: &[(u64, u64, u32)]| -> Vec<u8> {
        let record = |&(category, sector, bytes): &(u64, u64, u32)| {
            record(version, true, 1 | category << 16, sector, bytes, b"")
        };
        records.iter().flat_map(record).collect()
    };
    let expected = ["requests without data", "requests of unknown kind", "passthrough commands"];
    for version in [7, 8] {
        let (rows, skipped) = with_skipped(Format::Blktrace, &file(version, &records));
        assert_eq!((rows, skipped), (blocks(), expected.to_vec()), "version {version}");
    }
    let (rows, skipped) = with_skipped(Format::Blktrace, &file(8, &[zone]));
    assert_eq!((rows, skipped), (Vec::new(), vec!["operations on zones"]));
}

#[test]
fn waits_of_fio_count_from_the_start_in_milliseconds() {
    // fio 3.33 starts the second and third read 2 s after the start, and the last one at 2.5 s.
    let text = "fio version 2 iolog\n/d add\n/d open\n/d read 0 512\n/d wait 2000 0\n/d read 1024 512\n/d wait 500 0\n\
                /d sync_file_range 0 512\n/d read 2048 512\n/d wait 2500 0\n/d read 4096 512\n/d close\n";
    let (rows, skipped) = with_skipped(Format::Fio, text.as_bytes());
    let times: Vec<u64> = rows.iter().map(|row| row.at / 1_000_000).collect();
    assert_eq!((times, skipped), (vec![0, 2000, 2000, 2500], vec!["calls of sync_file_range"]));
}

#[test]
fn version_3_of_fio_has_timestamps() {
    let text = "fio version 3 iolog\n18 /f add\n122 /f open\n127 /f read 61440 4096\n100976 /f write 774144 4096\n";
    let expected = [row(127_000, 0, Kind::Read, 61440, 4096), row(100_976_000, 0, Kind::Write, 774_144, 4096)];
    assert_eq!(all(Format::Fio, text.as_bytes()).unwrap(), expected);
}

/// A record of blktrace.
fn record(version: u32, little: bool, action: u64, sector: u64, bytes: u32, data: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut put = |value: u64, len: usize| {
        let bytes = value.to_le_bytes();
        let bytes = bytes[..len].iter().copied();
        if little { out.extend(bytes) } else { out.extend(bytes.rev()) }
    };
    put(u64::from(MAGIC_FOR_TESTS | version), 4);
    [(1, 4), (77, 8), (sector, 8), (u64::from(bytes), 4)].into_iter().for_each(|(value, len)| put(value, len));
    if version == 7 {
        [(action, 4), (5, 4), (0x80_0001, 4), (2, 4), (0, 2), (data.len() as u64, 2)]
            .into_iter()
            .for_each(|(value, len)| put(value, len));
    } else {
        [(5, 4), (action, 8), (0x80_0001, 4), (2, 4), (0, 2), (data.len() as u64, 2), (0, 8), (0, 4)]
            .into_iter()
            .for_each(|(value, len)| put(value, len));
    }
    out.extend(data);
    out
}

const MAGIC_FOR_TESTS: u32 = 0x6561_7400;

#[test]
fn blktrace_is_read_in_both_versions_and_orders() {
    for (version, little) in [(7, true), (7, false), (8, true), (8, false)] {
        let mut file = record(version, little, 1 | 1 << 16, 100, 4096, b"name");
        file.extend(record(version, little, 7 | 1 << 16, 100, 4096, b""));
        file.extend(record(version, little, 1 | 2 << 16, 200, 8192, b""));
        let expected = [row(77, 0, Kind::Read, 51200, 4096), row(77, 0, Kind::Write, 102_400, 8192)];
        assert_eq!(all(Format::Blktrace, &file).unwrap(), expected, "version {version}, little {little}");
        let cut = all(Format::Blktrace, &file[..file.len() - 3]).unwrap_err();
        assert!(cut.to_string().starts_with("Row 3: the file ends in the middle"), "{cut}");
    }
    let wrong = all(Format::Blktrace, &[0; 64]).unwrap_err();
    assert_eq!(
        wrong.to_string(),
        "Row 1: a record that begins with 0x00000000; expected records of blktrace, version 7 or 8"
    );
}

#[test]
fn errors_name_the_row() {
    let cases = [
        (
            Format::Spc,
            "0,1,512,r,0.5\n0,1,512,x,0.5\n",
            "Row 2: 'x' is neither a read nor a write; expected ASU,LBA,bytes,R|W,seconds (SPC)",
        ),
        (Format::Spc, "0,1,512\n", "Row 1: only 3 fields, no operation; expected"),
        (Format::Spc, "0,36028797018963968,512,r,0\n", "Row 1: 36028797018963968 is too large for a LBA"),
        (Format::Spc, "0,1,99999999999,r,0\n", "Row 1: a request of 99999999999 bytes"),
        (Format::Tencent, "1,2,3,4,5\n", "Row 1: '4' is neither 0 (read) nor 1 (write)"),
        (Format::Msr, "5,a,0,Read,0,512,1\n4,a,0,Read,0,512,1\n", "Row 2: a time before that of the first row"),
        (Format::Fio, "fio version 1 iolog\n", "Row 1: 'fio version 1 iolog'; expected"),
        (Format::Fio, "fio version 2 iolog\n/a jump 0 0\n", "Row 2: 'jump' is not an action"),
        (Format::DiskSim(TimeUnit::Nanoseconds), "1.5 0 1 1 1\n", "Row 1: '1.5' is not a valid time in nanoseconds"),
        (Format::DiskSimValidate, "R Maybe 1 1 1 1\n", "Row 1: 'Maybe' is neither Hit nor Miss"),
        (Format::Etw, "BeginHeader\nDiskRead, TimeStamp\n", "Row 2: a header without column ByteOffset"),
        (Format::Etw, "EndHeader\nDiskRead, 5\n", "Row 2: an event whose columns are not in the header"),
    ];
    for (format, text, expected) in cases {
        let error = all(format, text.as_bytes()).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
    }
    let long = vec![b'1'; 100_000];
    assert!(all(Format::Spc, &long).unwrap_err().to_string().contains("more than 64 KiB"));
    assert!(all(Format::Spc, &[0xff, 0xfe, b'\n']).unwrap_err().to_string().contains("not text"));
    // As it was fetched, or another format: what is said of it fits a terminal.
    for (begins, by) in [(&[0x1f, 0x8b, 8, 0][..], "gzip"), (&[0x28, 0xb5, 0x2f, 0xfd], "zstd"), (b"\xfd7zXZ\0", "xz")]
    {
        let error = all(Format::Spc, begins).unwrap_err().to_string();
        assert!(error.starts_with(&format!("Row 1: data compressed by {by}; decompress it first")), "{error}");
    }
    for format in [Format::Spc, Format::Fio, Format::Systor, Format::DiskSim(TimeUnit::Milliseconds)] {
        let error = all(format, &[0; 60_000]).unwrap_err().to_string();
        assert!(error.chars().count() < 250 && !error.contains('\0'), "{error}");
    }
}

#[test]
fn written_traces_are_read_back() {
    let rows = [
        row(1_000, 0, Kind::Read, 4096, 512),
        row(2_000_000, 1, Kind::Write, 8192, 1024),
        row(3_000_000_000, 0, Kind::Read, 0, 4096),
    ];
    let pairs = [
        (Target::Fio, Format::Fio),
        (Target::Spc, Format::Spc),
        (Target::DiskSim, Format::DiskSim(TimeUnit::Milliseconds)),
    ];
    for (target, format) in pairs {
        let mut text = Vec::new();
        write(target, rows, &mut text).unwrap();
        assert_eq!(all(format, &text).unwrap(), rows, "{target:?}");
    }
    let mut text = Vec::new();
    write(Target::Fio, [row(5_000, 0, Kind::Flush, 0, 0), row(6_000, 0, Kind::Discard, 512, 512)], &mut text).unwrap();
    assert_eq!(all(Format::Fio, &text).unwrap().len(), 2);
}

/// A record of vscsiStats.
fn vscsi(version: u64, command: u64, sector: u64, bytes: u64, micros: u64) -> Vec<u8> {
    let fields = match version {
        1 => vec![(7, 4), (bytes, 4), (1, 4), (command, 2), (1 << 8, 2), (sector, 8), (micros, 8)],
        _ => vec![(command, 2), (2 << 8, 2), (7, 4), (bytes, 4), (1, 4), (sector, 8), (micros, 8), (99, 8)],
    };
    fields.into_iter().flat_map(|(value, len): (u64, usize)| value.to_le_bytes().into_iter().take(len)).collect()
}

#[test]
fn vscsi_is_read_in_both_versions() {
    for version in [1, 2] {
        let commands = [(0x28, 100, 4096), (0x12, 0, 36), (0x2a, 200, 65_536), (0x35, 0, 0), (0x42, 0, 24)];
        let file: Vec<u8> = (1..)
            .zip(commands)
            .flat_map(|(number, (command, sector, bytes))| vscsi(version, command, sector, bytes, number * 1000))
            .collect();
        let expected = [
            row(1_000_000, 0, Kind::Read, 51_200, 4096),
            row(3_000_000, 0, Kind::Write, 102_400, 65_536),
            row(4_000_000, 0, Kind::Flush, 0, 0),
        ];
        assert_eq!(all(Format::Vscsi, &file).unwrap(), expected, "version {version}");
        let skipped = with_skipped(Format::Vscsi, &file).1;
        assert_eq!(skipped, ["other SCSI commands", "UNMAP commands"], "version {version}");
        let cut = all(Format::Vscsi, &file[..file.len() - 1]).unwrap_err();
        assert!(cut.to_string().starts_with("Row 5: the file ends in the middle of a record"), "{cut}");
        let mut mixed = vscsi(version, 0x28, 1, 512, 1);
        mixed.extend(vscsi(3 - version, 0x28, 1, 512, 1));
        mixed.extend([0; 40]);
        assert!(all(Format::Vscsi, &mixed).unwrap_err().to_string().starts_with("Row 2: version 0x"));
    }
    let wrong = all(Format::Vscsi, &[0; 80]).unwrap_err();
    assert!(wrong.to_string().starts_with("Row 1: version 0x0000; expected records of 32 or 40 bytes"), "{wrong}");
    assert!(all(Format::Vscsi, b"").unwrap().is_empty());
}

#[test]
fn oracle_general_is_read_with_the_callers_unit() {
    let mut file = Vec::new();
    for (seconds, id, bytes) in [(5u32, 42_932_745u64, 512u32), (6, 7, 65_536)] {
        file.extend(seconds.to_le_bytes());
        file.extend(id.to_le_bytes());
        file.extend(bytes.to_le_bytes());
        file.extend((-1i64).to_le_bytes());
    }
    let expected =
        [row(5_000_000_000, 0, Kind::Read, 42_932_745 * 512, 512), row(6_000_000_000, 0, Kind::Read, 3584, 65_536)];
    assert_eq!(all(Format::OracleGeneral(512), &file).unwrap(), expected);
    let packed = [&[0x28, 0xb5, 0x2f, 0xfd][..], &file].concat();
    let error = all(Format::OracleGeneral(512), &packed).unwrap_err().to_string();
    assert!(error.starts_with("Row 1: data compressed by zstd; decompress it first"), "{error}");
}

#[test]
fn a_trace_of_several_devices_is_split_by_stream() {
    let text = "0,0,4096,r,0\n1,10,4096,w,1\n0,200,4096,r,2\n1,0,0,w,3\n";
    let select = |stream, volume, beyond| Select::new(read(Format::Spc, text.as_bytes()), stream, volume, beyond);
    let all: Vec<Row> = select(None, 1 << 20, PastEnd::Refuse).collect();
    assert_eq!(all.len(), 3, "rows without a length are skipped");
    let second: Vec<Row> = select(Some(1), 1 << 20, PastEnd::Refuse).collect();
    assert_eq!(second, [row(1_000_000_000, 1, Kind::Write, 5120, 4096)]);
    let mut small = select(Some(0), 65_536, PastEnd::Refuse);
    assert_eq!((small.next().map(|row| row.offset), small.next()), (Some(0), None));
    let error = small.failure().take().unwrap().to_string();
    assert!(error.starts_with("A request of the trace ends at byte 106496, but the volume has only 65536"), "{error}");
    assert!(small.failure().take().is_none() && small.next().is_none());
    let wrapped: Vec<u64> = select(Some(0), 65_536, PastEnd::Wrap).map(|row| row.offset).collect();
    assert_eq!(wrapped, [0, 102_400 - 61_440]);
    let wrapped: Vec<u64> = select(Some(0), 4096, PastEnd::Wrap).map(|row| row.offset).collect();
    assert_eq!(wrapped, [0, 0], "both wrap to the start");
    let mut small = select(Some(0), 2048, PastEnd::Wrap);
    assert!(small.next().is_none());
    let error = small.failure().take().unwrap().to_string();
    assert_eq!(error, "A request of the trace has 4096 bytes, but the volume has only 2048; use a larger volume");
}

#[test]
fn a_trace_names_a_bounded_number_of_devices() {
    let mut text = "fio version 3 iolog\n".to_owned();
    (0..=NAMES_MAX).for_each(|file| text.push_str(&format!("0 /{file} read 0 512\n")));
    let error = all(Format::Fio, text.as_bytes()).unwrap_err().to_string();
    assert!(error.starts_with("Row 65538: one more device than 65536"), "{error}");
}

proptest! {
    #[test]
    fn no_input_causes_a_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..300),
        fields in prop::collection::vec(prop_oneof![
            any::<u64>().prop_map(|number| number.to_string()),
            any::<u16>().prop_map(|number| number.to_string()),
            any::<f32>().prop_map(|number| number.to_string()),
            Just("R".to_owned()), Just("Q".to_owned()), Just("8,0".to_owned()), Just("+".to_owned()),
            Just("\n".to_owned()), Just("read".to_owned()), Just("wait".to_owned()), Just("DiskRead".to_owned()),
        ], 0..60),
    ) {
        for (_, format) in FORMATS.iter().copied() {
            let _ = all(format, &bytes);
            for between in [",", " "] {
                let text = fields.join(between);
                let _ = all(format, text.as_bytes());
                let _ = all(format, format!("fio version 3 iolog\n{text}").as_bytes());
            }
            let mut records = vscsi(1, 0x28, 1, 512, 1);
            records.extend(&bytes);
            let _ = all(format, &records);
            let mut records = record(8, true, 1 | 1 << 16, 1, 1, b"");
            records.extend(&bytes);
            let _ = all(format, &records);
        }
    }
}

#[test]
fn rows_without_bytes_or_flush_are_skipped() {
    use std::io::Write;
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(b"0,8,4096,R,0.0\n0,8,0,R,1.0\n0,16,0,W,2.0\n0,24,512,W,3.0\n").unwrap();
    let scan = crate::scenario::trace::Scan::read(file.path(), Format::Spc, None).unwrap();
    assert_eq!((scan.rows, scan.reads, scan.bytes), (2, 1, 4608));
    let stated = "it has operations that are not replayed (requests without data: 2)";
    assert_eq!(scan.not_replayed().as_deref(), Some(stated));
    assert!(!row(0, 0, Kind::Flush, 0, 0).is_empty() && row(0, 0, Kind::Discard, 8, 0).is_empty());
}

#[test]
fn only_regular_files_are_opened() {
    for (path, kind) in [("/dev/zero", io::ErrorKind::InvalidInput), ("/", io::ErrorKind::IsADirectory)] {
        assert_eq!(open(Path::new(path)).unwrap_err().kind(), kind, "{path}");
    }
}
