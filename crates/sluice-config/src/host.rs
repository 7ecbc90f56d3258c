//! Builds a [`Host`] from files, or reports all of their errors.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use crate::changes::{Changes, Target};
use crate::checks::{self, Draft};
use crate::device::DeviceDraft;
use crate::diagnostics::{Diagnostics, Report};
use crate::dropins;
use crate::export::{NbdDraft, socket_path};
use crate::fields;
use crate::model::{DaemonSettings, Endpoint, Host};
use crate::policy::Part;
use crate::reader::Reader;
use crate::source::{Sources, Span};
use crate::tree::{Table, Value};
use crate::vm::{Known, VmDraft};

/// Each device has a thread.
const DEVICES_MAX: usize = 256;
const POLICIES_MAX: usize = 10_000;
const VMS_MAX: usize = 10_000;

/// Reads the host file at `path` and its drop-ins: for `sluice.toml` those in `sluice.d`.
pub fn load(path: &Path) -> Result<Host, Diagnostics> {
    load_files(path).map(|(_, host)| host)
}

/// Like [`load`]; also returns the files as read, to which changes can be applied.
pub fn load_files(path: &Path) -> Result<(Files, Host), Diagnostics> {
    let (mut sources, report) = (Sources::default(), Report::default());
    let tree = dropins::read_all(path, &mut sources, &report);
    let mut files = Files { tree, sources, vms: Checked::default() };
    let (host, vms) = files.check(&Changes::default(), report)?;
    files.vms = vms.into_iter().map(|draft| (draft.name.clone(), draft)).collect();
    Ok((files, host))
}

/// Files of a host that were read without errors.
#[derive(Debug, Clone)]
pub struct Files {
    tree: Table,
    sources: Sources,
    vms: Checked,
}

/// Checked VMs by name. A VM with an unchanged table is reused: changes at run time never affect the devices and
/// policies against which it was checked.
type Checked = BTreeMap<String, Arc<VmDraft>>;

impl Files {
    /// The host that these files describe with other changes. Reuses VMs that no change affects.
    pub fn changed(&self, changes: &Changes) -> Result<Host, Diagnostics> {
        self.check(changes, Report::default()).map(|(host, _)| host)
    }

    /// Whether the files have this VM or volume.
    #[must_use]
    pub fn has(&self, target: &Target) -> bool {
        self.tree.find(&target.path()).is_some()
    }

    /// The whole table of a VM or volume as written; `None` if the files do not have it.
    #[must_use]
    pub fn table(&self, target: &Target) -> Option<serde_json::Value> {
        self.tree.find(&target.path()).map(|node| node.value.to_json())
    }

    /// The name of the file that has a VM or volume; of several, the first.
    #[must_use]
    pub fn file_of(&self, target: &Target) -> Option<&str> {
        self.tree.find(&target.path()).map(|node| self.sources.name(node.key))
    }

    /// The value of a key of a VM or volume: its own, or that of the policy it names. The parts of a key in a table are
    /// separated by dots (`export.mode`). `None` if neither has it.
    #[must_use]
    pub fn stated(&self, target: &Target, key: &str) -> Option<serde_json::Value> {
        let path: Vec<&str> = key.split('.').collect();
        let own = self.tree.find(&target.path())?.value.as_table()?;
        if let Some(node) = own.nearest(&path) {
            return Some(node.value.to_json());
        }
        let Value::Text(policy) = &own.find(&["policy"])?.value else { return None };
        let named = self.tree.find(&["policy", policy])?.value.as_table()?;
        named.nearest(&path).map(|node| node.value.to_json())
    }

    fn check(&self, changes: &Changes, report: Report) -> Result<(Host, Vec<Arc<VmDraft>>), Diagnostics> {
        let (mut tree, mut sources) = (self.tree.clone(), self.sources.clone());
        let changes_from = sources.next();
        changes.lay(&mut tree, &mut sources, &report);
        check(tree, &self.vms, report, &sources, changes_from)
    }
}

/// Parses one text as a host file without drop-ins; diagnostics call it `name`.
pub fn parse(name: &str, text: &str) -> Result<Host, Diagnostics> {
    let (mut sources, report) = (Sources::default(), Report::default());
    let tree = dropins::read_text(name, text.to_owned(), &mut sources, &report);
    check(tree, &Checked::default(), report, &sources, sources.next()).map(|(host, _)| host)
}

/// `changes_from`: files with this number or a higher one are changes made at run time.
fn check(
    tree: Table,
    checked: &Checked,
    report: Report,
    sources: &Sources,
    changes_from: u32,
) -> Result<(Host, Vec<Arc<VmDraft>>), Diagnostics> {
    let (draft, daemon) = read(tree, checked, &report);
    // If a part of the text is missing, checks across tables would report false errors.
    if !report.is_incomplete() {
        checks::run(&draft, &report);
        checks::roots::check(&draft, daemon.source_root.as_deref(), changes_from, &report);
    }
    let errors = report.errors();
    let found = report.finish(sources);
    if errors > 0 {
        return Err(found);
    }
    let devices = draft.devices.into_iter().map(|(name, draft)| (name, draft.device)).collect();
    let vms = draft.vms.iter().map(|draft| (draft.name.clone(), Arc::clone(&draft.vm))).collect();
    let host = Host { devices, vms, nbd: draft.nbd.settings, daemon, warnings: found.0 };
    Ok((host, draft.vms))
}

fn read(tree: Table, checked: &Checked, report: &Report) -> (Draft, DaemonSettings) {
    let tree = Arc::new(tree);
    let root = Reader::root(report, "Host file", &fields::HOST, &tree);
    let devices = root.named("device", DEVICES_MAX, |name| format!("Device {name}"));
    let devices: BTreeMap<String, DeviceDraft> =
        devices.iter().map(|(name, reader)| ((*name).to_owned(), DeviceDraft::read(name, reader))).collect();
    let policies = root.named("policy", POLICIES_MAX, |name| format!("Policy {name}"));
    let policies: BTreeMap<String, Part> =
        policies.iter().map(|(name, reader)| ((*name).to_owned(), Part::read(reader))).collect();
    let vms = read_vms(&root, checked, &Known { devices: &devices, policies: &policies });
    let nbd = root.table("nbd").map_or_else(NbdDraft::default, |mut reader| {
        reader.whose = "[nbd]".into();
        NbdDraft::read(&reader)
    });
    let (daemon, control) = read_daemon(&root);
    (Draft { devices, policies, vms, nbd, control }, daemon)
}

/// In order of their names.
fn read_vms(root: &Reader<'_>, checked: &Checked, known: &Known<'_>) -> Vec<Arc<VmDraft>> {
    let mut vms: Vec<Arc<VmDraft>> = Vec::new();
    let others = root.named_beside(
        "vm",
        VMS_MAX,
        |name| format!("VM {name}"),
        |name, node| {
            let same = checked.get(name).filter(|draft| draft.is_of(node));
            vms.extend(same.cloned());
            same.is_some()
        },
    );
    vms.extend(others.iter().map(|(name, reader)| Arc::new(VmDraft::read(name, reader, known))));
    vms.sort_by(|a, b| a.name.cmp(&b.name));
    vms
}

fn read_daemon(root: &Reader<'_>) -> (DaemonSettings, Option<(Endpoint, Span)>) {
    let default = DaemonSettings::default();
    let Some(reader) = root.table("daemon") else { return (default, None) };
    let control = socket_path(&reader, "control");
    let endpoint = control.clone().map(|path| Endpoint::Unix { path, owner: None, group: None, mode: 0o600 });
    let endpoint = endpoint.map(|endpoint| (endpoint, reader.at("control")));
    let drain_timeout = reader.time("drain_timeout").unwrap_or(default.drain_timeout);
    let (source_root, state) = (reader.path("source_root"), reader.path("state"));
    (DaemonSettings { drain_timeout, control, state, source_root }, endpoint)
}
