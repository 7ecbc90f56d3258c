//! Everything about one VM or volume, with the histogram of the latencies of the last minute.

use ratatui::style::Style;

use super::app::App;
use super::model::Object;
use super::screen::Canvas;
use super::theme::Theme;
use crate::show::{Served, object};
use sluice_api::amount::time;

/// Draws the details of the selected VM or volume in this number of lines.
pub(super) fn draw(app: &mut App, canvas: &mut Canvas<'_>, theme: &Theme, lines: u16) {
    let name = app.selected.as_ref().map(super::model::Name::target).unwrap_or_default();
    let all = match &app.details {
        None => vec![(format!("{name}: no figures yet, or it is not served any more"), Style::new())],
        Some(object) => described(&name, object, canvas.width(), theme),
    };
    app.offset = app.offset.min(all.len().saturating_sub(usize::from(lines)));
    app.page_rows = usize::from(lines).max(1);
    for (line, style) in all.iter().skip(app.offset).take(usize::from(lines)) {
        canvas.line(line, *style);
    }
}

fn described(name: &str, object: &Object, width: u16, theme: &Theme) -> Vec<(String, Style)> {
    let served = Served { name: name.to_owned(), ..object.served() };
    let text = object::vm(&served);
    let styled = |line: &str| {
        let style = if line.starts_with("Promises: BROKEN") { theme.broken() } else { Style::new() };
        (line.trim_end().to_owned(), style)
    };
    // The latencies come before what does not fit on a small screen.
    let (promises, others) = text.split_once("\nPolicy\n").unwrap_or((&text, ""));
    let mut lines: Vec<(String, Style)> = promises.trim_end().lines().map(styled).collect();
    lines[0].1 = theme.title();
    let histograms = object.histograms();
    let over = histograms.seconds;
    let mut add = |buckets: &[(f64, u64)], title: &str, target: Option<f64>| {
        let rows = histogram(buckets, target, width, theme).into_iter().map(|line| (line, Style::new()));
        let title = [(String::new(), Style::new()), (format!("{title}, last {over:.0} s"), theme.title())];
        lines.extend(title.into_iter().chain(rows));
    };
    add(&histograms.latency, "Latency, from arrival to completion", served.policy.latency_p99_us);
    add(&histograms.queue_time, "At the gate, from arrival to dispatch", None);
    add(&histograms.service_time, "At the device, from dispatch to completion", None);
    lines.extend([(String::new(), Style::new()), ("Policy".to_owned(), theme.title())]);
    lines.extend(others.lines().map(styled));
    lines
}

/// A histogram: one line for each power of two, from the shortest to the longest time. The lines of the median, of the 99th
/// percentile and of the target (in microseconds) have these names at their end.
pub(super) fn histogram(buckets: &[(f64, u64)], target: Option<f64>, width: u16, theme: &Theme) -> Vec<String> {
    let total: u64 = buckets.iter().map(|(_, count)| count).sum();
    if total == 0 {
        return vec!["no requests".to_owned()];
    }
    // Powers of two of a nanosecond, as the buckets are.
    let power = |us: f64| (us * 1000.0).log2().ceil() as i32;
    let (first, last) = (power(buckets[0].0), power(buckets[buckets.len() - 1].0));
    let count_of = |line: i32| buckets.iter().filter(|(us, _)| power(*us) == line).map(|(_, count)| count).sum::<u64>();
    let counts: Vec<(i32, u64)> = (first..=last).map(|line| (line, count_of(line))).collect();
    let most = counts.iter().map(|(_, count)| *count).max().unwrap_or(1);
    let percentile = |part: f64| {
        let wanted = (total as f64 * part).ceil() as u64;
        let mut seen = 0;
        let found = counts.iter().find(|(_, count)| {
            seen += count;
            seen >= wanted
        });
        found.map_or(last, |(line, _)| *line)
    };
    let (median, p99) = (percentile(0.5), percentile(0.99));
    let room = usize::from(width.saturating_sub(46)).clamp(8, 60);
    let line = |&(line, count): &(i32, u64)| {
        let bar = (count as f64 / most as f64 * room as f64).ceil() as usize;
        let bar: String = std::iter::repeat_n(theme.full, bar).collect();
        let upper = time(f64::from(line).exp2() / 1000.0);
        let is_target = target.is_some_and(|target| power(target).clamp(first, last) == line);
        let marks = [(median == line, "p50"), (p99 == line, "p99"), (is_target, "target")];
        let marks: Vec<&str> = marks.into_iter().filter(|(is, _)| *is).map(|(_, name)| name).collect();
        let part = count as f64 / total as f64 * 100.0;
        format!("< {upper:>7} |{bar:room$} {count:>9} {part:>5.1} % {}", marks.join(" ")).trim_end().to_owned()
    };
    counts.iter().map(line).collect()
}
