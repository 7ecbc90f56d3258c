//! Runs figures over their ranges, in parallel, and determines the result of each row.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use sluice_report::Table;

use crate::band::BandPoint;
use crate::claims;
use crate::figure::{Class, Figure, Finding, LabError, RowSpec};
use crate::parallel::{self, Progress};
use crate::verdict::{Row, decide};

/// Figures to run.
pub struct Plan<'a> {
    pub figures: Vec<&'a Figure>,
    /// Runs only the nominal point, where shapes are then checked.
    pub quick: bool,
    /// Number of concurrent runs.
    pub threads: usize,
    /// Folder for results, so that an interrupted run can continue; and the identity of the program that they depend
    /// on.
    pub kept: Option<(PathBuf, String)>,
}

/// A figure with its results.
pub struct Reproduced<'a> {
    /// The figure.
    pub figure: &'a Figure,
    /// Its rows.
    pub rows: Vec<Row>,
    /// Result at the nominal point.
    pub finding: Finding,
    /// Time that its runs took, the sum over all threads; stored results took none.
    pub took: Duration,
}

/// Runs all figures. The same program gives the same results with any number of threads.
///
/// # Errors
/// The first point without a result, in the order of the plan; no further points are started after it.
pub fn run<'a>(plan: &Plan<'a>, progress: Progress<'_>) -> Result<Vec<Reproduced<'a>>, LabError> {
    let jobs: Vec<(usize, BandPoint)> = (0..plan.figures.len())
        .flat_map(|figure| points(plan.figures[figure], plan.quick).map(move |point| (figure, point)))
        .filter(|(_, point)| point.same_run() == *point)
        .collect();
    let found = parallel::each(&jobs, plan.threads, progress, |(figure, point)| {
        let start = Instant::now();
        run_at(plan, plan.figures[*figure], point).map(|finding| (finding, start.elapsed()))
    })?;
    let found: BTreeMap<_, _> = jobs.into_iter().zip(found).collect();
    let reproduced = |(number, figure): (usize, &&'a Figure)| {
        let runs = || points(figure, plan.quick).map(|point| &found[&(number, point.same_run())]);
        let findings: Vec<_> = runs().map(|(finding, _)| finding).collect();
        let rows = figure.rows.iter().map(|row| row_of(figure, row, &findings)).collect();
        let mut finding = findings[0].clone();
        finding.tables.extend(off_nominal(figure, &findings));
        let took = found.range((number, BandPoint::NOMINAL)..).take_while(|((of, _), _)| *of == number);
        Reproduced { figure, rows, finding, took: took.map(|(_, (_, took))| *took).sum() }
    };
    Ok(plan.figures.iter().enumerate().map(reproduced).collect())
}

/// The points at which a figure is run: only shapes have a range.
fn points(figure: &Figure, quick: bool) -> impl Iterator<Item = BandPoint> {
    let band = !quick && figure.rows.iter().any(|row| row.class == Class::Shape);
    BandPoint::all(figure.id).take(if band { usize::MAX } else { 1 })
}

fn run_at(plan: &Plan<'_>, figure: &Figure, point: &BandPoint) -> Result<Finding, LabError> {
    let Some((folder, program)) = &plan.kept else { return (figure.run)(point) };
    let file = folder.join(format!("{}-{}.json", figure.id, point.file_name()));
    if let Some(kept) = kept(&file, program, figure) {
        return Ok(kept);
    }
    let finding = (figure.run)(point)?;
    let text = serde_json::to_string(&(program, &finding)).expect("findings are plain data");
    crate::report::write(&file, &text)?;
    Ok(finding)
}

/// Result of an earlier run of the same program, if it is complete.
fn kept(file: &Path, program: &str, figure: &Figure) -> Option<Finding> {
    let text = std::fs::read_to_string(file).ok()?;
    let (by, finding): (String, Finding) = serde_json::from_str(&text).ok()?;
    let is_there = |row: &RowSpec| finding.rows.iter().any(|judged| judged.id == row.id);
    (by == program && figure.rows.iter().all(is_there)).then_some(finding)
}

/// Points of the range at which a row fails that holds at others, with its results there, for the notes.
fn off_nominal(figure: &Figure, findings: &[&Finding]) -> Option<Table> {
    let columns = ["row", "point", "seed", "measured"];
    let mut table = Table::new("Points of the band where rows do not hold that hold elsewhere; 0 is nominal", &columns);
    let mut any = false;
    for row in figure.rows {
        let judged = findings.iter().filter_map(|finding| finding.rows.iter().find(|judged| judged.id == row.id));
        let points: Vec<_> = BandPoint::all(figure.id).zip(judged).filter(|(point, _)| !point.is_sweep()).collect();
        if points.iter().all(|(_, judged)| judged.holds != Some(true)) {
            continue;
        }
        let mut failed: Vec<_> = points.iter().filter(|(_, judged)| judged.holds == Some(false)).collect();
        // The first seed that fails is enough for a point.
        failed.dedup_by_key(|(point, _)| point.number());
        for (point, judged) in failed {
            any = true;
            let [number, seed] = [point.number().to_string(), point.seed().to_string()];
            table.row([row.id, &number, &seed, &judged.measured]);
        }
    }
    any.then_some(table)
}

/// A row with its verdict, from its results at all points, the nominal one first.
fn row_of(figure: &Figure, row: &'static RowSpec, findings: &[&Finding]) -> Row {
    let judged = findings
        .iter()
        .map(|finding| finding.rows.iter().find(|judged| judged.id == row.id))
        .map(|judged| judged.unwrap_or_else(|| panic!("{} says nothing of its row {}", figure.id, row.id)));
    let found: Vec<_> = BandPoint::all(figure.id).zip(judged).collect();
    decide(figure, row, claims::of(row.id), &found)
}

#[cfg(test)]
mod tests {
    use sluice_report::{Chart, Line};

    use super::*;
    use crate::figure::Paper;

    const fn row(id: &'static str, class: Class) -> RowSpec {
        RowSpec { id, class, must: "", paper: "", note: "" }
    }

    const ROWS: [RowSpec; 3] = [row("T1a", Class::Conformance), row("T1b", Class::Shape), row("T1c", Class::Hardware)];

    /// Holds at the number of points in its name; its values have no short text.
    fn odd(point: &BandPoint) -> Result<Finding, LabError> {
        let points = |point: u32| (0..100).map(move |at| (f64::from(at), 1.0 / (f64::from(at + 3 * point) + 0.7)));
        let mut finding = Finding::default();
        finding.judge("T1a", true, "");
        finding.judge("T1b", point.number() < 19, "0.05");
        finding.show("T1c", "");
        let line = Line::new("line", points(point.number()).collect());
        finding.charts.push(Chart::lines("odd", "x", "y", vec![line]));
        Ok(finding)
    }

    static FIGURE: Figure = Figure {
        id: "odd",
        paper: Paper::Ablations,
        label: "",
        title: "",
        setup: "",
        device: "",
        rows: &ROWS,
        run: odd,
    };

    fn plan(kept: Option<(PathBuf, String)>) -> Plan<'static> {
        Plan { figures: vec![&FIGURE], quick: false, threads: 3, kept }
    }

    fn texts(plan: &Plan<'_>) -> Vec<String> {
        let figures = run(plan, &|_, _| {}).unwrap();
        figures.iter().map(|of| format!("{:?} {:?}", of.finding, of.rows)).collect()
    }

    #[test]
    fn results_at_failing_points_of_a_shape_are_shown() {
        let figures = run(&plan(None), &|_, _| {}).unwrap();
        let tables: Vec<_> = figures[0].finding.tables.iter().map(Table::markdown).collect();
        assert_eq!(tables.len(), 1);
        for line in ["| T1b | 19 | 1 | 0.05 |", "| T1b | 20 | 1 | 0.05 |"] {
            assert!(tables[0].contains(line), "{line} in {}", tables[0]);
        }
        assert!(!tables[0].contains("T1a") && !tables[0].contains("T1c"), "{}", tables[0]);
        let quick = run(&Plan { quick: true, ..plan(None) }, &|_, _| {}).unwrap();
        assert!(quick[0].finding.tables.is_empty(), "there is no band");
    }

    #[test]
    fn stored_results_are_bit_identical_and_belong_to_one_program() {
        let folder = tempfile::tempdir().unwrap();
        let kept = |program: &str| plan(Some((folder.path().to_owned(), program.to_owned())));
        let found = texts(&plan(None));
        assert_eq!(texts(&kept("one")), found, "written");
        assert_eq!(texts(&kept("one")), found, "read again");
        // A changed result in the file of a point is used by the same program only.
        let file = folder.path().join("odd-00-1.json");
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::write(&file, text.replace("\"odd\"", "\"even\"")).unwrap();
        assert_ne!(texts(&kept("one")), found);
        assert_eq!(texts(&kept("two")), found);
        assert_eq!(texts(&kept("two")), found);
        // A partial file is ignored.
        std::fs::write(&file, &text[..text.len() / 2]).unwrap();
        assert_eq!(texts(&kept("two")), found);
    }
}
