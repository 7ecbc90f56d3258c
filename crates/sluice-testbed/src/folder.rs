//! The temporary folder of a testbed: sparse disks and the paths of their sockets.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::TestbedError;

/// Maximum length of the sockets' folder. A socket's path has at most 107 bytes; the rest is for the longest file
/// name.
const SOCKET_FOLDER_MAX: usize = 90;

/// A temporary folder with disks. Dropping it removes the folder.
pub struct Folder {
    folder: TempDir,
    /// A separate folder, if the path of the disks' folder is too long for sockets.
    sockets: Option<TempDir>,
}

impl Folder {
    /// Creates the folder, whose name begins with `prefix`.
    pub fn new(prefix: &str) -> io::Result<Self> {
        let prefix = || tempfile::Builder::new().prefix(prefix).to_owned();
        let folder = prefix().tempdir()?;
        let is_long = folder.path().as_os_str().len() > SOCKET_FOLDER_MAX;
        let sockets = if is_long { Some(prefix().tempdir_in("/tmp")?) } else { None };
        Ok(Folder { folder, sockets })
    }

    /// Creates a sparse disk. Its first `log` bytes are allocated: a write that allocates may wait for the file system's
    /// journal and delay reads.
    pub fn make_disk(&self, vm: &str, len: u64, log: u64) -> io::Result<()> {
        let mut disk = File::create_new(self.disk(vm))?;
        disk.set_len(len)?;
        if log > 0 {
            disk.write_all(&vec![0; log as usize])?;
            disk.sync_data()?;
        }
        Ok(())
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Returns the folder of the sockets.
    pub fn sockets(&self) -> &Path {
        self.sockets.as_ref().unwrap_or(&self.folder).path()
    }

    pub fn socket(&self, vm: &str) -> PathBuf {
        self.sockets().join(format!("{vm}.sock"))
    }

    pub fn disk(&self, vm: &str) -> PathBuf {
        self.folder.path().join(format!("{vm}.img"))
    }
}

/// The error of a folder or a disk that cannot be made.
pub fn cannot(source: io::Error) -> TestbedError {
    TestbedError::Disks { folder: std::env::temp_dir().display().to_string(), source }
}

/// Returns a path as a TOML string. JSON's escapes are valid in TOML.
pub fn quoted(path: &Path) -> String {
    serde_json::Value::from(path.to_string_lossy().as_ref()).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_quoted() {
        assert_eq!(quoted(Path::new(r#"/tmp/a "b\c"#)), r#""/tmp/a \"b\\c""#);
    }
}
