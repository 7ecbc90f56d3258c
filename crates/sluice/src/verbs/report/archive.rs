//! The archive of a report.

use std::io::{self, Write};
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use tar::{Builder, Header};

/// Writes an archive with these files in the folder `name`, and returns its size in bytes. Only its owner may read it. It appears as a whole:
/// if the disk is full, there is none.
pub(super) fn write(path: &Path, name: &str, files: impl Iterator<Item = (String, String)>) -> io::Result<u64> {
    let packed = pack(name, files)?;
    let path = std::path::absolute(path)?;
    let folder = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    // Of mode 0600. It is removed if this fails.
    let mut file = tempfile::Builder::new().prefix(".sluice-report-").suffix(".tmp").tempfile_in(folder)?;
    file.write_all(&packed)?;
    file.as_file().sync_all()?;
    file.persist_noclobber(&path).map_err(|error| error.error)?;
    Ok(packed.len() as u64)
}

fn pack(name: &str, files: impl Iterator<Item = (String, String)>) -> io::Result<Vec<u8>> {
    let mut archive = Builder::new(GzEncoder::new(Vec::new(), Compression::default()));
    let now = sluice_daemon::state::time::Time::of_clock().0;
    for (file, text) in files {
        let mut header = Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(now);
        archive.append_data(&mut header, format!("{name}/{file}"), text.as_bytes())?;
    }
    archive.into_inner()?.finish()
}

/// A name of the host file or the system as a part of a path.
pub(super) fn in_name(name: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let plain: String = name.chars().map(|c| if is_plain(c) { c } else { '_' }).collect();
    if plain.starts_with('.') { format!("_{plain}") } else { plain }
}
