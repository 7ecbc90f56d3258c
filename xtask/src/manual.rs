//! `cargo xtask manual`: the pages of the manual that are generated from the code.
//!
//! The keys of the host file and of the scenario file, the schedulers, and the verbs of the binary are lists in the
//! code. The pages generated from them are committed, and a test compares them with the code.

use crate::{Verb, workspace};
use serde_json::Value;
use sluice_api::problem::Kind;
use sluice_config::fields::{Choice, HOST, Key, Part, Section};
use sluice_io::backend::rings::{FLAGS, OPERATIONS, REGISTRATIONS};
use sluice_io::jail::calls::{CALLS, DEADLY, Feature, Only, Socket, plain};
use sluice_sched::Descriptor;
use sluice_sim::scenario::file::fields::SCENARIO;
use std::fmt::Write;
use std::process::ExitCode;

/// Generate docs/host-file.md, docs/scenario-file.md, docs/sealed.md, docs/schedulers/*.md, docs/commands.md, docs/openapi.json and the tables of docs/api.md from the code.
#[derive(clap::Args)]
pub(crate) struct Manual {}

impl Verb for Manual {
    const NAME: &'static str = "manual";

    fn run(self) -> Result<ExitCode, String> {
        // The page of the API is made from its document.
        write(API_DOCUMENT, &said(&["schema", "api"])?)?;
        let mut pages = pages();
        pages.push(("docs/commands.md".to_owned(), commands()?));
        for (path, text) in pages {
            write(&path, &text)?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn write(path: &str, text: &str) -> Result<(), String> {
    let file = workspace::root().join(path);
    std::fs::create_dir_all(file.parent().expect("pages lie in docs")).map_err(|error| error.to_string())?;
    std::fs::write(&file, text).map_err(|error| format!("Cannot write {path}: {error}"))?;
    println!("{path}");
    Ok(())
}

/// The OpenAPI document of the control socket.
const API_DOCUMENT: &str = "docs/openapi.json";

/// Returns the path and text of each generated page.
fn pages() -> Vec<(String, String)> {
    let mut pages = vec![
        ("docs/host-file.md".to_owned(), host_file()),
        ("docs/scenario-file.md".to_owned(), scenario_file()),
        ("docs/sealed.md".to_owned(), sealed()),
        ("docs/api.md".to_owned(), api()),
    ];
    for descriptor in sluice_papers::ALL {
        pages.push((format!("docs/schedulers/{}.md", descriptor.name), scheduler(descriptor)));
    }
    pages
}

const MADE: &str = "<!-- Made by `cargo xtask manual`; change the code instead. -->\n\n";

fn host_file() -> String {
    let mut text = format!("{MADE}# The host file\n\n{}.\n\n", HOST.doc);
    text.push_str(
        "The file is TOML. Quantities have units: `k M G` are powers of 1000, `Ki Mi Gi` of 1024. A number without a \
         unit is rejected; no limit is written `unlimited`. The files in the folder `NAME.d` whose names end in \
         `.toml` are merged over `NAME.toml` in the order of their names, so a later file overrides an earlier one. \
         `sluice check` reports all errors; `sluice schema` prints the keys as a JSON Schema. Complete examples are in \
         the folder `examples`.\n",
    );
    parts(&mut text, &HOST);
    text
}

fn scenario_file() -> String {
    let mut text = format!("{MADE}# The scenario file\n\n{}.\n\n", SCENARIO.doc);
    text.push_str(
        "The file is TOML and uses the keys of the [host file](host-file.md) where they have the same meaning. \
         Quantities have units; a number without a unit is rejected. Paths are relative to the folder of the scenario \
         file. `sluice sim check` reports all errors; `sluice schema scenario` prints the keys as a JSON Schema. [The \
         simulator](simulator.md) explains scenarios. Complete examples are in the folder `examples`.\n",
    );
    parts(&mut text, &SCENARIO);
    text
}

/// The page of the API: its text, with tables of all resources and of all codes.
fn api() -> String {
    let read = |path: &str| std::fs::read_to_string(workspace::root().join(path)).unwrap_or_default();
    let document: Value = serde_json::from_str(&read(API_DOCUMENT)).unwrap_or_default();
    let mut resources = "| | | |\n|---|---|---|\n".to_owned();
    for (path, methods) in document["paths"].as_object().into_iter().flatten() {
        for (method, operation) in methods.as_object().into_iter().flatten() {
            let query = operation["parameters"].as_array().into_iter().flatten().filter(|one| one["in"] == "query");
            let names: Vec<&str> = query.filter_map(|one| one["name"].as_str()).collect();
            let query = if names.is_empty() { String::new() } else { format!(" `?{}`", names.join(" ")) };
            let what = operation["summary"].as_str().unwrap_or_default();
            let _ = writeln!(resources, "| `{}` | `{path}` | {what}{query} |", method.to_uppercase());
        }
    }
    let mut codes = "| status | `code` | |\n|---|---|---|\n".to_owned();
    for (status, code, title) in Kind::ALL.map(Kind::parts) {
        let _ = writeln!(codes, "| {status} | `{code}` | {title} |");
    }
    let page = with_table(&read("docs/api.md"), "resources", &resources);
    with_table(&page, "codes", &codes)
}

/// Puts a table between the two comments of its name.
fn with_table(page: &str, name: &str, table: &str) -> String {
    let (begin, end) = (format!("<!-- {name}: made by `cargo xtask manual` -->\n"), format!("<!-- end of {name} -->"));
    let (before, rest) = page.split_once(&begin).expect("the page has a place for the table");
    let (_, after) = rest.split_once(&end).expect("the place ends");
    format!("{before}{begin}\n{table}\n{end}{after}")
}

/// What a sealed daemon may do, from the lists that the kernel gets.
fn sealed() -> String {
    let mut text = format!("{MADE}# What a sealed daemon may do\n\n");
    text.push_str(
        "The daemon [seals itself](service.md#the-seal) before it serves. These are the lists that the kernel gets, each with the reason. A call \
         that is not on them fails with ENOSYS, is counted and logged. Folders come from the host file: `sluice check --unit` names them.\n\n\
         ## System calls\n\n| why | calls | with which arguments |\n|---|---|---|\n",
    );
    for group in CALLS {
        let names: Vec<String> = group.calls.iter().map(|(name, _)| format!("`{}`", plain(name))).collect();
        let _ = writeln!(text, "| {} | {} | {} |", group.reason, names.join(" "), arguments(group.only));
    }
    let deadly: Vec<String> = DEADLY.iter().map(|(name, _)| format!("`{}`", plain(name))).collect();
    let _ = write!(text, "\nThe daemon never makes these, and one of them ends it: {}.\n", deadly.join(" "));
    text.push_str("\n## Operations of io_uring\n\n| operation | why |\n|---|---|\n");
    for operation in OPERATIONS {
        let _ = writeln!(text, "| `{}` | {} |", operation.name, operation.reason);
    }
    let _ = write!(
        text,
        "\nFlags of an operation: `{:?}`. Register operations:\n\n| operation | why |\n|---|---|\n",
        FLAGS
    );
    for operation in REGISTRATIONS {
        let _ = writeln!(text, "| `{}` | {} |", operation.name, operation.reason);
    }
    text
}

/// With which arguments calls are allowed, in words.
fn arguments(only: Only) -> String {
    let listed =
        |values: &[(&str, u64)]| values.iter().map(|(name, _)| format!("`{name}`")).collect::<Vec<_>>().join(" ");
    let socket = |socket: &Socket| match socket.feature {
        Feature::Always => socket.name.to_owned(),
        Feature::Tcp => format!("{} (if the host file has a TCP port)", socket.name),
        Feature::Links => format!("{} (if it has an uplink)", socket.name),
    };
    match only {
        Only::All => "any".to_owned(),
        Only::One(_, values) => listed(values),
        Only::Bits(_, _, _, words) => words.to_owned(),
        Only::Own(_) => "of this process".to_owned(),
        Only::Sockets(sockets) => sockets.iter().map(socket).collect::<Vec<_>>().join(", "),
    }
}

/// Writes the options of a choice, each with its parameters.
fn choice(text: &mut String, choice: &Choice) {
    let _ = write!(text, "\n## `[{}]`\n\n{}.\n", choice.title, choice.doc);
    for option in (choice.options)() {
        let _ = write!(text, "\n### `type = \"{}\"`\n\n{}.\n\n", option.name, option.summary);
        if let Some((like, numbers)) = option.like {
            let numbers: Vec<String> = numbers.iter().map(|(name, value)| format!("`{name} = {value}`")).collect();
            let _ = writeln!(text, "It is `{like}` with {}; its other keys are the same.", numbers.join(", "));
            continue;
        }
        text.push_str("| key | what it may be | default | meaning |\n|---|---|---|---|\n");
        for parameter in option.parameters {
            let help = parameter.help.replace('|', "\\|");
            let _ =
                writeln!(text, "| `{}` | {} | `{}` | {help} |", parameter.name, parameter.accepts(), parameter.default);
        }
    }
}

/// Writes the tables of a file, and its lists of options.
fn parts(text: &mut String, file: &'static Section) {
    for part in file.parts() {
        match part {
            Part::Table(table) => section(text, table),
            Part::Choice(known) => choice(text, known),
        }
    }
}

fn section(text: &mut String, table: &Section) {
    if table.title.is_empty() {
        return;
    }
    let _ = write!(text, "\n## `[{}]`\n\n{}.\n\n", table.title, table.doc);
    text.push_str("| key | what it may be | default | meaning |\n|---|---|---|---|\n");
    for key in table.keys().filter(|key| !key.kind.has_names()) {
        row(text, key);
    }
    if !table.scheduler_tables.is_empty() {
        text.push_str(
            "\nThe parameters of the scheduler are in a table with the scheduler's name: see \
             [schedulers](schedulers).\n",
        );
    }
}

fn row(text: &mut String, key: &Key) {
    let default = key.default.map_or(String::new(), |default| format!("`{default}`"));
    let doc = key.doc.replace('|', "\\|");
    let _ = writeln!(
        text,
        "| `{}` | {}, for example `{}` | {default} | {doc} |",
        key.name,
        key.kind.in_words(),
        key.example
    );
}

fn scheduler(descriptor: &Descriptor) -> String {
    let Descriptor { name, summary, idea, when, source, .. } = descriptor;
    let mut text = format!(
        "{MADE}# {name}\n\n{summary}\n\n## Idea\n\n{idea}\n\n## When to use it\n\n{when} {}\n\n",
        descriptor.about_classes()
    );
    text.push_str("## Policy fields that it enforces\n\n");
    if descriptor.enforces.is_empty() {
        text.push_str("None: a policy that states one is rejected.\n");
    }
    for (field, how) in descriptor.enforces {
        let _ = writeln!(text, "- `{}`: {how}", field.name());
    }
    let _ = writeln!(text, "\n{}", descriptor.about_volumes());
    let _ = write!(text, "\n## Parameters in `[device.NAME.{name}]`\n\n");
    if descriptor.parameters.is_empty() {
        text.push_str("None.\n");
    }
    for parameter in descriptor.parameters {
        let (kind, default, help) = (parameter.accepts(), parameter.default, parameter.help);
        let _ = writeln!(text, "- `{}` ({kind}; default `{default}`): {help}", parameter.name);
    }
    let _ = write!(text, "\n## Source\n\n{source}\n");
    text
}

/// Returns the page of the binary's help texts.
fn commands() -> Result<String, String> {
    let help = said;
    let main = help(&["--help"])?;
    let mut text = format!("{MADE}# Commands\n\n```text\n{main}```\n");
    for verb in subcommands(&main) {
        let page = help(&[&verb, "--help"])?;
        let _ = write!(text, "\n## sluice {verb}\n\n```text\n{page}```\n");
        for inner in subcommands(&page) {
            let page = help(&[&verb, &inner, "--help"])?;
            let _ = write!(text, "\n### sluice {verb} {inner}\n\n```text\n{page}```\n");
        }
    }
    Ok(text)
}

/// Returns what the binary prints, without spaces at the ends of lines.
fn said(arguments: &[&str]) -> Result<String, String> {
    let run = workspace::cargo()
        .args(["run", "--quiet", "--package", "sluice", "--"])
        .args(arguments)
        .env("COLUMNS", "100")
        .output()
        .map_err(|error| format!("Cannot start cargo: {error}"))?;
    if !run.status.success() {
        let said = String::from_utf8_lossy(&run.stderr).into_owned();
        return Err(format!("sluice {} failed, and the page stays as it was: {said}", arguments.join(" ")));
    }
    let text = String::from_utf8(run.stdout).map_err(|_| "What it prints is not UTF-8".to_owned())?;
    Ok(text.lines().map(|line| format!("{}\n", line.trim_end())).collect())
}

/// Returns the verbs listed in a help text.
fn subcommands(help: &str) -> Vec<String> {
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    // A verb is indented by two spaces; lines with a deeper indent continue its description.
    let verbs = listed.take_while(|line| !line.is_empty()).filter(|line| !line.starts_with("   "));
    let names = verbs.filter_map(|line| line.split_whitespace().next()).filter(|verb| *verb != "help");
    names.map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_table_appears_twice_and_every_key_has_a_table() {
        for (path, text) in pages() {
            let mut titles = BTreeSet::new();
            let twice = text.lines().filter(|line| line.starts_with('#')).find(|line| !titles.insert(*line));
            assert_eq!(twice, None, "{path}");
        }
        let policy = host_file();
        let policy = policy.split("## `[policy.NAME]`").nth(1).and_then(|rest| rest.split("\n## ").next()).unwrap();
        assert!(policy.contains("| `latency` | `\"none\"`, or a table, see `[policy.NAME.latency]`"), "{policy}");
    }

    #[test]
    fn the_committed_pages_match_the_code() {
        for (path, text) in pages() {
            let written = std::fs::read_to_string(workspace::root().join(&path)).unwrap_or_default();
            assert!(written == text, "{path} does not match the code; run `cargo xtask manual`");
        }
    }
}
