//! `libvirt-xml`: parts of a domain's XML, in a `<domain>` element so that the output is well-formed.
//!
//! libvirt describes them in "Domain XML format", sections "Memory Backing", "Hard drives, floppy disks, CDROMs" and
//! "Network interfaces". For hot-plug it is the `<disk>` or `<interface>` alone, for `virsh attach-device`.

use std::fmt::Write;

use serde_json::json;
use sluice_config::ListenAddress;

use super::{Card, CardLink, Disk, ExportError, Machine, PHYSICAL_BLOCK_MIN, Parts, Reach, Rendered, qemu};

/// Interval between two attempts to reconnect, in seconds.
const RECONNECT_S: u32 = 1;
/// Maximum time for which an NBD disk waits for the daemon, in seconds.
const NBD_DELAY_S: u32 = 30;
/// First version of libvirt that has this delay, as major and minor number.
const NBD_DELAY_SINCE: (u32, u32) = (9, 1);

pub(crate) fn render(parts: &Parts<'_>, machine: &Machine<'_>) -> Result<Rendered, ExportError> {
    let mut text = String::from("<domain>\n");
    if parts.share_memory() {
        text.push_str(
            "  <memoryBacking>\n    <source type='memfd'/>\n    <access mode='shared'/>\n  </memoryBacking>\n",
        );
    }
    text.push_str("  <devices>\n");
    for disk in &parts.disks {
        text.push_str(&element(disk, machine));
    }
    for card in &parts.cards {
        text.push_str(&interface(card, machine));
    }
    text.push_str("  </devices>\n</domain>");
    let fields = vec![("xml", json!(text))];
    Ok(Rendered { text, fields })
}

/// Returns one disk or NIC, to be attached to a running domain. The domain must share its memory for vhost-user.
pub(crate) fn render_one(parts: &Parts<'_>, machine: &Machine<'_>) -> Rendered {
    let disks = parts.disks.iter().map(|disk| element(disk, machine));
    let mut elements = disks.chain(parts.cards.iter().map(|card| interface(card, machine)));
    let element = elements.next().expect("one is exported");
    let lines: Vec<String> = element.lines().map(|line| line.strip_prefix("    ").unwrap_or(line).to_owned()).collect();
    let text = lines.join("\n");
    Rendered { fields: vec![("xml", json!(text))], text }
}

fn element(disk: &Disk<'_>, machine: &Machine<'_>) -> String {
    let target = target(disk.number);
    let queues = |most| machine.queues(most).map_or(String::new(), |queues| format!(" queues='{queues}'"));
    let target = format!("      <target dev='{target}' bus='virtio'/>\n");
    let mut text = String::new();
    let _ = match disk.reach {
        // The daemon reports whether the volume is read-only; libvirt has no element for it here.
        Reach::VhostUser { socket, queues: most } => write!(
            text,
            "    <disk type='vhostuser' device='disk'>\n      <driver name='qemu' type='raw'{}/>\n      \
             <source type='unix' path='{}'>\n        <reconnect enabled='yes' timeout='{RECONNECT_S}'/>\n      \
             </source>\n{target}    </disk>\n",
            queues(most),
            escaped(socket),
        ),
        Reach::Nbd { endpoint, name } => write!(
            text,
            "    <disk type='network' device='disk'>\n      <driver name='qemu' type='raw' discard='{}'/>\n      \
             <source protocol='nbd' name='{}'{}>\n        {}\n{}      </source>\n{target}{}      <serial>{}</serial>\n{}    </disk>\n",
            disk.discard(),
            escaped(name),
            // The certificates are in libvirt's `nbd_tls_x509_cert_dir`.
            if disk.needs_tls(endpoint) { " tls='yes'" } else { "" },
            host(endpoint),
            nbd_delay(machine),
            if disk.read_only { "      <readonly/>\n" } else { "" },
            escaped(disk.serial),
            block_size(disk),
        ),
    };
    text
}

fn block_size(disk: &Disk<'_>) -> String {
    disk.block_size.map_or(String::new(), |block| {
        let physical = block.max(PHYSICAL_BLOCK_MIN);
        format!("      <blockio logical_block_size='{block}' physical_block_size='{physical}'/>\n")
    })
}

/// Returns one NIC.
fn interface(card: &Card<'_>, machine: &Machine<'_>) -> String {
    let (kind, link) = match card.link {
        CardLink::VhostUser { socket, .. } => (
            "vhostuser",
            format!(
                "      <source type='unix' path='{}' mode='client'>\n        <reconnect enabled='yes' timeout='{RECONNECT_S}'/>\n      \
                 </source>\n",
                escaped(socket)
            ),
        ),
        CardLink::Tap(name) => ("ethernet", format!("      <target dev='{}' managed='no'/>\n", escaped(name))),
    };
    let queues = qemu::queues(card, machine);
    let queues = queues.map_or(String::new(), |pairs| format!("      <driver queues='{pairs}'/>\n"));
    let mtu = card.mtu.map_or(String::new(), |mtu| format!("      <mtu size='{mtu}'/>\n"));
    format!(
        "    <interface type='{kind}'>\n      <mac address='{}'/>\n{link}      <model type='virtio'/>\n{queues}{mtu}    \
         </interface>\n",
        card.mac
    )
}

/// Returns the element that makes a disk wait while the daemon restarts. Older versions of libvirt refuse it.
fn nbd_delay(machine: &Machine<'_>) -> String {
    match machine.libvirt {
        Some(version) if version >= NBD_DELAY_SINCE => format!("        <reconnect delay='{NBD_DELAY_S}'/>\n"),
        _ => String::new(),
    }
}

fn host(endpoint: &ListenAddress) -> String {
    match endpoint {
        ListenAddress::Unix { path, .. } => format!("<host transport='unix' socket='{}'/>", escaped(super::text(path))),
        ListenAddress::Tcp(address) => format!("<host name='{}' port='{}'/>", address.ip(), address.port()),
    }
}

/// Returns `vda` to `vdz`, then `vdaa` and so on.
fn target(number: usize) -> String {
    let letter = |n: usize| char::from(b'a' + u8::try_from(n % 26).expect("it is below 26"));
    match number / 26 {
        0 => format!("vd{}", letter(number)),
        first => format!("vd{}{}", letter(first - 1), letter(number)),
    }
}

/// Escapes the value of an attribute in single quotes.
fn escaped(value: &str) -> String {
    value.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('\'', "&apos;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_named_like_linux_disks() {
        let names: Vec<String> = [0, 25, 26, 27, 51, 52, 255].map(target).into();
        assert_eq!(names, ["vda", "vdz", "vdaa", "vdab", "vdaz", "vdba", "vdiv"]);
    }

    #[test]
    fn quotes_and_brackets_in_a_value_are_escaped() {
        assert_eq!(escaped("a'b<c>&d"), "a&apos;b&lt;c&gt;&amp;d");
    }
}
