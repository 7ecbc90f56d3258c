//! The manual says what the binary says.

use std::path::Path;
use std::process::Command;

fn help(arguments: &[&str]) -> String {
    let run = Command::new(env!("CARGO_BIN_EXE_sluice")).args(arguments).env("COLUMNS", "100").output();
    let output = run.expect("the binary starts");
    assert!(output.status.success(), "{arguments:?}");
    let text = String::from_utf8(output.stdout).expect("help is UTF-8");
    text.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

#[test]
fn every_command_is_in_the_manual_as_it_describes_itself() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/commands.md");
    let manual = std::fs::read_to_string(path).expect("the manual is there");
    let main = help(&["--help"]);
    assert!(manual.contains(&main), "run `cargo xtask manual`");
    let listed = main.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let verbs: Vec<_> = listed
        .filter(|line| !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|verb| *verb != "help")
        .collect();
    assert!(verbs.contains(&"serve") && verbs.contains(&"demo"), "{verbs:?}");
    for verb in verbs {
        let page = format!("## sluice {verb}\n\n```text\n{}```\n", help(&[verb, "--help"]));
        assert!(manual.contains(&page), "{verb}: run `cargo xtask manual`");
    }
}
