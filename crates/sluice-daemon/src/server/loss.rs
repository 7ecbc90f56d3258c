//! Writes that a failed sync may have lost: the affected volumes, and accepting the loss.

use std::path::PathBuf;
use std::sync::Arc;

use sluice_api::object::ObjectId;
use sluice_config::Volume;
use sluice_config::changes::Target;
use sluice_io::device::{Edit, StoreSpec};
use sluice_io::source::{Loss, Source};
use sluice_io::volume::VolumeInfo;

use super::{Edits, Progress, Server, ServerError};

/// Open files that the kernel may still report a loss to, before that loss is accepted.
pub struct LossQuery(Vec<Arc<Source>>);

impl LossQuery {
    /// Returns the paths of the files.
    pub fn paths(&self) -> Vec<PathBuf> {
        self.0.iter().map(|writer| writer.path().to_owned()).collect()
    }

    /// Makes the kernel report it now. Hangs as long as a disk does; `progress` has the path.
    pub fn run(self, progress: &Progress) {
        for writer in self.0 {
            progress.set(writer.path());
            writer.consume_loss_report();
        }
    }
}

fn source(served: &(StoreSpec, VolumeInfo)) -> Option<Arc<Source>> {
    served.0.source().cloned()
}

impl Server {
    /// Returns why writes and flushes of a volume fail, if a failed sync may have lost writes.
    #[must_use]
    pub fn loss(&self, vm: &str, volume: &str) -> Option<&'static str> {
        self.served.get(&ObjectId::volume(vm, volume))?.0.facts()?.loss().reason()
    }

    /// Returns the target's volumes whose writes and flushes fail because writes may have been lost.
    fn lost<'a>(&'a self, target: &'a Target) -> impl Iterator<Item = &'a Volume> {
        let volumes = self.host.vms[&target.vm].volumes.values().map(Arc::as_ref);
        let named = volumes.filter(|volume| target.volume.as_ref().is_none_or(|name| *name == volume.name));
        named.filter(|volume| self.loss(&target.vm, &volume.name).is_some())
    }

    /// Returns all open sources on the files and disks of these volumes, to which the kernel may still report the
    /// loss that is to be accepted. For a loss of a single volume there are none, because each later report is a new
    /// loss.
    pub fn loss_query(&self, target: &Target) -> LossQuery {
        let lost = self.lost(target).filter_map(|volume| {
            let lost = self.served.get(&ObjectId::volume(&target.vm, &volume.name)).and_then(source)?;
            (lost.loss() == Loss::OfFile).then_some(lost)
        });
        let same = lost.flat_map(|lost| {
            let others = self.served.values().filter_map(source);
            others.filter(move |other| other.id() == lost.id() && !other.is_read_only())
        });
        LossQuery(same.collect())
    }

    /// Resumes writes and flushes of the target's volumes after writes may have been lost, when all sources of
    /// [`Server::loss_query`] have been queried. Returns whether there was such a volume.
    pub fn accept_loss(&self, target: &Target) -> Result<bool, ServerError> {
        let lost: Vec<_> = self.lost(target).collect();
        for volume in &lost {
            let (vm, name, device) = (target.vm.clone(), volume.name.clone(), volume.device.clone());
            let accepted = self.devices[&device].edit(Edits::Disk(vec![Edit::AcceptLoss { vm, volume: name }]));
            accepted.map_err(|source| ServerError::Edit { device, source })?;
        }
        Ok(!lost.is_empty())
    }
}
