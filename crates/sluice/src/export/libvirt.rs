//! `libvirt-xml`: parts of a domain's XML, in a `<domain>` element so that the output is well-formed.
//!
//! libvirt describes them in "Domain XML format", sections "Memory Backing" and "Hard drives, floppy disks, CDROMs".

use std::fmt::Write;

use serde_json::json;
use sluice_config::Endpoint;

use super::{Disk, ExportError, Machine, Reach, Rendered, share_memory};

/// Interval between two attempts to reconnect, in seconds.
const RECONNECT_S: u32 = 1;

pub(crate) fn render(disks: &[Disk<'_>], machine: &Machine<'_>) -> Result<Rendered, ExportError> {
    let mut text = String::from("<domain>\n");
    if share_memory(disks) {
        text.push_str(
            "  <memoryBacking>\n    <source type='memfd'/>\n    <access mode='shared'/>\n  </memoryBacking>\n",
        );
    }
    text.push_str("  <devices>\n");
    for (number, disk) in disks.iter().enumerate() {
        text.push_str(&element(disk, machine, &target(number)));
    }
    text.push_str("  </devices>\n</domain>");
    let fields = vec![("xml", json!(text))];
    Ok(Rendered { text, fields })
}

fn element(disk: &Disk<'_>, machine: &Machine<'_>, target: &str) -> String {
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
            "    <disk type='network' device='disk'>\n      <driver name='qemu' type='raw' discard='unmap'/>\n      \
             <source protocol='nbd' name='{}'>\n        {}\n      </source>\n{target}{}    </disk>\n",
            escaped(name),
            host(endpoint),
            if disk.read_only { "      <readonly/>\n" } else { "" },
        ),
    };
    text
}

fn host(endpoint: &Endpoint) -> String {
    match endpoint {
        Endpoint::Unix { path, .. } => format!("<host transport='unix' socket='{}'/>", escaped(super::text(path))),
        Endpoint::Tcp(address) => format!("<host name='{}' port='{}'/>", address.ip(), address.port()),
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
