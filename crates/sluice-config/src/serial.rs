//! Serial numbers of volumes, by which guests name their disks (`/dev/disk/by-id/virtio-SERIAL`).
//!
//! virtio-blk has 20 bytes for it. A serial number that is not stated is the volume's name, cut off there. Names of two
//! volumes of a VM may be alike up to there. Such a serial number gets a checksum of the whole name at its end, so that it
//! depends on no other volume. Example: `postgres-tablespace-a` and `postgres-tablespace-b` become `postgres-ta-3d17c8b2`
//! and `postgres-ta-3e17ca45`.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::diagnostics::Report;
use crate::reader::Reader;
use crate::vm::VolumeDraft;

/// Maximum length of a serial number, in bytes.
pub(crate) const SERIAL_MAX: usize = 20;

/// Returns the stated serial number.
pub(crate) fn read(reader: &Reader<'_>) -> Option<String> {
    let stated = reader.text("serial")?;
    let is_printable = |c: char| c.is_ascii_graphic() || c == ' ';
    if stated.is_empty() || stated.len() > SERIAL_MAX || !stated.chars().all(is_printable) || stated.trim() != stated {
        let what = format!("'{}' is not 1 to {SERIAL_MAX} printable ASCII characters", stated.escape_default());
        reader.refuse("serial", what, "write for example \"WD-4711\", without spaces around it");
        return None;
    }
    Some(stated.to_owned())
}

/// Makes the serial numbers of a VM's volumes different, and reports stated ones that another volume has.
pub(crate) fn distinguish(volumes: &mut [VolumeDraft], report: &Report) {
    let mut alike: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (index, draft) in volumes.iter().enumerate() {
        alike.entry(draft.volume.serial.clone()).or_default().push(index);
    }
    for (serial, indices) in alike.into_iter().filter(|(_, indices)| indices.len() > 1) {
        let stated = indices.iter().rev().find_map(|&index| Some((index, volumes[index].serial_at?)));
        if let Some((index, span)) = stated {
            let other = indices.iter().find(|&&other| other != index).expect("there are two");
            let message = format!(
                "Volume {}: serial: '{serial}' is already the serial number of volume {}",
                volumes[index].title, volumes[*other].title
            );
            report.error(span, message, "state another serial for one of them".to_owned());
            continue;
        }
        for &index in &indices {
            let draft = &mut volumes[index];
            if draft.volume.name.len() > SERIAL_MAX {
                let serial = with_checksum(&draft.volume.name);
                Arc::make_mut(&mut draft.volume).serial = serial;
            }
        }
        let [first, second] = [&volumes[indices[0]], &volumes[indices[1]]];
        let message = format!(
            "Volumes {} and {}: the first {SERIAL_MAX} characters of their names are alike, so their serial numbers are {} and {}",
            first.title, second.title, first.volume.serial, second.volume.serial
        );
        report.warn(second.source_at, message, "state a serial for each".to_owned());
    }
}

/// Returns the start of a name and the FNV-1a checksum of all of it.
fn with_checksum(name: &str) -> String {
    let sum = name.bytes().fold(0x811c_9dc5_u32, |sum, byte| (sum ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    let start: String = name.chars().take(SERIAL_MAX - 9).collect();
    format!("{start}-{sum:08x}")
}
