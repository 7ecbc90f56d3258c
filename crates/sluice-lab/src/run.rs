//! Runs figures over their bands, in parallel, and says what became of each row.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sluice_report::Table;

use crate::band::BandPoint;
use crate::figure::{Class, Figure, Finding, LabError, Paper, RowSpec};
use crate::parallel::{self, Progress};

/// The part of the band's points at which a shape must hold.
pub const BAND_SHARE: f64 = 0.9;

/// What is to be run.
pub struct Plan<'a> {
    /// These figures.
    pub figures: Vec<&'a Figure>,
    /// The nominal point alone: shapes are then judged there and nowhere else.
    pub quick: bool,
    /// Runs at once.
    pub threads: usize,
    /// Where results are kept, so that a run that was cut off goes on where it was; and what they depend on beside the
    /// figure and the point: the program.
    pub kept: Option<(PathBuf, String)>,
}

/// What became of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// What must come out came out.
    Pass,
    /// It did not.
    Fail,
    /// Shown without a verdict.
    Info,
}

/// A row of the acceptance table with its verdict.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// `M1a`, for example.
    pub id: &'static str,
    /// Whose.
    pub paper: Paper,
    /// What the paper calls the figure.
    pub figure: &'static str,
    /// How it is judged.
    pub class: Class,
    /// What became of it.
    pub verdict: Verdict,
    /// What the paper has.
    pub paper_value: &'static str,
    /// What came out at the nominal point, with its unit.
    pub measured: String,
    /// Of a shape: the part of the band's points at which it holds.
    pub band_share: Option<f64>,
    /// What is to be said beside it.
    pub note: &'static str,
    /// What must come out.
    pub must: &'static str,
    /// The device file; empty where there is none.
    pub device: &'static str,
    /// The seed of the nominal point.
    pub seed: u64,
}

/// A figure with what came out.
pub struct Reproduced<'a> {
    /// Which.
    pub figure: &'a Figure,
    /// Its rows.
    pub rows: Vec<Row>,
    /// What came out at the nominal point.
    pub finding: Finding,
}

/// Runs everything. The same program gives the same results, however many threads there are.
///
/// # Errors
/// A point that has no result, the first of them in the order of the plan; after it nothing more is begun.
pub fn run<'a>(plan: &Plan<'a>, progress: Progress<'_>) -> Result<Vec<Reproduced<'a>>, LabError> {
    let jobs: Vec<(usize, BandPoint)> = (0..plan.figures.len())
        .flat_map(|figure| points(plan.figures[figure], plan.quick).map(move |point| (figure, point)))
        .collect();
    let found =
        parallel::each(&jobs, plan.threads, progress, |(figure, point)| run_at(plan, plan.figures[*figure], point))?;
    // The points of a figure stand side by side.
    let mut found = found.into_iter();
    let mut all = Vec::new();
    for figure in &plan.figures {
        let mut findings: Vec<_> = found.by_ref().take(points(figure, plan.quick).count()).collect();
        let rows = figure.rows.iter().map(|row| judge(figure, row, &findings)).collect();
        let off_nominal = off_nominal(figure, &findings);
        let mut finding = findings.swap_remove(0);
        finding.tables.extend(off_nominal);
        all.push(Reproduced { figure, rows, finding });
    }
    Ok(all)
}

/// The points at which a figure is run: only shapes have a band.
fn points(figure: &Figure, quick: bool) -> impl Iterator<Item = BandPoint> {
    let band = !quick && figure.rows.iter().any(|row| row.class == Class::Shape);
    BandPoint::band().take(if band { usize::MAX } else { 1 })
}

fn run_at(plan: &Plan<'_>, figure: &Figure, point: &BandPoint) -> Result<Finding, LabError> {
    let Some((folder, program)) = &plan.kept else { return (figure.run)(point) };
    let file = folder.join(format!("{}-{:02}.json", figure.id, point.number()));
    if let Some(kept) = kept(&file, program, figure) {
        return Ok(kept);
    }
    let finding = (figure.run)(point)?;
    let text = serde_json::to_string(&(program, &finding)).expect("findings are plain data");
    crate::report::write(&file, &text)?;
    Ok(finding)
}

/// What an earlier run of the same program found, if that is all there.
fn kept(file: &Path, program: &str, figure: &Figure) -> Option<Finding> {
    let text = std::fs::read_to_string(file).ok()?;
    let (by, finding): (String, Finding) = serde_json::from_str(&text).ok()?;
    let is_there = |row: &RowSpec| finding.rows.iter().any(|judged| judged.id == row.id);
    (by == program && figure.rows.iter().all(is_there)).then_some(finding)
}

/// The points of the band at which a row does not hold that holds at others, and what came out there: what notes say of them.
fn off_nominal(figure: &Figure, findings: &[Finding]) -> Option<Table> {
    let columns = ["row", "point", "seed", "measured"];
    let mut table = Table::new("Points of the band where rows do not hold that hold elsewhere; 0 is nominal", &columns);
    let mut any = false;
    for row in figure.rows {
        let judged = findings.iter().filter_map(|finding| finding.rows.iter().find(|judged| judged.id == row.id));
        let points: Vec<_> = BandPoint::band().zip(judged).collect();
        if points.iter().all(|(_, judged)| judged.holds != Some(true)) {
            continue;
        }
        for (point, judged) in points.iter().filter(|(_, judged)| judged.holds == Some(false)) {
            any = true;
            let [number, seed] = [point.number().to_string(), point.seed().to_string()];
            table.row([row.id, &number, &seed, &judged.measured]);
        }
    }
    any.then_some(table)
}

/// What becomes of a row, from what was found at its points, the nominal one first.
fn judge(figure: &Figure, row: &'static RowSpec, findings: &[Finding]) -> Row {
    let found: Vec<_> = findings
        .iter()
        .map(|finding| finding.rows.iter().find(|judged| judged.id == row.id))
        .map(|judged| judged.unwrap_or_else(|| panic!("{} says nothing of its row {}", figure.id, row.id)))
        .collect();
    let holds = found.iter().filter(|judged| judged.holds == Some(true)).count();
    let share = holds as f64 / found.len() as f64;
    let verdict = match row.class {
        Class::Hardware => Verdict::Info,
        Class::Exact if holds == found.len() => Verdict::Pass,
        Class::Shape if share >= BAND_SHARE => Verdict::Pass,
        _ => Verdict::Fail,
    };
    Row {
        id: row.id,
        paper: figure.paper,
        figure: figure.label,
        class: row.class,
        verdict,
        paper_value: row.paper,
        measured: found[0].measured.clone(),
        band_share: (row.class == Class::Shape && found.len() > 1).then_some(share),
        note: row.note,
        must: row.must,
        device: figure.device,
        seed: BandPoint::NOMINAL.seed(),
    }
}

#[cfg(test)]
mod tests {
    use sluice_report::{Chart, Line};

    use super::*;

    const fn row(id: &'static str, class: Class) -> RowSpec {
        RowSpec { id, class, must: "", paper: "", note: "" }
    }

    const ROWS: [RowSpec; 3] = [row("T1a", Class::Exact), row("T1b", Class::Shape), row("T1c", Class::Hardware)];

    /// Holds at as many points as its name says; finds numbers that have no short text.
    fn odd(point: &BandPoint) -> Result<Finding, LabError> {
        let points = |point: u32| (0..100).map(move |at| (f64::from(at), 1.0 / (f64::from(at + 3 * point) + 0.7)));
        let mut finding = Finding::default();
        finding.judge("T1a", true, "").judge("T1b", point.number() < 19, "0.05").show("T1c", "");
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
    fn a_shape_holds_in_nine_of_ten_points_and_what_is_exact_in_all() {
        let verdicts = |exact: u32, shape: u32| {
            let findings: Vec<Finding> = BandPoint::band()
                .map(|point| {
                    let mut finding = Finding::default();
                    let number = point.number();
                    finding.judge("T1a", number < exact, "").judge("T1b", number < shape, "").show("T1c", "");
                    finding
                })
                .collect();
            ROWS.each_ref().map(|row| match row.id {
                "T1a" => judge(&FIGURE, &ROWS[0], &findings).verdict,
                "T1b" => judge(&FIGURE, &ROWS[1], &findings).verdict,
                _ => judge(&FIGURE, &ROWS[2], &findings).verdict,
            })
        };
        use Verdict::{Fail, Info, Pass};
        assert_eq!(verdicts(21, 19), [Pass, Pass, Info], "19 of 21 are 90.5 %");
        assert_eq!(verdicts(20, 18), [Fail, Fail, Info], "18 of 21 are 85.7 %");
    }

    #[test]
    fn what_came_out_where_a_shape_does_not_hold_is_shown() {
        let figures = run(&plan(None), &|_, _| {}).unwrap();
        let tables: Vec<_> = figures[0].finding.tables.iter().map(Table::markdown).collect();
        assert_eq!(tables.len(), 1);
        for line in ["| T1b | 19 | 9 | 0.05 |", "| T1b | 20 | 10 | 0.05 |"] {
            assert!(tables[0].contains(line), "{line} in {}", tables[0]);
        }
        assert!(!tables[0].contains("T1a") && !tables[0].contains("T1c"), "{}", tables[0]);
        let quick = run(&Plan { quick: true, ..plan(None) }, &|_, _| {}).unwrap();
        assert!(quick[0].finding.tables.is_empty(), "there is no band");
    }

    #[test]
    fn what_is_kept_is_what_was_found_to_the_last_bit_and_belongs_to_its_program() {
        let folder = tempfile::tempdir().unwrap();
        let kept = |program: &str| plan(Some((folder.path().to_owned(), program.to_owned())));
        let found = texts(&plan(None));
        assert_eq!(texts(&kept("one")), found, "written");
        assert_eq!(texts(&kept("one")), found, "read again");
        // Something else in the file of a point is taken for what was found by the same program, and by no other.
        let file = folder.path().join("odd-00.json");
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::write(&file, text.replace("\"odd\"", "\"even\"")).unwrap();
        assert_ne!(texts(&kept("one")), found);
        assert_eq!(texts(&kept("two")), found);
        assert_eq!(texts(&kept("two")), found);
        // Half a file is none.
        std::fs::write(&file, &text[..text.len() / 2]).unwrap();
        assert_eq!(texts(&kept("two")), found);
    }
}
