//! Seals the daemon: it gives up every right that serving its host file does not need.
//!
//! ```text
//!  main, one thread:  look (a process) --> launcher --> privileges, landlock     threads, log, state, sockets
//!                                                                               --> rings, seccomp --> first client
//! ```
//!
//! Landlock binds threads, so it comes before the first one. What it is to allow, a process of its own finds out
//! (`look.rs`): a path that hangs hangs that process. System calls are filtered when the daemon has read its state, before it opens a volume:
//! what a start opens, it opens as a reload does.

use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use sluice_api::status::{self, JailLayer, LayerState, RefusedCall};
use sluice_config::{Host, Jail as Settings, Layer};
use sluice_io::backend::rings;
use sluice_io::inherited;
use sluice_io::jail::{self, Feature, Refused};

mod kernel;
pub mod look;
mod paths;
mod reload;

pub use kernel::findings;

use crate::failure::Failure;
use crate::launcher::{self, Launcher};
use crate::reach::Reach;
use look::{Look, Rule};

/// Rings in addition to those of the devices and uplinks at the start: for devices of a reload.
const SPARE_RINGS: usize = 4;

/// Whether a layer is in force.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Standing {
    /// In force, and what the kernel lacks of it.
    InForce(Option<String>),
    Missing(String),
    /// The host file says so, or it names what a layer does not let through.
    LeftOut(Option<&'static str>),
}

/// Why a host with an RBD image does without these layers.
const CEPH: &str = "librbd, which an RBD image needs, starts threads, opens sockets and reads files";
const NOT_WITH_CEPH: [Layer; 2] = [Layer::Landlock, Layer::Seccomp];

/// A layer was put into force, with what the kernel lacks of it; or the reason why not.
impl From<Result<Option<String>, String>> for Standing {
    fn from(tried: Result<Option<String>, String>) -> Standing {
        match tried {
            Ok(lacks) => Standing::InForce(lacks),
            Err(why) => Standing::Missing(why),
        }
    }
}

/// The seal of this process.
#[derive(Default)]
pub struct Jail {
    settings: Settings,
    layers: Vec<(Layer, Standing)>,
    /// What the look found worth a warning.
    warnings: Vec<String>,
    /// What the host file named at the start.
    reach: Reach,
    /// What landlock allows.
    rules: Vec<Rule>,
    launcher: Option<Arc<Launcher>>,
}

impl Jail {
    /// Begins the seal of a daemon with this host file: all that must be done before the first other thread.
    #[must_use]
    pub fn begin(file: &Path) -> Jail {
        // What the seal starts must not keep them open.
        inherited::hold();
        let look = match Look::ask(file) {
            Ok(look) => look,
            Err(why) => return Jail::without(&why),
        };
        let Look { rules, ports, reach, settings, warnings } = look;
        let launcher = match launcher::start(&reach, file) {
            Ok(launcher) => Some(launcher),
            Err(error) => {
                return Jail::without(&format!("its process for programs and connections cannot be started: {error}"));
            }
        };
        let mut jail = Jail { settings, layers: Vec::new(), warnings, reach, rules, launcher };
        jail.put(Layer::Privileges, |_| jail::close().map(|()| None).map_err(|error| error.to_string()));
        jail.put(Layer::Landlock, |jail| paths::restrict(&jail.rules, &ports));
        jail
    }

    /// The seal of a daemon that does not know what to allow, and has no launcher: some environments have no `/proc` to start it from.
    fn without(why: &str) -> Jail {
        let missing = |layer| (layer, Standing::Missing(why.to_owned()));
        let mut jail = Jail { layers: [Layer::Landlock, Layer::Seccomp].map(missing).into(), ..Jail::default() };
        jail.put(Layer::Privileges, |_| jail::close().map(|()| None).map_err(|error| error.to_string()));
        jail
    }

    /// Uses the launcher from now on, from the first thread on, and writes what the look has found.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn use_launcher(&mut self) -> std::io::Result<()> {
        for warning in &self.warnings {
            tracing::warn!("{warning}");
        }
        self.launcher.take().map_or(Ok(()), launcher::use_from_now)
    }

    /// Puts a layer into force, if it is wanted.
    fn put(&mut self, layer: Layer, put: impl FnOnce(&Jail) -> Result<Option<String>, String>) {
        let standing = match left_out(&self.settings, &self.reach, layer) {
            Some(left_out) => left_out,
            None => put(self).into(),
        };
        self.layers.push((layer, standing));
    }

    /// Completes the seal of a daemon that serves this host file, and says what is in force.
    ///
    /// # Errors
    /// A layer is missing, and the host file requires it.
    pub fn complete(mut self, host: &Host) -> Result<(), Failure> {
        self.put(Layer::Rings, |_| rings::can_be_restricted().map(|()| None).map_err(|error| error.to_string()));
        rings::restrict(self.is_in_force(Layer::Rings));
        if !self.layers.iter().any(|(layer, _)| *layer == Layer::Seccomp) {
            let (features, rings) = (features(&self.reach), host.devices.len() + host.uplinks.len());
            self.put(Layer::Seccomp, |_| {
                jail::prepare(rings, SPARE_RINGS).map_err(|error| error.to_string())?;
                jail::seal(&features)?;
                rings::seal();
                Ok(None)
            });
        }
        self.layers.sort();
        self.settings = host.daemon.jail.clone();
        self.tell()?;
        let _ = OWN.set(self);
        Ok(())
    }

    /// Writes what is in force, and what is not.
    fn tell(&self) -> Result<(), Failure> {
        let names = |is: fn(&Standing) -> bool| {
            let those = self.layers.iter().filter(|(_, standing)| is(standing)).map(|(layer, _)| layer.name());
            those.collect::<Vec<_>>().join(", ")
        };
        let texts = |of: fn(Layer, &Standing) -> Option<String>| -> Vec<String> {
            self.layers.iter().filter_map(|(layer, standing)| of(*layer, standing)).collect()
        };
        let (missing, lacking) = (texts(missing).join("; "), texts(lacking));
        if self.settings == Settings::Required && !missing.is_empty() {
            let text = format!("[daemon] has jail = \"required\", and layers of the seal are missing: {missing}");
            return Err(Failure::Run(text.into()));
        }
        if !missing.is_empty() {
            tracing::warn!("Seal: {missing}");
        }
        for text in lacking {
            tracing::info!("Seal: {text}");
        }
        let left = names(|standing| *standing == Standing::LeftOut(None));
        if !left.is_empty() {
            tracing::warn!(without = left, "Layers of the seal are left out, as the host file says");
        }
        let left = names(|standing| *standing == Standing::LeftOut(Some(CEPH)));
        if !left.is_empty() {
            tracing::warn!(without = left, "Layers of the seal are left out: {CEPH}");
        }
        tracing::info!(layers = names(|standing| matches!(standing, Standing::InForce(_))), "Sealed");
        Ok(())
    }

    fn status(&self) -> status::Jail {
        let layer = |(layer, standing): &(Layer, Standing)| {
            let (state, reason) = match standing {
                Standing::InForce(lacks) => (LayerState::InForce, lacks.clone()),
                Standing::Missing(why) => (LayerState::Missing, Some(why.clone())),
                Standing::LeftOut(why) => (LayerState::LeftOut, why.map(str::to_owned)),
            };
            JailLayer { name: layer.name().to_owned(), state, reason }
        };
        let rings = rings::count();
        let ended = launcher::has_ended().filter(|ended| *ended).map(|_| JailLayer {
            name: "launcher".to_owned(),
            state: LayerState::Missing,
            reason: Some(
                "it has ended: restart the daemon, which starts no program and looks no name up without it".to_owned(),
            ),
        });
        status::Jail {
            layers: self.layers.iter().map(layer).chain(ended).collect(),
            refused: jail::refused().into_iter().map(|one| RefusedCall { call: one.call, times: one.times }).collect(),
            rings_free: rings.map(|rings| rings.free as u64),
            rings_lost: rings.map(|rings| rings.lost),
        }
    }

    fn is_in_force(&self, layer: Layer) -> bool {
        self.layers.iter().any(|(other, standing)| *other == layer && matches!(standing, Standing::InForce(_)))
    }
}

/// The seal of this process, when it is complete.
static OWN: OnceLock<Jail> = OnceLock::new();

/// How this process is sealed, if it is a daemon.
#[must_use]
pub fn status() -> Option<status::Jail> {
    OWN.get().map(Jail::status)
}

/// Why this process cannot serve a host before it is started again; `None` if it can.
#[must_use]
pub fn refuses(host: &Host) -> Option<String> {
    OWN.get().filter(|_| launcher::has_ended().is_some()).and_then(|jail| jail.refuses(host))
}

/// Adds to an error of a sealed daemon what may be the cause of a missing permission.
#[must_use]
pub fn explained(error: String) -> String {
    let is_sealed = OWN.get().is_some_and(|jail| jail.is_in_force(Layer::Landlock));
    if !is_sealed || !error.contains("Permission denied") {
        return error;
    }
    format!(
        "{error}; or the seal does not allow it, because its folder was made or mounted after the start of the daemon, or a link leads to \
         another one: restart the daemon"
    )
}

/// Whether `jail` of this host was changed since the start.
#[must_use]
pub fn is_changed(host: &Host) -> bool {
    OWN.get().is_some_and(|jail| jail.settings != host.daemon.jail)
}

/// Writes system calls that were refused since the last call of this. Called once a second.
pub fn report_refused() {
    static REPORTED: Mutex<Vec<Refused>> = Mutex::new(Vec::new());
    let refused = jail::refused();
    let before = std::mem::replace(&mut *REPORTED.lock().unwrap_or_else(PoisonError::into_inner), refused.clone());
    let new: Vec<String> = refused.into_iter().filter(|one| !before.contains(one)).map(|one| one.call).collect();
    if !new.is_empty() {
        tracing::warn!(
            calls = new.join(" "),
            "System calls refused that the sealed daemon does not make: after an update of a library report this; otherwise a client may \
             try to take it over"
        );
    }
}

/// Whether a daemon that reaches this does without a layer, and why.
fn left_out(settings: &Settings, reach: &Reach, layer: Layer) -> Option<Standing> {
    let is_in_the_way = !reach.pools.is_empty() && NOT_WITH_CEPH.contains(&layer);
    (is_in_the_way || !settings.wants(layer)).then_some(Standing::LeftOut(is_in_the_way.then_some(CEPH)))
}

/// Why a layer is missing.
fn missing(layer: Layer, standing: &Standing) -> Option<String> {
    match standing {
        Standing::Missing(why) => Some(format!("{} is missing: {why}", layer.name())),
        _ => None,
    }
}

/// What the kernel lacks of a layer that is in force.
fn lacking(layer: Layer, standing: &Standing) -> Option<String> {
    match standing {
        Standing::InForce(Some(lacks)) => Some(format!("{}: {lacks}", layer.name())),
        _ => None,
    }
}

fn features(reach: &Reach) -> Vec<Feature> {
    let tcp = (!reach.addresses.is_empty()).then_some(Feature::Tcp);
    let links = (reach.links || reach.taps).then_some(Feature::Links);
    tcp.into_iter().chain(links).collect()
}
