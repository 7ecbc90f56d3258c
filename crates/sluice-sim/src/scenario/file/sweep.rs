//! `[sweep]`: runs of the same scenario with other values.
//!
//! A key of the sweep is the name of a key of the file (`vm.a.weight`, quoted or not), and its value is a list. Each
//! value replaces that of the key, and the scenario is checked again, so an error of a value is reported at its
//! position in the list.

use sluice_config::fields::Section;
use sluice_config::reader::Reader;
use sluice_config::tree::{Node, Table, Value};

/// Maximum number of combinations of a sweep.
const POINTS_MAX: usize = 10_000;
/// Maximum number of levels in the name of a key.
const LEVELS_MAX: usize = 8;

/// The combinations of a sweep.
pub(super) struct Plan {
    pub(super) seeds: u32,
    /// The values of each combination.
    pub(super) points: Vec<Vec<Override>>,
}

/// A value for a key.
#[derive(Clone)]
pub(super) struct Override {
    pub(super) path: Vec<String>,
    pub(super) node: Node,
}

struct Axis {
    path: Vec<String>,
    values: Vec<Node>,
}

/// Parses the sweep of a file; `None` without one.
pub(super) fn read(root: &Reader<'_>, section: &'static Section) -> Option<Plan> {
    let (mut reader, table) = root.open("sweep")?;
    reader.whose = "[sweep]".into();
    let before = reader.report.errors();
    let seeds = reader.small("seeds").unwrap_or(10);
    let zip = reader.word("mode") == Some("zip");
    let mut axes = Vec::new();
    let listed = |name: &str| section.key(name).is_some();
    for (name, node) in table.entries.iter().filter(|(name, _)| !listed(name)) {
        let path: Vec<String> = name.split('.').map(str::to_owned).collect();
        collect(&reader, path, node, &mut axes);
    }
    if reader.report.errors() > before {
        return None;
    }
    let points = if zip { zipped(&reader, &axes)? } else { product(&reader, &axes)? };
    Some(Plan { seeds, points })
}

fn collect(reader: &Reader<'_>, path: Vec<String>, node: &Node, axes: &mut Vec<Axis>) {
    let name = path.join(".");
    match &node.value {
        Value::Table(table) if path.len() < LEVELS_MAX => collect_table(reader, &path, table, axes),
        Value::List(values) if values.is_empty() => {
            let hint = "write at least one value, or remove the key";
            reader.report.error(node.span, format!("[sweep]: {name} has no values"), hint.to_owned());
        }
        Value::List(_) if !["device", "policy", "workload", "trace", "vm", "sim"].contains(&path[0].as_str()) => {
            let hint = "name a key of the file, for example vm.db1.weight or device.disk.depth";
            reader.report.error(node.key, format!("[sweep]: {name} is not a key that can be swept"), hint.to_owned());
        }
        Value::List(_) if path == ["sim", "seed"] => {
            let hint = "write seeds = 10: each combination then runs with that number of seeds, from that of [sim] on";
            reader.report.error(
                node.key,
                format!("[sweep]: {name} would be the same for all combinations"),
                hint.to_owned(),
            );
        }
        Value::List(values) => axes.push(Axis { path, values: values.clone() }),
        other => {
            let message = format!("[sweep]: {name} must be a list of values, not {}", other.words());
            reader.report.error(node.span, message, format!("write {name} = [100, 200, 400]"));
        }
    }
}

fn collect_table(reader: &Reader<'_>, path: &[String], table: &Table, axes: &mut Vec<Axis>) {
    for (name, node) in &table.entries {
        let path = path.iter().cloned().chain(name.split('.').map(str::to_owned)).collect();
        collect(reader, path, node, axes);
    }
}

fn zipped(reader: &Reader<'_>, axes: &[Axis]) -> Option<Vec<Vec<Override>>> {
    let count = axes.first().map_or(1, |axis| axis.values.len());
    if let Some(other) = axes.iter().find(|axis| axis.values.len() != count) {
        let (first, other_count) = (axes[0].path.join("."), other.values.len());
        let what = format!("{first} has {count} values and {} has {other_count}", other.path.join("."));
        reader.refuse("mode", what, "make all lists equally long, or write mode = \"product\"");
        return None;
    }
    Some((0..count).map(|at| axes.iter().map(|axis| value(axis, at)).collect()).collect())
}

fn product(reader: &Reader<'_>, axes: &[Axis]) -> Option<Vec<Vec<Override>>> {
    let count = axes.iter().try_fold(1usize, |count, axis| count.checked_mul(axis.values.len()));
    let Some(count) = count.filter(|count| *count <= POINTS_MAX) else {
        let hint = "shorten a list, or write mode = \"zip\"";
        reader.refuse("mode", format!("there are more than {POINTS_MAX} combinations"), hint);
        return None;
    };
    let point = |number: usize| {
        let mut left = number;
        let mut settings: Vec<Override> = axes
            .iter()
            .rev()
            .map(|axis| {
                let at = left % axis.values.len();
                left /= axis.values.len();
                value(axis, at)
            })
            .collect();
        settings.reverse();
        settings
    };
    Some((0..count).map(point).collect())
}

fn value(axis: &Axis, at: usize) -> Override {
    // Errors of a value are reported at the value.
    let node = Node { key: axis.values[at].span, ..axis.values[at].clone() };
    Override { path: axis.path.clone(), node }
}
