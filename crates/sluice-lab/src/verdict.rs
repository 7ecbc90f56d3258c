//! Verdicts: what a reader may conclude from the results of a row.
//!
//! [`decide`] computes the word from results at all points and seeds, and from what is known of the row in `claims.toml`.
//!
//! Example: a shape holds with all five seeds at 19 of 21 points: `claim holds`. Another holds nowhere with one command at
//! the drive, and always with four or more: `holds if`, with the condition `drive-queue 4, 8, 31 commands`.

use serde::{Deserialize, Serialize};

use crate::band::BandPoint;
use crate::claims::{self, Axis, Claim};
use crate::figure::{Class, Judged};

/// Part of the points at which a shape must hold.
pub const BAND_SHARE: f64 = 0.9;
/// Relative tolerance of a printed mean.
pub const MEAN_TOLERANCE: f64 = 0.1;

/// Result of a row. The order is from worst to best.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Verdict {
    /// The default.
    #[serde(rename = "not reproduced")]
    NotReproduced,
    /// It depends on a fact that the paper does not state, and on more than one axis.
    #[serde(rename = "not determinable")]
    NotDeterminable,
    /// The claim holds if one fact that the paper does not state is as the condition says.
    #[serde(rename = "holds if")]
    HoldsIf,
    /// Shown without a check.
    #[serde(rename = "shown")]
    Shown,
    /// The claim holds at nine of ten points.
    #[serde(rename = "claim holds")]
    ClaimHolds,
    /// Exact, or all printed means within 10 %.
    #[serde(rename = "reproduced")]
    Reproduced,
}

impl Verdict {
    /// All words, from worst to best.
    pub const ALL: [Verdict; 6] = [
        Verdict::NotReproduced,
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
    /// Seeds with which the row holds, and all seeds.
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
    pub sensitivity: Vec<Sensitivity>,
}

/// Decides a row from its results, the nominal point with the first seed first.
#[must_use]
pub fn decide(class: Class, claim: &Claim, found: &[(BandPoint, &Judged)]) -> Decision {
    let share = share(found);
    let sensitivity = sensitivity(found);
    let condition = condition(&sensitivity, claims::axes());
    let circular = !claim.inputs.is_empty();
    let is_complete = found.len() > 1;
    let all_hold = found.iter().all(|(_, judged)| judged.holds == Some(true));
    let verdict = match class {
        Class::Hardware => Verdict::Shown,
        Class::Exact if all_hold && circular => Verdict::ClaimHolds,
        Class::Exact if all_hold => Verdict::Reproduced,
        Class::Exact => Verdict::NotReproduced,
        Class::Shape if means_agree(found) && !circular => Verdict::Reproduced,
        Class::Shape if share >= BAND_SHARE => Verdict::ClaimHolds,
        Class::Shape if condition.is_some() => Verdict::HoldsIf,
        Class::Shape if share > 0.0 && !claim.missing.is_empty() => Verdict::NotDeterminable,
        Class::Shape => Verdict::NotReproduced,
    };
    let (condition, post_hoc) = match (verdict, condition) {
        (Verdict::HoldsIf, Some((text, post_hoc))) => (text, post_hoc),
        (Verdict::NotDeterminable, _) => (claim.missing.clone(), false),
        _ => (String::new(), false),
    };
    let band_share = (class == Class::Shape && is_complete).then_some(share);
    Decision { verdict, band_share, condition, post_hoc, sensitivity }
}

/// Part of the points of the range at which the row's check passes with every seed. This is no interval of 95 %, and the size of
/// the effect is judged by the check alone: five seeds pass a check that passes half of the time once in 32 points.
fn share(found: &[(BandPoint, &Judged)]) -> f64 {
    let mut points: Vec<u32> = found.iter().filter(|(at, _)| !at.is_sweep()).map(|(at, _)| at.number()).collect();
    points.sort_unstable();
    points.dedup();
    let holds = |number: &&u32| {
        let mut seeds = found.iter().filter(|(at, _)| !at.is_sweep() && at.number() == **number);
        seeds.all(|(_, judged)| judged.holds == Some(true))
    };
    points.iter().filter(holds).count() as f64 / points.len() as f64
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
                let measured = first.measured.clone();
                all.push(Sensitivity { axis: axis.name.clone(), value: *value, holds, seeds: at.len(), measured });
            }
        }
    }
    all
}

/// The first axis of which some values, with every seed, decide whether the row holds; and whether it is post hoc.
fn condition(sensitivity: &[Sensitivity], axes: &[Axis]) -> Option<(String, bool)> {
    axes.iter().find_map(|axis| {
        let of_axis: Vec<_> = sensitivity.iter().filter(|at| at.axis == axis.name).collect();
        let holds: Vec<_> = of_axis.iter().filter(|at| at.holds == at.seeds).map(|at| at.value.to_string()).collect();
        // One threshold or one range: values on both sides of one that fails are no condition.
        let changes = of_axis.windows(2).filter(|pair| pair[0].holds < pair[0].seeds && pair[1].holds == pair[1].seeds);
        let starts = changes.count() + usize::from(of_axis.first().is_some_and(|at| at.holds == at.seeds));
        let some = starts == 1 && holds.len() < of_axis.len();
        some.then(|| (format!("{} {} {}", axis.name, holds.join(", "), axis.unit), axis.evidence.is_empty()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(holds: bool) -> Judged {
        Judged { id: "T1".into(), holds: Some(holds), measured: String::new(), means: Vec::new() }
    }

    fn decided(class: Class, claim: &Claim, holds: impl Fn(BandPoint) -> bool) -> Decision {
        let points: Vec<_> = BandPoint::all("flubber-credits").map(|point| (point, judged(holds(point)))).collect();
        let found: Vec<_> = points.iter().map(|(point, judged)| (*point, judged)).collect();
        decide(class, claim, &found)
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
        let seeds: Vec<_> = found.sensitivity.iter().map(|at| (at.value, at.holds, at.seeds)).collect();
        assert_eq!(seeds, [(1.0, 0, 5), (2.0, 0, 5), (4.0, 5, 5), (8.0, 5, 5), (31.0, 5, 5)]);
    }

    #[test]
    fn a_row_that_depends_on_a_missing_fact_is_not_determinable() {
        let claim = Claim { missing: "the controller".into(), ..Claim::default() };
        let found = decided(Class::Shape, &claim, |at| at.number() % 2 == 0 && !at.is_sweep());
        assert_eq!((found.verdict, found.condition.as_str()), (Verdict::NotDeterminable, "the controller"));
        assert_eq!(decided(Class::Shape, &claim, |_| false).verdict, Verdict::NotReproduced);
    }
}
