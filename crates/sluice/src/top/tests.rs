//! Screens as text, and keys.

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use serde_json::{Value, json};
use sluice_api::top::Top;

use super::app::{Action, App, Dialog, Page};
use super::model::{Name, Object};
use super::rows::{Row, Sort, View};
use super::theme::Theme;
use super::{batch, screen};
use crate::control::{How, Request, Term};
use crate::output::rows::Form;

fn snapshot() -> Top {
    let device = json!({
        "device": "disk", "health": "serving", "full_percent": 96.0, "problems": ["has reservations of 900 iops, and gives 800 iops, for 4 s"],
        "rates": { "1s": { "normalised_iops": 1500.0, "bytes_per_second": 12_582_912.0 } },
        "capacity": { "stated_iops": 2000.0, "reserved_iops": 900.0, "verdict": "too_high" },
    });
    let broken = json!({
        "kind": "reservation", "state": "broken", "for_seconds": 4, "wanted": 500, "got": 200.0, "unit": "iops",
        "cause": "others_reservation",
    });
    let vm = |vm: &str, device: &str, now: Value, volumes: Value| {
        json!({
            "vm": vm, "device": device, "now": now, "held_by": "own_limit", "cpu_percent": if vm == "db" { 12.5 } else { 0.0 }, "volumes": volumes,
        })
    };
    let root = json!([{ "volume": "root", "now": { "outstanding": 4, "state": "kept" } }]);
    let both = json!([
        { "volume": "root", "now": { "rates": { "iops": 100.0 } } }, { "volume": "data", "now": { "rates": { "iops": 100.0 } } },
    ]);
    let web = json!({
        "state": "kept", "reservation": { "iops": 400.0 }, "limit": { "iops": 1000.0 }, "outstanding": 4,
        "rates": { "iops": 800.0, "bytes_per_second": 6_553_600.0, "p50_us": 800.0, "p99_us": 2100.0, "by_reservation_percent": 50.0 },
    });
    let db = json!({
        "state": "broken", "reservation": { "iops": 500.0 }, "limit": { "iops": 1000.0 }, "outstanding": 32, "promises": [broken],
        "rates": { "iops": 200.0, "p99_us": 45_000.0 },
    });
    let batch = json!({ "outstanding": 64, "rates": { "iops": 500.0, "p99_us": 9000.0 } });
    let vms = [vm("web", "disk", web, root), vm("db", "disk", db, both), vm("batch", "disk", batch, json!([]))];
    serde_json::from_value(json!({ "time": 1_790_000_000, "devices": [device], "vms": vms })).unwrap()
}

fn app() -> App {
    let mut app = App::new(View::default());
    app.update(snapshot());
    app
}

/// Draws it, and returns the lines without spaces at their ends.
fn lines(app: &mut App, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| screen::draw(app, frame, &Theme::plain())).unwrap();
    let buffer = terminal.backend().buffer();
    let cells: Vec<&str> = buffer.content().iter().map(|cell| cell.symbol()).collect();
    cells.chunks(usize::from(width)).map(|line| line.concat().trim_end().to_owned()).collect()
}

fn press(app: &mut App, code: KeyCode) -> Option<Action> {
    app.key(KeyEvent::new(code, KeyModifiers::NONE))
}

fn type_in(app: &mut App, text: &str) {
    for letter in text.chars() {
        assert_eq!(press(app, KeyCode::Char(letter)), None);
    }
}

fn shown(app: &App) -> Vec<String> {
    let name = |row: &Row<'_>| match row {
        Row::Device { name } => format!("[{name}]"),
        row => row.name().unwrap().target(),
    };
    app.rows().iter().map(name).collect()
}

/// A VM as the daemon replies it.
fn object(vm: Value) -> Option<Object> {
    Some(Object::Vm(serde_json::from_value(vm).unwrap()))
}

fn name(vm: &str) -> Name {
    Name { device: "disk".to_owned(), vm: vm.to_owned(), volume: None }
}

#[test]
fn the_table_shows_each_rate_in_its_band_and_marks_broken_promises_in_words() {
    let screen = lines(&mut app(), 92, 10);
    assert_eq!(
        screen,
        [
            "sluice top  1 BROKEN  3 VMs  sort: broken first  2026-09-21T14:13:20Z",
            "disk: serving  full 96 %  capacity stated TOO HIGH  reserved 900 of 2000 iops (45 %)  now 15",
            "! disk has reservations of 900 iops, and gives 800 iops, for 4 s",
            "NAME              PROMISE  RATE IN ITS BAND        IOPS   P99     HELD BY",
            "db                ! BROKEN ####-------|..........] 200    45 ms   reservations",
            "web                 kept   #########|########....] 800    2.1 ms  its own limit",
            "batch               -      ######                  500    9.0 ms  its own limit",
            "",
            "",
            "? help  d details  s set  / filter  t tree  b r l o c n sort  i reverse  q quit",
        ]
    );
}

#[test]
fn screens_of_any_size_are_drawn() {
    let reply = object(json!({ "device": "disk", "state": "kept", "histograms": { "latency": [[2.0, 1]] } }));
    for page in [None, Some('d'), Some('?'), Some('s'), Some('/'), Some('t')] {
        for (width, height) in [(1, 1), (2, 1), (1, 5), (10, 3), (20, 4), (40, 8), (60, 20), (300, 100)] {
            let mut app = app();
            app.lost = Some("x".repeat(500));
            if let Some(key) = page {
                press(&mut app, KeyCode::Char(key));
                app.update_details(&name("db"), reply.clone());
            }
            lines(&mut app, width, height);
            press(&mut app, KeyCode::End);
            lines(&mut app, width, height);
        }
    }
    let narrow = lines(&mut app(), 30, 8);
    assert_eq!(narrow[3], "NAME         PROMISE  IOPS");
    assert_eq!(narrow[4], "db           ! BROKEN 200");
}

#[test]
fn the_tree_has_devices_vms_and_volumes() {
    let mut app = app();
    press(&mut app, KeyCode::Char('t'));
    assert_eq!(shown(&app), ["[disk]", "db", "db/root", "db/data", "web", "web/root", "batch"]);
    let screen = lines(&mut app, 60, 12);
    assert!(screen[5].starts_with("  db") && screen[6].starts_with("    root"), "{screen:#?}");
    press(&mut app, KeyCode::Home);
    assert_eq!(app.selected, Some(name("db")), "a device cannot be selected");
    press(&mut app, KeyCode::Down);
    assert_eq!(app.selected.as_ref().unwrap().target(), "db/root");
    press(&mut app, KeyCode::Char('t'));
    assert!(!app.view.tree && app.selected.is_some(), "a VM is selected when the volumes go");
}

#[test]
fn keys_sort_and_filter() {
    let mut app = app();
    for (key, sort, order) in [
        ('n', Sort::Name, ["batch", "db", "web"]),
        ('r', Sort::Rate, ["web", "batch", "db"]),
        ('l', Sort::Latency, ["db", "batch", "web"]),
        ('o', Sort::Outstanding, ["batch", "db", "web"]),
        ('c', Sort::Cpu, ["db", "batch", "web"]),
        ('b', Sort::Broken, ["db", "web", "batch"]),
    ] {
        press(&mut app, KeyCode::Char(key));
        assert_eq!((app.view.sort, shown(&app)), (sort, order.map(str::to_owned).to_vec()));
    }
    press(&mut app, KeyCode::Char('i'));
    assert_eq!(shown(&app), ["batch", "web", "db"]);
    press(&mut app, KeyCode::Char('/'));
    type_in(&mut app, "WEBx");
    press(&mut app, KeyCode::Backspace);
    assert_eq!(shown(&app), ["web"], "while it is typed in");
    press(&mut app, KeyCode::Enter);
    press(&mut app, KeyCode::Char('/'));
    type_in(&mut app, "q");
    press(&mut app, KeyCode::Esc);
    assert_eq!((shown(&app), app.dialog.is_none()), (vec!["web".to_owned()], true), "the filter is as before");
    press(&mut app, KeyCode::Esc);
    assert_eq!(shown(&app).len(), 3);
    press(&mut app, KeyCode::Char('/'));
    type_in(&mut app, "broken");
    assert_eq!(shown(&app), ["db"], "a state can be looked for");
    assert_eq!(press(&mut app, KeyCode::Enter), None);
    assert_eq!(press(&mut app, KeyCode::Char('q')), Some(Action::Quit));
}

#[test]
fn the_selection_stays_on_its_vm_when_the_order_changes_and_moves_on_when_the_vm_goes() {
    let mut app = app();
    press(&mut app, KeyCode::Down);
    assert_eq!(app.selected, Some(name("web")));
    press(&mut app, KeyCode::Char('n'));
    let mut changed = snapshot();
    changed.vms.reverse();
    app.update(changed.clone());
    assert_eq!(app.selected, Some(name("web")));
    changed.vms.retain(|vm| vm.vm != "web");
    app.update(changed);
    assert_eq!(app.selected, Some(name("db")), "the last one");
    app.update(Top::default());
    assert!(lines(&mut app, 60, 6).iter().any(|line| line == "There are no VMs"));
    assert_eq!(press(&mut app, KeyCode::Down), None);
}

#[test]
fn details_show_the_histogram_with_percentiles_and_target() {
    let mut app = app();
    assert_eq!(press(&mut app, KeyCode::Enter), Some(Action::Look(Some(name("db")))));
    let histogram = json!([[1.024, 10], [1.152, 10], [4.096, 60], [4.608, 18], [65.536, 2]]);
    let described = json!({
        "device": "disk", "state": "kept", "policy": { "latency_p99_us": 20.0 },
        "histograms": { "seconds": 60.0, "latency": histogram, "queue_time": [], "service_time": [] },
    });
    app.update_details(&name("web"), object(json!({ "device": "disk" })));
    assert_eq!(app.details, None, "a reply about another VM");
    app.update_details(&name("db"), object(described));
    let screen = lines(&mut app, 54, 22);
    let start = screen.iter().position(|line| line.starts_with("Latency")).unwrap();
    assert_eq!(
        screen[start..start + 11],
        [
            "Latency, from arrival to completion, last 60 s",
            "<    1 us |##              10  10.0 %",
            "<    2 us |##              10  10.0 %",
            "<    4 us |########        60  60.0 % p50",
            "<    8 us |###             18  18.0 %",
            "<   16 us |                 0   0.0 %",
            "<   33 us |                 0   0.0 % target",
            "<   66 us |#                2   2.0 % p99",
            "",
            "At the gate, from arrival to dispatch, last 60 s",
            "no requests",
        ]
    );
    assert_eq!((press(&mut app, KeyCode::Esc), app.page), (Some(Action::Look(None)), Page::Table));
}

#[test]
fn a_change_is_confirmed_next_to_what_is_in_force_and_a_refusal_is_shown() {
    let mut app = app();
    assert_eq!(press(&mut app, KeyCode::Char('s')), Some(Action::Look(Some(name("db")))));
    let policy = json!({ "limit_iops": 1000.0, "limit_bytes_per_second": null, "weight": 100.0 });
    app.update_details(&name("db"), object(json!({ "device": "disk", "policy": policy })));
    type_in(&mut app, "limit");
    press(&mut app, KeyCode::Enter);
    let screen = lines(&mut app, 80, 20).join("\n");
    assert!(screen.contains("write KEY=VALUE as in the host file"), "{screen}");
    type_in(&mut app, "=800 iops");
    press(&mut app, KeyCode::Tab);
    assert_eq!(press(&mut app, KeyCode::Enter), None, "not before it is confirmed");
    let screen = lines(&mut app, 80, 20).join("\n");
    for part in [
        "Set db: limit=800 iops",
        "now limit_iops = 1000",
        "now limit_bytes_per_second = -",
        "until the daemon is stopped",
        "y: change it",
    ] {
        assert!(screen.contains(part), "{part}\n{screen}");
    }
    let how = How { term: Term::UntilRestart, ..How::default() };
    let keys = "limit = \"800 iops\"".parse().unwrap();
    let sent = press(&mut app, KeyCode::Char('y'));
    let request = Request::Set { target: "db".to_owned(), keys, reset: Vec::new(), how };
    assert_eq!(sent, Some(Action::Send(request)));
    assert_eq!(press(&mut app, KeyCode::Char('y')), None, "it is sent once");
    app.update_change(Err("VM db reserves more than its limit\nlower the reservation".to_owned()));
    let screen = lines(&mut app, 80, 20).join("\n");
    for part in ["REFUSED; nothing has changed", "VM db reserves more than its limit", "lower the reservation"] {
        assert!(screen.contains(part), "{part}\n{screen}");
    }
    press(&mut app, KeyCode::Enter);
    assert!(
        matches!(&app.dialog, Some(Dialog::Change(change)) if change.text == "limit=800 iops"),
        "it can be corrected"
    );
    assert_eq!(press(&mut app, KeyCode::Esc), Some(Action::Look(None)));
    assert!(app.dialog.is_none());
}

#[test]
fn a_lost_daemon_is_stated_and_the_last_figures_stay() {
    let mut app = app();
    (app.lost, app.silent_seconds) = (Some("No daemon at /run/a.sock".to_owned()), 7);
    let screen = lines(&mut app, 80, 12);
    assert_eq!(screen[1], "NO CONNECTION for 7 s, trying again: No daemon at /run/a.sock");
    assert!(screen.iter().any(|line| line.starts_with("web")), "{screen:#?}");
    (app.lost, app.silent_seconds) = (None, 9);
    assert_eq!(lines(&mut app, 80, 12)[1], "NO REPLY for 9 s: all figures are old");
    app.update(snapshot());
    assert!(lines(&mut app, 80, 12)[1].starts_with("disk: serving"));
}

#[test]
fn batch_output_has_the_vms_in_the_chosen_order() {
    let view = View { sort: Sort::Name, filter: "b".to_owned(), ..View::default() };
    let json: Value = serde_json::from_str(&batch::shown(&snapshot(), &view, Form::Json)).unwrap();
    let names: Vec<&Value> = json["vms"].as_array().unwrap().iter().map(|vm| &vm["vm"]).collect();
    assert_eq!((&json["ok"], names), (&json!(true), vec![&json!("batch"), &json!("db"), &json!("web")]));
    assert_eq!(json["vms"][1]["now"]["rates"]["iops"], 200.0);
    assert_eq!(batch::shown(&snapshot(), &view, Form::Jsonl).lines().count(), 3);
    assert!(batch::shown(&snapshot(), &view, Form::Csv).starts_with("time,vm,device,"));
    let table = batch::shown(&snapshot(), &view, Form::Table);
    assert!(table.lines().any(|line| line.contains("db") && line.contains("BROKEN")), "{table}");
}
