//! A trace in any of the formats. Parsing returns rows or an error that names the row, never panics, and returns
//! nothing after an error. Written rows are read back unchanged.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sluice_sched::Kind;
use sluice_sim::scenario::trace::FORMATS;
use sluice_sim::traces::write::{Target, write};
use sluice_sim::traces::{Format, PastEnd, Row, Select, measured, read};

/// Writes rows of reads and writes and reads them back, with as many bytes of text as there are rows.
fn again(target: Target, format: Format, rows: &[Row]) {
    let mut text = Vec::new();
    write(target, rows.iter().copied(), &mut text).expect("a vector takes all");
    let back: Vec<Row> = read(format, text.as_slice()).map(|row| row.expect("it was written by us")).collect();
    assert_eq!(back.len(), rows.len());
    let same = |(back, row): (&Row, &Row)| back.kind == row.kind && back.at / 1000 == row.at / 1000;
    assert!(back.iter().zip(rows).all(same));
}

fuzz_target!(|data: &[u8]| {
    let [which, data @ ..] = data else { return };
    let (_, format) = FORMATS[usize::from(*which) % FORMATS.len()];
    let mut items = read(format, data);
    let mut rows = Vec::new();
    while let Some(item) = items.next() {
        match item {
            Ok(row) => {
                assert!(row.length <= 1 << 30);
                rows.push(row);
            }
            Err(error) => {
                assert!(error.to_string().starts_with("Row "), "{error}");
                assert!(items.next().is_none(), "nothing comes behind an error");
                break;
            }
        }
    }
    if format == Format::DiskSimValidate {
        assert_eq!(measured(data).filter(Result::is_ok).count(), rows.len());
    }
    let volume = 1 << 20;
    let selected = Select::new(read(format, data), None, volume, PastEnd::Wrap);
    selected.for_each(|row| assert!(row.offset + u64::from(row.length) <= volume));
    // Streams are separate files there, with their own lines.
    rows.retain(|row| matches!(row.kind, Kind::Read | Kind::Write) && row.stream < 100);
    again(Target::Fio, Format::Fio, &rows);
    again(Target::Spc, Format::Spc, &rows);
});
