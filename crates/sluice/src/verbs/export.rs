//! `sluice export FORMAT VM FILE`

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde_json::{Map, Value, json};
use sluice_config::Host;
use sluice_sched::Bytes;

use crate::export::{self, Machine, Rendered};
use crate::failure::Failure;
use crate::output;

/// Print the VMM configuration that connects a VM to its volumes.
///
/// The output is added to the VM's own configuration. Reads only the host file; the daemon need not run.
#[derive(Args)]
pub(crate) struct Export {
    /// Output format.
    #[arg(value_enum)]
    format: Format,
    /// Name of the VM in the host file.
    vm: String,
    /// Host file; files in the folder NAME.d next to NAME.toml override its keys.
    file: PathBuf,
    /// Memory size of the VM, which is shared with the daemon. QEMU and Cloud Hypervisor need it for vhost-user volumes.
    #[arg(long, value_name = "SIZE")]
    memory: Option<Bytes>,
    /// Number of vCPUs. Each disk gets one queue per vCPU, up to the number of queues of its volume. Default: chosen by the
    /// VMM.
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..))]
    cpus: Option<u16>,
    /// Boot volume of a Firecracker VM.
    #[arg(long, value_name = "VOLUME")]
    root: Option<String>,
}

/// The output formats.
#[derive(Clone, Copy, ValueEnum)]
enum Format {
    /// Arguments for qemu-system-*.
    QemuArgs,
    /// Parts of a libvirt domain.
    LibvirtXml,
    /// Arguments for cloud-hypervisor.
    CloudHypervisorArgs,
    /// The drives of a Firecracker configuration file.
    FirecrackerJson,
    /// A URI for each volume, for clients of NBD.
    NbdUri,
}

impl Export {
    pub(crate) fn run(self, format: output::Format) -> Result<(), Failure> {
        let host = sluice_config::load(&self.file).map_err(Failure::Config)?;
        let rendered = self.render(&host)?;
        match format {
            output::Format::Table => output::line(&rendered.text),
            output::Format::Json => {
                let name = self.format.to_possible_value().expect("no format is hidden").get_name().to_owned();
                let fields = rendered.fields.into_iter().map(|(key, value)| (key.to_owned(), value));
                let own = [("vm".to_owned(), json!(self.vm)), ("format".to_owned(), json!(name))];
                output::json(&Value::Object(own.into_iter().chain(fields).collect::<Map<_, _>>()));
            }
        }
        Ok(())
    }

    fn render(&self, host: &Host) -> Result<Rendered, Failure> {
        let vm = host.vms.get(&self.vm).ok_or_else(|| unknown("VM", &self.vm, host.vms.keys()))?;
        let disks = export::disks(host, vm)?;
        if let Some(root) = &self.root
            && !vm.volumes.contains_key(root)
        {
            return Err(unknown(&format!("volume of VM {}", vm.name), root, vm.volumes.keys()));
        }
        let machine = Machine { memory: self.memory, processors: self.cpus, root: self.root.as_deref() };
        Ok(match self.format {
            Format::QemuArgs => export::qemu::render(&disks, &machine),
            Format::LibvirtXml => export::libvirt::render(&disks, &machine),
            Format::CloudHypervisorArgs => export::cloud_hypervisor::render(&disks, &machine),
            Format::FirecrackerJson => export::firecracker::render(&disks, &machine),
            Format::NbdUri => export::nbd_uri::render(&disks),
        }?)
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
