//! State that survives a restart of the daemon: changes made at run time, and what each volume last served.
//!
//! [`Saved`] is in the file `state.json` of the state directory. [`folder`] reads and replaces it, [`keeper`] does so on
//! a thread of its own, [`overrides`] has the rules by which changes stay, yield and expire, and [`dropin`] writes a
//! change into the host file's folder instead.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sluice_config::{Files, Host, VolumeSource};

pub mod dropin;
pub mod folder;
mod format;
mod gone;
pub mod keeper;
pub mod overrides;
pub mod start;
pub mod time;

use overrides::{Gone, Override, Overrides};

/// Contents of the state file, apart from its version.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Saved {
    pub overrides: Overrides,
    /// The source that each volume last served, by `VM/VOLUME`. Shared, because few changes concern it.
    #[serde(with = "shared")]
    pub exports: Arc<BTreeMap<String, Served>>,
    /// Volumes whose entry was lost with a damaged state file. They are held back until they are forced.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub unknown: BTreeSet<String>,
}

impl Saved {
    /// Ends the changes that end with a stop of the daemon, and counts the volumes as removed that they had attached.
    pub fn stop(&mut self, files: &Files) -> Vec<(Override, Gone)> {
        let Saved { overrides, exports, .. } = self;
        let ended = overrides.stop();
        let attached = |name: &str| ended.iter().any(|(old, _)| old.is_attach() && old.concerns(name));
        for (name, served) in Arc::make_mut(exports).iter_mut().filter(|(name, _)| attached(name)) {
            served.gone |= !name.parse().is_ok_and(|volume| overrides.has(files, &volume));
        }
        ended
    }

    /// Counts the volumes of a host file as unknown of which a damaged state has no entry: it may have been lost. One that was removed
    /// counts too, because the change that removed it may be lost.
    pub fn forget_unknown(&mut self, host: &Host) {
        let volumes = host.vms.iter().flat_map(|(vm, spec)| spec.volumes.iter().map(move |volume| (vm, volume)));
        let with_source = volumes.filter(|(_, (_, volume))| volume.source != VolumeSource::Nothing);
        let names = with_source.map(|(vm, (volume, _))| format!("{vm}/{volume}"));
        let is_known = |name: &String| self.exports.get(name).is_some_and(|served| !served.gone);
        self.unknown.extend(names.filter(|name| !is_known(name)));
    }
}

/// The part of a source that a volume served.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Served {
    pub source: PathBuf,
    /// Identity of the source, which its path does not change; `None` if the kernel does not state it.
    pub identity: Option<String>,
    /// In bytes.
    pub offset: u64,
    /// In bytes.
    pub size: u64,
    /// Block size of the guest's disk, in bytes; `None`: it was the alignment of the source.
    #[serde(default)]
    pub block_size: Option<u32>,
    /// Whether the volume was removed since. That its source is raw is still known.
    pub gone: bool,
}

/// A shared value in a file.
mod shared {
    use std::sync::Arc;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<T: Serialize, S: Serializer>(value: &Arc<T>, to: S) -> Result<S::Ok, S::Error> {
        T::serialize(value, to)
    }

    pub(super) fn deserialize<'de, T: Deserialize<'de>, D: Deserializer<'de>>(from: D) -> Result<Arc<T>, D::Error> {
        T::deserialize(from).map(Arc::new)
    }
}
