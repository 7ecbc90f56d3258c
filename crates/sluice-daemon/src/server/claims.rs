//! Whose a file or disk is that several paths lead to, or that another volume last served.
//!
//! A tenant can make a hard link in its folder to the image of another tenant on the same file system, under the name of its own
//! image. The volume that is opened first would lock out the other one, or read it. So what the paths lead to is compared before
//! anything is opened or locked. A file belongs to the volume that last served it according to the state. Of several volumes
//! that no such record names, none gets it.

use std::collections::BTreeMap;
use std::ops::Range;

use sluice_api::object::ObjectId;
use sluice_config::Host;
use sluice_io::source::{Located, Source};

use super::Guard;

/// What the volumes of a host file last served.
#[derive(Default)]
pub(super) struct Claims(BTreeMap<ObjectId, Claim>);

struct Claim {
    identity: String,
    /// In bytes.
    range: Range<u64>,
    read_only: bool,
}

/// A volume, and what its path leads to.
pub(super) struct Place<'a> {
    pub(super) name: &'a ObjectId,
    /// Its bytes, as the host file states them.
    pub(super) range: Range<u64>,
    /// Whether it may have what another volume last served.
    pub(super) is_forced: bool,
    pub(super) located: &'a Located,
}

impl Claim {
    /// Whether a volume would have bytes of it that gets these parts of a source.
    fn conflicts(&self, identity: Option<&str>, read_only: bool, parts: &[Range<u64>]) -> bool {
        identity == Some(&self.identity)
            && parts.iter().any(|part| overlap(&self.range, part))
            && !(self.read_only && read_only)
    }
}

/// The parts of a range that are not in another one.
fn outside(range: &Range<u64>, of: &Range<u64>) -> [Range<u64>; 2] {
    [range.start..range.end.min(of.start), range.start.max(of.end)..range.end]
}

fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

impl Claims {
    /// Those of the volumes of `host` and of those that are held back.
    pub(super) fn of(host: &Host, guard: &Guard<'_>) -> Claims {
        let claim = |(name, served): (&String, &crate::state::Served)| {
            let (vm, volume) = name.split_once('/')?;
            let key = ObjectId::volume(vm, volume);
            let volume = host.vms.get(vm).and_then(|vm| vm.volumes.get(volume));
            if served.gone || volume.is_none() && !guard.held.contains_key(&key) {
                return None;
            }
            let (identity, range) =
                (served.identity.clone()?, served.offset..served.offset.saturating_add(served.size));
            Some((key, Claim { identity, range, read_only: volume.is_some_and(|volume| volume.read_only) }))
        };
        Claims(guard.saved.exports.iter().filter_map(claim).collect())
    }

    /// Returns the volumes that do not get what their paths lead to, by their place in the list, and whose it is.
    pub(super) fn judge(&self, all: &[Place<'_>]) -> BTreeMap<usize, String> {
        let mut by_file: BTreeMap<_, Vec<usize>> = BTreeMap::new();
        for (at, place) in all.iter().enumerate() {
            by_file.entry(place.located.id()).or_default().push(at);
        }
        let owner = |at: usize| {
            let others = by_file[&all[at].located.id()].iter().filter(|other| **other != at);
            let rivals: Vec<&Place<'_>> =
                others.map(|other| &all[*other]).filter(|other| are_rivals(&all[at], other)).collect();
            match rivals.iter().find(|rival| self.knows(rival)).or(rivals.first()) {
                Some(rival) if !self.knows(&all[at]) || self.knows(rival) => Some(rival.name.clone()),
                Some(_) => None,
                None => self.other_owner(&all[at], all),
            }
        };
        (0..all.len()).filter_map(|at| owner(at).map(|name| (at, name.to_string()))).collect()
    }

    /// Whether a volume last served what its path leads to.
    fn knows(&self, place: &Place<'_>) -> bool {
        self.0.get(place.name).is_some_and(|claim| place.located.identity() == Some(&claim.identity))
    }

    /// Returns the volume that last served these bytes, if it is another one and has not another file with the same identity.
    /// File systems that were copied as a whole have such files.
    fn other_owner(&self, this: &Place<'_>, all: &[Place<'_>]) -> Option<ObjectId> {
        let Place { name, range, is_forced, located } = this;
        if *is_forced {
            return None;
        }
        let has_its_own = |name: &ObjectId| {
            let is_like = |at: &Located| at.identity() == located.identity() && at.id() != located.id();
            all.iter().any(|other| other.name == name && is_like(other.located))
        };
        let parts = self.new_parts(name, located.identity(), range.clone());
        let mut owners = self.others(name, located.identity(), located.is_read_only(), &parts);
        owners.find(|name| !has_its_own(name)).cloned()
    }

    /// Returns the volume that last served bytes which a volume gets by another size.
    pub(super) fn owner_of_growth(&self, name: &ObjectId, source: &Source, size: u64) -> Option<String> {
        let Range { start, end } = source.range().offset..source.range().offset.saturating_add(size);
        let parts = outside(&(start..end), &(start..source.range().end()));
        let mut owners = self.others(name, source.identity(), source.is_read_only(), &parts);
        owners.next().map(ObjectId::to_string)
    }

    /// Returns the parts of a range that a volume has not served before.
    fn new_parts(&self, name: &ObjectId, identity: Option<&str>, range: Range<u64>) -> Vec<Range<u64>> {
        match self.0.get(name).filter(|own| identity == Some(&own.identity)) {
            Some(own) => outside(&range, &own.range).to_vec(),
            None => vec![range],
        }
    }

    fn others<'a>(
        &'a self,
        name: &'a ObjectId,
        identity: Option<&'a str>,
        read_only: bool,
        parts: &'a [Range<u64>],
    ) -> impl Iterator<Item = &'a ObjectId> {
        let owns =
            move |(other, claim): &(&ObjectId, &Claim)| *other != name && claim.conflicts(identity, read_only, parts);
        self.0.iter().filter(owns).map(|(name, _)| name)
    }
}

/// Whether two volumes of one file cannot both have it.
fn are_rivals(one: &Place<'_>, other: &Place<'_>) -> bool {
    overlap(&one.range, &other.range) && !(one.located.is_read_only() && other.located.is_read_only())
}
