//! Verdicts: what a reader may conclude from the results of a row.
//!
//! [`decide`] computes the word from results at all points and seeds, and from what is known of the row in `claims.toml`.
//!
//! Example: a shape holds with all five seeds at 19 of 21 points: `claim holds`. Another holds nowhere with one command at
//! the drive, and always with four or more, in the sweep and at the points of the range: `holds if`, with the condition
//! `drive-queue 4, 8, 31 commands`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::band::BandPoint;
use crate::claims::{self, Axis, Claim};
use crate::figure::{Class, Judged};
use crate::proof::Proof;

/// Part of the points at which a shape must hold.
pub const BAND_SHARE: f64 = 0.9;
/// Part of the points with a value of an axis below which the value is why a shape fails.
const HALF: f64 = 0.5;
/// Relative tolerance of a printed mean.
pub const MEAN_TOLERANCE: f64 = 0.1;

/// Result of a row. The order is from worst to best.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Verdict {
    /// The default.
    #[serde(rename = "not reproduced")]
    NotReproduced,
    /// The paper's own numbers contradict it, and no run has it.
    #[serde(rename = "refuted")]
    Refuted,
    /// It holds at some points, and depends on a fact that the paper does not state and that no single axis decides.
    #[serde(rename = "not determinable")]
    NotDeterminable,
    /// The claim holds if one fact that the paper does not state is as the condition says.
    #[serde(rename = "holds if")]
    HoldsIf,
    /// Shown without a check.
    #[serde(rename = "shown")]
    Shown,
    /// The claim holds at nine of ten points where its precondition is met.
    #[serde(rename = "claim holds")]
    ClaimHolds,
    /// Exact, or all printed means within 10 %.
    #[serde(rename = "reproduced")]
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

/// A verdict with its reasons.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    pub verdict: Verdict,
    /// For a shape over its range: the part of the points at which it holds with every seed.
    pub band_share: Option<f64>,
    /// For `holds if`: axis, values and unit. For `not determinable`: the missing fact.
    pub condition: String,
    /// Whether the condition was chosen after its result was seen.
    pub post_hoc: bool,
    /// Otherwise the source, apart from the result, that the testbed may have met it.
    pub evidence: String,
    pub sensitivity: Vec<Sensitivity>,
    /// At the nominal point.
    pub effects: Vec<Effect>,
}

/// Decides a row from its results, the nominal point with the first seed first.
#[must_use]
pub fn decide(class: Class, claim: &Claim, found: &[(BandPoint, &Judged)]) -> Decision {
    let share = share(found);
    let sensitivity = sensitivity(found);
    let axis = condition(found, &sensitivity, claims::axes());
    let circular = !claim.inputs.is_empty();
    let is_complete = found.len() > 1;
    let all_hold = found.iter().all(|(_, judged)| judged.holds == Some(true));
    let none_holds = found.iter().all(|(_, judged)| judged.holds == Some(false));
    let effects = effects(&seeds_at(found, 0));
    let verdict = match class {
        _ if none_holds && claim.proofs.iter().any(Proof::refutes) => Verdict::Refuted,
        Class::Hardware => Verdict::Shown,
        Class::Exact if all_hold && circular => Verdict::ClaimHolds,
        Class::Exact if all_hold => Verdict::Reproduced,
        Class::Exact => Verdict::NotReproduced,
        Class::Shape if means_agree(found) && !circular => Verdict::Reproduced,
        Class::Shape if share >= BAND_SHARE => Verdict::ClaimHolds,
        Class::Shape if axis.is_some() => Verdict::HoldsIf,
        Class::Shape if !claim.missing.is_empty() && holds_somewhere(found) => Verdict::NotDeterminable,
        Class::Shape => Verdict::NotReproduced,
    };
    let (condition, evidence) = match (verdict, axis) {
        (Verdict::HoldsIf, Some((text, axis))) => (text, axis.evidence.clone()),
        (Verdict::NotDeterminable, _) => (claim.missing.clone(), String::new()),
        _ => (String::new(), String::new()),
    };
    let post_hoc = verdict == Verdict::HoldsIf && evidence.is_empty();
    let band_share = (class == Class::Shape && is_complete).then_some(share);
    Decision { verdict, band_share, condition, post_hoc, evidence, sensitivity, effects }
}

/// Part of the points of the range at which the row holds, of those where its precondition is met.
fn share(found: &[(BandPoint, &Judged)]) -> f64 {
    share_of(found, |_| true).unwrap_or(0.0)
}

/// The same of some of the points; `None` without one where the precondition is met.
fn share_of(found: &[(BandPoint, &Judged)], is_meant: impl Fn(BandPoint) -> bool) -> Option<f64> {
    let found: Vec<_> = found.iter().filter(|(at, _)| is_meant(*at)).copied().collect();
    let mut points: Vec<u32> = found.iter().filter(|(at, _)| !at.is_sweep()).map(|(at, _)| at.number()).collect();
    points.sort_unstable();
    points.dedup();
    let held: Vec<bool> = points.iter().filter_map(|number| holds_at(&seeds_at(&found, *number))).collect();
    (!held.is_empty()).then(|| held.iter().filter(|held| **held).count() as f64 / held.len() as f64)
}

/// Whether there is a point, of the range or of a sweep, at which the row holds with most seeds.
fn holds_somewhere(found: &[(BandPoint, &Judged)]) -> bool {
    let mut points: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    for (at, judged) in found {
        let (holds, seeds) = points.entry(at.without_seed()).or_default();
        *holds += usize::from(judged.holds == Some(true));
        *seeds += 1;
    }
    points.values().any(|(holds, seeds)| 2 * holds > *seeds)
}

/// Results of all seeds at a point of the range.
fn seeds_at<'a>(found: &[(BandPoint, &'a Judged)], number: u32) -> Vec<&'a Judged> {
    found.iter().filter(|(at, _)| !at.is_sweep() && at.number() == number).map(|(_, judged)| *judged).collect()
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

/// Whether the row has printed means, and the results at the nominal point agree with all of them.
fn means_agree(found: &[(BandPoint, &Judged)]) -> bool {
    let is_nominal = |at: &BandPoint| at.number() == 0 && !at.is_sweep();
    let nominal: Vec<_> = found.iter().filter(|(at, _)| is_nominal(at)).map(|(_, judged)| &judged.means).collect();
    let count = nominal[0].len();
    (0..count).all(|index| {
        let measured = nominal.iter().map(|means| means[index].1).sum::<f64>() / nominal.len() as f64;
        let printed = nominal[0][index].0;
        (measured - printed).abs() <= MEAN_TOLERANCE * printed.abs()
    }) && count > 0
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
    let share = share_of(found, |point| !point.is_sweep() && point.setting(&axis.name) == at.value).unwrap_or(1.0);
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
    use super::*;
    use crate::proof::Reading;

    fn judged(holds: bool) -> Judged {
        Judged { holds: Some(holds), ..Judged::new("T1", "") }
    }

    fn decided(class: Class, claim: &Claim, holds: impl Fn(BandPoint) -> bool) -> Decision {
        let points: Vec<_> = BandPoint::all("flubber-credits").map(|point| (point, judged(holds(point)))).collect();
        let found: Vec<_> = points.iter().map(|(point, judged)| (*point, judged)).collect();
        decide(class, claim, &found)
    }

    /// A row that holds at some values of an axis.
    fn decide_swept(axis: &str, figure: &str, holds: impl Fn(f64) -> bool) -> Decision {
        let points: Vec<_> = BandPoint::all(figure).map(|at| (at, judged(holds(at.setting(axis))))).collect();
        let found: Vec<_> = points.iter().map(|(point, judged)| (*point, judged)).collect();
        decide(Class::Shape, &Claim::default(), &found)
    }

    #[test]
    fn a_shape_must_hold_at_nine_of_ten_points_with_every_seed() {
        let of = |class, points| decided(class, &Claim::default(), |at| at.number() < points).verdict;
        assert_eq!(of(Class::Shape, 19), Verdict::ClaimHolds, "19 of 21 are 90.5 %");
        assert_eq!(of(Class::Shape, 18), Verdict::NotReproduced);
        assert_eq!(of(Class::Exact, 21), Verdict::Reproduced);
        assert_eq!(of(Class::Exact, 20), Verdict::NotReproduced);
        assert_eq!(of(Class::Hardware, 0), Verdict::Shown);
        let one_seed = decided(Class::Shape, &Claim::default(), |at| at.seed() != 3);
        assert_eq!((one_seed.verdict, one_seed.band_share), (Verdict::NotReproduced, Some(0.0)));
    }

    #[test]
    fn a_row_whose_result_was_fitted_is_never_reproduced() {
        let fitted = Claim { inputs: vec!["the total".into()], ..Claim::default() };
        assert_eq!(decided(Class::Exact, &fitted, |_| true).verdict, Verdict::ClaimHolds);
        let near = Judged { means: vec![(100.0, 109.0)], ..judged(false) };
        let far = Judged { means: vec![(100.0, 109.0), (10.0, 11.1)], ..judged(false) };
        let of = |claim: &Claim, judged| decide(Class::Shape, claim, &[(BandPoint::NOMINAL, judged)]).verdict;
        assert_eq!(of(&Claim::default(), &near), Verdict::Reproduced);
        assert_eq!(of(&Claim::default(), &far), Verdict::NotReproduced);
        assert_eq!(of(&fitted, &near), Verdict::NotReproduced);
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
        let seeds: Vec<_> = found.sensitivity.iter().map(|at| (at.value, at.holds, at.seeds)).collect();
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
        assert_eq!((of(1).verdict, of(1).band_share), (Verdict::ClaimHolds, Some(0.9)));
        assert_eq!((of(2).verdict, of(2).band_share), (Verdict::NotReproduced, Some(0.8)));
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
    fn a_row_that_depends_on_a_missing_fact_is_not_determinable() {
        let claim = Claim { missing: "the controller".into(), ..Claim::default() };
        let found = decided(Class::Shape, &claim, |at| at.number() % 2 == 0 && !at.is_sweep());
        assert_eq!((found.verdict, found.condition.as_str()), (Verdict::NotDeterminable, "the controller"));
        let some_seeds = |most| decided(Class::Shape, &claim, move |at| at.number() == 3 && at.seed() <= most).verdict;
        assert_eq!(some_seeds(3), Verdict::NotDeterminable, "three of five seeds at one point");
        assert_eq!(some_seeds(2), Verdict::NotReproduced);
        assert_eq!(decided(Class::Shape, &claim, |_| false).verdict, Verdict::NotReproduced);
    }
}
