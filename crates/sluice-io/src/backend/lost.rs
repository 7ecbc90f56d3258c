//! Errors after a failed sync: writes and flushes of every volume on the file or block device fail until an operator
//! accepts the loss. A failed forced write to a block device affects only its volume.

use crate::backend::sync::{FileKey, Files};
use crate::backend::volume::{Volume, VolumeStore};
use crate::slab::{Slab, VolumeKey};
use crate::source::Loss;

pub(crate) type Volumes = Slab<VolumeKey, Volume>;

/// Makes writes and flushes of every volume on `file` fail. `volume` is the one with the failed request; the log names it.
pub(crate) fn lose_file(volumes: &mut Volumes, files: &mut Files, file: FileKey, volume: VolumeKey, what: &str) {
    files.set_failed(file, true);
    set_loss_of_file(volumes, file, Loss::OfFile);
    let volume = &volumes[volume];
    let VolumeStore::File { source, .. } = &volume.store else { return };
    tracing::error!(
        vm = volume.vm_name,
        volume = volume.name,
        source = %source.path().display(),
        "{what}: writes and flushes of every volume on this source fail until `sluice accept-loss`"
    );
}

/// Makes writes and flushes of `volume` fail.
pub(crate) fn lose_volume(volume: &Volume) {
    let VolumeStore::File { source, .. } = &volume.store else { return };
    source.set_loss(Loss::OfVolume);
    tracing::error!(
        vm = volume.vm_name,
        volume = volume.name,
        source = %source.path().display(),
        "Forced write failed: writes and flushes of this volume fail until `sluice accept-loss`"
    );
}

/// Lets writes and flushes of `volume` succeed again. After a failed sync this applies to every volume on its file or block
/// device.
pub(crate) fn accept_loss(volumes: &mut Volumes, files: &mut Files, volume: VolumeKey) {
    let VolumeStore::File { source, file, .. } = &volumes[volume].store else { return };
    let file = *file;
    match source.loss() {
        Loss::None => {}
        Loss::OfVolume => source.set_loss(Loss::None),
        Loss::OfFile => {
            files.set_failed(file, false);
            set_loss_of_file(volumes, file, Loss::None);
        }
    }
}

fn set_loss_of_file(volumes: &mut Volumes, file: FileKey, loss: Loss) {
    for volume in volumes.values_mut() {
        if let VolumeStore::File { source, file: own, .. } = &volume.store
            && *own == file
        {
            source.set_loss(loss);
        }
    }
}
