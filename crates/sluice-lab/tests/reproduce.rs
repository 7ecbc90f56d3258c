//! `sluice reproduce`: its output, that it resumes, and that errors are reported before any simulation.

use std::path::Path;

use crate::common::{Ended, Place, run, sluice};
use serde_json::Value;

/// Rows that take a moment.
const SHORT: &str = "X4";

fn reproduce(arguments: &[&str]) -> Ended {
    run(sluice().args(["-o", "json", "reproduce"]).args(arguments))
}

fn json_of(ended: &Ended) -> Value {
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    serde_json::from_str(&ended.stdout).unwrap_or_else(|error| panic!("{error}: {}", ended.stdout))
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path of ours")
}

#[test]
fn each_row_has_a_class_a_verdict_and_numbers() {
    let answer = json_of(&reproduce(&[SHORT]));
    let rows = answer["rows"].as_array().unwrap();
    assert_eq!(rows.iter().map(|row| row["id"].as_str().unwrap()).collect::<Vec<_>>(), ["X4a", "X4b", "X4c", "X4d"]);
    for row in rows {
        assert_eq!((row["paper"].as_str(), row["class"].as_str()), (Some("two-tier"), Some("C")), "{row}");
        let points = serde_json::json!({ "held": 1, "judged": 1 });
        assert_eq!((row["verdict"].as_str(), &row["points"]), (Some("claim holds"), &points), "{row}");
        assert_eq!((&row["nominal"], &row["agreement"]), (&true.into(), &Value::Null), "{row}");
        for text in ["figure", "paper_value", "measured", "note"] {
            assert!(row[text].is_string(), "{text} in {row}");
        }
        assert_eq!((&row["board"], &row["post_hoc"], &row["condition"]), (&"paper".into(), &false.into(), &"".into()));
        for list in ["inputs", "printed", "derived", "sensitivity", "means"] {
            assert!(row[list].is_array(), "{list} in {row}");
        }
    }
}

#[test]
fn rows_are_printed_as_csv_and_as_lines_of_json() {
    let csv = run(sluice().args(["-o", "csv", "reproduce", SHORT]));
    assert_eq!(csv.code(), Some(0), "{}", csv.stderr);
    let lines: Vec<_> = csv.stdout.lines().collect();
    assert_eq!(lines.len(), 5, "{}", csv.stdout);
    let columns: Vec<_> = lines[0].split(',').collect();
    for name in ["id", "class", "verdict", "nominal", "post_hoc", "points.held", "points.judged"] {
        assert!(columns.contains(&name), "{name} in {}", lines[0]);
    }
    assert!(lines[1].contains("X4a") && lines[1].contains("claim holds"), "{}", lines[1]);
    let listed = run(sluice().args(["-o", "jsonl", "reproduce", SHORT, "--list"]));
    let first: Value = serde_json::from_str(listed.stdout.lines().next().unwrap()).unwrap();
    assert_eq!((&first["id"], &first["class"]), (&"X4a".into(), &"C".into()));
}

#[test]
fn finished_rows_are_not_run_again_and_give_the_same_bytes() {
    let place = Place::new();
    let out = place.file("out");
    let first = reproduce(&[SHORT, "--out", text(&out)]);
    json_of(&first);
    let finished = out.join("finished/two-tier-credit-00-1.json");
    let (kept, page) = (std::fs::metadata(&finished).unwrap(), std::fs::read(out.join("report.html")).unwrap());
    let again = reproduce(&[SHORT, "--out", text(&out)]);
    assert_eq!(first.stdout, again.stdout);
    assert_eq!(page, std::fs::read(out.join("report.html")).unwrap());
    assert_eq!(kept.modified().unwrap(), std::fs::metadata(&finished).unwrap().modified().unwrap(), "it was not run");
    // A file that a power cut truncated is written again.
    std::fs::write(&finished, "[\"").unwrap();
    assert_eq!(reproduce(&[SHORT, "--out", text(&out)]).stdout, first.stdout);
    let paper = std::fs::read_to_string(out.join("papers/two-tier.md")).unwrap();
    assert!(paper.contains("Not run: two-tier-loss, two-tier-pairs."), "{paper}");
    assert!(paper.contains("Rows of this page: the papers' claims: 4 conformance holds."), "{paper}");
}

#[test]
fn invalid_arguments_are_rejected_before_anything_runs() {
    let place = Place::new();
    let file = place.write("file", "");
    let (file, docs) = (text(&file), place.file("docs"));
    let cases: [(&[&str], &str); 11] = [
        (&["M99"], "Nothing is called 'M99'; there are: all, mclock, flubber, mcfq, netback, two-tier, ablations, and"),
        (&[SHORT, "--out", file], "name a folder with --out that can be made or written"),
        (&["mclock", "--docs", file], "name a folder with --docs that can be made or written"),
        (
            &[SHORT, "--docs", text(&docs)],
            "--docs writes the text of whole papers, but two-tier-loss of two-tier is missing",
        ),
        (&["two-tier", "--quick", "--docs", text(&docs)], "cannot be used with"),
        (&[SHORT, "--fresh"], "--out <DIR>"),
        (&[SHORT, "--threads", "0"], "0 is not in 1..=1024"),
        (&["--paper", "mclock"], "unexpected argument '--paper'"),
        (
            &["--real", "N5"],
            "'N5' does not run on real I/O; with --real there are: all, mclock-allocation, mclock-interference,",
        ),
        (&["--real", "M99"], "'M99' is not the name of a figure, row or paper; with --real there are: all,"),
        (&["--real", "M3", "--out", file], "name a folder with --out that can be made or written"),
    ];
    for (arguments, what) in cases {
        let ended = reproduce(arguments);
        assert_ne!(ended.code(), Some(0), "{arguments:?}");
        assert!(ended.stderr.contains(what), "{arguments:?}: {}", ended.stderr);
        assert!(!ended.stderr.contains("runs ("), "{arguments:?} ran something: {}", ended.stderr);
    }
    assert!(!docs.exists(), "nothing is made for what is refused");
}

/// Rates on a busy machine are no matter of this test: it checks what does not depend on them.
#[test]
fn a_figure_runs_on_real_io_over_both_protocols() {
    let ended = reproduce(&["--real", "M3", "--quick"]);
    let answer: Value = serde_json::from_str(&ended.stdout).unwrap_or_else(|error| panic!("{error}: {}", ended.stderr));
    assert_eq!(ended.code(), Some(if answer["ok"] == true { 0 } else { 1 }), "{}", ended.stderr);
    let figure = &answer["figures"][0];
    assert_eq!(
        (&figure["id"], &figure["paper"], &figure["figure"]),
        (&"mclock-limits".into(), &"mclock".into(), &"Fig. 5".into())
    );
    let trial = &figure["trials"][0];
    let values = trial["values"].as_array().unwrap();
    let names: Vec<_> = values.iter().map(|value| (&value["seconds"][0], value["vm"].as_str().unwrap())).collect();
    let started: Vec<(Value, &str)> = [(2, "VM1"), (14, "VM1"), (14, "VM2"), (26, "VM1"), (26, "VM2"), (26, "VM3")]
        .map(|(at, vm)| (at.into(), vm))
        .into();
    assert_eq!(names, started.iter().map(|(at, vm)| (at, *vm)).collect::<Vec<_>>());
    assert_eq!((&trial["speedup"], &trial["tolerance"], &trial["windows"]), (&6.into(), &0.03.into(), &72.into()));
    // The text does not print what VM1 gets beside the others.
    for (value, (is_printed, due, limit)) in values.iter().zip([
        (true, 1600.0, 1600.0),
        (false, 1200.0, 1600.0),
        (true, 400.0, 400.0),
        (false, 700.0, 1600.0),
        (true, 400.0, 400.0),
        (true, 500.0, 500.0),
    ]) {
        let paper = if is_printed { Value::from(due) } else { Value::Null };
        assert_eq!((&value["paper"], &value["unit"]), (&paper, &"IOPS".into()), "{value}");
        let simulated = value["simulated"].as_f64().unwrap();
        assert!((simulated / due - 1.0).abs() < 0.05, "{value}");
        for protocol in ["nbd", "vhost-user-blk"] {
            let real = value["real"][protocol].as_f64().unwrap();
            assert!(real > 0.0 && real < 1.1 * limit, "{value}");
            let beyond = (real - simulated).abs() - 0.03 * simulated;
            // Both are rounded.
            assert!(beyond.abs() < 0.05 || value["near"][protocol] == (beyond < 0.0), "{value}");
        }
    }
    assert!(ended.stderr.contains("mclock-limits (Fig. 5): 1 trials, about 12 s"), "{}", ended.stderr);
    assert!(!ended.stderr.contains("error"), "{}", ended.stderr);
}
