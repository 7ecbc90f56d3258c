//! libvirt without its service: virsh with the embedded driver, in a folder of its own.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use super::tool;

/// Makes a folder that the user of [`virsh`] can read and write.
pub(crate) fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    folder
}

/// Returns virsh with libvirt's embedded driver and its own folder. As root, the driver needs the user account that
/// Debian's service creates, unless QEMU runs as the user nobody.
pub(crate) fn virsh(folder: &Path) -> Command {
    let is_root = rustix::process::geteuid().is_root();
    let virsh = tool("virsh", "libvirt-clients");
    let mut command = match is_root {
        true => tool("setpriv", "util-linux"),
        false => tool("virsh", "libvirt-clients"),
    };
    if is_root {
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).arg(virsh.get_program());
    }
    command.env("HOME", folder).env("XDG_RUNTIME_DIR", folder);
    command.args(["-q", "-c", &format!("qemu:///embed?root={}", folder.display())]);
    command
}
