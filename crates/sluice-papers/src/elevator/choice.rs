//! Choice of the request that is nearer to the head.

use crate::elevator::SortKey;

/// Measure of distance: forward as it is; backward multiplied by a penalty, and only up to a maximum.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Nearness {
    /// Maximum backward seek in bytes; requests further back count as wrapped around.
    pub(crate) back_max: u64,
    /// Factor for backward distances.
    pub(crate) back_penalty: u64,
}

impl Nearness {
    /// `None` if the request counts as wrapped around.
    // rule: anticipatory.back-max, anticipatory.back-penalty
    fn distance(self, head: u64, key: SortKey) -> Option<u64> {
        match key.offset.checked_sub(head) {
            Some(forward) => Some(forward),
            None => {
                let back = head - key.offset;
                (back <= self.back_max).then(|| back.saturating_mul(self.back_penalty))
            }
        }
    }

    /// Whether `a` is dispatched before `b`, with the head at `head`.
    // rule: anticipatory.choose-distance, anticipatory.choose-wrapped, anticipatory.choose-tie, cfq.choose
    pub(crate) fn prefers(self, head: u64, a: SortKey, b: SortKey) -> bool {
        let elder = a.id < b.id;
        match (self.distance(head, a), self.distance(head, b)) {
            (Some(_), None) => true,
            (None, Some(_)) => false,
            (None, None) => a < b,
            (Some(near), Some(far)) if near != far => near < far,
            _ => a.offset > b.offset || a.offset == b.offset && elder,
        }
    }

    /// The nearer request, if there is one.
    pub(crate) fn nearer(self, head: u64, a: Option<SortKey>, b: Option<SortKey>) -> Option<SortKey> {
        match (a, b) {
            (Some(a), Some(b)) => Some(if self.prefers(head, a, b) { a } else { b }),
            (a, b) => a.or(b),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elevator::drive::request;
    use sluice_sched::request::Kind;

    // rule: anticipatory.back-max, anticipatory.back-penalty
    // rule: anticipatory.choose-distance, anticipatory.choose-wrapped, anticipatory.choose-tie, cfq.choose
    #[test]
    fn the_nearer_request_wins_and_backward_distance_counts_double() {
        // The head is at page 100, the maximum backward seek is 50 pages.
        let table = [
            ([110, 120], 110),
            ([95, 109], 109),
            ([95, 111], 95),
            ([95, 110], 110),
            ([49, 5000], 5000),
            ([50, 5000], 50),
            ([10, 20], 10),
            ([100, 99], 100),
        ];
        let nearness = Nearness { back_max: 50 * 4096, back_penalty: 2 };
        for (pages, expected) in table {
            let [a, b] = pages.map(|page| SortKey::of(&request(page, 0, Kind::Read, page)));
            let chosen = if nearness.prefers(100 * 4096, a, b) { a } else { b };
            assert_eq!(chosen.offset, expected * 4096, "{pages:?}");
            assert_ne!(nearness.prefers(100 * 4096, a, b), nearness.prefers(100 * 4096, b, a), "{pages:?}");
        }
        let [older, younger] = [1, 2].map(|id| SortKey::of(&request(id, 0, Kind::Read, 120)));
        assert!(nearness.prefers(0, older, younger) && !nearness.prefers(0, younger, older));
    }
}
