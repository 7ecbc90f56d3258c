//! The uncompressed kernel.
//!
//! A packaged kernel decompresses itself at start. That takes an emulated CPU seconds, and longer after a reset. QEMU
//! also starts the uncompressed ELF file, at the entry point of Xen's PVH boot protocol. The kernel's documentation
//! of the x86 boot protocol states where the compressed kernel is in the package's file.

use std::path::Path;

use crate::common::{run, tool};

/// Boot protocol header: number of sectors of set-up code after the first.
const SETUP_SECTORS: usize = 0x1f1;
/// Offset of the compressed kernel after the set-up code, and its length.
const PAYLOAD_OFFSET: usize = 0x248;
const PAYLOAD_LENGTH: usize = 0x24c;
/// The last bytes of the compressed kernel are its uncompressed length.
const LENGTH_BYTES: usize = 4;

/// Decompresses `packaged` into `plain`.
pub(crate) fn decompress(packaged: &Path, plain: &Path) {
    let bytes = std::fs::read(packaged).unwrap();
    let number = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("it has four bytes")) as usize;
    let start = (usize::from(bytes[SETUP_SECTORS]) + 1) * 512 + number(PAYLOAD_OFFSET);
    let payload = &bytes[start..start + number(PAYLOAD_LENGTH) - LENGTH_BYTES];
    let wrapped = plain.with_extension("lz4");
    std::fs::write(&wrapped, payload).unwrap();
    // Debian 12 compresses its kernel for virtual machines with LZ4.
    run(tool("lz4", "lz4").args(["-d", "-q"]).arg(&wrapped).arg(plain)).ok();
    std::fs::remove_file(wrapped).unwrap();
    assert!(std::fs::read(plain).unwrap().starts_with(b"\x7fELF"), "no kernel was in it");
}
