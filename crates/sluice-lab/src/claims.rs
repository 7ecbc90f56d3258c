//! What is known of the rows apart from their results: `claims.toml`, with the axes of what the papers leave open.
//!
//! Results never enter this file, and a verdict is never written in it: `verdict.rs` computes verdicts from results.

use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

use crate::proof::Proof;

/// Side of the score that a row counts for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Board {
    /// A claim of the paper.
    #[default]
    Paper,
    /// A variant that the paper does not describe.
    Ours,
}

/// A fact about a testbed that its paper does not state.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Axis {
    pub name: String,
    /// Figures that depend on it.
    pub figures: Vec<String>,
    /// All values that the testbed may have had.
    pub values: Vec<f64>,
    /// Value of the figure as it is shown.
    pub nominal: f64,
    pub unit: String,
    /// Why these values.
    pub reason: String,
    /// Source outside the rows' results for other values than the nominal one; empty if there is none.
    pub evidence: String,
}

/// A row apart from its results.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    pub id: String,
    #[serde(default)]
    pub board: Board,
    /// Results of the row that a fit used.
    #[serde(default)]
    pub inputs: Vec<String>,
    /// Numbers of the row that are not printed in the paper.
    #[serde(default)]
    pub derived: Vec<String>,
    /// Fact without which the row cannot be decided; empty if none is known.
    #[serde(default)]
    pub missing: String,
    /// A change after the row's result was known, to an axis, the device, the class, the criterion or the board; empty if there was none.
    #[serde(default)]
    pub changed: String,
    /// Contradictions between the row's sentence and the paper's own table, each of which refutes it.
    #[serde(default, rename = "proof")]
    pub proofs: Vec<Proof>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    axis: Vec<Axis>,
    row: Vec<Claim>,
}

fn file() -> &'static File {
    static FILE: OnceLock<File> = OnceLock::new();
    FILE.get_or_init(|| toml::from_str(include_str!("../claims.toml")).expect("a test reads the file"))
}

/// All axes.
#[must_use]
pub fn axes() -> &'static [Axis] {
    &file().axis
}

/// What is known of a row.
#[must_use]
pub fn of(id: &str) -> Claim {
    let known = file().row.iter().find(|row| row.id == id);
    known.cloned().unwrap_or_else(|| Claim { id: id.to_owned(), ..Claim::default() })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::figures;

    #[test]
    fn claims_name_rows_and_figures_that_exist() {
        let rows: BTreeSet<_> = figures::ALL.iter().flat_map(|figure| figure.rows).map(|row| row.id).collect();
        let mut seen = BTreeSet::new();
        for row in &file().row {
            assert!(rows.contains(row.id.as_str()) && seen.insert(&row.id), "{}", row.id);
        }
        for axis in axes() {
            assert!(axis.values.contains(&axis.nominal) && axis.values.len() > 1, "{}", axis.name);
            assert!(!axis.reason.is_empty() && !axis.unit.is_empty(), "{}", axis.name);
            for figure in &axis.figures {
                assert!(figures::ALL.iter().any(|known| known.id == figure), "{figure}");
            }
        }
    }
}
