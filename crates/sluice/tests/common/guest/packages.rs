//! Debian packages that a guest is made of, fetched and unpacked without being installed: a kernel on the host would
//! make an initramfs of its own, and `busybox-static` would replace another busybox.

use std::path::{Path, PathBuf};

use crate::common::{run, tool};

/// The kernel for virtual machines; a package that only names the current one.
const KERNEL: &str = "linux-image-cloud-amd64";
const BUSYBOX: &str = "busybox-static";

/// Fetched packages in a folder, one `.deb` each.
pub(crate) struct Packages {
    pub(crate) files: Vec<PathBuf>,
}

impl Packages {
    /// Those in `folder`, where they are fetched once.
    pub(crate) fn provide(folder: &Path) -> Packages {
        if !folder.exists() {
            // Beside its place, so that what is at its place is whole.
            let fetched = tempfile::tempdir_in(folder.parent().expect("it lies in the build's folder")).unwrap();
            if !fetch(fetched.path()) {
                // The lists of a fresh or an old machine name nothing, or what is not there any more.
                run(tool("apt-get", "apt").args(["update", "-q"])).ok();
                assert!(fetch(fetched.path()), "{KERNEL} and {BUSYBOX} cannot be fetched with apt-get download");
            }
            std::fs::rename(fetched.keep(), folder).unwrap();
        }
        let files = folder.read_dir().unwrap().map(|entry| entry.unwrap().path());
        let mut files: Vec<PathBuf> = files.collect();
        files.sort();
        Packages { files }
    }

    /// All their files, in `folder`.
    pub(crate) fn unpack(&self, folder: &Path) {
        for file in &self.files {
            run(tool("dpkg-deb", "dpkg").arg("--extract").arg(file).arg(folder)).ok();
        }
    }
}

fn fetch(folder: &Path) -> bool {
    let depends = run(tool("apt-cache", "apt").args(["depends", KERNEL])).stdout;
    let kernel = depends.lines().find_map(|line| line.trim().strip_prefix("Depends: linux-image-"));
    let Some(kernel) = kernel.map(|version| format!("linux-image-{version}")) else { return false };
    let download = run(tool("apt-get", "apt").current_dir(folder).args(["download", "-q", &kernel, BUSYBOX]));
    download.status.success()
}
