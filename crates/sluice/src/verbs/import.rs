//! `sluice import FORMAT FILE`

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use serde_json::json;

use crate::import::{self, ImportError};
use crate::output::{self, Format};
use sluice_daemon::failure::Failure;

/// Print a host file for a VM of libvirt or Proxmox, with its disks, its NICs that have a rate, and their limits.
///
/// The result passes `sluice check`. What has no counterpart is reported on standard error. A disk whose data would be damaged,
/// such as an encrypted or a transient one, is an error. Changes nothing: neither the VM nor the daemon.
#[derive(Args)]
pub(crate) struct Import {
    /// Format of the file.
    #[arg(value_enum)]
    format: Kind,
    /// File to import; `-` is standard input.
    file: PathBuf,
}

#[derive(Clone, Copy, ValueEnum)]
enum Kind {
    /// A domain, as printed by `virsh dumpxml VM`.
    LibvirtXml,
    /// A VM of Proxmox VE, as printed by `qm config VMID`, or /etc/pve/qemu-server/VMID.conf.
    ProxmoxConf,
}

/// Maximum size of a file, in bytes.
const FILE_MAX: u64 = 16 << 20;

impl Import {
    pub(crate) fn run(self, format: Format) -> Result<(), Failure> {
        let text = read(&self.file).map_err(|error| self.failure(&error))?;
        let machine = match self.format {
            Kind::LibvirtXml => import::libvirt::read(&text),
            Kind::ProxmoxConf => import::proxmox::read(&text, self.file.file_stem().and_then(|stem| stem.to_str())),
        };
        let host = machine.and_then(|machine| import::render::host_file(machine, &self.title()));
        let host = host.map_err(|error: ImportError| self.failure(&error))?;
        sluice_config::parse("imported", &host.text).map_err(Failure::Config)?;
        for warning in &host.warnings {
            output::message(format_args!("warning: {warning}"));
        }
        match format {
            Format::Table => output::line(host.text.trim_end()),
            Format::Json => output::json(&json!({ "ok": true, "host": host.text, "warnings": host.warnings })),
        }
        Ok(())
    }

    fn title(&self) -> String {
        if self.file == Path::new("-") { "standard input".to_owned() } else { self.file.display().to_string() }
    }

    fn failure(&self, error: &dyn std::error::Error) -> Failure {
        Failure::Run(format!("Cannot import {}: {error}", self.title()).into())
    }
}

fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    if path == Path::new("-") {
        io::stdin().lock().take(FILE_MAX + 1).read_to_string(&mut text)?;
    } else {
        let help =
            |error| io::Error::other(format!("{error}; name a file that this user may read, or - for standard input"));
        let file = std::fs::File::open(path).map_err(help)?;
        file.take(FILE_MAX + 1).read_to_string(&mut text).map_err(help)?;
    }
    // The part of a file may be a VM with fewer disks.
    if text.len() as u64 > FILE_MAX {
        return Err(io::Error::other("it is larger than 16 MiB, so it is no configuration of a VM; check its name"));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_too_large_was_imported_without_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("104.conf");
        let comment = "# a long comment\n".repeat(FILE_MAX as usize / 17 + 1);
        std::fs::write(&file, format!("scsi0: local-lvm:a\n{comment}scsi1: local-lvm:b\n")).unwrap();
        assert!(read(&file).unwrap_err().to_string().contains("larger than 16 MiB"));
        std::fs::write(&file, "scsi0: local-lvm:a\n").unwrap();
        assert_eq!(read(&file).unwrap(), "scsi0: local-lvm:a\n");
    }
}
