//! `qemu-args`: arguments for `qemu-system-*`, in addition to those of the VM itself.

use serde_json::json;
use sluice_config::ListenAddress;

use super::{Card, CardLink, Disk, ExportError, Machine, PHYSICAL_BLOCK_MIN, Parts, Reach, Rendered};

const VMM: &str = "QEMU";
/// Time for which QEMU holds a guest's requests to an NBD disk when the connection is lost, in seconds.
pub(super) const RECONNECT_DELAY_S: u32 = 30;
/// Name of the certificates for TLS, and where QEMU has them by default: `ca-cert.pem`, `client-cert.pem`, `client-key.pem`.
pub(super) const TLS: &str = "sluice-tls";
pub(super) const TLS_FOLDER: &str = "/etc/pki/qemu";

/// Shared memory, and two or three options for each disk and NIC. The first disk is the guest's first virtio disk.
pub(crate) fn render(parts: &Parts<'_>, machine: &Machine<'_>) -> Result<Rendered, ExportError> {
    let mut options = Vec::new();
    let mut option = |name: &str, value: String| options.push(vec![name.to_owned(), value]);
    if parts.share_memory() {
        let mib = machine.memory_mib(VMM)?;
        option("-m", format!("{mib}M"));
        option("-object", format!("memory-backend-memfd,id=sluice-memory,size={mib}M,share=on"));
        option("-machine", "memory-backend=sluice-memory".to_owned());
    }
    let needs_tls = |disk: &Disk<'_>| matches!(disk.reach, Reach::Nbd { endpoint, .. } if disk.needs_tls(endpoint));
    if parts.disks.iter().any(needs_tls) {
        option("-object", format!("tls-creds-x509,id={TLS},endpoint=client,dir={TLS_FOLDER}"));
    }
    for disk in &parts.disks {
        let id = format!("sluice{}", disk.number);
        match disk.reach {
            Reach::VhostUser { socket, queues } => {
                // QEMU reconnects when the daemon has restarted.
                option("-chardev", format!("socket,id={id}-line,path={},reconnect=1", escaped(socket)));
                let queues = machine.queues(queues).map_or(String::new(), |queues| format!(",num-queues={queues}"));
                option("-device", format!("vhost-user-blk-pci,id={id},chardev={id}-line{queues}"));
            }
            Reach::Nbd { endpoint, name } => {
                option("-blockdev", blockdev(&id, endpoint, name, disk));
                let blocks = disk.block_size.map_or(String::new(), |block| {
                    format!(",logical_block_size={block},physical_block_size={}", block.max(PHYSICAL_BLOCK_MIN))
                });
                let serial = escaped(disk.serial);
                option("-device", format!("virtio-blk-pci,id={id},drive={id}-node,serial={serial}{blocks}"));
            }
        }
    }
    for card in &parts.cards {
        let (id, queues) = (card.id(), queues(card, machine));
        match card.link {
            CardLink::VhostUser { socket, .. } => {
                option("-chardev", format!("socket,id={id}-line,path={},reconnect=1", escaped(socket)));
                let pairs = queues.map_or(String::new(), |pairs| format!(",queues={pairs}"));
                option("-netdev", format!("vhost-user,id={id}-net,chardev={id}-line{pairs}"));
            }
            CardLink::Tap(name) => {
                let name = escaped(name);
                option("-netdev", format!("tap,id={id}-net,ifname={name},script=no,downscript=no"));
            }
        }
        let pairs = queues.map_or(String::new(), |pairs| format!(",mq=on,vectors={}", vectors(pairs)));
        let mtu = card.mtu.map_or(String::new(), |mtu| format!(",host_mtu={mtu}"));
        option("-device", format!("virtio-net-pci,id={id},netdev={id}-net,mac={}{pairs}{mtu}", card.mac));
    }
    let arguments: Vec<&String> = options.iter().flatten().collect();
    let fields = vec![("arguments", json!(arguments))];
    Ok(Rendered { text: sluice_api::shell::lines(&options), fields })
}

/// Returns the number of pairs of queues of a NIC with several; `None` for one pair.
pub(super) fn queues(card: &Card<'_>, machine: &Machine<'_>) -> Option<u16> {
    match card.link {
        CardLink::VhostUser { queues, .. } => machine.queues(queues).filter(|pairs| *pairs > 1),
        CardLink::Tap(_) => None,
    }
}

/// Returns the number of interrupts of a NIC with this number of pairs of queues: one for each queue, for the control queue and for the
/// configuration.
pub(super) fn vectors(pairs: u16) -> u16 {
    2 * pairs + 2
}

fn blockdev(id: &str, endpoint: &ListenAddress, name: &str, disk: &Disk<'_>) -> String {
    let server = match endpoint {
        ListenAddress::Unix { path, .. } => format!("server.type=unix,server.path={}", escaped(super::text(path))),
        ListenAddress::Tcp(address) => {
            format!("server.type=inet,server.host={},server.port={}", address.ip(), address.port())
        }
    };
    let read_only = if disk.read_only { ",read-only=on" } else { "" };
    let tls = if disk.needs_tls(endpoint) { format!(",tls-creds={TLS}") } else { String::new() };
    let (name, discard) = (escaped(name), disk.discard());
    format!(
        "driver=nbd,node-name={id}-node,{server},export={name},reconnect-delay={RECONNECT_DELAY_S},discard={discard}{read_only}{tls}"
    )
}

/// Escapes a value in QEMU's option lists: commas are doubled.
fn escaped(value: &str) -> String {
    value.replace(',', ",,")
}
