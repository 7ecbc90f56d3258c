//! The export that all NBD targets serve.

use sluice_io::nbd::export::Export;
use sluice_io::nbd::handshake::{Exports, Listed};

/// 1 MiB, everything offered.
pub fn export() -> Export {
    Export {
        name: "vm/disk".to_owned(),
        description: "a disk".to_owned(),
        size_bytes: 1 << 20,
        read_only: false,
        flush: true,
        fua: true,
        trim: true,
        write_zeroes: true,
        fast_zero: true,
        multi_conn: true,
        rotational: false,
        block_minimum: 512,
        block_preferred: 4096,
        block_maximum: 256 << 10,
    }
}

/// Just that one.
pub struct Offer;

impl Exports for Offer {
    fn list(&self) -> Vec<Listed> {
        vec![Listed { name: export().name, description: export().description }]
    }

    fn find(&self, name: &str) -> Option<Export> {
        (name == export().name).then(export)
    }
}
