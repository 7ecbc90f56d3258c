//! The export that the targets share.

use sluice_io::nbd::export::Export;
use sluice_io::volume::VolumeInfo;

/// 1 MiB with every feature.
pub fn export() -> Export {
    let info = VolumeInfo { block_maximum: 256 << 10, ..VolumeInfo::with_all_features(1 << 20) };
    Export { name: "vm/disk".to_owned(), description: "a disk".to_owned(), info }
}
