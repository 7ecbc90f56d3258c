//! `[daemon]`, with the roles of clients of its control socket.

use std::net::SocketAddr;
use std::path::PathBuf;

use crate::alert;
use crate::export::{is_account, read_account, read_mode, socket_path};
use crate::model::{Access, Account, CONTROL_SOCKET, Control, DaemonSettings, History, Jail, Layer, ListenAddress};
use crate::reader::Reader;
use crate::source::Span;
use crate::tree::Value;

/// An endpoint of the daemon itself, with its key and its place.
pub(crate) type OwnEndpoint = (&'static str, ListenAddress, Span);

/// Reads the table, and returns the endpoints in it too.
pub(crate) fn read(root: &Reader<'_>) -> (DaemonSettings, Vec<OwnEndpoint>) {
    let default = DaemonSettings { alerts: alert::read(root), ..DaemonSettings::default() };
    let Some(reader) = root.table("daemon") else {
        return (default, endpoint(&Control::Default, root.span).into_iter().collect());
    };
    let control = read_control(&reader);
    let metrics = read_metrics(&reader);
    let of_metrics = metrics.iter().map(|endpoint| ("metrics", endpoint.clone(), reader.at("metrics")));
    let endpoints = endpoint(&control, reader.at("control")).into_iter().chain(of_metrics).collect();
    let access = reader.table("access").map_or_else(Access::default, |reader| read_access(&reader));
    let drain_timeout = reader.time("drain_timeout").unwrap_or(default.drain_timeout);
    let (source_root, state) = (reader.path("source_root"), reader.path("state"));
    let real_time = reader.word("real_time") == Some("auto");
    let jail = read_jail(&reader);
    let history = reader.table("history").map_or(default.history, |reader| History {
        minutes: reader.time("minutes").unwrap_or(default.history.minutes),
        quarter_hours: reader.time("quarter_hours").unwrap_or(default.history.quarter_hours),
    });
    let alerts = default.alerts;
    let settings = DaemonSettings {
        drain_timeout,
        control,
        access,
        metrics,
        state,
        source_root,
        real_time,
        jail,
        alerts,
        history,
    };
    (settings, endpoints)
}

fn read_jail(reader: &Reader<'_>) -> Jail {
    if !matches!(reader.node("jail").map(|node| &node.value), Some(Value::Table(_))) {
        let word = reader.node("jail").and_then(|_| reader.word("jail"));
        return if word == Some("required") { Jail::Required } else { Jail::Full };
    }
    let layers = reader.table("jail").and_then(|table| table.words("without"));
    let is_left = |layer: &Layer| layers.iter().flatten().any(|word| *word == layer.name());
    Jail::Without(Layer::ALL.into_iter().filter(is_left).collect())
}

fn read_control(reader: &Reader<'_>) -> Control {
    let is_none = matches!(reader.node("control").map(|node| &node.value), Some(Value::Text(text)) if text == "none");
    match reader.node("control") {
        _ if is_none => Control::None,
        // An invalid path is an error, so what is returned for it is not used.
        Some(_) => socket_path(reader, "control").map_or(Control::None, Control::At),
        None => Control::Default,
    }
}

/// Reads where metrics are served. They name VMs and show their load, and clients are not authenticated. So only this host may
/// reach them.
fn read_metrics(reader: &Reader<'_>) -> Option<ListenAddress> {
    const KEY: &str = "metrics";
    let text = reader.text(KEY)?;
    if text.starts_with('/') {
        let path = socket_path(reader, KEY)?;
        return Some(ListenAddress::Unix { path, owner: None, group: None, mode: 0o660 });
    }
    let hint = "write a loopback address such as \"127.0.0.1:9925\", or the path of a socket such as \"/run/sluice/metrics.sock\"";
    let refuse = |what: String, hint: &str| {
        reader.refuse(KEY, what, hint);
        None
    };
    let Ok(address) = text.parse::<SocketAddr>() else {
        return refuse(format!("'{text}' is neither an address with a port nor a path"), hint);
    };
    if !address.ip().is_loopback() {
        let proxy =
            format!("{hint}; for a Prometheus on another host, put a proxy with TLS and a password in front of it");
        return refuse(format!("other hosts could reach {address}, and metrics are served to any client"), &proxy);
    }
    if address.port() == 0 {
        return refuse("port 0 is invalid".to_owned(), "write a port from 1 to 65535");
    }
    Some(ListenAddress::Tcp(address))
}

fn endpoint(control: &Control, span: Span) -> Option<OwnEndpoint> {
    let path = match control {
        Control::None => return None,
        Control::Default => PathBuf::from(CONTROL_SOCKET),
        Control::At(path) => path.clone(),
    };
    Some(("control", ListenAddress::Unix { path, owner: None, group: None, mode: 0o660 }, span))
}

fn read_access(reader: &Reader<'_>) -> Access {
    let default = Access::default();
    let accounts = |key| read_accounts(reader, key);
    Access {
        group: read_account(reader, "group"),
        mode: read_mode(reader, "mode").unwrap_or(default.mode),
        observe: accounts("observe"),
        change: accounts("change").unwrap_or_default(),
        attach: accounts("attach").unwrap_or_default(),
        socket_root: reader.path("socket_root").unwrap_or(default.socket_root),
        socket_accounts: accounts("socket_accounts").unwrap_or_default(),
        socket_mode: read_mode(reader, "socket_mode").unwrap_or(default.socket_mode),
    }
}

fn read_accounts(reader: &Reader<'_>, key: &str) -> Option<Vec<Account>> {
    let node = reader.node(key)?;
    let Value::List(items) = &node.value else {
        reader.wrong_kind(key, node);
        return None;
    };
    let account = |value: &Value| {
        let Value::Text(text) = value else { return None };
        match text.split_once(':') {
            Some(("user", name)) if is_account(name) => Some(Account::User(name.to_owned())),
            Some(("group", name)) if is_account(name) => Some(Account::Group(name.to_owned())),
            _ => None,
        }
    };
    let read: Option<Vec<Account>> = items.iter().map(|item| account(&item.value)).collect();
    if read.is_none() {
        reader.refuse(key, "not a list of users and groups", "write for example [\"user:alice\", \"group:operators\"]");
    }
    read
}
