//! Endpoints for clients: the `export` of a volume, and `[nbd]`.

use core::net::SocketAddr;
use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::model::{ListenAddress, NbdGateway, NbdSettings, NbdTls, Protocol, VolumeExport};
use crate::reader::Reader;
use crate::source::Span;

/// Maximum length of the path of a Unix socket.
const SOCKET_PATH_MAX: usize = 107;
/// Default number of virtqueues: one for each vCPU of most VMs.
const QUEUES: u16 = 16;
/// Maximum length of a name that clients accept.
const EXPORT_NAME_MAX: usize = 255;
/// Maximum number of gateways.
const GATEWAYS_MAX: usize = 1024;
/// Maximum number of clients that are told apart.
const CLIENTS_MAX: usize = 4096;

/// An export, with data for the checks across tables.
#[derive(Debug)]
pub(crate) struct ExportDraft {
    pub(crate) export: VolumeExport,
    pub(crate) endpoint_at: Span,
    /// Whether an address that other hosts reach is meant so.
    pub(crate) insecure: bool,
    pub(crate) name_at: Span,
    /// Whether it has an error.
    pub broken: bool,
}

/// `[nbd]`, likewise.
#[derive(Default)]
pub(crate) struct NbdDraft {
    pub(crate) settings: NbdSettings,
    pub(crate) endpoints_at: Vec<Span>,
    /// Whether an address that other hosts reach is meant so.
    pub(crate) insecure: bool,
}

impl ExportDraft {
    /// The export in the table of the volume `title`.
    pub(crate) fn read(title: &str, volume: &Reader<'_>) -> ExportDraft {
        let before = volume.report.errors();
        // Placeholder for an invalid or missing endpoint; such a host is rejected.
        let nowhere = || ListenAddress::Unix { path: PathBuf::new(), owner: None, group: None, mode: 0 };
        let Some(reader) = volume.table("export") else {
            if volume.node("export").is_none() {
                volume.missing("export", "");
            }
            let export = VolumeExport { protocol: Protocol::Nbd, endpoint: nowhere(), name: title.to_owned() };
            let (endpoint_at, name_at) = (volume.span, volume.span);
            return ExportDraft { export, endpoint_at, insecure: false, name_at, broken: true };
        };
        let protocol = read_protocol(&reader);
        check_accounts(&reader);
        let (socket, listen) = (reader.node("socket").is_some(), reader.node("listen").is_some());
        match (socket, listen) {
            (true, true) => {
                reader.refuse("listen", "the export already has a socket", "keep either socket or listen");
            }
            (false, true) if protocol != Protocol::Nbd => {
                reader.refuse(
                    "listen",
                    "guest memory cannot be shared over TCP",
                    "write socket = \"/run/sluice/NAME.sock\"",
                );
            }
            (false, false) => reader.missing("socket", ", and so is listen"),
            _ => {}
        }
        let endpoint = if socket { unix(&reader) } else { tcp(&reader) };
        let endpoint_at = reader.at(if socket { "socket" } else { "listen" });
        let name = read_name(&reader).unwrap_or_else(|| title.to_owned());
        let export = VolumeExport { protocol, endpoint: endpoint.unwrap_or_else(nowhere), name };
        let broken = reader.report.errors() > before || !(socket || listen);
        let insecure = reader.bool("insecure").unwrap_or(false);
        ExportDraft { export, endpoint_at, insecure, name_at: reader.at("name"), broken }
    }
}

impl NbdDraft {
    pub(crate) fn read(reader: &Reader<'_>) -> NbdDraft {
        let (tls, insecure) = (read_tls(reader), reader.bool("insecure").unwrap_or(false));
        check_accounts(reader);
        let endpoints = [("socket", unix(reader)), ("listen", tcp(reader))];
        let endpoints = endpoints.into_iter().filter_map(|(key, endpoint)| Some((endpoint?, reader.at(key))));
        let (endpoints, endpoints_at) = endpoints.unzip();
        let default = NbdSettings::default();
        let connections_max = reader.small("connections_max").unwrap_or(default.connections_max);
        let memory = reader.size("memory").unwrap_or(default.memory);
        let gateways = read_gateways(reader);
        let node = reader.text("node").unwrap_or_default().to_owned();
        if node.is_empty() && !gateways.is_empty() {
            reader.missing("node", ", which gateways need");
        }
        NbdDraft {
            settings: NbdSettings { endpoints, connections_max, memory, node, gateways, tls },
            endpoints_at,
            insecure,
        }
    }
}

fn read_tls(reader: &Reader<'_>) -> Option<NbdTls> {
    let table = reader.table("tls")?;
    for key in ["certificate", "key"].into_iter().filter(|key| table.node(key).is_none()) {
        table.missing(key, "");
    }
    let clients = table.named("client", CLIENTS_MAX, |name| format!("[nbd.tls.client.{name}]"));
    if !clients.is_empty() && table.node("client_ca").is_none() {
        table.missing("client_ca", ", which clients need");
    }
    let exports = |(name, client): (&str, Reader<'_>)| {
        if client.node("exports").is_none() {
            client.missing("exports", "");
        }
        Some((name.to_owned(), client.names("exports")?))
    };
    let clients = clients.into_iter().filter_map(exports).collect();
    let (certificate, key) = (table.path("certificate")?, table.path("key")?);
    Some(NbdTls { certificate, key, client_ca: table.path("client_ca"), clients })
}

fn read_gateways(reader: &Reader<'_>) -> BTreeMap<String, NbdGateway> {
    let tables = reader.named("gateway", GATEWAYS_MAX, |name| format!("[nbd.gateway.{name}]"));
    let read = |(name, table): (&str, Reader<'_>)| {
        for key in ["key_file", "vms"].into_iter().filter(|key| table.node(key).is_none()) {
            table.missing(key, "");
        }
        let (key_file, vms) = (table.path("key_file")?, table.names("vms")?);
        Some((name.to_owned(), NbdGateway { key_file, vms }))
    };
    tables.into_iter().filter_map(read).collect()
}

fn read_protocol(reader: &Reader<'_>) -> Protocol {
    let queues = reader.small("queues");
    match reader.node("type").and_then(|_| reader.word("type")) {
        Some("vhost-user-blk") => {
            Protocol::VhostUserBlk { queues: queues.and_then(|queues| u16::try_from(queues).ok()).unwrap_or(QUEUES) }
        }
        _ => {
            if queues.is_some() {
                reader.refuse("queues", "NBD has no virtqueues", "remove it, or write type = \"vhost-user-blk\"");
            }
            Protocol::Nbd
        }
    }
}

/// Rejects keys that describe a socket if there is none.
fn check_accounts(reader: &Reader<'_>) {
    if reader.node("socket").is_some() {
        return;
    }
    for key in ["owner", "group", "mode"].into_iter().filter(|key| reader.node(key).is_some()) {
        reader.refuse(key, "it applies only to a socket, and there is no socket", "add socket, or remove it");
    }
}

/// The path of a socket, if it is not too long for an address.
pub(crate) fn socket_path(reader: &Reader<'_>, key: &str) -> Option<PathBuf> {
    let path = reader.path(key)?;
    if path.as_os_str().len() > SOCKET_PATH_MAX {
        let what = format!("the path has {} bytes", path.as_os_str().len());
        reader.refuse(key, what, format!("a socket path may have at most {SOCKET_PATH_MAX} bytes; use a shorter one"));
        return None;
    }
    Some(path)
}

pub(crate) fn unix(reader: &Reader<'_>) -> Option<ListenAddress> {
    let (owner, group) = (read_account(reader, "owner"), read_account(reader, "group"));
    let mode = read_mode(reader, "mode");
    let path = socket_path(reader, "socket")?;
    Some(ListenAddress::Unix { path, owner, group, mode: mode? })
}

fn tcp(reader: &Reader<'_>) -> Option<ListenAddress> {
    const KEY: &str = "listen";
    let text = reader.text(KEY)?;
    let Ok(address) = text.parse::<SocketAddr>() else {
        let hint = "write for example \"127.0.0.1:10809\" or \"[::1]:10809\"";
        reader.refuse(KEY, format!("'{text}' is not an address with a port"), hint);
        return None;
    };
    if address.port() == 0 {
        reader.refuse(KEY, "port 0 is invalid", "write a port from 1 to 65535; the standard port of NBD is 10809");
        return None;
    }
    Some(ListenAddress::Tcp(address))
}

pub(crate) fn read_account(reader: &Reader<'_>, key: &str) -> Option<String> {
    let text = reader.text(key)?;
    if !is_account(text) {
        reader.refuse(key, "not a valid account name or number", "write the name or the number of a user or group");
        return None;
    }
    Some(text.to_owned())
}

/// Whether it may be the name or number of a user or group.
pub(crate) fn is_account(text: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || "_.-$@".contains(c);
    !text.is_empty() && text.len() <= 256 && !text.starts_with('-') && text.chars().all(fits)
}

/// Permissions; 0660 if the key is missing.
pub(crate) fn read_mode(reader: &Reader<'_>, key: &str) -> Option<u32> {
    if reader.node(key).is_none() {
        return Some(0o660);
    }
    let text = reader.text(key)?;
    let mode =
        u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777 && text.len() <= 5 && !text.starts_with('+'));
    if mode.is_none() {
        reader.refuse(key, format!("'{text}' is not a file mode"), "write for example \"0660\", at most \"0777\"");
    }
    mode
}

fn read_name(reader: &Reader<'_>) -> Option<String> {
    let name = reader.text("name")?;
    if name.is_empty() || name.len() > EXPORT_NAME_MAX || name.chars().any(char::is_control) {
        let hint = format!("write from 1 to {EXPORT_NAME_MAX} bytes without control characters");
        reader.refuse("name", "the name is not valid", hint);
        return None;
    }
    Some(name.to_owned())
}
