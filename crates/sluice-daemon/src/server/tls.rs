//! Certificates and keys of TLS, from the files that a host file names.

use std::fs::{self, OpenOptions};
use std::io::Read as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;
use std::time::{Duration, SystemTime};

use rustix::fs::OFlags;
use sluice_config::{Backend, Host, NbdTls, Node, NodeTls};
use sluice_io::nbd::tls::{self, Files};

use super::gateways::read_key;
use crate::findings::{Finding, Level};

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

/// Returns the settings of TLS for this server, and the end of its certificate.
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

/// Returns the settings of TLS for a client, and the end of its own certificate.
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

/// A certificate that ends within this time is warned of.
const SOON: Duration = Duration::from_secs(30 * 24 * 3600);

/// Returns the findings of `sluice check --host` about certificates and keys.
pub(crate) fn findings(host: &Host) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Some(stated) = &host.nbd.tls {
        findings.extend(of_certificate("[nbd.tls]", server(stated).map(|(_, ends)| ends)));
    }
    for device in host.devices.values() {
        if let Backend::Nbd(Node { tls: Some(stated), .. }) = &device.backend {
            findings.extend(of_certificate(&device.title(), client(stated).map(|(_, ends)| ends)));
        }
    }
    let keys = host.nbd.gateways.iter().filter_map(|(name, gateway)| Some((name, read_key(&gateway.key_file).err()?)));
    findings
        .extend(keys.map(|(name, why)| Finding::new(Level::Error, "gateway", format!("[nbd.gateway.{name}]"), why)));
    findings
}

fn of_certificate(about: &str, read: Result<Option<SystemTime>, String>) -> Option<Finding> {
    let ends = match read {
        Ok(ends) => ends?,
        Err(why) => return Some(Finding::new(Level::Error, "tls", about, why)),
    };
    let date = humantime::format_rfc3339_seconds(ends);
    let finding = |level, text| Finding::new(level, "tls", about, text);
    Some(match ends.duration_since(SystemTime::now()) {
        Err(_) => finding(Level::Error, format!("The certificate has ended on {date}")).fix("make another one"),
        Ok(left) if left < SOON => {
            finding(Level::Warning, format!("The certificate ends on {date}")).fix("make another one before")
        }
        Ok(_) => finding(Level::Ok, format!("The certificate ends on {date}")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_that_ends_soon_is_warned_of_and_one_that_has_ended_is_an_error() {
        let level = |ends: SystemTime| of_certificate("[nbd.tls]", Ok(Some(ends))).unwrap().level;
        let now = SystemTime::now();
        assert_eq!(level(now + 2 * SOON), Level::Ok);
        assert_eq!(level(now + SOON / 2), Level::Warning);
        assert_eq!(level(now - SOON), Level::Error);
        assert_eq!(of_certificate("[nbd.tls]", Ok(None)), None);
        assert_eq!(of_certificate("[nbd.tls]", Err("x".to_owned())).unwrap().text, "x");
    }

    #[test]
    fn what_is_no_file_or_may_be_read_by_all_is_no_secret() {
        let folder = tempfile::tempdir().unwrap();
        assert!(read_secret(folder.path()).unwrap_err().contains("it is no file"));
        let path = folder.path().join("key");
        fs::write(&path, "x").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o604)).unwrap();
        assert!(read_secret(&path).unwrap_err().contains("chmod o="));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(read_secret(&path).unwrap(), b"x");
    }
}
