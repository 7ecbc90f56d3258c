//! `qemu-args`: arguments for `qemu-system-*`, in addition to those of the VM itself.

use serde_json::json;
use sluice_config::Endpoint;

use super::{Disk, ExportError, Machine, Reach, Rendered, share_memory, shell};

const VMM: &str = "QEMU";
/// How long QEMU holds a guest's requests to an NBD disk when the connection is lost, in seconds.
const RECONNECT_DELAY_S: u32 = 30;

/// Shared memory, and two options for each disk. The first is the guest's first virtio disk.
pub(crate) fn render(disks: &[Disk<'_>], machine: &Machine<'_>) -> Result<Rendered, ExportError> {
    let mut options = Vec::new();
    let mut option = |name: &str, value: String| options.push(vec![name.to_owned(), value]);
    if share_memory(disks) {
        let mib = machine.memory_mib(VMM)?;
        option("-m", format!("{mib}M"));
        option("-object", format!("memory-backend-memfd,id=sluice-memory,size={mib}M,share=on"));
        option("-machine", "memory-backend=sluice-memory".to_owned());
    }
    for (number, disk) in disks.iter().enumerate() {
        let id = format!("sluice{number}");
        match disk.reach {
            Reach::VhostUser { socket, queues } => {
                // QEMU reconnects when the daemon has restarted.
                option("-chardev", format!("socket,id={id}-line,path={},reconnect=1", escaped(socket)));
                let queues = machine.queues(queues).map_or(String::new(), |queues| format!(",num-queues={queues}"));
                option("-device", format!("vhost-user-blk-pci,id={id},chardev={id}-line{queues}"));
            }
            Reach::Nbd { endpoint, name } => {
                option("-blockdev", blockdev(&id, endpoint, name, disk.read_only));
                option("-device", format!("virtio-blk-pci,id={id},drive={id}-node"));
            }
        }
    }
    let arguments: Vec<&String> = options.iter().flatten().collect();
    let fields = vec![("arguments", json!(arguments))];
    Ok(Rendered { text: shell::lines(&options), fields })
}

fn blockdev(id: &str, endpoint: &Endpoint, name: &str, read_only: bool) -> String {
    let server = match endpoint {
        Endpoint::Unix { path, .. } => format!("server.type=unix,server.path={}", escaped(super::text(path))),
        Endpoint::Tcp(address) => {
            format!("server.type=inet,server.host={},server.port={}", address.ip(), address.port())
        }
    };
    let read_only = if read_only { ",read-only=on" } else { "" };
    let name = escaped(name);
    format!(
        "driver=nbd,node-name={id}-node,{server},export={name},reconnect-delay={RECONNECT_DELAY_S},discard=unmap{read_only}"
    )
}

/// Escapes a value in QEMU's option lists: commas are doubled.
fn escaped(value: &str) -> String {
    value.replace(',', ",,")
}
