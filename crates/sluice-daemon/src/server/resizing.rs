//! Volumes that stay, with another size.

use std::sync::Arc;

use sluice_api::object::ObjectId;
use sluice_config::Volume;
use sluice_io::source::{ExtentMap, Source, SourceError};

use super::claims::Claims;
use super::{Extra, Server};

/// A volume that stays, with another size.
pub(super) struct Resizing {
    pub(super) name: ObjectId,
    pub(super) source: Arc<Source>,
    pub(super) size: Option<u64>,
    /// Whether its file is extended.
    extends: bool,
    /// The volume that last served bytes which this one would get.
    owner: Option<String>,
}

/// A volume with another size: the range is locked, and its file extended. Dropping it undoes both.
pub(super) struct Resized {
    is: Arc<Source>,
    /// The source with its new size; `None` only while it is created.
    to_be: Option<Arc<Source>>,
    /// Previous length of its file, if it was extended. No client knows of the part that would be cut off.
    before_bytes: Option<u64>,
    pub(super) extents: Option<ExtentMap>,
}

impl Resized {
    pub(super) fn source(&self) -> Arc<Source> {
        Arc::clone(self.to_be.as_ref().expect("it was made"))
    }

    /// Keeps the lock and the length, because the new size is in force.
    pub(super) fn keep(mut self) {
        (self.to_be, self.before_bytes) = (None, None);
    }
}

impl Drop for Resized {
    fn drop(&mut self) {
        if let Some(to_be) = &self.to_be
            && let Err(error) = self.is.release_growth(to_be)
        {
            tracing::error!(
                error = crate::failure::chain(&error),
                "Cannot release the range lock past the end of a volume"
            );
        }
        if let Some(before) = self.before_bytes
            && let Err(error) = self.is.cut(before)
        {
            tracing::error!(path = %self.is.path().display(), %error, "Cannot truncate a file to its previous size");
        }
    }
}

/// Returns what a volume that stays needs for the size in the host file.
pub(super) fn resizing(
    server: &Server,
    (vm, name): (&String, &String),
    volume: &Volume,
    extra: &Extra,
    claims: &Claims,
) -> Option<Resizing> {
    let name = ObjectId::volume(vm, name);
    let source = server.served.get(&name)?.0.source()?;
    let extends = matches!(extra, Extra::Grow(grows) if *grows == name);
    let owner = volume.size.and_then(|size| claims.owner_of_growth(&name, source, size));
    Some(Resizing { name, source: Arc::clone(source), size: volume.size, extends, owner })
}

impl Resizing {
    pub(super) fn resize(&self) -> Result<Resized, SourceError> {
        self.source.check_path()?;
        if let Some(other) = &self.owner {
            return Err(SourceError::Claimed { path: self.source.path().to_owned(), other: other.clone() });
        }
        let mut resized = Resized { is: Arc::clone(&self.source), to_be: None, before_bytes: None, extents: None };
        if let Some(bytes) = self.size.filter(|_| self.extends) {
            let before = self.source.extend(bytes)?;
            let grew = self.source.range().offset.saturating_add(bytes) > before;
            resized.before_bytes = grew.then_some(before);
        }
        let to_be = self.source.resized(self.size)?;
        resized.extents = to_be.extents().ok();
        resized.to_be = Some(Arc::new(to_be));
        Ok(resized)
    }
}
