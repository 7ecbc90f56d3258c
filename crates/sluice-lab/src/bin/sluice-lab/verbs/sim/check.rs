//! `sluice sim check FILE`

use serde_json::{Value, json};
use sluice_sched::units::show_duration;
use sluice_sched::{ByteRate, Bytes, Iops};
use sluice_sim::scenario::file::{Loaded, ScenarioFile};
use sluice_sim::scenario::{Placement, Source};

use sluice_console::lab::Check;
use sluice_console::table::table;
use sluice_daemon::failure::Failure;
use sluice_daemon::output::{self, Format};

pub(crate) fn run(args: Check, format: Format) -> Result<(), Failure> {
    let file = super::load(&args.file)?;
    match format {
        Format::Json => print_json(&file),
        Format::Table => print_table(&file),
    }
    Ok(())
}

fn runs(file: &ScenarioFile) -> usize {
    file.sweep.as_ref().map_or(1, |sweep| sweep.points.len() * sweep.seeds as usize)
}

fn print_json(file: &ScenarioFile) {
    let loaded = &file.base;
    let settings = loaded.scenario.settings;
    output::json(&json!({
        "ok": true,
        "warnings": file.warnings,
        "duration_s": settings.duration.as_secs_f64(),
        "warm_up_s": settings.warm_up.as_secs_f64(),
        "seed": loaded.seed,
        "runs": runs(file),
        "devices": (0..loaded.scenario.devices.len()).map(|number| device_json(loaded, number)).collect::<Vec<_>>(),
        "vms": (0..loaded.scenario.vms.len()).map(|number| vm_json(loaded, number)).collect::<Vec<_>>(),
    }));
}

fn device_json(loaded: &Loaded, number: usize) -> Value {
    let (device, derived) = (&loaded.scenario.devices[number], &loaded.derived[number]);
    let facts: serde_json::Map<String, Value> =
        derived.facts.iter().map(|(what, value)| ((*what).to_owned(), json!(value))).collect();
    json!({
        "device": device.name,
        "model": device.model.name(),
        "nodes": device.nodes,
        "hosts": device.hosts,
        "policies_hold": if device.reporting.is_some() { "across-nodes" } else { "at-each-node" },
        "scheduler": device.scheduler.name,
        "depth": device.gate.depth,
        "size_bytes": derived.span,
        "expected_maximum_iops": derived.most.0,
        "expected_maximum_of": derived.most.1,
        "capacity_iops": device.capacity.iops.map(Iops::as_f64),
        "bandwidth_bytes_per_second": device.capacity.bytes.map(ByteRate::bytes_per_second),
        "reserved_iops": loaded.reserved(number),
        "reserved_bytes_per_second": loaded.reserved_bytes(number),
        "weight_floor_percent": loaded.supply(number).weight_floor.hundredths() as f64 / 100.0,
        "facts": facts,
    })
}

fn vm_json(loaded: &Loaded, number: usize) -> Value {
    let vm = &loaded.scenario.vms[number];
    let trace = loaded.trace(number).map(|trace| {
        let scan = &trace.scan;
        json!({
            "requests": scan.rows, "reads": scan.reads, "bytes": scan.bytes,
            "span_s": scan.span as f64 * 1e-9, "end_bytes": scan.end, "not_replayed": scan.skipped,
        })
    });
    json!({
        "vm": vm.name,
        "device": loaded.scenario.devices[vm.device].name,
        "offset_bytes": vm.offset,
        "size_bytes": vm.size,
        "threads": vm.threads,
        "asks": asks(loaded, number),
        "trace": trace,
        "there_from_the_start": !vm.starts_paused,
        "reserved_percent": output::percent(loaded.supply(vm.device).reserved([&vm.policy])),
    })
}

fn asks(loaded: &Loaded, number: usize) -> String {
    match &loaded.scenario.vms[number].source {
        Source::Workload(known, _) => known.name.to_owned(),
        Source::Trace(trace) => {
            let name = trace.file.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
            format!("{name}: {} requests in {:.1} s", trace.scan.rows, trace.scan.span as f64 * 1e-9)
        }
    }
}

fn print_device(loaded: &Loaded, number: usize) {
    let device = &loaded.scenario.devices[number];
    let derived = &loaded.derived[number];
    let nodes = match (device.nodes, device.hosts, device.meeting.is_some()) {
        (1, 1, _) => String::new(),
        (1, hosts, true) => format!("pool of {hosts} hosts before one "),
        (1, hosts, false) => format!("{hosts} hosts before one "),
        (nodes, ..) => format!("{nodes} nodes of "),
    };
    output::line(&format!(
        "Device {}: {nodes}{}, scheduler {}",
        device.name,
        device.model.name(),
        device.scheduler.name
    ));
    if derived.span > 0 {
        output::line(&format!("  size                  {}", Bytes(derived.span)));
    }
    output::line(&format!("  expected maximum      {:.0} iops: {}", derived.most.0, derived.most.1));
    for (what, value) in &derived.facts {
        output::line(&format!("  {what:<21} {value}"));
    }
    let each = if device.nodes == 1 { "" } else { ", each node" };
    let in_all = if device.reporting.is_some() { ", all nodes together" } else { each };
    let size = device.info.cost.reference_size();
    let show_bytes = |bytes: f64| format!("{:.1} MB/s", bytes / 1e6);
    let bandwidth = device.capacity.bytes.map(|rate| show_bytes(rate.bytes_per_second() as f64));
    let requests = device.capacity.iops.map(|iops| format!("{iops}@{size}"));
    let capacity: Vec<String> = requests.into_iter().chain(bandwidth).collect();
    let capacity = if capacity.is_empty() { "not stated".to_owned() } else { capacity.join(", ") + each };
    output::line(&format!("  capacity, as stated   {capacity}"));
    let (iops, bytes) = (loaded.reserved(number), loaded.reserved_bytes(number));
    let requests = (iops > 0.0 || bytes == 0.0).then(|| format!("{iops} iops@{size}"));
    let reserved: Vec<String> = requests.into_iter().chain((bytes > 0.0).then(|| show_bytes(bytes))).collect();
    output::line(&format!("  reserved              {}{in_all}", reserved.join(", ")));
    output::line(&format!("  weight floor          {}", loaded.supply(number).weight_floor));
    output::line("");
}

fn print_table(file: &ScenarioFile) {
    let loaded = &file.base;
    let scenario = &loaded.scenario;
    (0..scenario.devices.len()).for_each(|number| print_device(loaded, number));
    let mut table = table(&["VM", "DEVICE", "NODE", "OFFSET", "SIZE", "THREADS", "PART", "ASKS"]);
    for (number, vm) in scenario.vms.iter().enumerate() {
        table.add_row([
            vm.name.clone(),
            scenario.devices[vm.device].name.clone(),
            match vm.placement {
                Placement::Node(node) if scenario.devices[vm.device].hosts > 1 => format!("host {}", node + 1),
                Placement::Node(node) => node.to_string(),
                Placement::Uniform => "any".to_owned(),
                Placement::RoundRobin => "in turn".to_owned(),
            },
            Bytes(vm.offset).to_string(),
            Bytes(vm.size).to_string(),
            vm.threads.to_string(),
            loaded.supply(vm.device).reserved([&vm.policy]).map_or_else(String::new, |part| part.to_string()),
            asks(loaded, number),
        ]);
    }
    output::line(&table.to_string());
    let settings = scenario.settings;
    let warm_up = if settings.warm_up.is_zero() { "0s".to_owned() } else { show_duration(settings.warm_up) };
    let sweep = file.sweep.as_ref().map_or(String::new(), |_| format!("; {} runs in its sweep", runs(file)));
    let (duration, changes) = (show_duration(settings.duration), scenario.timeline.len());
    output::line(&format!("\n{duration}, of which {warm_up} warm-up; {changes} changes; seed {}{sweep}", loaded.seed));
    output::line("No errors");
}
