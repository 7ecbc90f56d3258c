//! The export that the targets share.

use sluice_io::nbd::export::Export;

/// 1 MiB with every feature.
pub fn export() -> Export {
    let description = "a disk".to_owned();
    Export { description, block_maximum: 256 << 10, ..Export::with_all_features("vm/disk", 1 << 20) }
}
