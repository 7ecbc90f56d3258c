//! Choice of a model or workload by name, with its parameters.

use std::path::Path;

use sluice_sched::params::{self, ParamError, ParamTable, Parameter, Value as Param};

use sluice_config::device::param_of;
use sluice_config::fields::Choice;
use sluice_config::reader::{Reader, one_of};
use sluice_config::tree::{Node, Table, Value};

/// Kind of a parameter that names a file.
const FILE: &str = "a file";

/// The chosen name, its position, and the entries next to it.
pub(super) struct Chosen<'a> {
    pub(super) name: &'a str,
    /// Position of the name.
    pub(super) named: &'a Node,
    table: Option<&'a Table>,
}

/// A name, or a table with a `type`; otherwise reports an error and returns `None`.
pub(super) fn chosen<'a>(title: &str, node: &'a Node, choice: &Choice, reader: &Reader<'_>) -> Option<Chosen<'a>> {
    let names = || (choice.options)().into_iter().map(|option| option.name).collect::<Vec<_>>();
    match &node.value {
        Value::Text(name) => Some(Chosen { name, named: node, table: None }),
        Value::Table(table) => match table.entries.get("type") {
            Some(named @ Node { value: Value::Text(name), .. }) => Some(Chosen { name, named, table: Some(table) }),
            Some(named) => {
                let message = format!("{title}.type must be text, not {}", named.value.words());
                reader.report.error(named.span, message, format!("write {}", one_of(names())));
                None
            }
            None => {
                let message = format!("{title}: type is missing");
                reader.report.error(node.span, message, format!("add type = {}", one_of(names())));
                None
            }
        },
        other => {
            let message = format!("{title} must be a name or a table with a type, not {}", other.words());
            reader.report.error(node.span, message, format!("write for example {{ type = \"{}\" }}", names()[0]));
            None
        }
    }
}

/// Reports an unknown name.
pub(super) fn unknown(title: &str, chosen: &Chosen<'_>, what: &str, names: &[&str], reader: &Reader<'_>) {
    let hint = match reader.report.suggest(chosen.name, names.iter().copied()) {
        Some(known) => format!("did you mean '{known}'?"),
        None => format!("known names are {}", names.join(", ")),
    };
    reader.report.error(chosen.named.span, format!("{title}: there is no {what} '{}'", chosen.name), hint);
}

/// Parameters of the choice; each invalid one is reported at its position.
pub(super) fn parameters(
    title: &str,
    chosen: &Chosen<'_>,
    known: &[Parameter],
    accept: &dyn Fn(&ParamTable) -> Result<(), ParamError>,
    folder: &Path,
    reader: &Reader<'_>,
) -> ParamTable {
    let title = format!("{title}: {}", chosen.name);
    let mut params = ParamTable::new();
    let entries = || chosen.table.iter().flat_map(|table| &table.entries).filter(|(name, _)| *name != "type");
    let before = reader.report.errors();
    for (name, node) in entries() {
        let Some(parameter) = known.iter().find(|parameter| parameter.name == name) else {
            let names = || known.iter().map(|parameter| parameter.name);
            let hint = match reader.report.suggest(name, names()) {
                Some(known) => format!("did you mean '{known}'?"),
                None => format!("its parameters are {}", names().collect::<Vec<_>>().join(", ")),
            };
            reader.report.error(node.key, format!("{title}: unknown parameter '{name}'"), hint);
            continue;
        };
        match param_of(&node.value) {
            Some(Param::Text(text)) if parameter.kind == FILE => {
                let path = folder.join(text).display().to_string();
                params.insert(name.clone(), Param::Text(path));
            }
            Some(value) => drop(params.insert(name.clone(), value)),
            None => {
                let message = format!("{title}.{name} cannot be {}", node.value.words());
                reader.report.error(node.span, message, hint(parameter));
            }
        }
    }
    if reader.report.errors() == before
        && let Err(error) = accept(&params)
    {
        let offending_params = params::offending_params(&params, accept);
        for (name, error) in &offending_params {
            let (_, node) = entries().find(|(known, _)| known == name).expect("parameters come from entries");
            let parameter = known.iter().find(|parameter| parameter.name == *name).expect("only known ones are kept");
            reader.report.error(node.span, format!("{title}.{name}: {error}"), hint(parameter));
        }
        if offending_params.is_empty() {
            reader.report.error(
                chosen.named.span,
                format!("{title}: {error}"),
                "change one of its parameters".to_owned(),
            );
        }
    }
    params
}

fn hint(parameter: &Parameter) -> String {
    match parameter.default {
        "none" => format!("expected {}", parameter.accepts()),
        default => format!("expected {}; write for example {} = {default}", parameter.accepts(), parameter.name),
    }
}
