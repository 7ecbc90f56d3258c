//! Charts of the past, each with its numbers as a table.

use sluice_api::amount::{bits, mib_per_second, rate, time};
use sluice_api::list::{Point, Wait};
use sluice_api::top::{Figures, Vm};
use sluice_report::{Area, Chart, Column, Heat, Level, Line};

use crate::text::clock;

/// Length of the chart of seconds.
pub(crate) const SECONDS: u64 = 900;
/// Length of the charts of minutes, in seconds.
pub(crate) const HOUR: u64 = 3600;
/// Upper edge of the first class of times in a history, in microseconds. Each further one is twice that of the one before it.
const FIRST_EDGE_US: f64 = 32.768;
/// Number of edges: the last class has no end.
const EDGES: i32 = 15;

/// A chart and its numbers.
#[derive(Debug, Clone)]
pub(crate) struct ChartView {
    pub(crate) title: String,
    /// What is to be known to read it.
    pub(crate) note: String,
    pub(crate) svg: String,
    pub(crate) curve: Option<Curve>,
    pub(crate) columns: Vec<String>,
    pub(crate) rows: Vec<Vec<String>>,
}

/// A line to which the stream adds a point each second.
#[derive(Debug, Clone)]
pub(crate) struct Curve {
    pub(crate) name: String,
    /// Pixels of the left, right, top and bottom edge.
    pub(crate) edges: String,
    /// Length in seconds.
    pub(crate) seconds: u64,
    /// Value at the top.
    pub(crate) most: f64,
}

/// The unit of a chart of rates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RateUnit {
    Iops,
    Mib,
    Mbit,
}

impl RateUnit {
    /// The unit of what was promised to a VM; the one in requests if that is in both or in none.
    pub(crate) fn of(figures: &Figures) -> RateUnit {
        let is_link = figures.rates.is_some_and(|rates| rates.bits_per_second.is_some());
        let in_requests = figures.limit.iops.or(figures.reservation.iops).is_some();
        let in_bytes = figures.limit.bytes_per_second.or(figures.reservation.bytes_per_second).is_some();
        match (is_link, in_requests, in_bytes) {
            (true, ..) => RateUnit::Mbit,
            (_, false, true) => RateUnit::Mib,
            _ => RateUnit::Iops,
        }
    }

    fn label(self) -> &'static str {
        match self {
            RateUnit::Iops => "normalised requests/s",
            RateUnit::Mib => "MiB/s",
            RateUnit::Mbit => "Mbit/s",
        }
    }

    /// A value of a chart, of amounts per second.
    fn scale(self, iops: f64, bytes: f64, bits: Option<f64>) -> f64 {
        match self {
            RateUnit::Iops => iops,
            RateUnit::Mib => bytes / 1_048_576.0,
            RateUnit::Mbit => bits.unwrap_or(8.0 * bytes) / 1e6,
        }
    }

    fn show(self, value: f64) -> String {
        match self {
            RateUnit::Iops => rate(value),
            RateUnit::Mib => mib_per_second(value * 1_048_576.0),
            RateUnit::Mbit => bits(value * 1e6),
        }
    }

    fn level(self, amount: sluice_api::top::Amount) -> Option<f64> {
        match self {
            RateUnit::Iops => amount.iops,
            _ => amount.bytes_per_second.map(|bytes| self.scale(0.0, bytes, None)),
        }
    }

    fn of_point(self, point: &Point) -> f64 {
        self.scale(point.normalised_iops, point.bytes_per_second, point.bits_per_second)
    }
}

/// The point that a curve of a VM gets, with the name of the curve.
pub(crate) fn point(vm: &Vm) -> (String, f64) {
    let rates = vm.now.rates.unwrap_or_default();
    let value = RateUnit::of(&vm.now).scale(rates.iops, rates.bytes_per_second, rates.bits_per_second);
    (curve_name(vm), value)
}

fn curve_name(vm: &Vm) -> String {
    format!("v/{}/{}/curve", vm.vm, vm.device)
}

/// Pixels of a chart of seconds are longer than a second: changes that are nearer have one mark.
const MARK_SECONDS: u64 = 15;

/// Returns the moments of changes that get a mark of their own.
pub(crate) fn marks(times: impl Iterator<Item = u64>, now: u64) -> Vec<u64> {
    let mut marks: Vec<u64> = Vec::new();
    for time in times.filter(|time| time + SECONDS > now) {
        if marks.last().is_none_or(|last| last + MARK_SECONDS <= time) {
            marks.push(time);
        }
    }
    marks
}

/// The rate of a VM in its band over the last 15 minutes. `marks`: when something of it was changed.
pub(crate) fn rates(vm: &Vm, seconds: &[Point], now: u64, marks: &[u64]) -> ChartView {
    let unit = RateUnit::of(&vm.now);
    let begin = now.saturating_sub(SECONDS);
    let mut values = vec![0.0; SECONDS as usize];
    for point in seconds.iter().filter(|point| (begin..now).contains(&point.time)) {
        values[(point.time - begin) as usize] = unit.of_point(point);
    }
    let minute = |at: usize| (at as f64 + 1.0 - SECONDS as f64) / 60.0;
    let points = values.iter().enumerate().map(|(at, value)| (minute(at), *value)).collect();
    let title = format!("Rate on {} in its band", vm.device);
    let mut chart = Chart::lines(&title, "minutes before now", unit.label(), vec![Line::new("rate", points)]);
    let (reservation, limit) = (unit.level(vm.now.reservation), unit.level(vm.now.limit));
    chart = match (reservation, limit) {
        (Some(low), Some(high)) if high > low => chart.zone(low, high),
        (Some(low), None) => chart.zone(low, f64::MAX),
        _ => chart,
    };
    chart = reservation.into_iter().fold(chart, |chart, at| chart.level("reservation", at));
    chart = limit.into_iter().fold(chart, |chart, at| chart.level("limit", at));
    let at = |time: &u64| (*time as f64 - now as f64) / 60.0;
    chart = marks.iter().fold(chart, |chart, time| chart.mark(at(time)));
    let (svg, Area { edges: (left, right, top, bottom), y_most, .. }) = chart.inline_svg_in_area();
    let edges = format!("{left},{right},{top},{bottom}");
    let curve = Some(Curve { name: curve_name(vm), edges, seconds: SECONDS, most: y_most });
    let rows = values.chunks(60).enumerate().map(|(index, minute)| {
        let (least, most) = minute.iter().fold((f64::MAX, 0.0_f64), |(least, most), v| (least.min(*v), most.max(*v)));
        let mean = minute.iter().sum::<f64>() / minute.len() as f64;
        vec![clock(begin + 60 * index as u64), unit.show(mean), unit.show(least), unit.show(most)]
    });
    let columns = ["Minute from".to_owned(), format!("Mean, {}", unit.label()), "Least".to_owned(), "Most".to_owned()];
    ChartView { title, note: note_of(marks), svg, curve, columns: columns.to_vec(), rows: rows.collect() }
}

/// What the numbers of marks mean.
fn note_of(marks: &[u64]) -> String {
    let named: Vec<String> = (1..).zip(marks).map(|(number, time)| format!("{number} at {}", clock(*time))).collect();
    if named.is_empty() { String::new() } else { format!("changes {}", named.join(", ")) }
}

/// The times of requests, how many of each class in each minute, with percentiles and the target.
pub(crate) fn latency(device: &str, minutes: &[Point], now: u64, target_us: Option<f64>) -> Option<ChartView> {
    let minutes: Vec<&Point> =
        minutes.iter().filter(|point| !point.latency_counts.is_empty() && point.time + HOUR >= now).collect();
    if minutes.is_empty() {
        return None;
    }
    let at = |point: &Point| (point.time as f64 - now as f64) / 60.0;
    let edges: Vec<f64> = (0..EDGES).map(|class| FIRST_EDGE_US * 2.0_f64.powi(class)).collect();
    let line = |name: &str, of: fn(&Point) -> f64| {
        Line::new(name, minutes.iter().map(|point| (at(point) + 0.5, of(point))).filter(|(_, us)| *us > 0.0).collect())
    };
    let title = format!("Latency on {device}");
    let heat = Heat {
        title: title.clone(),
        x: "minutes before now".to_owned(),
        y: "from arrival to completion".to_owned(),
        labels: edges.iter().map(|edge| time(*edge)).collect(),
        edges,
        columns: minutes.iter().map(|point| Column { x: at(point), counts: point.latency_counts.clone() }).collect(),
        width: 1.0,
        range: (-(HOUR as f64) / 60.0, 0.0),
        lines: vec![line("p50", |point| point.p50_us), line("p99", |point| point.p99_us)],
        levels: target_us.iter().map(|us| Level { name: "target p99".to_owned(), y: *us }).collect(),
    };
    let row = |point: &&Point| {
        let count: u64 = point.latency_counts.iter().sum();
        vec![clock(point.time), count.to_string(), time(point.p50_us), time(point.p99_us)]
    };
    let target = target_us.map_or(String::new(), |us| format!(", the target of p99 is {}", time(us)));
    Some(ChartView {
        svg: heat.inline_svg(),
        title,
        note: format!("the darker, the more requests{target}"),
        curve: None,
        columns: ["Minute from", "Requests", "p50", "p99"].map(str::to_owned).to_vec(),
        rows: minutes.iter().map(row).collect(),
    })
}

/// The words for a reason of waiting.
pub(crate) fn waits(wait: Wait) -> &'static str {
    match wait {
        Wait::OwnLimit => "own limit",
        Wait::Share => "share of others",
        Wait::Device => "the device",
        Wait::Batch => "a batch of another VM",
        Wait::Anticipation => "anticipation",
        Wait::Nothing => "nothing",
    }
}

/// The share of each VM of a device over the last hour. `vms`: minutes of each, the largest VM first.
pub(crate) fn shares(
    device: &str,
    vms: &[(String, Vec<Point>)],
    now: u64,
    levels: &[(&str, Option<f64>)],
) -> Option<ChartView> {
    let is_link = vms.iter().flat_map(|(_, points)| points).any(|point| point.bits_per_second.is_some());
    let unit = if is_link { RateUnit::Mbit } else { RateUnit::Iops };
    // The minute that has not ended is not in a history.
    let begin = (now / 60 * 60).saturating_sub(HOUR);
    let count = (HOUR / 60) as usize;
    let line = |(name, points): &(String, Vec<Point>)| {
        let mut values = vec![0.0; count];
        for point in points.iter().filter(|point| point.time >= begin) {
            let at = ((point.time - begin) / 60) as usize;
            values.iter_mut().skip(at).take(1).for_each(|value| *value = unit.of_point(point));
        }
        (name.clone(), values)
    };
    let lines: Vec<(String, Vec<f64>)> =
        vms.iter().map(line).filter(|(_, values)| values.iter().any(|v| *v > 0.0)).collect();
    if lines.is_empty() {
        return None;
    }
    let minute = |at: usize| at as f64 - count as f64;
    let points = |values: &[f64]| values.iter().enumerate().map(|(at, value)| (minute(at), *value)).collect();
    let title = format!("Load of {device} by VM");
    let series = lines.iter().map(|(name, values)| Line::new(crate::text::visible(name), points(values))).collect();
    let chart = Chart::stacked(&title, "minutes before now", unit.label(), series);
    let chart = levels
        .iter()
        .filter_map(|(name, at)| Some((*name, (*at)?)))
        .fold(chart, |chart, (name, at)| chart.level(name, at));
    let rows = (0..count).map(|at| {
        let cells = lines.iter().map(|(_, values)| unit.show(values[at]));
        [clock(begin + 60 * at as u64)].into_iter().chain(cells).collect()
    });
    let columns = ["Minute from".to_owned()].into_iter().chain(lines.iter().map(|(name, _)| name.clone()));
    Some(ChartView {
        svg: chart.inline_svg(),
        title,
        note: format!("in {}", unit.label()),
        curve: None,
        columns: columns.collect(),
        rows: rows.collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_api::top::{Amount, Rates};

    fn vm() -> Vm {
        let reservation = Amount { iops: Some(100.0), bytes_per_second: None };
        let now = Figures { reservation, rates: Some(Rates { iops: 7.0, ..Rates::default() }), ..Figures::default() };
        Vm { vm: "<db>".to_owned(), device: "ssd".to_owned(), now, ..Vm::default() }
    }

    #[test]
    fn a_chart_of_rates_has_its_numbers_by_the_minute_and_gets_points() {
        let seconds = [Point { time: 1_000_000 - 1, normalised_iops: 120.0, ..Point::default() }];
        let view = rates(&vm(), &seconds, 1_000_000, &[999_400]);
        assert_eq!(
            (view.rows.len(), view.rows[14].as_slice()),
            (15, &["13:45:40", "2.00", "0", "120"].map(str::to_owned)[..])
        );
        assert!(
            view.svg.contains("reservation") && view.svg.contains("\n1\n"),
            "the band and the change: {}",
            view.svg
        );
        assert_eq!(view.curve.unwrap().name, point(&vm()).0);
        assert_eq!((point(&vm()).1, view.note.as_str()), (7.0, "changes 1 at 13:36:40"));
    }

    #[test]
    fn names_of_vms_are_escaped_in_charts() {
        let points = vec![Point { time: 999_900, normalised_iops: 5.0, ..Point::default() }];
        let view = shares("ssd", &[("<b>\u{202e}".to_owned(), points)], 1_000_000, &[("stated", Some(50.0))]).unwrap();
        assert!(view.svg.contains("&lt;b&gt;\\u{202e}") && !view.svg.contains("<b>"), "{}", view.svg);
        assert!(shares("ssd", &[], 1_000_000, &[]).is_none());
    }

    #[test]
    fn a_heat_map_has_a_column_for_each_minute_with_requests() {
        let counts = vec![0, 5, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let point = Point { time: 999_900, latency_counts: counts, p50_us: 50.0, p99_us: 120.0, ..Point::default() };
        let view = latency("ssd", &[point, Point::default()], 1_000_000, Some(500.0)).unwrap();
        assert_eq!(view.rows, [["13:45:00", "6", "50 us", "120 us"].map(str::to_owned).to_vec()]);
        assert!(view.svg.contains("target p99"), "{}", view.svg);
        assert!(latency("ssd", &[], 1_000_000, None).is_none());
    }
}
