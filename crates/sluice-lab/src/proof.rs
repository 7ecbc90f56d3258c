//! Sentences of a paper that state relative changes of numbers which the same paper prints, and whether both agree.
//!
//! A sentence may be read in more than one way: times that fall by 13 % are a speed-up of 15 %. `claims.toml` lists the sentence's words and
//! its readings before any of them is computed. The row is `refuted` only if all readings of a number fail and no run of
//! ours has it either. A contradiction between two numbers of a paper holds under every reading of its set-up; a law with a
//! condition of its own does not. Example: Table II of Flubber prints 1021.7 IOPS and 20.12 ms for 16 threads in a closed
//! loop. By Little's law that is 20.6 outstanding requests, but only if the delay is a mean over requests. A mean over seconds
//! gives slow seconds more weight and may be as long with 16: so the table of Little's law stands beside the row, and nothing is
//! refuted by it.

use serde::Deserialize;

use crate::claims;

/// A relative change that the text of a paper states, and the ways to compute it from the paper's own numbers.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Proof {
    /// The words of the paper.
    pub words: String,
    /// The change that they state, in percent.
    pub says: f64,
    /// Whether the text says "less than".
    #[serde(default)]
    pub less_than: bool,
    /// Where the numbers are printed.
    pub table: String,
    /// All meanings that the words may have.
    pub readings: Vec<Reading>,
}

/// One meaning of a sentence: a change from one printed number to another.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reading {
    /// Quantity that changes: `time`, for example.
    pub of: String,
    pub from: f64,
    pub to: f64,
}

impl Reading {
    /// The change in percent.
    fn change(&self) -> f64 {
        100.0 * (self.to / self.from - 1.0).abs()
    }
}

impl Proof {
    /// Whether the number agrees with the table by this reading. A whole number of percent may have been rounded up or down.
    fn agrees(&self, reading: &Reading) -> bool {
        let change = reading.change();
        if self.less_than { change < self.says } else { (change - self.says).abs() < 1.0 }
    }

    /// Whether the sentence contradicts the table by every reading.
    #[must_use]
    pub fn refutes(&self) -> bool {
        !self.readings.iter().any(|reading| self.agrees(reading))
    }

    /// The calculation of each reading in words.
    #[must_use]
    pub fn text(&self) -> String {
        let Proof { words, says, table, readings, .. } = self;
        let less = if self.less_than { "less than " } else { "" };
        let read = |reading: &Reading| {
            let agrees = if self.agrees(reading) { "agrees" } else { "does not agree" };
            let Reading { of, from, to } = reading;
            format!("{of} from {from} to {to} is {:.2} %, which {agrees}", reading.change())
        };
        let readings: Vec<_> = readings.iter().map(read).collect();
        format!("\"{words}\": {less}{says} %; by {table} {}", readings.join(", and "))
    }

    /// The change by each reading.
    fn changes(&self) -> String {
        let changes: Vec<_> = self.readings.iter().map(|reading| format!("{:.2}", reading.change())).collect();
        format!("{} % is {} %", self.says, changes.join(" or "))
    }
}

/// Whether all numbers of a row's sentence agree with the paper's own table by some reading, and the changes by the table.
#[must_use]
pub fn check(id: &str) -> (bool, String) {
    let proofs = claims::of(id).proofs;
    let texts: Vec<_> = proofs.iter().map(Proof::changes).collect();
    (!proofs.iter().any(Proof::refutes), texts.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures;

    fn proof(says: f64, less_than: bool, readings: &[(&str, f64, f64)]) -> Proof {
        let readings =
            readings.iter().map(|(of, from, to)| Reading { of: (*of).into(), from: *from, to: *to }).collect();
        Proof { words: "w".into(), says, less_than, table: "Table T".into(), readings }
    }

    #[test]
    fn a_change_may_be_rounded_up_or_down() {
        let time = [("time", 105.838, 77.496)];
        assert!(!proof(26.0, false, &time).refutes(), "26.78 %, rounded down");
        assert!(!proof(27.0, false, &time).refutes());
        assert!(proof(25.0, false, &time).refutes());
        assert!(proof(8.0, true, &[("time", 100.0, 108.01)]).refutes());
        assert!(!proof(8.0, true, &[("time", 100.0, 107.99)]).refutes());
    }

    #[test]
    fn a_number_is_refuted_only_if_all_readings_fail_and_each_is_printed() {
        let (time, speed) = (("time", 53.45, 46.34), ("speed", 46.34, 53.45));
        assert!(proof(16.0, false, &[time]).refutes());
        assert!(!proof(16.0, false, &[time, speed]).refutes());
        let text = proof(16.0, false, &[time, speed]).text();
        let expected = "\"w\": 16 %; by Table T time from 53.45 to 46.34 is 13.30 %, which does not agree, \
                        and speed from 46.34 to 53.45 is 15.34 %, which agrees";
        assert_eq!(text, expected);
    }

    #[test]
    fn each_sentence_has_its_words_and_both_quotients() {
        let rows = figures::ALL.iter().flat_map(|figure| figure.rows);
        let proofs: Vec<_> = rows.flat_map(|row| claims::of(row.id).proofs).collect();
        assert_eq!(proofs.len(), 5, "four numbers of F2h and one of F3k");
        for proof in &proofs {
            assert!(proof.words.contains(&format!("{}%", proof.says)), "{proof:?}");
            let [there, back] = &proof.readings[..] else { panic!("both quotients: {proof:?}") };
            assert_eq!((there.from, there.to), (back.to, back.from));
        }
    }

    #[test]
    fn of_two_sentences_of_flubber_one_number_is_refuted() {
        let refuted = |id: &str| {
            let proofs = claims::of(id).proofs;
            proofs.iter().filter(|proof| proof.refutes()).map(|proof| proof.says).collect::<Vec<_>>()
        };
        assert_eq!(refuted("F2h"), [17.0]);
        assert_eq!(refuted("F3k"), [0.0; 0], "performance falls by 7.64 %");
        assert_eq!(check("F3k"), (true, "8 % is 8.27 or 7.64 %".to_owned()));
        assert!(!check("F2h").0);
    }
}
