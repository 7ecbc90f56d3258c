//! `[device.NAME]`: checks of a single device.

use std::path::PathBuf;

use sluice_sched::admission::Capacity;
use sluice_sched::params::{ParamTable, Value as Param};
use sluice_sched::scheduler::{DeviceClass, DeviceInfo};
use sluice_sched::units::StatedIops;
use sluice_sched::{Bytes, CostModel, Descriptor, GateSettings, Percent, schedulers};

use crate::elsewhere::Elsewhere;
use crate::fields::WINDOW_REQUESTS_MAX;
use crate::meeting::{CEPH_CONF, CEPH_USER, Meeting};
use crate::model::{AsGateway, Backend, Ceph, Delay, DelayTime, Device, Node as ServerNode, NodeTls, Pool, Window};
use crate::node::NodeAddress;
use crate::quantity::{at_reference, cost_of};
use crate::rbd::RbdPool;
use crate::reader::{Reader, one_of};
use crate::source::Span;
use crate::tree::{Node, Value};

/// Requests in flight at a device that states nothing else.
const DEPTH: u32 = 32;
/// The same of a node that enforces the policies: more than the windows of many VMs.
const NODE_DEPTH: u32 = 4096;

/// A device, with data for the checks across tables.
pub struct DeviceDraft {
    pub device: Device,
    /// Position of its path.
    pub path_at: Span,
    /// Whether it has an error, so that consequences are not reported.
    pub broken: bool,
}

impl DeviceDraft {
    pub(crate) fn read(name: &str, reader: &Reader<'_>) -> DeviceDraft {
        let before = reader.report.errors();
        let resends_all = reader.word("resend") == Some("unsafe");
        let is_elsewhere = Elsewhere::is_meant(reader, "path");
        let backend = match (reader.word("backend"), Elsewhere::read(reader, "path")) {
            (Some("null"), _) => Backend::Null,
            (_, Some(Elsewhere::Pool(pool))) => Backend::Rbd(read_ceph(reader, pool)),
            (_, Some(Elsewhere::Node(address))) => {
                let gateway = read_gateway(name, reader).map(Box::new);
                let tls = read_tls(reader, &address).map(Box::new);
                Backend::Nbd(ServerNode { address, resends_all: resends_all && gateway.is_none(), gateway, tls })
            }
            _ => Backend::Direct,
        };
        match &backend {
            Backend::Nbd(node) => check_insecure(reader, &node.address),
            _ if is_elsewhere && !matches!(backend, Backend::Rbd(_)) => {}
            _ => ignored(reader, &["resend", "gateway", "tls", "insecure"], "server", "the address of a server"),
        }
        let uses_ceph = matches!(backend, Backend::Rbd(_)) || meets_by_ceph(reader);
        if uses_ceph {
            check_user(reader);
        } else if !is_elsewhere || matches!(backend, Backend::Nbd(_)) {
            ignored(reader, &["ceph_conf", "ceph_user"], "pool of a Ceph cluster", "rbd:POOL");
        }
        if backend == Backend::Direct && reader.node("path").is_none() {
            reader.missing("path", "");
        }
        let device = read_belief(name, reader, Some(DeviceClass::Disk));
        let window = read_window(reader, device.depth);
        let device = match &backend {
            Backend::Nbd(ServerNode { gateway: Some(_), .. }) => enforced_by_node(reader, device),
            _ => device,
        };
        let device = Device {
            paths: if is_elsewhere { Vec::new() } else { reader.disk_paths("path") },
            busy_poll: reader.bool("busy_poll").unwrap_or(false),
            admission: reader.word("admission") != Some("off"),
            window,
            pool: read_pool(reader, &backend, &device),
            backend,
            delay: read_delay(reader),
            ..device
        };
        DeviceDraft { device, path_at: reader.at("path"), broken: reader.report.errors() > before }
    }
}

/// Its scheduler, and the properties that the scheduler assumes, but not the backend. `device_class` is `None` if it is
/// not known.
pub fn read_belief(name: &str, reader: &Reader<'_>, device_class: Option<DeviceClass>) -> Device {
    let depth = reader.small("depth").unwrap_or(DEPTH);
    let reference = read_reference(reader);
    let known_class = device_class.unwrap_or_default();
    let cost = read_cost(reader, reference, known_class);
    let capacity = reader.iops("capacity");
    if let Some(stated) = capacity {
        check_size(reader, stated, reference, &cost);
    }
    let rotational = reader.bool("rotational");
    let merging = reader.bool("merging");
    let settings = GateSettings { depth, cost, device_class: known_class, ..GateSettings::default() };
    let capacity = Capacity { iops: capacity.map(|stated| stated.iops), bytes: reader.byte_rate("bandwidth") };
    let info = DeviceInfo::of(&settings, rotational.unwrap_or(false), &capacity);
    let (scheduler, params) = read_scheduler(reader, &info, device_class);
    let latency = reader.time("latency");
    if latency.is_some() && capacity.iops.is_none() {
        reader.missing("capacity", ", which latency needs");
    }
    Device {
        name: name.to_owned(),
        table: "device",
        device_class: known_class,
        paths: Vec::new(),
        backend: Backend::Null,
        scheduler,
        params,
        depth,
        capacity,
        latency,
        reference,
        rotational,
        merging: merging.unwrap_or(scheduler.merging),
        busy_poll: false,
        admission: true,
        reservable: Percent::WHOLE,
        window: window_of(depth),
        cost,
        pool: None,
        delay: None,
    }
}

fn read_tls(reader: &Reader<'_>, address: &NodeAddress) -> Option<NodeTls> {
    let table = reader.table("tls")?;
    let NodeAddress::Tcp(host, _) = address else {
        let hint = "remove tls: a socket of this host has none";
        reader.refuse("tls", "its server has no TCP address", hint);
        return None;
    };
    for (key, with) in [("certificate", "key"), ("key", "certificate")] {
        if table.node(key).is_none() && table.node(with).is_some() {
            table.missing(key, &format!(", which {with} needs"));
        }
    }
    if table.node("ca").is_none() {
        table.missing("ca", "");
    }
    let name = table.text("name").unwrap_or(host).to_owned();
    let own = table.path("certificate").zip(table.path("key"));
    Some(NodeTls { ca: table.path("ca")?, name, own })
}

fn read_gateway(device: &str, reader: &Reader<'_>) -> Option<AsGateway> {
    let table = reader.table("gateway")?;
    for key in ["name", "key_file"].into_iter().filter(|key| table.node(key).is_none()) {
        table.missing(key, "");
    }
    if reader.node("resend").is_some() {
        let hint = "remove resend: its node ends an earlier session before it begins another one";
        reader.refuse("resend", "a gateway sends everything again", hint);
    }
    let (name, key_file) = (table.text("name"), table.path("key_file"));
    let node = table.text("node").unwrap_or(device).to_owned();
    Some(AsGateway { name: name?.to_owned(), node, key_file: key_file? })
}

/// A device whose node enforces the policies of its VMs: every VM's requests go there at once, up to its window.
fn enforced_by_node(reader: &Reader<'_>, device: Device) -> Device {
    let noop = &schedulers::noop::DESCRIPTOR;
    if reader.node("scheduler").is_some() && device.scheduler.name != noop.name {
        let hint = "remove scheduler: the node has one, and this host passes requests on";
        reader.refuse("scheduler", "its node enforces the policies of VMs", hint);
    }
    let depth = if reader.node("depth").is_some() { device.depth } else { NODE_DEPTH };
    Device { scheduler: noop, params: ParamTable::new(), merging: false, depth, ..device }
}

/// Refuses a server on the network that is not known to be meant so.
fn check_insecure(reader: &Reader<'_>, address: &NodeAddress) {
    let insecure = reader.bool("insecure").unwrap_or(false);
    let NodeAddress::Tcp(host, _) = address else { return };
    let is_local = host == "localhost" || host.parse().is_ok_and(|address: std::net::IpAddr| address.is_loopback());
    if is_local || reader.node("tls").is_some() {
        return;
    }
    let what = format!("{address} is reached without encryption, and without knowing who answers there");
    let hint = "use tls, a tunnel to a local port, or a network of its own for storage";
    match insecure {
        true => reader.report.warn(reader.at("path"), format!("{}: path: {what}", reader.whose), hint.to_owned()),
        false => reader.refuse("path", what, format!("{hint} and insecure = true")),
    }
}

/// Warns of keys that only a device of another kind has.
fn ignored(reader: &Reader<'_>, keys: &[&str], kind: &str, path: &str) {
    for key in keys.iter().filter(|key| reader.node(key).is_some()) {
        let message = format!("{}: {key} is ignored because the device is no {kind}", reader.whose);
        reader.report.warn(reader.at(key), message, format!("remove {key}, or state {path} as path"));
    }
}

/// Configuration file and user of the cluster of a device.
fn read_cluster(reader: &Reader<'_>) -> (PathBuf, String) {
    let conf = reader.path("ceph_conf").unwrap_or_else(|| CEPH_CONF.into());
    let user = reader.text("ceph_user").unwrap_or(CEPH_USER);
    (conf, user.to_owned())
}

fn read_ceph(reader: &Reader<'_>, pool: RbdPool) -> Ceph {
    let (conf, user) = read_cluster(reader);
    Ceph { pool, conf, user }
}

/// Whether hosts meet in objects of a cluster.
fn meets_by_ceph(reader: &Reader<'_>) -> bool {
    reader.table("pool").is_some_and(|table| Meeting::is_rados(&table, "meeting"))
}

/// Reports a user that is none.
fn check_user(reader: &Reader<'_>) {
    let user = reader.text("ceph_user").unwrap_or(CEPH_USER);
    if user.is_empty() || user.starts_with("client.") {
        let hint = "write the name without client. in front, for example \"sluice\"";
        reader.refuse("ceph_user", format!("'{user}' is no name of a user"), hint);
    }
}

fn read_pool(reader: &Reader<'_>, backend: &Backend, device: &Device) -> Option<Pool> {
    let table = reader.table("pool")?;
    if let Backend::Nbd(_) = backend {
        let hint = "remove the pool: a server of several hosts divides what it gives, by its own policies";
        reader.refuse("pool", "the device is a server", hint);
    }
    if *backend == Backend::Null {
        let hint = "remove the pool, or state the path of storage that hosts share instead of backend = \"null\"";
        reader.refuse("pool", "a device that stores nothing shares nothing with other hosts", hint);
    }
    if device.latency.is_none() {
        reader.missing(
            "latency",
            ", which pool needs: mean time at the storage from which on it counts as full, such as \"8ms\"",
        );
    }
    for key in ["meeting", "host"] {
        if table.node(key).is_none() {
            table.missing(key, "");
        }
    }
    let (conf, user) = read_cluster(reader);
    let (meeting, host) = (Meeting::read(&table, "meeting", &conf, &user), table.small("host"));
    device.latency.is_some().then_some(Pool { meeting: meeting?, host: u8::try_from(host?).ok()? })
}

fn read_reference(reader: &Reader<'_>) -> Bytes {
    let size = reader.size("reference_size").filter(|size| {
        if !size.0.is_power_of_two() {
            let hint = "write a power of two from 512B to 1MiB; usual are 4KiB, 8KiB and 32KiB";
            reader.refuse("reference_size", format!("{size} is not a power of two"), hint);
        }
        size.0.is_power_of_two()
    });
    size.unwrap_or(Bytes::kib(8))
}

fn check_size(reader: &Reader<'_>, stated: StatedIops, reference: Bytes, cost: &CostModel) {
    if let Some(size) = stated.size.filter(|size| *size != reference) {
        let hint = other_size_hint(stated, size, reference, cost);
        reader.refuse("capacity", format!("the size {size} is not the device's reference size, {reference}"), hint);
    }
}

/// Advice for a rate normalised to another size.
pub(crate) fn other_size_hint(stated: StatedIops, size: Bytes, reference: Bytes, cost: &CostModel) -> String {
    let rate = at_reference(stated.iops, size, cost);
    format!(
        "{}@{size} is about {rate}@{reference} on this device; write \"{rate}@{reference}\", or set reference_size = \
         \"{size}\"",
        stated.iops
    )
}

fn read_cost(reader: &Reader<'_>, reference: Bytes, device_class: DeviceClass) -> CostModel {
    let model = match device_class {
        DeviceClass::Disk => CostModel { reference: Some(reference), ..CostModel::default() },
        DeviceClass::Network => CostModel::frames(),
    };
    let Some(table) = reader.table("cost") else { return model };
    CostModel {
        knee: table.size("knee").unwrap_or(model.knee),
        write_factor: table.decimal("write_factor").map_or(model.write_factor, cost_of),
        flush: table.decimal("flush").map_or(model.flush, cost_of),
        discard: table.decimal("discard").map_or(model.discard, cost_of),
        discard_mib: table.decimal("discard_mib").map_or(model.discard_mib, cost_of),
        ..model
    }
}

fn read_window(reader: &Reader<'_>, depth: u32) -> Window {
    let window = window_of(depth);
    let Some(table) = reader.table("window") else { return window };
    Window {
        requests: table.small("requests").unwrap_or(window.requests),
        bytes: table.size("bytes").map_or(window.bytes, |size| size.0),
    }
}

pub(crate) fn window_of(depth: u32) -> Window {
    Window { requests: depth.saturating_mul(4).clamp(64, WINDOW_REQUESTS_MAX as u32), bytes: Bytes::mib(32).0 }
}

fn read_delay(reader: &Reader<'_>) -> Option<Delay> {
    let table = reader.table("delay")?;
    let delay = Delay {
        time: DelayTime::Fixed(core::time::Duration::ZERO),
        parallel: table.small("parallel").unwrap_or(1),
        bandwidth: table.byte_rate("bandwidth"),
        log: table.path("log"),
        seed: table.integer("seed").unwrap_or(1),
    };
    match table.node("time").map(|node| &node.value) {
        None => {
            table.missing("time", "");
            None
        }
        Some(Value::Table(_)) => Some(Delay { time: read_spread(&table.table("time")?)?, ..delay }),
        Some(_) => Some(Delay { time: DelayTime::Fixed(table.time("time")?), ..delay }),
    }
}

fn read_spread(reader: &Reader<'_>) -> Option<DelayTime> {
    let stated = |key| reader.node(key).is_some();
    let (mean, min, max) = (reader.time("mean"), reader.time("min"), reader.time("max"));
    match (stated("mean"), stated("min"), stated("max")) {
        (true, false, false) => Some(DelayTime::Exponential(mean?)),
        (false, true, true) if min? < max? => Some(DelayTime::Uniform { min: min?, max: max? }),
        (false, true, true) => {
            reader.refuse("min", "min is not below max", "for a fixed time write time = \"4ms\"");
            None
        }
        _ => {
            let message = format!("{}: delay.time needs either mean, or min and max", reader.whose);
            let hint = "write { mean = \"4ms\" } or { min = \"3ms\", max = \"11ms\" }".to_owned();
            reader.report.error(reader.span, message, hint);
            None
        }
    }
}

/// Parses a scheduler by name, with its parameters. It must be for this kind of device, if known.
pub fn read_scheduler(
    reader: &Reader<'_>,
    info: &DeviceInfo,
    device_class: Option<DeviceClass>,
) -> (&'static Descriptor, ParamTable) {
    let default = &schedulers::mclock::DESCRIPTOR;
    let name = match reader.node("scheduler") {
        Some(_) => reader.text("scheduler"),
        None => Some(default.name),
    };
    let found = name.and_then(sluice_papers::find);
    let suits = |scheduler: &Descriptor| device_class.is_none_or(|device_class| scheduler.is_for(device_class));
    let names =
        || sluice_papers::ALL.iter().copied().filter(|scheduler| suits(scheduler)).map(|scheduler| scheduler.name);
    let chosen = found.filter(|scheduler| suits(scheduler));
    if let (Some(found), None) = (found, chosen) {
        let what = match info.device_class {
            DeviceClass::Disk => "schedules packets of network interfaces, but this device is a disk",
            DeviceClass::Network => "schedules requests to disks, but this device is a network link",
        };
        let what = format!("{} {what}", found.name);
        reader.refuse("scheduler", what, format!("write {}", one_of(names())));
    } else if let (Some(name), None) = (name, chosen) {
        let hint = match reader.report.suggest(name, names()) {
            Some(known) => format!("did you mean '{known}'?"),
            None => format!("write {}", one_of(names())),
        };
        reader.refuse("scheduler", format!("there is no scheduler '{name}'"), hint);
    }
    let mut chosen_params = ParamTable::new();
    for (scheduler, node) in reader.scheduler_tables() {
        let params = read_params(reader, scheduler, node, info);
        match chosen {
            Some(chosen) if chosen.name == scheduler.name => chosen_params = params,
            Some(chosen) => {
                let message = format!("{}: the parameters of {} are ignored", reader.whose, scheduler.name);
                reader.report.warn(
                    node.span,
                    message,
                    format!("the scheduler is {}; remove this table, or change the scheduler", chosen.name),
                );
            }
            None => {}
        }
    }
    (chosen.unwrap_or(default), chosen_params)
}

/// Parameters of a scheduler, checked by the scheduler: one by one, so that each error has its position, and then all
/// together.
fn read_params(reader: &Reader<'_>, scheduler: &'static Descriptor, node: &Node, info: &DeviceInfo) -> ParamTable {
    let title = format!("{}: {}", reader.whose, scheduler.name);
    let Value::Table(table) = &node.value else {
        let hint = format!("write a table, [{}.{}]", reader.title(), scheduler.name);
        reader.report.error(node.span, format!("{title} must be a table, not {}", node.value.words()), hint);
        return ParamTable::new();
    };
    let before = reader.report.errors();
    let mut params = ParamTable::new();
    for (name, node) in &table.entries {
        let Some(known) = scheduler.parameters.iter().find(|known| known.name == name) else {
            let names = || scheduler.parameters.iter().map(|known| known.name);
            let hint = match (reader.report.suggest(name, names()), names().next()) {
                (Some(known), _) => format!("did you mean '{known}'?"),
                (None, Some(_)) => format!("its parameters are {}", names().collect::<Vec<_>>().join(", ")),
                (None, None) => "it has no parameters".to_owned(),
            };
            reader.report.error(node.key, format!("{title}: unknown parameter '{name}'"), hint);
            continue;
        };
        let hint = format!("expected {}; write for example {name} = {}", known.accepts(), known.default);
        let Some(value) = param_of(&node.value) else {
            let message = format!("{title}.{name} cannot be {}", node.value.words());
            reader.report.error(node.span, message, hint);
            continue;
        };
        let alone = ParamTable::from([(name.clone(), value.clone())]);
        if let Err(error) = scheduler.build(info, &alone) {
            reader.report.error(node.span, format!("{title}.{name}: {error}"), hint);
        }
        params.insert(name.clone(), value);
    }
    if reader.report.errors() == before
        && let Err(error) = scheduler.build(info, &params)
    {
        reader.report.error(node.span, format!("{title}: {error}"), "change one of its parameters".to_owned());
    }
    params
}

pub fn param_of(value: &Value) -> Option<Param> {
    match value {
        Value::Text(text) => Some(Param::Text(text.clone())),
        Value::Integer(number) => i64::try_from(*number).ok().map(Param::Integer),
        // NaN does not equal itself, so a reload would always see a change.
        Value::Float(number) => number.is_finite().then_some(Param::Float(*number)),
        Value::Bool(value) => Some(Param::Bool(*value)),
        Value::Date | Value::List(_) | Value::Table(_) => None,
    }
}
