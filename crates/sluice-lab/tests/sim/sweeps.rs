//! Sweeps: their results, and how an interrupted one is resumed.

use super::*;

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
