//! Suggests the known name that was probably meant.

/// Longer names are not compared.
const LENGTH_MAX: usize = 64;
/// Short names must begin with the same letter; names of one letter are not compared.
const SHORT: core::ops::RangeInclusive<usize> = 2..=3;
/// Maximum number of names that are compared.
const CANDIDATES_MAX: usize = 1000;

/// The known name with the smallest edit distance from `name`, if it is small enough for a typing error.
pub(crate) fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if name.len() > LENGTH_MAX {
        return None;
    }
    let name = name.to_lowercase();
    let changes = |candidate: &&str| distance(&name, candidate);
    // A short name with another first letter is another word: bfq is not cfq.
    let is_short = |candidate: &str| SHORT.contains(&candidate.len().min(name.len()));
    let likely = |candidate: &&str| !is_short(candidate) || candidate.get(..1) == name.get(..1);
    let best = known.into_iter().take(CANDIDATES_MAX).filter(likely).min_by_key(changes)?;
    let allowed = (best.chars().count().max(name.chars().count()) / 3).max(1);
    (changes(&best) <= allowed).then_some(best)
}

/// Edit distance in characters: insertions, deletions, replacements and swaps of neighbours.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![(0..=b.len()).collect::<Vec<usize>>()];
    for i in 0..a.len() {
        let mut row = vec![i + 1];
        for j in 0..b.len() {
            let replaced = rows[i][j] + usize::from(a[i] != b[j]);
            let mut best = replaced.min(rows[i][j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && a[i] == b[j - 1] && a[i - 1] == b[j] {
                best = best.min(rows[i - 1][j - 1] + 1);
            }
            row.push(best);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typing_error_is_recognised_and_another_word_is_not() {
        let known = ["weight", "limit", "reservation", "burst"];
        assert_eq!(nearest("wieght", known), Some("weight"));
        assert_eq!(nearest("Limit", known), Some("limit"));
        assert_eq!(nearest("reserve", known), None);
        assert_eq!(nearest("reservtion", known), Some("reservation"));
        assert_eq!(nearest("colour", known), None);
        assert_eq!(nearest(&"w".repeat(1000), known), None);
        assert_eq!(nearest("x", []), None);
        assert_eq!(nearest("bfq", ["cfq", "noop"]), None);
        assert_eq!(nearest("cfg", ["cfq", "noop"]), Some("cfq"));
    }
}
