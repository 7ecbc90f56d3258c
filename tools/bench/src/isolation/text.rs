//! The report of the study, and the page of the manual.

use super::{Knob, Row, Study};
use crate::report::{Cell, Report, Table};

/// The page, in which `{PART|APPS|KNOB|NUMBER|DIGITS}` stands for a median.
const PAGE: &str = include_str!("page.md");

/// A column: its name, its number and digits, and whether the number is relative to that without a knob.
type Column = (&'static str, &'static str, usize, bool);

const TABLES: [(&str, &str, &[Column]); 5] = [
    (
        "latency",
        "D1: latency of latency-critical apps",
        &[("p50 [us]", "p50_us", 0, false), ("p99 [us]", "p99_us", 0, false), ("p50, to no knob", "p50_us", 2, true)],
    ),
    ("bandwidth", "D1: bandwidth of batch apps", &[("MB/s", "all", 0, false), ("to no knob", "all", 2, true)]),
    (
        "fairness",
        "D2: fairness among four batch apps",
        &[
            ("Jain's index of MB/s by weight", "jain", 3, false),
            ("MB/s", "all", 0, false),
            ("to no knob", "all", 2, true),
        ],
    ),
    (
        "priority",
        "D3: an app with priority, beside four batch apps",
        &[
            ("its IOPS", "iops", 0, false),
            ("its p99 [us]", "p99_us", 0, false),
            ("the others [MB/s]", "others", 0, false),
            ("all, to no knob", "all", 2, true),
        ],
    ),
    (
        "burst",
        "D4: an app with priority wakes up, beside four batch apps",
        &[("until its share [ms]", "reached_ms", 0, false), ("its IOPS", "iops", 0, false)],
    ),
];

/// Adds all tables.
pub(super) fn add_to(report: &mut Report, study: &Study, rounds: usize) {
    for (part, name, columns) in TABLES {
        let names: Vec<&str> = ["apps", "knob"].into_iter().chain(columns.iter().map(|(name, ..)| *name)).collect();
        let mut table = Table::new(name, &names);
        for row in study.rows.iter().filter(|row| row.part == part) {
            let cells = columns.iter().map(|column| cell(study, row, column));
            table.row([Cell::text(row.apps), Cell::text(&row.knob)].into_iter().chain(cells).collect());
        }
        report.table(table);
    }
    report.note(format!(
        "Median of {rounds} rounds of {} ms each (lowest to highest). \"To no knob\" is the median of the rounds' ratios.",
        study.time_ms
    ));
    report.note(format!(
        "blk-throttle's limits are the apps' parts of what they get together without a knob. BFQ has low_latency = 0. \
         The daemon has depth 32 unless stated, and the measured `knee` of {} bytes.",
        study.bed.knee
    ));
    report.note(
        "Until its share: to the start of the first window of 50 ms with 80 % of the app's rate in the second half of \
         its burst of 1.5 s, in steps of 10 ms.",
    );
    report.note(
        "Not run: io.cost and io.latency, which exist in cgroup v2 only. The groups are of cgroup v1, to which the controller of block devices \
         can belong instead. io.prio.class is in v2 as well, so fio sets the class of its process.",
    );
}

fn cell(study: &Study, row: &Row, (_, number, digits, is_relative): &Column) -> Cell {
    let of = |knob: &str| study.number(row.part, row.apps, knob, number).cloned().unwrap_or_default();
    match is_relative {
        true => Cell::Number(of(&row.knob).ratio(&of(Knob::None.name())).median(), *digits),
        false => Cell::spread(&of(&row.knob), *digits),
    }
}

/// Returns the page of the manual.
pub(super) fn page(study: &Study, report: &Report) -> String {
    let tables = report.markdown();
    let median = |key: &str| {
        let [part, apps, knob, number, digits] = key.split('|').collect::<Vec<_>>()[..] else { return None };
        let median = study.number(part, apps, knob, number)?.median();
        Some(format!("{median:.*}", digits.parse().ok()?))
    };
    filled(PAGE, median) + tables.split_once('\n').map_or("", |(_, rest)| rest)
}

/// Replaces each `{key}`.
fn filled(text: &str, value: impl Fn(&str) -> Option<String>) -> String {
    let mut parts = text.split('{');
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (key, rest) = part.split_once('}').expect("a key ends");
        out += &value(key).expect("a key has five parts, which name a run");
        out += rest;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isolation::{NUMBERS, SETTINGS};

    #[test]
    fn the_page_and_the_tables_name_parts_and_numbers_that_exist() {
        let is_known = |number: &str| NUMBERS.contains(&number);
        assert!(TABLES.iter().all(|(.., columns)| columns.iter().all(|(_, number, ..)| is_known(number))));
        let page = filled(PAGE, |key| {
            let [part, _, knob, number, digits] = key.split('|').collect::<Vec<_>>()[..] else { return None };
            let is_set = SETTINGS.iter().any(|setting| [setting.knob.name(), setting.name].join(": ") == knob);
            assert!(is_set || Knob::ALL.iter().any(|known| known.name() == knob), "{key}");
            assert!(TABLES.iter().any(|(known, ..)| *known == part) && is_known(number), "{key}");
            digits.parse::<usize>().ok().map(|_| "7".to_owned())
        });
        assert!(page.contains("takes 7 us without a knob"), "{page}");
    }
}
