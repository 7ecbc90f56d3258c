//! The quick set: every figure at its nominal point, compared with what it gave before.
//!
//! `SLUICE_BLESS=1 cargo test -p sluice-lab --test all quick::` writes down what comes out now; look at the difference before it is
//! committed. It does not write down a verdict that got worse: `tests/verdicts.txt` is then changed by hand, with the reason in
//! the commit.

use std::fmt::Write as _;
use std::path::Path;

use sluice_lab::run::Plan;
use sluice_lab::{Row, Verdict, figures, run};

/// Compares the verdicts with the recorded ones. A better one is written down with `SLUICE_BLESS`, a worse one never.
fn compare_verdicts<'a>(rows: impl Iterator<Item = &'a Row>) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/verdicts.txt");
    let before = std::fs::read_to_string(&file).unwrap_or_default();
    let (worse, text) = changed_verdicts(&before, rows.map(|row| (row.id, row.verdict)));
    assert!(worse.is_empty(), "verdicts that got worse than in {}: {worse:#?}", file.display());
    if std::env::var_os("SLUICE_BLESS").is_some() {
        std::fs::write(&file, &text).unwrap();
    }
    assert!(text == std::fs::read_to_string(&file).unwrap(), "verdicts are not as in {}", file.display());
}

/// The rows whose verdict is worse than the recorded one or that are missing, and the text of all verdicts.
fn changed_verdicts<'a>(before: &str, rows: impl Iterator<Item = (&'a str, Verdict)>) -> (Vec<String>, String) {
    let rows: Vec<_> = rows.collect();
    let mut worse = Vec::new();
    for (id, word) in before.lines().filter_map(|line| line.split_once(": ")) {
        let old = Verdict::ALL.into_iter().find(|verdict| verdict.word() == word).expect("one of the words");
        let new = rows.iter().find(|(row, _)| *row == id).map(|(_, verdict)| *verdict);
        if new.is_none_or(|new| new < old) {
            worse.push(format!("{id}: {word}, now {}", new.map_or("missing", Verdict::word)));
        }
    }
    (worse, rows.iter().map(|(id, verdict)| format!("{id}: {}\n", verdict.word())).collect())
}

#[test]
fn a_verdict_that_gets_worse_or_goes_missing_is_found() {
    use Verdict::{ClaimHolds, HoldsIf, Reproduced};
    let before = "T1a: claim holds\nT1b: claim holds\nT1c: reproduced\n";
    let (worse, text) = changed_verdicts(before, [("T1a", Reproduced), ("T1b", HoldsIf)].into_iter());
    assert_eq!(worse, ["T1b: claim holds, now holds if", "T1c: reproduced, now missing"]);
    assert_eq!(text, "T1a: reproduced\nT1b: holds if\n");
    assert!(
        changed_verdicts(before, [("T1a", ClaimHolds), ("T1b", ClaimHolds), ("T1c", Reproduced)].into_iter())
            .0
            .is_empty()
    );
}

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
    compare_verdicts(all.iter().flat_map(|reproduced| &reproduced.rows));
    let before = std::fs::read_to_string(&file).unwrap();
    let changed: Vec<_> = text.lines().filter(|line| !before.lines().any(|old| old == *line)).collect();
    assert!(text == before, "these rows are not as in {}: {changed:#?}", file.display());
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/papers");
    let shown = |row: &Row| {
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
