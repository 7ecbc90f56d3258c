//! The text of the state file: its versions, its checksums, and the parts that survive damage.
//!
//! A file has a checksum of the whole state and one of each part, so what is not damaged is kept.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use super::overrides::Override;
use super::{Saved, Served};

/// Version of the file's format. Version 1 had no checksum: the state's keys were next to its version. Version 2 had one of the
/// whole state and none of its parts, and no block sizes of volumes. A later version whose file has `parts` must keep `checksum`, and must
/// have a key more or less: a file with another version that is right as one of this version has a flipped bit.
pub(super) const VERSION: u64 = 3;

/// Why a text is no state for this program.
#[derive(Debug)]
pub(super) enum Unreadable {
    /// It is damaged: how.
    Corrupt(String),
    /// A program that knows this version wrote it.
    Version(u64),
}

/// The file as written.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Sealed<'a> {
    version: u64,
    /// CRC-32 of the text of `state`, in hexadecimal digits.
    checksum: String,
    /// The same of each part of it; none in version 2.
    #[serde(default)]
    parts: Parts,
    #[serde(borrow)]
    pub(super) state: &'a RawValue,
}

/// Checksums of the parts of a state.
#[derive(Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Parts {
    overrides: Vec<String>,
    exports: BTreeMap<String, String>,
}

impl Parts {
    fn of(saved: &Saved) -> Parts {
        Parts {
            overrides: saved.overrides.iter().map(sum).collect(),
            exports: saved.exports.iter().map(|entry| (entry.0.clone(), sum(&entry))).collect(),
        }
    }
}

fn sum(part: &impl Serialize) -> String {
    checksum(&serde_json::to_string(part).expect("a part of the state can be written"))
}

/// Returns the text of a state.
///
/// # Errors
/// A part cannot be written as JSON.
pub(super) fn sealed(saved: &Saved) -> serde_json::Result<Vec<u8>> {
    // In one line: each change writes all of it.
    let state = serde_json::value::to_raw_value(saved)?;
    let checksum = checksum(state.get());
    let mut text =
        serde_json::to_vec_pretty(&Sealed { version: VERSION, checksum, parts: Parts::of(saved), state: &state })?;
    text.push(b'\n');
    Ok(text)
}

/// Reads the state, of any known version.
pub(super) fn unsealed(text: &[u8]) -> Result<Saved, Unreadable> {
    let wrong = |error: serde_json::Error| Unreadable::Corrupt(error.to_string());
    let mut value: Value = serde_json::from_slice(text).map_err(wrong)?;
    let version = value.as_object_mut().and_then(|fields| fields.remove("version"));
    match version.as_ref().and_then(Value::as_u64) {
        None => Err(Unreadable::Corrupt("it has no version".to_owned())),
        Some(1) => serde_json::from_value(value).map_err(wrong),
        Some(version @ (2 | VERSION)) => checked(text, version == VERSION).map_err(Unreadable::Corrupt),
        Some(version) => Err(match damage_beside(version, text) {
            Some(what) => Unreadable::Corrupt(what),
            None => Unreadable::Version(version),
        }),
    }
}

/// Reads a state with checksums, whatever its version says. The error states what is wrong with it.
fn checked(text: &[u8], has_parts: bool) -> Result<Saved, String> {
    let wrong = |error: serde_json::Error| error.to_string();
    let Sealed { checksum: stated, parts, state, .. } = serde_json::from_slice(text).map_err(wrong)?;
    let found = checksum(state.get());
    if stated != found {
        return Err(format!("its checksum is {stated}, and that of its content {found}"));
    }
    let saved = serde_json::from_str(state.get()).map_err(wrong)?;
    match has_parts && parts != Parts::of(&saved) {
        true => Err("the checksums of its parts do not match".to_owned()),
        false => Ok(saved),
    }
}

/// Returns why a file with an unknown version is a damaged one and not that of a newer program.
fn damage_beside(version: u64, text: &[u8]) -> Option<String> {
    /// What a newer program keeps.
    #[derive(Deserialize)]
    struct Sum<'a> {
        checksum: String,
        #[serde(borrow)]
        state: &'a RawValue,
    }
    serde_json::from_slice::<Value>(text).ok()?.get("parts")?;
    let sum = serde_json::from_slice::<Sum<'_>>(text);
    if !sum.is_ok_and(|sum| sum.checksum == checksum(sum.state.get())) {
        return Some(format!("its version is {version}, and its checksum is not that of its content"));
    }
    checked(text, true).ok().map(|_| format!("its version is {version}, and its content is of version {VERSION}"))
}

/// Returns the parts of a damaged state whose checksums match. Volumes whose entries are damaged are unknown, also those that no
/// host file names: they may be attached again. With them come the names of the changes made at run time that are lost, as far as they can be
/// read.
pub(super) fn salvaged(text: &[u8]) -> (Saved, Vec<String>) {
    let mut sealed: Value = serde_json::from_slice(text).unwrap_or_default();
    let mut part = |pointer: &str| sealed.pointer_mut(pointer).map(Value::take).unwrap_or_default();
    let parts: Parts = serde_json::from_value(part("/parts")).unwrap_or_default();
    let exports: BTreeMap<String, Value> = serde_json::from_value(part("/state/exports")).unwrap_or_default();
    let overrides: Vec<Value> = serde_json::from_value(part("/state/overrides")).unwrap_or_default();
    let mut unknown: BTreeSet<String> = serde_json::from_value(part("/state/unknown")).unwrap_or_default();
    let names: BTreeSet<String> = parts.exports.keys().chain(exports.keys()).cloned().collect();
    let known = exports.into_iter().filter_map(|(name, entry)| {
        let served: Served = serde_json::from_value(entry).ok()?;
        (parts.exports.get(&name) == Some(&sum(&(&name, &served)))).then_some((name, served))
    });
    let known: BTreeMap<String, Served> = known.collect();
    unknown.extend(names.into_iter().filter(|name| !known.contains_key(name)));
    let mut saved = Saved { exports: Arc::new(known), unknown, ..Saved::default() };
    let mut lost = Vec::new();
    for entry in overrides {
        let named = entry["target"].as_str().unwrap_or("?").to_owned();
        match serde_json::from_value::<Override>(entry) {
            Ok(known) if parts.overrides.contains(&sum(&known)) => saved.overrides.add(known),
            _ => lost.push(named),
        }
    }
    (saved, lost)
}

/// Checksum of a state as it is written. It finds damage, not intent: who may write the file may write another checksum.
pub(super) fn checksum(text: &str) -> String {
    format!("{:08x}", crc32fast::hash(text.as_bytes()))
}

/// Returns the version of a state as it is written, which this program need not know.
pub(super) fn version_of(text: &[u8]) -> Option<u64> {
    serde_json::from_slice::<Value>(text).ok()?.get("version")?.as_u64()
}
