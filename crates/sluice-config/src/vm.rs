//! `[vm.NAME]` and `[vm.NAME.volume.NAME]`: checks of a single VM.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sluice_sched::Policy;

use crate::changes::POLICY;
use crate::elsewhere;
use crate::export::ExportDraft;
use crate::fields::OFFSET_MAX;
use crate::known::Known;
use crate::model::{Backend, Ceph, Node, Vm, Volume, VolumeSource};
use crate::net_policy::{NetPart, read_net_table};
use crate::nic::NicDraft;
use crate::node::NodeExport;
use crate::policy::{Part, read_cpu_limit};
use crate::reader::Reader;
use crate::serial;
use crate::source::Span;
use crate::tree::{self, Table, Value};

/// Maximum number of volumes of one VM.
pub(crate) const VOLUMES_MAX: usize = 256;
/// Maximum number of NICs of one VM.
const NICS_MAX: usize = 64;

/// A VM, with data for the checks across tables.
#[derive(Debug)]
pub(crate) struct VmDraft {
    pub(crate) name: String,
    pub(crate) span: Span,
    pub(crate) part: Part,
    /// Whether `part` has its own fields, in addition to a named policy.
    pub(crate) has_own: bool,
    pub(crate) allow_slow: bool,
    pub(crate) volumes: Vec<VolumeDraft>,
    pub(crate) net: NetPart,
    /// Whether `net` has fields of the VM's own.
    pub(crate) has_own_net: bool,
    pub(crate) nics: Vec<NicDraft>,
    /// The checked VM, valid if the report has no errors.
    pub(crate) vm: Arc<Vm>,
    /// The table that it was parsed from.
    table: Arc<Table>,
    /// Whether the table alone caused no warnings.
    is_silent: bool,
}

/// A volume, with data for the checks across tables.
#[derive(Debug)]
pub(crate) struct VolumeDraft {
    /// `VM/VOLUME`
    pub(crate) title: String,
    pub(crate) volume: Arc<Volume>,
    pub(crate) part: Part,
    pub(crate) has_own: bool,
    pub(crate) export: ExportDraft,
    pub(crate) source_at: Span,
    pub(crate) cache_at: Span,
    /// `None`: it is not stated.
    pub(crate) serial_at: Option<Span>,
    /// Whether it has an error.
    pub broken: bool,
}

impl VmDraft {
    pub(crate) fn read(name: &str, reader: &Reader<'_>, known: &Known<'_>) -> VmDraft {
        let before = (reader.report.errors(), reader.report.warnings());
        if name == POLICY {
            let hint = "choose another one: in commands policy/NAME is a named policy";
            reader.report.error(reader.span, format!("{}: the name is reserved", reader.whose), hint.to_owned());
        }
        let (part, has_own) = read_policy(reader, known.policies);
        let volumes = reader.named("volume", VOLUMES_MAX, |volume| format!("Volume {name}/{volume}"));
        let read = |(volume, reader): &(&str, Reader<'_>)| VolumeDraft::read(name, volume, reader, known);
        let volumes: Vec<VolumeDraft> = volumes.iter().map(read).collect();
        serial::distinguish(&volumes, reader.report);
        let allow_slow = reader.bool("allow_slow").unwrap_or(false);
        let (net, has_own_net) = read_net_table(reader, known.nets);
        let receive = net.policy().receive;
        let nics = reader.named("nic", NICS_MAX, |nic| format!("NIC {name}/nic/{nic}"));
        let read = |(nic, reader): &(&str, Reader<'_>)| NicDraft::read(name, nic, reader, known, receive);
        let nics: Vec<NicDraft> = nics.iter().map(read).collect();
        let vm = Vm {
            name: name.to_owned(),
            policy_name: reader.text("policy").map(str::to_owned),
            policy: part.policy(),
            cpu_limit: read_cpu_limit(reader).unwrap_or_else(|| {
                reader.text("policy").and_then(|name| known.cpu_limits.get(name).copied()).flatten()
            }),
            allow_slow,
            volumes: volumes.iter().map(|draft| (draft.volume.name.clone(), Arc::clone(&draft.volume))).collect(),
            net: net.policy(),
            nics: nics.iter().map(|draft| (draft.nic.name.clone(), draft.nic.clone())).collect(),
        };
        let is_silent = before == (reader.report.errors(), reader.report.warnings());
        let (table, span, vm) = (Arc::clone(reader.whole()), reader.span, Arc::new(vm));
        let name = name.to_owned();
        VmDraft { name, span, part, has_own, allow_slow, volumes, net, has_own_net, nics, vm, table, is_silent }
    }

    /// Whether parsing this node would give the same result without diagnostics, with the same devices and policies.
    pub(crate) fn is_of(&self, node: &tree::Node) -> bool {
        self.is_silent && matches!(&node.value, Value::Table(table) if Arc::ptr_eq(table, &self.table))
    }

    /// Whether it, one of its volumes or one of its NICs holds one of these policies.
    pub(crate) fn holds_any(&self, policies: &BTreeSet<&str>) -> bool {
        let volumes = self.vm.volumes.values().map(|volume| &volume.policy_name);
        let nics = self.vm.nics.values().map(|nic| &nic.policy_name);
        volumes.chain(nics).chain([&self.vm.policy_name]).flatten().any(|name| policies.contains(name.as_str()))
    }

    pub(crate) fn policy(&self) -> Policy {
        self.part.policy()
    }

    /// Its devices, without duplicates.
    pub(crate) fn devices(&self) -> Vec<&str> {
        let names = self.volumes.iter().map(|draft| draft.volume.device.as_str());
        let mut names: Vec<&str> = names.filter(|name| !name.is_empty()).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// Its uplinks, without duplicates.
    pub(crate) fn uplinks(&self) -> Vec<&str> {
        let names = self.nics.iter().map(|draft| draft.nic.uplink.as_str());
        let mut names: Vec<&str> = names.filter(|name| !name.is_empty()).collect();
        names.sort_unstable();
        names.dedup();
        names
    }
}

impl VolumeDraft {
    fn read(vm: &str, name: &str, reader: &Reader<'_>, known: &Known<'_>) -> VolumeDraft {
        let before = reader.report.errors();
        let title = format!("{vm}/{name}");
        let (part, has_own) = read_policy(reader, known.policies);
        let device = reader.known("device", known.devices);
        if reader.node("device").is_none() {
            reader.missing("device", "");
        }
        let backend = device.and_then(|device| known.devices.get(device)).map(|draft| &draft.device.backend);
        let (offset, size) = read_range(reader, backend);
        let source = elsewhere::read_source(reader, "source");
        check_source(reader, backend, &source);
        let export = ExportDraft::read(&title, reader);
        let volume = Arc::new(Volume {
            name: name.to_owned(),
            device: device.unwrap_or_default().to_owned(),
            source,
            offset,
            size,
            read_only: reader.bool("read_only").unwrap_or(false),
            is_raw: reader.word("format").is_some(),
            buffered: reader.word("cache") == Some("buffered"),
            block_size: read_block_size(reader, offset, size),
            unmaps: reader.word("discard") != Some("ignore"),
            serial: serial::read(reader).unwrap_or_else(|| serial::default_of(name)),
            policy_name: reader.text("policy").map(str::to_owned),
            policy: part.policy(),
            export: export.export.clone(),
        });
        let (source_at, cache_at) = (reader.at("source"), reader.at("cache"));
        let serial_at = reader.node("serial").map(|node| node.span);
        let broken = reader.report.errors() > before;
        VolumeDraft { title, volume, part, has_own, export, source_at, cache_at, serial_at, broken }
    }
}

/// The named policy overridden by the table's own fields, and whether there are any.
pub fn read_policy(reader: &Reader<'_>, policies: &BTreeMap<String, Part>) -> (Part, bool) {
    let mut own = Part::read(reader);
    let has_own = own.broken || own.states_anything();
    let named = reader.known("policy", policies);
    match named.and_then(|name| policies.get(name)) {
        Some(base) => (base.overlaid(own), has_own),
        // An unknown name is reported; missing fields must not be reported again.
        None => {
            own.broken |= reader.node("policy").is_some();
            (own, has_own)
        }
    }
}

fn check_source(reader: &Reader<'_>, backend: Option<&Backend>, source: &VolumeSource) {
    match (backend, reader.node("source")) {
        (Some(Backend::Direct | Backend::Nbd(_) | Backend::Rbd(_)), None) => reader.missing("source", ""),
        (Some(Backend::Direct), _) => check_file(reader, source),
        (Some(Backend::Nbd(node)), _) => check_export(reader, node, source),
        (Some(Backend::Rbd(ceph)), _) => check_image(reader, ceph, source),
        (Some(Backend::Null), Some(node)) => {
            let message = format!("{}: source is ignored because its device stores nothing", reader.whose);
            let hint = "data that the VM writes is lost; for real use remove backend = \"null\" from the device";
            reader.report.warn(node.span, message, hint.to_owned());
        }
        _ => {}
    }
}

/// Checks a volume on a disk.
fn check_file(reader: &Reader<'_>, source: &VolumeSource) {
    let (what, hint) = match source {
        VolumeSource::Nbd(_) => ("an export of a server", "state a device whose path is the address of that server"),
        VolumeSource::Rbd(_) => ("an RBD image", "state a device whose path is the pool of that image"),
        VolumeSource::File(_) | VolumeSource::Nothing => return,
    };
    reader.refuse("source", format!("its device is a disk, and the source {what}"), hint);
}

/// Checks a volume in a pool of a Ceph cluster: an image as a whole.
fn check_image(reader: &Reader<'_>, Ceph { pool, .. }: &Ceph, source: &VolumeSource) {
    match source {
        VolumeSource::Rbd(image) if image.pool == *pool => {}
        VolumeSource::Rbd(image) => {
            let other = &image.pool;
            let hint = format!("state an image of {pool}, or a device whose path is {other}");
            reader.refuse("source", format!("{other} is another pool than its device {pool}"), hint);
        }
        VolumeSource::File(_) | VolumeSource::Nbd(_) => {
            reader.refuse("source", "it is no RBD image, and its device a pool", format!("write {pool}/IMAGE"));
        }
        VolumeSource::Nothing => {}
    }
    refuse_parts(reader, "a pool", "image", &["offset", "cache", "format"]);
}

/// Refuses keys that a volume elsewhere cannot have.
fn refuse_parts(reader: &Reader<'_>, device: &str, whole: &str, keys: &[&str]) {
    for key in keys.iter().filter(|key| reader.node(key).is_some()) {
        let hint = format!("remove {key}: the volume is the {whole} as a whole, as it is there");
        reader.refuse(key, format!("its device is {device}"), hint);
    }
}

/// Checks a volume on another server: an export as a whole.
fn check_export(reader: &Reader<'_>, node: &Node, source: &VolumeSource) {
    let address = &node.address;
    match source {
        VolumeSource::Nbd(export) if export.node == *address => {}
        VolumeSource::Nbd(export) => {
            let other = &export.node;
            let hint =
                format!("a device is one server: state an export of {address}, or a device whose path is {other}");
            reader.refuse("source", format!("{other} is another server than its device {address}"), hint);
        }
        VolumeSource::File(path) => {
            let shown = path.display();
            let example = NodeExport { node: address.clone(), name: "EXPORT".to_owned() };
            reader.refuse("source", format!("{shown} is a file, and its device a server"), format!("write {example}"));
        }
        VolumeSource::Rbd(image) => {
            let hint = format!("state an export of {address}, or a device whose path is {}", image.pool);
            reader.refuse("source", format!("{image} is an RBD image, and its device a server"), hint);
        }
        VolumeSource::Nothing => {}
    }
    refuse_parts(reader, "a server", "export", &["offset", "size", "cache", "format", "discard"]);
}

fn read_range(reader: &Reader<'_>, backend: Option<&Backend>) -> (u64, Option<u64>) {
    const SECTOR: u64 = 512;
    let whole = |key: &str| {
        let size = reader.size(key)?.0;
        if size.is_multiple_of(SECTOR) {
            return Some(size);
        }
        let below = sluice_sched::Bytes(size - size % SECTOR);
        reader.refuse(key, format!("{size}B is not a whole number of sectors of 512B"), format!("write \"{below}\""));
        None
    };
    let (offset, size) = (whole("offset").unwrap_or(0), whole("size"));
    if backend == Some(&Backend::Null) && reader.node("size").is_none() {
        reader.missing("size", "; its device is \"null\" and has no size");
    }
    if size.is_some_and(|size| size > OFFSET_MAX - offset) {
        reader.refuse("size", "the volume ends above the largest file offset", "lower size or offset");
    }
    (offset, size)
}

fn read_block_size(reader: &Reader<'_>, offset: u64, size: Option<u64>) -> Option<u32> {
    let stated = reader.size("block_size")?.0;
    if !stated.is_power_of_two() {
        reader.refuse("block_size", format!("{stated}B is not a power of two"), "write \"512B\" or \"4KiB\"");
        return None;
    }
    for (key, value) in [("offset", Some(offset)), ("size", size)] {
        if value.is_some_and(|value| !value.is_multiple_of(stated)) {
            let below = sluice_sched::Bytes(value.unwrap_or(0) / stated * stated);
            let what = format!("it is not a whole number of blocks of {}", sluice_sched::Bytes(stated));
            reader.refuse(key, what, format!("write \"{below}\", or a smaller block_size"));
        }
    }
    u32::try_from(stated).ok()
}
