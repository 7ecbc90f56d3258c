//! Folder of sources that are named at run time.
//!
//! The host file belongs to root. Changes may come from a program that acts for tenants and passes on names that they
//! chose.

use std::path::{Component, Path};

use super::Draft;
use crate::diagnostics::Report;

/// `changes_from`: files with this number or a higher one are changes made at run time.
pub(crate) fn check(draft: &Draft, root: Option<&Path>, changes_from: u32, report: &Report) {
    let Some(root) = root else { return };
    let changed = draft.vms.iter().flat_map(|vm| &vm.volumes).filter(|volume| volume.source_at.is_from(changes_from));
    for volume in changed {
        let Some(source) = volume.volume.source.stated().filter(|source| !is_inside(source, root)) else { continue };
        let message = format!(
            "Volume {}: source: {} is not in {}, the source_root of [daemon]",
            volume.title,
            source.display(),
            root.display()
        );
        let hint = "name a file in that folder, without '..'; a volume with any other source must be in the host file";
        report.error(volume.source_at, message, hint.to_owned());
    }
}

/// By name; symbolic links are checked when the source is opened.
fn is_inside(source: &Path, root: &Path) -> bool {
    let climbs = source.components().any(|component| component == Component::ParentDir);
    !climbs && source != root && source.starts_with(root)
}
