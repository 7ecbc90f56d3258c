//! The manual matches the binary's help.

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
fn every_help_text_is_in_the_manual() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/commands.md");
    let manual = std::fs::read_to_string(path).expect("the manual is there");
    let main = help(&["--help"]);
    assert!(manual.contains(&main), "run `cargo xtask manual`");
    let verbs = subcommands(&main);
    assert!(["serve", "demo", "sim"].iter().all(|known| verbs.iter().any(|verb| verb == known)), "{verbs:?}");
    for verb in verbs {
        let own = help(&[&verb, "--help"]);
        let page = format!("## sluice {verb}\n\n```text\n{own}```\n");
        assert!(manual.contains(&page), "{verb}: run `cargo xtask manual`");
        for inner in subcommands(&own) {
            let page = format!("### sluice {verb} {inner}\n\n```text\n{}```\n", help(&[&verb, &inner, "--help"]));
            assert!(manual.contains(&page), "{verb} {inner}: run `cargo xtask manual`");
        }
    }
}

#[test]
fn every_command_has_a_manual_page() {
    let folder = tempfile::tempdir().unwrap();
    let run = Command::new(env!("CARGO_BIN_EXE_sluice")).arg("man").arg(folder.path()).output().unwrap();
    assert!(run.status.success(), "{run:?}");
    let page = |name: &str| std::fs::read_to_string(folder.path().join(format!("{name}.1"))).expect(name);
    assert!(page("sluice").contains("5  No daemon listens at the control socket"), "exit codes");
    for verb in subcommands(&help(&["--help"])) {
        let text = page(&format!("sluice-{verb}"));
        assert!(text.contains(".SH OPTIONS") && text.contains(".SH EXAMPLES\n.TP"), "{verb}: {text}");
        for inner in subcommands(&help(&[&verb, "--help"])) {
            let text = page(&format!("sluice-{verb}-{inner}"));
            assert!(text.contains(".SH EXAMPLES\n.TP"), "{verb} {inner}: {text}");
        }
    }
    let synopsis = page("sluice-set").replace('\\', "");
    assert!(synopsis.contains("[--for <TIME>]") && synopsis.contains("<TARGET> <KEY=VALUE>..."), "{synopsis}");
    let host = std::fs::read_to_string(folder.path().join("sluice.toml.5")).unwrap();
    for part in ["SH [device.NAME]", "SH [vm.NAME.volume.NAME]", "fBreservationfR", "SH EXAMPLES"] {
        assert!(host.replace(['\\', '"'], "").contains(part), "{part}: {host}");
    }
}

fn subcommands(help: &str) -> Vec<String> {
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let verbs = listed.filter(|line| !line.starts_with("   ")).filter_map(|line| line.split_whitespace().next());
    verbs.filter(|verb| *verb != "help").map(str::to_owned).collect()
}
