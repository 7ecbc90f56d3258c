//! Tries the layers of the seal on this kernel without a daemon, for `sluice check --host` and `sluice doctor`.

use std::thread;

use sluice_config::{Host, Jail as Settings, Layer};
use sluice_io::backend::rings;
use sluice_io::jail;

use super::{Standing, lacking, left_out, missing, paths};
use crate::findings::{Finding, Level};
use crate::reach::Reach;

/// Returns the layers that would be in force for this host, and why others would not.
#[must_use]
pub fn findings(host: Option<&Host>) -> Vec<Finding> {
    let settings = host.map(|host| host.daemon.jail.clone()).unwrap_or_default();
    let reach = host.map(Reach::of).unwrap_or_default();
    let standing = |layer: Layer| left_out(&settings, &reach, layer).unwrap_or_else(|| tried(layer));
    let layers: Vec<(Layer, Standing)> = Layer::ALL.into_iter().map(|layer| (layer, standing(layer))).collect();
    let in_force = layers.iter().filter(|(_, standing)| matches!(standing, Standing::InForce(_)));
    let names: Vec<&str> = in_force.map(|(layer, _)| layer.name()).collect();
    let names = if names.is_empty() { "nothing".to_owned() } else { names.join(", ") };
    let found = Finding::new(Level::Ok, "jail", "", format!("The daemon seals itself by {names}"));
    let more = layers.iter().filter_map(|(layer, standing)| of_layer(*layer, standing, &settings));
    [found].into_iter().chain(more).collect()
}

/// The finding about a layer that is left out, is missing, or lacks a part; `None` if it is whole.
fn of_layer(layer: Layer, standing: &Standing, settings: &Settings) -> Option<Finding> {
    let found = |level, text| Finding::new(level, "jail", "", text);
    match standing {
        Standing::LeftOut(None) => {
            let text = format!("{} is left out, as the host file says", layer.name());
            return Some(found(Level::Warning, text).fix("remove it from `jail` in [daemon]"));
        }
        Standing::LeftOut(Some(why)) => {
            return Some(found(Level::Note, format!("{} is left out: {why}", layer.name())));
        }
        Standing::InForce(_) | Standing::Missing(_) => {}
    }
    if let Some(text) = lacking(layer, standing) {
        return Some(found(Level::Note, text));
    }
    let level = if *settings == Settings::Required { Level::Error } else { Level::Warning };
    let fix = match layer {
        Layer::Landlock => "use a kernel with landlock, and name it in lsm= of its command line",
        Layer::Seccomp => "use a kernel with CONFIG_SECCOMP_FILTER, and allow it in the profile of the container",
        Layer::Rings | Layer::Privileges => "see `sluice doctor`",
    };
    Some(found(level, missing(layer, standing)?).fix(fix))
}

/// Puts a layer into force for a thread that ends then.
fn tried(layer: Layer) -> Standing {
    let attempt = move || match layer {
        Layer::Privileges => Ok(None),
        Layer::Landlock => paths::restrict(&[], &[]),
        Layer::Rings => rings::can_be_restricted().map(|()| None).map_err(|error| error.to_string()),
        Layer::Seccomp => jail::can_filter().map(|()| None),
    };
    let tried = thread::scope(|scope| scope.spawn(attempt).join());
    tried.unwrap_or_else(|_| Err("it cannot be tried".to_owned())).into()
}
