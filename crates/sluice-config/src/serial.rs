//! Serial numbers of volumes, by which guests name their disks (`/dev/disk/by-id/virtio-SERIAL`).
//!
//! virtio-blk has 20 bytes for it. A serial number that is not stated is the volume's name. One of a longer name is the start of the
//! name and a checksum of all of it, so that it depends on no other volume. Example: `postgres-tablespace-a` and
//! `postgres-tablespace-b` become `postgres-ta-21fa89f5` and `postgres-ta-1efa853c`.

use std::collections::BTreeMap;

use crate::diagnostics::Report;
use crate::reader::Reader;
use crate::vm::VolumeDraft;

/// Maximum length of a serial number, in bytes.
pub const SERIAL_MAX: usize = 20;

/// Whether a text may be a serial number.
#[must_use]
pub fn is_valid(serial: &str) -> bool {
    let is_printable = serial.bytes().all(|byte| (b' '..=b'~').contains(&byte));
    (1..=SERIAL_MAX).contains(&serial.len()) && is_printable && serial.trim() == serial
}

/// Returns the serial number of a volume with this name that states none.
#[must_use]
pub fn default_of(name: &str) -> String {
    if name.len() <= SERIAL_MAX {
        return name.to_owned();
    }
    let start: String = name.chars().take(SERIAL_MAX - 9).collect();
    format!("{start}-{:08x}", checksum(name))
}

/// FNV-1a checksum, for a name that has to be shortened.
#[must_use]
pub fn checksum(name: &str) -> u32 {
    name.bytes().fold(0x811c_9dc5, |sum, byte| (sum ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// Returns the stated serial number.
pub(crate) fn read(reader: &Reader<'_>) -> Option<String> {
    let stated = reader.text("serial")?;
    if !is_valid(stated) {
        let what = format!("'{}' is not 1 to {SERIAL_MAX} printable ASCII characters", stated.escape_default());
        reader.refuse("serial", what, "write for example \"WD-4711\", without spaces around it");
        return None;
    }
    Some(stated.to_owned())
}

/// Reports volumes of a VM with the same serial number: the guest could not tell them apart.
pub(crate) fn distinguish(volumes: &[VolumeDraft], report: &Report) {
    let mut alike: BTreeMap<&str, Vec<&VolumeDraft>> = BTreeMap::new();
    for draft in volumes {
        alike.entry(&draft.volume.serial).or_default().push(draft);
    }
    for (serial, mut drafts) in alike.into_iter().filter(|(_, drafts)| drafts.len() > 1) {
        // The last one that states it, if one does.
        drafts.sort_by_key(|draft| draft.serial_at.is_some());
        let [other, .., last] = &drafts[..] else { continue };
        let message =
            format!("Volume {}: serial: '{serial}' is already the serial number of volume {}", last.title, other.title);
        report.error(
            last.serial_at.unwrap_or(last.source_at),
            message,
            "state another serial for one of them".to_owned(),
        );
    }
}
