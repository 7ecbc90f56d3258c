//! Identity of a scenario.

use crate::scenario::{Scenario, Source};
use serde_json::Value;
use sluice_sched::params::Value as Param;

use sluice_config::tree::Table;

/// The file as JSON, without its sweep.
pub(super) fn echo(tree: &Table) -> Value {
    let mut echo = tree.to_json();
    if let Some(object) = echo.as_object_mut() {
        object.remove("sweep");
    }
    echo
}

/// A text that equal scenarios share, with any seed: their contents, and those of the files that they name.
pub(super) fn identity(echo: &Value, scenario: &Scenario) -> String {
    let mut echo = echo.clone();
    if let Some(sim) = echo.get_mut("sim").and_then(Value::as_object_mut) {
        sim.remove("seed");
    }
    let mut text = echo.to_string();
    for vm in &scenario.vms {
        if let Source::Trace(trace) = &vm.source {
            text.push_str(&format!("\n{} {:016x}", vm.name, trace.scan.digest));
        }
    }
    for device in &scenario.devices {
        for parameter in device.model.parameters().into_iter().filter(|parameter| parameter.kind == "a file") {
            if let Some(Param::Text(path)) = device.model_params.get(parameter.name) {
                text.push_str(&format!("\n{} {:?}", device.name, std::fs::read(path).ok()));
            }
        }
    }
    text
}
