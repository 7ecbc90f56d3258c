//! The quick set: every figure at its nominal point, compared with what it gave before.
//!
//! `SLUICE_BLESS=1 cargo test -p sluice-lab --test quick` writes down what comes out now; look at the difference before it is
//! committed.

use std::fmt::Write as _;
use std::path::Path;

use sluice_lab::run::Plan;
use sluice_lab::{figures, run};

#[test]
fn every_row_matches_the_recorded_result() {
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let plan = Plan { figures: figures::ALL.to_vec(), quick: true, threads, kept: None };
    let all = run::run(&plan, &|over, of| eprintln!("{over} of {of}")).unwrap();
    let mut text = String::new();
    for row in all.iter().flat_map(|reproduced| &reproduced.rows) {
        let (class, verdict) = (row.class.letter(), row.verdict.word());
        writeln!(text, "{} {class} {verdict}: {}", row.id, row.measured).unwrap();
    }
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/quick.txt");
    if std::env::var_os("SLUICE_BLESS").is_some() {
        std::fs::write(&file, &text).unwrap();
    }
    let before = std::fs::read_to_string(&file).unwrap();
    let changed: Vec<_> = text.lines().filter(|line| !before.lines().any(|old| old == *line)).collect();
    assert!(text == before, "these rows are not as in {}: {changed:#?}", file.display());
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/papers");
    let shown = |row: &run::Row| {
        let page = std::fs::read_to_string(folder.join(format!("{}.md", row.paper.name()))).unwrap_or_default();
        let line = page.lines().find(|line| line.starts_with(&format!("| {} | ", row.id)));
        line.is_some_and(|line| line.contains(&format!("| {} |", row.measured)))
    };
    let rows = all.iter().flat_map(|reproduced| &reproduced.rows);
    let old: Vec<_> = rows.filter(|row| !shown(row)).map(|row| row.id).collect();
    assert!(
        old.is_empty(),
        "`sluice reproduce all --docs docs/papers` writes what docs/papers says otherwise of {old:?}"
    );
}
