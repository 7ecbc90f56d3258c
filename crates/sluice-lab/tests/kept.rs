//! Kept results of earlier runs, and the use that is made of them.

use std::sync::atomic::{AtomicUsize, Ordering};

use sluice_lab::band::BandPoint;
use sluice_lab::run::run;
use sluice_lab::{Class, Figure, Finding, LabError, Paper, Plan, RowSpec};

static RUNS: AtomicUsize = AtomicUsize::new(0);

const ROW: RowSpec = RowSpec { id: "T1a", class: Class::Conformance, must: "", paper: "", note: "" };

static FIGURE: Figure = Figure {
    id: "counted",
    paper: Paper::Ablations,
    label: "",
    title: "",
    setup: "",
    device: "",
    rows: &[ROW],
    run: counted,
};

fn counted(_: &BandPoint) -> Result<Finding, LabError> {
    RUNS.fetch_add(1, Ordering::Relaxed);
    let mut finding = Finding::default();
    finding.judge("T1a", true, "1");
    Ok(finding)
}

#[test]
fn stored_results_are_used_only_if_complete() {
    let folder = std::env::temp_dir().join(format!("sluice-kept-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("counted-00-1.json");
    let plan = Plan { figures: vec![&FIGURE], quick: true, threads: 1, kept: Some((folder.clone(), "me".to_owned())) };
    let runs = || {
        assert_eq!(run(&plan, &|_, _| {}).unwrap()[0].rows[0].measured, "1");
        RUNS.swap(0, Ordering::Relaxed)
    };
    assert_eq!((runs(), runs()), (1, 0));
    let whole = std::fs::read_to_string(&file).unwrap();
    let other =
        [whole.replace("\"me\"", "\"other\""), whole.replace("T1a", "T2a"), whole[..9].to_owned(), String::new()];
    for text in other {
        std::fs::write(&file, &text).unwrap();
        assert_eq!((runs(), runs()), (1, 0), "{text}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}
