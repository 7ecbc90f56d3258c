//! Builds a [`Host`] from files, or reports all of their errors.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use sluice_sched::Percent;

use crate::changes::{Changes, Object};
use crate::checks::{self, Draft};
use crate::daemon;
use crate::device::DeviceDraft;
use crate::diagnostics::{Diagnostics, Report};
use crate::dropins;
use crate::export::NbdDraft;
use crate::fields;
use crate::known::Known;
use crate::model::{DaemonSettings, Host};
use crate::net_policy::NetPart;
use crate::policy::{Part, read_cpu_limit};
use crate::reader::Reader;
use crate::source::Sources;
use crate::tree::{Table, Value};
use crate::uplink::UplinkDraft;
use crate::vm::VmDraft;

/// Each device has a thread.
const DEVICES_MAX: usize = 256;
/// So has each uplink.
const UPLINKS_MAX: usize = 64;
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
    let (host, vms) = check(tree.clone(), &Checked::default(), report, &sources, sources.next())?;
    let read = Arc::new(Laid { changes: Changes::default(), tree, sources, vms });
    Ok((Files { last: Arc::new(Mutex::new(Arc::clone(&read))), read }, host))
}

/// Files of a host that were read without errors.
#[derive(Debug, Clone)]
pub struct Files {
    /// Without changes.
    read: Arc<Laid>,
    /// With the last changes that were valid. The next ones differ in little: with 200 changed VMs, reading all of them again took
    /// as long as all checks.
    last: Arc<Mutex<Arc<Laid>>>,
}

/// Files with changes.
#[derive(Debug)]
struct Laid {
    changes: Changes,
    tree: Table,
    sources: Sources,
    vms: Checked,
}

/// Checked VMs by name. A VM with an unchanged table is reused if no named policy that it holds is changed: changes at run time
/// never affect the devices against which it was checked.
type Checked = BTreeMap<String, Arc<VmDraft>>;

/// Maximum number of texts of changes in addition to two for each change in force. Texts of replaced changes stay, because positions
/// name them by number. Above it, everything is read again.
const OLD_TEXTS_MAX: usize = 64;

impl Files {
    /// The host that these files describe with changes. Reuses what is as with the changes of the last call.
    pub fn changed(&self, changes: &Changes) -> Result<Host, Diagnostics> {
        let mut last = Arc::clone(&self.last.lock().unwrap_or_else(PoisonError::into_inner));
        let own = self.read.sources.next();
        if (last.sources.next() - own) as usize > 2 * changes.len() + OLD_TEXTS_MAX {
            last = Arc::clone(&self.read);
        }
        let (mut tree, mut sources, report) = (last.tree.clone(), last.sources.clone(), Report::default());
        let policies = changes.lay(&last.changes, &self.read.tree, (&mut tree, &mut sources), &report);
        let stays = |(_, vm): &(&String, &Arc<VmDraft>)| policies.is_empty() || !vm.holds_any(&policies);
        let stay = last.vms.iter().filter(stays).map(|(name, vm)| (name.clone(), Arc::clone(vm))).collect();
        let (host, vms) = check(tree.clone(), &stay, report, &sources, own)?;
        let laid = Arc::new(Laid { changes: changes.clone(), tree, sources, vms });
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = laid;
        Ok(host)
    }

    /// Returns the keys of these files, with changes laid over them, as one table.
    pub fn laid(&self, changes: &Changes) -> Result<serde_json::Value, Diagnostics> {
        self.changed(changes)?;
        Ok(self.last.lock().unwrap_or_else(PoisonError::into_inner).tree.to_json())
    }

    /// Names of the files, in the order in which they were read.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.read.sources.names()
    }

    /// Whether the files have this VM, volume or policy.
    #[must_use]
    pub fn has(&self, target: &Object) -> bool {
        self.read.tree.find(&target.path()).is_some()
    }

    /// Names of the policies.
    #[must_use]
    pub fn policies(&self) -> Vec<&str> {
        let table = self.read.tree.find(&["policy"]).and_then(|node| node.value.as_table());
        table.map_or_else(Vec::new, |table| table.entries.iter().map(|(name, _)| name.as_str()).collect())
    }

    /// The whole table of an object as written; `None` if the files do not have it.
    #[must_use]
    pub fn table(&self, target: &Object) -> Option<serde_json::Value> {
        self.read.tree.find(&target.path()).map(|node| node.value.to_json())
    }

    /// The name of the file that has an object; of several, the first.
    #[must_use]
    pub fn file_of(&self, target: &Object) -> Option<&str> {
        self.read.tree.find(&target.path()).map(|node| self.read.sources.name(node.key))
    }

    /// The value of a key of an object: its own, or that of the policy it names. The parts of a key in a table are
    /// separated by dots (`export.mode`). `None` if neither has it.
    #[must_use]
    pub fn stated(&self, target: &Object, key: &str) -> Option<serde_json::Value> {
        let path: Vec<&str> = key.split('.').collect();
        let own = self.read.tree.find(&target.path())?.value.as_table()?;
        if let Some(node) = own.nearest(&path) {
            return Some(node.value.to_json());
        }
        let Value::Text(policy) = &own.find(&["policy"])?.value else { return None };
        let named = self.read.tree.find(&["policy", policy])?.value.as_table()?;
        named.nearest(&path).map(|node| node.value.to_json())
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
) -> Result<(Host, Checked), Diagnostics> {
    let (draft, daemon) = read(tree, checked, &report);
    // If a part of the text is missing, checks across tables would report false errors.
    if !report.is_incomplete() {
        checks::run(&draft, &daemon.jail, &report);
        checks::roots::check(&draft, daemon.source_root.as_deref(), changes_from, &report);
    }
    let errors = report.errors();
    let found = report.finish(sources);
    if errors > 0 {
        return Err(found);
    }
    let devices = draft.devices.into_iter().map(|(name, draft)| (name, draft.device)).collect();
    let uplinks = draft.uplinks.into_iter().map(|(name, draft)| (name, draft.uplink())).collect();
    let vms = draft.vms.iter().map(|draft| (draft.name.clone(), Arc::clone(&draft.vm))).collect();
    let policies = draft.policies.iter().map(|(name, part)| (name.clone(), part.policy())).collect();
    let net_policies = draft.nets.iter().map(|(name, part)| (name.clone(), part.policy())).collect();
    let (nbd, warnings) = (draft.nbd.settings, found.0);
    let host = Host { devices, uplinks, vms, policies, net_policies, nbd, daemon, warnings };
    Ok((host, draft.vms.into_iter().map(|draft| (draft.name.clone(), draft)).collect()))
}

fn read(tree: Table, checked: &Checked, report: &Report) -> (Draft, DaemonSettings) {
    let tree = Arc::new(tree);
    let root = Reader::root(report, "Host file", &fields::HOST, &tree);
    let devices = root.named("device", DEVICES_MAX, |name| format!("Device {name}"));
    let devices: BTreeMap<String, DeviceDraft> =
        devices.iter().map(|(name, reader)| ((*name).to_owned(), DeviceDraft::read(name, reader))).collect();
    let uplinks = root.named("uplink", UPLINKS_MAX, |name| format!("Uplink {name}"));
    let uplinks: BTreeMap<String, UplinkDraft> =
        uplinks.iter().map(|(name, reader)| ((*name).to_owned(), UplinkDraft::read(name, reader))).collect();
    let tables = root.named("policy", POLICIES_MAX, |name| format!("Policy {name}"));
    let policies: BTreeMap<String, Part> =
        tables.iter().map(|(name, reader)| ((*name).to_owned(), Part::read(reader))).collect();
    let nets: BTreeMap<String, NetPart> =
        tables.iter().map(|(name, reader)| ((*name).to_owned(), NetPart::read_table(reader))).collect();
    let cpu_limits: BTreeMap<String, Option<Percent>> =
        tables.iter().map(|(name, reader)| ((*name).to_owned(), read_cpu_limit(reader).flatten())).collect();
    let known =
        Known { devices: &devices, uplinks: &uplinks, policies: &policies, nets: &nets, cpu_limits: &cpu_limits };
    let vms = read_vms(&root, checked, &known);
    let nbd = root.table("nbd").map_or_else(NbdDraft::default, |mut reader| {
        reader.whose = "[nbd]".into();
        NbdDraft::read(&reader)
    });
    let (settings, daemon) = daemon::read(&root);
    (Draft { devices, uplinks, policies, nets, vms, nbd, daemon }, settings)
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
