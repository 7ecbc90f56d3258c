//! `sluice export FORMAT VM [FILE]`

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use serde_json::{Map, Value, json};
use sluice_api::change::HostFile;
use sluice_api::object::ObjectId;
use sluice_config::{Host, ListenAddress, NicAccess, Vm};
use sluice_sched::Bytes;

use crate::control::Request;
use crate::control::client::Daemon;
use crate::export::{self, Disk, Machine, Parts, Reach, Rendered};
use crate::output;
use sluice_daemon::failure::{Failure, chain};
use sluice_daemon::{preflight, server};

/// Block size that QEMU gives a disk for which none is stated, in bytes.
const BLOCK_DEFAULT: u32 = 512;

/// Print the VMM configuration that connects a VM to its volumes and NICs.
///
/// The output is added to the VM's own configuration. With a host file the daemon need not run. Without one the running daemon is
/// asked, so volumes and NICs that were attached at run time are known too. QEMU does not take the block size of a volume over
/// NBD from the daemon, so for one without the key `block_size` the state directory and the start of its source are read.
#[derive(Args)]
pub(crate) struct Export {
    /// Output format.
    #[arg(value_enum)]
    format: Format,
    /// Name of the VM.
    vm: String,
    /// Host file; files in the folder NAME.d next to NAME.toml override its keys. Default: what the running daemon serves.
    #[arg(conflicts_with = "socket")]
    file: Option<PathBuf>,
    /// Memory size of the VM, which is shared with the daemon. QEMU and Cloud Hypervisor need it for vhost-user.
    #[arg(long, value_name = "SIZE")]
    memory: Option<Bytes>,
    /// Number of vCPUs. Each disk gets one queue per vCPU, and each NIC a pair, up to the number in the host file. Default: chosen
    /// by the VMM.
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..))]
    cpus: Option<u16>,
    /// Boot volume of a Firecracker VM.
    #[arg(long, value_name = "VOLUME")]
    root: Option<String>,
    /// Print only this volume or NIC, as VOLUME, VM/VOLUME or VM/nic/NIC. `libvirt-xml` is then one element, for `virsh
    /// attach-device`.
    #[arg(long, value_name = "VOLUME")]
    volume: Option<String>,
    /// Bus of the VM for `qmp`: a free PCI Express root port. Default: chosen by QEMU; machine type q35 needs one.
    #[arg(long, value_name = "ID")]
    bus: Option<String>,
    /// Version of libvirt on this host, as `virsh --version` prints it. From 9.1, a disk over NBD then waits up to 30 s for the
    /// daemon to restart.
    #[arg(long, value_name = "VERSION", value_parser = version)]
    libvirt: Option<(u32, u32)>,
    #[command(flatten)]
    daemon: Daemon,
}

/// The output formats.
#[derive(Clone, Copy, ValueEnum)]
enum Format {
    /// Arguments for qemu-system-*.
    QemuArgs,
    /// Parts of a libvirt domain.
    LibvirtXml,
    /// QMP commands that plug volumes and NICs into a running QEMU, one per line.
    Qmp,
    /// Arguments for cloud-hypervisor.
    CloudHypervisorArgs,
    /// The drives and network interfaces of a Firecracker configuration file.
    FirecrackerJson,
    /// A URI for each volume, for clients of NBD.
    NbdUri,
}

impl Export {
    pub(crate) fn run(self, format: output::Format) -> Result<(), Failure> {
        let host = match &self.file {
            Some(file) => sluice_config::load(file).map_err(Failure::Config)?,
            None => served(&self.daemon)?,
        };
        let rendered = self.render(&host)?;
        let groups = groups(&host, &self.vm);
        match format {
            output::Format::Table => {
                for (group, socket) in &groups {
                    let socket = socket.display();
                    output::message(format!("{socket} belongs to group {group}: the user of the VMM must be in it"));
                }
                output::line(&rendered.text);
            }
            output::Format::Json => {
                let name = self.format.to_possible_value().expect("no format is hidden").get_name().to_owned();
                let fields = rendered.fields.into_iter().map(|(key, value)| (key.to_owned(), value));
                let own = [
                    ("vm".to_owned(), json!(self.vm)),
                    ("format".to_owned(), json!(name)),
                    ("groups".to_owned(), json!(groups.into_keys().collect::<Vec<_>>())),
                ];
                output::json(&Value::Object(own.into_iter().chain(fields).collect::<Map<_, _>>()));
            }
        }
        Ok(())
    }

    fn render(&self, host: &Host) -> Result<Rendered, Failure> {
        let vm = host.vms.get(&self.vm).ok_or_else(|| unknown("VM", &self.vm, host.vms.keys()))?;
        let mut parts = export::parts(host, vm)?;
        if let Some(only) = &self.volume {
            let name = only.strip_prefix(&format!("{}/", vm.name)).unwrap_or(only);
            parts.disks.retain(|disk| disk.volume == name);
            parts.cards.retain(|card| card.title == format!("{}/{name}", vm.name));
            if parts.disks.is_empty() && parts.cards.is_empty() {
                return Err(match ObjectId::of_vm(&vm.name, name) {
                    ObjectId::Nic { nic, .. } => unknown(&format!("NIC of VM {}", vm.name), &nic, vm.nics.keys()),
                    _ => unknown(&format!("volume of VM {}", vm.name), name, vm.volumes.keys()),
                });
            }
        }
        if let Some(root) = &self.root
            && !vm.volumes.contains_key(root)
        {
            return Err(unknown(&format!("volume of VM {}", vm.name), root, vm.volumes.keys()));
        }
        if matches!(self.format, Format::QemuArgs | Format::LibvirtXml | Format::Qmp) {
            find_block_sizes(host, vm, &mut parts);
        }
        let machine = Machine {
            memory: self.memory,
            processors: self.cpus,
            root: self.root.as_deref(),
            libvirt: self.libvirt,
            bus: self.bus.as_deref(),
        };
        Ok(match self.format {
            Format::QemuArgs => export::qemu::render(&parts, &machine),
            Format::LibvirtXml if self.volume.is_some() => Ok(export::libvirt::render_one(&parts, &machine)),
            Format::LibvirtXml => export::libvirt::render(&parts, &machine),
            Format::Qmp => Ok(export::qmp::render(&parts, &machine)),
            Format::CloudHypervisorArgs => export::cloud_hypervisor::render(&parts, &machine),
            Format::FirecrackerJson => export::firecracker::render(&parts, &machine),
            Format::NbdUri => export::nbd_uri::render(&parts),
        }?)
    }
}

/// Groups to which sockets of a VM belong, each with one of them.
fn groups<'a>(host: &'a Host, vm: &str) -> BTreeMap<&'a str, &'a Path> {
    let of_volumes = host.vms[vm].volumes.values().map(|volume| &volume.export.endpoint);
    let of_nics = host.vms[vm].nics.values().filter_map(|nic| match &nic.access {
        NicAccess::VhostUser { endpoint, .. } => Some(endpoint),
        NicAccess::Tap(_) => None,
    });
    let owned = of_volumes.chain(of_nics).filter_map(|endpoint| match endpoint {
        ListenAddress::Unix { path, group, .. } => Some((group.as_deref()?, path.as_path())),
        ListenAddress::Tcp(_) => None,
    });
    owned.collect()
}

/// Returns the host file that the running daemon serves.
fn served(daemon: &Daemon) -> Result<Host, Failure> {
    let HostFile { host } = daemon.get(&Request::GetHost).map_err(|failure| match failure {
        // A daemon of an earlier version does not know the request.
        Failure::Run(error) => {
            Failure::Run(format!("{error}; name the host file, as in `sluice export nbd-uri VM FILE`").into())
        }
        other => other,
    })?;
    let text = toml::Table::try_from(host)?.to_string();
    sluice_config::parse("the running daemon", &text).map_err(Failure::Config)
}

/// Finds out the block sizes of volumes over NBD that the file does not state, as the daemon does.
fn find_block_sizes(host: &Host, vm: &Vm, parts: &mut Parts<'_>) {
    let is_unknown = |disk: &&mut Disk<'_>| {
        let volume = &vm.volumes[disk.volume];
        disk.block_size.is_none() && matches!(disk.reach, Reach::Nbd { .. }) && volume.source.file().is_some()
    };
    let mut unknown = parts.disks.iter_mut().filter(is_unknown).peekable();
    if unknown.peek().is_none() {
        return;
    }
    let saved = preflight::saved(host);
    for disk in unknown {
        let name = ObjectId::volume(&vm.name, disk.volume);
        let found = saved
            .as_ref()
            .map_err(Clone::clone)
            .and_then(|saved| server::block_size(name, &vm.volumes[disk.volume], saved).map_err(|error| chain(&error)));
        match found {
            Ok(block) => disk.block_size = (block != BLOCK_DEFAULT).then_some(block),
            Err(error) => output::message(format!(
                "Volume {}: the block size that it is served with is not known, so the output states none, and QEMU uses \
                 {BLOCK_DEFAULT} bytes: {error}. Run this command as the user of the daemon, or state block_size in the host file",
                disk.title
            )),
        }
    }
}

/// Parses the major and minor number of a version.
fn version(text: &str) -> Result<(u32, u32), String> {
    let mut numbers = text.split('.').map(str::parse);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => Ok((major, minor)),
        _ => Err("write for example 9.1 or 10.0.0".to_owned()),
    }
}

/// Maximum number of listed names.
const KNOWN_MAX: usize = 10;

fn unknown<'a>(what: &str, name: &str, known: impl ExactSizeIterator<Item = &'a String>) -> Failure {
    let more = known.len().saturating_sub(KNOWN_MAX);
    let known: Vec<&str> = known.take(KNOWN_MAX).map(String::as_str).collect();
    let known = match (known.is_empty(), more) {
        (true, _) => "there is none".to_owned(),
        (false, 0) => format!("there are: {}", known.join(", ")),
        (false, more) => format!("there are: {} and {more} more", known.join(", ")),
    };
    Failure::NotFound(format!("No {what} is called '{name}'; {known}"))
}
