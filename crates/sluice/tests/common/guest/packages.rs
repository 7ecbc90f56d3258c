//! Debian packages of a guest, downloaded and unpacked without being installed. Installing a kernel would create an
//! initramfs on the host, and `busybox-static` would replace another busybox.

use std::path::{Path, PathBuf};

use crate::common::{run, tool};

/// Metapackage of the current kernel for virtual machines.
const KERNEL: &str = "linux-image-cloud-amd64";
const BUSYBOX: &str = "busybox-static";

/// Downloaded packages in a folder, as `.deb` files.
pub(crate) struct Packages {
    pub(crate) files: Vec<PathBuf>,
}

impl Packages {
    /// Returns the packages in `folder`, and downloads them if necessary.
    pub(crate) fn provide(folder: &Path) -> Packages {
        if !folder.exists() {
            // Under a temporary name, so that the folder is always complete.
            let fetched = tempfile::tempdir_in(folder.parent().expect("it lies in the build's folder")).unwrap();
            if !fetch(fetched.path()) {
                // The package lists of a new or old machine are missing or outdated.
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

    /// Unpacks all files into `folder`.
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
