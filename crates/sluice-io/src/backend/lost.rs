//! Errors after a failed sync: writes and flushes of every volume on the file or block device fail until an operator
//! accepts the loss. A failed forced write to a block device concerns its volume alone.

use crate::backend::disk::Backend;
use crate::backend::sync::FileIndex;
use crate::backend::volume::{Volume, VolumeStore};
use crate::slab::{VmId, VolumeKey};
use crate::source::Loss;

impl Backend {
    /// Fails writes and flushes of every volume on `file` from now on. `volume` is the one whose request failed; the log
    /// names it.
    pub(crate) fn lose_file(&mut self, file: FileIndex, volume: VolumeKey, what: &str) {
        self.files.set_failed(file, true);
        self.set_loss_of_file(file, Loss::OfFile);
        let volume = &self.volumes[volume];
        let VolumeStore::File { source, .. } = &volume.store else { return };
        tracing::error!(
            vm = volume.vm_name,
            volume = volume.name,
            source = %source.path().display(),
            "{what}: writes and flushes of every volume on this source fail until `sluice accept-loss`"
        );
    }

    /// Fails writes and flushes of `volume` alone from now on.
    pub(crate) fn lose_volume(&self, volume: VolumeKey) {
        let volume = &self.volumes[volume];
        let VolumeStore::File { source, .. } = &volume.store else { return };
        source.set_loss(Loss::OfVolume);
        tracing::error!(
            vm = volume.vm_name,
            volume = volume.name,
            source = %source.path().display(),
            "Forced write failed: writes and flushes of this volume fail until `sluice accept-loss`"
        );
    }

    /// Names of the volumes of `vm` whose writes and flushes fail.
    pub(crate) fn lost_volumes(&self, vm: VmId) -> Vec<String> {
        let lost = |volume: &Volume| {
            let VolumeStore::File { source, .. } = &volume.store else { return false };
            volume.vm == vm && !volume.leaving && source.loss() != Loss::None
        };
        self.volumes.iter().filter(|(_, volume)| lost(volume)).map(|(_, volume)| volume.name.clone()).collect()
    }

    /// Lets writes and flushes of `volume` succeed again. After a failed sync that goes for every volume on its file or block
    /// device.
    pub(crate) fn accept_loss(&mut self, volume: VolumeKey) {
        let VolumeStore::File { source, file, .. } = &self.volumes[volume].store else { return };
        let file = *file;
        match source.loss() {
            Loss::None => {}
            Loss::OfVolume => source.set_loss(Loss::None),
            Loss::OfFile => {
                self.files.set_failed(file, false);
                self.set_loss_of_file(file, Loss::None);
            }
        }
    }

    fn set_loss_of_file(&mut self, file: FileIndex, loss: Loss) {
        for volume in self.volumes.values_mut() {
            if let VolumeStore::File { source, file: own, .. } = &volume.store
                && *own == file
            {
                source.set_loss(loss);
            }
        }
    }
}
