//! Errors after a failed sync: writes and flushes of every volume on the file or block device fail until an operator
//! accepts the loss. A failed forced write to a block device affects only its volume.

use super::shared::FileKey;
use super::{FileStore, FileVolumeKey, Volume};
use crate::source::Loss;

impl FileStore {
    /// Makes writes and flushes of every volume on the file of `volume` fail: that of the failed request, which the log names.
    pub(super) fn lose_file(&mut self, volume: FileVolumeKey, what: &str) {
        let file = self.volumes[volume].file;
        self.files.set_failed(file, true);
        self.set_loss_of_file(file, Loss::OfFile);
        let Volume { label, source, .. } = &self.volumes[volume];
        tracing::error!(
            vm = label.vm,
            volume = label.volume,
            source = %source.name(),
            "{what}: writes and flushes of every volume on this source fail until `sluice accept-loss`"
        );
    }

    /// Makes writes and flushes of `volume` fail.
    pub(super) fn lose_volume(&self, volume: FileVolumeKey) {
        let Volume { label, source, .. } = &self.volumes[volume];
        source.set_loss(Loss::OfVolume);
        tracing::error!(
            vm = label.vm,
            volume = label.volume,
            source = %source.name(),
            "Forced write failed: writes and flushes of this volume fail until `sluice accept-loss`"
        );
    }

    /// Lets writes and flushes of `volume` succeed again. After a failed sync this applies to every volume on its file or block
    /// device.
    pub(super) fn accept_loss_of(&mut self, volume: FileVolumeKey) {
        let Volume { source, file, .. } = &self.volumes[volume];
        let file = *file;
        match source.loss() {
            Loss::None | Loss::OfServer => {}
            Loss::OfVolume => source.set_loss(Loss::None),
            Loss::OfFile => {
                self.files.set_failed(file, false);
                self.set_loss_of_file(file, Loss::None);
            }
        }
    }

    fn set_loss_of_file(&mut self, file: FileKey, loss: Loss) {
        let volumes = self.volumes.values_mut().filter(|volume| volume.file == file);
        volumes.for_each(|volume| volume.source.set_loss(loss));
    }
}
