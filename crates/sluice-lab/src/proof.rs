//! Proofs that a sentence of a paper is wrong, from the paper's own numbers.
//!
//! A row is `refuted` only if it has a proof and no run of ours has it either. A contradiction between two numbers of a paper is such
//! a proof under every reading of its set-up; a law with a condition of its own is not. Example: Table II of Flubber prints 1021.7 IOPS and
//! 20.12 ms for 16 threads in a closed loop. By Little's law that is 20.6 outstanding requests, but only if the delay is a
//! mean over requests. A mean over seconds gives slow seconds more weight and may be as long with 16: so the table of
//! Little's law stands beside the row, and nothing is refuted by it.

use serde::Deserialize;

/// A relative change that the text of a paper states, and the numbers of its table that it is a change of.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Proof {
    /// The change that the text states, in percent.
    pub says: f64,
    /// Whether the text says "less than".
    #[serde(default)]
    pub less_than: bool,
    /// The printed value that the change starts from, and the one that it leads to.
    pub from: f64,
    pub to: f64,
    /// Where they stand.
    pub table: String,
}

impl Proof {
    /// The change by the table, in percent.
    #[must_use]
    pub fn change(&self) -> f64 {
        100.0 * (self.to / self.from - 1.0).abs()
    }

    /// Whether the sentence contradicts the table however it was rounded: a whole number of percent may be rounded up or down.
    #[must_use]
    pub fn refutes(&self) -> bool {
        if self.less_than { self.change() > self.says } else { (self.change() - self.says).abs() >= 1.0 }
    }

    /// The calculation in words.
    #[must_use]
    pub fn text(&self) -> String {
        let Proof { says, from, to, table, .. } = self;
        let less = if self.less_than { "less than " } else { "" };
        format!("{table}: from {from} to {to} is {:.2} %; the text says {less}{says} %", self.change())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claims;
    use crate::figures;

    fn proof(says: f64, less_than: bool, from: f64, to: f64) -> Proof {
        Proof { says, less_than, from, to, table: "Table T".into() }
    }

    #[test]
    fn a_change_may_be_rounded_up_or_down() {
        assert!(!proof(26.0, false, 105.838, 77.496).refutes(), "26.78 %, rounded down");
        assert!(!proof(27.0, false, 105.838, 77.496).refutes());
        assert!(proof(25.0, false, 105.838, 77.496).refutes());
        assert!(proof(8.0, true, 100.0, 108.01).refutes() && !proof(8.0, true, 100.0, 107.99).refutes());
        let text = proof(16.0, false, 53.45, 46.34).text();
        assert_eq!(text, "Table T: from 53.45 to 46.34 is 13.30 %; the text says 16 %");
    }

    #[test]
    fn each_proof_refutes_and_stands_at_a_row_that_exists() {
        let rows = figures::ALL.iter().flat_map(|figure| figure.rows);
        let claims: Vec<_> = rows.map(|row| claims::of(row.id)).filter(|claim| !claim.proofs.is_empty()).collect();
        assert!(claims.len() >= 2);
        for claim in claims {
            assert!(claim.proofs.iter().all(Proof::refutes), "{}: {:?}", claim.id, claim.proofs);
        }
    }
}
