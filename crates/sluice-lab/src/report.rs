//! Reports: a page, and a text for each paper with its figures.

use std::path::Path;

use serde::Serialize;
use sluice_report::{Page, Table};

use crate::claims::Board;
use crate::figure::{Class, Figure, LabError, Paper, is_half};
use crate::run::Reproduced;
use crate::verdict::{Agreement, Mean, Points, Row, Verdict, furthest};
use crate::{claims, device, figures};

/// Explanation of the classes for readers of the report.
const CLASSES: &str = "Class S, shape: must hold at nine of ten points of a band, the device's parameters 30 % to both sides and the facts \
                       that the paper does not state at all their values, with each of five seeds. Where the paper prints an effect, at \
                       least half of it must come out, and the 95 % interval of the seeds must not contain zero. It is reproduced if the paper \
                       prints means too and all are met within 10 %. Class H, hardware: depends on a machine that we have not; shown beside the paper's \
                       number, which it is near or differs from. Class C, conformance: a check of our own, with tolerances of our own, that must hold wherever it is run, \
                       counted apart. A row whose result was an input of a fit is never reproduced. Post hoc: changed, or its condition found, after \
                       the result was known; counted apart.";

/// All rows as JSON, with the version.
#[derive(Debug, Serialize)]
pub struct Rows<'a> {
    /// Version of the program.
    pub version: &'static str,
    /// In the order of the papers.
    pub rows: Vec<&'a Row>,
}

/// The rows of all figures.
#[must_use]
pub fn rows<'a>(all: &'a [Reproduced<'_>]) -> Rows<'a> {
    Rows { version: env!("CARGO_PKG_VERSION"), rows: all.iter().flat_map(|reproduced| &reproduced.rows).collect() }
}

impl Class {
    #[must_use]
    pub fn letter(self) -> &'static str {
        match self {
            Class::Conformance => "C",
            Class::Shape => "S",
            Class::Hardware => "H",
        }
    }
}

impl Row {
    /// The verdict, with its condition and the points at which the row holds.
    #[must_use]
    pub fn verdict_text(&self) -> String {
        let mut text = self.verdict.word().to_owned();
        if let Some((agreement, mean)) = self.agreement.zip(furthest(&self.means)) {
            text += &format!(", {}: {}", agreement.word(), compared(mean));
        }
        if self.nominal && self.verdict != Verdict::Shown {
            text += " at the nominal point";
        }
        if !self.condition.is_empty() {
            text += &format!(": {}", self.condition);
        }
        if self.post_hoc {
            text += " (post hoc)";
        } else if !self.evidence.is_empty() {
            text += " (with evidence from elsewhere)";
        }
        if self.verdict == Verdict::Refuted {
            text += &format!(": {}", self.proof.join("; "));
        }
        if let (Some(points), false) = (self.points, self.nominal) {
            text += &format!(" ({})", points_text(points));
        }
        text
    }

    /// What the row counts as: its verdict, by agreement if it is only shown, and apart if it is a conformance row.
    fn outcome(&self) -> &'static str {
        match (self.class, self.verdict, self.agreement) {
            (Class::Conformance, Verdict::ClaimHolds, _) => "conformance holds",
            (Class::Conformance, ..) => "conformance fails",
            (_, Verdict::Shown, Some(Agreement::Near)) => "shown (near)",
            (_, Verdict::Shown, Some(Agreement::Differs)) => "shown (differs)",
            (_, verdict, _) => verdict.word(),
        }
    }
}

/// A measured value beside the printed one, with their ratio.
fn compared(mean: Mean) -> String {
    let short = |value: f64| match value.abs() {
        100.0.. => format!("{value:.0}"),
        1.0.. => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    };
    let ratio = mean.ratio.map(|ratio| format!(" (x {ratio:.2})")).unwrap_or_default();
    format!("{} for {}{ratio}", short(mean.measured), short(mean.printed))
}

/// All that a row can count as, in the order of the score: verdicts of checks, best first, then rows that are shown, and conformance.
fn outcomes() -> impl Iterator<Item = &'static str> {
    let checks = Verdict::ALL.into_iter().rev().filter(|verdict| *verdict != Verdict::Shown);
    let others = ["shown (near)", "shown (differs)", Verdict::Shown.word(), "conformance holds", "conformance fails"];
    checks.map(Verdict::word).chain(others)
}

/// Number of rows of a board with an outcome: those that are not post hoc, and those that are.
fn count(rows: &[&Row], board: Board, outcome: &str) -> [usize; 2] {
    [false, true].map(|post_hoc| {
        let counts = |row: &&&Row| row.board == board && row.outcome() == outcome && row.post_hoc == post_hoc;
        rows.iter().filter(counts).count()
    })
}

/// Summary in one line: the outcomes of each board.
#[must_use]
pub fn summary(rows: &[&Row]) -> String {
    let of = |board, name: &str| {
        let words = outcomes().flat_map(|outcome| {
            let [plain, post_hoc] = count(rows, board, outcome);
            [(plain, outcome.to_owned()), (post_hoc, format!("{outcome} post hoc"))]
        });
        let words: Vec<_> =
            words.filter(|(count, _)| *count > 0).map(|(count, word)| format!("{count} {word}")).collect();
        (!words.is_empty()).then(|| format!("{name}: {}", words.join(", ")))
    };
    let boards = [of(Board::Paper, "the papers' claims"), of(Board::Ours, "our variants")];
    let text = boards.into_iter().flatten().collect::<Vec<_>>().join("; ");
    if rows.iter().any(|row| row.nominal && row.class == Class::Shape) {
        format!("at the nominal point, {text}")
    } else {
        text
    }
}

/// Number of rows with each outcome, by paper and board.
fn score(rows: &[&Row]) -> Table {
    let boards = Paper::ALL.into_iter().flat_map(|paper| [(paper, Board::Paper), (paper, Board::Ours)]);
    let boards = boards.filter(|(paper, board)| rows.iter().any(|row| (row.paper, row.board) == (*paper, *board)));
    let boards: Vec<_> = boards.collect();
    let name = |(paper, board): &(Paper, Board)| match board {
        Board::Paper => paper.name().to_owned(),
        Board::Ours => format!("{}, our variants", paper.name()),
    };
    let names: Vec<String> = boards.iter().map(name).collect();
    let columns: Vec<&str> = std::iter::once("verdict").chain(names.iter().map(String::as_str)).collect();
    let mut table = Table::new("Verdicts", &columns);
    for outcome in outcomes() {
        let counts = boards.iter().map(|(paper, board)| {
            let of_paper: Vec<&Row> = rows.iter().copied().filter(|row| row.paper == *paper).collect();
            match count(&of_paper, *board, outcome) {
                [plain, 0] => plain.to_string(),
                [plain, post_hoc] => format!("{plain}, {post_hoc} post hoc"),
            }
        });
        table.row(std::iter::once(outcome.to_owned()).chain(counts));
    }
    table
}

/// Results along the axes, by row.
fn sensitivities(rows: &[Row]) -> Option<Table> {
    let columns = ["row", "axis", "value", "seeds that hold", "measured"];
    let mut table = Table::new("What depends on a fact that the paper does not state", &columns);
    let all = rows.iter().flat_map(|row| row.sensitivity.iter().map(move |at| (row, at)));
    for (row, at) in all.clone() {
        let holds = match row.class {
            Class::Hardware => "not judged".to_owned(),
            _ if at.seeds == 0 => "not admissible".to_owned(),
            _ => format!("{} of {}", at.holds, at.seeds),
        };
        let value = at.value.to_string();
        table.row([row.id, &at.axis, &value, &holds, &at.measured]);
    }
    (all.count() > 0).then_some(table)
}

/// The axes of a figure: values of facts that its paper does not state, and why these.
fn axes(figure: &Figure) -> Option<Table> {
    let columns = ["axis", "values", "shown with", "unit", "why these", "what speaks for others than the shown one"];
    let mut table = Table::new("Facts that the paper does not state", &columns);
    let of_figure: Vec<_> =
        claims::axes().iter().filter(|axis| axis.figures.iter().any(|id| id == figure.id)).collect();
    for axis in &of_figure {
        let values: Vec<_> = axis.values.iter().map(f64::to_string).collect();
        let evidence = if axis.evidence.is_empty() { "nothing known" } else { &axis.evidence };
        let cells = [&axis.name, &values.join(", "), &axis.nominal.to_string(), &axis.unit, &axis.reason];
        table.row(cells.into_iter().map(String::as_str).chain([evidence]));
    }
    (!of_figure.is_empty()).then_some(table)
}

/// What is behind a row's verdict apart from its measurement: inputs of fits, numbers that are not printed, and later changes.
fn basis(rows: &[Row]) -> Option<Table> {
    let title =
        "Inputs of a fit, numbers that the paper does not print, and what was changed after the result was known";
    let mut table = Table::new(title, &["row", "inputs", "not printed", "changed"]);
    let has = |row: &&Row| !(row.inputs.is_empty() && row.derived.is_empty() && row.changed.is_empty());
    let all: Vec<_> = rows.iter().filter(has).collect();
    for row in &all {
        table.row([row.id, &row.inputs.join("; "), &row.derived.join("; "), &row.changed]);
    }
    (!all.is_empty()).then_some(table)
}

/// Means that the paper prints, by row.
fn means(rows: &[Row]) -> Option<Table> {
    let mut table = Table::new("Printed means, at the nominal point", &["row", "paper", "here", "ratio"]);
    let all = rows.iter().flat_map(|row| row.means.iter().map(move |mean| (row, mean)));
    for (row, Mean { printed, measured, ratio }) in all.clone() {
        let ratio = ratio.map_or("of zero".to_owned(), |ratio| format!("{ratio:.2}"));
        table.row([row.id, &printed.to_string(), &format!("{measured:.2}"), &ratio]);
    }
    (all.count() > 0).then_some(table)
}

/// Sentences that the paper's own numbers confirm or refute, by row.
fn proofs(rows: &[Row]) -> Option<Table> {
    let mut table = Table::new("Sentences by the paper's own numbers, by each reading", &["row", "calculation"]);
    let all = rows.iter().flat_map(|row| row.proof.iter().map(move |proof| (row, proof)));
    for (row, proof) in all.clone() {
        table.row([row.id, proof]);
    }
    (all.count() > 0).then_some(table)
}

/// Effects that the paper prints, by row.
fn effects(rows: &[Row]) -> Option<Table> {
    let columns = ["row", "paper", "here", "95 % interval of five seeds", "half of the effect"];
    let mut table = Table::new("Effects as relative changes, at the nominal point", &columns);
    let all = rows.iter().flat_map(|row| row.effects.iter().map(move |effect| (row, effect)));
    for (row, effect) in all.clone() {
        let percent = |value: f64| format!("{:+.1} %", 100.0 * value);
        let interval = effect.interval.map_or("one seed".to_owned(), |half| {
            format!("{} to {}", percent(effect.measured - half), percent(effect.measured + half))
        });
        let half = if is_half(effect.printed, effect.measured) { "yes" } else { "no" };
        table.row([row.id, &percent(effect.printed), &percent(effect.measured), &interval, half]);
    }
    (all.count() > 0).then_some(table)
}

/// What is known of a figure's rows, below its measurements.
fn known(reproduced: &Reproduced<'_>) -> [Option<Table>; 6] {
    let rows = &reproduced.rows;
    [means(rows), effects(rows), proofs(rows), axes(reproduced.figure), sensitivities(rows), basis(rows)]
}

/// Parts that were not run.
fn left_out(paper: Option<Paper>, all: &[Reproduced<'_>]) -> Option<String> {
    let of_paper = |figure: &Figure| paper.is_none_or(|paper| figure.paper == paper);
    let is_run = |figure: &Figure| all.iter().any(|reproduced| reproduced.figure.id == figure.id);
    let missing: Vec<_> =
        figures::ALL.iter().filter(|figure| of_paper(figure) && !is_run(figure)).map(|figure| figure.id).collect();
    let mut rows = all.iter().filter(|run| of_paper(run.figure)).flat_map(|run| &run.rows);
    let quick = rows.any(|row| row.class == Class::Shape && row.nominal);
    let quick =
        quick.then(|| "Shapes were judged at the nominal point alone, not over their band (--quick).".to_owned());
    let missing = (!missing.is_empty()).then(|| format!("Not run: {}.", missing.join(", ")));
    quick.into_iter().chain(missing).reduce(|all, more| format!("{all} {more}"))
}

/// The rows of a figure; notes are a column, or stand below the table.
fn table(rows: &[Row], notes: bool) -> Table {
    let columns = ["row", "class", "must come out", "paper", "here", "verdict", "note"];
    let count = if notes { columns.len() } else { columns.len() - 1 };
    let mut table = Table::new("Rows", &columns[..count]);
    for row in rows {
        let (class, verdict) = (row.class.letter(), row.verdict_text());
        let cells = [row.id, class, row.must, row.paper_value, &row.measured, &verdict, row.note];
        table.row(cells.into_iter().take(count));
    }
    table
}

/// Returns the first lines of a paper's page: its claims, the findings and the reasons for differences. They are written by hand, but for numbers: `{M8a}` is
/// what was measured of this row, and `{M8a.points}` at how many points it holds.
fn about(paper: Paper, rows: &[&Row]) -> String {
    let mut text = written(paper).to_owned();
    for row in figures::ALL.iter().filter(|figure| figure.paper == paper).flat_map(|figure| figure.rows) {
        let known = rows.iter().find(|known| known.id == row.id);
        let measured = known.map_or("(not run)".to_owned(), |row| row.measured.clone());
        let points = known.and_then(|row| row.points).map(points_text).unwrap_or_else(|| "(not run)".to_owned());
        text = text.replace(&format!("{{{}}}", row.id), &measured).replace(&format!("{{{}.points}}", row.id), &points);
    }
    text
}

fn written(paper: Paper) -> &'static str {
    match paper {
        Paper::Mclock => include_str!("../pages/mclock.md"),
        Paper::Flubber => include_str!("../pages/flubber.md"),
        Paper::Mcfq => include_str!("../pages/mcfq.md"),
        Paper::Netback => include_str!("../pages/netback.md"),
        Paper::TwoTier => include_str!("../pages/two-tier.md"),
        Paper::Ablations => "",
    }
}

fn points_text(Points { held, judged }: Points) -> String {
    format!("{held} of {judged} points")
}

/// The verdicts of all papers, by paper and board, and of each row.
fn verdicts(rows: &[&Row]) -> String {
    let head = "# Verdicts\n\nWritten by `sluice reproduce all --docs DIR`; do not edit. [README.md](README.md) says what the words mean.\n";
    format!("{head}\n{}\n{}", score(rows).markdown(), overview(rows).markdown())
}

/// All results, to find rows to read.
fn overview(rows: &[&Row]) -> Table {
    let mut table = Table::new("All rows", &["row", "class", "paper", "figure", "verdict"]);
    for row in rows {
        table.row([row.id, row.class.letter(), row.paper.name(), row.figure, &row.verdict_text()]);
    }
    table
}

/// The whole report as one page that needs no network: the answer of each paper, the verdicts, and the figures.
#[must_use]
pub fn page(all: &[Reproduced<'_>]) -> String {
    let Rows { version, rows } = rows(all);
    let mut page = Page::new("The papers, reproduced");
    let run = |paper: &Paper| all.iter().any(|reproduced| reproduced.figure.paper == *paper);
    for paper in Paper::ALL.into_iter().filter(run) {
        page.heading(2, paper.name(), paper.title());
        about(paper, &rows).split("\n\n").filter(|text| !text.is_empty()).for_each(|text| {
            page.paragraph(text);
        });
    }
    let figures: Vec<&str> = all.iter().flat_map(|run| run.rows.iter().map(|_| run.figure.id)).collect();
    page.heading(2, "verdicts", "Verdicts").paragraph(&format!("Sluicegate {version}: {}.", summary(&rows)));
    page.table(&score(&rows)).fold("What the classes mean, and the verdict of each row", |page| {
        page.paragraph(CLASSES).table_linked(&overview(&rows), &figures);
    });
    if let Some(text) = left_out(None, all) {
        page.fold("What was not run", |page| {
            page.paragraph(&text);
        });
    }
    for paper in Paper::ALL.into_iter().filter(run) {
        page.heading(2, &format!("{}-figures", paper.name()), &format!("Figures of {}", paper.name()));
        for reproduced in all.iter().filter(|reproduced| reproduced.figure.paper == paper) {
            figure(&mut page, reproduced);
        }
    }
    page.html()
}

/// A figure of the page.
fn figure(page: &mut Page, reproduced: &Reproduced<'_>) {
    let figure = reproduced.figure;
    page.heading(3, figure.id, &format!("{}: {}", figure.label, figure.title)).paragraph(figure.setup);
    page.paragraph(&provenance(reproduced)).table(&table(&reproduced.rows, false));
    let notes = reproduced.rows.iter().filter(|row| !row.note.is_empty());
    page.notes(notes.map(|row| (row.id, row.note)));
    reproduced.finding.charts.iter().for_each(|chart| {
        page.chart(chart);
    });
    reproduced.finding.tables.iter().chain(known(reproduced).iter().flatten()).for_each(|table| {
        page.table(table);
    });
    if let Some(text) = device::text(figure.device) {
        page.paragraph("The device, as it was fitted and frozen:").listing(text);
    }
}

fn provenance(reproduced: &Reproduced<'_>) -> String {
    let device = match reproduced.figure.device {
        "" => "a device of a stated rate".to_owned(),
        name => format!("device file {name}.toml"),
    };
    let seed = crate::band::BandPoint::NOMINAL.seed();
    format!("Ran on {device}, seed {seed} at the nominal point, Sluicegate {}.", env!("CARGO_PKG_VERSION"))
}

/// A paper's text in Markdown; [`write_markdown`] writes its charts as separate files.
#[must_use]
pub fn markdown(paper: Paper, all: &[Reproduced<'_>]) -> String {
    let mut text = format!(
        "# {}\n\nWritten by `sluice reproduce {} --docs DIR`; do not edit.\n\n{CLASSES}\n",
        paper.title(),
        paper.name()
    );
    let of_paper = || all.iter().filter(|reproduced| reproduced.figure.paper == paper);
    let rows: Vec<_> = of_paper().flat_map(|reproduced| &reproduced.rows).collect();
    let about = about(paper, &rows);
    if !about.is_empty() {
        text += &format!("\n{about}");
    }
    text += &format!("\nRows of this page: {}.\n", summary(&rows));
    text += &format!("\n{}", score(&rows).markdown());
    if let Some(left_out) = left_out(Some(paper), all) {
        text += &format!("\n{left_out}\n");
    }
    for reproduced in of_paper() {
        let figure = reproduced.figure;
        text += &format!("\n## {}: {}\n\n{}\n\n", figure.label, figure.title, figure.setup);
        text += &format!("{}\n\n{}\n", provenance(reproduced), table(&reproduced.rows, true).markdown());
        for (number, chart) in reproduced.finding.charts.iter().enumerate() {
            text += &format!("![{}]({})\n\n", chart.title, chart_file(reproduced, number));
        }
        for table in reproduced.finding.tables.iter().chain(known(reproduced).iter().flatten()) {
            text += &format!("{}\n", table.markdown());
        }
        if !figure.device.is_empty() {
            text += &format!("Device file: `crates/sluice-lab/devices/{}.toml`.\n", figure.device);
        }
    }
    text
}

fn chart_file(reproduced: &Reproduced<'_>, number: usize) -> String {
    format!("{}-{}.svg", reproduced.figure.id, number + 1)
}

/// Writes a text for each paper that was run, and its charts, into `folder`; if all were, also `verdicts.md`.
///
/// # Errors
/// If a file cannot be written.
pub fn write_markdown(folder: &Path, all: &[Reproduced<'_>]) -> Result<(), LabError> {
    std::fs::create_dir_all(folder).map_err(|error| LabError::Write(folder.display().to_string(), error))?;
    for paper in Paper::ALL {
        if all.iter().any(|reproduced| reproduced.figure.paper == paper) {
            write(&folder.join(format!("{}.md", paper.name())), &markdown(paper, all))?;
        }
    }
    if figures::ALL.iter().all(|figure| all.iter().any(|reproduced| reproduced.figure.id == figure.id)) {
        write(&folder.join("verdicts.md"), &verdicts(&rows(all).rows))?;
    }
    for reproduced in all {
        for (number, chart) in reproduced.finding.charts.iter().enumerate() {
            write(&folder.join(chart_file(reproduced, number)), &chart.svg())?;
        }
    }
    Ok(())
}

/// Writes a file completely or not at all.
///
/// # Errors
/// If it cannot be written.
pub fn write(file: &Path, text: &str) -> Result<(), LabError> {
    let part = file.with_extension("part");
    let written = std::fs::write(&part, text).and_then(|()| std::fs::rename(&part, file));
    if written.is_err() {
        // A partial file would use up the remaining space.
        let _ = std::fs::remove_file(&part);
    }
    written.map_err(|error| LabError::Write(file.display().to_string(), error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::band::BandPoint;
    use crate::figure::{Finding, RowSpec};
    use crate::run::{Plan, run};

    const fn row(id: &'static str) -> RowSpec {
        RowSpec { id, class: Class::Shape, must: "", paper: "", note: "" }
    }

    static FIGURE: Figure = Figure {
        id: "contradiction",
        paper: Paper::Ablations,
        label: "",
        title: "",
        setup: "",
        device: "",
        rows: &[row("F2h"), row("T1")],
        run: contradiction,
    };

    /// A row that has a proof, and one with an effect that varies by 0.01 from seed to seed.
    fn contradiction(point: &BandPoint) -> Result<Finding, LabError> {
        let mut finding = Finding::default();
        let effect = 0.38 + 0.01 * point.seed() as f64;
        finding.judge("F2h", false, "");
        finding.judge_effects("T1", true, "", vec![(0.5, effect)]);
        Ok(finding)
    }

    #[test]
    fn prose_takes_its_numbers_from_rows_that_exist() {
        for paper in Paper::ALL {
            let text = about(paper, &[]);
            assert!(!text.contains(['{', '}']), "{}: {text}", paper.name());
            assert_eq!(text.contains("(not run)"), written(paper).contains('{'));
        }
        let numbered = Paper::ALL.into_iter().filter(|paper| written(*paper).contains('{'));
        assert_eq!(numbered.count(), 5, "each paper's page has numbers");
    }

    #[test]
    fn a_page_states_proofs_and_effects_with_their_intervals() {
        let plan = Plan { figures: vec![&FIGURE], quick: false, threads: 2, kept: None };
        let all = run(&plan, &|_, _| {}).unwrap();
        let text = markdown(Paper::Ablations, &all);
        let proof = "17 %; by Table III, sequential read, CFQ to Flubber, time from 64.42 to 54.16 is 15.93 %, which does not agree, \
                     and speed from 54.16 to 64.42 is 18.94 %, which does not agree";
        assert!(text.contains("| refuted: \"Flubber outperforms") && text.contains(proof), "{text}");
        // Student's t for five values from 0.39 to 0.43: 2.776 x 0.0158 / sqrt(5) = 0.0196.
        assert!(text.contains("| T1 | +50.0 % | +41.0 % | +39.0 % to +43.0 % | yes |"), "{text}");
        assert_eq!(summary(&rows(&all).rows), "our variants: 1 claim holds, 1 refuted");
    }
}
