//! `sluice sim`: its output, its repeatability, and errors in scenario files.

use std::path::{Path, PathBuf};

use common::{Ended, Place, run, sluice};
use serde_json::Value;

mod common;

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").canonicalize().expect("the examples are there")
}

fn sim(arguments: &[&str]) -> Ended {
    run(sluice().current_dir(examples()).arg("sim").args(arguments))
}

fn json_of(ended: &Ended) -> Value {
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    serde_json::from_str(&ended.stdout).unwrap_or_else(|error| panic!("{error}: {}", ended.stdout))
}

/// A scenario of two VMs on a device of 1,000 requests per second.
const SMALL: &str = r#"[sim]
duration = "4s"
warm_up = "1s"
[device.d]
model = { type = "servers", time = "1ms", distribution = "exponential" }
capacity = "500 iops"
[vm.a]
device = "d"
workload = "closed"
reservation = "400 iops"
[vm.b]
device = "d"
workload = { type = "closed", outstanding = 4 }
weight = 300
"#;

#[test]
fn a_run_prints_promises_and_results() {
    let place = Place::new();
    let file = place.write("s.toml", SMALL);
    let result = json_of(&run(sluice().args(["-o", "json", "sim", "run"]).arg(&file)));
    let keys: Vec<&str> = result.as_object().unwrap().keys().map(String::as_str).collect();
    for key in ["version", "seed", "duration_s", "vms", "series", "checks"] {
        assert!(keys.contains(&key), "{key} in {keys:?}");
    }
    assert_eq!((result["version"].as_str(), result["seed"].as_u64()), (Some(env!("CARGO_PKG_VERSION")), Some(1)));
    assert_eq!(result["duration_s"].as_f64(), Some(4.0));
    let vms = result["vms"].as_array().unwrap();
    assert_eq!(vms.iter().map(|vm| vm["vm"].as_str().unwrap()).collect::<Vec<_>>(), ["a", "b"]);
    for vm in vms {
        let completed = vm["completed"].as_f64().unwrap();
        assert_eq!(vm["iops"].as_f64(), Some(completed / 3.0));
        assert_eq!(vm["bytes_per_second"].as_f64(), Some(completed * 8192.0 / 3.0));
        let latency = |what: &str| vm["latency_us"][what].as_f64().unwrap();
        assert!(latency("p50") <= latency("p99") && latency("mean") > 0.0, "{vm}");
        let by = |what: &str| vm["dispatched"][what].as_u64().unwrap();
        assert!((by("reservation") + by("weight")).abs_diff(completed as u64) <= 64, "{vm}");
        let series = result["series"].as_array().unwrap().iter().filter(|moment| moment["vm"] == vm["vm"]);
        let series: Vec<_> =
            series.map(|moment| (moment["t_s"].as_f64().unwrap(), moment["iops"].as_f64().unwrap())).collect();
        assert_eq!(series.iter().map(|(t, _)| *t).collect::<Vec<_>>(), [1.0, 2.0, 3.0]);
        assert_eq!(series.iter().map(|(_, iops)| iops).sum::<f64>(), completed);
    }
    let checks = result["checks"].as_array().unwrap();
    let names: Vec<_> = checks.iter().map(|check| check["check"].as_str().unwrap()).collect();
    assert_eq!(names, ["conservation", "little", "device-busy", "timeline", "flash-writes"]);
    assert!(checks.iter().all(|check| check["ok"] == true));
    let iops = |vm: usize| vms[vm]["iops"].as_f64().unwrap();
    assert!(iops(0) >= 392.0 && (950.0..1050.0).contains(&(iops(0) + iops(1))), "{} and {}", iops(0), iops(1));
}

/// The device serves 1,000 requests per second, the file states 2,000, and VM a reserves 1,500 of them.
#[test]
fn a_run_with_broken_promises_exited_with_success() {
    let place = Place::new();
    let text = SMALL.replace("500 iops", "2000 iops").replace("400 iops", "1500 iops");
    let text = text.replace("workload = \"closed\"", "workload = { type = \"closed\", outstanding = 32 }");
    let file = place.write("s.toml", text + "limit = \"500 iops\"\n");
    let table = run(sluice().args(["sim", "run"]).arg(&file));
    assert_eq!(table.code(), Some(2), "{}", table.stderr);
    for part in
        ["PROMISE", "VERDICT", "reservation 1500 iops", "BROKEN: ", "limit 500 iops", "kept", "1 promise NOT kept"]
    {
        assert!(table.stdout.contains(part), "no {part:?} in\n{}", table.stdout);
    }
    let json = run(sluice().args(["-o", "json", "sim", "run"]).arg(&file));
    assert_eq!(json.code(), Some(2));
    let result: Value = serde_json::from_str(&json.stdout).unwrap();
    let (a, b) = (&result["vms"][0]["promises"][0], &result["vms"][1]["promises"][0]);
    assert_eq!((a["verdict"].as_str(), a["expected"].as_f64()), (Some("broken"), Some(1500.0)));
    assert!(a["measured"].as_f64().unwrap() < 1100.0, "{a}");
    assert_eq!((b["promise"].as_str(), b["verdict"].as_str()), (Some("limit 500 iops"), Some("kept")));
    let check = run(sluice().args(["sim", "check"]).arg(&file));
    let warning = "capacity = 2000 iops@8KiB is more than the 1000 iops that its model delivers: any requests";
    assert!(check.code() == Some(0) && check.stderr.contains(warning), "{}", check.stderr);
    assert!(run(sluice().args(["sim", "check"]).arg(place.write("small.toml", SMALL))).ok().contains("No errors"));
}

#[test]
fn a_sweep_with_broken_promises_exited_with_success() {
    let place = Place::new();
    let text = SMALL.replace("500 iops", "2000 iops").replace("400 iops", "1500 iops");
    let text = text.replace("workload = \"closed\"", "workload = { type = \"closed\", outstanding = 32 }");
    place.write(
        "s.toml",
        text + "limit = \"500 iops\"\n[sweep]\nseeds = 2\nvm.a.reservation = [\"100 iops\", \"1500 iops\"]\n",
    );
    let table = in_folder(&place, &["sweep", "s.toml", "--out", "swept"]);
    assert_eq!(table.code(), Some(2), "{}", table.stderr);
    for part in ["VERDICT", "reservation 1500 iops", "BROKEN in 2 of 2", "limit 500 iops", "kept in 2 of 2"] {
        assert!(table.stdout.contains(part), "no {part:?} in\n{}", table.stdout);
    }
    let sweep: Value = serde_json::from_str(&self::text(&place, "swept/sweep.json")).unwrap();
    let broken = |point: usize| sweep["points"][point]["vms"][0]["promises"][0]["broken"].as_u64();
    assert_eq!((broken(0), broken(1)), (Some(0), Some(2)), "{sweep}");
    let csv = self::text(&place, "swept/sweep.csv");
    assert!(
        csv.lines().next().unwrap().ends_with(",promises_broken") && csv.lines().nth(3).unwrap().ends_with(",2"),
        "{csv}"
    );
}

#[test]
fn a_field_that_a_timeline_entry_does_not_state_was_shown_as_reset() {
    let place = Place::new();
    let text = SMALL.to_owned() + "[[timeline]]\nat = \"2s\"\nchange = \"policy\"\nvm = \"a\"\nlimit = \"450 iops\"\n";
    let file = place.write("s.toml", text);
    let output = run(sluice().args(["sim", "run"]).arg(&file)).ok();
    assert!(output.contains("At 2 s the policy of VM a changed in limit; as before: reservation"), "{output}");
    let json = json_of(&run(sluice().args(["-o", "json", "sim", "run"]).arg(&file)));
    let change = serde_json::json!({ "t_s": 2.0, "vm": "a", "changed": ["limit"], "as_before": ["reservation"] });
    assert_eq!(json["policy_changes"], serde_json::json!([change]));
}

#[test]
fn the_papers_division_is_reproduced() {
    let result = json_of(&sim(&["run", "scenario-division.toml", "-o", "json"]));
    let iops: Vec<f64> = result["vms"].as_array().unwrap().iter().map(|vm| vm["iops"].as_f64().unwrap()).collect();
    for (got, paper) in iops.iter().zip([250.0, 380.0, 570.0]) {
        assert!((got - paper).abs() <= 0.02 * 1200.0, "{iops:?}");
    }
}

#[test]
fn weights_hold_across_nodes_only_if_vms_report_remote_service() {
    let place = Place::new();
    let text = std::fs::read_to_string(examples().join("scenario-dmclock.toml")).unwrap();
    let (placed, alone) = ("placement = 0\n", "policies_hold = \"at-each-node\"");
    assert!(text.contains(placed) && text.contains("policies_hold = \"across-nodes\""));
    let over_c1 = |text: &str| {
        let file = place.write("s.toml", text);
        let result = json_of(&run(sluice().args(["sim", "run", "-o", "json"]).arg(file)));
        let iops = |vm: usize| result["vms"][vm]["iops"].as_f64().unwrap();
        [iops(1) / iops(0), iops(2) / iops(0)]
    };
    let near = |[c2, c3]: [f64; 2], wanted: [f64; 2]| {
        (c2 / wanted[0] - 1.0).abs() <= 0.03 && (c3 / wanted[1] - 1.0).abs() <= 0.03
    };
    let untold = text.replace("policies_hold = \"across-nodes\"", alone);
    let anywhere = over_c1(&text.replace(placed, ""));
    assert!(near(anywhere, [4.0, 6.0]), "{anywhere:?}");
    // The requests of one VM go to a single node, where the others get a third of their total.
    let (told, untold) = (over_c1(&text), over_c1(&untold));
    assert!(near(told, [4.0, 6.0]), "{told:?}");
    assert!(near(untold, [12.0, 18.0]), "{untold:?}");
}

#[test]
fn a_limit_holds_across_nodes() {
    let place = Place::new();
    let file = |holds: &str| {
        let text = SMALL.replace("[vm.a]", &format!("nodes = 3\npolicies_hold = \"{holds}\"\n[vm.a]"));
        let many = text.replace("outstanding = 4", "outstanding = 64");
        place.write("s.toml", many.replace("weight = 300", "limit = \"90 iops\"\nburst = 1"))
    };
    let b = |holds: &str| {
        let result = json_of(&run(sluice().args(["sim", "run", "-o", "json"]).arg(file(holds))));
        result["vms"][1]["iops"].as_f64().unwrap()
    };
    let (across, each) = (b("across-nodes"), b("at-each-node"));
    assert!((85.0..=92.0).contains(&across) && (255.0..=276.0).contains(&each), "{across} and {each}");
}

#[test]
fn every_example_runs_and_repeats() {
    let entries = std::fs::read_dir(examples()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let scenarios: Vec<String> = entries.filter(|name| name.starts_with("scenario-")).collect();
    assert!(scenarios.len() >= 6, "{scenarios:?}");
    for name in &scenarios {
        let (first, again) = (sim(&["run", name, "-o", "json"]), sim(&["run", name, "-o", "json"]));
        let result = json_of(&first);
        assert!(
            result["vms"].as_array().unwrap().iter().all(|vm| vm["completed"].as_u64() > Some(0)),
            "{name}: {result}"
        );
        assert_eq!(first.stdout, again.stdout, "{name}");
        assert_ne!(first.stdout, sim(&["run", name, "-o", "json", "--seed", "2"]).stdout, "{name}");
        assert_eq!(json_of(&sim(&["check", name, "-o", "json"]))["ok"], true);
        assert!(sim(&["run", name]).stdout.contains("all invariants hold"), "{name}");
    }
}

#[test]
fn the_error_for_an_unwritable_folder_names_its_option() {
    for verb in ["run", "sweep"] {
        let refused = sim(&[verb, "scenario-division.toml", "--out", "/proc/none"]);
        assert_eq!(refused.code(), Some(4), "{verb}");
        let output = refused.failed();
        assert!(
            output.contains("Cannot write into /proc") && output.contains("name a folder with --out"),
            "{verb}: {output}"
        );
    }
}

#[test]
fn check_prints_derived_values() {
    let nodes = sim(&["check", "scenario-three-nodes.toml"]).ok();
    assert!(nodes.starts_with("Device store: 3 nodes of servers, scheduler mclock\n"), "{nodes}");
    let result = json_of(&sim(&["check", "scenario-aged-ssd.toml", "-o", "json"]));
    let device = &result["devices"][0];
    assert_eq!((device["reserved_iops"].as_f64(), device["capacity_iops"].as_f64()), (Some(300.0), Some(1000.0)));
    assert_eq!(device["facts"]["spare blocks of a plane"], "67, of which 3 stay free");
    assert_eq!((result["runs"].as_u64(), result["vms"][1]["offset_bytes"].as_u64()), (Some(12), Some(3828 << 20)));
}

#[test]
fn an_overcommitted_scenario_is_rejected_unless_admission_is_off() {
    let place = Place::new();
    let text = SMALL.replace("400 iops", "600 iops");
    let file = place.write("s.toml", &text);
    let refused = run(sluice().args(["sim", "run"]).arg(file));
    assert_eq!(refused.code(), Some(1));
    assert!(refused.stderr.contains("short by 22%") && refused.stdout.is_empty(), "{}", refused.stderr);
    let file = place.write("s.toml", text.replace("warm_up", "admission = \"off\"\nwarm_up"));
    let run = run(sluice().args(["sim", "run"]).arg(&file));
    assert_eq!(run.code(), Some(0), "{}", run.stderr);
    assert!(run.stderr.contains("warning: ") && run.stderr.contains("short by 22%"), "{}", run.stderr);
}

fn in_folder(place: &Place, arguments: &[&str]) -> Ended {
    run(sluice().current_dir(place.folder()).args(["sim"]).args(arguments))
}

fn text(place: &Place, name: &str) -> String {
    std::fs::read_to_string(place.file(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Returns every file in a folder with its content, in order.
fn files(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => all.extend(files(&path)),
            false => all.push((path.clone(), std::fs::read(&path).unwrap())),
        }
    }
    all.sort();
    all
}

fn names(folder: &Path) -> Vec<String> {
    let name = |(path, _): &(PathBuf, Vec<u8>)| path.strip_prefix(folder).unwrap().to_str().unwrap().to_owned();
    files(folder).iter().map(name).collect()
}

#[test]
fn a_run_writes_results_that_repeat() {
    let place = Place::new();
    place.write("s.toml", SMALL);
    let first = in_folder(&place, &["run", "s.toml", "--out", "out", "--log", "requests", "-o", "json"]);
    let printed = json_of(&first);
    let expected = ["latencies.csv", "report.html", "requests.csv", "results.json", "series.csv"];
    assert_eq!(names(&place.file("out")), expected);
    let results: Value = serde_json::from_str(&text(&place, "out/results.json")).unwrap();
    assert_eq!(results["result"], printed);
    assert_eq!(results["scenario"]["vm"]["a"]["reservation"], "400 iops");
    assert_eq!(results["parameters"]["devices"][0]["model"]["parameters"]["servers"], 1);
    assert_eq!(results["parameters"]["vms"][1]["asks"]["parameters"]["outstanding"], 4);
    let before = files(&place.file("out"));
    // Earlier results are replaced by the same bytes.
    in_folder(&place, &["run", "s.toml", "--out", "out", "--log", "requests"]).ok();
    assert!(files(&place.file("out")) == before);
    let html = text(&place, "out/report.html");
    assert!(html.contains("<svg") && !html.contains("<script") && !html.contains("<link"), "{html}");
    let requests = text(&place, "out/requests.csv");
    assert_eq!(
        requests.lines().next(),
        Some("vm,thread,node,operation,offset_bytes,length_bytes,arrived_ns,completed_ns,dispatched_ns,phase")
    );
    for row in requests.lines().skip(1) {
        let fields: Vec<&str> = row.split(',').collect();
        let [arrived, completed, dispatched] = [6, 7, 8].map(|field| fields[field].parse::<u64>().unwrap());
        assert!(arrived <= dispatched && dispatched <= completed, "{row}");
        assert!(["reservation", "weight"].contains(&fields[9]), "{row}");
    }
    let vms = printed["vms"].as_array().unwrap();
    let over: u64 =
        vms.iter().map(|vm| vm["arrived_in_all"].as_u64().unwrap() - vm["outstanding"].as_u64().unwrap()).sum();
    assert_eq!(requests.lines().count() as u64 - 1, over);
    assert_eq!(text(&place, "out/series.csv").lines().count(), 1 + 2 * 3);
}

#[test]
fn a_folder_without_results_is_not_replaced() {
    let place = Place::new();
    place.write("s.toml", SMALL);
    std::fs::create_dir(place.file("out")).unwrap();
    place.write("out/thesis.txt", "two years of work");
    let refused = in_folder(&place, &["run", "s.toml", "--out", "out"]);
    assert_eq!(refused.code(), Some(4), "{}", refused.stderr);
    assert_eq!(text(&place, "out/thesis.txt"), "two years of work");
}

#[cfg(feature = "parquet")]
#[test]
fn the_parquet_log_has_the_content_of_the_csv_log() {
    use parquet::file::reader::{FileReader, SerializedFileReader};

    let place = Place::new();
    place.write("s.toml", SMALL);
    for log in ["requests", "parquet"] {
        in_folder(&place, &["run", "s.toml", "--out", log, "--log", log]).ok();
    }
    let file = std::fs::File::open(place.file("parquet/requests.parquet")).unwrap();
    let rows = SerializedFileReader::new(file).unwrap();
    let columns = rows.metadata().file_metadata().schema_descr().columns().to_vec();
    let mut lines = vec![columns.iter().map(|column| column.name().to_owned()).collect::<Vec<_>>().join(",")];
    for row in rows.get_row_iter(None).unwrap() {
        let row = row.unwrap();
        let fields = row.get_column_iter().map(|(_, field)| field.to_string().replace('"', ""));
        lines.push(fields.collect::<Vec<_>>().join(","));
    }
    assert!(lines.len() > 1000, "{}", lines.len());
    assert_eq!(lines.join("\n") + "\n", text(&place, "requests/requests.csv"));
}

#[cfg(not(feature = "parquet"))]
#[test]
fn a_parquet_log_needs_a_program_built_with_the_feature() {
    let place = Place::new();
    place.write("s.toml", SMALL);
    let refused = in_folder(&place, &["run", "s.toml", "--out", "out", "--log", "parquet"]);
    assert!(refused.code() == Some(4) && refused.stderr.contains("--features parquet"), "{}", refused.stderr);
    assert!(!place.file("out").exists());
}

#[test]
fn fio_logs_have_the_format_of_fio() {
    let place = Place::new();
    place.write("s.toml", SMALL);
    in_folder(&place, &["run", "s.toml", "--out", "out", "--log", "fio"]).ok();
    for (log, last_of) in [("out/a_lat.1.log", None), ("out/a_iops.1.log", Some(4000)), ("out/a_bw.1.log", Some(4000))]
    {
        let lines: Vec<Vec<u64>> = text(&place, log)
            .lines()
            .map(|line| {
                line.split(", ").map(|field| field.parse().unwrap_or_else(|_| panic!("{log}: {line}"))).collect()
            })
            .collect();
        assert!(lines.iter().all(|fields| fields.len() == 7 && fields[2] == 0), "{log}");
        assert!(lines.windows(2).all(|pair| pair[0][0] <= pair[1][0]), "{log}");
        if let Some(last) = last_of {
            assert_eq!((lines.len(), lines[3][0]), (4, last), "{log}");
        }
    }
    let sum = |log: &str| {
        text(&place, log).lines().map(|line| line.split(", ").nth(1).unwrap().parse::<u64>().unwrap()).sum::<u64>()
    };
    let requests = text(&place, "out/a_lat.1.log").lines().count() as u64;
    assert_eq!(sum("out/a_iops.1.log"), requests);
    assert_eq!(sum("out/a_bw.1.log"), requests * 8);
}

#[test]
fn the_last_window_of_fios_logs_ends_with_the_run() {
    let place = Place::new();
    for (duration, expected) in
        [("2s", vec![(1000, 999), (2000, 1001)]), ("2500ms", vec![(1000, 999), (2000, 1000), (2500, 1002)])]
    {
        let text = SMALL.replace("4s", duration).replace(
            "\"servers\", time = \"1ms\", distribution = \"exponential\"",
            "\"constant\", rate = \"1000 iops\"",
        );
        place.write("s.toml", text.split("[vm.b]").next().unwrap());
        in_folder(&place, &["run", "s.toml", "--out", "out", "--log", "fio"]).ok();
        let rates = self::text(&place, "out/a_iops.1.log");
        let rates: Vec<(u64, u64)> = rates
            .lines()
            .map(|line| line.split(", ").map(|field| field.parse().unwrap()).collect::<Vec<u64>>())
            .map(|fields| (fields[0], fields[1]))
            .collect();
        assert_eq!(rates, expected, "{duration}");
    }
}

#[test]
fn a_vm_without_completions_has_no_latency() {
    let place = Place::new();
    let idle =
        "[vm.c]\ndevice = \"d\"\nworkload = \"closed\"\n[[timeline]]\nat = \"4s\"\nvm = \"c\"\nchange = \"start\"\n";
    let file = place.write("s.toml", format!("{SMALL}{idle}[sweep]\nseeds = 2\n"));
    let result = json_of(&run(sluice().args(["-o", "json", "sim", "run"]).arg(&file)));
    let vm = &result["vms"][2];
    assert_eq!((vm["vm"].as_str(), vm["completed"].as_u64()), (Some("c"), Some(0)));
    assert!(vm["latency_us"].as_object().unwrap().values().all(Value::is_null), "{vm}");
    in_folder(&place, &["run", "s.toml", "--out", "out"]).ok();
    assert!(text(&place, "out/report.html").contains("<td>-</td>"));
    let swept = in_folder(&place, &["sweep", "s.toml", "--out", "swept"]).ok();
    let line = swept.lines().find(|line| line.contains(" c ")).unwrap();
    assert_eq!(
        line.split_whitespace().collect::<Vec<_>>(),
        ["as", "written", "c", "0.0", "±", "0.0", "-", "-", "-", "-"]
    );
    let sweep: Value = serde_json::from_str(&text(&place, "swept/sweep.json")).unwrap();
    let none = serde_json::json!({ "mean": null, "half_interval_95": null, "runs": 0 });
    assert_eq!(sweep["points"][0]["vms"][2]["latency_us_p99"], none);
    let csv = text(&place, "swept/sweep.csv");
    assert_eq!(csv.lines().last(), Some("c,0.0,0.0,0.0,0.0,,,,,,,0"));
}

const SWEEP: &str = "[sweep]\nvm.b.weight = [100, 200, 300]\ndevice.d.depth = [1, 8]\nseeds = 3\n";

#[test]
fn a_sweep_depends_neither_on_threads_nor_on_earlier_runs() {
    let place = Place::new();
    place.write("s.toml", format!("{SMALL}{SWEEP}").replace("weight = 300\n", ""));
    let one = in_folder(&place, &["sweep", "s.toml", "--out", "one", "--threads", "1"]).ok();
    let many = in_folder(&place, &["sweep", "s.toml", "--out", "many", "--threads", "7"]).ok();
    assert_eq!(one.replace("one/", ""), many.replace("many/", ""));
    let relative = |name: &str| {
        let folder = place.file(name);
        files(&folder)
            .into_iter()
            .map(|(path, bytes)| (path.strip_prefix(&folder).unwrap().to_owned(), bytes))
            .collect::<Vec<_>>()
    };
    let whole = relative("one");
    assert!(whole == relative("many"));
    assert_eq!(whole.iter().filter(|(path, _)| path.starts_with("runs")).count(), 18);
    let sweep: Value = serde_json::from_str(&text(&place, "one/sweep.json")).unwrap();
    let point = &sweep["points"][0];
    assert_eq!(point["values"]["device.d.depth"], 1);
    assert_eq!(point["vms"][0]["iops"]["runs"], 3);
    assert!(point["vms"][0]["iops"]["half_interval_95"].as_f64() > Some(0.0), "{point}");
    assert_eq!(text(&place, "one/sweep.csv").lines().count(), 1 + 6 * 2);
    // A missing run is repeated; an existing one is not.
    let runs = place.file("one/runs");
    let mut entries: Vec<PathBuf> = std::fs::read_dir(&runs).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    std::fs::remove_file(&entries[0]).unwrap();
    let marked = std::fs::read_to_string(&entries[1]).unwrap() + " ";
    std::fs::write(&entries[1], &marked).unwrap();
    in_folder(&place, &["sweep", "s.toml", "--out", "one"]).ok();
    assert_eq!(std::fs::read_to_string(&entries[1]).unwrap(), marked, "it was not repeated");
    std::fs::write(&entries[1], marked.trim_end()).unwrap();
    assert!(whole == relative("one"));
    // The report can be generated again from the results.
    std::fs::remove_file(place.file("one/report.html")).unwrap();
    in_folder(&place, &["report", "one"]).ok();
    assert!(whole == relative("one"));
}

#[test]
fn a_killed_sweep_is_resumed() {
    let place = Place::new();
    let text_ = format!("{SMALL}[sweep]\nvm.b.weight = [100, 200]\nseeds = 20\n").replace("weight = 300\n", "");
    place.write("s.toml", text_.replace("\"4s\"", "\"40s\""));
    let mut command = sluice();
    command.current_dir(place.folder()).args(["sim", "sweep", "s.toml", "--out", "out", "--threads", "1"]);
    command.args(["--progress", "json"]).stderr(std::process::Stdio::piped()).stdout(std::process::Stdio::null());
    let mut child = command.spawn().unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stderr.take().unwrap()));
    // It reports the first tenth: then some runs are finished, and most are not.
    let output: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
    assert!(output["done"].as_f64() < Some(0.5), "{output}");
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!place.file("out/sweep.json").exists() && !place.file("out/report.html").exists());
    assert_eq!(in_folder(&place, &["report", "out"]).code(), Some(3), "nothing is finished there");
    let runs = |name: &str| {
        let finished = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "json");
        let mut runs: Vec<PathBuf> =
            std::fs::read_dir(place.file(name)).unwrap().map(|entry| entry.unwrap().path()).filter(finished).collect();
        runs.sort();
        runs
    };
    let before: Vec<(PathBuf, std::time::SystemTime)> =
        runs("out/runs").into_iter().map(|path| (path.clone(), path.metadata().unwrap().modified().unwrap())).collect();
    assert!(!before.is_empty() && before.len() < 40, "{}", before.len());
    in_folder(&place, &["sweep", "s.toml", "--out", "out"]).ok();
    assert_eq!(runs("out/runs").len(), 40);
    for (path, modified) in before {
        assert_eq!(path.metadata().unwrap().modified().unwrap(), modified, "{} was repeated", path.display());
    }
    in_folder(&place, &["sweep", "s.toml", "--out", "whole"]).ok();
    assert_eq!(text(&place, "out/sweep.json"), text(&place, "whole/sweep.json"));
}

#[test]
fn progress_is_printed_in_tenths() {
    let place = Place::new();
    place.write("s.toml", SMALL);
    let ended = in_folder(&place, &["run", "s.toml", "--progress", "json"]);
    let done: Vec<f64> = ended
        .stderr
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["done"].as_f64().unwrap())
        .collect();
    assert_eq!(done.len(), 10, "{}", ended.stderr);
    assert!(done.windows(2).all(|pair| pair[0] < pair[1]) && done[9] == 1.0, "{done:?}");
}

#[test]
fn runs_of_another_program_are_repeated() {
    let place = Place::new();
    place.write("s.toml", format!("{SMALL}[sweep]\nvm.b.weight = [100]\nseeds = 1\n").replace("weight = 300\n", ""));
    let swept = |program: &Path| {
        let mut command = std::process::Command::new(program);
        run(command.current_dir(place.folder()).args(["sim", "sweep", "s.toml", "--out", "out"])).ok();
        names(&place.file("out/runs"))
    };
    let this = PathBuf::from(sluice().get_program());
    let first = swept(&this);
    assert_eq!((first.len(), swept(&this)), (1, first.clone()));
    // Bytes after its end do not change what a program does.
    let other = place.file("sluice");
    std::fs::copy(&this, &other).unwrap();
    let mut file = std::fs::OpenOptions::new().append(true).open(&other).unwrap();
    std::io::Write::write_all(&mut file, b"changed").unwrap();
    drop(file);
    let both = swept(&other);
    assert_eq!((both.len(), both.contains(&first[0])), (2, true));
    let [one, two] = [&both[0], &both[1]].map(|name| text(&place, &format!("out/runs/{name}")));
    let result = |text: &str| serde_json::from_str::<Value>(text).unwrap()["vms"].clone();
    assert_eq!(result(&one), result(&two));
}

#[test]
fn unfinished_files_are_removed_unless_a_running_program_holds_them() {
    let place = Place::new();
    place.write("s.toml", SMALL);
    let folder = |name: &str| {
        std::fs::create_dir_all(place.file(name)).unwrap();
        place.write(&format!("{name}/series.csv"), "half");
    };
    [".unfinished-out-1", ".unfinished-out-2", ".unfinished-other-3", "unfinished-out-4"].into_iter().for_each(folder);
    let held = std::fs::File::open(place.file(".unfinished-out-2")).unwrap();
    held.lock().unwrap();
    in_folder(&place, &["run", "s.toml", "--out", "out"]).ok();
    let there = |name: &str| place.file(name).exists();
    assert!(!there(".unfinished-out-1") && there(".unfinished-out-2"));
    assert!(there(".unfinished-other-3") && there("unfinished-out-4"), "they are of others");
    std::fs::create_dir_all(place.file("swept/runs")).unwrap();
    place.write("swept/runs/.unfinished-5", "half");
    place.write("swept/.unfinished-6", "half");
    in_folder(&place, &["sweep", "s.toml", "--out", "swept"]).ok();
    assert!(names(&place.file("swept")).iter().all(|name| !name.contains(".unfinished")));
}

#[test]
fn vms_share_a_link_and_keep_a_minimum() {
    let result = json_of(&sim(&["run", "scenario-network.toml", "-o", "json"]));
    let vm = |name: &str| result["vms"].as_array().unwrap().iter().find(|vm| vm["vm"] == name).unwrap().clone();
    let rate = |name: &str| vm(name)["bytes_per_second"].as_f64().unwrap() / 1e6;
    // 16 Mbit/s of 200 bytes each, in frames of 242 bytes.
    assert!((rate("telephone") - 2.42).abs() < 0.05, "{}", rate("telephone"));
    assert!((rate("shop") / rate("backup") - 3.0).abs() < 0.1, "{} and {}", rate("shop"), rate("backup"));
    assert_eq!(vm("shop")["dropped"], 0, "wrr takes no frame that has no room");
    assert_eq!(result.get("cpus"), None);
    let check = sim(&["check", "scenario-network.toml"]).ok();
    assert!(check.contains("95.71 Mbit/s") && check.contains("12.30 MB/s"), "{check}");
    assert!(check.contains("as stated   12.0 MB/s") && check.contains("reserved              2.5 MB/s"), "{check}");
}

#[test]
fn a_disk_takes_the_driver_domains_cpu_from_the_network() {
    let result = json_of(&sim(&["run", "scenario-driver-domain.toml", "-o", "json"]));
    let series = result["series"].as_array().unwrap().iter().filter(|moment| moment["vm"] == "sender");
    let rates: Vec<f64> = series.map(|moment| moment["bytes_per_second"].as_f64().unwrap() * 8e-6).collect();
    let mean = |from: usize, to: usize| rates[from..to].iter().sum::<f64>() / (to - from) as f64;
    // Frames of 1514 bytes: at the rate of the link, and one for each 20 us and 200 us of the driver domain's CPU.
    let (full, in_turn) = (1514.0 * 8.0 / 123.04, 1514.0 * 8.0 / 220.0);
    let [before, between, after] = [mean(5, 8), mean(10, 16), mean(22, 26)];
    let near = |got: f64, wanted: f64| (got / wanted - 1.0).abs() < 0.02;
    assert!(near(before, full) && near(between, in_turn) && near(after, full), "{before} {between} {after}");
    let cpus: Vec<&str> = result["cpus"].as_array().unwrap().iter().map(|cpu| cpu["of"].as_str().unwrap()).collect();
    assert_eq!(cpus, ["driver domain", "VM reader", "VM sender"]);
}

#[test]
fn an_aged_drive_is_made_once() {
    let place = Place::new();
    place.write(
        "s.toml",
        SMALL.replace(
            "type = \"servers\", time = \"1ms\", distribution = \"exponential\"",
            "type = \"ssd\", state = \"aged\", blocks = 800, pages = 16",
        ),
    );
    let out = |more: &[&str]| in_folder(&place, &[&["run", "s.toml", "-o", "json"], more].concat());
    let (alone, made, read) = (out(&[]), out(&["--states", "kept"]), out(&["--states", "kept"]));
    json_of(&alone);
    assert_eq!((&made.stdout, &read.stdout), (&alone.stdout, &alone.stdout), "{}", made.stderr);
    let kept = names(&place.file("kept"));
    assert_eq!(kept.len(), 1, "{kept:?}");
    let state = format!("kept/{}", kept[0]);
    let whole = std::fs::read(place.file(&state)).unwrap();
    std::fs::write(place.file(&state), &whole[..100]).unwrap();
    let again = out(&["--states", "kept"]);
    assert_eq!(again.stdout, alone.stdout);
    assert!(
        again.stderr.contains("warning: ") && again.stderr.contains("the drive was aged again"),
        "{}",
        again.stderr
    );
    assert_eq!(std::fs::read(place.file(&state)).unwrap(), whole);
    let refused = out(&["--states", "s.toml"]);
    assert!(refused.code() != Some(0) && refused.stderr.contains("Cannot make s.toml"), "{}", refused.stderr);
}

#[test]
fn an_invalid_seed_is_rejected_with_the_valid_range() {
    let place = Place::new();
    let file = place.write("s.toml", SMALL);
    for seed in ["x", "-1", "1.5", "9223372036854775808"] {
        let refused = run(sluice().args(["sim", "run", "--seed", seed]).arg(&file));
        assert_eq!(refused.code(), Some(2), "{seed}");
        assert!(refused.stderr.contains("write a whole number from 0 to 9223372036854775807"), "{}", refused.stderr);
    }
}
