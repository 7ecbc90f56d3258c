//! This build beside one without a part of it, on a volume that completes immediately.

use std::path::{Path, PathBuf};

use super::super::contest::{Choice, Store};
use super::super::report::{Bound, Cell, Report, Table};
use super::{Client, Effort, SHAPES, contest};

/// Measures what `part` costs: the IOPS and the CPU time of this build over those of the build without it. `least` is the promised
/// ratio of IOPS.
pub(in super::super) fn compare_without(
    report: &mut Report,
    (part, least): (&str, f64),
    other: &Path,
    rounds: usize,
    quick: bool,
) -> Result<(), String> {
    let choice = Choice::of_builds(other.to_path_buf());
    let title = format!("4 KiB reads over vhost-user, null, with {part} / without");
    let columns = ["front end", "queues x depth", "IOPS with", "IOPS without", "IOPS, ratio", "CPU per request, ratio"];
    let mut table = Table::new(title, &columns);
    for (front_end, poll) in [("sleeps", false), ("polls", true)] {
        let effort = Effort::new(quick, poll, Client::Own);
        // A null device has no file.
        let contestants = contest(report, Store::Null, &PathBuf::new(), (&choice, rounds), effort)?;
        let [with, without] = contestants.as_slice() else { return Err("Two builds are compared".to_owned()) };
        for (index, shape) in SHAPES.iter().enumerate() {
            let (with, without) = (&with.measured[index], &without.measured[index]);
            let ratio = with.iops.ratio(&without.iops);
            report.target(
                format!("IOPS with {part} / without, front end {front_end}, {}", shape.name()),
                Bound::AtLeast(least),
                ratio.median(),
            );
            table.row(vec![
                Cell::text(front_end),
                Cell::text(shape.name()),
                Cell::Number(with.iops.median(), 0),
                Cell::Number(without.iops.median(), 0),
                Cell::spread(&ratio, 3),
                Cell::spread(&with.cpu_us.ratio(&without.cpu_us), 3),
            ]);
        }
    }
    report.table(table);
    Ok(())
}
