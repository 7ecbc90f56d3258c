//! Pages for man(1): of each command, from its arguments and examples, and of the host file, from the list of its keys.

use std::io;
use std::path::Path;

use clap::{Arg, Command, CommandFactory};
use clap_mangen::Man;
use clap_mangen::roff::{Inline, Roff, bold, roman};
use sluice_config::fields::{HOST, Key, Part, Section};
use sluice_daemon::{VERSION, failure};

use crate::usage;

/// The example of the host file's page.
const HOST_EXAMPLE: &str = include_str!("../../../examples/two-vms.toml");

/// Writes all pages into a folder.
pub(crate) fn write(folder: &Path) -> io::Result<()> {
    // The page of `help` would say nothing.
    let mut command = crate::Cli::command().after_long_help(None).disable_help_subcommand(true);
    command.build();
    write_command(folder, &command, "")?;
    std::fs::write(folder.join("sluice.toml.5"), host_file())
}

fn write_command(folder: &Path, command: &Command, path: &str) -> io::Result<()> {
    for inner in command.get_subcommands() {
        write_command(folder, inner, format!("{path} {}", inner.get_name()).trim_start())?;
    }
    let page = Man::new(command.clone().override_usage(synopsis(command)));
    let page = page.source(format!("sluice {VERSION}")).manual("Sluicegate");
    let mut text = Vec::new();
    page.render_title(&mut text)?;
    page.render_name_section(&mut text)?;
    page.render_synopsis_section(&mut text)?;
    page.render_description_section(&mut text)?;
    page.render_options_section(&mut text)?;
    if command.has_subcommands() {
        page.render_subcommands_section(&mut text)?;
    }
    let mut end = Roff::new();
    end.control("SH", ["EXAMPLES"]);
    for (line, what) in usage::examples_of(path) {
        end.control("TP", []).text([bold(line)]).text([roman(what)]);
    }
    if path.is_empty() {
        verbatim(end.control("SH", ["EXIT STATUS"]), failure::CODES);
    }
    end.control("SH", ["SEE ALSO"]).text([bold("sluice"), roman("(1), "), bold("sluice.toml"), roman("(5)")]);
    end.to_writer(&mut text)?;
    std::fs::write(folder.join(page.get_filename()), text)
}

/// Returns a command with all its arguments and their values in one line; each option that may be left out is in brackets.
fn synopsis(command: &Command) -> String {
    let arguments = command.get_arguments().filter(|arg| !arg.is_hide_set() && !usage::is_help(arg));
    // Those of the command first; the ones of all commands are last.
    let (mut arguments, common): (Vec<&Arg>, Vec<&Arg>) = arguments.partition(|arg| !arg.is_global_set());
    arguments.extend(common);
    let (positional, options): (Vec<&Arg>, Vec<&Arg>) = arguments.into_iter().partition(|arg| arg.is_positional());
    let mut words = vec![command.get_bin_name().unwrap_or_else(|| command.get_name()).to_owned()];
    words.extend(options.iter().map(|arg| if arg.is_required_set() { arg.to_string() } else { format!("[{arg}]") }));
    words.extend(positional.iter().map(ToString::to_string));
    if command.has_subcommands() {
        words.push("<COMMAND>".to_owned());
    }
    words.join(" ")
}

/// Returns the page sluice.toml(5).
fn host_file() -> String {
    let mut page = Roff::new();
    page.control("TH", ["sluice.toml", "5", "", &format!("sluice {VERSION}"), "Sluicegate"]);
    page.control("SH", ["NAME"]).text([roman("sluice.toml - host file of sluice: devices, uplinks, policies and VMs")]);
    page.control("SH", ["SYNOPSIS"]).text([
        bold("/etc/sluice/sluice.toml"),
        roman(", "),
        bold("/etc/sluice/sluice.d/*.toml"),
    ]);
    page.control("SH", ["DESCRIPTION"]).text([roman(format!(
        "{}. The file is TOML. The files in the folder NAME.d whose names end in .toml are merged over NAME.toml in the order of \
         their names, so a later file overrides an earlier one.",
        HOST.doc
    ))]);
    page.control("PP", []).text(inlines(
        "Quantities have units: `k M G` are powers of 1000, `Ki Mi Gi` of 1024. A number without a unit is rejected; no limit \
         is written `unlimited`. `sluice check` reports all errors, and `sluice apply` puts a changed file into force. The \
         parameters of a scheduler are in a table with its name: `sluice schedulers NAME` describes them.",
    ));
    let parts = HOST.parts();
    let tables = parts.iter().filter_map(|part| match part {
        Part::Table(table) if !table.title.is_empty() => Some(table),
        _ => None,
    });
    for table in tables {
        write_table(&mut page, table);
    }
    verbatim(page.control("SH", ["EXAMPLES"]), HOST_EXAMPLE);
    page.control("SH", ["SEE ALSO"]);
    page.text([
        bold("sluice-check"),
        roman("(1), "),
        bold("sluice-apply"),
        roman("(1), "),
        bold("sluice-serve"),
        roman("(1)"),
    ]);
    page.to_roff()
}

fn write_table(page: &mut Roff, table: &Section) {
    page.control("SH", [format!("[{}]", table.title).as_str()]).text(inlines(&format!("{}.", table.doc)));
    for key in table.keys().filter(|key| !key.kind.has_names()) {
        let Key { name, kind, default, example, doc, .. } = key;
        let default = default.map_or(String::new(), |default| format!(" (default `{default}`)"));
        page.control("TP", []).text([bold(*name)]);
        page.text(inlines(&format!("{}, for example `{example}`{default}. {doc}.", kind.in_words())));
    }
}

/// Returns Markdown text with its code in bold.
fn inlines(text: &str) -> Vec<Inline> {
    let parts = text.split('`').enumerate();
    parts.map(|(number, part)| if number % 2 == 1 { bold(part) } else { roman(part) }).collect()
}

fn verbatim(page: &mut Roff, text: &str) {
    page.control("nf", []);
    for line in text.lines() {
        page.text([roman(line)]);
    }
    page.control("fi", []);
}
