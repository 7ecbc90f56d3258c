//! Verdicts: what a reader may conclude from the results of a row.
//!
//! [`decide`] computes the word from results at all points and seeds, and from what is known of the row in `claims.toml`.
//!
//! Example: a shape holds with all five seeds at 19 of 21 points: `claim holds`, and `reproduced` if the paper prints means and all of
//! them are met. Another holds nowhere with one command at the drive, and always with four or more, in the sweep and at the
//! points of the range: `holds if`, with the condition `drive-queue 4, 8, 31 commands`.

use std::collections::BTreeMap;

use serde::{Serialize, Serializer};

use crate::band::BandPoint;
use crate::claims::{self, Axis, Board, Claim};
use crate::device;
use crate::figure::{Class, Figure, Judged, Paper, RowSpec};
use crate::proof::Proof;

/// Part of the points at which a shape must hold.
pub const BAND_SHARE: f64 = 0.9;
/// Part of the points with a value of an axis below which the value is why a shape fails.
const HALF: f64 = 0.5;
/// Part of the points at which a row must hold for a missing fact to be why it fails at the others.
const THIRD: f64 = 1.0 / 3.0;
/// Relative tolerance of a printed number.
pub const MEAN_TOLERANCE: f64 = 0.1;

/// Result of a row. The order is from worst to best.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// The default.
    NotReproduced,
    /// The paper's own numbers contradict it, and no run has it.
    Refuted,
    /// It holds at a third of the points or more, and depends on a fact that the paper does not state and that no single axis decides.
    NotDeterminable,
    /// The claim holds if one fact that the paper does not state is as the condition says.
    HoldsIf,
    /// Shown without a check, near the paper's numbers or not.
    Shown,
    /// The claim holds at nine of ten points where its precondition is met; of a conformance row, at all.
    ClaimHolds,
    /// The same, and all means that the paper prints are within 10 % of those measured.
    Reproduced,
}

impl Verdict {
    /// All words, from worst to best.
    pub const ALL: [Verdict; 7] = [
        Verdict::NotReproduced,
        Verdict::Refuted,
        Verdict::NotDeterminable,
        Verdict::HoldsIf,
        Verdict::Shown,
        Verdict::ClaimHolds,
        Verdict::Reproduced,
    ];

    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Verdict::NotReproduced => "not reproduced",
            Verdict::Refuted => "refuted",
            Verdict::NotDeterminable => "not determinable",
            Verdict::HoldsIf => "holds if",
            Verdict::Shown => "shown",
            Verdict::ClaimHolds => "claim holds",
            Verdict::Reproduced => "reproduced",
        }
    }
}

impl Serialize for Verdict {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.word())
    }
}

/// Results of a row at one value of an axis, everything else nominal.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Sensitivity {
    pub axis: String,
    pub value: f64,
    /// Seeds with which the row holds, and all with which its precondition is met.
    pub holds: usize,
    pub seeds: usize,
    /// Measured value with the first seed.
    pub measured: String,
}

/// Points at which a row holds with every seed, of those at which it is judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Points {
    pub held: usize,
    pub judged: usize,
}

impl Points {
    /// Part of the points; 0 if the row is judged at none.
    fn share(self) -> f64 {
        self.held as f64 / self.judged.max(1) as f64
    }
}

/// A mean that the paper prints.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Mean {
    pub printed: f64,
    /// At the nominal point, the mean over the seeds.
    pub measured: f64,
    /// Measured by printed; none if zero is printed.
    pub ratio: Option<f64>,
}

impl Mean {
    fn off(self) -> f64 {
        (self.measured - self.printed).abs()
    }

    fn is_near(self) -> bool {
        self.off() <= MEAN_TOLERANCE * self.printed.abs()
    }
}

/// How a row that is only shown agrees with the numbers that the paper prints of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Agreement {
    /// All are within 10 %, and none was fitted to.
    Near,
    Differs,
}

impl Agreement {
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Agreement::Near => "near",
            Agreement::Differs => "differs",
        }
    }
}

/// A row of the acceptance table with its result.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// `M1a`, for example.
    pub id: &'static str,
    pub paper: Paper,
    /// Name of the figure in the paper.
    pub figure: &'static str,
    /// Kind of its check.
    pub class: Class,
    pub verdict: Verdict,
    /// Whether only the nominal point was run, so that the verdict is that of this point.
    pub nominal: bool,
    pub board: Board,
    /// For `holds if`: the axis and its values. For `not determinable`: the missing fact. Otherwise empty.
    pub condition: String,
    /// Whether the condition was chosen after its result was seen, without evidence from elsewhere, or the row was changed then.
    pub post_hoc: bool,
    /// The axes, devices or criteria of the row that were changed after its result was known; empty if none were.
    pub changed: String,
    /// For `holds if` that is not post hoc: the source, apart from the result, that the testbed may have met it. Otherwise empty.
    pub evidence: String,
    /// Results of the row that a fit used: such a row is never `reproduced`.
    pub inputs: Vec<String>,
    /// Result as printed in the paper; empty if it prints none.
    pub printed: Vec<&'static str>,
    /// Numbers of the row that the paper does not print.
    pub derived: Vec<String>,
    /// Results at each value of each axis, everything else nominal.
    pub sensitivity: Vec<Sensitivity>,
    /// Effects that the paper prints, and those at the nominal point over all seeds.
    pub effects: Vec<Effect>,
    /// Means that the paper prints, with those at the nominal point over all seeds.
    pub means: Vec<Mean>,
    /// For class H where the paper prints numbers: whether all are near.
    pub agreement: Option<Agreement>,
    /// For a sentence that the paper's own numbers confirm or refute: the calculation by each reading. Otherwise empty.
    pub proof: Vec<String>,
    /// Value of the paper.
    pub paper_value: &'static str,
    /// Measured value at the nominal point, with its unit.
    pub measured: String,
    /// For a row that is judged: at how many points it holds with every seed.
    pub points: Option<Points>,
    pub note: &'static str,
    /// Expected result.
    pub must: &'static str,
    /// The device file; empty if there is none.
    pub device: &'static str,
    /// Hash of that file: 64-bit FNV-1a in hexadecimal; empty if there is none.
    pub device_hash: String,
    /// The seed of the nominal point.
    pub seed: u64,
}

/// Decides a row from its results, the nominal point with the first seed first.
#[must_use]
pub fn decide(figure: &Figure, row: &'static RowSpec, claim: Claim, found: &[(BandPoint, &Judged)]) -> Row {
    let points = points_of(found, |at| row.class == Class::Conformance || !at.is_sweep());
    let sensitivity = sensitivity(found);
    let axis = condition(found, &sensitivity, claims::axes());
    let nominal = seeds_at(found, BandPoint::NOMINAL);
    let (effects, means) = (effects(&nominal), means(&nominal));
    let near = !means.is_empty() && means.iter().all(|mean| mean.is_near());
    let verdict = match row.class {
        _ if is_refuted(&claim, found) => Verdict::Refuted,
        Class::Hardware => Verdict::Shown,
        Class::Conformance if points.held == points.judged.max(1) => Verdict::ClaimHolds,
        Class::Conformance => Verdict::NotReproduced,
        Class::Shape => of_shape(points.share(), near, axis.is_some(), &claim),
    };
    let (condition, evidence, found_later) = match (verdict, axis) {
        (Verdict::HoldsIf, Some((text, axis))) => (text, axis.evidence.clone(), axis.evidence.is_empty()),
        (Verdict::NotDeterminable, _) => (claim.missing, String::new(), true),
        _ => Default::default(),
    };
    Row {
        id: row.id,
        paper: figure.paper,
        figure: figure.label,
        class: row.class,
        verdict,
        nominal: found.len() == 1,
        board: if figure.paper == Paper::Ablations { Board::Ours } else { claim.board },
        condition,
        post_hoc: found_later || !claim.changed.is_empty(),
        changed: claim.changed,
        evidence,
        printed: Some(row.paper).filter(|text| !text.is_empty()).into_iter().collect(),
        derived: claim.derived,
        sensitivity,
        effects,
        agreement: match near {
            _ if row.class != Class::Hardware || means.is_empty() => None,
            // What was fitted to is no evidence.
            true => claim.inputs.is_empty().then_some(Agreement::Near),
            false => Some(Agreement::Differs),
        },
        inputs: claim.inputs,
        means,
        proof: claim.proofs.iter().map(Proof::text).collect(),
        paper_value: row.paper,
        measured: found[0].1.measured.clone(),
        points: (row.class != Class::Hardware).then_some(points),
        note: row.note,
        must: row.must,
        device: figure.device,
        device_hash: device::text(figure.device).map(device::hash).unwrap_or_default(),
        seed: BandPoint::NOMINAL.seed(),
    }
}

/// Whether the paper's own numbers contradict a row, and no run has it.
fn is_refuted(claim: &Claim, found: &[(BandPoint, &Judged)]) -> bool {
    found.iter().all(|(_, judged)| judged.holds == Some(false)) && claim.proofs.iter().any(Proof::refutes)
}

/// Verdict of a shape that holds at this part of the points.
fn of_shape(share: f64, near: bool, has_condition: bool, claim: &Claim) -> Verdict {
    match share {
        BAND_SHARE.. if near && claim.inputs.is_empty() => Verdict::Reproduced,
        BAND_SHARE.. => Verdict::ClaimHolds,
        _ if has_condition => Verdict::HoldsIf,
        THIRD.. if !claim.missing.is_empty() => Verdict::NotDeterminable,
        _ => Verdict::NotReproduced,
    }
}

/// Those of the points at which the row holds, of those where its precondition is met.
fn points_of(found: &[(BandPoint, &Judged)], is_meant: impl Fn(BandPoint) -> bool) -> Points {
    let mut points: BTreeMap<String, Vec<&Judged>> = BTreeMap::new();
    for (at, judged) in found.iter().filter(|(at, _)| is_meant(*at)) {
        points.entry(at.without_seed()).or_default().push(judged);
    }
    let held: Vec<bool> = points.values().filter_map(|seeds| holds_at(seeds)).collect();
    Points { held: held.iter().filter(|held| **held).count(), judged: held.len() }
}

/// Results of all seeds at a point.
fn seeds_at<'a>(found: &[(BandPoint, &'a Judged)], point: BandPoint) -> Vec<&'a Judged> {
    found.iter().filter(|(at, _)| at.without_seed() == point.without_seed()).map(|(_, judged)| *judged).collect()
}

/// Whether a row holds at a point: with every seed, and with the interval of each effect off zero. `None` if its precondition is not met
/// with any seed.
fn holds_at(seeds: &[&Judged]) -> Option<bool> {
    let held: Vec<bool> = seeds.iter().filter_map(|judged| judged.holds).collect();
    let off_zero = effects(seeds).iter().all(Effect::is_off_zero);
    (!held.is_empty()).then(|| off_zero && held.iter().all(|held| *held))
}

/// An effect that the paper prints, as a relative change: 1 is twice as much.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Effect {
    pub printed: f64,
    /// Mean over the seeds.
    pub measured: f64,
    /// Half of the 95 % interval of the mean, by Student's t; none with one seed.
    pub interval: Option<f64>,
}

impl Effect {
    fn is_off_zero(&self) -> bool {
        self.interval.is_none_or(|interval| self.measured.abs() > interval)
    }
}

/// Quantiles of Student's t for 95 % on both sides, from one degree of freedom on.
const STUDENT: [f64; 4] = [12.706, 4.303, 3.182, 2.776];

/// The row's effects over all seeds at a point.
fn effects(seeds: &[&Judged]) -> Vec<Effect> {
    let count = seeds.len() as f64;
    let of = |index: usize| {
        let values = || seeds.iter().map(|judged| judged.effects[index].1);
        let mean = values().sum::<f64>() / count;
        let variance = values().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0);
        let student = seeds.len().checked_sub(2).map(|at| STUDENT[at.min(STUDENT.len() - 1)]);
        let interval = student.map(|student| student * (variance / count).sqrt());
        Effect { printed: seeds[0].effects[index].0, measured: mean, interval }
    };
    (0..seeds.first().map_or(0, |judged| judged.effects.len())).map(of).collect()
}

/// The row's means over all seeds at a point.
fn means(seeds: &[&Judged]) -> Vec<Mean> {
    let of = |index: usize| {
        let measured = seeds.iter().map(|judged| judged.means[index].1).sum::<f64>() / seeds.len() as f64;
        let printed = seeds[0].means[index].0;
        Mean { printed, measured, ratio: (printed != 0.0).then(|| measured / printed) }
    };
    (0..seeds.first().map_or(0, |judged| judged.means.len())).map(of).collect()
}

/// The mean that is furthest from what is printed, relative to it.
#[must_use]
pub fn furthest(means: &[Mean]) -> Option<Mean> {
    let relative = |mean: &Mean| if mean.off() == 0.0 { 0.0 } else { mean.off() / mean.printed.abs() };
    means.iter().copied().max_by(|one, two| relative(one).total_cmp(&relative(two)))
}

fn sensitivity(found: &[(BandPoint, &Judged)]) -> Vec<Sensitivity> {
    let mut all = Vec::new();
    for axis in claims::axes() {
        for value in &axis.values {
            let swept = |at: &BandPoint| at.swept().is_some_and(|(name, of)| name == axis.name && of == *value);
            let at: Vec<_> = found.iter().filter(|(at, _)| swept(at)).map(|(_, judged)| judged).collect();
            if let Some(first) = at.first() {
                let holds = at.iter().filter(|judged| judged.holds == Some(true)).count();
                let seeds = at.iter().filter(|judged| judged.holds.is_some()).count();
                let measured = first.measured.clone();
                all.push(Sensitivity { axis: axis.name.clone(), value: *value, holds, seeds, measured });
            }
        }
    }
    all
}

/// Whether a row holds with a value of an axis: with every seed in the sweep, and at nine of ten points of the range that have this value.
/// `Some(false)` if not with every seed in the sweep, or at less than half of these points; otherwise, `None`, other parameters decide.
fn decides(found: &[(BandPoint, &Judged)], axis: &Axis, at: &Sensitivity) -> Option<bool> {
    let points = points_of(found, |point| !point.is_sweep() && point.setting(&axis.name) == at.value);
    let share = if points.judged == 0 { 1.0 } else { points.share() };
    match (at.holds == at.seeds, share) {
        (true, BAND_SHARE..) => Some(true),
        (true, HALF..) => None,
        _ => Some(false),
    }
}

/// The first axis of which some values decide that the row holds and others that it does not, in words.
fn condition<'a>(
    found: &[(BandPoint, &Judged)],
    sensitivity: &[Sensitivity],
    axes: &'a [Axis],
) -> Option<(String, &'a Axis)> {
    axes.iter().find_map(|axis| {
        let of_axis = sensitivity.iter().filter(|at| at.axis == axis.name && at.seeds > 0);
        let values: Vec<_> = of_axis.map(|at| (at.value, decides(found, axis, at))).collect();
        let holds = |value: &&(f64, Option<bool>)| value.1 == Some(true);
        // One threshold or one range: values on both sides of one that fails are no condition.
        let changes = values.windows(2).filter(|pair| !holds(&&pair[0]) && holds(&&pair[1])).count();
        let starts = changes + usize::from(values.first().as_ref().is_some_and(holds));
        let held: Vec<_> = values.iter().filter(holds).map(|(value, _)| value.to_string()).collect();
        let some = starts == 1 && values.iter().any(|(_, decided)| *decided == Some(false));
        some.then(|| (format!("{} {} {}", axis.name, held.join(", "), axis.unit), axis))
    })
}

#[cfg(test)]
mod tests {
    use sluice_sim::random::stream;

    use super::*;
    use crate::proof::Reading;

    fn judged(holds: bool) -> Judged {
        Judged { holds: Some(holds), ..Judged::new("T1", "") }
    }

    fn decide(class: Class, claim: &Claim, found: &[(BandPoint, &Judged)]) -> Row {
        let mut rows = crate::figures::ALL.iter().flat_map(|figure| figure.rows.iter().map(move |row| (figure, row)));
        let (figure, row) = rows.find(|(_, row)| row.class == class).expect("each class has rows");
        super::decide(figure, row, claim.clone(), found)
    }

    fn decided(class: Class, claim: &Claim, holds: impl Fn(BandPoint) -> bool) -> Row {
        let points: Vec<_> = BandPoint::all("flubber-credits").map(|point| (point, judged(holds(point)))).collect();
        let found: Vec<_> = points.iter().map(|(point, judged)| (*point, judged)).collect();
        decide(class, claim, &found)
    }

    /// A row that holds at some values of an axis.
    fn decide_swept(axis: &str, figure: &str, holds: impl Fn(f64) -> bool) -> Row {
        let points: Vec<_> = BandPoint::all(figure).map(|at| (at, judged(holds(at.setting(axis))))).collect();
        let found: Vec<_> = points.iter().map(|(point, judged)| (*point, judged)).collect();
        decide(Class::Shape, &Claim::default(), &found)
    }

    #[test]
    fn a_shape_must_hold_at_nine_of_ten_points_with_every_seed() {
        let of = |class, points| decided(class, &Claim::default(), |at| at.number() < points).verdict;
        assert_eq!(of(Class::Shape, 19), Verdict::ClaimHolds, "19 of 21 are 90.5 %");
        assert_eq!(of(Class::Shape, 18), Verdict::NotReproduced);
        assert_eq!(of(Class::Hardware, 0), Verdict::Shown);
        let one_seed = decided(Class::Shape, &Claim::default(), |at| at.seed() != 3);
        assert_eq!((one_seed.verdict, one_seed.points), (Verdict::NotReproduced, Some(Points { held: 0, judged: 21 })));
    }

    #[test]
    fn a_conformance_row_must_hold_at_every_point_and_is_never_reproduced() {
        let of = |claim: &Claim, holds: fn(BandPoint) -> bool| decided(Class::Conformance, claim, holds);
        let plain = Claim::default();
        let all = of(&plain, |_| true);
        assert_eq!((all.verdict, all.nominal), (Verdict::ClaimHolds, false));
        assert_eq!(all.points, Some(Points { held: 29, judged: 29 }), "21 of the range, 5 and 3 of two sweeps");
        assert_eq!(of(&plain, |at| at.number() != 7).verdict, Verdict::NotReproduced);
        assert_eq!(of(&plain, |at| !at.is_sweep()).verdict, Verdict::NotReproduced);
        assert_eq!(of(&plain, |at| at.seed() != 2).verdict, Verdict::NotReproduced);
    }

    #[test]
    fn reproduced_needs_the_check_the_range_and_the_printed_means() {
        let near = [(100.0, 109.0), (10.0, 9.0)];
        let far = [(100.0, 109.0), (10.0, 11.1)];
        let of = |claim: &Claim, means: &[(f64, f64)], holds: fn(BandPoint) -> bool| {
            let row = |at| Judged { means: means.to_vec(), ..judged(holds(at)) };
            let points: Vec<_> = BandPoint::all("flubber-credits").map(|point| (point, row(point))).collect();
            let found: Vec<_> = points.iter().map(|(point, judged)| (*point, judged)).collect();
            decide(Class::Shape, claim, &found).verdict
        };
        let fitted = Claim { inputs: vec!["the total".into()], ..Claim::default() };
        assert_eq!(of(&Claim::default(), &near, |_| true), Verdict::Reproduced);
        assert_eq!(of(&Claim::default(), &near, |at| at.number() < 19), Verdict::Reproduced);
        assert_eq!(of(&Claim::default(), &near, |at| at.number() < 18), Verdict::NotReproduced, "the range");
        assert_eq!(of(&Claim::default(), &near, |at| at.number() > 0), Verdict::Reproduced, "20 of 21");
        assert_eq!(of(&Claim::default(), &near, |_| false), Verdict::NotReproduced, "the check");
        assert_eq!(of(&Claim::default(), &far, |_| true), Verdict::ClaimHolds, "the means");
        assert_eq!(of(&Claim::default(), &[], |_| true), Verdict::ClaimHolds, "none is printed");
        assert_eq!(of(&fitted, &near, |_| true), Verdict::ClaimHolds, "a result that was fitted");
    }

    #[test]
    fn a_row_that_is_shown_is_near_or_differs_if_the_paper_prints_numbers() {
        let of = |means: &[(f64, f64)]| {
            let judged = Judged { means: means.to_vec(), ..Judged::new("T1", "") };
            let fitted = Claim { inputs: vec!["the total".into()], ..Claim::default() };
            let [found, fitted] = [Claim::default(), fitted]
                .map(|claim| decide(Class::Hardware, &claim, &[(BandPoint::NOMINAL, &judged)]));
            assert_eq!(fitted.agreement, found.agreement.filter(|agreement| *agreement == Agreement::Differs));
            assert_eq!((found.verdict, found.points), (Verdict::Shown, None));
            (found.agreement, furthest(&found.means).map(|mean| (mean.printed, mean.ratio)))
        };
        assert_eq!(of(&[]), (None, None));
        assert_eq!(of(&[(100.0, 91.0), (50.0, 52.0)]), (Some(Agreement::Near), Some((100.0, Some(0.91)))));
        assert_eq!(of(&[(100.0, 91.0), (50.0, 56.0)]), (Some(Agreement::Differs), Some((50.0, Some(1.12)))));
        assert_eq!(of(&[(0.0, 46.0), (95.0, 49.0)]), (Some(Agreement::Differs), Some((0.0, None))), "of zero");
        assert_eq!(of(&[(0.0, 0.0), (95.0, 90.0)]).0, Some(Agreement::Near));
    }

    #[test]
    fn a_condition_is_found_by_a_sweep_and_post_hoc_without_evidence() {
        let found = decided(Class::Shape, &Claim::default(), |at| at.setting("drive-queue") >= 4.0);
        assert_eq!((found.verdict, found.post_hoc), (Verdict::HoldsIf, true));
        assert_eq!(found.condition, "drive-queue 4, 8, 31 commands");
        let gap = decided(Class::Shape, &Claim::default(), |at| [1.0, 4.0].contains(&at.setting("drive-queue")));
        assert_eq!(gap.verdict, Verdict::NotReproduced, "no threshold");
        let of_sweep = decided(Class::Shape, &Claim::default(), |at| at.is_sweep() && at.setting("drive-queue") >= 4.0);
        assert_eq!(of_sweep.verdict, Verdict::NotReproduced, "at no point of the range that has four commands or more");
        let other = decided(Class::Shape, &Claim::default(), |at| at.is_sweep() || ![5, 9, 13].contains(&at.number()));
        assert_eq!(other.verdict, Verdict::NotReproduced, "18 of 21, at points that no value explains");
        let evident = decide_swept("equal-weight", "mclock-idle-credit", |value| value >= 500.0);
        assert!(!evident.post_hoc && evident.evidence.contains("ESX"), "{evident:?}");
        let of_queue = found.sensitivity.iter().filter(|at| at.axis == "drive-queue");
        let seeds: Vec<_> = of_queue.map(|at| (at.value, at.holds, at.seeds)).collect();
        assert_eq!(seeds, [(1.0, 0, 5), (2.0, 0, 5), (4.0, 5, 5), (8.0, 5, 5), (31.0, 5, 5)]);
    }

    #[test]
    fn an_effect_must_have_half_of_its_printed_size_and_an_interval_off_zero() {
        use crate::figure::Finding;
        let of = |values: [f64; 5]| {
            let mut finding = Finding::default();
            for value in values {
                finding.judge_effects("T1", true, "", vec![(-0.2, value)]);
            }
            let points = BandPoint::band().take(5).zip(&finding.rows).collect::<Vec<_>>();
            decide(Class::Shape, &Claim::default(), &points)
        };
        let found = of([-0.12, -0.11, -0.12, -0.13, -0.12]);
        assert_eq!(found.verdict, Verdict::ClaimHolds);
        let Effect { printed, measured, interval } = found.effects[0].clone();
        // The deviations are 0, 0.01, 0, 0.01, 0: s = 0.00707, 2.776 s / sqrt(5) = 0.00878.
        let near = |value: f64, of: f64| (value - of).abs() < 1e-5;
        assert!(near(printed, -0.2) && near(measured, -0.12) && near(interval.unwrap(), 0.00878), "{interval:?}");
        assert_eq!(of([-0.09; 5]).verdict, Verdict::NotReproduced, "less than half");
        assert_eq!(of([0.2; 5]).verdict, Verdict::NotReproduced, "the other direction");
        // The mean is -0.34 and its interval 0.60: each seed has the effect, and together they do not show it.
        assert_eq!(of([-0.1, -0.1, -0.1, -0.2, -1.2]).verdict, Verdict::NotReproduced);
    }

    #[test]
    fn points_without_the_precondition_do_not_count() {
        let of = |least: u32| {
            let mut finding = crate::figure::Finding::default();
            for point in BandPoint::band() {
                finding.judge_if(point.number() < 10, "T1", point.number() >= least, "");
            }
            let points = BandPoint::band().zip(&finding.rows).collect::<Vec<_>>();
            decide(Class::Shape, &Claim::default(), &points)
        };
        assert_eq!((of(1).verdict, of(1).points), (Verdict::ClaimHolds, Some(Points { held: 9, judged: 10 })));
        assert_eq!((of(2).verdict, of(2).points), (Verdict::NotReproduced, Some(Points { held: 8, judged: 10 })));
    }

    #[test]
    fn a_row_is_refuted_by_the_papers_own_numbers_if_no_run_has_it() {
        let time = Reading { of: "time".into(), from: 53.45, to: 46.34 };
        let speed = Reading { of: "speed".into(), from: 46.34, to: 53.45 };
        let claim = |readings: &[&Reading]| {
            let readings = readings.iter().map(|reading| (*reading).clone()).collect();
            let (words, table) = (String::new(), String::new());
            Claim { proofs: vec![Proof { words, says: 16.0, less_than: false, table, readings }], ..Claim::default() }
        };
        assert_eq!(decided(Class::Shape, &claim(&[&time, &speed]), |_| false).verdict, Verdict::NotReproduced);
        let claim = claim(&[&time]);
        assert_eq!(decided(Class::Shape, &claim, |_| false).verdict, Verdict::Refuted);
        assert_ne!(decided(Class::Shape, &claim, |at| at.number() == 3).verdict, Verdict::Refuted);
        assert_eq!(decided(Class::Shape, &Claim::default(), |_| false).verdict, Verdict::NotReproduced);
    }

    #[test]
    fn a_row_that_depends_on_a_missing_fact_must_hold_at_a_third_of_the_points() {
        let claim = Claim { missing: "the controller".into(), ..Claim::default() };
        let of = |claim: &Claim, points: u32| {
            decided(Class::Shape, claim, move |at| at.number().is_multiple_of(3) && at.number() < points)
        };
        let found = of(&claim, 21);
        assert_eq!((found.verdict, found.condition.as_str()), (Verdict::NotDeterminable, "the controller"));
        assert_eq!(found.points, Some(Points { held: 7, judged: 21 }));
        assert_eq!(of(&claim, 18).verdict, Verdict::NotReproduced, "6 of 21");
        assert_eq!(of(&Claim::default(), 21).verdict, Verdict::NotReproduced, "no missing fact is named");
    }

    #[test]
    fn what_was_changed_after_a_result_was_known_is_post_hoc() {
        let missing = Claim { missing: "the controller".into(), ..Claim::default() };
        let changed = Claim { changed: "the device".into(), ..Claim::default() };
        let third = |at: BandPoint| at.number().is_multiple_of(3);
        let of = |claim: &Claim, holds: fn(BandPoint) -> bool| decided(Class::Shape, claim, holds).post_hoc;
        assert!(of(&missing, third));
        assert!(!of(&missing, |_| true), "its verdict does not use the missing fact");
        assert!(of(&changed, |_| true) && of(&changed, |_| false));
    }

    #[test]
    fn no_verdict_says_more_than_the_points_means_and_claim_allow() {
        let mut random = stream(1, "verdicts");
        let reading = Reading { of: "time".into(), from: 100.0, to: 150.0 };
        let contradiction =
            Proof { words: String::new(), says: 10.0, less_than: false, table: String::new(), readings: vec![reading] };
        let mut seen = BTreeMap::new();
        for case in 0..400 {
            let mut coin = |of: u64| random.below(of) == 0;
            let class = if coin(3) { Class::Conformance } else { Class::Shape };
            let claim = Claim {
                inputs: if coin(3) { vec!["a fit".into()] } else { Vec::new() },
                missing: if coin(2) { "a fact".into() } else { String::new() },
                changed: if coin(4) { "the device".into() } else { String::new() },
                proofs: if coin(3) { vec![contradiction.clone()] } else { Vec::new() },
                ..Claim::default()
            };
            let means = if coin(2) { vec![(100.0, if coin(2) { 109.0 } else { 111.0 })] } else { Vec::new() };
            // None, a few, some, most or all of the points.
            let fails = [1, 2, 3, 20, u64::MAX][case % 5];
            let failing: Vec<bool> = (0..=crate::band::POINTS).map(|_| coin(fails)).collect();
            let row = |at: BandPoint| Judged { means: means.clone(), ..judged(!failing[at.number() as usize]) };
            let points: Vec<_> = BandPoint::band().map(|at| (at, row(at))).collect();
            let found: Vec<_> = points.iter().map(|(at, judged)| (*at, judged)).collect();
            let decision = decide(class, &claim, &found);
            let Points { held, judged } = decision.points.expect("the row is judged");
            assert_eq!((held, judged), (failing.iter().filter(|fails| !**fails).count(), 21));
            let most = 10 * held >= 9 * judged;
            let allowed = match decision.verdict {
                Verdict::Reproduced => {
                    class == Class::Shape && most && means == [(100.0, 109.0)] && claim.inputs.is_empty()
                }
                Verdict::ClaimHolds => {
                    if class == Class::Shape {
                        most
                    } else {
                        held == judged
                    }
                }
                Verdict::NotDeterminable => {
                    !most && 3 * held >= judged && !claim.missing.is_empty() && decision.post_hoc
                }
                Verdict::Refuted => held == 0 && !claim.proofs.is_empty(),
                Verdict::NotReproduced => !(class == Class::Shape && most) && held < judged,
                Verdict::HoldsIf | Verdict::Shown => false,
            };
            assert!(allowed, "{decision:?} of {claim:?}");
            assert!(decision.post_hoc || claim.changed.is_empty());
            *seen.entry(decision.verdict).or_insert(0) += 1;
        }
        assert!(seen.len() == 5 && seen.values().all(|count| *count >= 10), "{seen:?}");
    }
}
