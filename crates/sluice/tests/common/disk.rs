//! Block devices and file systems of a test: loop devices and small file systems.

use std::path::{Path, PathBuf};

use super::{MIB, Place, run, tool};

/// A loop device on a file.
pub(crate) struct Loop {
    pub(crate) path: PathBuf,
}

impl Loop {
    pub(crate) fn new(file: &Path) -> Self {
        Loop::with_sectors(file, 512)
    }

    /// Makes one whose logical blocks have this many bytes.
    pub(crate) fn with_sectors(file: &Path, bytes: u32) -> Self {
        let bytes = bytes.to_string();
        let found = run(tool("losetup", "mount").args(["--find", "--show", "--sector-size", &bytes]).arg(file));
        assert!(found.status.success(), "loop devices are needed, and root: {}", found.stderr);
        Loop { path: PathBuf::from(found.stdout.trim()) }
    }

    /// Changes the length of its file, and its capacity with it.
    pub(crate) fn resize(&self, file: &Path, size_bytes: u64) {
        std::fs::File::options().write(true).open(file).unwrap().set_len(size_bytes).unwrap();
        run(tool("losetup", "mount").arg("--set-capacity").arg(&self.path)).ok();
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

/// Returns the number of bytes written to a block device so far, and the number of flushes.
pub(crate) fn written(device: &Path) -> (u64, u64) {
    let name = device.file_name().unwrap().to_str().unwrap();
    let counts = std::fs::read_to_string(format!("/sys/block/{name}/stat")).unwrap();
    let counts: Vec<u64> = counts.split_whitespace().map(|number| number.parse().unwrap()).collect();
    // The kernel counts sectors of 512 bytes for every device.
    (counts[6] * 512, counts[15])
}

/// A separate file system on a loop device.
pub(crate) struct FileSystem {
    pub(crate) folder: PathBuf,
    device: Loop,
}

impl FileSystem {
    /// Formats `file` and mounts it on `folder`, which is created.
    pub(crate) fn new(file: &Path, folder: PathBuf) -> Self {
        // Without reserved blocks and lazy initialisation, so that free space is predictable.
        FileSystem::made_by(
            "mkfs.ext4",
            &["-q", "-F", "-m", "0", "-E", "lazy_itable_init=0,lazy_journal_init=0"],
            file,
            folder,
        )
    }

    /// Makes an ext2, which punches holes but does not support `FALLOC_FL_ZERO_RANGE`. Zeroes without a hole must be
    /// written there.
    pub(crate) fn without_ranges_of_zeroes(file: &Path, folder: PathBuf) -> Self {
        FileSystem::made_by("mkfs.ext2", &["-q", "-F", "-m", "0"], file, folder)
    }

    /// Makes an xfs, which needs 300 MiB.
    pub(crate) fn xfs(file: &Path, folder: PathBuf) -> Self {
        FileSystem::made_by("mkfs.xfs", &["-q", "-f"], file, folder)
    }

    /// Makes a btrfs.
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

    /// Returns the device below it.
    pub(crate) fn device(&self) -> &Path {
        &self.device.path
    }

    /// Returns the number of bytes written to the device below it so far, and the number of flushes.
    pub(crate) fn written(&self) -> (u64, u64) {
        written(&self.device.path)
    }

    /// Blocks all writes until [`FileSystem::thaw`].
    pub(crate) fn freeze(&self) {
        run(tool("fsfreeze", "util-linux").arg("--freeze").arg(&self.folder)).ok();
    }

    /// Lets blocked writes continue.
    pub(crate) fn thaw(&self) {
        run(tool("fsfreeze", "util-linux").arg("--unfreeze").arg(&self.folder)).ok();
    }

    /// Uses up the free space, except `spare_bytes`.
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

    /// Frees that space again.
    pub(crate) fn free_space(&self) {
        for len in [64 << 10, 4 << 10] {
            std::fs::remove_file(self.folder.join(format!("ballast-{len}"))).unwrap();
        }
    }
}

impl Drop for FileSystem {
    fn drop(&mut self) {
        // A failed test may have left it frozen, and unmounting would wait for ever.
        let _ = run(tool("fsfreeze", "util-linux").arg("--unfreeze").arg(&self.folder));
        let umount = || run(tool("umount", "mount").arg(&self.folder));
        let mut unmounted = umount();
        for _ in 0..100 {
            if unmounted.status.success() {
                return;
            }
            // polls: the kernel, which may still hold files of a killed process.
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

    /// Number of writes that the block device has begun and not completed.
    pub(crate) fn writes_in_flight(&self) -> u64 {
        let name = self.device.path.file_name().unwrap().to_str().unwrap();
        let counts = std::fs::read_to_string(format!("/sys/block/{name}/inflight")).unwrap();
        counts.split_whitespace().nth(1).unwrap().parse().unwrap()
    }
}
