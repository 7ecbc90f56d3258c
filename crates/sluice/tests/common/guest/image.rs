//! The kernel and the first file system of all guests, made once from this machine's programs and Debian's packages.
//!
//! They are cached in the build folder under a name that is a hash of their inputs. So another version of fio or of a
//! script gets a new image, and otherwise the tests start immediately.

use std::collections::hash_map::DefaultHasher;
use std::fs::File;
use std::hash::{Hash, Hasher};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use sluice_client::initramfs::Archive;

use super::packages::Packages;
use super::{modules, programs};

const INIT: &str = include_str!("init.sh");
/// Sources that determine the content, in addition to packages and programs.
const MAKERS: [&str; 5] = [
    INIT,
    include_str!("image.rs"),
    include_str!("kernel.rs"),
    include_str!("modules.rs"),
    include_str!("../../../../../tools/clients/src/initramfs.rs"),
];

/// The files that a guest boots.
#[derive(Debug, Clone)]
pub(crate) struct Image {
    pub(crate) kernel: PathBuf,
    pub(crate) first_file_system: PathBuf,
}

impl Image {
    /// Returns the image for this machine, and makes it if necessary.
    pub(crate) fn provide() -> Image {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("guest");
        std::fs::create_dir_all(&folder).unwrap();
        // Concurrent tests wait here and use the same image.
        let lock = File::create(folder.join("lock")).unwrap();
        lock.lock().unwrap();
        let packages = Packages::provide(&folder.join("packages"));
        let programs: Vec<PathBuf> = programs::files().into_iter().collect();
        let made = folder.join(format!("image-{:016x}", hash(&packages, &programs)));
        if !made.exists() {
            remove_others(&folder);
            make(&packages, &programs, &made);
        }
        Image { kernel: made.join("kernel"), first_file_system: made.join("first-file-system") }
    }
}

fn hash(packages: &Packages, programs: &[PathBuf]) -> u64 {
    let mut hasher = DefaultHasher::new();
    MAKERS.hash(&mut hasher);
    packages.files.hash(&mut hasher);
    for program in programs {
        let data = program.metadata().unwrap();
        (program, data.len(), data.mtime()).hash(&mut hasher);
    }
    hasher.finish()
}

/// Removes images of other inputs: they are not used again, and each takes 150 MB.
fn remove_others(folder: &Path) {
    for entry in folder.read_dir().unwrap().map(Result::unwrap) {
        if entry.file_name().to_string_lossy().starts_with("image-") {
            std::fs::remove_dir_all(entry.path()).unwrap();
        }
    }
}

/// Makes the image under a temporary name, so that a cached image is always complete.
fn make(packages: &Packages, programs: &[PathBuf], target: &Path) {
    let folder = target.parent().expect("it lies in the build's folder");
    let unpacked = tempfile::tempdir_in(folder).unwrap();
    packages.unpack(unpacked.path());
    let image = tempfile::tempdir_in(folder).unwrap();
    super::kernel::decompress(&packaged_kernel(unpacked.path()), &image.path().join("kernel"));
    let archive = first_file_system(unpacked.path(), programs);
    std::fs::write(image.path().join("first-file-system"), archive).unwrap();
    std::fs::rename(image.keep(), target).unwrap();
}

fn packaged_kernel(unpacked: &Path) -> PathBuf {
    let files = unpacked.join("boot").read_dir().unwrap().map(|entry| entry.unwrap().path());
    let mut kernels =
        files.filter(|file| file.file_name().is_some_and(|name| name.to_string_lossy().starts_with("vml")));
    kernels.next().expect("the package has a kernel")
}

fn first_file_system(unpacked: &Path, programs: &[PathBuf]) -> Vec<u8> {
    let mut archive = Archive::new();
    archive.console();
    archive.file("init", INIT.as_bytes());
    archive.file("bin/busybox", &std::fs::read(unpacked.join("bin/busybox")).unwrap());
    for program in programs {
        archive.file(program.to_str().expect("Debian's paths are ASCII"), &std::fs::read(program).unwrap());
    }
    add_modules(&mut archive, unpacked, &modules::WANTED, "modules");
    archive.finish()
}

/// Adds modules and their load order to a folder of an archive.
fn add_modules(archive: &mut Archive, unpacked: &Path, wanted: &[&str], folder: &str) {
    let modules = modules::load_order(unpacked, wanted);
    let order: Vec<&str> = modules.iter().map(|(name, _)| name.as_str()).collect();
    archive.file(&format!("{folder}/order"), order.join(" ").as_bytes());
    for (name, content) in &modules {
        archive.file(&format!("{folder}/{name}.ko"), content);
    }
}

/// What a guest has in addition to the image, in its folder `/more`.
pub(crate) struct More<'a> {
    /// Programs of the host with their names there. Their libraries keep their paths.
    pub(crate) programs: &'a [(PathBuf, &'a str)],
    /// Modules of its kernel, with their load order in `/more/order`.
    pub(crate) modules: &'a [&'a str],
}

impl More<'_> {
    /// Makes an archive that follows that of the image.
    pub(crate) fn archive(&self) -> Vec<u8> {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("guest");
        let unpacked = tempfile::tempdir_in(&folder).unwrap();
        Packages::provide(&folder.join("packages")).unpack(unpacked.path());
        let mut archive = Archive::new();
        add_modules(&mut archive, unpacked.path(), self.modules, "more");
        for (program, name) in self.programs {
            archive.file(&format!("more/{name}"), &std::fs::read(program).unwrap());
            for library in programs::libraries(program) {
                archive.file(library.to_str().expect("Debian's paths are ASCII"), &std::fs::read(&library).unwrap());
            }
        }
        archive.finish()
    }
}
