//! The kernel without its wrapping.
//!
//! A packaged kernel unpacks itself when it is started, which an emulated processor does in seconds, and after a reset in
//! many of them. QEMU starts the plain ELF file that is inside as well, over the entry point that Xen's PVH boot protocol
//! gives it. Where it lies in the package's file says the kernel's documentation of the x86 boot protocol.

use std::path::Path;

use crate::common::{run, tool};

/// Of the boot protocol's header: sectors of set-up code after the first.
const SETUP_SECTORS: usize = 0x1f1;
/// Where the wrapped kernel begins after the set-up code, and how long it is.
const PAYLOAD_OFFSET: usize = 0x248;
const PAYLOAD_LENGTH: usize = 0x24c;
/// Its last bytes are its unwrapped length.
const LENGTH_BYTES: usize = 4;

/// Unwraps `packaged` into `plain`.
pub(crate) fn unwrap(packaged: &Path, plain: &Path) {
    let bytes = std::fs::read(packaged).unwrap();
    let number = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("it has four bytes")) as usize;
    let start = (usize::from(bytes[SETUP_SECTORS]) + 1) * 512 + number(PAYLOAD_OFFSET);
    let payload = &bytes[start..start + number(PAYLOAD_LENGTH) - LENGTH_BYTES];
    let wrapped = plain.with_extension("lz4");
    std::fs::write(&wrapped, payload).unwrap();
    // Debian 12 wraps its kernel for virtual machines with LZ4.
    run(tool("lz4", "lz4").args(["-d", "-q"]).arg(&wrapped).arg(plain)).ok();
    std::fs::remove_file(wrapped).unwrap();
    assert!(std::fs::read(plain).unwrap().starts_with(b"\x7fELF"), "no kernel was in it");
}
