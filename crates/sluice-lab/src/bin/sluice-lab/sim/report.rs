//! `report.html`, generated from the written JSON, so that it can be generated again.

use serde_json::Value;
use sluice_report::{Chart, Line, Page, Table};

/// Returns the report of one run, from its `results.json`.
pub(crate) fn of_run(results: &Value) -> String {
    let result = &results["result"];
    let mut page = Page::new("A simulated run");
    page.paragraph(&format!(
        "sluice {}, seed {}; {} s of virtual time, of which {} s warm-up are not measured.",
        text(&results["version"]),
        results["seed"],
        result["duration_s"],
        result["warm_up_s"],
    ));
    page.table(&vms(result)).table(&checks(result)).table(&devices(result));
    page.heading(2, "series", "Over time");
    let throughput = Chart::lines("Throughput", "time [s]", "IOPS", over_time(result, "iops", 1.0));
    let levels = levels(list(&results["levels"])).into_iter();
    page.chart(&levels.fold(throughput, |chart, (name, iops)| chart.level(name, iops)));
    let latency = over_time(result, "latency_us_mean", 1e-3);
    page.chart(&Chart::lines("Mean latency", "time [s]", "latency [ms]", latency));
    page.heading(2, "latencies", "Latencies");
    page.chart(&Chart::lines("Distribution of latencies", "latency [ms]", "part [%]", shares(results)));
    page.heading(2, "parameters", "Parameters").listing(&pretty(&results["parameters"]));
    page.heading(2, "scenario", "The scenario").listing(&pretty(&results["scenario"]));
    page.html()
}

/// Returns the report of a sweep, from its `sweep.json`.
pub(crate) fn of_sweep(sweep: &Value) -> String {
    let mut page = Page::new("A sweep of simulated runs");
    page.paragraph(&format!(
        "sluice {}; {} runs of each point with seeds from {}. Means with 95 % intervals by Student's t.",
        text(&sweep["version"]),
        sweep["seeds"],
        sweep["first_seed"],
    ));
    let points = list(&sweep["points"]);
    let names: Vec<String> = points.iter().map(|point| values(&point["values"])).collect();
    for (what, title, unit) in
        [("iops", "Throughput", "IOPS"), ("latency_us_mean", "Mean latency", "us"), ("latency_us_p99", "99 %", "us")]
    {
        page.heading(2, what, title);
        page.chart(&Chart::bars(
            title,
            unit,
            &names.iter().map(String::as_str).collect::<Vec<_>>(),
            bars(points, what),
        ));
        page.table(&means(points, &names, what, &format!("{title} [{unit}]")));
    }
    page.heading(2, "scenario", "The scenario").listing(&pretty(&sweep["scenario"]));
    page.html()
}

fn vms(result: &Value) -> Table {
    let columns =
        ["VM", "completed", "IOPS", "MB/s", "mean [ms]", "p50 [ms]", "p99 [ms]", "by reservation", "by weight"];
    let mut table = Table::new("What each VM got", &columns);
    for vm in list(&result["vms"]) {
        let shown = |micros: f64| format!("{:.3}", micros / 1000.0);
        let latency = |what: &str| vm["latency_us"][what].as_f64().map_or_else(|| "-".to_owned(), shown);
        table.row([
            text(&vm["vm"]).to_owned(),
            vm["completed"].to_string(),
            format!("{:.1}", number(&vm["iops"])),
            format!("{:.2}", number(&vm["bytes_per_second"]) / 1e6),
            latency("mean"),
            latency("p50"),
            latency("p99"),
            vm["dispatched"]["reservation"].to_string(),
            vm["dispatched"]["weight"].to_string(),
        ]);
    }
    table
}

fn checks(result: &Value) -> Table {
    let mut table = Table::new("Invariants of every run", &["check", "verdict"]);
    for check in list(&result["checks"]) {
        let verdict = if check["ok"] == true { "holds".to_owned() } else { format!("BROKEN: {}", check["broken"]) };
        table.row([text(&check["check"]).to_owned(), verdict]);
    }
    table
}

fn devices(result: &Value) -> Table {
    let mut table = Table::new("Devices", &["device", "node", "busy"]);
    for device in list(&result["devices"]) {
        let busy = format!("{:.1} %", number(&device["busy_ratio"]) * 100.0);
        table.row([text(&device["device"]).to_owned(), device["node"].to_string(), busy]);
    }
    table
}

/// Returns a line for each VM.
fn over_time(result: &Value, what: &str, scale: f64) -> Vec<Line> {
    let line = |vm: &Value| {
        let own = list(&result["series"]).iter().filter(|moment| moment["vm"] == vm["vm"]);
        let points = own.filter_map(|moment| Some((number(&moment["t_s"]), moment[what].as_f64()? * scale)));
        Line::new(text(&vm["vm"]), points.collect())
    };
    list(&result["vms"]).iter().map(line).collect()
}

/// Returns names and rates of reservations and limits, those of equal rate together. Results of earlier versions have none.
fn levels(levels: &[Value]) -> Vec<(String, f64)> {
    let mut together: Vec<(&str, f64, Vec<&str>)> = Vec::new();
    for level in levels {
        let (what, iops, vm) = (text(&level["what"]), number(&level["iops"]), text(&level["vm"]));
        match together.iter_mut().find(|(same, rate, _)| (*same, *rate) == (what, iops)) {
            Some((.., vms)) => vms.push(vm),
            None => together.push((what, iops, vec![vm])),
        }
    }
    let named = |(what, iops, vms): (&str, f64, Vec<&str>)| match vms[..] {
        [] | [_] | [_, _] => (format!("{what} of {}", vms.join(" and ")), iops),
        _ => (format!("{what} of {} VMs", vms.len()), iops),
    };
    together.into_iter().map(named).collect()
}

/// Returns the distribution of latencies, up to the 99.9th percentile.
fn shares(results: &Value) -> Vec<Line> {
    let line = |histogram: &Value| {
        let steps = list(&histogram["latency_us_up_to_and_count"]);
        let all: f64 = steps.iter().map(|step| number(&step[1])).sum();
        let mut sum = 0.0;
        let points = steps.iter().map(|step| {
            sum += number(&step[1]);
            (number(&step[0]) / 1000.0, sum / all * 100.0)
        });
        let mut points: Vec<(f64, f64)> = points.collect();
        points.truncate(points.partition_point(|(_, part)| *part < 99.9) + 1);
        Line::new(text(&histogram["vm"]), points)
    };
    list(&results["histograms"]).iter().map(line).collect()
}

/// Returns a series of bars for each VM, with one bar for each point of a sweep.
fn bars(points: &[Value], what: &str) -> Vec<Line> {
    let Some(first) = points.first() else { return Vec::new() };
    let of = |(index, vm): (usize, &Value)| {
        let heights: Vec<f64> = points.iter().map(|point| number(&point["vms"][index][what]["mean"])).collect();
        Line::bars(text(&vm["vm"]), &heights)
    };
    list(&first["vms"]).iter().enumerate().map(of).collect()
}

fn means(points: &[Value], names: &[String], what: &str, title: &str) -> Table {
    let vms: Vec<&str> =
        points.first().map_or(Vec::new(), |point| list(&point["vms"]).iter().map(|vm| text(&vm["vm"])).collect());
    let columns: Vec<&str> = std::iter::once("point").chain(vms).collect();
    let mut table = Table::new(title, &columns);
    for (point, name) in points.iter().zip(names) {
        let cells = list(&point["vms"]).iter().map(|vm| mean(&vm[what]));
        table.row(std::iter::once(name.clone()).chain(cells));
    }
    table
}

/// Returns for example `250.0 ± 1.2`, or a dash without a value.
pub(crate) fn mean(value: &Value) -> String {
    match (value["mean"].as_f64(), value["half_interval_95"].as_f64()) {
        (Some(mean), Some(half)) => format!("{mean:.1} ± {half:.1}"),
        (Some(mean), None) => format!("{mean:.1}"),
        (None, _) => "-".to_owned(),
    }
}

/// Returns for example `device.disk.depth = 4, vm.a.weight = 100`.
pub(crate) fn values(values: &Value) -> String {
    let shown = values.as_object().into_iter().flatten().map(|(name, value)| match value {
        Value::String(text) => format!("{name} = {text}"),
        other => format!("{name} = {other}"),
    });
    let shown: Vec<String> = shown.collect();
    if shown.is_empty() { "as written".to_owned() } else { shown.join(", ") }
}

fn pretty(value: &Value) -> String {
    serde_json::to_string_pretty(value).unwrap_or_default()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn equal_levels_are_drawn_once() {
        let level = |vm: &str, what: &str, iops: f64| json!({ "vm": vm, "what": what, "iops": iops });
        let all = [
            level("a", "reservation", 250.0),
            level("b", "reservation", 250.0),
            level("b", "limit", 1000.0),
            level("c", "limit", 1000.0),
            level("d", "limit", 1000.0),
        ];
        let expected = [("reservation of a and b".to_owned(), 250.0), ("limit of 3 VMs".to_owned(), 1000.0)];
        assert_eq!(levels(&all), expected);
        assert_eq!(levels(list(&Value::Null)), []);
    }
}
