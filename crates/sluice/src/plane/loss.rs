//! Writes that a failed sync may have lost: which volumes wait for an operator, and what it means to let them go on.

use std::path::PathBuf;
use std::sync::Arc;

use sluice_config::Volume;
use sluice_config::changes::Target;
use sluice_io::device::{Edit, Store};
use sluice_io::nbd::export::Export;
use sluice_io::source::{Loss, Source};

use super::{Plane, PlaneError, Progress};

/// Open files that may yet be told of a loss that is being accepted.
pub(crate) struct Hearing(Vec<Arc<Source>>);

impl Hearing {
    /// The paths of the files.
    pub(crate) fn paths(&self) -> Vec<PathBuf> {
        self.0.iter().map(|writer| writer.path().to_owned()).collect()
    }

    /// Lets the kernel say it now. May take as long as a disk hangs; `progress` says on what.
    pub(crate) fn hear(self, progress: &Progress) {
        for writer in self.0 {
            progress.set(writer.path());
            writer.hear_of_loss();
        }
    }
}

fn source(served: &(Store, Export)) -> Option<Arc<Source>> {
    match &served.0 {
        Store::Null => None,
        Store::File { source, .. } => Some(Arc::clone(source)),
    }
}

impl Plane {
    /// Why writes and flushes of a volume fail, if they do because of what a failed sync may have lost.
    #[must_use]
    pub(crate) fn loss(&self, vm: &str, volume: &str) -> Option<&'static str> {
        source(self.served.get(&(vm.to_owned(), volume.to_owned()))?)?.loss().reason()
    }

    /// The target's volumes whose writes and flushes fail because of what may have been lost.
    fn lost<'a>(&'a self, target: &'a Target) -> impl Iterator<Item = &'a Volume> {
        let volumes = self.host.vms[&target.vm].volumes.values();
        let named = volumes.filter(|volume| target.volume.as_ref().is_none_or(|name| *name == volume.name));
        named.filter(|volume| self.loss(&target.vm, &volume.name).is_some())
    }

    /// Whoever has the file or disk of one of these volumes open, and may yet be told of the loss that is to be accepted. If
    /// it is that of a volume alone, nobody may: what it would be told is its own.
    pub(crate) fn to_hear(&self, target: &Target) -> Hearing {
        let lost = self.lost(target).filter_map(|volume| {
            let lost = self.served.get(&(target.vm.clone(), volume.name.clone())).and_then(source)?;
            (lost.loss() == Loss::OfFile).then_some(lost)
        });
        let same = lost.flat_map(|lost| {
            let others = self.served.values().filter_map(source);
            others.filter(move |other| other.id() == lost.id() && !other.is_read_only())
        });
        Hearing(same.collect())
    }

    /// Lets writes and flushes of the target's volumes go on where they fail because of what may have been lost, when all
    /// [`Plane::to_hear`] have heard of it. Returns whether there was any such volume.
    pub(crate) fn accept_loss(&self, target: &Target) -> Result<bool, PlaneError> {
        let lost: Vec<_> = self.lost(target).collect();
        for volume in &lost {
            let (vm, name, device) = (target.vm.clone(), volume.name.clone(), volume.device.clone());
            let accepted = self.devices[&device].edit(vec![Edit::AcceptLoss { vm, volume: name }]);
            accepted.map_err(|source| PlaneError::Edit { device, source })?;
        }
        Ok(!lost.is_empty())
    }
}
