//! Whole texts of errors, and how they are shown.

use super::*;

#[test]
fn the_whole_text_of_an_unknown_key() {
    assert_eq!(
        refused(&GOOD.replace("weight", "wieght")),
        "error: Policy p: unknown key 'wieght'
 --> host.toml:6:1
  |
6 | wieght = 100
  | ^^^^^^
  = hint: did you mean 'weight'?

1 error"
    );
}

#[test]
fn the_whole_text_of_a_missing_unit() {
    assert_eq!(
        refused(&GOOD.replace("weight = 100", "limit = \"2000\"")),
        "error: Policy p: limit: '2000' has no unit
 --> host.toml:6:9
  |
6 | limit = \"2000\"
  |         ^^^^^^
  = hint: write for example \"2000 iops\" or \"2000MiB/s\"

1 error"
    );
}

#[test]
fn the_whole_text_of_a_reservation_over_the_capacity() {
    let more = "[vm.b]\nreservation = \"700 iops\"\n[vm.b.volume.v]\ndevice = \"d\"\nsource = \"/srv/vm/b.img\"\n\
                export = { socket = \"/run/sluice/b.sock\" }\n";
    let text = GOOD.replace("weight = 100", "reservation = \"600 iops@8KiB\"") + more;
    assert_eq!(
        refused(&text),
        "error: Device d: VM b reserves 700 iops@8KiB, 70% of the device by requests (capacity = 1000 iops@8KiB); 1 VM \
         already reserves 60%, with this one 130%; at most 98% can be reserved because weight_floor is 2%: short by 32% \
         (already reserved: a 60% by requests)
  --> host.toml:14:15
   |
14 | reservation = \"700 iops\"
   |               ^^^^^^^^^^
   = hint: lower it to at most 380 iops@8KiB, place the VM on another device, or set a lower weight_floor in \
         [device.d.mclock]

1 error"
    );
}

#[test]
fn the_whole_text_of_what_is_not_toml() {
    assert_eq!(
        refused("[device.d]\npath = /dev/sda\n"),
        "error: Not TOML: string values must be quoted, expected literal string
 --> host.toml:2:8
  |
2 | path = /dev/sda
  |        ^^^^^^^^
  = hint: correct this first; the rest of the file was not read

1 error"
    );
}

#[test]
fn the_whole_text_of_a_warning_next_to_an_error() {
    let text = GOOD.replace("source =", "cache = \"buffered\"\nsource =").replace("/run/", "run/");
    assert_eq!(
        refused(&text),
        "warning: Volume a/v: guarantees do not apply, because the kernel writes back its page cache without the scheduler
  --> host.toml:11:9
   |
11 | cache = \"buffered\"
   |         ^^^^^^^^^^
   = hint: remove cache = \"buffered\"

error: Volume a/v: export.socket: 'run/sluice/a.sock' is a relative path
  --> host.toml:13:21
   |
13 | export = { socket = \"run/sluice/a.sock\" }
   |                     ^^^^^^^^^^^^^^^^^^^
   = hint: write an absolute path, for example \"/run/sluice/db1-root.sock\"

1 error, 1 warning"
    );
}

#[test]
fn ten_errors_are_ten_diagnostics() {
    let text = r#"
[device.d]
paht = "/dev/sda"
depth = 0
capacity = 1000
[policy.p]
limit = 0
wait = 3
[vm.a]
policy = "gold"
[vm.a.volume.v]
device = "e"
source = "a.img"
export = { type = "iscsi", socket = "a.sock" }
"#;
    let found = parse("host.toml", text).unwrap_err();
    let lines: Vec<u32> = found.0.iter().map(|found| found.line).collect();
    // Line 2, because the misspelt path is also missing.
    assert_eq!(lines, [2, 3, 4, 5, 7, 8, 10, 12, 13, 14, 14], "{found}");
    assert_eq!((found.errors(), found.warnings()), (11, 0));
}

#[test]
fn json_diagnostics_have_positions_for_editors() {
    let found = parse("host.toml", &GOOD.replace("weight", "wieght")).unwrap_err();
    assert_eq!(
        serde_json::to_value(&found).unwrap(),
        serde_json::json!([{
            "severity": "error",
            "file": "host.toml",
            "line": 6,
            "column": 1,
            "length": 6,
            "message": "Policy p: unknown key 'wieght'",
            "hint": "did you mean 'weight'?",
        }])
    );
}

#[test]
fn the_number_of_diagnostics_is_limited() {
    let text: String = (0..3000).map(|n| format!("key{n} = 1\n")).collect();
    let found = parse("host.toml", &text).unwrap_err();
    assert_eq!(found.0.len(), DIAGNOSTICS_MAX + 1);
    assert_eq!(found.0[DIAGNOSTICS_MAX].message, "2000 more findings are not shown");
    let text: String = (0..10_001).map(|n| format!("[vm.v{n}]\n")).collect();
    assert_eq!(parse("host.toml", &text).unwrap_err().0[0].message, "Host file: 10001 tables of 'vm' are too many");
}

#[test]
fn text_of_a_file_cannot_control_the_terminal() {
    let shown = refused("\"\\u001b[2J\" = 1\n");
    assert!(!shown.contains('\u{1b}'), "{shown}");
    let shown = refused("a = \u{1b}[2J\n");
    assert!(!shown.contains('\u{1b}'), "{shown}");
}
