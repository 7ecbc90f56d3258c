//! Folders of results: files of a run, request logs and cached drives.

use super::*;

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
    assert_eq!(results["levels"], serde_json::json!([{ "vm": "a", "what": "reservation", "iops": 400.0 }]));
    let before = files(&place.file("out"));
    // Earlier results are replaced by the same bytes.
    in_folder(&place, &["run", "s.toml", "--out", "out", "--log", "requests"]).ok();
    assert!(files(&place.file("out")) == before);
    let html = text(&place, "out/report.html");
    assert!(html.contains("reservation of a"), "{html}");
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
