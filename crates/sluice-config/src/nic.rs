//! `[vm.NAME.nic.NAME]`: checks of a single NIC.

use core::net::IpAddr;
use std::path::PathBuf;

use ipnet::IpNet;
use sluice_net::Mac;

use crate::export::unix;
use crate::known::Known;
use crate::model::{ListenAddress, NetPolicy, Nic, NicAccess, Receive};
use crate::net_policy::{NetPart, read_net_policy};
use crate::reader::Reader;
use crate::source::Span;
use crate::tree::{Node, Value};
use crate::uplink::read_mtu;

/// Default number of pairs of virtqueues: one for each vCPU of most VMs.
const QUEUES: u16 = 16;
/// Maximum number of networks that a NIC may send from.
const ADDRESSES_MAX: usize = 64;

/// A NIC, with data for the checks across tables.
#[derive(Debug)]
pub(crate) struct NicDraft {
    /// `VM/nic/NIC`
    pub(crate) title: String,
    pub(crate) nic: Nic,
    pub(crate) part: NetPart,
    pub(crate) has_own: bool,
    pub(crate) access_at: Span,
    pub(crate) mac_at: Span,
    /// Whether it has an error.
    pub(crate) broken: bool,
}

impl NicDraft {
    /// `receive` is what its VM's policy states.
    pub(crate) fn read(vm: &str, name: &str, reader: &Reader<'_>, known: &Known<'_>, receive: Receive) -> NicDraft {
        let before = reader.report.errors();
        let (part, has_own) = read_net_policy(reader, known.nets);
        let uplink = reader.known("uplink", known.uplinks);
        if reader.node("uplink").is_none() {
            reader.missing("uplink", "");
        }
        let draft = uplink.and_then(|uplink| known.uplinks.get(uplink));
        let policy = part.policy();
        let own = policy.receive;
        let receive = Receive {
            limit: if part.limits_receive() { own.limit } else { receive.limit },
            weight: own.weight.or(receive.weight),
        };
        let (access, access_at) = read_access(reader);
        let (mac, mac_at) = (read_mac(reader), reader.at("mac"));
        let nic = Nic {
            name: name.to_owned(),
            uplink: uplink.unwrap_or_default().to_owned(),
            access,
            mac: mac.unwrap_or_else(|| Mac::of(vm, name)),
            spoof: reader.bool("spoof").unwrap_or(false),
            addresses: read_addresses(reader),
            dhcp_server: reader.bool("dhcp_server").unwrap_or(false),
            router_advertisement: reader.bool("router_advertisement").unwrap_or(false),
            vlan: reader.small("vlan").map(|vlan| u16::try_from(vlan).expect("the range ends at 4094")),
            mtu: read_mtu(reader, draft.map_or(1500, |uplink| uplink.mtu)),
            offloads: reader.bool("offloads").unwrap_or(true),
            policy_name: reader.text("policy").map(str::to_owned),
            policy: NetPolicy { receive, ..policy },
        };
        if let Some(uplink) = draft.filter(|uplink| nic.mtu > uplink.mtu) {
            let (name, most) = (&uplink.link.device.name, uplink.mtu);
            let hint = format!("lower it to at most {most}, or raise mtu in [uplink.{name}]");
            reader.refuse("mtu", format!("{} is above the mtu of uplink {name}, {most}", nic.mtu), hint);
        }
        let broken = reader.report.errors() > before;
        NicDraft { title: format!("{vm}/nic/{name}"), nic, part, has_own, access_at, mac_at, broken }
    }
}

/// The socket or TAP, and the position of its key.
fn read_access(reader: &Reader<'_>) -> (NicAccess, Span) {
    // Placeholder for an invalid or missing endpoint; such a host is rejected.
    let nowhere = || ListenAddress::Unix { path: PathBuf::new(), owner: None, group: None, mode: 0 };
    let (socket, tap) = (reader.node("socket").is_some(), reader.node("tap").is_some());
    let queues = reader.small("queues").map_or(QUEUES, |queues| u16::try_from(queues).expect("the range ends at 64"));
    match (socket, tap) {
        (true, true) => reader.refuse("tap", "the NIC already has a socket", "keep either socket or tap"),
        (false, false) => reader.missing("socket", ", and so is tap"),
        _ => {}
    }
    if !tap || socket {
        let endpoint = unix(reader).unwrap_or_else(nowhere);
        return (NicAccess::VhostUser { endpoint, queues }, reader.at("socket"));
    }
    for key in ["owner", "group", "mode", "queues"].into_iter().filter(|key| reader.node(key).is_some()) {
        reader.refuse(
            key,
            "it applies only to a socket, and the NIC has a tap",
            "remove it, or write socket instead of tap",
        );
    }
    (NicAccess::Tap(reader.interface("tap").unwrap_or_default().to_owned()), reader.at("tap"))
}

fn read_mac(reader: &Reader<'_>) -> Option<Mac> {
    const KEY: &str = "mac";
    let text = reader.text(KEY)?;
    let hint = format!("write six pairs of hexadecimal digits, for example {}", "\"52:54:00:12:34:56\"");
    let Ok(mac) = text.parse::<Mac>() else {
        reader.refuse(KEY, format!("'{text}' is not an Ethernet address"), hint);
        return None;
    };
    if !mac.is_station() {
        let what = if mac.is_multicast() { "the address of a group of interfaces" } else { "no interface's address" };
        let hint = "write an address whose first byte is even, for example \"52:54:00:12:34:56\"";
        reader.refuse(KEY, format!("{mac} is {what}"), hint);
        return None;
    }
    Some(mac)
}

fn read_addresses(reader: &Reader<'_>) -> Vec<IpNet> {
    const KEY: &str = "addresses";
    let Some(node) = reader.node(KEY) else { return Vec::new() };
    let Value::List(items) = &node.value else {
        reader.wrong_kind(KEY, node);
        return Vec::new();
    };
    if items.len() > ADDRESSES_MAX {
        reader.refuse(
            KEY,
            format!("{} networks are too many", items.len()),
            format!("at most {ADDRESSES_MAX} are accepted"),
        );
        return Vec::new();
    }
    let read = |item: &Node| {
        let read = match &item.value {
            Value::Text(text) => read_network(text),
            other => {
                Err((format!("{} is not an IP address", other.words()), "write for example \"10.0.0.5/32\"".to_owned()))
            }
        };
        read.map_err(|(what, hint)| reader.report.error(item.span, format!("{}: {KEY}: {what}", reader.whose), hint))
            .ok()
    };
    items.iter().filter_map(read).collect()
}

/// Reads `10.0.0.0/24`, or one address without a prefix.
fn read_network(text: &str) -> Result<IpNet, (String, String)> {
    let (address, prefix) = text.split_once('/').map_or((text, None), |(address, prefix)| (address, Some(prefix)));
    let wrong = || {
        (
            format!("'{text}' is not an IP address with a prefix"),
            "write for example \"10.0.0.5/32\" or \"fd00::5/128\"".to_owned(),
        )
    };
    let address: IpAddr = address.parse().map_err(|_| wrong())?;
    let bits = if address.is_ipv4() { 32 } else { 128 };
    let prefix: u8 = match prefix {
        None => bits,
        Some(digits) if digits.bytes().all(|c| c.is_ascii_digit()) => digits.parse().map_err(|_| wrong())?,
        Some(_) => return Err(wrong()),
    };
    let Ok(network) = IpNet::new(address, prefix).map(|net| net.trunc()) else {
        return Err((format!("'{text}': the prefix has more than {bits} bits"), format!("write at most /{bits}")));
    };
    if network.addr() != address {
        let what = format!("'{text}' has bits after its prefix");
        return Err((
            what,
            format!("write \"{network}\" for all of the network, or \"{address}/{bits}\" for the one address"),
        ));
    }
    Ok(network)
}
