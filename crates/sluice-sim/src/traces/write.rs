//! Writes traces for other programs: fio's I/O log (version 3), SPC, DiskSim ASCII.

use std::io::{self, Write};

use sluice_sched::Kind;

use super::Row;

/// Format of the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// fio's I/O log, version 3; each stream is a file `streamN`. Times are truncated to microseconds.
    Fio,
    /// SPC, times with nine digits. Flushes and discards are skipped, since the format has none.
    Spc,
    /// DiskSim ASCII in milliseconds; reads and writes only.
    DiskSim,
}

/// Writes rows in their order.
///
/// # Errors
/// Errors of the output.
pub fn write(target: Target, rows: impl IntoIterator<Item = Row>, output: &mut impl Write) -> io::Result<()> {
    let mut streams = 0;
    if target == Target::Fio {
        writeln!(output, "fio version 3 iolog")?;
    }
    for row in rows {
        let letter = match row.kind {
            Kind::Read => Some('R'),
            Kind::Write => Some('W'),
            Kind::Flush | Kind::Discard | Kind::WriteZeroes => None,
        };
        match (target, letter) {
            (Target::Fio, _) => {
                while streams <= row.stream {
                    writeln!(output, "{} stream{streams} add", row.at / 1000)?;
                    writeln!(output, "{} stream{streams} open", row.at / 1000)?;
                    streams += 1;
                }
                write_fio(&row, output)?;
            }
            (Target::Spc, Some(letter)) => {
                let (seconds, nanos) = (row.at / 1_000_000_000, row.at % 1_000_000_000);
                let Row { stream, offset, length, .. } = row;
                writeln!(output, "{stream},{},{length},{letter},{seconds}.{nanos:09}", offset / 512)?;
            }
            (Target::DiskSim, Some(letter)) => {
                let (millis, nanos) = (row.at / 1_000_000, row.at % 1_000_000);
                let flags = u8::from(letter == 'R');
                let sectors = row.length.div_ceil(512);
                writeln!(output, "{millis}.{nanos:06} {} {} {sectors} {flags}", row.stream, row.offset / 512)?;
            }
            (Target::Spc | Target::DiskSim, None) => {}
        }
    }
    Ok(())
}

fn write_fio(row: &Row, output: &mut impl Write) -> io::Result<()> {
    let Row { at, stream, offset, length, .. } = row;
    let micros = at / 1000;
    match row.kind {
        Kind::Read => writeln!(output, "{micros} stream{stream} read {offset} {length}"),
        Kind::Write | Kind::WriteZeroes => writeln!(output, "{micros} stream{stream} write {offset} {length}"),
        Kind::Discard => writeln!(output, "{micros} stream{stream} trim {offset} {length}"),
        Kind::Flush => writeln!(output, "{micros} stream{stream} sync 0 0"),
    }
}
