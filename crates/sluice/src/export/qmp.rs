//! `qmp`: commands that plug volumes and NICs into a running QEMU, one per line, in the order in which they are sent.
//!
//! They name the same devices as [`super::qemu`]. For vhost-user the VM must have been started with shared memory.

use serde_json::{Value, json};
use sluice_config::ListenAddress;

use super::qemu::{RECONNECT_DELAY_S, TLS_FOLDER, queues, vectors};
use super::{Card, CardLink, Disk, Machine, PHYSICAL_BLOCK_MIN, Parts, Reach, Rendered};

pub(crate) fn render(parts: &Parts<'_>, machine: &Machine<'_>) -> Rendered {
    let disks = parts.disks.iter().flat_map(|disk| commands(disk, machine));
    let commands: Vec<Value> = disks.chain(parts.cards.iter().flat_map(|card| card_commands(card, machine))).collect();
    let lines: Vec<String> = commands.iter().map(Value::to_string).collect();
    Rendered { text: lines.join("\n"), fields: vec![("commands", json!(commands))] }
}

fn commands(disk: &Disk<'_>, machine: &Machine<'_>) -> Vec<Value> {
    let id = format!("sluice{}", disk.number);
    let mut commands = Vec::new();
    let (back_end, mut device) = match disk.reach {
        Reach::VhostUser { socket, queues } => {
            let line = format!("{id}-line");
            let mut device = json!({ "driver": "vhost-user-blk-pci", "id": id, "chardev": line });
            if let Some(queues) = machine.queues(queues) {
                device["num-queues"] = json!(queues);
            }
            (chardev(&line, socket), device)
        }
        Reach::Nbd { endpoint, name } => {
            let node = format!("{id}-node");
            let mut arguments = json!({
                "driver": "nbd", "node-name": node, "server": server(endpoint), "export": name,
                "reconnect-delay": RECONNECT_DELAY_S, "discard": disk.discard(), "read-only": disk.read_only,
            });
            if disk.needs_tls(endpoint) {
                let name = format!("{id}-tls");
                let folder =
                    json!({ "qom-type": "tls-creds-x509", "id": name, "endpoint": "client", "dir": TLS_FOLDER });
                commands.push(command("object-add", folder));
                arguments["tls-creds"] = json!(name);
            }
            let mut device = json!({ "driver": "virtio-blk-pci", "id": id, "drive": node, "serial": disk.serial });
            if let Some(block) = disk.block_size {
                device["logical_block_size"] = json!(block);
                device["physical_block_size"] = json!(block.max(PHYSICAL_BLOCK_MIN));
            }
            (command("blockdev-add", arguments), device)
        }
    };
    if let Some(bus) = machine.bus {
        device["bus"] = json!(bus);
    }
    commands.extend([back_end, command("device_add", device)]);
    commands
}

fn card_commands(card: &Card<'_>, machine: &Machine<'_>) -> Vec<Value> {
    let (id, pairs) = (card.id(), queues(card, machine));
    let net = format!("{id}-net");
    let mut device = json!({ "driver": "virtio-net-pci", "id": id, "netdev": net, "mac": card.mac.to_string() });
    let mut commands = match card.link {
        CardLink::VhostUser { socket, .. } => {
            let line = format!("{id}-line");
            let mut netdev = json!({ "type": "vhost-user", "id": net, "chardev": line });
            if let Some(pairs) = pairs {
                netdev["queues"] = json!(pairs);
                device["mq"] = json!(true);
                device["vectors"] = json!(vectors(pairs));
            }
            vec![chardev(&line, socket), command("netdev_add", netdev)]
        }
        CardLink::Tap(name) => {
            let netdev = json!({ "type": "tap", "id": net, "ifname": name, "script": "no", "downscript": "no" });
            vec![command("netdev_add", netdev)]
        }
    };
    if let Some(mtu) = card.mtu {
        device["host_mtu"] = json!(mtu);
    }
    if let Some(bus) = machine.bus {
        device["bus"] = json!(bus);
    }
    commands.push(command("device_add", device));
    commands
}

/// Returns the connection to a vhost-user socket. QEMU reconnects when the daemon has restarted.
fn chardev(id: &str, socket: &str) -> Value {
    let address = json!({ "type": "unix", "data": { "path": socket } });
    let backend = json!({ "type": "socket", "data": { "addr": address, "server": false, "reconnect": 1 } });
    command("chardev-add", json!({ "id": id, "backend": backend }))
}

fn command(name: &str, arguments: Value) -> Value {
    json!({ "execute": name, "arguments": arguments })
}

fn server(endpoint: &ListenAddress) -> Value {
    match endpoint {
        ListenAddress::Unix { path, .. } => json!({ "type": "unix", "path": super::text(path) }),
        ListenAddress::Tcp(address) => {
            json!({ "type": "inet", "host": address.ip().to_string(), "port": address.port().to_string() })
        }
    }
}
