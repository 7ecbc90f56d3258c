//! Certificates and keys of TLS, from the files that a host file names.

use std::fs::{self, OpenOptions};
use std::io::Read as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;
use std::time::SystemTime;

use rustix::fs::OFlags;
use sluice_config::{NbdTls, NodeTls};
use sluice_io::nbd::tls::{self, Files};

/// Maximum length of such a file in bytes.
const FILE_LEN_MAX: u64 = 1 << 20;

/// Reads a file that holds a secret.
///
/// # Errors
/// It cannot be read, or every user of this host may; in words.
pub(crate) fn read_secret(path: &Path) -> Result<Vec<u8>, String> {
    read_if(path, |metadata| {
        let shown = path.display();
        match metadata.permissions().mode() & 0o007 {
            0 => Ok(()),
            _ => Err(format!("every user of this host may read it: chmod o= {shown}")),
        }
    })
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    read_if(path, |_| Ok(()))
}

fn read_if(path: &Path, check: impl Fn(&fs::Metadata) -> Result<(), String>) -> Result<Vec<u8>, String> {
    let of_path = |why: String| format!("{}: {why}", path.display());
    let failed = |error: std::io::Error| of_path(error.to_string());
    // Does not wait for a pipe in its place.
    let nonblock = OFlags::NONBLOCK.bits() as i32;
    let file = OpenOptions::new().read(true).custom_flags(nonblock).open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return Err(of_path("it is no file".to_owned()));
    }
    check(&metadata).map_err(of_path)?;
    let mut contents = Vec::new();
    file.take(FILE_LEN_MAX).read_to_end(&mut contents).map_err(failed)?;
    Ok(contents)
}

/// What this server needs for TLS, and when its certificate ends.
///
/// # Errors
/// A file cannot be read, or is not what it should be; in words.
pub(crate) fn server(stated: &NbdTls) -> Result<(tls::Server, Option<SystemTime>), String> {
    let (certificate, key) = (read(&stated.certificate)?, read_secret(&stated.key)?);
    let authority = stated.client_ca.as_deref().map(read).transpose()?;
    let files = Files { certificate: Some(&certificate), key: Some(&key), authority: authority.as_deref() };
    let ends = files.ends();
    let server = tls::Server::new(&files, stated.clients.clone());
    server.map(|server| (server, ends)).map_err(|why| format!("{}: {why}", stated.certificate.display()))
}

/// What is needed to connect to a server with TLS, and when the own certificate ends.
///
/// # Errors
/// As [`server`].
pub(crate) fn client(stated: &NodeTls) -> Result<(tls::Client, Option<SystemTime>), String> {
    let authority = read(&stated.ca)?;
    let own = stated.own.as_ref().map(|(certificate, key)| Ok::<_, String>((read(certificate)?, read_secret(key)?)));
    let own = own.transpose()?;
    let (certificate, key) = own.as_ref().map(|(certificate, key)| (certificate.as_slice(), key.as_slice())).unzip();
    let files = Files { certificate, key, authority: Some(&authority) };
    let ends = files.ends();
    let client = tls::Client::new(&files, &stated.name);
    client.map(|client| (client, ends)).map_err(|why| format!("{}: {why}", stated.ca.display()))
}
