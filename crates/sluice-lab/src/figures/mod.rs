//! The list of figures. A figure is one file here and one line in [`ALL`].

use crate::figure::{Figure, Paper};

mod ablations;
pub(crate) mod flubber;
pub(crate) mod mcfq;
pub(crate) mod mclock;
pub(crate) mod netback;
mod two_tier;

/// Every table and figure, in the order of the papers.
pub const ALL: &[&Figure] = &[
    &mclock::allocation::FIGURE,
    &mclock::interference::FIGURE,
    &mclock::limits::FIGURE,
    &mclock::reservations::FIGURE,
    &mclock::mixed::FIGURE,
    &mclock::latency::FIGURE,
    &mclock::idle_credit::FIGURE,
    &mclock::oltp::FIGURE,
    &mclock::distributed::FIGURE,
    &mclock::distributed::SKEWED,
    &mclock::distributed::REMOTE,
    &mclock::batching::FIGURE,
    &mclock::dilution::FIGURE,
    &flubber::objectives::FIGURE,
    &flubber::credits::FIGURE,
    &flubber::schedulers::FIGURE,
    &flubber::backup::FIGURE,
    &flubber::latency::FIGURE,
    &mcfq::aged::FIGURE,
    &mcfq::windows::FIGURE,
    &mcfq::workloads::FIGURE,
    &netback::rates::FIGURE,
    &netback::two_rates::FIGURE,
    &netback::unlimited::FIGURE,
    &netback::activity::FIGURE,
    &netback::disk::FIGURE,
    &netback::priorities::FIGURE,
    &netback::minimum::FIGURE,
    &two_tier::loss::FIGURE,
    &two_tier::pairs::FIGURE,
    &two_tier::credit::FIGURE,
    &ablations::FIGURE,
];

/// Figures that a word of the command line selects: a figure, a row, a paper, or all.
#[must_use]
pub fn find(word: &str) -> Vec<&'static Figure> {
    let meant = |figure: &Figure| {
        let is = |name: &str| name.eq_ignore_ascii_case(word);
        is("all")
            || is(figure.id)
            || is(figure.paper.name())
            || figure.rows.iter().any(|row| {
                let number = row.id.trim_end_matches(|c: char| c.is_ascii_lowercase());
                is(row.id) || is(number)
            })
    };
    ALL.iter().copied().filter(|figure| meant(figure)).collect()
}

/// All words that select figures: papers, figures and rows.
pub fn words() -> impl Iterator<Item = String> {
    let papers = Paper::ALL.iter().map(|paper| paper.name().to_owned());
    let figures = ALL.iter().map(|figure| figure.id.to_owned());
    let rows = ALL.iter().flat_map(|figure| figure.rows).map(|row| row.id.to_owned());
    papers.chain(figures).chain(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_row_of_the_acceptance_table_is_missing() {
        for (letter, last) in [("M", 13), ("F", 4), ("C", 3), ("N", 7), ("X", 4)] {
            let missing: Vec<_> = (1..=last).filter(|number| find(&format!("{letter}{number}")).is_empty()).collect();
            assert!(missing.is_empty(), "{letter}{missing:?}");
            assert!(find(&format!("{letter}{}", last + 1)).is_empty(), "the table is longer than {letter}{last}");
        }
    }

    #[test]
    fn ids_are_unique_and_words_find_their_figures() {
        let words: Vec<_> = words().collect();
        let mut unique = words.clone();
        unique.sort();
        unique.dedup();
        assert_eq!(words.len(), unique.len(), "{words:?}");
        assert_eq!(find("all").len(), ALL.len());
        assert_eq!(find("M1").iter().map(|figure| figure.id).collect::<Vec<_>>(), ["mclock-allocation"]);
        assert_eq!(find("mClock").len(), find("mclock").len(), "as the papers write their names");
        assert!(find("M").is_empty());
    }
}
