//! The log of a delay device: the time and the owner of each dispatched request. Guarantees are checked here, without
//! the effects of sockets and a client's clock.

use std::path::Path;

const SECOND_NS: u64 = 1_000_000_000;

/// Dispatch times of the requests of each owner, in nanoseconds.
#[derive(Debug, Default)]
pub(super) struct Slots(Vec<Vec<u64>>);

impl Slots {
    /// Reads the log of a daemon that has exited.
    pub(super) fn read(path: &Path) -> Result<Slots, String> {
        let text = std::fs::read_to_string(path).map_err(|error| format!("Cannot read {}: {error}", path.display()))?;
        Ok(Slots::parse(&text))
    }

    fn parse(text: &str) -> Slots {
        let mut slots = Slots::default();
        let mut lines = text.lines();
        let names: Vec<&str> = lines.next().unwrap_or_default().split(',').collect();
        let column = |name| names.iter().position(|known| *known == name).unwrap_or(usize::MAX);
        let (dispatch, owner) = (column("dispatch_ns"), column("owner"));
        for line in lines {
            let fields: Vec<&str> = line.split(',').collect();
            let number = |index: usize| fields.get(index).and_then(|field| field.parse::<u64>().ok());
            let (Some(at), Some(owner)) = (number(dispatch), number(owner)) else { continue };
            let owner = owner as usize;
            if owner >= slots.0.len() {
                slots.0.resize(owner + 1, Vec::new());
            }
            slots.0[owner].push(at);
        }
        slots
    }

    /// Returns the dispatches of `owner` without the first second, in which queues fill, and the last fifth of a
    /// second, in which they empty.
    pub(super) fn steady(&self, owner: usize) -> &[u64] {
        let Some(all) = self.0.get(owner) else { return &[] };
        let (Some(first), Some(last)) = (all.first(), all.last()) else { return &[] };
        let begin = all.partition_point(|at| *at < first + SECOND_NS);
        let end = all.partition_point(|at| *at < last.saturating_sub(SECOND_NS / 5));
        &all[begin.min(end)..end]
    }
}

/// Returns the smallest and largest number of dispatches in a window of one second.
pub(super) fn second(dispatches: &[u64]) -> Option<(u64, u64)> {
    let last = *dispatches.last()?;
    let mut counts = Vec::new();
    for (index, begin) in dispatches.iter().enumerate() {
        // A window that begins just after a dispatch has the fewest dispatches; one that begins with it has the most.
        if begin + SECOND_NS > last {
            break;
        }
        let inside = |end: u64| dispatches.partition_point(|at| *at < end) - index;
        counts.push((inside(begin + SECOND_NS + 1) as u64 - 1, inside(begin + SECOND_NS) as u64));
    }
    let fewest = counts.iter().map(|(fewest, _)| *fewest).min()?;
    Some((fewest, counts.iter().map(|(_, most)| *most).max()?))
}

/// Returns the maximum, over all windows, of the number of requests minus `rate` times the length of the window.
pub(super) fn excess(dispatches: &[u64], rate: f64) -> f64 {
    // For dispatch j, the worst window begins at the dispatch that is furthest ahead of its nominal time.
    let mut lead = f64::MAX;
    let mut worst = 0f64;
    for (index, at) in dispatches.iter().enumerate() {
        let due = index as f64 - (at - dispatches[0]) as f64 * rate / SECOND_NS as f64;
        lead = lead.min(due);
        worst = worst.max(due - lead + 1.0);
    }
    worst
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_counted_at_dispatch() {
        // 100 per second, but ten at the same instant after two seconds.
        let mut dispatches: Vec<u64> = (0..400).map(|index| index * SECOND_NS / 100).collect();
        assert_eq!(second(&dispatches), Some((100, 100)));
        assert!((excess(&dispatches, 100.0) - 1.0).abs() < 1e-6);
        dispatches.splice(200..200, [2 * SECOND_NS; 9]);
        assert_eq!(second(&dispatches), Some((100, 109)));
        assert!((excess(&dispatches, 100.0) - 10.0).abs() < 1e-6);
        assert_eq!(second(&dispatches[..50]), None);
    }

    #[test]
    fn a_log_is_read_by_column_name() {
        let slots = Slots::parse("dispatch_ns,start_ns,owner\n5,6,1\n7,8,1\nbroken\n9,9,0\n");
        assert_eq!(slots.0, [vec![9], vec![5, 7]]);
        assert!(slots.steady(1).is_empty() && slots.steady(7).is_empty());
    }
}
