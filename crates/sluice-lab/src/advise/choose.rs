//! Choice of a scheduler pair from measurements, and its confidence.

use std::cmp::Ordering;

use serde::Serialize;
use sluice_sched::Descriptor;
use sluice_sched::policy::Field;
use sluice_sim::statistics::Mean;

use super::{Got, Pair};

/// Smaller relative differences do not count, whatever their confidence.
const MATTERS: f64 = 0.01;
/// Factor by which another pair must be better in the other measure to be mentioned.
const MUCH: f64 = 1.2;

/// The measure that counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum By {
    /// Requests per second; higher is better.
    Throughput,
    /// 99th percentile of latency; lower is better.
    P99,
}

/// Comparison of a pair with the best one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sureness {
    /// It has the best mean.
    Best,
    /// It cannot be distinguished from the best: the interval of the difference contains zero, or the difference is
    /// below 1 %, or there is only one run and no interval. The interval is that of one comparison among many, and
    /// wider than that of a single one.
    Same,
    /// It is worse: with 95 % confidence no pair marked so is as good as the best.
    Behind,
}

/// Results of a pair.
#[derive(Debug, Clone)]
pub struct Verdict {
    /// Scheduler in the guest.
    pub guest: &'static str,
    /// Scheduler on the host.
    pub host: &'static str,
    /// Requests per second.
    pub iops: Mean,
    /// Bytes per second.
    pub bytes: Mean,
    /// The 99th percentile of latency, in milliseconds.
    pub p99_ms: Mean,
    /// Difference to the best one in the measure that counts, in percent of that one, run by run; positive if it is worse.
    pub behind: Mean,
    /// Confidence of that difference.
    pub sureness: Sureness,
    /// Why it is never advised, whatever its results.
    pub never: Option<&'static str>,
    /// Whether it may be chosen: it is not excluded, and cannot be distinguished from the best of those that are not.
    pub candidate: bool,
}

/// The advice.
#[derive(Debug, Clone)]
pub struct Answer {
    /// All pairs, the best first.
    pub pairs: Vec<Verdict>,
    /// Index of the advised pair.
    pub chosen: usize,
    /// The measure that counts.
    pub by: By,
}

impl Verdict {
    /// Both schedulers, for a sentence.
    fn name(&self) -> String {
        format!("{} above {}", self.guest, self.host)
    }
}

impl Answer {
    /// Whether the measurements alone determine the choice: every other pair that is not excluded is worse.
    #[must_use]
    pub fn is_alone(&self) -> bool {
        self.pairs[0].behind.half.is_some() && self.not_ruled_out().count() > 1 && self.not_told_apart().count() == 1
    }

    /// Pairs that cannot be distinguished from the best one that may be chosen.
    pub fn not_told_apart(&self) -> impl Iterator<Item = &Verdict> {
        self.pairs.iter().filter(|pair| pair.candidate)
    }

    /// Pairs that are not excluded; all of them if each is.
    fn not_ruled_out(&self) -> impl Iterator<Item = &Verdict> {
        let any = self.pairs.iter().any(|pair| pair.never.is_none());
        self.pairs.iter().filter(move |pair| pair.never.is_none() || !any)
    }

    /// The advice in sentences: what to choose, why, and with which confidence.
    #[must_use]
    pub fn sentences(&self) -> Vec<String> {
        let (chosen, best) = (&self.pairs[self.chosen], &self.pairs[0]);
        let mut said = vec![format!("Choose {} in the guest and {} on the host.", chosen.guest, chosen.host)];
        let (of, same) = (self.not_ruled_out().count(), self.not_told_apart().count());
        let pairs = if of == self.pairs.len() { "pairs" } else { "pairs that may be advised" };
        said.push(match best.behind.half {
            _ if of == 1 => "There is no other pair to choose from.".to_owned(),
            None => "One run of each pair says nothing of how sure that is; use more runs.".to_owned(),
            Some(_) if same == 1 => {
                format!("It is the best of {of} {pairs}; each other one is behind with 95 % confidence.")
            }
            Some(_) => format!("The {same} best of {of} {pairs} do not differ significantly."),
        });
        said.extend(chosen.never.map(|why| format!("Yet none of the pairs is advised, nor is this one: {why}.")));
        if best.behind.half.is_some() {
            said.extend(self.indifferent(|pair| pair.guest, chosen.host, |pair| pair.host, "guest"));
            said.extend(self.indifferent(|pair| pair.host, chosen.guest, |pair| pair.guest, "host"));
        }
        if let (Some(why), None) = (best.never, chosen.never) {
            let behind = match self.by {
                By::Throughput => format!("gets {:.0} % less", chosen.behind.mean),
                By::P99 => format!("takes {:.0} % longer", chosen.behind.mean),
            };
            let text = format!("{} {behind} than {}, which is not advised: {why}.", chosen.name(), best.name());
            said.extend((chosen.sureness == Sureness::Behind).then_some(text));
        }
        said.extend(self.price());
        said
    }

    /// The cost of the choice in the other measure, if an indistinguishable pair is much better there.
    fn price(&self) -> Option<String> {
        let of = |pair: &Verdict| match self.by {
            By::Throughput => pair.p99_ms.mean,
            By::P99 => 1.0 / pair.iops.mean,
        };
        let chosen = &self.pairs[self.chosen];
        let other = self.not_told_apart().min_by(|a, b| of(a).total_cmp(&of(b)))?;
        (of(chosen) > MUCH * of(other)).then(|| match self.by {
            By::Throughput => {
                let [own, less] = [chosen, other].map(|pair| pair.p99_ms.mean);
                let name = other.name();
                format!("Its p99 latency is {own:.1} ms; that of {name}, which gets as much, is {less:.1} ms.")
            }
            By::P99 => {
                let [own, more] = [chosen, other].map(|pair| pair.iops.mean);
                let name = other.name();
                format!(
                    "It gets {own:.0} IOPS; {name}, whose p99 latency does not differ significantly, gets {more:.0}."
                )
            }
        })
    }

    /// Notes that the choice at one level makes no difference, given that at the other.
    fn indifferent(
        &self,
        here: fn(&Verdict) -> &'static str,
        at_other: &str,
        other: fn(&Verdict) -> &'static str,
        level: &str,
    ) -> Option<String> {
        let beside: Vec<_> = self.not_ruled_out().filter(|pair| other(pair) == at_other).collect();
        let same = beside.iter().filter(|pair| pair.candidate).count();
        (same == beside.len() && same > 1).then(|| {
            let names: Vec<_> = beside.iter().map(|pair| here(pair)).collect();
            format!("The {level}'s choice among {} makes no significant difference.", names.join(", "))
        })
    }
}

/// Ranks the pairs, and chooses among those that are not worse by the rule of thumb that the schedulers' descriptors
/// state: in the guest noop or deadline; on the host deadline for one VM, an isolating scheduler for several;
/// anticipatory never in a guest.
// rule: two-tier.advice
///
/// # Panics
/// If there is no pair, or a pair without a run.
#[must_use]
pub fn choose(mut pairs: Vec<Pair>, vms: u32, by: By) -> Answer {
    pairs.sort_by(|a, b| compare(a, b, by));
    let best = pairs[0].runs.clone();
    let compared = pairs.len() - 1;
    let mut verdicts: Vec<_> = pairs.iter().map(|pair| verdict(pair, &best, compared, vms, by)).collect();
    verdicts[0].sureness = Sureness::Best;
    // If all pairs are excluded, one of them is chosen anyway.
    let any = verdicts.iter().any(|pair| pair.never.is_none());
    let may = |pair: &Verdict| pair.never.is_none() || !any;
    let first = verdicts.iter().position(may).expect("there is a pair");
    // Pairs that cannot be distinguished from the best permitted one.
    let runs = pairs[first].runs.clone();
    for (pair, verdict) in pairs.iter().zip(&mut verdicts) {
        verdict.candidate = may(verdict) && !is_behind(&behind(&pair.runs, &runs, by), compared);
    }
    let chosen = (first..pairs.len())
        .filter(|number| verdicts[*number].candidate)
        .min_by_key(|number| preference(&pairs[*number], vms))
        .unwrap_or(first);
    Answer { pairs: verdicts, chosen, by }
}

fn value(got: &Got, by: By) -> f64 {
    match by {
        By::Throughput => got.iops,
        By::P99 => got.p99_ms,
    }
}

fn mean(runs: &[Got], of: impl Fn(&Got) -> f64) -> Mean {
    Mean::of(&runs.iter().map(of).collect::<Vec<_>>()).expect("a pair has runs")
}

/// The better one first; equal ones by name, so that the order repeats.
fn compare(a: &Pair, b: &Pair, by: By) -> Ordering {
    let of = |pair: &Pair, by| mean(&pair.runs, |got| value(got, by)).mean;
    let throughput = of(b, By::Throughput).total_cmp(&of(a, By::Throughput));
    let p99 = of(a, By::P99).total_cmp(&of(b, By::P99));
    let (first, second) = if by == By::P99 { (p99, throughput) } else { (throughput, p99) };
    first.then(second).then_with(|| (a.guest.name, a.host.name).cmp(&(b.guest.name, b.host.name)))
}

/// Difference to runs with the same seeds, in percent; positive if they are worse.
fn behind(runs: &[Got], best: &[Got], by: By) -> Mean {
    let sign = if by == By::Throughput { 1.0 } else { -1.0 };
    let differences = best.iter().zip(runs).map(|(best, got)| {
        let (best, got) = (value(best, by), value(got, by));
        // Avoids minus zero in the output.
        100.0 * sign * (best - got) / best.max(f64::MIN_POSITIVE) + 0.0
    });
    Mean::of(&differences.collect::<Vec<_>>()).expect("a pair has runs")
}

/// Whether a pair is worse, if `compared` pairs are compared with the best one: all such results together are correct
/// with 95 % confidence. With one run the difference itself counts.
fn is_behind(behind: &Mean, compared: usize) -> bool {
    behind.mean > 100.0 * MATTERS && behind.half_among(compared).is_none_or(|half| behind.mean > half)
}

fn verdict(pair: &Pair, best: &[Got], compared: usize, vms: u32, by: By) -> Verdict {
    let behind = behind(&pair.runs, best, by);
    // A single run has no interval and no confidence.
    let sureness = match behind.half.is_some() && is_behind(&behind, compared) {
        true => Sureness::Behind,
        false => Sureness::Same,
    };
    Verdict {
        guest: pair.guest.name,
        host: pair.host.name,
        iops: mean(&pair.runs, |got| got.iops),
        bytes: mean(&pair.runs, |got| got.bytes),
        p99_ms: mean(&pair.runs, |got| got.p99_ms),
        behind,
        sureness,
        never: never(pair.guest, pair.host, vms),
        candidate: false,
    }
}

/// Why a pair is never advised.
fn never(guest: &Descriptor, host: &Descriptor, vms: u32) -> Option<&'static str> {
    let keeps_apart = host.enforces(Field::Weight);
    let shared = (vms > 1 && !keeps_apart).then_some("that host keeps no VM from taking what is another's");
    guest.advice.never_in_guest.or(shared)
}

/// Rank in the rule of thumb.
fn preference(pair: &Pair, vms: u32) -> (u8, u8) {
    let host = &pair.host.advice;
    (pair.guest.advice.rank_in_guest, if vms == 1 { host.rank_for_one } else { host.rank_for_several })
}

#[cfg(test)]
mod tests {

    use super::*;

    /// A pair with these requests per second in its runs.
    fn pair(guest: &str, host: &str, iops: [f64; 4]) -> Pair {
        let [guest, host] = [guest, host].map(|name| sluice_papers::find(name).expect("a scheduler's name"));
        let got = |iops| Got { iops, bytes: iops * 4096.0, p99_ms: 1e4 / iops };
        Pair { guest, host, runs: iops.map(got).to_vec() }
    }

    fn names(answer: &Answer) -> (&str, &str) {
        (answer.pairs[answer.chosen].guest, answer.pairs[answer.chosen].host)
    }

    // rule: two-tier.advice
    #[test]
    fn the_rule_of_thumb_chooses_among_equal_pairs() {
        // Seeds differ much more than pairs; run by run the pairs are equal, or not.
        let fast = [900.0, 1100.0, 950.0, 1050.0];
        let slow = fast.map(|iops| iops * 0.9);
        let pairs = || {
            vec![
                pair("cfq", "deadline", slow),
                pair("noop", "cfq", fast),
                pair("noop", "mclock", fast),
                pair("noop", "deadline", fast),
                pair("deadline", "noop", fast),
            ]
        };
        let alone = choose(pairs(), 1, By::Throughput);
        assert_eq!(names(&alone), ("noop", "deadline"));
        assert_eq!(alone.not_told_apart().count(), 4);
        assert!(!alone.is_alone());
        assert_eq!(alone.pairs.last().map(|last| (last.guest, last.sureness)), Some(("cfq", Sureness::Behind)));
        assert_eq!(names(&choose(pairs(), 3, By::Throughput)), ("noop", "mclock"), "several are kept apart");
        let said = alone.sentences().join(" ");
        assert!(said.contains("The 4 best of 5 pairs do not differ significantly"), "{said}");
        assert!(said.contains("host's choice among cfq, deadline, mclock makes no significant difference"), "{said}");
    }

    // rule: two-tier.advice
    #[test]
    fn anticipatory_is_never_advised_in_a_guest_and_its_cost_is_reported() {
        let answer = choose(
            vec![
                pair("anticipatory", "noop", [100.0, 101.0, 99.0, 100.0]),
                pair("cfq", "noop", [80.0, 80.0, 79.0, 81.0]),
            ],
            1,
            By::Throughput,
        );
        assert_eq!(names(&answer), ("cfq", "noop"));
        let said = answer.sentences().join(" ");
        let what = "There is no other pair to choose from. cfq \
                    above noop gets 20 % less than anticipatory above noop, which is not advised";
        assert!(said.contains(what), "{said}");
        // By latency the sentence is longer.
        let mut pairs = [pair("anticipatory", "noop", [100.0; 4]), pair("cfq", "noop", [80.0; 4])];
        pairs.iter_mut().for_each(|pair| pair.runs.iter_mut().for_each(|got| got.p99_ms = 1000.0 / got.iops));
        let said = choose(pairs.into(), 1, By::P99).sentences().join(" ");
        assert!(said.contains("cfq above noop takes 25 % longer than anticipatory above noop"), "{said}");
    }

    #[test]
    fn the_stated_confidence_applies_to_the_chosen_pair() {
        let flat = |guest, host, iops| pair(guest, host, [iops, iops + 1.0, iops - 1.0, iops]);
        let said = |pairs: &[Pair], vms| {
            let answer = choose(pairs.to_vec(), vms, By::Throughput);
            (answer.is_alone(), answer.sentences().join(" "))
        };
        // The best pair is excluded, and of the others none is better.
        let mut pairs =
            vec![flat("anticipatory", "noop", 100.0), flat("cfq", "noop", 80.0), flat("noop", "noop", 80.0)];
        let (alone, text) = said(&pairs, 1);
        assert!(
            !alone && text.contains("The 2 best of 2 pairs that may be advised do not differ significantly"),
            "{text}"
        );
        assert!(text.contains("The guest's choice among cfq, noop makes no significant difference"), "{text}");
        // Now one of them is.
        pairs.pop();
        pairs.push(flat("noop", "noop", 90.0));
        let (alone, text) = said(&pairs, 1);
        assert!(
            alone && text.starts_with("Choose noop") && text.contains("best of 2 pairs that may be advised"),
            "{text}"
        );
        // Without a comparison no pair is worse.
        let (alone, text) = said(&[flat("noop", "noop", 80.0)], 1);
        assert!(!alone && !text.contains("confidence") && text.contains("no other pair"), "{text}");
        // If all are excluded, the text says so.
        let (_, text) = said(&[flat("noop", "noop", 80.0), flat("noop", "deadline", 90.0)], 3);
        assert!(text.contains("none of the pairs is advised") && text.contains("that host keeps no VM"), "{text}");
    }

    #[test]
    fn a_difference_of_one_seed_does_not_count() {
        let answer = choose(
            vec![
                pair("noop", "noop", [100.0, 100.0, 100.0, 100.0]),
                pair("deadline", "noop", [100.0, 100.0, 60.0, 100.0]),
                pair("cfq", "noop", [90.0, 91.0, 89.0, 90.0]),
            ],
            1,
            By::Throughput,
        );
        let sureness = |guest| answer.pairs.iter().find(|pair| pair.guest == guest).map(|pair| pair.sureness);
        assert_eq!(sureness("noop"), Some(Sureness::Best));
        assert_eq!(sureness("deadline"), Some(Sureness::Same), "10 % behind on average, 32 % more or less");
        assert_eq!(sureness("cfq"), Some(Sureness::Behind), "10 % behind on average, 1.3 % more or less");
    }

    #[test]
    fn a_pair_that_is_worse_by_chance_is_not_distinguished_among_many() {
        // 5 % worse on average, within 3.3 %: enough for a pair that is compared alone.
        let unlucky = [970.0, 950.0, 920.0, 960.0];
        let mut pairs = vec![pair("noop", "noop", [1000.0; 4]), pair("deadline", "noop", unlucky)];
        assert_eq!(choose(pairs.clone(), 1, By::Throughput).pairs[1].sureness, Sureness::Behind);
        for host in ["anticipatory", "cfq", "deadline", "mclock", "sfqd", "mcfq", "flubber", "edf-credit"] {
            pairs.extend(["noop", "cfq"].map(|guest| pair(guest, host, [999.0; 4])));
        }
        let answer = choose(pairs, 1, By::Throughput);
        assert!(answer.pairs.iter().all(|pair| pair.sureness != Sureness::Behind), "one of 17 that are compared");
    }

    #[test]
    fn the_order_by_latency_may_differ() {
        let with = |guest, p99_ms| {
            let mut pair = pair(guest, "noop", [100.0; 4]);
            pair.runs.iter_mut().for_each(|got| got.p99_ms = p99_ms);
            pair
        };
        let answer = choose(vec![with("noop", 30.0), with("cfq", 10.0)], 1, By::P99);
        assert_eq!(names(&answer), ("cfq", "noop"));
        assert_eq!(answer.pairs[1].behind.mean, 200.0);
    }

    #[test]
    fn the_cost_of_the_choice_in_the_other_measure_is_reported() {
        let with = |guest, p99_ms: f64, iops: f64| {
            let mut pair = pair(guest, "noop", [iops; 4]);
            pair.runs.iter_mut().for_each(|got| got.p99_ms = p99_ms);
            pair
        };
        let said = |pairs: [Pair; 2], by| choose(pairs.into(), 1, by).sentences().join(" ");
        let price = "Its p99 latency is 90.0 ms; that of cfq above noop, which gets as much, is 30.0 ms.";
        let text = said([with("noop", 90.0, 100.0), with("cfq", 30.0, 100.0)], By::Throughput);
        assert!(text.starts_with("Choose noop in the guest") && text.ends_with(price), "{text}");
        let text = said([with("noop", 33.0, 100.0), with("cfq", 30.0, 100.0)], By::Throughput);
        assert!(!text.contains("latency is"), "a tenth is not much: {text}");
        let text = said([with("noop", 30.0, 100.0), with("cfq", 30.0, 200.0)], By::P99);
        assert!(text.contains("It gets 100 IOPS; cfq above noop") && text.ends_with("gets 200."), "{text}");
    }

    #[test]
    fn a_single_run_has_no_confidence() {
        let mut one = [pair("noop", "noop", [100.0; 4]), pair("cfq", "noop", [50.0; 4])];
        one.iter_mut().for_each(|pair| pair.runs.truncate(1));
        let answer = choose(one.into(), 1, By::Throughput);
        let said = answer.sentences().join(" ");
        assert!(said.contains("use more runs"), "{said}");
        assert!(!answer.is_alone(), "no pair is distinguished");
        assert_eq!(answer.pairs.last().map(|pair| (pair.guest, pair.sureness)), Some(("cfq", Sureness::Same)));
        assert_eq!(names(&answer), ("noop", "noop"), "what got twice as much is chosen all the same");
    }
}
