//! `sluice schedulers [NAME]`

use clap::Args;
use serde_json::{Value, json};
use sluice_sched::Descriptor;

use crate::output::{self, Format};
use sluice_daemon::failure::Failure;

/// List the schedulers, or describe one.
#[derive(Args)]
pub(crate) struct Schedulers {
    /// Scheduler to describe. Default: list all.
    name: Option<String>,
}

impl Schedulers {
    pub(crate) fn run(self, format: Format) -> Result<(), Failure> {
        match self.name {
            None => list(format),
            Some(name) => match sluice_papers::find(&name) {
                Some(descriptor) => describe(descriptor, format),
                None => {
                    let known: Vec<_> = sluice_papers::ALL.iter().map(|descriptor| descriptor.name).collect();
                    let text = format!("No scheduler is called '{name}'; there are: {}", known.join(", "));
                    return Err(Failure::NotFound(text));
                }
            },
        }
        Ok(())
    }
}

fn list(format: Format) {
    if format == Format::Json {
        let all: Vec<Value> = sluice_papers::ALL.iter().map(|descriptor| as_json(descriptor)).collect();
        return output::json(&json!({ "schedulers": all }));
    }
    let mut table = output::table(&["NAME", "ENFORCES", "SUMMARY"]);
    for descriptor in sluice_papers::ALL {
        let enforces: Vec<_> = descriptor.enforces.iter().map(|(field, _)| field.name()).collect();
        let enforces = if enforces.is_empty() { "nothing".to_owned() } else { enforces.join(" ") };
        table.add_row([descriptor.name, &enforces, descriptor.summary]);
    }
    output::line(&table.to_string());
}

fn as_json(descriptor: &Descriptor) -> Value {
    let enforces: Vec<Value> =
        descriptor.enforces.iter().map(|(field, how)| json!({ "field": field.name(), "how": how })).collect();
    let parameters: Vec<Value> = descriptor
        .parameters
        .iter()
        .map(|p| json!({ "name": p.name, "kind": p.kind, "default": p.default, "help": p.help }))
        .collect();
    json!({
        "name": descriptor.name,
        "summary": descriptor.summary,
        "idea": descriptor.idea,
        "when": descriptor.when,
        "source": descriptor.source,
        "enforces": enforces,
        "volumes": descriptor.volumes,
        "medium": descriptor.device_classes[0].name(),
        "media": descriptor.device_classes.iter().map(|class| class.name()).collect::<Vec<_>>(),
        "parameters": parameters,
    })
}

fn describe(descriptor: &Descriptor, format: Format) {
    if format == Format::Json {
        return output::json(&as_json(descriptor));
    }
    output::line(&format!("{}: {}\n", descriptor.name, descriptor.summary));
    output::line(&format!("IDEA\n  {}\n", descriptor.idea));
    output::line(&format!("WHEN TO USE IT\n  {} {}\n", descriptor.when, descriptor.about_classes()));
    output::line("POLICY FIELDS THAT IT ENFORCES");
    for (field, how) in descriptor.enforces {
        output::line(&format!("  {:<12} {how}", field.name()));
    }
    if descriptor.enforces.is_empty() {
        output::line("  none");
    }
    output::line(&format!("  {}", descriptor.about_volumes()));
    output::line(&format!("\nPARAMETERS in [device.NAME.{}]", descriptor.name));
    for parameter in descriptor.parameters {
        output::line(&format!("  {} ({}; default {})", parameter.name, parameter.accepts(), parameter.default));
        output::line(&format!("      {}", parameter.help));
    }
    if descriptor.parameters.is_empty() {
        output::line("  none");
    }
    output::line(&format!("\nSOURCE\n  {}", descriptor.source));
}
