//! The kernel and the first file system of guests.
//!
//! They are made once from Debian's packages of a kernel for virtual machines and of busybox, which are downloaded with `apt-get
//! download` and not installed. All of it stays in one folder, and later runs use it. The name of the first file system has a checksum
//! of the script in it, so that another version of this program makes another one.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use sluice_client::initramfs::Archive;
use sluice_client::programs::{self, Program};
use sluice_daemon::failure::Failure;

const INIT: &str = include_str!("init.sh");
/// Metapackage of the current kernel for virtual machines.
const KERNEL: &str = "linux-image-cloud-amd64";
const BUSYBOX: &str = "busybox-static";
/// Modules that are not built into that kernel. Those that they need are added.
const MODULES: [&str; 3] = ["virtio_pci", "virtio_console", "virtio_blk"];
/// Always needed, and needed to make the files.
const QEMU: Program = ("qemu-system-x86_64", "qemu-system-x86");
const MAKERS: [Program; 3] = [("apt-get", "apt"), ("apt-cache", "apt"), ("dpkg-deb", "dpkg")];

/// The files that a guest boots.
#[derive(Debug, Clone)]
pub(crate) struct Image {
    pub(super) kernel: PathBuf,
    pub(super) first_file_system: PathBuf,
}

/// Why there is no image.
#[derive(Debug, thiserror::Error)]
#[error("Cannot make the kernel and the first file system of guests in {folder}: {reason}")]
struct CannotMake {
    folder: String,
    reason: String,
}

impl Image {
    /// Returns the image in `folder`, or in a folder of the user's cache. It is made if it is not there.
    pub(crate) fn provide(folder: Option<&Path>) -> Result<Image, Failure> {
        if let Some(missing) = programs::missing(&[QEMU]) {
            return Err(Failure::Refused(format!("Guests: {missing}")));
        }
        let folder = folder.map_or_else(cache, |folder| Ok(folder.to_owned()))?;
        let name = format!("first-file-system-{:08x}", crc32fast::hash(INIT.as_bytes()));
        let image = Image { kernel: folder.join("kernel"), first_file_system: folder.join(name) };
        if !(image.kernel.is_file() && image.first_file_system.is_file()) {
            if let Some(missing) = programs::missing(&MAKERS) {
                let has = "has no kernel and first file system of guests, and";
                return Err(Failure::Refused(format!("{} {has} to make them {missing}", folder.display())));
            }
            make(&folder, &image).map_err(|reason| CannotMake { folder: folder.display().to_string(), reason })?;
        }
        Ok(image)
    }
}

/// Returns the folder in the user's cache.
fn cache() -> Result<PathBuf, Failure> {
    let home = std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache"));
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or(home);
    let cache = cache.ok_or_else(|| {
        Failure::Refused("HOME is not set; name a folder for the guests' kernel with --guest-root".to_owned())
    })?;
    Ok(cache.join("sluice-guests"))
}

fn make(folder: &Path, image: &Image) -> Result<(), String> {
    fs::create_dir_all(folder).map_err(text)?;
    let packages = packages(folder)?;
    let unpacked = tempfile::tempdir_in(folder).map_err(text)?;
    for package in &packages {
        programs::output(programs::command("dpkg-deb").arg("--extract").arg(package).arg(unpacked.path()))?;
    }
    let kernel = kernel(unpacked.path())?;
    let archive = first_file_system(unpacked.path())?;
    // Under temporary names first, so that a file that exists is complete.
    for (file, content) in [(&image.first_file_system, archive), (&image.kernel, fs::read(kernel).map_err(text)?)] {
        let mut part = tempfile::NamedTempFile::new_in(folder).map_err(text)?;
        io::Write::write_all(&mut part, &content).map_err(text)?;
        part.persist(file).map_err(text)?;
    }
    Ok(())
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Returns the packages in the folder, and downloads them if they are not there.
fn packages(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let downloaded = folder.join("packages");
    if !downloaded.exists() {
        let fetched = tempfile::tempdir_in(folder).map_err(text)?;
        // The package lists of a new machine may be missing or outdated.
        let fetch = || fetch(fetched.path());
        let update = || programs::output(programs::command("apt-get").args(["update", "-q"]));
        fetch().or_else(|_| update().and_then(|_| fetch()))?;
        fs::rename(fetched.keep(), &downloaded).map_err(text)?;
    }
    let mut files: Vec<PathBuf> =
        downloaded.read_dir().map_err(text)?.filter_map(|entry| Some(entry.ok()?.path())).collect();
    files.sort();
    Ok(files)
}

fn fetch(folder: &Path) -> Result<(), String> {
    let depends = programs::output(programs::command("apt-cache").args(["depends", KERNEL]))?;
    let kernel = depends.lines().find_map(|line| line.trim().strip_prefix("Depends: linux-image-"));
    let kernel = kernel.ok_or_else(|| format!("apt-cache knows no package {KERNEL}"))?;
    let kernel = format!("linux-image-{kernel}");
    let mut download = programs::command("apt-get");
    programs::output(download.current_dir(folder).args(["download", "-q", &kernel, BUSYBOX]))?;
    Ok(())
}

fn kernel(unpacked: &Path) -> Result<PathBuf, String> {
    let mut files = unpacked.join("boot").read_dir().map_err(text)?.filter_map(|entry| Some(entry.ok()?.path()));
    let is_kernel = |file: &PathBuf| file.file_name().is_some_and(|name| name.to_string_lossy().starts_with("vmlinu"));
    files.find(is_kernel).ok_or_else(|| format!("{KERNEL} has no kernel"))
}

fn first_file_system(unpacked: &Path) -> Result<Vec<u8>, String> {
    let mut archive = Archive::new();
    archive.console();
    archive.file("init", INIT.as_bytes());
    archive.file("bin/busybox", &fs::read(unpacked.join("bin/busybox")).map_err(text)?);
    let mut files = Vec::new();
    walk(&unpacked.join("lib/modules"), &mut files).map_err(text)?;
    let mut modules = Vec::new();
    MODULES.iter().try_for_each(|name| add(name, &files, &mut modules))?;
    let order: Vec<&str> = modules.iter().map(|(name, _)| name.as_str()).collect();
    archive.file("modules/order", order.join(" ").as_bytes());
    modules.iter().for_each(|(name, content)| archive.file(&format!("modules/{name}.ko"), content));
    Ok(archive.finish())
}

/// Adds a module after those that it needs.
fn add(name: &str, files: &[PathBuf], modules: &mut Vec<(String, Vec<u8>)>) -> Result<(), String> {
    if modules.iter().any(|(known, _)| known == name) {
        return Ok(());
    }
    let is_named = |file: &&PathBuf| stem(file).as_deref() == Some(name);
    let file = files.iter().find(is_named).ok_or_else(|| format!("the kernel has no uncompressed module {name}"))?;
    let content = fs::read(file).map_err(text)?;
    depends(&content).iter().try_for_each(|needed| add(needed, files, modules))?;
    modules.push((name.to_owned(), content));
    Ok(())
}

/// Returns the names in `depends=` of a module's description.
fn depends(module: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(at) = module.windows(KEY.len()).position(|window| window == KEY) else { return Vec::new() };
    let value = module[at + KEY.len()..].split(|byte| *byte == 0).next().unwrap_or_default();
    let names = String::from_utf8_lossy(value).into_owned();
    names.split(',').filter(|name| !name.is_empty()).map(canonical).collect()
}

fn stem(file: &Path) -> Option<String> {
    Some(canonical(file.file_name()?.to_str()?.strip_suffix(".ko")?))
}

/// Replaces `-`, because file names and descriptions use `-` and `_` inconsistently.
fn canonical(name: &str) -> String {
    name.replace('-', "_")
}

fn walk(folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in folder.read_dir()? {
        let path = entry?.path();
        match path.is_dir() && !path.is_symlink() {
            true => walk(&path, files)?,
            false => files.push(path),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_come_after_those_that_they_need() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, depends: &str| {
            let file = folder.path().join("kernel").join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, format!("ELF\0depends={depends}\0vermagic=6")).unwrap();
        };
        write("virtio-ring.ko", "");
        write("virtio_blk.ko", "virtio,virtio_ring");
        write("virtio.ko", "virtio-ring");
        let mut files = Vec::new();
        walk(folder.path(), &mut files).unwrap();
        let mut modules = Vec::new();
        add("virtio_blk", &files, &mut modules).unwrap();
        let names: Vec<_> = modules.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["virtio_ring", "virtio", "virtio_blk"]);
        assert_eq!(add("loop", &files, &mut modules).unwrap_err(), "the kernel has no uncompressed module loop");
    }
}
