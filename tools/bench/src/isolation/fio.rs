//! Results of fio, and what is computed from them.

use serde_json::Value;

/// Length of the window in which a rate is measured, and its steps.
const WINDOW_MS: u64 = 50;
const STEP_MS: u64 = 10;
/// Part of the steady rate from which on an app has its share.
const REACHED: f64 = 0.8;

/// Results of an app.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Outcome {
    pub(super) mbps: f64,
    pub(super) iops: f64,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
    /// Times of completions in ms after it woke up, if they are recorded.
    pub(super) completions: Vec<u64>,
}

/// Parses fio's JSON of one job that reads or writes.
pub(super) fn parse(text: &str) -> Option<Outcome> {
    // Warnings may stand before it.
    let json: Value = serde_json::from_str(text.get(text.find('{')?..)?).ok()?;
    let job = json.get("jobs")?.get(0)?;
    let rate = |way: &Value| way.get("bw_bytes").and_then(Value::as_f64);
    let way =
        ["read", "write"].iter().filter_map(|way| job.get(way)).find(|way| rate(way).is_some_and(|rate| rate > 0.0))?;
    let percentile = |name: &str| Some(way.get("lat_ns")?.get("percentile")?.get(name)?.as_f64()? / 1e3);
    Some(Outcome {
        mbps: rate(way)? / 1e6,
        iops: way.get("iops")?.as_f64()?,
        p50_us: percentile("50.000000")?,
        p99_us: percentile("99.000000")?,
        completions: Vec::new(),
    })
}

/// Parses a log of fio with a line for each completion, which begins with its time in ms.
pub(super) fn parse_log(text: &str) -> Vec<u64> {
    text.lines().filter_map(|line| line.split(',').next()?.trim().parse().ok()).collect()
}

/// Returns Jain's index of what apps get for their weights: 1 if all get the same, 1 / n if one gets everything.
pub(super) fn jain(rates: &[f64], weights: &[f64]) -> f64 {
    let parts: Vec<f64> = rates.iter().zip(weights).map(|(rate, weight)| rate / weight).collect();
    let squares: f64 = parts.iter().map(|part| part * part).sum();
    parts.iter().sum::<f64>().powi(2) / (parts.len() as f64 * squares)
}

/// Returns the time in ms from which on an app that woke up at 0 has its share: the start of the first window with 80 %
/// of the rate in the second half of `time_ms`. NaN if there is none.
pub(super) fn reached_ms(completions: &[u64], time_ms: u64) -> f64 {
    let count = |from: u64, to: u64| completions.iter().filter(|at| (from..to).contains(at)).count() as f64;
    let steady = count(time_ms / 2, time_ms) / (time_ms - time_ms / 2) as f64;
    let is_reached = |from: &u64| count(*from, from + WINDOW_MS) >= REACHED * steady * WINDOW_MS as f64;
    let mut starts = (0..time_ms.saturating_sub(WINDOW_MS)).step_by(STEP_MS as usize);
    if steady > 0.0 { starts.find(is_reached).map_or(f64::NAN, |start| start as f64) } else { f64::NAN }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_of_fio_is_parsed_for_readers_and_writers() {
        let idle = r#"{"bw_bytes": 0, "iops": 0.0}"#;
        let busy =
            r#"{"bw_bytes": 4000000, "iops": 61.5, "lat_ns": {"percentile": {"50.000000": 2000, "99.000000": 9500}}}"#;
        let expected = Outcome { mbps: 4.0, iops: 61.5, p50_us: 2.0, p99_us: 9.5, completions: Vec::new() };
        for (read, write) in [(busy, idle), (idle, busy)] {
            let text = format!("fio: a warning\n{{\"jobs\": [{{\"read\": {read}, \"write\": {write}}}]}}");
            assert_eq!(parse(&text), Some(expected.clone()));
        }
        assert_eq!(parse("fio: error"), None);
        assert_eq!(parse_log("1, 41909, 0, 65536, 0\n12, 41942, 0, 65536, 0\n"), [1, 12]);
    }

    #[test]
    fn jains_index_is_one_if_all_get_their_part_and_falls_to_one_of_n() {
        let is = |rates: &[f64], weights: &[f64], index: f64| assert!((jain(rates, weights) - index).abs() < 1e-9);
        is(&[5.0, 5.0, 5.0], &[1.0; 3], 1.0);
        is(&[1.0, 2.0, 3.0], &[100.0, 200.0, 300.0], 1.0);
        is(&[8.0, 0.0, 0.0, 0.0], &[1.0; 4], 0.25);
        is(&[3.0, 1.0], &[1.0; 2], 0.8);
    }

    #[test]
    fn a_share_is_reached_where_the_rate_first_has_four_fifths_of_the_later_one() {
        let every = |from: u64, to: u64, step: usize| (from..to).step_by(step);
        let late: Vec<u64> = every(0, 300, 10).chain(every(300, 1000, 1)).collect();
        // The window from 280 ms on has 2 slow completions and 30 fast ones, the one from 290 ms on 1 and 40.
        assert_eq!(reached_ms(&late, 1000), 290.0);
        assert_eq!(reached_ms(&every(0, 1000, 2).collect::<Vec<_>>(), 1000), 0.0);
        assert!(reached_ms(&[], 1000).is_nan());
    }
}
