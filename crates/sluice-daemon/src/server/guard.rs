//! Guards against losing a disk by surprise.
//!
//! A volume that has clients is not removed and gets no other source unless `--force` names it. At a start nothing has
//! clients yet, so the state file has what each volume last served: a volume that would serve something else now is held back
//! until it is forced, and the others are served. Example: `/srv/db1.img` was restored from an old backup under the same
//! name. It is another file, and the guest, which still has the newer disk in its memory, would destroy it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sluice_api::object::ObjectId;
use sluice_config::{Host, Volume};
use sluice_io::device::{DeviceHandle, EditError, Health, StoreSpec};
use sluice_io::source::BlockSize;
use sluice_io::source::block_size::Known;

use super::change::Change;
use super::objects::{nic_socket, nic_stays, pair, stays};
use super::volume::Opening;
use super::{ANSWER_MAX, Found, Needs, Server, ServerError, drain};
use crate::state::{Saved, Served};

/// Names of VMs and volumes that may be closed or changed although they are in use: `VM`, `VM/VOLUME`, or `*` for everything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Force(Vec<String>);

impl Force {
    pub fn new(names: Vec<String>) -> Self {
        Force(names)
    }

    /// Whether everything is forced.
    pub fn is_all(&self) -> bool {
        self.0.iter().any(|name| name == "*")
    }

    pub(super) fn covers(&self, object: &ObjectId) -> bool {
        let (own, (vm, _)) = (object.to_string(), object.parts());
        let is_named = |name: &String| name == vm || *name == own;
        self.is_all() || self.0.iter().any(is_named)
    }
}

/// The data against which a change is checked.
#[derive(Clone, Copy)]
pub struct Guard<'a> {
    /// What each volume last served.
    pub saved: &'a Saved,
    pub force: &'a Force,
    /// Volumes that are held back when the change is in force, with the reasons.
    pub held: &'a BTreeMap<ObjectId, String>,
}

impl Guard<'_> {
    /// The sources that were served before, by identity and offset: what they begin with is their guests' data, and their
    /// block size is that of their guests.
    pub(super) fn known(&self) -> Arc<Known> {
        let (gone, present): (Vec<&Served>, _) = self.saved.exports.values().partition(|served| served.gone);
        let known = gone.into_iter().chain(present);
        let known = known.filter_map(|served| Some(((served.identity.clone()?, served.offset), served.block_size)));
        Arc::new(known.collect())
    }

    /// The block size that a volume is to have.
    pub(super) fn block_size(&self, name: &ObjectId, volume: &Volume, known: &Arc<Known>) -> BlockSize {
        if let Some(stated) = volume.block_size {
            return BlockSize::Stated(stated);
        }
        // A source without an identity is known by its path.
        let of_path = |served: &&Served| {
            served.identity.is_none()
                && Some(&served.source) == volume.source.stated().as_ref()
                && served.offset == volume.offset
        };
        match self.saved.exports.get(&name.to_string()).filter(of_path) {
            Some(served) => served.block_size.map_or(BlockSize::OfSource, BlockSize::Stated),
            None => BlockSize::Remembered(Arc::clone(known)),
        }
    }

    /// Whether a volume on this device was served before.
    pub(super) fn knows_device(&self, host: &Host, device: &str) -> bool {
        let served = self.saved.exports.iter().filter(|(_, served)| !served.gone);
        let volumes = served.filter_map(|(name, _)| {
            let (vm, volume) = name.split_once('/')?;
            host.vms.get(vm)?.volumes.get(volume)
        });
        volumes.into_iter().any(|volume| volume.device == device)
    }
}

/// Volumes that a change closes without force, and how.
pub(super) type Closed = BTreeMap<ObjectId, String>;

/// Returns the volumes that a change removes, or gives another source, and that are not forced.
pub(super) fn closed(change: &Change, guard: &Guard<'_>) -> Closed {
    let mut harmed = Closed::new();
    for (vm, spec) in change.vms.of(&change.old) {
        let after = change.host.vms.get(vm);
        for (name, before) in &spec.volumes {
            let key = ObjectId::volume(vm, name);
            let how = match after.and_then(|vm| vm.volumes.get(name)) {
                None => "would be closed".to_owned(),
                Some(now) if stays(Some(before), now) => continue,
                Some(now) => match (before.source.stated(), now.source.stated()) {
                    (Some(before), Some(now)) if before != now => {
                        format!("would get {} in place of {}", now.display(), before.display())
                    }
                    _ => "would be closed and reopened with other settings".to_owned(),
                },
            };
            if !guard.force.covers(&key) {
                harmed.insert(key, how);
            }
        }
        // Who uses a TAP is not known here, and no data depends on it.
        for (name, before) in spec.nics.iter().filter(|(_, nic)| nic_socket(nic).is_some()) {
            let key = ObjectId::nic(vm, name);
            let how = match after.and_then(|vm| vm.nics.get(name)) {
                None => "would be closed",
                Some(now) if nic_stays(Some(before), now) => continue,
                Some(_) => "would be closed and opened with other settings",
            };
            if !guard.force.covers(&key) {
                harmed.insert(key, how.to_owned());
            }
        }
    }
    harmed
}

/// Rejects a change that closes volumes with clients.
pub(super) fn refuse_in_use(server: &Server, closed: &Closed) -> Result<(), ServerError> {
    if closed.is_empty() {
        return Ok(());
    }
    let in_use = server.in_use();
    refuse(closed, closed.keys().filter(|name| in_use.contains(*name)).cloned().collect())
}

fn refuse(closed: &Closed, volumes: Vec<ObjectId>) -> Result<(), ServerError> {
    if volumes.is_empty() {
        return Ok(());
    }
    let what = volumes.iter().map(|name| format!("{name} {}", closed[name])).collect::<Vec<_>>();
    let force: Vec<String> = volumes.iter().map(|name| format!("--force {name}")).collect();
    Err(ServerError::InUse { what: what.join("; "), force: force.join(" "), volumes })
}

/// Volumes whose new clients are refused, from the last check that they have none until they are closed. Dropping it lets
/// their clients in again.
#[derive(Default)]
pub(super) struct ClientsRefused(Vec<(DeviceHandle, Vec<(String, String)>)>);

impl ClientsRefused {
    /// Refuses new clients of these volumes.
    ///
    /// # Errors
    /// [`ServerError::InUse`]: some have clients, or their device does not respond. Then none are refused.
    pub(super) fn of(server: &Server, closed: &Closed) -> Result<ClientsRefused, ServerError> {
        let mut of_devices: BTreeMap<&str, Vec<ObjectId>> = BTreeMap::new();
        for name in closed.keys() {
            if let Some(device) = server.device_of(name) {
                of_devices.entry(device).or_default().push(name.clone());
            }
        }
        let (mut refused, mut used) = (ClientsRefused::default(), Vec::new());
        for (device, volumes) in of_devices {
            let Some(running) = server.devices.get(device) else { continue };
            let names: Vec<_> = volumes.iter().map(pair).collect();
            refused.0.push((running.device.handle(), names.clone()));
            match running.refuse_clients(names) {
                Err(EditError::InUse(names)) => used.extend(names.iter().map(|(vm, name)| ObjectId::of_vm(vm, name))),
                Err(EditError::Silent(_)) => used.extend(volumes),
                // A device that is down has no clients.
                Ok(()) | Err(_) => {}
            }
        }
        refuse(closed, used).map(|()| refused)
    }
}

impl Drop for ClientsRefused {
    fn drop(&mut self) {
        self.0.drain(..).for_each(|(device, volumes)| device.reopen(volumes));
    }
}

/// Returns the opened volumes that differ from what was last served under their names, and how.
pub(super) fn differing(
    server: &Server,
    needs: &Needs,
    found: &Found,
    guard: &Guard<'_>,
) -> BTreeMap<ObjectId, String> {
    let differing = needs.each::<Opening>().filter_map(|(key, _, Opening { name, .. })| {
        let opened = found.opened::<Opening>(key)?;
        if guard.force.covers(name) || server.served.contains_key(name) {
            return None;
        }
        let own = name.to_string();
        if guard.saved.unknown.contains(&own) {
            let how = "what it last served is not known, because the state file was damaged; accepting it also chooses its block size \
                       again, unless block_size is stated";
            return Some((name.clone(), how.to_owned()));
        }
        let before = guard.saved.exports.get(&own)?;
        let how = difference(before, &served(&opened.store)?, opened.store.facts()?.alignment().offset)?;
        Some((name.clone(), how))
    });
    differing.collect()
}

/// Returns how a source differs from what was served before. A volume that was removed may come back with another source, but the
/// same one keeps its block size. `alignment` is its alignment now, in bytes.
fn difference(before: &Served, now: &Served, alignment: u32) -> Option<String> {
    let other_block = || {
        let (block, block_before) = (now.block_size.unwrap_or(alignment), before.block_size.unwrap_or(alignment));
        (block != block_before).then(|| format!("its block size is {block} bytes, and was {block_before} bytes before"))
    };
    match before.gone {
        true => is_same_place(before, now).then(other_block).flatten(),
        false => other_source(before, now).or_else(other_block).or_else(|| {
            (now.size < before.size)
                .then(|| format!("its size is {} bytes, and was {} bytes before", now.size, before.size))
        }),
    }
}

/// Whether both are the same bytes of the same file or disk. One without an identity is known by its path.
fn is_same_place(before: &Served, now: &Served) -> bool {
    let is_same = match (&before.identity, &now.identity) {
        (Some(one), Some(other)) => one == other,
        _ => before.source == now.source,
    };
    is_same && before.offset == now.offset
}

/// Returns how the file, disk or offset differs from what was served before.
fn other_source(before: &Served, now: &Served) -> Option<String> {
    let (old, new) = (before.source.display(), now.source.display());
    match (&before.identity, &now.identity) {
        (Some(one), Some(other)) if one != other && old.to_string() == new.to_string() => {
            return Some(format!("{new} is now another file or disk: {other}; the volume served {one} before"));
        }
        (Some(one), Some(other)) if one != other => {
            return Some(format!("its source is {new}, and was {old} before"));
        }
        (None, _) | (_, None) if before.source != now.source => {
            return Some(format!("its source is {new}, and was {old} before"));
        }
        _ => {}
    }
    (before.offset != now.offset)
        .then(|| format!("its offset is {} bytes, and was {} bytes before", now.offset, before.offset))
}

/// Returns the source of a volume, for comparison at the next start; `None` if the volume stores nothing.
fn served(store: &StoreSpec) -> Option<Served> {
    let facts = store.facts()?;
    Some(Served {
        source: facts.name().into(),
        identity: facts.identity().map(str::to_owned),
        offset: store.source().map_or(0, |source| source.range().offset),
        size: facts.size_bytes(),
        block_size: Some(facts.block_size()),
        gone: false,
    })
}

impl Server {
    /// Returns the volumes with clients. Those of a device that does not respond count as well.
    fn in_use(&self) -> BTreeSet<ObjectId> {
        let mut in_use = BTreeSet::new();
        for device in drain::ask(self.running(), ANSWER_MAX) {
            if device.health == Health::Silent {
                let all = self.generations.keys();
                let all = all.filter(|name| self.device_of(name) == Some(device.device.as_str()));
                in_use.extend(all.cloned());
            }
            for vm in device.vms {
                in_use.extend(vm.in_use().map(|volume| ObjectId::of_vm(&vm.vm, &volume.volume)));
            }
        }
        in_use
    }
}

/// Returns what the volumes of a prepared change serve, as far as it differs from before.
pub(super) fn serves<'a>(
    volumes: impl Iterator<Item = (&'a ObjectId, &'a StoreSpec)>,
) -> impl Iterator<Item = (String, Served)> {
    volumes.filter_map(|(name, store)| Some((name.to_string(), served(store)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn served(source: &str, identity: Option<&str>, offset: u64, size: u64) -> Served {
        Served {
            source: source.into(),
            identity: identity.map(str::to_owned),
            offset,
            size,
            block_size: None,
            gone: false,
        }
    }

    #[test]
    fn a_volume_is_held_back_for_another_source_and_a_smaller_size_only() {
        let before = served("/a", Some("inode 7"), 512, 4096);
        let differs = |now: Served| difference(&before, &now, 512).is_some();
        assert!(!differs(served("/a", Some("inode 7"), 512, 4096)));
        assert!(!differs(served("/moved", Some("inode 7"), 512, 8192)), "the same file under another name, and longer");
        assert!(differs(served("/a", Some("inode 8"), 512, 4096)));
        assert!(differs(served("/a", Some("inode 7"), 0, 4096)));
        assert!(differs(served("/a", Some("inode 7"), 512, 4095)));
        assert!(!differs(served("/a", None, 512, 4096)) && differs(served("/b", None, 512, 4096)));
    }

    #[test]
    fn a_volume_is_held_back_for_another_block_size() {
        let of = |block_size| Served { block_size, ..served("/a", Some("inode 7"), 0, 1 << 20) };
        let differs = |before, now, alignment| difference(&of(before), &of(Some(now)), alignment).is_some();
        assert!(!differs(Some(512), 512, 4096) && !differs(Some(4096), 4096, 512), "whatever the disk below needs");
        assert!(differs(Some(512), 4096, 4096) && differs(Some(4096), 512, 512));
        assert!(!differs(None, 4096, 4096) && differs(None, 512, 4096), "its guest had the alignment of the source");
    }

    #[test]
    fn a_volume_came_back_from_a_detach_with_another_block_size() {
        let of = |identity, block_size| Served { block_size, ..served("/a", Some(identity), 0, 1 << 20) };
        let before = Served { gone: true, ..of("inode 7", Some(512)) };
        let differs = |now: Served| difference(&before, &now, 512).is_some();
        assert!(differs(of("inode 7", Some(4096))) && !differs(of("inode 7", Some(512))));
        assert!(!differs(Served { size: 512, ..of("inode 7", Some(512)) }), "it may be smaller");
        assert!(!differs(of("inode 8", Some(4096))), "another file");
        assert!(!differs(Served { offset: 4096, ..of("inode 7", Some(4096)) }), "another part of it");
    }

    #[test]
    fn the_block_size_of_a_source_is_known_under_every_name() {
        let entry = |identity, block_size, gone| Served { block_size, gone, ..served("/a", identity, 0, 4096) };
        let old = entry(Some("inode 7"), Some(512), true);
        let served =
            BTreeMap::from([("b/x".to_owned(), entry(Some("inode 7"), Some(4096), false)), ("c/x".to_owned(), old)]);
        let (saved, force) = (Saved { exports: Arc::new(served), ..Saved::default() }, Force::default());
        let guard = Guard { saved: &saved, force: &force, held: &BTreeMap::new() };
        assert_eq!(*guard.known(), Known::from([(("inode 7".to_owned(), 0), Some(4096))]), "of the one that is there");
    }

    #[test]
    fn force_names_a_vm_a_volume_or_everything() {
        let force = |name: &str| Force::new(vec![name.to_owned()]);
        let root = ObjectId::volume("db1", "root");
        assert!(force("db1").covers(&root) && force("db1/root").covers(&root) && force("*").covers(&root));
        assert!(!force("db1/data").covers(&root) && !force("db").covers(&root) && !Force::default().covers(&root));
        assert!(force("*").is_all() && !force("db1").is_all());
    }
}
