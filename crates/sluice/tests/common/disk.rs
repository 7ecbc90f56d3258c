//! Block devices and file systems of a test: loop devices, small ext4.

use std::path::{Path, PathBuf};

use super::{MIB, Place, run, tool};

/// A loop device on a file.
pub(crate) struct Loop {
    pub(crate) path: PathBuf,
}

impl Loop {
    pub(crate) fn new(file: &Path) -> Self {
        let found = run(tool("losetup", "mount").args(["--find", "--show"]).arg(file));
        assert!(found.status.success(), "loop devices are needed, and root: {}", found.stderr);
        Loop { path: PathBuf::from(found.stdout.trim()) }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let detached = run(tool("losetup", "mount").arg("--detach").arg(&self.path));
        if !detached.status.success() {
            eprintln!("{}", detached.stderr);
        }
    }
}

/// Bytes written to a block device, and flushes, so far.
pub(crate) fn written(device: &Path) -> (u64, u64) {
    let name = device.file_name().unwrap().to_str().unwrap();
    let counts = std::fs::read_to_string(format!("/sys/block/{name}/stat")).unwrap();
    let counts: Vec<u64> = counts.split_whitespace().map(|number| number.parse().unwrap()).collect();
    // Sectors of 512 bytes, whatever the device's own are.
    (counts[6] * 512, counts[15])
}

/// A file system of its own on a loop device.
pub(crate) struct FileSystem {
    pub(crate) folder: PathBuf,
    device: Loop,
}

impl FileSystem {
    /// Formats `file` and mounts it on `folder`, which is made.
    pub(crate) fn new(file: &Path, folder: PathBuf) -> Self {
        // Without reserved blocks and lazy work, so that what is free stays predictable.
        FileSystem::made_by(
            "mkfs.ext4",
            &["-q", "-F", "-m", "0", "-E", "lazy_itable_init=0,lazy_journal_init=0"],
            file,
            folder,
        )
    }

    /// An ext2, which punches holes but does not know `FALLOC_FL_ZERO_RANGE`: who must not leave a hole has to write zeroes.
    pub(crate) fn without_ranges_of_zeroes(file: &Path, folder: PathBuf) -> Self {
        FileSystem::made_by("mkfs.ext2", &["-q", "-F", "-m", "0"], file, folder)
    }

    /// An xfs, which wants 300 MiB.
    pub(crate) fn xfs(file: &Path, folder: PathBuf) -> Self {
        FileSystem::made_by("mkfs.xfs", &["-q", "-f"], file, folder)
    }

    /// A btrfs.
    pub(crate) fn btrfs(file: &Path, folder: PathBuf) -> Self {
        FileSystem::made_by("mkfs.btrfs", &["-q", "-f"], file, folder)
    }

    fn made_by(program: &str, options: &[&str], file: &Path, folder: PathBuf) -> Self {
        let device = Loop::new(file);
        run(tool(program, program.trim_start_matches("mkfs.")).args(options).arg(&device.path)).ok();
        std::fs::create_dir(&folder).unwrap();
        run(tool("mount", "mount").arg(&device.path).arg(&folder)).ok();
        FileSystem { folder, device }
    }

    /// The device under it.
    pub(crate) fn device(&self) -> &Path {
        &self.device.path
    }

    /// Bytes written to the device under it, and flushes of that, so far.
    pub(crate) fn written(&self) -> (u64, u64) {
        written(&self.device.path)
    }

    /// Lets nothing be written until [`FileSystem::thaw`].
    pub(crate) fn freeze(&self) {
        run(tool("fsfreeze", "util-linux").arg("--freeze").arg(&self.folder)).ok();
    }

    /// Lets what was written meanwhile land.
    pub(crate) fn thaw(&self) {
        run(tool("fsfreeze", "util-linux").arg("--unfreeze").arg(&self.folder)).ok();
    }

    /// Takes all space that is left, but `spare_bytes`.
    pub(crate) fn fill(&self, spare_bytes: u64) {
        let spare = self.folder.join("spare");
        if spare_bytes > 0 {
            std::fs::write(&spare, super::noise(7, spare_bytes as usize)).unwrap();
        }
        let block = super::noise(9, 64 << 10);
        for len in [64 << 10, 4 << 10] {
            let ballast = self.folder.join(format!("ballast-{len}"));
            let mut file = std::fs::File::create_new(ballast).unwrap();
            while std::io::Write::write_all(&mut file, &block[..len]).is_ok() {}
            let _ = file.sync_all();
        }
        if spare_bytes > 0 {
            std::fs::remove_file(spare).unwrap();
        }
    }

    /// Gives the space back.
    pub(crate) fn relieve(&self) {
        for len in [64 << 10, 4 << 10] {
            std::fs::remove_file(self.folder.join(format!("ballast-{len}"))).unwrap();
        }
    }
}

impl Drop for FileSystem {
    fn drop(&mut self) {
        // A test that failed may have left it frozen, and then even its end would wait for ever.
        let _ = run(tool("fsfreeze", "util-linux").arg("--unfreeze").arg(&self.folder));
        let umount = || run(tool("umount", "mount").arg(&self.folder));
        let mut unmounted = umount();
        for _ in 0..100 {
            if unmounted.status.success() {
                return;
            }
            // polls: the kernel, which may still hold files of a process that was killed.
            std::thread::sleep(std::time::Duration::from_millis(20));
            unmounted = umount();
        }
        eprintln!("{}", unmounted.stderr);
    }
}

/// A block device that hangs while the file system below it is frozen.
pub(crate) struct Hanging {
    device: Loop,
    pub(crate) below: FileSystem,
}

impl Hanging {
    pub(crate) fn new(place: &Place, name: &str) -> Self {
        let below = FileSystem::new(&place.image(&format!("{name}.below"), 64 * MIB), place.file(name));
        let image = below.folder.join("disk.img");
        std::fs::write(&image, vec![0; 2 * MIB as usize]).unwrap();
        Hanging { device: Loop::new(&image), below }
    }

    pub(crate) fn path(&self) -> &PathBuf {
        &self.device.path
    }
}
