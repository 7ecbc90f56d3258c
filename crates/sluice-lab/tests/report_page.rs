//! `report.html` in a browser: what a reader sees, in light and dark, on a wide and on a narrow screen.

use std::path::Path;

use crate::common::browser::{DARK, LIGHT, NARROW, assert_nothing_covered, look, screenshot, shades};
use crate::common::{Place, run, sluice};
use serde_json::Value;

#[test]
fn a_reader_sees_charts_whose_text_covers_nothing_in_light_and_dark() {
    let place = Place::new();
    let out = place.file("out");
    let ended = run(sluice().args(["reproduce", "M3", "M6", "--quick", "--out"]).arg(&out));
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    let html = std::fs::read_to_string(out.join("report.html")).unwrap();
    assert!(!html.contains("<script"));
    let page = out.join("report.html");
    let light = look(&page, &LIGHT);
    assert_eq!(light["charts"], 2, "{light}");
    assert_nothing_covered(&light);
    assert!(light["links"].as_u64().unwrap() >= 4, "the verdicts, the paper and two figures: {light}");
    for name in ["VM1", "VM2", "VM3", "limit of VM2", "the paper", "product, r = 512"] {
        assert!(light["labels"].as_array().unwrap().contains(&name.into()), "{name}: {light}");
    }
    assert!(light["used"].as_f64().unwrap() > 0.8, "{light}");
    assert_eq!((&light["scrolls"], &light["notes_in_cells"]), (&false.into(), &0.into()));
    assert!(light["notes"].as_u64().unwrap() >= 1);
    assert!(shades(&light).0 > 0.9 && shades(&light).1 < 0.2, "{light}");

    let dark = look(&page, &DARK);
    assert!(shades(&dark).0 < 0.2 && shades(&dark).1 > 0.8, "{dark}");
    let narrow = look(&page, &NARROW);
    assert_eq!(narrow["scrolls"], false, "tables scroll within the page: {narrow}");

    for (name, options) in [("light", LIGHT), ("dark", DARK)] {
        screenshot(&page, &out.join(format!("{name}.png")), &options);
    }
}

#[test]
fn the_page_of_real_io_shows_paper_simulation_and_both_protocols() {
    let place = Place::new();
    let out = place.file("out");
    // Whether values are near depends on the machine.
    let ended = run(sluice().args(["reproduce", "--real", "M3", "M6", "--quick", "--out"]).arg(&out));
    assert!(matches!(ended.code(), Some(0 | 1)), "{}", ended.stderr);
    let page = out.join("real.html");
    let light = look(&page, &LIGHT);
    // Bars are those of Table 4, which runs over one protocol; the values of Fig. 5 are in a table.
    let html = std::fs::read_to_string(&page).unwrap();
    assert!(html.contains(">nbd</th>") && html.contains(">vhost-user-blk</th>"), "both protocols");
    assert!(!html.contains("](") && !html.contains('`'), "no Markdown");
    // Fig. 5 over time; Table 4 as throughput and latency of four VMs.
    assert_eq!(light["charts"], 9, "{light}");
    assert_nothing_covered(&light);
    for name in ["VM1", "limit of VM2", "the paper", "paper", "simulated", "vhost-user-blk", "r = 512"] {
        assert!(light["labels"].as_array().unwrap().contains(&name.into()), "{name}: {light}");
    }
    let dark = look(&page, &DARK);
    assert!(shades(&dark).0 < 0.2 && shades(&dark).1 > 0.8, "{dark}");
    for (name, options) in [("light", LIGHT), ("dark", DARK)] {
        screenshot(&page, &out.join(format!("real-{name}.png")), &options);
    }
    let results: Value = serde_json::from_str(&std::fs::read_to_string(out.join("real.json")).unwrap()).unwrap();
    assert_eq!(results["figures"].as_array().unwrap().len(), 2, "{results}");
}

#[test]
fn the_page_of_the_simulator_draws_reservations_and_limits() {
    let place = Place::new();
    let scenario = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/scenario-division.toml");
    let out = place.file("out");
    run(sluice().args(["sim", "run"]).arg(scenario).arg("--out").arg(&out)).ok();
    let seen = look(&out.join("report.html"), &LIGHT);
    assert_nothing_covered(&seen);
    for name in ["reservation of vm1 and vm2", "vm3"] {
        assert!(seen["labels"].as_array().unwrap().contains(&name.into()), "{name}: {seen}");
    }
    screenshot(&out.join("report.html"), &out.join("simulator.png"), &LIGHT);
}
